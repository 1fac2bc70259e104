//! The atomics and the sleeping that the ring is made of: the real ones, or loom's, which try every interleaving.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

pub(crate) use word::Word;

#[cfg(not(loom))]
mod word {
    use std::{sync::atomic::AtomicU32, time::Duration};

    use rustix::thread::futex;

    /// A word in memory shared by processes that a thread can sleep on: a futex, see futex(2).
    #[repr(transparent)]
    pub(crate) struct Word(pub(crate) AtomicU32);

    impl Word {
        /// Sleeps while the word holds `expected`, for `timeout` at most; wakes early without a reason, too.
        pub(crate) fn sleep(&self, expected: u32, timeout: Option<Duration>) {
            let timeout = timeout.and_then(crate::sys::timespec);
            // Whatever the result, the caller looks again: EAGAIN, EINTR and ETIMEDOUT are ordinary. Not PRIVATE,
            // since the waker is another process.
            let _ = futex::wait(&self.0, futex::Flags::empty(), expected, timeout.as_ref());
        }

        /// Wakes the sleeper.
        pub(crate) fn wake(&self) {
            // Fails only for memory that is not mapped, and this is.
            let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
        }
    }
}

#[cfg(loom)]
mod word {
    use std::time::Duration;

    use loom::sync::{Condvar, Mutex, atomic::AtomicU32, atomic::Ordering};

    /// A futex by its contract: the comparison and the falling asleep are one step for every waker.
    pub(crate) struct Word(pub(crate) AtomicU32, Mutex<()>, Condvar);

    impl Word {
        pub(crate) fn new(value: u32) -> Self {
            Self(AtomicU32::new(value), Mutex::new(()), Condvar::new())
        }

        /// Without a timeout, so that a lost wake-up is a deadlock, which loom reports.
        pub(crate) fn sleep(&self, expected: u32, _timeout: Option<Duration>) {
            let guard = self.1.lock().unwrap_or_else(|error| error.into_inner());
            if self.0.load(Ordering::Relaxed) == expected {
                drop(self.2.wait(guard));
            }
        }

        pub(crate) fn wake(&self) {
            let _guard = self.1.lock().unwrap_or_else(|error| error.into_inner());
            self.2.notify_one();
        }
    }
}
