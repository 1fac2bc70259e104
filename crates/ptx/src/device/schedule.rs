//! Tasks and their order: a task runs when everything that it depends on is done.
//!
//! Streams, events, graphs and the null stream's rules are only dependencies between tasks. A task
//! whose id is no longer known is done.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use super::{
    activity::{About, Activity, Done, Finished},
    by_kernel::{Launchable, Run, Starts},
    capture::{Capture, CaptureId},
    error::{Error, Stuck},
    event::{Event, EventId},
    graph::{Graph, GraphId},
    map::Deferred,
    plan::{Branch, Exec, ExecId},
    stream::{Context, ContextId, Stream, StreamId},
    weight::Weight,
    work::Work,
};
use crate::memory::Memory;

/// Tasks waiting in a device, at most: launches, copies, records and so on.
pub(super) const TASKS_MAX: usize = 1 << 22;
/// Interval at which memory is polled that a stream waits for: this fraction of the time already
/// waited, within these bounds.
const POLL_FRACTION: u32 = 256;
const POLL_MIN: Duration = Duration::from_micros(200);
const POLL_MAX: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TaskId(u64);

#[derive(Debug)]
struct Task {
    /// `None` for changes of the memory map, which no context's fault stops.
    context: Option<ContextId>,
    /// Priority as in CUDA: a lower number goes first.
    priority: i32,
    work: Work,
    /// Number of unfinished tasks that this one depends on.
    waits: usize,
    dependents: Vec<TaskId>,
    /// Attribution, if the task is to be timed.
    about: Option<About>,
}

/// A host function that its stream has reached, or that will never run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCall {
    pub call: u64,
    /// The fault that ended the context; the device then waits for no answer.
    pub stuck: Option<Stuck>,
}

/// The whole state of a device, under one lock. The lock is held only for bookkeeping and short
/// memory operations.
pub(super) struct State {
    pub(super) memory: Memory,
    pub(super) stop: bool,
    last_id: u64,
    tasks: FxHashMap<TaskId, Task>,
    /// Tasks for the runners.
    ready: BTreeSet<(i32, TaskId)>,
    /// Waits on memory that have begun.
    polling: Vec<TaskId>,
    running: FxHashMap<TaskId, (Option<ContextId>, Arc<AtomicBool>)>,
    host_ready: VecDeque<HostCall>,
    /// Host functions handed out and not done yet.
    host_running: FxHashMap<u64, VecDeque<TaskId>>,
    /// Host functions in all tasks.
    host_tasks: usize,
    /// Task that every new task depends on: a change of the memory map that its addresses may need.
    pub(super) barrier: Option<TaskId>,
    /// Tasks that every new task of every stream depends on, with their streams: synchronous copies
    /// under way.
    pub(super) settled: Vec<(StreamId, TaskId)>,
    /// Ranges that calls may name, first address to end: the memory map as of the last call.
    pub(super) mapped: BTreeMap<u64, u64>,
    pub(super) deferred: Vec<Deferred>,
    pub(super) contexts: FxHashMap<ContextId, Context>,
    pub(super) streams: FxHashMap<StreamId, Stream>,
    pub(super) events: FxHashMap<EventId, Event>,
    pub(super) graphs: FxHashMap<GraphId, Graph>,
    pub(super) execs: FxHashMap<ExecId, Exec>,
    pub(super) launchable: Arc<Launchable>,
    /// The execution whose nodes are being started.
    pub(super) run_now: Option<Arc<Run>>,
    /// Executions that have not ended, by number.
    pub(super) runs: FxHashMap<u64, Placed>,
    pub(super) device: Arc<dyn Starts>,
    /// Of the nodes of both.
    pub(super) weight: Weight,
    pub(super) captures: FxHashMap<CaptureId, Capture>,
    pub(super) activity: Activity,
    pub(super) runners: usize,
    pub(super) idle: usize,
    pub(super) poller: bool,
    /// Since when the same tasks wait for memory: their number, and the sum of their ids.
    polled: Option<(Instant, (usize, u64))>,
}

