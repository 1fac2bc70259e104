//! The mapped ranges of memory that instructions accessed last.

use crate::memory::Ranges;

/// The mapped range of each of the last accesses, by instruction.
pub(crate) struct RangeCache {
    pub(in crate::interp) entries: [(u64, u64); Self::ENTRIES],
    generation: u64,
}

impl RangeCache {
    pub(in crate::interp) const ENTRIES: usize = 256;

    pub(crate) fn new() -> Self {
        RangeCache {
            entries: [(0, 0); Self::ENTRIES],
            generation: 0,
        }
    }

    /// Clears the cache if ranges changed since the last time slice.
    pub(crate) fn refresh(&mut self, ranges: &Ranges) {
        if self.generation != ranges.generation {
            *self = RangeCache {
                entries: [(0, 0); Self::ENTRIES],
                generation: ranges.generation,
            };
        }
    }
}
