//! The cases of the bench.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Cases that `--only` names together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    /// Calls that need no reply, or whose result is known
    Calls,
    /// Synchronising, with and without work to wait for
    Waits,
    /// Kernel launches
    Launches,
    /// CUDA graphs
    Graphs,
    /// Reading four bytes back, as tensor.item() does
    Item,
    /// Copies between host and device by size, pinned and pageable
    Copies,
    /// Filling device memory
    Memset,
    /// A plain tcp connection, for comparison
    Socket,
}

/// One row of the table.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) group: Group,
    /// Name in the JSON; it never changes.
    pub(super) name: String,
    /// Name in the table.
    pub(super) title: String,
    pub(super) work: Operation,
    /// Bytes for computing a bandwidth.
    pub(super) bytes: Option<u64>,
    /// The least exchange of a plain socket that the case would need.
    pub(super) raw: Option<RawExchange>,
}

/// The work that a worker times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    ContextDevice,
    MemoryInfo,
    EventRecord,
    EventQueryDone,
    EventQueryPending,
    StreamQueryDone,
    EventCreateDestroy,
    Allocate,
    AllocateAsync,
    SynchronizeIdle,
    LaunchSynchronize,
    SynchronizeAfterLaunch,
    LaunchCall,
    /// A launch between other things that the program does, as in real programs: its data is not in
    /// the nearest cache.
    LaunchBetween,
    LaunchQueued,
    LaunchQueued20,
    GraphQueued,
    GraphCall,
    GraphSynchronize,
    ItemPinned,
    ItemPageable,
    /// A kernel that takes so long, and four bytes read back, as tensor.item() does; between other
    /// things that the program does.
    ItemAfter {
        kernel_ns: u64,
    },
    ToDevice {
        bytes: usize,
        pinned: bool,
    },
    /// The call alone, from pageable memory.
    ToDeviceCall {
        bytes: usize,
    },
    ToHost {
        bytes: usize,
        pinned: bool,
    },
    Memset {
        bytes: usize,
    },
    /// A small inference: a copy in, kernels, a result out.
    Step,
    /// A case of the plain socket only.
    Nothing,
}