/// An execution of a graph: where its tasks belong, the task that ends it, and the one that waits
/// for its siblings.
pub(super) struct Placed {
    pub(super) run: Arc<Run>,
    pub(super) place: (ContextId, i32),
    pub(super) end: TaskId,
    pub(super) around: TaskId,
}

/// A task for a runner.
pub(super) struct Job {
    pub(super) id: TaskId,
    pub(super) work: Work,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) about: Option<About>,
}

impl State {
    pub(super) fn new(memory: Memory, device: Arc<dyn Starts>) -> State {
        State {
            memory,
            stop: false,
            last_id: 0,
            tasks: FxHashMap::default(),
            ready: BTreeSet::new(),
            polling: Vec::new(),
            running: FxHashMap::default(),
            host_ready: VecDeque::new(),
            host_running: FxHashMap::default(),
            host_tasks: 0,
            barrier: None,
            settled: Vec::new(),
            mapped: BTreeMap::new(),
            deferred: Vec::new(),
            contexts: FxHashMap::default(),
            streams: FxHashMap::default(),
            events: FxHashMap::default(),
            graphs: FxHashMap::default(),
            execs: FxHashMap::default(),
            launchable: Arc::default(),
            run_now: None,
            runs: FxHashMap::default(),
            device,
            weight: Weight::default(),
            captures: FxHashMap::default(),
            activity: Activity::default(),
            runners: 0,
            idle: 0,
            poller: false,
            polled: None,
        }
    }

