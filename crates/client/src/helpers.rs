//! Threads that copy large memory together with the calling thread: one core alone is slower than
//! the path to the GPU.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
};

use outboard_api::CUresult;
use parking_lot::{Condvar, Mutex};

use crate::{done::Done, library_thread, observe::profile};

/// Most helpers; more do not copy faster.
const HELPERS_MAX: usize = 3;
/// Number of cores per helper: most cores are left to the program.
const CORES_A_HELPER: usize = 4;
/// Fewest pieces worth waking helpers for; fewer are copied before a helper is awake.
const PIECES_MIN: usize = 3;

#[derive(Default)]
pub(crate) struct Helpers {
    pool: OnceLock<Option<Arc<HelperPool>>>,
    /// Number of helpers; `None` for as many as the machine's cores allow.
    count: Option<usize>,
}

struct HelperPool {
    state: Mutex<PoolState>,
    /// Signalled when a job comes or goes.
    changed: Condvar,
}

#[derive(Default)]
struct PoolState {
    job: Option<Job>,
    /// Number of helpers that work on the job.
    inside: usize,
}

/// The function that all participants run until no piece is left. It is valid while the caller
/// waits for the helpers.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn() + Sync));

// SAFETY: the function is Sync and outlives every use: the caller leaves only when no helper uses
// it.
unsafe impl Send for Job {}

impl Helpers {
    pub(crate) fn of(count: usize) -> Helpers {
        Helpers {
            pool: OnceLock::new(),
            count: Some(count),
        }
    }

    /// Calls `one` for each piece, on this thread and on helpers. The first error ends the job.
    pub(crate) fn share<T: Send>(
        &self,
        pieces: impl ExactSizeIterator<Item = T> + Send,
        one: impl Fn(T) -> Done + Sync,
    ) -> Done {
        match pieces.len() < PIECES_MIN {
            true => pieces.into_iter().try_for_each(one),
            false => self.share_all(pieces, one),
        }
    }

    /// Calls `one` with each number below `participants`, each on any thread.
    pub(crate) fn together(&self, participants: usize, one: impl Fn(usize) -> Done + Sync) -> Done {
        self.share_all(0..participants, one)
    }

    fn share_all<T: Send>(
        &self,
        pieces: impl ExactSizeIterator<Item = T> + Send,
        one: impl Fn(T) -> Done + Sync,
    ) -> Done {
        let Some(pool) = self.pool() else {
            return pieces.into_iter().try_for_each(one);
        };
        let pieces = Mutex::new(pieces);
        let failed: Mutex<Option<CUresult>> = Mutex::new(None);
        let call = profile::call();
        let participate = || {
            let _of_call = profile::help(call);
            loop {
                let next = pieces.lock().next();
                let Some(piece) = next.filter(|_| failed.lock().is_none()) else {
                    return;
                };
                // A piece whose copy panicked counts as failed.
                let copied = catch_unwind(AssertUnwindSafe(|| one(piece)));
                if let Err(error) = copied.unwrap_or(Err(CUresult::CUDA_ERROR_UNKNOWN)) {
                    failed.lock().get_or_insert(error);
                }
            }
        };
        pool.run(&participate);
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn pool(&self) -> Option<&Arc<HelperPool>> {
        let start = || {
            let by_cores = (outboard_link::cores::count() / CORES_A_HELPER).min(HELPERS_MAX);
            let helpers = self.count.unwrap_or(by_cores);
            let pool = Arc::new(HelperPool {
                state: Mutex::default(),
                changed: Condvar::new(),
            });
            let started = (0..helpers)
                .filter(|_| {
                    let pool = pool.clone();
                    library_thread::spawn("outboard-copy", move || pool.help())
                })
                .count();
            (started > 0).then_some(pool)
        };
        self.pool.get_or_init(start).as_ref()
    }
}

impl HelperPool {
    /// Runs a job on this thread and helpers. There is one job at a time: a second caller copies
    /// alone.
    fn run(&self, participate: &(dyn Fn() + Sync)) {
        let mine = {
            let mut state = self.state.lock();
            let mine = state.job.is_none() && state.inside == 0;
            if mine {
                let job: *const (dyn Fn() + Sync) = participate;
                // SAFETY: only the lifetime is changed; no helper uses the job when this function
                // returns.
                let job = unsafe {
                    std::mem::transmute::<
                        *const (dyn Fn() + Sync),
                        *const (dyn Fn() + Sync + 'static),
                    >(job)
                };
                state.job = Some(Job(job));
            }
            mine
        };
        if mine {
            self.changed.notify_all();
        }
        // Unwinding from here would leave helpers with a job that no longer exists.
        let leave = Leave(mine.then_some(self));
        participate();
        drop(leave);
    }

    fn help(&self) {
        loop {
            let job = {
                let mut state = self.state.lock();
                loop {
                    if let Some(job) = state.job {
                        state.inside += 1;
                        break job;
                    }
                    self.changed.wait(&mut state);
                }
            };
            // SAFETY: the caller waits until nobody is inside.
            unsafe { (*job.0)() };
            let mut state = self.state.lock();
            state.inside -= 1;
            // This thread has finished the job: it waits for the next one.
            if state.inside == 0 {
                self.changed.notify_all();
            }
            while state.job.is_some() {
                self.changed.wait(&mut state);
            }
        }
    }
}

/// Withdraws the job and waits for the helpers that run it.
struct Leave<'p>(Option<&'p HelperPool>);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        if let Some(pool) = self.0 {
            let mut state = pool.state.lock();
            state.job = None;
            while state.inside > 0 {
                pool.changed.wait(&mut state);
            }
            drop(state);
            pool.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn helpers(threads: usize) -> Helpers {
        let pool = Arc::new(HelperPool {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        for _ in 0..threads {
            let pool = pool.clone();
            std::thread::spawn(move || pool.help());
        }
        let helpers = Helpers::default();
        assert!(helpers.pool.set(Some(pool)).is_ok());
        helpers
    }

    #[test]
    fn every_piece_is_done_once() {
        let helpers = helpers(3);
        for round in 0..200 {
            let done: Vec<AtomicUsize> = (0..round).map(|_| AtomicUsize::new(0)).collect();
            let one = |index: usize| {
                done[index].fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            assert_eq!(helpers.share(0..round, one), Ok(()));
            assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn several_callers_and_errors() {
        let helpers = helpers(2);
        std::thread::scope(|scope| {
            for caller in 0..4 {
                let helpers = &helpers;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let sum = AtomicUsize::new(0);
                        let one = |piece: usize| {
                            sum.fetch_add(piece, Ordering::Relaxed);
                            match (caller, piece) {
                                (3, 5) => Err(CUresult::CUDA_ERROR_UNKNOWN),
                                _ => Ok(()),
                            }
                        };
                        let shared = helpers.share(0..20, one);
                        assert_eq!(shared.is_err(), caller == 3);
                        if caller != 3 {
                            assert_eq!(sum.into_inner(), 190);
                        }
                    }
                });
            }
        });
    }
}
