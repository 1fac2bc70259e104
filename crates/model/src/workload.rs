//! The input of the models: a recording's iterations, each by itself.

use std::cmp::Reverse;

use outboard_trace::{Call, GpuTimes, Mark, Trace};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::{
    Error,
    confidence::Errors,
    graft::{self, Completed},
    iteration::{Iteration, Span},
    network::show_ns,
    period,
    replay::{Replay, Where},
};

/// Iterations that are used, at most, from the end of the recording: more of them add no
/// information.
pub const ITERATIONS_MAX: usize = 64;
/// Largest factor by which a processor may be slower or faster than when it was recorded.
const FACTOR_MAX: f64 = 8.0;
const HALVINGS: u32 = 24;

/// A recording, cut into iterations.
#[derive(Debug, Clone)]
pub struct Workload {
    pub found_by: FoundBy,
    /// The last [`ITERATIONS_MAX`], in the order of the recording. If the GPU was timed in only
    /// some of them, the others.
    pub iterations: Vec<Iteration>,
    /// Number of iterations in the recording.
    pub present: usize,
    /// Notes on the recording for a reader of the results.
    pub notes: Vec<Note>,
    /// Names of functions and kernels, as calls and units refer to them.
    pub names: Vec<String>,
    /// Server of a recording that was made through one.
    pub(crate) gpu: Option<String>,
    pub(crate) errors: Errors,
}

/// How the iterations were found.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum FoundBy {
    /// By the program's marks.
    Marks,
    /// By a call that comes again after the same number of calls; `coverage` is the share of calls
    /// that this explains.
    Period { calls: usize, coverage: f64 },
    /// Not found: the whole recording is one iteration.
    Whole,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "note")]
pub enum Note {
    /// Waits are assumed to last as long as they did, or longer if the program is faster.
    NoGpuTimes,
    /// Durations of the GPU's work include gaps of some microseconds.
    GpuTimesOfEvents,
    /// The calls' times are those through a server; their times on a local GPU are unknown.
    RecordedThroughServer { gpu: String },
    /// Records were lost, or the recording was cut.
    Incomplete { lost: u64 },
    /// The calls' times are those while the GPU is not timed.
    Undisturbed { iterations: usize },
    /// The untimed iterations make other calls than those whose GPU was timed.
    TimedOnly,
    /// The processor's times were scaled, so that an iteration takes its known time.
    Scaled { step_ns: f64, factor: f64 },
    /// Differences between iterations are unknown.
    OneIteration,
    /// The start-up of the program is included.
    WholeRecording,
}

impl Note {
    pub fn text(&self) -> String {
        match self {
            Note::NoGpuTimes => {
                "the recording has no times of the GPU's work: each wait is taken to last as long as it did, and to end no \
                 sooner after the first launch before it, if it was a long one"
                    .into()
            }
            Note::GpuTimesOfEvents => {
                "the GPU's times are from events: durations hold gaps of some microseconds".into()
            }
            Note::RecordedThroughServer { gpu } => format!(
                "recorded through a server ({gpu}): calls took what they take there, and constants are not used; overheads \
                 are over this recording, whose network is taken for perfect, not over a local GPU"
            ),
            Note::Incomplete { lost } => {
                let why = match lost {
                    0 => "it was cut off".into(),
                    lost => format!("{lost} records were lost"),
                };
                format!("the recording is not whole, {why}: what is missing is not counted")
            }
            Note::Undisturbed { iterations } => format!(
                "calls are those of {iterations} iterations whose GPU nobody timed, the GPU's work is that of the others"
            ),
            Note::TimedOnly => {
                "the iterations whose GPU was not timed make other calls than the others, and are left out: calls took \
                 longer than they would without that"
                    .into()
            }
            Note::Scaled { step_ns, factor } if *factor == 1.0 => format!(
                "no speed of the processor makes an iteration take {}: it is as recorded",
                show_ns(*step_ns)
            ),
            Note::Scaled { step_ns, factor } => format!(
                "the processor's times are {factor:.3} of what was recorded, so that an iteration takes {}",
                show_ns(*step_ns)
            ),
            Note::OneIteration => "one iteration only: nothing is known of how they differ".into(),
            Note::WholeRecording => {
                "no iterations were marked and no period was found: the whole recording, start-up included, is taken as \
                 one iteration"
                    .into()
            }
        }
    }
}

