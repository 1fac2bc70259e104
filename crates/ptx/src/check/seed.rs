//! Orders drawn from a seed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Mixes two numbers into one that is unlike either (splitmix64).
pub(super) fn mixed(seed: u64, n: u64) -> u64 {
    let mut x = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// A random generator, used by one thread.
#[derive(Debug)]
pub(crate) struct Dice(AtomicU64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(AtomicU64::new(seed))
    }

    /// Draws a number below `n`, which must not be zero.
    pub(crate) fn below(&self, n: usize) -> usize {
        let draw = self.0.load(Relaxed).wrapping_add(1);
        self.0.store(draw, Relaxed);
        (mixed(draw, draw) % n as u64) as usize
    }
}
