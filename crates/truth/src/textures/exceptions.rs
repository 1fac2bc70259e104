//! What is known to differ from a GPU, why, and by how much.

use super::probe::Probe;

/// A group of probes whose results differ from the recorded ones.
pub struct Exception {
    pub why: &'static str,
    pub covers: fn(&Probe) -> bool,
    /// Results may be apart by so many units of the last place of the larger, read as floats; `None`: in any way.
    pub ulps_max: Option<u32>,
}

pub const EXCEPTIONS: &[Exception] = &[];

/// The exception that a probe falls under.
pub fn of(probe: &Probe) -> Option<&'static Exception> {
    EXCEPTIONS.iter().find(|e| (e.covers)(probe))
}
