//! Busy waiting that adapts to how long waits take.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

use outboard_wire::limits::{SPIN_FEW_CORES_NS_MAX, SPIN_NS_MAX, SPIN_RDMA_NS_MAX};

use crate::cores;

/// Shortest busy wait: about the cost of a few looks at the clock.
const SPIN_NS_MIN: u64 = 500;
/// On one or two cores, a busy wait longer than this gives the core away at every look.
const SPIN_YIELD_NS: u64 = 1_000;

/// The busy-wait budget of one place that waits. A wait doubles it if the wait's length was within
/// the longest budget, and halves it otherwise. The length counts, not whether the present budget
/// covered it: two sides that both sleep are slow only because they sleep.
pub(crate) struct Spin {
    budget_ns: u64,
    max_ns: u64,
    /// True if the peer runs on another machine, and does not need this core.
    is_remote: bool,
}

impl Spin {
    pub(crate) fn new() -> Self {
        let max_ns = match cores::are_few() {
            true => SPIN_FEW_CORES_NS_MAX,
            false => SPIN_NS_MAX,
        };
        Self {
            budget_ns: max_ns,
            max_ns,
            is_remote: false,
        }
    }

    /// For a peer on another machine.
    pub(crate) fn remote() -> Self {
        Self {
            budget_ns: SPIN_RDMA_NS_MAX,
            max_ns: SPIN_RDMA_NS_MAX,
            is_remote: true,
        }
    }

    /// Waits until `ready`, for the budget at most. If that was too short, the caller waits by
    /// other means and then reports the end to [`ended`](Self::ended).
    pub(crate) fn until(&mut self, start: Instant, mut ready: impl FnMut() -> bool) -> bool {
        if cores::count() == 1 && !self.is_remote {
            // The peer cannot run at the same time as this thread.
            thread::yield_now();
            return ready();
        }
        let budget = Duration::from_nanos(self.budget_ns);
        let yield_after = Duration::from_nanos(SPIN_YIELD_NS);
        loop {
            for _ in 0..16 {
                if ready() {
                    self.adapt(true);
                    return true;
                }
                hint::spin_loop();
            }
            let spent = start.elapsed();
            if spent >= budget {
                return false;
            }
            if cores::are_few() && spent >= yield_after {
                thread::yield_now();
            }
        }
    }

    /// Reports the end of a wait that began at `start` and for which [`until`](Self::until) was too
    /// short.
    pub(crate) fn ended(&mut self, start: Instant) {
        self.adapt(start.elapsed() < Duration::from_nanos(self.max_ns));
    }

    fn adapt(&mut self, was_short: bool) {
        self.budget_ns = if was_short {
            (self.budget_ns * 2).min(self.max_ns)
        } else {
            (self.budget_ns / 2).max(SPIN_NS_MIN)
        };
    }
}

/// Returns true if busy waiting is worth a system call at every look. On one or two cores it made
/// tcp round trips over loopback half as long again, since the peer and the kernel's own work need
/// the core.
pub(crate) fn has_cores_to_spare() -> bool {
    !cores::are_few()
}
