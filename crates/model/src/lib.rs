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

mod advice;
mod budget;
mod closed;
mod constants;
mod error;
mod iteration;
mod mode;
mod network;
pub mod pcie;
mod pcie_requirements;
mod period;
mod replay;
mod report;
mod requirements;
mod search;
mod workload;

pub use crate::{
    budget::{BUDGET_PERCENT_MAX, Budget},
    closed::{Closed, c_async, c_sync, e_async, e_local},
    constants::Constants,
    error::Error,
    iteration::{Iteration, Step, Stream, Unit},
    mode::{LEVELS, Mode, SMALL_MESSAGE_BYTES, check_level},
    network::{BITS_PER_S_MAX, BITS_PER_S_MIN, Network, RTT_NS_MAX, show_bits_per_s, show_ns},
    pcie::{Pcie, PcieError},
    pcie_requirements::{PciePoint, PcieRequirements},
    replay::{Observer, Outcome, Remote, Replay, Unobserved, Where},
    report::{Timeline, html, pcie_html},
    requirements::{
        BANDWIDTHS_BPS, BandwidthMin, CallCost, ClassCount, Grid, KnownNetwork, LEVELS_RTT_NS,
        LevelNeeds, LevelSlope, Question, RTTS_NS, Recording, Requirements, RttMax, SLOPE_BPS,
        Slope, Spread,
    },
    search::{Both, Judge, Limit, RESOLUTION},
    workload::{FoundBy, ITERATIONS_MAX, Note, Workload},
};
