//! Replays an iteration: here, over a network, or with its GPU on a longer PCIe.
//!
//! A discrete-event simulation, deterministic, without randomness. In the picture of a remote
//! replay, each box does one thing at a time, in order:
//!
//! ```text
//!  thread ─ start ─┐          ┌──────────┐          ┌────────┐  launch  ┌────────┐
//!  thread ─ start ─┴─ post ─► │ link: up │ ─ ½RTT ─► │ server │ ───────► │ stream │ (each)
//!     ▲                       └──────────┘          └───┬────┘          └───┬────┘
//!     │                       ┌──────────┐              │ the call is done  │ the GPU is done
//!     └──── receive ── ½RTT ◄─┤link: down│ ◄────────────┴───────────────────┘ (waits)
//!                             └──────────┘
//! ```
//!
//! Calls that are answered locally cost their thread a little time and no other part any. Every
//! other delay is a sum or a maximum, so that on one thread a slower network never helps, as long
//! as a longer wait costs less more than it is longer; of two threads that compete for a link, one
//! can gain by coming second.

use std::{cmp::Reverse, collections::BinaryHeap};

use outboard_api::{decl::Class, optimise::Level};
use outboard_trace::GpuWork;

use crate::{
    Constants, Network,
    iteration::{Ends, Iteration, NONE, Step, StepIndex, Unit},
    mode::{Mode, SMALL_MESSAGE_BYTES},
    pcie::{Late, Pcie},
};

/// Location of the GPU.
#[derive(Debug, Clone, Copy)]
pub enum Where<'a> {
    /// In this machine: calls take their recorded times.
    Here,
    /// At a server.
    Remote(Remote<'a>),
    /// On a PCIe with longer round trips.
    Pcie(&'a Pcie),
    /// On a PCIe that makes each unit, by its index, so late.
    Late(&'a [Late]),
}

#[derive(Debug, Clone, Copy)]
pub struct Remote<'a> {
    pub network: Network,
    pub level: Level,
    pub constants: &'a Constants,
    /// A function whose calls do not wait: shows what that would gain.
    pub freed: Option<u32>,
}

/// Result of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Time from the beginning to the end of the last thread and the last work.
    pub total_ns: f64,
    /// Busy time of all streams of the GPU together.
    pub gpu_ns: f64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub messages: u64,
    pub round_trips: u64,
    /// Events that were handled: the cost of a replay.
    pub events: u64,
}

/// Receives what happens, in no particular order.
pub trait Observer {
    fn call(&mut self, _thread: usize, _step: &Step, _mode: Mode, _from_ns: f64, _to_ns: f64) {}
    fn unit(&mut self, _unit: &Unit, _from_ns: f64, _to_ns: f64) {}
    /// Called for each unit that is submitted in this machine: its index, the time of the call, and
    /// that at which it would begin on the PCIe that it was recorded on.
    fn submitted(&mut self, _unit: u32, _called_ns: f64, _due_ns: f64) {}
    /// Called for each time in which one direction of the link is busy.
    fn link(&mut self, _is_up: bool, _bytes: u64, _from_ns: f64, _to_ns: f64) {}
}

/// An observer that ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Replays one iteration, any number of times.
#[derive(Debug, Clone)]
pub struct Replay<'a> {
    iteration: &'a Iteration,
    threads: Vec<Thread>,
    unit_end_ns: Vec<f64>,
    /// Times at which the processor sees that units have ended.
    unit_seen_ns: Vec<f64>,
    /// Times at which the steps returned; filled only if threads wait for each other.
    done_ns: Vec<Vec<f64>>,
    ends: Ends,
    queue: BinaryHeap<Reverse<Event>>,
    up_free_ns: f64,
    server_free_ns: f64,
    down_free_ns: f64,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    next: u32,
    now_ns: f64,
    /// Time at which its current call began.
    from_ns: f64,
}

