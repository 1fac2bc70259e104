//! The mirror of one range of host memory, and the bytes in it that the server does not have.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use outboard_pages::PAGE_BYTES;
use parking_lot::Mutex;

/// Unit of a change while kernels may write to the same page, in bytes.
const WORD_BYTES: usize = 4;
/// Number of looks for changes after which a mirror that no work has named is closed.
const UNNAMED_LOOKS_MAX: u64 = 1024;
/// Number of waits after which it is closed; at each the server compares the mirror. By then
/// keeping it has cost about as much as opening it again, so that no order of work costs more than
/// twice the optimum.
const UNNAMED_WAITS_MAX: u64 = 8;

/// State of the mirror of one host range.
pub(crate) struct Mirror {
    /// The server has a mirror.
    pub(super) is_open: AtomicBool,
    /// Copies into it come after what kernels wrote there before: from before it is opened.
    pub(super) orders_copies: AtomicBool,
    /// It stays open until the memory is freed: the program asked for its device address.
    pub(super) stays: AtomicBool,
    /// Numbers of the look and the wait before which work last named it.
    pub(super) named_at_look: AtomicU64,
    pub(super) named_at_wait: AtomicU64,
    /// The kernel reports written pages; otherwise everything is compared.
    pub(super) is_tracked: AtomicBool,
    /// The server's bytes. Locked only briefly: the thread that reads the link locks it too.
    pub(super) server_bytes: Mutex<Vec<u8>>,
    /// Held by the thread that opens it.
    pub(super) opening: Mutex<()>,
}

impl Default for Mirror {
    fn default() -> Self {
        Mirror {
            is_open: AtomicBool::new(false),
            orders_copies: AtomicBool::new(false),
            stays: AtomicBool::new(false),
            named_at_look: AtomicU64::new(0),
            named_at_wait: AtomicU64::new(0),
            is_tracked: AtomicBool::new(false),
            server_bytes: Mutex::default(),
            opening: Mutex::new(()),
        }
    }
}

impl Mirror {
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Returns whether kernels may be writing to it, or soon.
    pub(super) fn orders_copies(&self) -> bool {
        self.orders_copies.load(Ordering::Acquire)
    }

    /// Returns whether the GPU can use the memory until it is freed.
    pub(crate) fn stays_open(&self) -> bool {
        self.is_open() && self.stays.load(Ordering::Acquire)
    }
}

impl Mirror {
    /// Notes that work names it; `look` and `waits` count those so far.
    pub(super) fn named(&self, look: u64, waits: u64) {
        self.named_at_look.fetch_max(look, Ordering::AcqRel);
        self.named_at_wait.fetch_max(waits, Ordering::AcqRel);
    }

    /// Returns whether no work has named it for so long that it should be closed.
    pub(super) fn is_unnamed(&self, look: u64, waits: u64) -> bool {
        let since = |at: &AtomicU64, now: u64| now.saturating_sub(at.load(Ordering::Acquire));
        let waits = since(&self.named_at_wait, waits);
        let is_long =
            waits > UNNAMED_WAITS_MAX || since(&self.named_at_look, look) > UNNAMED_LOOKS_MAX;
        is_long && !self.stays.load(Ordering::Acquire)
    }

    /// Fills `now` with the program's bytes by `read`, which returns how many there are. Returns
    /// that number and runs of them that differ from the server's, and counts these as sent. After
    /// an error of `read` all are looked at again.
    ///
    /// The server's bytes are locked while the program's are read: if both changed in between, by
    /// what another thread received, the older ones would be sent as changes of the program's.
    pub(super) fn take_changes(
        &self,
        start: usize,
        now: &mut [u8],
        exact: bool,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<(usize, Vec<(usize, usize)>)> {
        let mut server_bytes = self.server_bytes.lock();
        let got = match read(now) {
            Ok(got) => got.min(now.len()),
            Err(error) => {
                self.is_tracked.store(false, Ordering::Release);
                return Err(error);
            }
        };
        let now = &now[..got];
        let Some(known) = server_bytes.get_mut(start..start + got) else {
            return Ok((got, Vec::new()));
        };
        if now == known {
            return Ok((got, Vec::new()));
        }
        let unit = if exact {
            WORD_BYTES
        } else {
            PAGE_BYTES as usize
        };
        let runs = differing_runs(now, known, unit);
        for (at, len) in &runs {
            known[*at..at + len].copy_from_slice(&now[*at..at + len]);
        }
        Ok((got, runs))
    }

    /// Marks bytes that the server may not have: they count as changed until they are sent again.
    pub(super) fn forget(&self, start: usize, now: &[u8]) {
        self.is_tracked.store(false, Ordering::Release);
        if let Some(known) = self.server_bytes.lock().get_mut(start..start + now.len()) {
            known
                .iter_mut()
                .zip(now)
                .for_each(|(known, now)| *known = !now);
        }
    }
}

/// Returns the offset and length of each run of units that differ.
fn differing_runs(new: &[u8], old: &[u8], unit: usize) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (index, (a, b)) in new.chunks(unit).zip(old.chunks(unit)).enumerate() {
        if a == b {
            continue;
        }
        let start = index * unit;
        match runs.last_mut() {
            Some((at, len)) if *at + *len == start => *len += a.len(),
            _ => runs.push((start, a.len())),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_units_that_differ() {
        let old = [0u8; 32];
        let mut new = old;
        new[5] = 1;
        new[8] = 1;
        new[31] = 1;
        assert_eq!(differing_runs(&new, &old, 4), vec![(4, 8), (28, 4)]);
        assert_eq!(differing_runs(&new, &old, 16), vec![(0, 32)]);
        assert_eq!(differing_runs(&old, &old, 4), vec![]);
    }

    #[test]
    fn changes_are_taken_once_and_again_after_they_were_lost() {
        let mirror = Mirror::default();
        *mirror.server_bytes.lock() = vec![0; 64];
        let mut program = [0u8; 64];
        program[9] = 1;
        let taken = || {
            let mut now = [0u8; 64];
            let read = |out: &mut [u8]| {
                // What arrives meanwhile waits: else it would look like the program's.
                assert!(mirror.server_bytes.try_lock().is_none());
                out.copy_from_slice(&program);
                Ok(out.len())
            };
            mirror.take_changes(0, &mut now, true, read).expect("bytes")
        };
        assert_eq!(taken(), (64, vec![(8, 4)]));
        assert_eq!(taken(), (64, vec![]));
        mirror.forget(0, &program);
        assert_eq!(taken(), (64, vec![(0, 64)]));

        mirror.is_tracked.store(true, Ordering::Release);
        let refused = |_: &mut [u8]| Err(io::Error::from_raw_os_error(libc::EMFILE));
        let lost = mirror.take_changes(0, &mut [0; 64], true, refused);
        assert!(lost.is_err() && !mirror.is_tracked.load(Ordering::Acquire));
    }
}
