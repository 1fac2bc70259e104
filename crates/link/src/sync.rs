//! The atomics, locks and futex that rings and senders use: the real ones, or loom's, which tries
//! every interleaving.

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub(crate) use loom::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};

pub(crate) use turn::{Guard, Turn};
pub(crate) use word::Word;

/// A lock that a thread may try to take without waiting.
#[cfg(not(loom))]
mod turn {
    use parking_lot::{Mutex, MutexGuard};

    pub(crate) struct Turn<T>(Mutex<T>);

    pub(crate) type Guard<'a, T> = MutexGuard<'a, T>;

    impl<T> Turn<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            self.0.lock()
        }

        #[inline]
        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock()
        }
    }
}

/// loom's lock does not count its release as an access, so loom never tries a thread that fails to
/// take it just before. The flag here makes the release an access.
#[cfg(loom)]
mod turn {
    use std::ops::{Deref, DerefMut};

    use loom::sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    };

    pub(crate) struct Turn<T>(Mutex<T>, AtomicBool);

    pub(crate) struct Guard<'a, T>(MutexGuard<'a, T>, &'a AtomicBool);

    impl<T> Turn<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value), AtomicBool::new(false))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            let guard = self.0.lock().unwrap_or_else(|error| error.into_inner());
            self.1.swap(true, Ordering::Relaxed);
            Guard(guard, &self.1)
        }

        pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.1.fetch_or(false, Ordering::Relaxed);
            let guard = self.0.try_lock().ok()?;
            self.1.swap(true, Ordering::Relaxed);
            Some(Guard(guard, &self.1))
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            self.1.swap(false, Ordering::Relaxed);
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.0
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }
}

#[cfg(not(loom))]
mod word {
    use std::{sync::atomic::AtomicU32, time::Duration};

    use rustix::thread::futex;

    /// A word in memory shared by processes on which a thread can sleep: a futex, see futex(2).
    #[repr(transparent)]
    pub(crate) struct Word(pub(crate) AtomicU32);

    impl Word {
        /// Sleeps while the word holds `expected`, for at most `timeout`; may also wake without a
        /// reason.
        pub(crate) fn sleep(&self, expected: u32, timeout: Option<Duration>) {
            let timeout = timeout.and_then(crate::sys::timespec);
            // The caller looks again, whatever the result: EAGAIN, EINTR and ETIMEDOUT are
            // ordinary. Not PRIVATE, since the waker is another process.
            let _ = futex::wait(&self.0, futex::Flags::empty(), expected, timeout.as_ref());
        }

        /// Wakes the sleeper.
        pub(crate) fn wake(&self) {
            // Fails only for memory that is not mapped, and this is mapped.
            let _ = futex::wake(&self.0, futex::Flags::empty(), 1);
        }
    }
}

#[cfg(loom)]
mod word {
    use std::time::Duration;

    use loom::sync::{Condvar, Mutex, atomic::AtomicU32, atomic::Ordering};

    /// A futex by its contract: for every waker, the comparison and falling asleep are one step.
    pub(crate) struct Word(pub(crate) AtomicU32, Mutex<()>, Condvar);

    impl Word {
        pub(crate) fn new(value: u32) -> Self {
            Self(AtomicU32::new(value), Mutex::new(()), Condvar::new())
        }

        /// Ignores the timeout, so that a lost wake-up is a deadlock, which loom reports.
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