impl Workload {
    pub fn new(trace: &Trace) -> Result<Workload, Error> {
        let calls = trace.calls().count();
        if calls == 0 {
            return Err(Error::NoCalls);
        }
        let uses_gpu = |call: &Call| call.request_bytes > 0 || call.correlation != 0;
        if trace.work().next().is_none() && !trace.calls().any(uses_gpu) {
            return Err(Error::NoGpuCalls { calls });
        }
        let (found_by, spans) = spans(trace)?;
        let present = spans.len();
        let kept = &spans[present.saturating_sub(ITERATIONS_MAX)..];
        let mut notes = notes(trace, found_by, present);
        let iterations = match graft::complete(Iteration::all(trace, kept)) {
            Completed::AsTheyAre(iterations) => iterations,
            Completed::Undisturbed(iterations) => {
                notes.push(Note::Undisturbed {
                    iterations: iterations.len(),
                });
                iterations
            }
            Completed::TimedOnly(iterations) => {
                notes.push(Note::TimedOnly);
                iterations
            }
        };
        if iterations.iter().any(|i| i.step_ns <= 0.0) {
            return Err(Error::NoTime);
        }
        Ok(Workload {
            errors: Errors::of(&iterations),
            found_by,
            iterations,
            present,
            notes,
            names: trace.names.clone(),
            gpu: trace.about.gpu.clone(),
        })
    }

    /// Sets the known time of an iteration when nothing is recorded: the speed of processors
    /// varies, that of GPUs does not. The processor's times are scaled until the typical iteration,
    /// replayed, lasts that long. If no speed of the processor explains it, nothing changes.
    pub fn set_step(&mut self, step_ns: f64) {
        let typical = self.typical();
        let takes_ns = |factor: f64| {
            Replay::new(&typical.slower(factor))
                .run(Where::Here)
                .total_ns
        };
        let (mut low, mut high) = (1.0 / FACTOR_MAX, FACTOR_MAX);
        let is_explained = takes_ns(low) < step_ns && step_ns < takes_ns(high);
        for _ in 0..HALVINGS {
            let middle = f64::sqrt(low * high);
            match takes_ns(middle) <= step_ns {
                true => low = middle,
                false => high = middle,
            }
        }
        let factor = if is_explained { low } else { 1.0 };
        if is_explained {
            self.errors = self.errors.of_known_step();
        }
        self.notes.push(Note::Scaled { step_ns, factor });
        for iteration in &mut self.iterations {
            *iteration = iteration.slower(factor);
        }
    }

    /// Returns the iteration of median duration, which is neither the first one, which warms up,
    /// nor a disturbed one.
    pub fn typical(&self) -> &Iteration {
        let mut order: Vec<&Iteration> = self.iterations.iter().collect();
        order.sort_by(|a, b| a.step_ns.total_cmp(&b.step_ns));
        order[(order.len() - 1) / 2]
    }

    /// Returns an iteration by its number, from 1.
    pub fn iteration(&self, number: usize) -> Result<&Iteration, Error> {
        let found = self.iterations.iter().find(|i| i.number == number);
        found.ok_or_else(|| self.without(number))
    }

    /// Returns why an iteration is not there.
    fn without(&self, asked: usize) -> Error {
        let present = self.present;
        if !(1..=present).contains(&asked) {
            return Error::NoSuchIteration { asked, present };
        }
        let is_early = asked <= present.saturating_sub(ITERATIONS_MAX);
        let is_timed_only = self.notes.contains(&Note::TimedOnly);
        let why = match (is_early, is_timed_only) {
            (true, _) => "the last ones say enough",
            (false, true) => "the GPU's times are of others, which make other calls",
            (false, false) => "timing the GPU slows calls, and others went without it",
        };
        let used = ranges(self.iterations.iter().map(|i| i.number));
        Error::LeftOut {
            asked,
            present,
            why,
            used,
        }
    }

    pub fn name(&self, index: u32) -> &str {
        self.names.get(index as usize).map_or("?", String::as_str)
    }
}

