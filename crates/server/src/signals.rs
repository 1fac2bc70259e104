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
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM},
    low_level,
};

/// Becomes readable when SIGINT, SIGTERM, SIGHUP or SIGCHLD arrives.
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
        // A server under nohup goes on.
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            let stops = Arc::clone(&signals.stops);
            let count = move || {
                stops.fetch_add(1, Ordering::Relaxed);
            };
            // SAFETY: the handler does only an atomic addition, which is async-signal-safe.
            let id = unsafe { low_level::register(signal, count) }?;
            signals.ids.push(id);
        }
        // Registered after the counters, so that the reader finds the signal counted.
        for signal in [SIGINT, SIGTERM, SIGCHLD].into_iter().chain(hangup) {
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

/// Whether this process was started with the signal ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
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
