//! What a network must be like for a program to have its GPU at the other end of it, computed from a recording.
//!
//! No GPU, no network and no clock is used here: the same recording gives the same answer anywhere.
//!
//! ```text
//!  outboard_trace::Trace ──► Workload ──► Iteration ──┬──► Closed   the paper's equations 1 to 3
//!                            its iterations           ├──► Replay   every thread, link, server and stream
//!                                                     └──► Pcie     where the GPU is behind a longer PCIe
//!                                                            │
//!                            budget, level, Constants ──► search ──► what the network must be like
//! ```

mod closed;
mod constants;
mod error;
mod iteration;
mod mode;
mod network;
pub mod pcie;
mod period;
mod replay;
mod workload;

pub use crate::{
    closed::{Closed, c_async, c_sync, e_async, e_local},
    constants::Constants,
    error::Error,
    iteration::{Iteration, Step, Stream, Unit},
    mode::{LEVELS, Mode, SMALL_MESSAGE_BYTES, check_level},
    network::{Known, Network},
    pcie::Pcie,
    replay::{Observer, Outcome, Remote, Replay, Unobserved, Where},
    workload::{FoundBy, ITERATION_MARK, ITERATIONS_MAX, Note, Workload},
};
