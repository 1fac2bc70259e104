//! The GPU's work in an iteration: the work that each call started, its dependencies, and the work
//! that calls wait for.

use outboard_trace::{Call, GpuWork, Work};
use rustc_hash::FxHashMap;

use super::{Iteration, List, NONE, Span, Stream, Unit, known::Wait, median};
use crate::effect::{Effect, Subject};

/// Accuracy to which the clocks of CPU and GPU are aligned, about.
const CLOCK_SLACK_NS: f64 = 1_000.0;
const NOT_READY: u32 = 600;

/// Result of a call.
pub(super) struct Started {
    pub(super) unit: u32,
    pub(super) waits: List,
    /// Its cost if it waits.
    pub(super) wait: Wait,
}

/// Processes the calls in the order of their starts.
pub(super) struct Gpu<'a> {
    iteration: &'a mut Iteration,
    start_ns: u64,
    stream_of: FxHashMap<(u32, u32), u32>,
    /// The last unit of each stream.
    last: Vec<u32>,
    /// All units of each stream.
    on: Vec<Vec<u32>>,
    /// Units that must end before each stream's next unit.
    pending: Vec<Vec<u32>>,
    /// The last events recorded on two different streams: each with its stream and the last unit
    /// there.
    recorded: [Option<(u32, u32)>; 2],
    /// Times of the calls that started the units.
    called_ns: Vec<f64>,
    /// Threads whose query returned "not ready", each with the function of the query.
    polling: FxHashMap<u32, u32>,
}

impl<'a> Gpu<'a> {
    pub(super) fn new(iteration: &'a mut Iteration, span: &Span, carried: &[&Work]) -> Gpu<'a> {
        let mut gpu = Gpu {
            iteration,
            start_ns: span.start_ns,
            stream_of: FxHashMap::default(),
            last: Vec::new(),
            on: Vec::new(),
            pending: Vec::new(),
            recorded: [None; 2],
            called_ns: Vec::new(),
            polling: FxHashMap::default(),
        };
        for work in carried {
            let stream = gpu.stream(work.device, work.stream);
            gpu.add(&[work], stream, 0.0, true);
        }
        gpu
    }

    pub(super) fn call(
        &mut self,
        effect: Effect,
        call: &Call,
        works: &[&Work],
        wait: Wait,
    ) -> Started {
        let called_ns = self.since(call.start_ns);
        let end_ns = called_ns + call.duration_ns as f64;
        match effect {
            Effect::RecordsEvent => self.event_record(call.stream),
            Effect::AwaitsEvent => self.stream_wait(call.stream),
            _ => {}
        }
        let awaited = match effect {
            Effect::Waits(subject) => self.awaited(subject, call, end_ns),
            Effect::Queries(subject) if self.ends_polling(call) => {
                self.awaited(subject, call, end_ns)
            }
            _ => Vec::new(),
        };
        let unit = match works.first() {
            None => NONE,
            Some(first) => {
                let stream = self.stream(first.device, call.stream);
                self.add(works, stream, called_ns, false)
            }
        };
        let waits = if unit != NONE && self.waits_for_own(unit, call, end_ns) {
            self.list(&[unit])
        } else {
            self.list(&awaited)
        };
        Started { unit, waits, wait }
    }

    /// Sets what follows only from all calls: the streams that are ordered with the default stream,
    /// and the delay between a call and its work.
    pub(super) fn end(self) {
        let Gpu {
            iteration,
            called_ns,
            ..
        } = self;
        set_blocking(iteration);
        set_delays(iteration, &called_ns);
    }

    fn since(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.start_ns) as f64
    }

    fn stream(&mut self, device: u32, number: u32) -> u32 {
        let next = self.last.len() as u32;
        let index = *self.stream_of.entry((device, number)).or_insert(next);
        if index == next {
            self.last.push(NONE);
            self.on.push(Vec::new());
            self.pending.push(Vec::new());
            self.iteration.streams.push(Stream {
                device,
                number,
                is_blocking: number != 0,
            });
        }
        index
    }

    fn list(&mut self, units: &[u32]) -> List {
        let start = self.iteration.lists.len() as u32;
        self.iteration.lists.extend_from_slice(units);
        List {
            start,
            len: units.len() as u32,
        }
    }

