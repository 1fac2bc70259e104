//! What a recording holds, in memory. Times are nanoseconds since the recording began, on one clock.

use std::collections::HashMap;

use outboard_api::decl::Class;
use serde::{Deserialize, Serialize};

/// A whole recording.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    pub about: About,
    /// In the order of their ends; [`Trace::calls`] and its like sort out the rest.
    pub records: Vec<Record>,
    /// The names that records refer to by number: functions, kernels, marks.
    pub names: Vec<String>,
    /// The recording ends with the program's own end, not with a cut.
    pub complete: bool,
    /// Records that were lost because memory for them ran out.
    pub lost: u64,
}

/// What was recorded, on what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Seconds since 1970, UTC.
    pub time_s: u64,
    /// Outboard's release.
    pub release: String,
    /// Where its GPU was: none for this machine's own driver, else the address of the server.
    pub gpu: Option<String>,
    /// The level of optimisation, where the GPU was behind a server.
    pub optimise: Option<String>,
    pub host: Host,
    pub devices: Vec<Device>,
    pub driver_version: u32,
    pub gpu_times: GpuTimes,
    /// Ranges of this name delimit iterations, where the user gave one; else those with `iteration` in their name.
    #[serde(default)]
    pub iterations: Option<String>,
    /// What recording costs here, as it was measured when it began.
    #[serde(default)]
    pub cost: CallCost,
}

/// What recording adds to a call, in nanoseconds: it is in what was recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CallCost {
    /// To its duration.
    pub inside_ns: f64,
    /// To the time until the next one.
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

/// How the times of the GPU's work were found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuTimes {
    /// There are none.
    #[default]
    None,
    /// CUPTI's activity records: the GPU's own time stamps.
    Cupti,
    /// Events around the work: its end is known, its duration holds gaps of a few microseconds.
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
    /// With the GPU behind a server: what the call did, at the level in [`About::optimise`]. Recorded locally: what it costs
    /// when it is remoted with every optimisation, as it is declared and, for a copy, by where its bytes go.
    pub class: Class,
    /// Threads in the order of their first calls.
    pub thread: u32,
    pub start_ns: u64,
    pub duration_ns: u64,
    /// What remoting sends for it over a network, headers of frames included; 0 for a local call. Over shm the bytes of
    /// copies lie in shared memory, and are counted all the same. Recorded locally, an estimate (docs/trace-format.md).
    pub request_bytes: u64,
    /// What remoting answers; 0 where nothing is.
    pub response_bytes: u64,
    /// Streams in the order of their first use; 0 is the default stream.
    pub stream: u32,
    /// Which event it is about: events in the order of their first use, from 1; 0 for none.
    pub event: u32,
    /// Links the call to the GPU's work that it started; 0 for none.
    pub correlation: u32,
    /// The CUresult.
    pub status: u32,
}

/// What the GPU did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub kind: GpuWork,
    /// Index into [`Trace::names`]: a kernel's symbol; of other work what it is.
    pub name: u32,
    pub device: u32,
    pub stream: u32,
    pub start_ns: u64,
    pub duration_ns: u64,
    /// Of a copy or a memset.
    pub bytes: u64,
    /// The call that started it; 0 where that is not known.
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
    /// A graph launched as a whole, where its nodes are not told apart.
    Graph,
}

/// The beginning or end of something that the program named: an NVTX range, or an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Index into [`Trace::names`].
    pub name: u32,
    pub thread: u32,
    pub at_ns: u64,
    pub is_end: bool,
}

impl About {
    /// Whether ranges of this name delimit iterations.
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

    /// Brings times to another clock, which goes forward as theirs does.
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

    /// When it was over.
    pub fn end_ns(&self) -> u64 {
        match self {
            Record::Call(call) => call.start_ns.saturating_add(call.duration_ns),
            Record::Work(work) => work.start_ns.saturating_add(work.duration_ns),
            Record::Mark(mark) => mark.at_ns,
        }
    }
}

impl Trace {
    /// Work that a call started is on the call's stream: whoever times it may count streams in another way.
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

    /// Whether ranges of this name delimit iterations.
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
