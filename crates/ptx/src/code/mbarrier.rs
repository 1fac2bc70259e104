//! Layout of the counts in an `mbarrier` object, which lowered code and the interpreter read.

/// Place of the arrivals that each phase expects.
pub(crate) const EXPECTED_SHIFT: u32 = 20;
/// Bits of a count of arrivals.
pub(crate) const COUNT_MASK: u64 = (1 << EXPECTED_SHIFT) - 1;