    fn add(&mut self, works: &[&Work], stream: u32, called_ns: f64, is_carried: bool) -> u32 {
        let mut spans: Vec<(f64, f64)> = works
            .iter()
            .map(|work| {
                let end = work.start_ns.saturating_add(work.duration_ns);
                (self.since(work.start_ns), self.since(end))
            })
            .collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut busy_ns, mut end_ns) = (0.0, spans[0].0);
        for (from, to) in &spans {
            busy_ns += (to - from.max(end_ns)).max(0.0);
            end_ns = end_ns.max(*to);
        }
        let start_ns = spans[0].0;
        let mut after = std::mem::take(&mut self.pending[stream as usize]);
        // Work that the recording shows not to have been waited for was no condition.
        after.retain(|unit| {
            self.iteration.units[*unit as usize].end_ns() <= start_ns + CLOCK_SLACK_NS
        });
        let after = self.list(&after);
        let index = self.iteration.units.len() as u32;
        self.iteration.units.push(Unit {
            kind: if works.len() == 1 {
                works[0].kind
            } else {
                kind_of_many(works)
            },
            name: works[0].name,
            stream,
            start_ns,
            duration_ns: end_ns - start_ns,
            busy_ns,
            bytes: works.iter().map(|work| work.bytes).sum(),
            nodes: works.len() as u32,
            launch_ns: 0.0,
            gap_ns: 0.0,
            after,
            is_carried,
            is_inferred: false,
            is_by_processor: false,
        });
        self.called_ns.push(called_ns);
        self.last[stream as usize] = index;
        self.on[stream as usize].push(index);
        index
    }

    fn event_record(&mut self, number: u32) {
        for stream in self.numbered(number) {
            let on_it = (stream, self.last[stream as usize]);
            if self.recorded[0].is_some_and(|(other, _)| other != stream) {
                self.recorded[1] = self.recorded[0];
            }
            self.recorded[0] = Some(on_it);
        }
    }

    /// Takes the last event that was recorded on another stream: programs record an event and wait
    /// for it at once.
    fn stream_wait(&mut self, number: u32) {
        for stream in self.numbered(number) {
            let event = self.recorded.iter().flatten().find(|(on, _)| *on != stream);
            if let Some((_, unit)) = event.filter(|(_, unit)| *unit != NONE) {
                self.pending[stream as usize].push(*unit);
            }
        }
    }

    /// Returns the streams of this number, one for each device; one on device 0 if there is none
    /// yet.
    fn numbered(&mut self, number: u32) -> Vec<u32> {
        let known: Vec<u32> = (0..self.iteration.streams.len() as u32)
            .filter(|index| self.iteration.streams[*index as usize].number == number)
            .collect();
        match known.is_empty() {
            true => vec![self.stream(0, number)],
            false => known,
        }
    }

    /// Returns true if a query ends a wait: only a thread that asked before has been waiting.
    fn ends_polling(&mut self, call: &Call) -> bool {
        if call.status == NOT_READY {
            self.polling.insert(call.thread, call.function);
            return false;
        }
        self.polling.remove(&call.thread) == Some(call.function)
    }

    /// Returns the units that a call waits for.
    fn awaited(&self, subject: Subject, call: &Call, end_ns: f64) -> Vec<u32> {
        let all = 0..self.last.len();
        match subject {
            Subject::Context => all.map(|s| self.last[s]).filter(|u| *u != NONE).collect(),
            Subject::Stream => all
                .filter(|s| {
                    let stream = &self.iteration.streams[*s];
                    stream.number == call.stream
                        || (call.stream == 0 && self.has_ended(self.last[*s], end_ns))
                })
                .map(|s| self.last[s])
                .filter(|u| *u != NONE)
                .collect(),
            Subject::Event => self.ended(end_ns),
        }
    }

    fn has_ended(&self, unit: u32, at_ns: f64) -> bool {
        let unit = self.iteration.units.get(unit as usize);
        unit.is_some_and(|unit| unit.end_ns() <= at_ns + CLOCK_SLACK_NS)
    }

    /// Returns, for each stream, the last unit that had ended by then.
    fn ended(&self, at_ns: f64) -> Vec<u32> {
        let last = |units: &Vec<u32>| {
            let backwards = units.iter().rev();
            let mut ended = backwards.filter(|unit| self.has_ended(**unit, at_ns));
            ended.next().copied()
        };
        self.on.iter().filter_map(last).collect()
    }

    /// Returns true if a call waits for the work that it starts: if it is synchronous, or a copy
    /// that was over when the call returned.
    fn waits_for_own(&self, unit: u32, call: &Call, end_ns: f64) -> bool {
        let unit = &self.iteration.units[unit as usize];
        let is_copy = !matches!(unit.kind, GpuWork::Kernel | GpuWork::Graph);
        let was_over = unit.end_ns() <= end_ns + CLOCK_SLACK_NS;
        (is_copy || call.class == outboard_trace::Class::Synchronous) && was_over
    }
}

fn kind_of_many(works: &[&Work]) -> GpuWork {
    match works.iter().all(|work| work.kind == works[0].kind) {
        true if works[0].kind != GpuWork::Kernel => works[0].kind,
        _ => GpuWork::Graph,
    }
}

