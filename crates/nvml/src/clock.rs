//! The clock by which a snapshot ages and a failed server rests. With the feature `virtual-clock`
//! tests move it on instead of waiting.

/// Returns the present time.
#[cfg(not(feature = "virtual-clock"))]
pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}

#[cfg(feature = "virtual-clock")]
pub use moved::advance;
#[cfg(feature = "virtual-clock")]
pub(crate) use moved::now;

#[cfg(feature = "virtual-clock")]
mod moved {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::{Duration, Instant},
    };

    static AHEAD_MS: AtomicU64 = AtomicU64::new(0);

    /// Returns the present time, and all that [`advance`] has added.
    pub(crate) fn now() -> Instant {
        Instant::now() + Duration::from_millis(AHEAD_MS.load(Ordering::SeqCst))
    }

    /// Moves the clock on, in full milliseconds, for all threads of the process.
    pub fn advance(by: Duration) {
        AHEAD_MS.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }
}