/// Ordered by time, then by position in the program.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Event {
    at_ns: f64,
    what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// A thread continues with its next step.
    Call { thread: u32 },
    /// A reply leaves the server. It resumes a thread that waits for it in its current step, or
    /// carries the bytes of an earlier one.
    Answer {
        thread: u32,
        bytes: u64,
        resumes: bool,
    },
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        let by_time = self.at_ns.total_cmp(&other.at_ns);
        by_time.then_with(|| self.what.cmp(&other.what))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Replay<'a> {
    pub fn new(iteration: &'a Iteration) -> Replay<'a> {
        Replay {
            iteration,
            threads: Vec::new(),
            unit_end_ns: Vec::new(),
            unit_seen_ns: Vec::new(),
            done_ns: match iteration.handoffs {
                0 => Vec::new(),
                _ => iteration
                    .threads
                    .iter()
                    .map(|steps| vec![0.0; steps.len()])
                    .collect(),
            },
            ends: Ends::new(iteration),
            queue: BinaryHeap::new(),
            up_free_ns: 0.0,
            server_free_ns: 0.0,
            down_free_ns: 0.0,
            outcome: Outcome::default(),
        }
    }

    pub fn run(&mut self, place: Where<'_>) -> Outcome {
        self.run_observed(place, &mut Unobserved)
    }

    pub fn run_observed(&mut self, place: Where<'_>, observer: &mut impl Observer) -> Outcome {
        self.clear();
        let iteration = self.iteration;
        let place = match place {
            Where::Remote(remote) if iteration.is_remote => Where::Remote(Remote {
                constants: &Constants::NONE,
                ..remote
            }),
            other => other,
        };
        for (index, unit) in iteration.units.iter().enumerate() {
            if unit.is_carried {
                self.submit(index as u32, 0.0, place, observer);
            }
        }
        for thread in 0..iteration.threads.len() {
            self.schedule(thread, place);
        }
        while let Some(Reverse(event)) = self.queue.pop() {
            match event.what {
                What::Call { thread } => self.go_on(thread as usize, event.at_ns, place, observer),
                What::Answer {
                    thread,
                    bytes,
                    resumes,
                } => {
                    let Where::Remote(remote) = place else {
                        continue;
                    };
                    let received_ns = self.answer(bytes, event.at_ns, remote, observer);
                    if resumes {
                        self.finish(thread as usize, received_ns, place, observer);
                        self.schedule(thread as usize, place);
                    }
                }
            }
        }
        self.outcome
    }

    fn clear(&mut self) {
        self.threads.clear();
        self.threads
            .resize(self.iteration.threads.len(), Thread::default());
        self.unit_end_ns.clear();
        self.unit_end_ns.resize(self.iteration.units.len(), 0.0);
        self.unit_seen_ns.clear();
        self.unit_seen_ns.resize(self.iteration.units.len(), 0.0);
        self.ends.clear();
        self.queue.clear();
        (self.up_free_ns, self.server_free_ns, self.down_free_ns) = (0.0, 0.0, 0.0);
        self.outcome = Outcome::default();
    }

    /// Queues a thread's next step, unless it comes after a step that another thread has not done.
    fn schedule(&mut self, thread: usize, place: Where<'_>) {
        if let Some(at_ns) = self.acts_at(thread, place) {
            let what = What::Call {
                thread: thread as u32,
            };
            self.queue.push(Reverse(Event { at_ns, what }));
        }
    }

    /// Returns the time at which the thread's next step affects others.
    fn acts_at(&self, thread: usize, place: Where<'_>) -> Option<f64> {
        let state = self.threads[thread];
        let step = self.iteration.threads[thread].get(state.next as usize)?;
        let gap_ns = step.gap_ns * self.slower(place);
        let begins_ns = match step.comes_after {
            None => state.now_ns + gap_ns,
            Some(after) if self.threads[after.thread as usize].next <= after.step => return None,
            Some(after) => state.now_ns.max(self.done_ns(after) + gap_ns),
        };
        Some(begins_ns + start_ns(step, place))
    }

    /// Returns the factor by which the program's own code takes longer than recorded.
    fn slower(&self, place: Where<'_>) -> f64 {
        let Where::Remote(Remote { constants, .. }) = place else {
            return 1.0;
        };
        let by_threads = match self.iteration.handoffs {
            0 => 0.0,
            _ => constants.handoff_more,
        };
        1.0 + constants.processor_more + by_threads
    }

    fn done_ns(&self, place: StepIndex) -> f64 {
        self.done_ns[place.thread as usize][place.step as usize]
    }

    /// Makes one step, and the following ones for as long as no other event comes first.
    fn go_on(&mut self, thread: usize, at_ns: f64, place: Where<'_>, observer: &mut impl Observer) {
        let mut at_ns = at_ns;
        loop {
            self.outcome.events += 1;
            let step = &self.iteration.threads[thread][self.threads[thread].next as usize];
            self.threads[thread].from_ns = at_ns - start_ns(step, place);
            let Some(returns_ns) = self.step(thread, step, at_ns, place, observer) else {
                return;
            };
            self.finish(thread, returns_ns, place, observer);
            match self.acts_at(thread, place) {
                None => return,
                Some(next_ns) if self.queue.peek().is_none_or(|Reverse(e)| next_ns < e.at_ns) => {
                    at_ns = next_ns;
                }
                Some(_) => return self.schedule(thread, place),
            }
        }
    }

    /// Completes the thread's step; threads whose next step comes after it can continue.
    fn finish(
        &mut self,
        thread: usize,
        returns_ns: f64,
        place: Where<'_>,
        observer: &mut impl Observer,
    ) {
        let state = &mut self.threads[thread];
        let done = StepIndex {
            thread: thread as u32,
            step: state.next,
        };
        let step = &self.iteration.threads[thread][state.next as usize];
        if !step.is_end {
            observer.call(thread, step, mode(step, place), state.from_ns, returns_ns);
        }
        state.now_ns = returns_ns;
        state.next += 1;
        self.outcome.total_ns = self.outcome.total_ns.max(returns_ns);
        if self.done_ns.is_empty() {
            return;
        }
        self.done_ns[thread][done.step as usize] = returns_ns;
        for other in 0..self.threads.len() {
            let next = self.threads[other].next as usize;
            let step = self.iteration.threads[other].get(next);
            if other != thread && step.is_some_and(|step| step.comes_after == Some(done)) {
                self.schedule(other, place);
            }
        }
    }

    /// Does what a step does at the moment when it affects others. Returns the time of its return,
    /// or `None` if a reply decides that.
    fn step(
        &mut self,
        thread: usize,
        step: &Step,
        at_ns: f64,
        place: Where<'_>,
        observer: &mut impl Observer,
    ) -> Option<f64> {
        if step.is_end {
            return Some(at_ns);
        }
        let Where::Remote(remote) = place else {
            if step.unit != NONE {
                self.submit(step.unit, at_ns, place, observer);
            }
            return Some(match step.is_wait() {
                true => self.awaited_ns(step, at_ns),
                false => at_ns + step.duration_ns,
            });
        };
        let mode = mode(step, place);
        if mode == Mode::Local {
            return Some(at_ns + remote.constants.time_local_ns + step.client_ns);
        }
        // The thread writes a request's bytes while the first of them are already being sent.
        let copied_ns = at_ns + remote.constants.start_ns_per_byte * request_bytes(step) as f64;
        let sent = self.send(step, at_ns, copied_ns, remote, observer);
        let served_ns = sent.served_ns;
        if step.unit != NONE {
            // As in a local replay, the work's delay counts from the beginning of the driver call.
            let called_ns = served_ns - step.server_ns;
            match is_pipelined(step, &self.iteration.units[step.unit as usize]) {
                true => {
                    self.submit_pipelined(step.unit, sent.first_ns, called_ns, remote, observer)
                }
                false => self.submit(step.unit, called_ns, place, observer),
            }
        }
        if mode == Mode::Async {
            if step.response_bytes > 0 {
                let ready_ns = match step.unit {
                    NONE => served_ns,
                    unit => served_ns.max(self.unit_end_ns[unit as usize]),
                };
                self.answer_at(ready_ns, thread, step.response_bytes, false);
            }
            return Some(copied_ns);
        }
        let ready_ns = self.ready_ns(step, served_ns, remote);
        self.outcome.round_trips += 1;
        match step.response_bytes {
            // The bytes of a copy that is not waited for come after the reply.
            bytes if bytes > 0 && step.class != Class::Synchronous => {
                self.answer_at(ready_ns, thread, SMALL_MESSAGE_BYTES, true);
                let copied_ns = match step.unit {
                    NONE => ready_ns,
                    unit => ready_ns.max(self.unit_end_ns[unit as usize]),
                };
                self.answer_at(copied_ns, thread, bytes, false);
            }
            bytes => self.answer_at(ready_ns, thread, bytes.max(SMALL_MESSAGE_BYTES), true),
        }
        None
    }

    /// Returns the time at which the server can answer a call that it was done with at `served_ns`.
    fn ready_ns(&self, step: &Step, served_ns: f64, remote: Remote<'_>) -> f64 {
        if !step.is_wait() || step.class != Class::Synchronous {
            return served_ns;
        }
        let called_ns = served_ns - step.server_ns;
        let left_ns = (self.gpu_seen_ns(step) - called_ns).max(0.0);
        self.awaited_ns(step, called_ns) + remote.constants.wait_more_ns(left_ns)
    }

    /// Returns the time at which a waiting call that begins at `from_ns` is done.
    fn awaited_ns(&self, step: &Step, from_ns: f64) -> f64 {
        (from_ns + step.floor_ns).max(self.gpu_seen_ns(step) + step.tail_ns)
    }

    /// Returns the time at which the processor sees that the work that a call waits for has ended.
    fn gpu_seen_ns(&self, step: &Step) -> f64 {
        let units = self.iteration.list(step.waits).iter();
        let seen_ns = units.map(|unit| self.unit_seen_ns[*unit as usize]);
        seen_ns.fold(0.0, f64::max)
    }

    /// Sends a request over the link to the server. Each piece of it goes on the wire when the
    /// thread has written it, and the server copies each piece that has arrived.
    fn send(
        &mut self,
        step: &Step,
        post_ns: f64,
        copied_ns: f64,
        remote: Remote<'_>,
        observer: &mut impl Observer,
    ) -> Sent {
        let (bytes, constants) = (request_bytes(step), remote.constants);
        let (all, last) = (bytes as f64, piece_bytes(bytes));
        let written_ns = post_ns + constants.start_ns_per_byte * last;
        let from_ns = written_ns.max(self.up_free_ns);
        let wire_ns = remote.network.serialisation_ns(bytes);
        let last_wire_ns = wire_ns * last / all;
        self.up_free_ns = (from_ns + wire_ns).max(copied_ns + last_wire_ns);
        observer.link(true, bytes, from_ns, self.up_free_ns);
        let way_ns = remote.network.rtt_ns / 2.0;
        let first_ns = from_ns + last_wire_ns + way_ns;
        let arrived_ns = self.up_free_ns + way_ns;
        // One core copies the pieces, at best as fast as they arrive.
        let taken_ns = (arrived_ns + constants.copy_ns_per_byte * last)
            .max(first_ns + constants.copy_ns_per_byte * all);
        let begins_ns = match bytes > SMALL_MESSAGE_BYTES_MAX {
            true => taken_ns.max(self.server_free_ns),
            false => arrived_ns.max(self.server_free_ns),
        };
        self.server_free_ns = begins_ns + constants.server_ns + step.server_ns;
        self.outcome.sent_bytes += bytes;
        self.outcome.messages += 1;
        self.outcome.total_ns = self.outcome.total_ns.max(self.server_free_ns);
        Sent {
            first_ns: first_ns + constants.copy_ns_per_byte * last,
            served_ns: self.server_free_ns,
        }
    }

    fn answer_at(&mut self, at_ns: f64, thread: usize, bytes: u64, resumes: bool) {
        let what = What::Answer {
            thread: thread as u32,
            bytes,
            resumes,
        };
        self.queue.push(Reverse(Event { at_ns, what }));
    }

    /// Sends a reply; returns the time at which it has been received.
    fn answer(
        &mut self,
        bytes: u64,
        ready_ns: f64,
        remote: Remote<'_>,
        observer: &mut impl Observer,
    ) -> f64 {
        self.outcome.events += 1;
        // The server writes a reply's bytes piece by piece, and the program's thread copies them.
        let (all, last) = (bytes as f64, piece_bytes(bytes));
        let (write_ns, read_ns) = match bytes > SMALL_MESSAGE_BYTES_MAX {
            true => (
                remote.constants.copy_ns_per_byte,
                remote.constants.start_ns_per_byte,
            ),
            false => (0.0, 0.0),
        };
        let from_ns = (ready_ns + write_ns * last).max(self.down_free_ns);
        let wire_ns = remote.network.serialisation_ns(bytes);
        let slowest_ns = (write_ns.max(read_ns) * all).max(wire_ns);
        self.down_free_ns = from_ns + wire_ns.max(slowest_ns - write_ns * last);
        observer.link(false, bytes, from_ns, self.down_free_ns);
        self.outcome.received_bytes += bytes;
        self.outcome.messages += 1;
        let received_ns = self.down_free_ns
            + remote.network.rtt_ns / 2.0
            + read_ns * last
            + remote.constants.receive_ns;
        self.outcome.total_ns = self.outcome.total_ns.max(received_ns);
        received_ns
    }

    /// Submits a long copy to the device, of which each piece goes on to the GPU as soon as it has
    /// arrived.
    fn submit_pipelined(
        &mut self,
        index: u32,
        first_ns: f64,
        last_ns: f64,
        remote: Remote<'_>,
        observer: &mut impl Observer,
    ) {
        let unit = &self.iteration.units[index as usize];
        let pinned_ns = remote.constants.device_ns_per_byte * unit.bytes as f64;
        let duration_ns = match pinned_ns > 0.0 {
            true => pinned_ns.min(unit.duration_ns),
            false => unit.duration_ns,
        };
        let after = self.iteration.list(unit.after).iter();
        let ready_ns = after
            .map(|unit| self.unit_end_ns[*unit as usize])
            .fold(self.ends.before(unit.stream), f64::max);
        let start_ns = (first_ns + unit.launch_ns).max(ready_ns + unit.gap_ns);
        let last_piece_ns = last_ns + unit.launch_ns + duration_ns * piece(unit.bytes);
        let end_ns = (start_ns + duration_ns).max(last_piece_ns);
        self.ended(index, start_ns, end_ns, duration_ns, observer);
    }

    /// Submits work for which the driver is called now.
    fn submit(
        &mut self,
        index: u32,
        called_ns: f64,
        place: Where<'_>,
        observer: &mut impl Observer,
    ) {
        let unit = &self.iteration.units[index as usize];
        let after = self.iteration.list(unit.after).iter();
        let ready_ns = after
            .map(|unit| self.unit_end_ns[*unit as usize])
            .fold(self.ends.before(unit.stream), f64::max);
        let late = match place {
            Where::Pcie(pcie) if !unit.is_carried => pcie.late(unit),
            Where::Late(late) if !unit.is_carried => late[index as usize],
            _ => Late {
                duration_ns: unit.duration_ns,
                ..Late::default()
            },
        };
        let rung_ns = called_ns + unit.launch_ns + late.doorbell_ns;
        let due_ns = rung_ns.max(ready_ns + unit.gap_ns);
        if !unit.is_carried {
            observer.submitted(index, called_ns, due_ns);
        }
        let start_ns = due_ns + late.begin_ns;
        let end_ns = start_ns + late.duration_ns;
        self.ended(index, start_ns, end_ns, late.duration_ns, observer);
        self.unit_seen_ns[index as usize] = end_ns + late.seen_ns;
    }

    fn ended(
        &mut self,
        index: u32,
        start_ns: f64,
        end_ns: f64,
        duration_ns: f64,
        observer: &mut impl Observer,
    ) {
        let unit = &self.iteration.units[index as usize];
        observer.unit(unit, start_ns, end_ns);
        self.unit_end_ns[index as usize] = end_ns;
        self.unit_seen_ns[index as usize] = end_ns;
        self.ends.set(unit.stream, end_ns);
        self.outcome.gpu_ns += duration_ns;
        self.outcome.total_ns = self.outcome.total_ns.max(end_ns);
    }
}

