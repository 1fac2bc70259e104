//! Options by which a new server takes the place of a running one.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use outboard_server::limits;

use super::time;

/// Options by which a new server takes the place of a running one.
#[derive(Debug, Clone, Args)]
pub(crate) struct HandOverArgs {
    /// Socket file for upgrades: if a server runs that was started with the same file, this one
    /// takes over its addresses, and that one ends with its last program. Only this user's and
    /// root's servers are given them
    #[arg(long, value_name = "FILE")]
    pub(crate) hand_over: Option<PathBuf>,
    /// Time for the programs of this server once a new one has taken over; those that still run
    /// then are ended
    #[arg(long, value_name = "TIME", default_value = "24h",
          value_parser = time(limits::DRAIN_MS_MIN..=limits::DRAIN_MS_MAX))]
    pub(crate) drain_within: Duration,
}
