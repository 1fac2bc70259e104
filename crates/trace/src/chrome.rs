//! Exports recordings as Chrome's trace events, which Perfetto and chrome://tracing show.
//!
//! The program is one process with its threads, each device another with its streams; an arrow
//! leads from a call to the work that it started. Times are in microseconds.

use std::{
    collections::{BTreeSet, HashSet},
    io::{self, Write},
};

use serde_json::{Value, json};

use crate::record::{Call, Mark, Record, Trace, Work};

const PROGRAM: u32 = 1;
/// Process number of device 0.
const DEVICES: u32 = 100;

/// Writes the whole recording as a JSON document.
pub fn export(out: &mut dyn Write, trace: &Trace) -> io::Result<()> {
    let mut events = Events {
        out,
        is_first: true,
    };
    events
        .out
        .write_all(b"{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n")?;
    for event in names(trace) {
        events.write(&event)?;
    }
    // Arrows begin only at calls whose work is in the recording.
    let arrows: HashSet<u32> = trace
        .work()
        .map(|work| work.correlation)
        .filter(|correlation| *correlation != 0)
        .collect();
    for record in &trace.records {
        match record {
            Record::Call(call) => {
                events.write(&call_event(trace, call))?;
                if arrows.contains(&call.correlation) {
                    let start = call.start_ns;
                    events.write(&arrow("s", call.correlation, PROGRAM, call.thread, start))?;
                }
            }
            Record::Work(work) => {
                events.write(&work_event(trace, work))?;
                if work.correlation != 0 {
                    let (device, start) = (DEVICES.saturating_add(work.device), work.start_ns);
                    events.write(&arrow("f", work.correlation, device, work.stream, start))?;
                }
            }
            Record::Mark(mark) => events.write(&mark_event(trace, mark))?,
        }
    }
    events.out.write_all(b"\n]}\n")
}

struct Events<'w> {
    out: &'w mut dyn Write,
    is_first: bool,
}

impl Events<'_> {
    fn write(&mut self, event: &Value) -> io::Result<()> {
        if !std::mem::take(&mut self.is_first) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.out, event).map_err(io::Error::other)
    }
}

/// Makes the events that name processes and threads.
fn names(trace: &Trace) -> Vec<Value> {
    let mut events = Vec::new();
    let mut name = |what: &str, pid: u32, tid: u32, name: String| {
        events
            .push(json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}));
    };
    let program = trace.about.argv.first().map_or("program", String::as_str);
    name("process_name", PROGRAM, 0, program.into());
    let threads: BTreeSet<u32> = trace
        .calls()
        .map(|call| call.thread)
        .chain(trace.marks().map(|mark| mark.thread))
        .collect();
    for thread in threads {
        name("thread_name", PROGRAM, thread, format!("thread {thread}"));
    }
    let lanes: BTreeSet<(u32, u32)> = trace
        .work()
        .map(|work| (work.device, work.stream))
        .collect();
    let devices: BTreeSet<u32> = lanes.iter().map(|(device, _)| *device).collect();
    for device in devices {
        let known = trace.about.devices.get(device as usize);
        let text = known.map_or("device", |known| known.name.as_str());
        let pid = DEVICES.saturating_add(device);
        name("process_name", pid, 0, format!("GPU {device}: {text}"));
    }
    for (device, stream) in lanes {
        let text = match stream {
            0 => "default stream".into(),
            stream => format!("stream {stream}"),
        };
        name("thread_name", DEVICES.saturating_add(device), stream, text);
    }
    events
}

fn call_event(trace: &Trace, call: &Call) -> Value {
    let mut event = json!({
        "ph": "X", "cat": call.class.name(), "name": trace.name(call.function),
        "pid": PROGRAM, "tid": call.thread, "ts": us(call.start_ns), "dur": us(call.duration_ns),
        "args": {
            "class": call.class.name(), "stream": call.stream, "request_bytes": call.request_bytes,
            "response_bytes": call.response_bytes, "status": call.status,
        },
    });
    if let Some(server) = trace.about.servers.get(usize::from(call.server)) {
        event["args"]["server"] = json!(server.gpu);
    }
    if call.event != 0 {
        event["args"]["event"] = call.event.into();
    }
    event
}

fn work_event(trace: &Trace, work: &Work) -> Value {
    json!({
        "ph": "X", "cat": work.kind.name(), "name": trace.name(work.name),
        "pid": DEVICES.saturating_add(work.device), "tid": work.stream,
        "ts": us(work.start_ns), "dur": us(work.duration_ns),
        "args": {"bytes": work.bytes, "correlation": work.correlation},
    })
}

/// Ranges of a thread may overlap without being nested, as NVTX allows; their names distinguish
/// them.
fn mark_event(trace: &Trace, mark: &Mark) -> Value {
    json!({
        "ph": if mark.is_end { "e" } else { "b" }, "cat": "mark", "name": trace.name(mark.name),
        "id": format!("{}-{}", mark.thread, mark.name), "pid": PROGRAM, "tid": mark.thread, "ts": us(mark.at_ns),
    })
}

fn arrow(phase: &str, correlation: u32, pid: u32, tid: u32, at_ns: u64) -> Value {
    let mut event = json!({
        "ph": phase, "cat": "starts", "name": "starts", "id": correlation, "pid": pid, "tid": tid, "ts": us(at_ns),
    });
    if phase == "f" {
        event["bp"] = "e".into();
    }
    event
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}
