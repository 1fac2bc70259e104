//! The content of a recording, in memory. Times are nanoseconds since the recording began, on one
//! clock.

use std::collections::HashMap;

use outboard_api::decl::Class;
use serde::{Deserialize, Serialize};

/// A whole recording.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    pub about: About,
    /// In the order of their ends; [`Trace::calls`] and its like select one kind.
    pub records: Vec<Record>,
    /// Names of functions, kernels and marks, to which records refer by number.
    pub names: Vec<String>,
    /// True if the recording ends with the program's own end, false if it was cut.
    pub complete: bool,
    /// Records that were lost because memory for them ran out.
    pub lost: u64,
}

/// Description of the program and of the machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Seconds since 1970, UTC.
    pub time_s: u64,
    /// Outboard's release.
    pub release: String,
    /// Address of the server that had the GPU; `None` for this machine's own driver.
    pub gpu: Option<String>,
    /// Level of optimisation, if the GPU was a server's.
    pub optimise: Option<String>,
    /// Network that was emulated between the program and that server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated: Option<String>,
    pub host: Host,
    pub devices: Vec<Device>,
    /// The servers of a program with several, by the numbers that its calls name; empty if it had
    /// one, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub servers: Vec<RecordedServer>,
    pub driver_version: u32,
    pub gpu_times: GpuTimes,
    /// Name of the ranges that delimit iterations, if the user gave one; otherwise those with
    /// `iteration` in their name do.
    #[serde(default)]
    pub iterations: Option<String>,
    /// Cost of recording, as measured when it began.
    #[serde(default)]
    pub cost: CallCost,
}

/// Time that recording adds to a call, in nanoseconds. The recorded times include it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// Added to the call's duration.
    pub inside_ns: f64,
    /// Added to the time until the next call.
    pub outside_ns: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    pub cpu: String,
    pub cores: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Device {
    pub name: String,
    pub memory_bytes: u64,
}

/// One of the servers of a program with several.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedServer {
    /// The server's address.
    pub gpu: String,
    /// Its devices, which are among those of [`About::devices`].
    pub devices: Vec<Device>,
}

/// Source of the times of the GPU's work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuTimes {
    /// No times.
    #[default]
    None,
    /// CUPTI's activity records: the GPU's own time stamps.
    Cupti,
    /// Events around the work: its end is known, its duration includes gaps of a few microseconds.
    Events,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    Call(Call),
    Work(Work),
    Mark(Mark),
}

/// A driver call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Index into [`Trace::names`].
    pub function: u32,
    /// With a server's GPU: the class in which the call behaved, at the level in
    /// [`About::optimise`]. Recorded locally: the class that it has when remoted with every
    /// optimisation, as declared and, for a copy, by the location of its bytes.
    pub class: Class,
    /// Number of the thread, in the order of first calls.
    pub thread: u32,
    pub start_ns: u64,
    pub duration_ns: u64,
    /// Bytes that remoting sends for the call over a network, headers of frames included; 0 for a
    /// local call. Over shm the bytes of copies are in shared memory and are counted too. Recorded
    /// locally, an estimate (docs/trace-format.md).
    pub request_bytes: u64,
    /// Bytes of the reply in remoting; 0 if there is none.
    pub response_bytes: u64,
    /// Number of the stream, in the order of first use; 0 is the default stream.
    pub stream: u32,
    /// Number of the event that the call is about, in the order of first use, from 1; 0 for none.
    pub event: u32,
    /// Links the call to the GPU work that it started; 0 for none.
    pub correlation: u32,
    /// The call's CUresult.
    pub status: u32,
    /// The server that the call was for, of [`About::servers`]; 0 if there is one, or none. Streams
    /// are this server's; the default stream of each server is 0.
    pub server: u8,
}

/// A piece of work that the GPU did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub kind: GpuWork,
    /// Index into [`Trace::names`]: a kernel's symbol; for other work its kind.
    pub name: u32,
    pub device: u32,
    pub stream: u32,
    pub start_ns: u64,
    pub duration_ns: u64,
    /// Bytes of a copy or a memset.
    pub bytes: u64,
    /// The call that started it; 0 if unknown.
    pub correlation: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuWork {
    Kernel,
    CopyToDevice,
    CopyToHost,
    CopyOnDevice,
    Memset,
    /// A graph launched as a whole, if its nodes are not distinguished.
    Graph,
}

/// The beginning or end of a range that the program named: an NVTX range, or an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Index into [`Trace::names`].
    pub name: u32,
    pub thread: u32,
    pub at_ns: u64,
    pub is_end: bool,
}

impl About {
    /// Returns true if ranges of this name delimit iterations.
    pub fn is_iteration(&self, name: &str) -> bool {
        match &self.iterations {
            Some(given) => name == given,
            None => name.to_lowercase().contains("iteration"),
        }
    }
}

impl Record {
    /// Index into [`Trace::names`].
    pub fn name(&self) -> u32 {
        match self {
            Record::Call(call) => call.function,
            Record::Work(work) => work.name,
            Record::Mark(mark) => mark.name,
        }
    }

    pub fn start_ns(&self) -> u64 {
        match self {
            Record::Call(call) => call.start_ns,
            Record::Work(work) => work.start_ns,
            Record::Mark(mark) => mark.at_ns,
        }
    }

    /// Converts times to another clock, which must never go backwards.
    pub(crate) fn map_times(&mut self, clock: impl Fn(u64) -> u64) {
        let (start, end) = (self.start_ns(), self.end_ns());
        let start_ns = clock(start);
        let duration_ns = match start == end {
            true => 0,
            false => clock(end).saturating_sub(start_ns),
        };
        match self {
            Record::Call(call) => (call.start_ns, call.duration_ns) = (start_ns, duration_ns),
            Record::Work(work) => (work.start_ns, work.duration_ns) = (start_ns, duration_ns),
            Record::Mark(mark) => mark.at_ns = start_ns,
        }
    }

    /// Returns the time of the record's end.
    pub fn end_ns(&self) -> u64 {
        match self {
            Record::Call(call) => call.start_ns.saturating_add(call.duration_ns),
            Record::Work(work) => work.start_ns.saturating_add(work.duration_ns),
            Record::Mark(mark) => mark.at_ns,
        }
    }
}

impl Trace {
    /// Sets the stream of work to that of the call that started it, since the GPU's times may
    /// number streams in another way.
    pub fn give_streams(&mut self) {
        let streams: HashMap<u32, u32> = self
            .calls()
            .filter(|call| call.correlation != 0)
            .map(|call| (call.correlation, call.stream))
            .collect();
        for record in &mut self.records {
            if let Record::Work(work) = record
                && let Some(stream) = streams.get(&work.correlation)
            {
                work.stream = *stream;
            }
        }
    }

    pub fn name(&self, index: u32) -> &str {
        self.names.get(index as usize).map_or("?", String::as_str)
    }

    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.records.iter().filter_map(|record| match record {
            Record::Call(call) => Some(call),
            _ => None,
        })
    }

    pub fn work(&self) -> impl Iterator<Item = &Work> {
        self.records.iter().filter_map(|record| match record {
            Record::Work(work) => Some(work),
            _ => None,
        })
    }

    /// Returns true if ranges of this name delimit iterations.
    pub fn is_iteration(&self, name: &str) -> bool {
        self.about.is_iteration(name)
    }

    pub fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.records.iter().filter_map(|record| match record {
            Record::Mark(mark) => Some(mark),
            _ => None,
        })
    }
}
