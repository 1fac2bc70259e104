//! The board: words that the GPU writes when its work reaches a point, so that a wait over shm only
//! reads memory.
//!
//! A fence names a word and a value that is never used twice. The server has the GPU write the
//! value after the work that the fence is about, and replies as well. The reply wakes a thread that
//! no longer reads the word, and carries errors. It comes without a word if something must reach
//! the program first.

use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering},
};

use outboard_wire::messages;
use parking_lot::Mutex;

use super::{Driver, host_memory};

const WORD_BYTES: u64 = 8;
/// Number of words: as many waits can use the board at a time, further ones rely on the reply.
const WORDS: u32 = 2048;

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
    fn new(base: u64) -> Board {
        Board {
            base,
            // Slot 0 means no word.
            free: Mutex::new((1..WORDS).rev().collect()),
            next_value: AtomicU64::new(1),
        }
    }

    fn word(&'static self) -> Option<Word> {
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

impl Driver {
    /// Returns a word for a fence, if the GPU can write to memory of this process.
    pub(crate) fn word(&self) -> Option<Word> {
        if !self.session.shares_memory() {
            return None;
        }
        (*self.board.get_or_init(|| self.open_board()))?.word()
    }

    /// Returns whether waits read memory.
    pub(crate) fn has_board(&self) -> bool {
        self.session.shares_memory() && self.board.get_or_init(|| self.open_board()).is_some()
    }

    fn open_board(&self) -> Option<&'static Board> {
        let len = u64::from(WORDS) * WORD_BYTES;
        let file = host_memory::memfd(len).ok()?;
        let va = self.place(len, Some(&file)).ok()?;
        let fd_tag = self.session.send_fd(file.as_fd()).ok()?;
        let opened = self.call(&messages::BoardOpen { va, len, fd_tag }, |reply| {
            reply.written != 0
        });
        // If the server refused, the few pages stay mapped: this is tried only once.
        opened
            .unwrap_or(false)
            .then(|| &*Box::leak(Box::new(Board::new(va))))
    }
}
