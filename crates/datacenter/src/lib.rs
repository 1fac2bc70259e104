//! Gives the tasks of a datacenter's trace to its machines, as servers with GPUs or as a pool: how
//! many GPUs and processors nobody can use.
//!
//! No I/O: a trace is text. The format is openb's ("Beware of Fragmentation: Scheduling GPU-Sharing
//! Workloads with Fragmentation Gradient Descent", USENIX ATC 2023), and so is the experiment: the
//! tasks, with more drawn at random, come in random order until they ask for a given share of all
//! GPUs; none leaves.

mod compare;
pub mod fgd;
mod place;
mod services;
mod trace;

pub use compare::{Arriving, RUNS, Run, mean};
pub use place::{Architecture, Outcome, Policy, play};
pub use services::{FLEETS, Fleet, Instance, Needed, SERVICES_HEAD, Shape, needed, services};
pub use trace::{Machine, Task, TraceError, arrivals, machines, tasks};

/// A whole GPU.
pub const GPU_MILLI: u32 = 1_000;
