//! The board: words that the GPU writes when its work reaches a point, so that a wait over shm only
//! reads memory.
//!
//! A fence names a word and a value that is never used twice. The server has the GPU write the
//! value after the work that the fence is about, and replies as well. The reply wakes a thread that
//! no longer reads the word, and carries errors. It comes without a word if something must reach
//! the program first.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub(crate) const WORD_BYTES: u64 = 8;
/// Number of words: as many waits can use the board at a time, further ones rely on the reply.
pub(crate) const WORDS: u32 = 2048;

pub(crate) struct Board {
    base: u64,
    free: Mutex<Vec<u32>>,
    next_value: AtomicU64,
}

/// A word to read. Its slot is free again when this is dropped.
pub(crate) struct Word {
    board: &'static Board,
    slot: u32,
    value: u64,
}

impl Board {
    /// Creates a board in pages that are never unmapped.
    pub(crate) fn new(base: u64) -> Board {
        Board {
            base,
            // Slot 0 means no word.
            free: Mutex::new((1..WORDS).rev().collect()),
            next_value: AtomicU64::new(1),
        }
    }

    /// Takes a word for a fence, if one is free.
    pub(crate) fn word(&'static self) -> Option<Word> {
        let slot = self.free.lock().pop()?;
        Some(Word {
            board: self,
            slot,
            value: self.next_value.fetch_add(1, Ordering::Relaxed),
        })
    }
}

impl Word {
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        let address = self.board.base + u64::from(self.slot) * WORD_BYTES;
        // SAFETY: inside the board's pages, which are never unmapped; the GPU writes whole aligned
        // words.
        let word = unsafe { AtomicU64::from_ptr(address as *mut u64) };
        word.load(Ordering::Acquire) == self.value
    }

    /// Returns the slot and value for a fence.
    pub(crate) fn named(word: Option<&Word>) -> (u32, u64) {
        word.map_or((0, 0), |w| (w.slot, w.value))
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        // A word that is written late has a value that no wait uses.
        self.board.free.lock().push(self.slot);
    }
}
