//! Code around every call: stops panics, counts, times, records, and removes optimisations.
//!
//! Nothing here knows of sessions. The layers above count what they send and wait for, and hand in
//! what a call at a lower level of optimisation must still do before it returns.

pub(crate) mod conditions;
pub(crate) mod crossings;
pub(crate) mod guard;
pub(crate) mod optimise;
pub(crate) mod profile;
pub(crate) mod record;
pub(crate) mod servers;
pub(crate) mod stats;
pub(crate) mod times;