/// Lists ascending numbers, as "1 to 3, 5".
fn ranges(numbers: impl Iterator<Item = usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let show = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    runs.into_iter().map(show).collect::<Vec<_>>().join(", ")
}

fn notes(trace: &Trace, found_by: FoundBy, present: usize) -> Vec<Note> {
    let mut notes = Vec::new();
    if trace.work().next().is_none() {
        notes.push(Note::NoGpuTimes);
    } else if trace.about.gpu_times == GpuTimes::Events {
        notes.push(Note::GpuTimesOfEvents);
    }
    if let Some(gpu) = &trace.about.gpu {
        notes.push(Note::RecordedThroughServer { gpu: gpu.clone() });
    }
    if trace.lost > 0 || !trace.complete {
        notes.push(Note::Incomplete { lost: trace.lost });
    }
    match found_by {
        FoundBy::Whole => notes.push(Note::WholeRecording),
        _ if present == 1 => notes.push(Note::OneIteration),
        _ => {}
    }
    notes
}

fn spans(trace: &Trace) -> Result<(FoundBy, Vec<Span>), Error> {
    let mut marks: Vec<&Mark> = trace
        .marks()
        .filter(|mark| trace.is_iteration(trace.name(mark.name)))
        .collect();
    marks.sort_by_key(|mark| (mark.at_ns, !mark.is_end));
    if !marks.is_empty() {
        let mut starts: Vec<u64> = trace.calls().map(|call| call.start_ns).collect();
        starts.sort_unstable();
        let mut spans = between(&marks);
        spans.retain(|span| {
            let first = starts.partition_point(|start| *start < span.start_ns);
            starts.get(first).is_some_and(|start| *start < span.end_ns)
        });
        number(&mut spans);
        return match spans.is_empty() {
            true => Err(Error::EmptyIterations),
            false => Ok((FoundBy::Marks, spans)),
        };
    }
    let mut calls: Vec<&Call> = trace.calls().collect();
    calls.sort_by_key(|call| call.start_ns);
    if let Some(found) = period::find(&calls) {
        let mut spans = found.spans;
        number(&mut spans);
        let how = FoundBy::Period {
            calls: found.calls,
            coverage: found.coverage,
        };
        return Ok((how, spans));
    }
    let (first, last) = (calls[0], calls[calls.len() - 1]);
    let whole = Span {
        number: 1,
        start_ns: first.start_ns,
        end_ns: calls
            .iter()
            .map(|call| call.start_ns.saturating_add(call.duration_ns))
            .max()
            .unwrap_or(last.start_ns),
        thread: last.thread,
    };
    Ok((FoundBy::Whole, vec![whole]))
}

fn number(spans: &mut [Span]) {
    for (index, span) in spans.iter_mut().enumerate() {
        span.number = index + 1;
    }
}

/// Joins each beginning with the next end of the same name and thread; if ends were not marked,
/// with the next beginning. Of nested ranges the outer ones count.
fn between(marks: &[&Mark]) -> Vec<Span> {
    let has_ends = marks.iter().any(|mark| mark.is_end);
    let mut open: FxHashMap<(u32, u32), usize> = FxHashMap::default();
    let mut spans = Vec::new();
    for (index, mark) in marks.iter().enumerate() {
        // Without ends, a program may number its iterations in their names.
        let key = (mark.thread, if has_ends { mark.name } else { 0 });
        if mark.is_end == has_ends
            && let Some(begin) = open.remove(&key)
        {
            spans.push(Span {
                number: 0,
                start_ns: marks[begin].at_ns,
                end_ns: mark.at_ns,
                thread: mark.thread,
            });
        }
        if !mark.is_end {
            open.entry(key).or_insert(index);
        }
    }
    spans.sort_by_key(|span| (span.start_ns, Reverse(span.end_ns)));
    let mut ends_ns: FxHashMap<u32, u64> = FxHashMap::default();
    spans.retain(|span| {
        let until_ns = ends_ns.entry(span.thread).or_insert(0);
        let is_outer = span.start_ns >= *until_ns;
        if is_outer {
            *until_ns = span.end_ns;
        }
        is_outer
    });
    spans
}
