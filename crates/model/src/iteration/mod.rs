//! One iteration of a recording, with the dependencies between its parts.
//!
//! A recording says when things happened; a replay has to know why. Taken unchanged from the
//! recording: the order of calls of each thread and the CPU time between them, the work that each
//! call started, the duration of work, the order of work on a stream. Inferred, because no
//! recording has it:
//!
//! * **Handoffs** ([`handoff`]): a thread that is silent while another makes many calls waits for
//!   the other.
//! * **Events**: a wait for an event is for all work that was submitted before and had ended when
//!   the wait returned. A stream that waits for an event waits for the work that was on the stream
//!   of the last event recorded before, unless the recording shows that it did not.
//! * **The default stream** is ordered with each other stream, unless the recording shows that they
//!   overlapped.
//! * **Busy times** ([`bound`]): without times of the GPU, a long wait shows how long it was busy.
//! * **Undisturbed calls** ([`crate::graft`]): calls are slower while the GPU is timed; if some
//!   iterations were not timed, the calls' times are theirs.
//! * **Known waits** ([`known`]): a wait for work that was waited for before needs no request, one
//!   for copies to the device alone no reply.
//! * **Delays**: the time between a call and the start of its work, and between two works of a
//!   stream, stays the same.

mod bound;
mod gpu;
mod handoff;
mod known;
mod waits;

use outboard_api::decl::Class;
use outboard_trace::{Call, CallCost, GpuWork, Trace, Work};
use rustc_hash::FxHashMap;

pub(crate) use gpu::Ends;

use self::known::Wait;
use crate::effect::Effects;

pub(crate) const NONE: u32 = u32::MAX;

/// Beginning and end of an iteration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// From 1.
    pub(crate) number: usize,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    /// The thread whose marks these are.
    pub(crate) thread: u32,
}

/// One iteration. Times are nanoseconds since its beginning.
#[derive(Debug, Clone, Default)]
pub struct Iteration {
    /// Its number in the recording, from 1.
    pub number: usize,
    /// Time from its beginning to its end and that of the work that it started, as recorded: the
    /// cost of recording is included.
    pub step_ns: f64,
    /// The calls of each thread. The thread to which the iteration belongs has the iteration's end
    /// after its calls.
    pub threads: Vec<Vec<Step>>,
    /// Work of the GPU, in the order of submission.
    pub units: Vec<Unit>,
    pub streams: Vec<Stream>,
    /// Number of times that a thread was found to wait for another.
    pub handoffs: usize,
    /// True if it was recorded through a server: the calls' times then include remoting, over a
    /// network that is assumed to be perfect.
    pub is_remote: bool,
    /// Indices of units, to which [`Step::waits`] and [`Unit::after`] refer.
    pub(crate) lists: Vec<u32>,
}

/// A call of a thread.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// True for the end of the iteration, which is no call.
    pub is_end: bool,
    /// Index into the recording's names.
    pub function: u32,
    pub class: Class,
    pub start_ns: f64,
    pub duration_ns: f64,
    /// CPU time since the end of the call before, or of the call that this one comes after.
    pub gap_ns: f64,
    /// A call of another thread that must have returned before.
    pub(crate) comes_after: Option<StepIndex>,
    pub request_bytes: u64,
    pub response_bytes: u64,
    /// The unit that it starts; [`NONE`] for none.
    pub(crate) unit: u32,
    /// Units that must have ended before it returns.
    pub(crate) waits: List,
    /// Time that it takes if there is nothing to wait for.
    pub(crate) floor_ns: f64,
    /// Time from the end of the work that it waits for to its return.
    pub(crate) tail_ns: f64,
    /// Time of the driver call on the server.
    pub server_ns: f64,
    /// Time that the client spent on it, in a recording made through a server: such a recording
    /// needs no constant for it.
    pub(crate) client_ns: f64,
    /// True for a wait in whose place the client sends a message.
    pub(crate) is_spared: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepIndex {
    pub(crate) thread: u32,
    pub(crate) step: u32,
}

/// A part of [`Iteration::lists`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct List {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

/// Work of the GPU for one call.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    pub kind: GpuWork,
    /// Name of its first kernel.
    pub name: u32,
    /// Index into [`Iteration::streams`].
    pub stream: u32,
    pub start_ns: f64,
    pub duration_ns: f64,
    /// Less than the duration if a graph's nodes leave gaps.
    pub busy_ns: f64,
    pub bytes: u64,
    /// Kernels, memsets and copies of it: more than one in a graph.
    pub nodes: u32,
    /// Time from the call to the start of the work on an idle stream.
    pub(crate) launch_ns: f64,
    /// Time from the end of the work before it to its start on a busy stream.
    pub(crate) gap_ns: f64,
    /// Further units that must have ended before it starts.
    pub(crate) after: List,
    /// True if it was started before the iteration: its times do not depend on the iteration's
    /// calls.
    pub is_carried: bool,
    /// True if it was not recorded: a long wait shows that the GPU was busy in this time.
    pub is_inferred: bool,
    /// True if the driver's call copied pageable memory piece by piece: the copy is as slow as the
    /// processor.
    pub(crate) is_by_processor: bool,
}