    /// Returns a number that nothing else on this device has.
    pub(super) fn fresh(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(super) fn is_live(&self, task: TaskId) -> bool {
        self.tasks.contains_key(&task)
    }

    pub(super) fn has_tasks(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Checks that `more` tasks fit.
    pub(super) fn check_room(&self, more: usize) -> Result<(), Error> {
        if self.tasks.len().saturating_add(more) > TASKS_MAX {
            return Err(Error::Unsupported(format!(
                "more than {TASKS_MAX} operations waiting"
            )));
        }
        Ok(())
    }

    /// Adds a task, and runs it at once if it is ready and short.
    pub(super) fn add(
        &mut self,
        context: Option<ContextId>,
        priority: i32,
        deps: &[TaskId],
        work: Work,
    ) -> TaskId {
        let id = TaskId(self.fresh());
        let mut waits = 0;
        for dep in deps {
            // A dependency named twice is counted and released twice.
            if let Some(task) = self.tasks.get_mut(dep) {
                task.dependents.push(id);
                waits += 1;
            }
        }
        self.host_tasks += usize::from(matches!(work, Work::Host(_)));
        if let Some(context) = context.and_then(|c| self.contexts.get_mut(&c)) {
            context.tasks += 1;
        }
        let task = Task {
            context,
            priority,
            about: self.activity.about(context, &work),
            work,
            waits,
            dependents: Vec::new(),
        };
        self.tasks.insert(id, task);
        if waits == 0 {
            self.settle(vec![id]);
        }
        id
    }

    /// Moves tasks that wait for nothing as far as they go without a runner.
    fn settle(&mut self, mut ready: Vec<TaskId>) {
        while let Some(id) = ready.pop() {
            let Some(task) = self.tasks.get(&id) else {
                continue;
            };
            let (context, priority) = (task.context, task.priority);
            if let Some(stuck) = self.lost(context) {
                self.finish(id, Err(stuck), &mut ready);
                continue;
            }
            match &task.work {
                Work::Host(call) => {
                    let call = *call;
                    self.host_running.entry(call).or_default().push_back(id);
                    self.host_ready.push_back(HostCall { call, stuck: None });
                }
                Work::Value(op) => match op.step(&self.memory) {
                    Ok(false) => self.polling.push(id),
                    result => self.finish(id, result.map(|_| ()), &mut ready),
                },
                Work::Branch { branch, ran, run } => {
                    let (branch, ran) = (branch.clone(), *ran);
                    let outer = std::mem::replace(&mut self.run_now, run.clone());
                    self.branch(id, &branch, ran, &mut ready);
                    self.run_now = outer;
                }
                Work::End(_) => self.step_end(id, &mut ready),
                work if work.is_short() => {
                    let timed = task.about.map(|about| (about, Instant::now()));
                    let result = work.run(&self.memory, &AtomicBool::new(false));
                    if let Some((about, start)) = timed
                        && let Some(what) = Finished::of(work)
                    {
                        let end = Instant::now();
                        self.activity.add(Done {
                            about,
                            start,
                            end,
                            what,
                        });
                    }
                    self.finish(id, result, &mut ready);
                }
                _ => {
                    self.ready.insert((priority, id));
                }
            }
        }
    }

    /// Handles a conditional node that is ready, or one of whose graphs has run.
    fn branch(&mut self, id: TaskId, branch: &Branch, ran: bool, ready: &mut Vec<TaskId>) {
        let task = self.tasks.get(&id);
        let Some((Some(context), priority)) = task.map(|t| (t.context, t.priority)) else {
            return;
        };
        if ran && !branch.repeats() {
            return self.finish(id, Ok(()), ready);
        }
        let last = match self.start_branch(context, priority, branch) {
            Ok(Some(last)) => last,
            Ok(None) => return self.finish(id, Ok(()), ready),
            Err(stuck) => return self.finish(id, Err(stuck), ready),
        };
        if let Some(task) = self.tasks.get_mut(&id)
            && let Work::Branch { ran, .. } = &mut task.work
        {
            *ran = true;
        }
        if let Some(end) = self.tasks.get_mut(&last) {
            end.dependents.push(id);
            if let Some(task) = self.tasks.get_mut(&id) {
                task.waits = 1;
            }
        } else {
            // The body is already done. The condition is polled later, so an endless loop of short
            // work does not hold the lock.
            self.polling.push(id);
        }
    }

    /// Makes a task that has not ended wait for another one, if that has not ended either.
    pub(super) fn wait_for(&mut self, id: TaskId, before: TaskId) {
        if self.is_live(id)
            && let Some(task) = self.tasks.get_mut(&before)
        {
            task.dependents.push(id);
            if let Some(task) = self.tasks.get_mut(&id) {
                task.waits += 1;
            }
        }
    }

    /// Returns whether a task waits for others.
    pub(super) fn waits(&self, id: TaskId) -> bool {
        self.tasks.get(&id).is_some_and(|task| task.waits > 0)
    }

    pub(super) fn work_mut(&mut self, id: TaskId) -> Option<&mut Work> {
        self.tasks.get_mut(&id).map(|task| &mut task.work)
    }

    pub(super) fn poll_later(&mut self, id: TaskId) {
        self.polling.push(id);
    }

    /// Ends a task, and adds to `ready` the tasks that waited for it alone.
    pub(super) fn finish(
        &mut self,
        id: TaskId,
        result: Result<(), Stuck>,
        ready: &mut Vec<TaskId>,
    ) {
        let Some(task) = self.tasks.remove(&id) else {
            return;
        };
        for dependent in task.dependents {
            if let Some(task) = self.tasks.get_mut(&dependent) {
                task.waits -= 1;
                if task.waits == 0 {
                    ready.push(dependent);
                }
            }
        }
        if let Work::End(end) = &task.work {
            self.runs.remove(&end.run.id);
            end.over();
        }
        if let Work::Host(call) = task.work {
            self.host_tasks -= 1;
            if let Err(stuck) = &result {
                let stuck = Some(stuck.clone());
                self.host_ready.push_back(HostCall { call, stuck });
            }
        }
        if self.barrier == Some(id) {
            self.barrier = None;
        }
        if !self.settled.is_empty() {
            self.settled.retain(|(_, task)| *task != id);
        }
        let Some(context_id) = task.context else {
            return;
        };
        let Some(context) = self.contexts.get_mut(&context_id) else {
            return;
        };
        context.tasks -= 1;
        if context.closing && context.tasks == 0 {
            self.contexts.remove(&context_id);
        } else if let (Err(stuck), None) = (result, &context.stuck) {
            tracing::info!(%stuck, "a context is lost");
            context.stuck = Some(stuck);
            self.abandon(context_id, ready);
        }
    }

    /// Stops running and polling tasks of a lost context.
    fn abandon(&mut self, context: ContextId, ready: &mut Vec<TaskId>) {
        for (_, cancel) in self.running.values().filter(|(c, _)| *c == Some(context)) {
            cancel.store(true, Ordering::Relaxed);
        }
        let tasks = &self.tasks;
        self.polling.retain(|id| {
            let lost = tasks.get(id).is_some_and(|t| t.context == Some(context));
            if lost {
                ready.push(*id);
            }
            !lost
        });
    }

    /// Returns the fault that ended the context, if one did.
    fn lost(&self, context: Option<ContextId>) -> Option<Stuck> {
        self.contexts.get(&context?)?.stuck.clone()
    }

    /// Takes the next task for a runner.
    pub(super) fn take(&mut self) -> Option<Job> {
        while let Some((_, id)) = self.ready.pop_first() {
            let Some(task) = self.tasks.get_mut(&id) else {
                continue;
            };
            let context = task.context;
            let about = task.about;
            let work = std::mem::replace(&mut task.work, Work::Nothing);
            if let Some(stuck) = self.lost(context) {
                self.complete(id, Err(stuck));
                continue;
            }
            let cancel = Arc::new(AtomicBool::new(false));
            self.running.insert(id, (context, cancel.clone()));
            return Some(Job {
                id,
                work,
                cancel,
                about,
            });
        }
        None
    }

    /// Ends a task that a runner has run.
    pub(super) fn complete(&mut self, id: TaskId, result: Result<(), Stuck>) {
        self.running.remove(&id);
        let mut ready = Vec::new();
        self.finish(id, result, &mut ready);
        self.settle(ready);
        self.poll();
    }

    /// Polls the memory that streams wait on.
    pub(super) fn poll(&mut self) {
        let waiting = std::mem::take(&mut self.polling);
        if !waiting.is_empty() {
            self.settle(waiting);
        }
    }

    /// Returns how long to wait before memory is polled again that a stream waits for and that no
    /// work of this device need write: a fraction of the time for which the same streams wait.
    pub(super) fn poll_interval(&mut self, now: Instant) -> Duration {
        let sum = |sum: u64, id: &TaskId| sum.wrapping_add(id.0);
        let tasks = (self.polling.len(), self.polling.iter().fold(0, sum));
        match self.polled {
            Some((since, polled)) if polled == tasks => {
                let waited = now.saturating_duration_since(since);
                (waited / POLL_FRACTION).clamp(POLL_MIN, POLL_MAX)
            }
            _ => {
                self.polled = Some((now, tasks));
                POLL_MIN
            }
        }
    }

    pub(super) fn is_polling(&self) -> bool {
        !self.polling.is_empty()
    }

    /// Returns the tasks that runners have; short ones run under the lock.
    pub(super) fn running_tasks(&self) -> Vec<TaskId> {
        self.running.keys().copied().collect()
    }

    pub(super) fn ready_tasks(&self) -> usize {
        self.ready.len()
    }

    /// Stops everything, because the device is being dropped.
    pub(super) fn stop(&mut self) {
        self.stop = true;
        self.ready.clear();
        for (_, cancel) in self.running.values() {
            cancel.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn take_host_calls(&mut self, out: &mut Vec<HostCall>) {
        out.extend(self.host_ready.drain(..));
    }

    pub(super) fn has_host_tasks(&self) -> bool {
        self.host_tasks > 0 || !self.host_ready.is_empty()
    }

    /// Notes that the host program has run the function.
    pub(super) fn host_done(&mut self, call: u64) -> Result<(), Error> {
        let wrong = Error::InvalidHandle {
            kind: "running host function",
            id: call,
        };
        let queue = self.host_running.get_mut(&call).ok_or(wrong)?;
        let id = queue.pop_front();
        if queue.is_empty() {
            self.host_running.remove(&call);
        }
        if let Some(id) = id {
            self.complete(id, Ok(()));
        }
        Ok(())
    }
}