/// Length of the pieces in which longer copies are moved.
const PIECE_BYTES: f64 = (1 << 20) as f64;

/// Longer messages are copies: their bytes are copied at both ends.
const SMALL_MESSAGE_BYTES_MAX: u64 = 4 << 10;

/// Length of a message's last piece, and of its first.
fn piece_bytes(bytes: u64) -> f64 {
    PIECE_BYTES.min(bytes as f64).max(1.0)
}

/// The share of one piece in a request.
fn piece(bytes: u64) -> f64 {
    piece_bytes(bytes) / (bytes as f64).max(1.0)
}

/// Returns true if the work's bytes came with the request, in more than one piece.
fn is_pipelined(step: &Step, unit: &Unit) -> bool {
    unit.kind == GpuWork::CopyToDevice
        && unit.bytes as f64 > PIECE_BYTES
        && step.request_bytes >= unit.bytes
}

/// Times of a request.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// Its first piece has arrived.
    first_ns: f64,
    /// The driver call for it is done.
    served_ns: f64,
}

/// Returns the time that the thread spends on a call before it affects others.
fn start_ns(step: &Step, place: Where<'_>) -> f64 {
    match place {
        Where::Remote(remote) if !step.is_end && mode(step, place) != Mode::Local => {
            remote.constants.start_ns + step.client_ns
        }
        _ => 0.0,
    }
}

fn mode(step: &Step, place: Where<'_>) -> Mode {
    match place {
        Where::Remote(remote) if remote.freed == Some(step.function) => {
            match Mode::of(step.class, remote.level) {
                Mode::Sync => Mode::Async,
                other => other,
            }
        }
        Where::Remote(remote) if step.is_spared && !remote.constants.waits_for_copies => {
            Mode::of(Class::Outstanding, remote.level)
        }
        Where::Remote(remote) => Mode::of(step.class, remote.level),
        Where::Here | Where::Pcie(_) | Where::Late(_) => Mode::Local,
    }
}

/// Bytes of a call's request at a level at which it sends one.
pub(crate) fn request_bytes(step: &Step) -> u64 {
    match step.request_bytes {
        0 => SMALL_MESSAGE_BYTES,
        bytes => bytes,
    }
}
