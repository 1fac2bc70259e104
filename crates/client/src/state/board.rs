//! Opening the board: memory that this process, the server and the GPU map.

use std::os::fd::AsFd;

use outboard_wire::messages;

use super::{Driver, host_memory};
use crate::session::{Board, WORD_BYTES, WORDS, Word};

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
