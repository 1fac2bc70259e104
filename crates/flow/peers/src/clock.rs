//! The processor's time stamp counter.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub fn ticks() -> u64 {
    // SAFETY: every x86-64 has the counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Ticks a nanosecond, measured once.
pub fn rate() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (start, before) = (Instant::now(), ticks());
        std::thread::sleep(Duration::from_millis(100));
        (ticks() - before) as f64 / start.elapsed().as_nanos() as f64
    })
}

pub fn ns(ticks: u64) -> f64 {
    ticks as f64 / rate()
}

pub fn cycles(ns: f64) -> f64 {
    ns * rate()
}

/// Ticks between two readings with nothing between them, the median of many.
pub fn cost() -> u64 {
    static COST: OnceLock<u64> = OnceLock::new();
    *COST.get_or_init(|| {
        let mut between = [0; 1001].map(|_: u64| {
            let before = ticks();
            ticks() - before
        });
        between.sort_unstable();
        between[500]
    })
}
