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
        let runs = match exact {
            true => differing_words(now, known),
            false => differing_pages(now, known),
        };
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

/// Returns the offset and length of each run of words that differ; the last word may be cut off.
fn differing_words(new: &[u8], old: &[u8]) -> Vec<(usize, usize)> {
    let mut runs = Runs::default();
    for (start, new, old) in differing(new, old, PAGE_BYTES as usize) {
        let ((new, new_rest), (old, old_rest)) = (words(new), words(old));
        let mut at = 0;
        while let Some(skipped) = new[at..].iter().zip(&old[at..]).position(|(a, b)| a != b) {
            at += skipped;
            let differ = new[at..].iter().zip(&old[at..]).take_while(|(a, b)| a != b);
            let count = differ.count();
            runs.add(start + at * WORD_BYTES, count * WORD_BYTES);
            at += count;
        }
        if new_rest != old_rest {
            runs.add(start + new.len() * WORD_BYTES, new_rest.len());
        }
    }
    runs.0
}

/// Splits bytes into whole words, which are compared without a call, and what is left.
fn words(bytes: &[u8]) -> (&[[u8; WORD_BYTES]], &[u8]) {
    bytes.as_chunks::<WORD_BYTES>()
}

/// Returns the offset and length of each run of pages that differ; the last may be cut off.
fn differing_pages(new: &[u8], old: &[u8]) -> Vec<(usize, usize)> {
    let mut runs = Runs::default();
    for (start, new, _) in differing(new, old, PAGE_BYTES as usize) {
        runs.add(start, new.len());
    }
    runs.0
}

/// Returns the pieces of `unit` bytes that differ, each with its offset.
fn differing<'a>(
    new: &'a [u8],
    old: &'a [u8],
    unit: usize,
) -> impl Iterator<Item = (usize, &'a [u8], &'a [u8])> {
    let pieces = new.chunks(unit).zip(old.chunks(unit)).enumerate();
    let differ = pieces.filter(|(_, (new, old))| new != old);
    differ.map(move |(index, (new, old))| (index * unit, new, old))
}

/// Offsets and lengths; those that follow each other are one.
#[derive(Default)]
struct Runs(Vec<(usize, usize)>);

impl Runs {
    fn add(&mut self, start: usize, len: usize) {
        match self.0.last_mut() {
            Some((at, known)) if *at + *known == start => *known += len,
            _ => self.0.push((start, len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_words_or_pages_that_differ() {
        const PAGE: usize = PAGE_BYTES as usize;
        let old = [0u8; 3 * PAGE + 6];
        let mut new = old;
        for at in [5, 8, 31, PAGE - 1, PAGE, 3 * PAGE + 5] {
            new[at] = 1;
        }
        let words = vec![(4, 8), (28, 4), (PAGE - 4, 8), (3 * PAGE + 4, 2)];
        assert_eq!(differing_words(&new, &old), words);
        let pages = vec![(0, 2 * PAGE), (3 * PAGE, 6)];
        assert_eq!(differing_pages(&new, &old), pages);
        assert_eq!(differing_words(&old, &old), vec![]);
        assert_eq!(differing_pages(&old, &old), vec![]);
    }

    /// The runs of words are those that one word after the other gives.
    #[test]
    fn runs_of_words_are_found_whatever_lies_between() {
        let old: Vec<u8> = (0..9001u32).map(|i| i as u8).collect();
        for gap in [1, 2, 3, 7, 64, 1000, 2047] {
            let mut new = old.clone();
            new.iter_mut()
                .step_by(gap * WORD_BYTES)
                .for_each(|byte| *byte ^= 1);
            let mut plain = Runs::default();
            for (at, (a, b)) in new
                .chunks(WORD_BYTES)
                .zip(old.chunks(WORD_BYTES))
                .enumerate()
            {
                if a != b {
                    plain.add(at * WORD_BYTES, a.len());
                }
            }
            assert_eq!(differing_words(&new, &old), plain.0, "every {gap} words");
        }
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
