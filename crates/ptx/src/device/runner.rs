//! Threads that run long work. They are started as needed and sleep while there is none.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
    thread,
    time::Instant,
};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{
    activity::{Done, Finished},
    by_kernel::Starts,
    error::{Cause, Stuck},
    schedule::State,
};
use crate::memory::Memory;

/// Operations that run at once, at most. A GPU of compute capability 8.0 runs up to 128 kernels.
const RUNNERS_MAX: usize = 128;
pub(super) struct Shared {
    state: Mutex<State>,
    /// Signals ready work, or the device's stop.
    work: Condvar,
    /// Signals that a runner has ended.
    ended: Condvar,
}

/// Starts what kernels have fired.
struct Starter(Weak<Shared>);

impl Starts for Starter {
    fn start_fired(&self, run: u64) {
        if let Some(shared) = self.0.upgrade() {
            shared.with(|state| state.start_fired(run));
        }
    }
}

impl Shared {
    pub(super) fn new(memory: Memory) -> Arc<Shared> {
        Arc::new_cyclic(|shared| Shared {
            state: Mutex::new(State::new(memory, Arc::new(Starter(shared.clone())))),
            work: Condvar::new(),
            ended: Condvar::new(),
        })
    }

    /// Changes the state, then makes sure that ready work is run.
    pub(super) fn with<R>(self: &Arc<Shared>, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state);
        // It may have written what a stream waits for.
        state.poll();
        self.call_runners(&mut state);
        result
    }

    fn call_runners(self: &Arc<Shared>, state: &mut State) {
        if state.stop {
            return;
        }
        let polls = usize::from(state.is_polling() && !state.poller);
        let wanted = state.ready_tasks() + polls;
        for _ in 0..wanted.min(state.idle) {
            self.work.notify_one();
        }
        // One more than the tasks that may run at once, because one runner polls memory meanwhile.
        let missing = wanted.saturating_sub(state.idle);
        for _ in 0..missing.min((RUNNERS_MAX + polls).saturating_sub(state.runners)) {
            if let Err(error) = self.start_runner(state) {
                tracing::debug!(%error, runners = state.runners, "no further thread");
                break;
            }
        }
    }

    /// Starts the runner that runs all work if the system gives no further thread.
    pub(super) fn start(self: &Arc<Shared>) -> io::Result<()> {
        self.start_runner(&mut self.state.lock())
    }

    fn start_runner(self: &Arc<Shared>, state: &mut State) -> io::Result<()> {
        let shared = self.clone();
        thread::Builder::new()
            .name("gpu".into())
            .spawn(move || shared.run())?;
        state.runners += 1;
        Ok(())
    }

    fn run(self: Arc<Shared>) {
        let mut state = self.state.lock();
        while !state.stop {
            if let Some(job) = state.take() {
                self.call_runners(&mut state);
                let memory = state.memory.clone();
                let start = Instant::now();
                let result = MutexGuard::unlocked(&mut state, || {
                    let run = || job.work.run(&memory, &job.cancel);
                    // A bug in the interpreter must end one context, not the whole device.
                    let result = catch_unwind(AssertUnwindSafe(run));
                    result.unwrap_or_else(|_| {
                        Err(Stuck {
                            cause: Cause::LaunchFailed,
                            message: format!("internal error while running {:?}", job.work),
                        })
                    })
                });
                if let Some(about) = job.about
                    && let Some(what) = Finished::of(&job.work)
                {
                    let end = Instant::now();
                    state.activity.add(Done {
                        about,
                        start,
                        end,
                        what,
                    });
                }
                state.complete(job.id, result);
                // It may have written what a stream waits for.
                state.poll();
                self.call_runners(&mut state);
                continue;
            }
            state.idle += 1;
            if state.is_polling() && !state.poller {
                state.poller = true;
                let interval = state.poll_interval(Instant::now());
                self.work.wait_for(&mut state, interval);
                state.idle -= 1;
                state.poll();
                // This thread polls again, or finds work and then calls another one to poll.
                self.call_runners(&mut state);
                state.poller = false;
            } else {
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
        state.runners -= 1;
        self.ended.notify_all();
    }

    /// Cancels everything and waits until no thread touches the memory any more.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop();
        self.work.notify_all();
        while state.runners > 0 {
            self.ended.wait(&mut state);
        }
    }
}
