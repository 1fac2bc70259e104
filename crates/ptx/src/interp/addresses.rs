//! Addresses of a warp's lanes: their pattern, and the bounds that an earlier access has checked.

use crate::interp::isa::HALF;

/// The distance between the addresses of lanes, within each half of a warp.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::interp) enum Pattern {
    /// Neighbouring lanes differ by the size of the access.
    Spread,
    /// All lanes have one address.
    Same,
    #[default]
    Other,
}

/// Facts about a row of addresses.
#[derive(Clone, Copy, Default)]
pub(crate) struct Addresses {
    /// Address of the first lane of each half, in the host's memory.
    first: [u64; 2],
    /// The range of offsets for which both halves are in bounds: the least one, and its length.
    least: i64,
    span: u64,
    pattern: Pattern,
}

/// Rows of addresses remembered within straight code, so that later accesses by the same row need
/// no check ([`crate::interp::steps::fuse`] assigns them). One further entry serves all other rows.
pub(in crate::interp) const SEEN: usize = 7;

impl Addresses {
    /// Returns the access at an offset, if it is in bounds.
    #[inline(always)]
    pub(in crate::interp) fn checked(&self, offset: i64) -> Option<([u64; 2], Pattern)> {
        let within = offset.wrapping_sub(self.least) as u64 <= self.span;
        (self.pattern != Pattern::Other && within).then(|| {
            let first = self.first.map(|at| at.wrapping_add(offset as u64));
            (first, self.pattern)
        })
    }

    /// Describes accesses of `size` bytes per lane, which must stay in `[low, high)`; addresses
    /// count from `base`.
    #[inline(always)]
    pub(in crate::interp) fn new(
        first: [u64; 2],
        pattern: Pattern,
        size: usize,
        (low, high): (u64, u64),
        base: *mut u8,
    ) -> Self {
        let bytes = match pattern {
            Pattern::Spread => size * HALF,
            _ => size,
        };
        // Below this limit no sum or difference of addresses overflows.
        const SANE: u64 = 1 << 62;
        let [a, b] = first;
        let aligned = (a | b) & (size as u64 - 1) == 0;
        let least = low.wrapping_sub(a.min(b)) as i64;
        let most = high.wrapping_sub(bytes as u64).wrapping_sub(a.max(b)) as i64;
        if !aligned || a | b | high >= SANE || most < least {
            return Addresses::default();
        }
        let base = base as u64;
        Addresses {
            first: [a + base, b + base],
            least,
            span: (most - least) as u64,
            pattern,
        }
    }
}
