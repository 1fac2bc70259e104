//! The atomics of the shared tables: the standard library's, or loom's, which tries every order in
//! which threads can run.

#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Waits a little longer each time; after some turns another thread gets the core.
#[derive(Default)]
pub(super) struct Backoff(u32);

impl Backoff {
    #[cfg(not(loom))]
    #[inline]
    pub(super) fn wait(&mut self) {
        self.0 += 1;
        if self.0.is_multiple_of(256) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    #[cfg(loom)]
    pub(super) fn wait(&mut self) {
        self.0 += 1;
        loom::thread::yield_now();
    }
}