/// A copy and its call count as equally long if each takes at least this share of the other's time.
const COPY_PART_MIN: f64 = 0.6;

impl Unit {
    pub fn end_ns(&self) -> f64 {
        self.start_ns + self.duration_ns
    }

    pub(crate) fn scale(&mut self, factor: f64) {
        self.duration_ns *= factor;
        self.busy_ns *= factor;
    }

    /// Returns true if the driver itself copies pageable memory piece by piece and returns
    /// afterwards: the work is then as slow as the call.
    fn is_copied_by(&self, call: &Step) -> bool {
        matches!(self.kind, GpuWork::CopyToDevice | GpuWork::CopyToHost)
            && self.duration_ns > COPY_PART_MIN * call.duration_ns
            && call.duration_ns > COPY_PART_MIN * self.duration_ns
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    pub device: u32,
    /// Number in the recording; 0 is the default stream.
    pub number: u32,
    /// True if it is ordered with the default stream.
    pub is_blocking: bool,
}

/// The calls of an iteration, and what each costs if it waits.
#[derive(Clone, Copy)]
struct Calls<'a> {
    made: &'a [&'a Call],
    waits: &'a [Wait],
}

impl Iteration {
    /// Makes the iterations of these spans.
    pub(crate) fn all(trace: &Trace, spans: &[Span]) -> Vec<Iteration> {
        let mut calls: Vec<&Call> = trace.calls().collect();
        calls.sort_by_key(|call| call.start_ns);
        let called_ns: FxHashMap<u32, u64> = calls
            .iter()
            .filter(|call| call.correlation != 0)
            .map(|call| (call.correlation, call.start_ns))
            .collect();
        let mut works: FxHashMap<u32, Vec<&Work>> = FxHashMap::default();
        for work in trace.work().filter(|work| work.correlation != 0) {
            works.entry(work.correlation).or_default().push(work);
        }
        let effects = Effects::new(&trace.names);
        let waits = known::waits(&effects, &calls);
        spans
            .iter()
            .map(|span| {
                let from = calls.partition_point(|call| call.start_ns < span.start_ns);
                let to = calls.partition_point(|call| call.start_ns < span.end_ns);
                let carried = trace.work().filter(|work| {
                    let before = called_ns
                        .get(&work.correlation)
                        .is_none_or(|called| *called < span.start_ns);
                    before
                        && work.start_ns < span.end_ns
                        && work.start_ns.saturating_add(work.duration_ns) > span.start_ns
                });
                let mut carried: Vec<&Work> = carried.collect();
                carried.sort_by_key(|work| work.start_ns);
                let calls = Calls {
                    made: &calls[from..to],
                    waits: &waits[from..to],
                };
                Iteration::new(trace, &effects, span, calls, &works, &carried)
            })
            .collect()
    }

    fn new(
        trace: &Trace,
        effects: &Effects,
        span: &Span,
        Calls { made, waits }: Calls<'_>,
        works: &FxHashMap<u32, Vec<&Work>>,
        carried: &[&Work],
    ) -> Iteration {
        let mut iteration = Iteration {
            number: span.number,
            is_remote: trace.about.gpu.is_some(),
            ..Iteration::default()
        };
        let mut gpu = gpu::Gpu::new(&mut iteration, span, carried);
        let started: Vec<gpu::Started> = made
            .iter()
            .zip(waits)
            .map(|(call, wait)| {
                let own = works.get(&call.correlation).map_or(&[][..], Vec::as_slice);
                // Through a server, the recording has what the client itself knew.
                let wait = match trace.about.gpu {
                    None => *wait,
                    Some(_) => Wait::Asks,
                };
                gpu.call(effects.of(call.function), call, own, wait)
            })
            .collect();
        gpu.end();
        iteration.add_steps(span, made, &started);
        iteration.take_off(trace.about.cost);
        let has_gpu_times = trace.work().next().is_some();
        waits::set_costs(&mut iteration, effects, has_gpu_times);
        if !has_gpu_times {
            bound::infer(&mut iteration, effects);
        }
        iteration.find_copies_by_processor();
        handoff::find(&mut iteration);
        let gpu_end_ns = iteration.units.iter().map(Unit::end_ns);
        let end_ns = gpu_end_ns.fold(span.end_ns.saturating_sub(span.start_ns) as f64, f64::max);
        iteration.step_ns = end_ns;
        iteration
    }

