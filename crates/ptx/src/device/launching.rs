//! The device's side of graphs that kernels launch: what they asked for becomes tasks.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;

use super::{
    by_kernel::{End, Run},
    error::{Cause, Error, Stuck},
    plan::ExecId,
    schedule::{Placed, State, TaskId},
    stream::ContextId,
    work::Work,
};

/// Handles of executable graphs begin here, where no address is.
const HANDLES: u64 = 0x4752_0000_0000_0000;

impl ExecId {
    /// Returns the number by which kernels know the executable graph.
    pub fn handle(self) -> u64 {
        HANDLES | self.0
    }

    fn of_handle(handle: u64) -> ExecId {
        ExecId(handle & !HANDLES)
    }
}

impl State {
    /// Makes the execution of a graph that is about to start; none while kernels cannot launch any.
    pub(super) fn new_run(&mut self, id: ExecId, tails_before: usize) -> Option<Arc<Run>> {
        if self.launchable.is_empty() {
            return None;
        }
        Some(Arc::new(Run {
            id: self.fresh(),
            handle: id.handle(),
            tails_before,
            asked: Mutex::default(),
            has_fired: AtomicBool::new(false),
            launchable: self.launchable.clone(),
            device: self.device.clone(),
        }))
    }

    /// Adds the end of an execution whose nodes end with `last`. Its siblings are waited for by
    /// `around`, or by the task returned.
    pub(super) fn add_end(
        &mut self,
        run: &Arc<Run>,
        place: (ContextId, i32),
        last: TaskId,
        around: Option<TaskId>,
    ) -> TaskId {
        let (context, priority) = (Some(place.0), place.1);
        let end = Work::End(End {
            run: run.clone(),
            tails: VecDeque::new(),
        });
        let end = self.add(context, priority, &[last], end);
        let outer = self.add(context, priority, &[end], Work::Nothing);
        if self.is_live(end) {
            let placed = Placed {
                run: run.clone(),
                place,
                end,
                around: around.unwrap_or(outer),
            };
            self.runs.insert(run.id, placed);
        }
        outer
    }

    /// Starts the graphs that the kernels of an execution fired.
    pub(super) fn start_fired(&mut self, run: u64) {
        let Some(placed) = self.runs.get(&run) else {
            return;
        };
        let (run, place) = (placed.run.clone(), placed.place);
        let (end, around) = (placed.end, placed.around);
        run.has_fired.store(false, Ordering::Relaxed);
        let fired = std::mem::take(&mut run.asked.lock().fire);
        for (handle, is_sibling) in fired {
            let id = ExecId::of_handle(handle);
            match self.start_execution(place, Vec::new(), id, Some(end)) {
                Ok(task) => self.wait_for(if is_sibling { around } else { end }, task),
                Err(error) => run.asked.lock().failed = Some(lost(&error)),
            }
        }
    }

    /// Goes on when everything of an execution has ended that was started.
    pub(super) fn step_end(&mut self, id: TaskId, ready: &mut Vec<TaskId>) {
        let Some(Work::End(end)) = self.work_mut(id) else {
            return;
        };
        let run = end.run.clone();
        self.start_fired(run.id);
        if self.waits(id) {
            return;
        }
        let (own, failed) = {
            let mut asked = run.asked.lock();
            (std::mem::take(&mut asked.tails), asked.failed.take())
        };
        if let Some(stuck) = failed {
            return self.finish(id, Err(stuck), ready);
        }
        let Some(Work::End(end)) = self.work_mut(id) else {
            return;
        };
        let mut tails = own;
        tails.append(&mut end.tails);
        let Some(next) = tails.pop_front() else {
            return self.finish(id, Ok(()), ready);
        };
        run.launchable.ended(run.handle);
        let exec = ExecId::of_handle(next);
        match self.start_tail(&run, exec, tails.len()) {
            Ok((run, last)) => self.put_tail(id, End { run, tails }, last),
            Err(error) => self.finish(id, Err(lost(&error)), ready),
        }
    }

    /// Starts a graph in the place of an execution that has ended.
    fn start_tail(
        &mut self,
        before: &Run,
        id: ExecId,
        tails_before: usize,
    ) -> Result<(Arc<Run>, TaskId), Error> {
        let gone = || Error::InvalidValue("a graph that is gone".into());
        let mut placed = self.runs.remove(&before.id).ok_or_else(gone)?;
        let run = self.new_run(id, tails_before).ok_or_else(gone)?;
        placed.run = run.clone();
        let place = placed.place;
        self.runs.insert(run.id, placed);
        let last = self.start_nodes(place, &[], id, Some(run.clone()))?;
        self.launchable.began(id.handle());
        Ok((run, last))
    }

    fn put_tail(&mut self, id: TaskId, end: End, last: TaskId) {
        if let Some(work) = self.work_mut(id) {
            *work = Work::End(end);
        }
        self.wait_for(id, last);
        if !self.waits(id) {
            // Looked at later, so that tails of short work alone do not hold the lock.
            self.poll_later(id);
        }
    }
}

fn lost(error: &Error) -> Stuck {
    Stuck {
        cause: Cause::LaunchFailed,
        message: format!("a graph that a kernel launched: {error}"),
    }
}
