//! Busy waiting that learns whether it pays.

use std::{
    hint,
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};

use outboard_wire::limits::{SPIN_FEW_CORES_NS_MAX, SPIN_NS_MAX};

/// The shortest busy wait: about what it costs to look at the clock a few times.
const SPIN_NS_MIN: u64 = 500;
/// On one or two cores, busy waiting longer than this gives the core away at every look.
const SPIN_POLITE_NS: u64 = 1_000;

/// A budget of busy waiting for one place that waits: twice as much after each success, half after each failure.
pub(crate) struct Spin {
    budget_ns: u64,
}

impl Spin {
    pub(crate) fn new() -> Self {
        Self {
            budget_ns: machine().max_ns,
        }
    }

    /// Waits until `ready`, for the budget at most.
    pub(crate) fn until(&mut self, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        let machine = machine();
        if machine.cores == 1 {
            // The peer cannot run while we do.
            thread::yield_now();
            return ready();
        }
        let start = Instant::now();
        let budget = Duration::from_nanos(self.budget_ns);
        let polite = Duration::from_nanos(SPIN_POLITE_NS);
        loop {
            for _ in 0..16 {
                hint::spin_loop();
                if ready() {
                    self.budget_ns = (self.budget_ns * 2).min(machine.max_ns);
                    return true;
                }
            }
            let spent = start.elapsed();
            if spent >= budget {
                self.budget_ns = (self.budget_ns / 2).max(SPIN_NS_MIN);
                return false;
            }
            if machine.cores == 2 && spent >= polite {
                thread::yield_now();
            }
        }
    }
}

struct Machine {
    cores: usize,
    max_ns: u64,
}

fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let max_ns = if cores > 2 {
            SPIN_NS_MAX
        } else {
            SPIN_FEW_CORES_NS_MAX
        };
        Machine { cores, max_ns }
    })
}
