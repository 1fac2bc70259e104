//! Graphs that kernels launch (CUDA C++ Programming Guide, "Device Graph Launch").
//!
//! An execution ends when its nodes and the graphs that it fired have ended; then its tails run,
//! one after the other, each with tails of its own first. The stream goes on after the last one.
//!
//! ```text
//!  nodes ──► Work::End ──► Work::Nothing, the stream's task
//!              │   ▲              ▲
//!  fired ──────┼───┘   siblings ──┘
//!  tails ◄─────┘ one at a time, in the place of the nodes
//! ```

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::error::Stuck;
use crate::execution::Execution;

/// The flag `CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH`.
pub const BY_KERNELS: u64 = 4;
/// Fired graphs of an execution, and tails that wait, at most.
const FIRED_MAX: u32 = 120;
const TAILS_MAX: usize = 255;

/// `cudaStreamGraphTailLaunch`, `cudaStreamGraphFireAndForget` and
/// `cudaStreamGraphFireAndForgetAsSibling`.
const TAIL: u64 = 0x0100_0000_0000_0000;
const FIRE: u64 = 0x0200_0000_0000_0000;
const SIBLING: u64 = 0x0300_0000_0000_0000;

/// `cudaErrorInvalidValue`, `cudaErrorLaunchPendingCountExceeded`, `cudaErrorIllegalState`.
const INVALID_VALUE: u64 = 1;
const PENDING_EXCEEDED: u64 = 69;
const ILLEGAL_STATE: u64 = 401;

/// Executable graphs that kernels may launch, by handle, and how often each runs.
#[derive(Debug, Default)]
pub(super) struct Launchable(Mutex<FxHashMap<u64, u32>>);

impl Launchable {
    pub(super) fn insert(&self, handle: u64) {
        self.0.lock().insert(handle, 0);
    }

    pub(super) fn remove(&self, handle: u64) {
        self.0.lock().remove(&handle);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    fn has(&self, handle: u64) -> bool {
        self.0.lock().contains_key(&handle)
    }

    pub(super) fn began(&self, handle: u64) {
        if let Some(runs) = self.0.lock().get_mut(&handle) {
            *runs += 1;
        }
    }

    pub(super) fn ended(&self, handle: u64) {
        if let Some(runs) = self.0.lock().get_mut(&handle) {
            *runs = runs.saturating_sub(1);
        }
    }

    /// Takes a graph that does not run; returns a `cudaError_t`.
    fn take(&self, handle: u64) -> u64 {
        match self.0.lock().get_mut(&handle) {
            None => INVALID_VALUE,
            Some(runs) if *runs > 0 => ILLEGAL_STATE,
            Some(runs) => {
                *runs = 1;
                0
            }
        }
    }
}

/// Launches that the kernels of an execution asked for.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Launches so far that wait for nothing.
    fired: u32,
    /// Those of them not started: handle, and whether it is a sibling.
    pub(super) fire: Vec<(u64, bool)>,
    pub(super) tails: VecDeque<u64>,
    /// A launch that could not be started.
    pub(super) failed: Option<Stuck>,
}

/// Starts what kernels have fired: the device.
pub(super) trait Starts: Send + Sync {
    /// Starts what the execution of this number has fired.
    fn start_fired(&self, run: u64);
}

/// One execution of a graph.
pub(super) struct Run {
    /// A number of its own.
    pub(super) id: u64,
    pub(super) handle: u64,
    /// Number of tails of earlier executions that still wait.
    pub(super) tails_before: usize,
    pub(super) asked: Mutex<Asked>,
    /// Set while there may be launches to start.
    pub(super) has_fired: AtomicBool,
    pub(super) launchable: Arc<Launchable>,
    pub(super) device: Arc<dyn Starts>,
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "execution {} of {:#x}", self.id, self.handle)
    }
}

impl Execution for Run {
    fn current(&self) -> u64 {
        match self.launchable.has(self.handle) {
            true => self.handle,
            false => 0,
        }
    }

    fn launch(&self, handle: u64, stream: u64) -> u64 {
        let mut asked = self.asked.lock();
        match stream {
            TAIL if !self.launchable.has(handle) => INVALID_VALUE,
            TAIL if handle == self.handle && asked.tails.contains(&handle) => ILLEGAL_STATE,
            TAIL if asked.tails.len() + self.tails_before >= TAILS_MAX => PENDING_EXCEEDED,
            TAIL => {
                asked.tails.push_back(handle);
                0
            }
            FIRE | SIBLING if asked.fired >= FIRED_MAX => PENDING_EXCEEDED,
            FIRE | SIBLING => {
                let status = self.launchable.take(handle);
                if status == 0 {
                    asked.fired += 1;
                    asked.fire.push((handle, stream == SIBLING));
                    self.has_fired.store(true, Ordering::Relaxed);
                }
                status
            }
            _ => INVALID_VALUE,
        }
    }

    fn start(&self) {
        if self.has_fired.load(Ordering::Relaxed) {
            self.device.start_fired(self.id);
        }
    }
}

/// The end of an execution, and the tails that follow.
#[derive(Debug)]
pub(super) struct End {
    pub(super) run: Arc<Run>,
    pub(super) tails: VecDeque<u64>,
}

impl End {
    /// Notes that the execution is over, however it ended.
    pub(super) fn over(&self) {
        self.run.launchable.ended(self.run.handle);
    }
}
