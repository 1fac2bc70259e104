//! Computes, from a recording, the network that a program needs to have its GPU at the other end of
//! it.
//!
//! No GPU, no network and no clock is used here: a recording gives the same answer on every
//! machine.
//!
//! ```text
//!  outboard_trace::Trace ──► Workload ──► Iteration ──┬──► Closed   the paper's equations 1 to 3
//!                            its iterations           ├──► Replay   threads, link, server, streams
//!                                                     └──► Pcie     a GPU with a longer PCIe
//!                                                            │
//!                            budget, level, Constants ──► search ──► the network's requirements
//! ```

mod advice;
mod budget;
mod closed;
mod confidence;
mod constants;
mod effect;
mod error;
mod graft;
mod iteration;
mod measured;
mod mode;
mod network;
mod packets;
mod pair;
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
    confidence::{Confidence, Margin},
    constants::{Constants, WaitCost},
    error::Error,
    iteration::{Iteration, Step, Stream, Unit},
    measured::WithoutNetwork,
    mode::{LEVELS, Mode, SMALL_MESSAGE_BYTES, check_level},
    network::{BITS_PER_S_MAX, BITS_PER_S_MIN, Network, RTT_NS_MAX, show_bits_per_s, show_ns},
    packets::{Fabric, Played, Traffic},
    pair::Pair,
    pcie::{Late, Pcie, PcieError},
    pcie_requirements::{PciePoint, PcieRequirements, added_ns},
    replay::{Observer, Outcome, Remote, Replay, Unobserved, Where},
    report::{Timeline, html, pcie_html},
    requirements::{
        BANDWIDTHS_BPS, BandwidthMin, CallCost, ClassCount, Grid, KnownNetwork, LEVELS_RTT_NS,
        LevelNeeds, LevelSlope, Measured, Question, RTTS_NS, Recording, Requirements, RttMax,
        SLOPE_BPS, Slope, Spread, frontier,
    },
    search::{Both, Judge, Limit, RESOLUTION},
    workload::{FoundBy, ITERATIONS_MAX, Note, Workload},
};