/// Marks a stream as not ordered with the default stream if it ran beside that, against the order
/// of submission.
fn set_blocking(iteration: &mut Iteration) {
    let mut end_ns = vec![f64::MIN; iteration.streams.len()];
    for unit in &iteration.units {
        let (own, device) = (
            unit.stream as usize,
            iteration.streams[unit.stream as usize].device,
        );
        let is_default = iteration.streams[own].number == 0;
        for (other, other_end_ns) in end_ns.iter().enumerate() {
            let stream = iteration.streams[other];
            let is_pair = is_default != (stream.number == 0);
            if stream.device == device && is_pair && unit.start_ns + CLOCK_SLACK_NS < *other_end_ns
            {
                let concerned = if is_default { other } else { own };
                iteration.streams[concerned].is_blocking = false;
            }
        }
        end_ns[own] = end_ns[own].max(unit.end_ns());
    }
}

/// Explains each unit's start by its call or by the work before it; the rest is a delay that stays.
fn set_delays(iteration: &mut Iteration, called_ns: &[f64]) {
    let before_ns = ready_ns(iteration);
    let calls = || called_ns.iter().zip(&before_ns).zip(&iteration.units);
    let mut launches: Vec<f64> = calls()
        .filter(|((called, before), unit)| **before <= **called && !unit.is_carried)
        .map(|((called, _), unit)| (unit.start_ns - called).max(0.0))
        .collect();
    let launch_ns = median(&mut launches);
    let mut gaps: Vec<f64> = calls()
        .filter(|((called, before), _)| *called + launch_ns < **before)
        .map(|((_, before), unit)| (unit.start_ns - before).max(0.0))
        .collect();
    let gap_ns = median(&mut gaps);
    for ((called, before), unit) in called_ns.iter().zip(&before_ns).zip(&mut iteration.units) {
        let since_call = (unit.start_ns - called).max(0.0);
        let since_before = (unit.start_ns - before).max(0.0);
        if unit.is_carried {
            (unit.launch_ns, unit.gap_ns) = (unit.start_ns, 0.0);
        } else if called + launch_ns < *before {
            (unit.launch_ns, unit.gap_ns) = (launch_ns.min(since_call), since_before);
        } else {
            (unit.launch_ns, unit.gap_ns) = (since_call, gap_ns.min(since_before));
        }
    }
}

/// Returns, for each unit, the time when everything before it had ended, as recorded.
fn ready_ns(iteration: &Iteration) -> Vec<f64> {
    let mut ends = Ends::new(iteration);
    let mut unit_ends = Vec::with_capacity(iteration.units.len());
    let mut ready = Vec::with_capacity(iteration.units.len());
    for unit in &iteration.units {
        let after = iteration.list(unit.after).iter();
        let after = after.map(|index| unit_ends[*index as usize]);
        ready.push(after.fold(ends.before(unit.stream), f64::max));
        ends.set(unit.stream, unit.end_ns());
        unit_ends.push(unit.end_ns());
    }
    ready
}

/// Times at which the streams become free, in view of the default stream's order with the others.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends {
    free_ns: Vec<f64>,
    /// For each stream: the device's default stream, and true if it is ordered with that.
    default_of: Vec<(u32, bool)>,
    /// For each default stream: the latest end of the streams that are ordered with it.
    others_ns: Vec<f64>,
}

impl Ends {
    pub(crate) fn new(iteration: &Iteration) -> Ends {
        let streams = &iteration.streams;
        let default_of = streams
            .iter()
            .map(|stream| {
                let default = streams
                    .iter()
                    .position(|other| other.device == stream.device && other.number == 0);
                (default.map_or(NONE, |d| d as u32), stream.is_blocking)
            })
            .collect();
        Ends {
            free_ns: vec![0.0; streams.len()],
            default_of,
            others_ns: vec![0.0; streams.len()],
        }
    }

    pub(crate) fn clear(&mut self) {
        self.free_ns.fill(0.0);
        self.others_ns.fill(0.0);
    }

    /// Returns the earliest start of the stream's next unit.
    pub(crate) fn before(&self, stream: u32) -> f64 {
        let own = self.free_ns[stream as usize];
        match self.default_of[stream as usize] {
            (default, true) if default != NONE => own.max(self.free_ns[default as usize]),
            (default, false) if default == stream => own.max(self.others_ns[stream as usize]),
            _ => own,
        }
    }

    pub(crate) fn set(&mut self, stream: u32, end_ns: f64) {
        let own = &mut self.free_ns[stream as usize];
        *own = own.max(end_ns);
        if let (default, true) = self.default_of[stream as usize]
            && default != NONE
        {
            let others = &mut self.others_ns[default as usize];
            *others = others.max(end_ns);
        }
    }
}