/// The exchange that is timed on a plain socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RawExchange {
    /// [`PING_BYTES`](super::socket::PING_BYTES) each way.
    RoundTrip { receiver: Receiver },
    /// `bytes` one way, and a byte back at the end.
    OneWay { bytes: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiver {
    /// Sleeps in the kernel until bytes arrive.
    Blocking,
    /// Polls without pause.
    Busy,
    /// Waits as our links do on this machine: polling if there are cores to spare.
    Usual,
}

/// Launches of one sample of the queued cases.
pub(super) const QUEUED_LAUNCHES: usize = 1_000;
/// Launches of one sample in which each is timed by itself.
pub(super) const SINGLE_LAUNCHES: usize = 100;
/// Bytes that a program uses between two launches: as many as a core's second cache has.
pub(super) const BETWEEN_BYTES: usize = 1 << 20;
pub(super) const CACHE_LINE_BYTES: usize = 64;
pub(super) const GRAPH_NODES: usize = 20;
pub(super) const STEP_KERNELS: usize = 20;
pub(super) const STEP_INPUT_BYTES: usize = 64 << 10;
pub(super) const COPY_BYTES_MAX: usize = 64 << 20;
/// Shortest copy whose bandwidth is shown; shorter copies are round trips.
pub(super) const BANDWIDTH_BYTES_MIN: u64 = 64 << 10;
const COPY_BYTES: [usize; 6] = [4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, COPY_BYTES_MAX];
const COPY_BYTES_QUICK: [usize; 3] = [4, 64 << 10, 16 << 20];

const ROUND_TRIP: Option<RawExchange> = Some(RawExchange::RoundTrip {
    receiver: Receiver::Usual,
});

/// Returns every case of the groups, in the order of measurement; an empty `only` means all.
pub(super) fn cases(only: &[Group], quick: bool) -> Vec<Case> {
    let is_wanted = |case: &Case| only.is_empty() || only.contains(&case.group);
    calls()
        .into_iter()
        .chain(waits_and_launches())
        .chain(graphs_and_items())
        .chain(copies(quick))
        .chain(socket(quick))
        .filter(is_wanted)
        .collect()
}

fn calls() -> Vec<Case> {
    vec![
        case(
            Group::Calls,
            "context_device",
            "cuCtxGetDevice",
            Operation::ContextDevice,
        ),
        case(
            Group::Calls,
            "memory_info",
            "cuMemGetInfo",
            Operation::MemoryInfo,
        ),
        case(
            Group::Calls,
            "event_record",
            "cuEventRecord",
            Operation::EventRecord,
        ),
        case(
            Group::Calls,
            "event_query_done",
            "cuEventQuery, done",
            Operation::EventQueryDone,
        ),
        case(
            Group::Calls,
            "event_query_pending",
            "cuEventQuery, pending",
            Operation::EventQueryPending,
        ),
        case(
            Group::Calls,
            "stream_query_done",
            "cuStreamQuery, done",
            Operation::StreamQueryDone,
        ),
        case(
            Group::Calls,
            "event_create_destroy",
            "cuEventCreate + Destroy",
            Operation::EventCreateDestroy,
        ),
        case(
            Group::Calls,
            "allocate",
            "cuMemAlloc + Free, 1 MiB",
            Operation::Allocate,
        ),
        case(
            Group::Calls,
            "allocate_async",
            "cuMemAllocAsync + FreeAsync",
            Operation::AllocateAsync,
        ),
    ]
}

fn waits_and_launches() -> Vec<Case> {
    vec![
        case(
            Group::Waits,
            "synchronize_idle",
            "cuCtxSynchronize, idle",
            Operation::SynchronizeIdle,
        ),
        case(
            Group::Waits,
            "launch_synchronize",
            "launch + synchronise",
            Operation::LaunchSynchronize,
        )
        .round_trip(),
        case(
            Group::Waits,
            "synchronize_after_launch",
            "cuStreamSynchronize behind a launch",
            Operation::SynchronizeAfterLaunch,
        )
        .round_trip(),
        case(
            Group::Launches,
            "launch_queued",
            "launch, 1,000 queued",
            Operation::LaunchQueued,
        ),
        case(
            Group::Launches,
            "launch_call",
            "launch, the call alone",
            Operation::LaunchCall,
        ),
        case(
            Group::Launches,
            "launch_queued_20",
            "launch, 20 parameters, queued",
            Operation::LaunchQueued20,
        ),
    ]
}

fn graphs_and_items() -> Vec<Case> {
    vec![
        case(
            Group::Graphs,
            "graph_queued",
            "graph of 20 kernels, 100 queued",
            Operation::GraphQueued,
        ),
        case(
            Group::Graphs,
            "graph_call",
            "graph of 20 kernels, the call alone",
            Operation::GraphCall,
        ),
        case(
            Group::Graphs,
            "graph_synchronize",
            "graph of 20 kernels + synchronise",
            Operation::GraphSynchronize,
        )
        .round_trip(),
        case(
            Group::Item,
            "item_pinned",
            "4 bytes to pinned memory",
            Operation::ItemPinned,
        )
        .round_trip(),
        case(
            Group::Item,
            "item_pageable",
            "4 bytes to pageable memory",
            Operation::ItemPageable,
        )
        .round_trip(),
    ]
}

fn case(group: Group, name: &str, title: &str, work: Operation) -> Case {
    Case {
        group,
        name: name.into(),
        title: title.into(),
        work,
        bytes: None,
        raw: None,
    }
}

impl Case {
    /// Has the case compared with a round trip over plain tcp.
    fn round_trip(self) -> Case {
        Case {
            raw: ROUND_TRIP,
            ..self
        }
    }
}

fn copies(quick: bool) -> Vec<Case> {
    let sizes: &[usize] = if quick {
        &COPY_BYTES_QUICK
    } else {
        &COPY_BYTES
    };
    let mut cases = Vec::new();
    for pinned in [true, false] {
        let memory = if pinned { "pinned" } else { "pageable" };
        for &bytes in sizes {
            let ways = [
                (
                    "to_device",
                    "to device",
                    Operation::ToDevice { bytes, pinned },
                ),
                ("to_host", "to host", Operation::ToHost { bytes, pinned }),
            ];
            cases.extend(ways.map(|(name, title, work)| Case {
                group: Group::Copies,
                name: format!("{name}_{memory}_{bytes}"),
                title: format!("{} {memory} {title}", size(bytes)),
                work,
                bytes: Some(bytes as u64),
                raw: match bytes as u64 >= BANDWIDTH_BYTES_MIN {
                    true => Some(RawExchange::OneWay { bytes }),
                    false => ROUND_TRIP,
                },
            }));
        }
    }
    cases.extend([4 << 10, 16 << 20].map(|bytes| Case {
        group: Group::Memset,
        name: format!("memset_{bytes}"),
        title: format!("{} cuMemsetD8Async + synchronise", size(bytes)),
        work: Operation::Memset { bytes },
        bytes: Some(bytes as u64),
        raw: ROUND_TRIP,
    }));
    cases
}

fn socket(quick: bool) -> Vec<Case> {
    let large = if quick { 16 << 20 } else { COPY_BYTES_MAX };
    let ping = |name: &str, title: &str, receiver| Case {
        group: Group::Socket,
        name: name.into(),
        title: title.into(),
        work: Operation::Nothing,
        bytes: None,
        raw: Some(RawExchange::RoundTrip { receiver }),
    };
    vec![
        ping(
            "socket_ping_blocking",
            "64 B there and back, blocking",
            Receiver::Blocking,
        ),
        ping(
            "socket_ping_busy",
            "64 B there and back, busy",
            Receiver::Busy,
        ),
        Case {
            group: Group::Socket,
            name: format!("socket_one_way_{large}"),
            title: format!("{} one way", size(large)),
            work: Operation::Nothing,
            bytes: Some(large as u64),
            raw: Some(RawExchange::OneWay { bytes: large }),
        },
    ]
}

pub(super) fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_group_has_cases() {
        for quick in [false, true] {
            let all = cases(&[], quick);
            let names: HashSet<_> = all.iter().map(|case| &case.name).collect();
            assert_eq!(names.len(), all.len());
            for group in Group::value_variants() {
                let some = cases(&[*group], quick);
                assert!(!some.is_empty() && some.iter().all(|case| case.group == *group));
            }
        }
    }

    #[test]
    fn work_travels_as_json() {
        for case in cases(&[], false) {
            let text = serde_json::to_string(&case.work).unwrap();
            assert_eq!(serde_json::from_str::<Operation>(&text).unwrap(), case.work);
        }
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(
            [4, 4096, 65_536, 64 << 20].map(size),
            ["4 B", "4 KiB", "64 KiB", "64 MiB"]
        );
    }
}
