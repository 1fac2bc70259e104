//! Signals as a descriptor that can be polled.

use std::{
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use signal_hook::{
    SigId,
    consts::{SIGCHLD, SIGINT, SIGTERM},
    low_level,
};

/// Becomes readable when SIGINT, SIGTERM or SIGCHLD arrives.
pub(super) struct Signals {
    wake: UnixStream,
    stops: Arc<AtomicUsize>,
    ids: Vec<SigId>,
}

impl Signals {
    pub(super) fn register() -> io::Result<Signals> {
        let (wake, theirs) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let stops = Arc::new(AtomicUsize::new(0));
        let mut signals = Signals {
            wake,
            stops,
            ids: Vec::new(),
        };
        for signal in [SIGINT, SIGTERM] {
            let stops = Arc::clone(&signals.stops);
            let count = move || {
                stops.fetch_add(1, Ordering::Relaxed);
            };
            // SAFETY: the handler does only an atomic addition, which is async-signal-safe.
            let id = unsafe { low_level::register(signal, count) }?;
            signals.ids.push(id);
        }
        // Registered after the counters, so that the reader finds the signal counted.
        for signal in [SIGINT, SIGTERM, SIGCHLD] {
            signals
                .ids
                .push(low_level::pipe::register(signal, theirs.try_clone()?)?);
        }
        Ok(signals)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stops.load(Ordering::Relaxed) > 0
    }

    /// Whether the user has asked twice to stop.
    pub(super) fn is_urgent(&self) -> bool {
        self.stops.load(Ordering::Relaxed) > 1
    }

    pub(super) fn drain(&mut self) {
        while matches!(self.wake.read(&mut [0; 64]), Ok(count) if count > 0) {}
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.ids.drain(..) {
            low_level::unregister(id);
        }
    }
}