    fn add_steps(&mut self, span: &Span, calls: &[&Call], started: &[gpu::Started]) {
        let mut thread_of: FxHashMap<u32, usize> = FxHashMap::default();
        let since = |at_ns: u64| at_ns.saturating_sub(span.start_ns) as f64;
        for (call, started) in calls.iter().zip(started) {
            let count = thread_of.len();
            let is_known = started.wait == Wait::Known;
            let thread = *thread_of.entry(call.thread).or_insert(count);
            if thread == self.threads.len() {
                self.threads.push(Vec::new());
            }
            self.threads[thread].push(Step {
                is_end: false,
                function: call.function,
                class: match is_known {
                    true => Class::Local,
                    false => call.class,
                },
                start_ns: since(call.start_ns),
                duration_ns: call.duration_ns as f64,
                gap_ns: 0.0,
                comes_after: None,
                request_bytes: if is_known { 0 } else { call.request_bytes },
                response_bytes: if is_known { 0 } else { call.response_bytes },
                unit: started.unit,
                waits: started.waits,
                floor_ns: call.duration_ns as f64,
                tail_ns: 0.0,
                server_ns: 0.0,
                client_ns: 0.0,
                is_spared: started.wait == Wait::Spared,
            });
        }
        let count = thread_of.len();
        let owner = *thread_of.entry(span.thread).or_insert(count);
        if owner == self.threads.len() {
            self.threads.push(Vec::new());
        }
        self.threads[owner].push(Step::end(since(span.end_ns)));
        for steps in &mut self.threads {
            let mut end_ns = 0.0_f64;
            for step in steps {
                step.gap_ns = (step.start_ns - end_ns).max(0.0);
                end_ns = end_ns.max(step.start_ns + step.duration_ns);
            }
        }
    }

    fn find_copies_by_processor(&mut self) {
        for step in self.threads.iter().flatten() {
            if let Some(unit) = self.units.get_mut(step.unit as usize) {
                unit.is_by_processor = unit.is_copied_by(step);
            }
        }
    }

    /// Subtracts the time that recording added to the calls, so that a replay is shorter than the
    /// recorded iteration.
    fn take_off(&mut self, cost: CallCost) {
        for step in self.threads.iter_mut().flatten() {
            step.gap_ns = (step.gap_ns - cost.outside_ns).max(0.0);
            if !step.is_end {
                step.duration_ns = (step.duration_ns - cost.inside_ns).max(0.0);
                step.floor_ns = step.duration_ns;
            }
        }
    }

    /// Returns the same iteration on a processor that takes `factor` times as long.
    pub(crate) fn slower(&self, factor: f64) -> Iteration {
        let mut made = self.clone();
        for step in made.threads.iter_mut().flatten() {
            step.gap_ns *= factor;
            step.duration_ns *= factor;
            step.floor_ns *= factor;
            step.server_ns *= factor;
            step.client_ns *= factor;
        }
        for unit in made.units.iter_mut().filter(|unit| unit.is_by_processor) {
            unit.scale(factor);
        }
        made
    }

    pub(crate) fn list(&self, list: List) -> &[u32] {
        &self.lists[list.start as usize..(list.start + list.len) as usize]
    }

    /// All calls, thread by thread.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.threads.iter().flatten().filter(|step| !step.is_end)
    }

    /// The GPU's work that was recorded.
    pub fn works(&self) -> impl Iterator<Item = &Unit> {
        self.units.iter().filter(|unit| !unit.is_inferred)
    }

    /// Time in which the GPU was busy.
    pub fn gpu_busy_ns(&self) -> f64 {
        let mut spans: Vec<(f64, f64)> = self.works().map(|u| (u.start_ns, u.end_ns())).collect();
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut busy_ns, mut until_ns) = (0.0, f64::MIN);
        for (start_ns, end_ns) in spans {
            busy_ns += (end_ns - start_ns.max(until_ns)).max(0.0);
            until_ns = until_ns.max(end_ns);
        }
        busy_ns
    }
}

impl Step {
    fn end(at_ns: f64) -> Step {
        Step {
            is_end: true,
            function: NONE,
            class: Class::Local,
            start_ns: at_ns,
            duration_ns: 0.0,
            gap_ns: 0.0,
            comes_after: None,
            request_bytes: 0,
            response_bytes: 0,
            unit: NONE,
            waits: List::default(),
            floor_ns: 0.0,
            tail_ns: 0.0,
            server_ns: 0.0,
            client_ns: 0.0,
            is_spared: false,
        }
    }

    pub(crate) fn end_ns(&self) -> f64 {
        self.start_ns + self.duration_ns
    }

    /// Returns true if it waits for the GPU.
    pub fn is_wait(&self) -> bool {
        self.waits.len > 0
    }
}

/// The median; 0 if there are no numbers.
pub(crate) fn median(numbers: &mut [f64]) -> f64 {
    let middle = numbers.len() / 2;
    match numbers.is_empty() {
        true => 0.0,
        false => *numbers.select_nth_unstable_by(middle, f64::total_cmp).1,
    }
}
