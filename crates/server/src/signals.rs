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
    /// SIGHUPs, if they do not stop the server.
    hangups: Arc<AtomicUsize>,
    ids: Vec<SigId>,
}

impl Signals {
    /// Starts to watch. SIGHUP stops the server, or is counted if something is `reloaded` then.
    pub(super) fn register(reloaded: bool) -> io::Result<Signals> {
        let (wake, theirs) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let stops = Arc::new(AtomicUsize::new(0));
        let mut signals = Signals {
            wake,
            stops,
            hangups: Arc::default(),
            ids: Vec::new(),
        };
        // A server under nohup goes on.
        let hangup = (reloaded || !is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            let counter = match signal {
                SIGHUP if reloaded => Arc::clone(&signals.hangups),
                _ => Arc::clone(&signals.stops),
            };
            let count = move || {
                counter.fetch_add(1, Ordering::Relaxed);
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

    /// Returns whether SIGHUP has come since the last call, and does not stop the server.
    pub(super) fn has_hung_up(&self) -> bool {
        self.hangups.swap(0, Ordering::Relaxed) > 0
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
