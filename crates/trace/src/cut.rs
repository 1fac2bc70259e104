//! Cuts a recording to some of its iterations.

use std::{collections::HashSet, ops::RangeInclusive};

use crate::record::{About, Call, Record, Trace};

/// Returns the iterations of these numbers, counted from 1: all records from the beginning of the
/// first to the end of the last, and the work that was started then. `None` if there are not that
/// many.
pub fn iterations(trace: &Trace, numbers: RangeInclusive<usize>) -> Option<Trace> {
    let (from_ns, to_ns) = span(trace, &numbers)?;
    let within = |at_ns: u64| (from_ns..=to_ns).contains(&at_ns);
    let calls: HashSet<u32> = trace
        .calls()
        .filter(|call| within(call.start_ns) && call.correlation != 0)
        .map(|call| call.correlation)
        .collect();
    let started: HashSet<u32> = trace.calls().map(|call| call.correlation).collect();
    let is_kept = |record: &&Record| match record {
        Record::Call(call) => within(call.start_ns),
        Record::Mark(mark) => within(mark.at_ns),
        Record::Work(work) => match started.contains(&work.correlation) {
            true => calls.contains(&work.correlation),
            false => within(work.start_ns),
        },
    };
    Some(Trace {
        records: trace.records.iter().filter(is_kept).copied().collect(),
        ..trace.clone()
    })
}

/// Returns the calls for one server of a program with several, with all marks: a recording of that
/// server's link. `None` if there is no such server.
pub fn server(trace: &Trace, number: u8) -> Option<Trace> {
    let kept = trace.about.servers.get(usize::from(number))?;
    let records = trace.records.iter().filter_map(|record| match record {
        Record::Call(call) => {
            let only = Call { server: 0, ..*call };
            (call.server == number).then_some(Record::Call(only))
        }
        other => Some(*other),
    });
    Some(Trace {
        about: About {
            gpu: Some(kept.gpu.clone()),
            devices: kept.devices.clone(),
            servers: Vec::new(),
            ..trace.about.clone()
        },
        records: records.collect(),
        ..trace.clone()
    })
}

/// Counts the iterations.
pub fn count(trace: &Trace) -> usize {
    begins(trace).len()
}

fn span(trace: &Trace, numbers: &RangeInclusive<usize>) -> Option<(u64, u64)> {
    let begins = begins(trace);
    let from_ns = *begins.get(numbers.start().checked_sub(1)?)?;
    let last_ns = *begins.get(numbers.end().checked_sub(1)?)?;
    let next_ns = begins.get(*numbers.end()).copied();
    let ends = || {
        trace
            .marks()
            .filter(|mark| mark.is_end && is_one(trace, mark.name))
    };
    // If ends are not marked, an iteration lasts until the next one begins.
    let end_ns = ends()
        .map(|mark| mark.at_ns)
        .filter(|at_ns| *at_ns >= last_ns && next_ns.is_none_or(|next_ns| *at_ns <= next_ns))
        .min();
    (from_ns <= last_ns).then_some((from_ns, end_ns.or(next_ns).unwrap_or(u64::MAX)))
}

fn begins(trace: &Trace) -> Vec<u64> {
    let marks = trace.marks();
    let mut begins: Vec<u64> = marks
        .filter(|mark| !mark.is_end && is_one(trace, mark.name))
        .map(|mark| mark.at_ns)
        .collect();
    begins.sort_unstable();
    begins
}

fn is_one(trace: &Trace, name: u32) -> bool {
    trace.is_iteration(trace.name(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Class,
        record::{GpuWork, Mark, RecordedServer, Work},
    };

    /// Three iterations of 100 ns with a call each, whose work runs one iteration later, and
    /// records before and between them.
    fn recording(has_ends: bool) -> Trace {
        let mut trace = Trace {
            names: vec![
                "iteration".into(),
                "cuLaunchKernel".into(),
                "a kernel".into(),
            ],
            complete: true,
            ..Trace::default()
        };
        for number in 0..4u32 {
            let start_ns = 100 * u64::from(number);
            let call = Call {
                function: 1,
                class: Class::Outstanding,
                thread: 0,
                start_ns: start_ns + 10,
                duration_ns: 5,
                request_bytes: 64,
                response_bytes: 0,
                stream: 0,
                event: 0,
                correlation: number + 1,
                status: 0,
                server: number as u8 % 2,
            };
            let work = Work {
                kind: GpuWork::Kernel,
                name: 2,
                device: 0,
                stream: 0,
                start_ns: start_ns + 110,
                duration_ns: 20,
                bytes: 0,
                correlation: number + 1,
            };
            let mark = |is_end, at_ns| {
                Record::Mark(Mark {
                    name: 0,
                    thread: 0,
                    at_ns,
                    is_end,
                })
            };
            trace.records.push(Record::Call(call));
            trace.records.push(Record::Work(work));
            if number > 0 {
                trace.records.push(mark(false, start_ns));
                if has_ends {
                    trace.records.push(mark(true, start_ns + 90));
                }
            }
        }
        trace
    }

    #[test]
    fn some_iterations_with_their_work() {
        for has_ends in [true, false] {
            let trace = recording(has_ends);
            assert_eq!(count(&trace), 3);
            let part = iterations(&trace, 2..=3).unwrap();
            let correlations =
                |trace: &Trace| -> Vec<u32> { trace.work().map(|w| w.correlation).collect() };
            assert_eq!(part.calls().count(), 2);
            assert_eq!(correlations(&part), [3, 4]);
            assert_eq!(count(&part), 2);
            let first = iterations(&trace, 1..=1).unwrap();
            assert_eq!((first.calls().count(), correlations(&first)), (1, vec![2]));
        }
    }

    #[test]
    fn one_server_of_two() {
        let mut trace = recording(true);
        assert_eq!(server(&trace, 0), None, "there is one, or none");
        trace.about.servers = ["tcp://a:1", "tcp://b:1"]
            .map(|gpu| RecordedServer {
                gpu: gpu.into(),
                devices: Vec::new(),
            })
            .into();
        let part = server(&trace, 1).unwrap();
        let calls: Vec<_> = part.calls().map(|call| call.correlation).collect();
        assert_eq!(calls, [2, 4], "the odd ones");
        assert!(part.calls().all(|call| call.server == 0));
        assert_eq!(part.marks().count(), trace.marks().count());
        assert_eq!(part.about.gpu.as_deref(), Some("tcp://b:1"));
        assert_eq!(part.about.servers, []);
        assert_eq!(server(&trace, 2), None);
    }

    #[test]
    fn what_is_not_there_is_nothing() {
        let trace = recording(true);
        for (from, to) in [(0, 1), (1, 4), (4, 4), (3, 2), (0, 0)] {
            assert_eq!(iterations(&trace, from..=to), None, "{from}..={to}");
        }
        assert_eq!(count(&Trace::default()), 0);
    }
}
