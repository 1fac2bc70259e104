//! Objects that threads wait for: one or several replies, and the board's word, which the GPU may
//! write before they arrive.

use std::sync::{Arc, atomic::AtomicUsize};

use outboard_api::CUresult;
use parking_lot::{Condvar, Mutex};

use super::board::Word;

/// One or several replies that a thread waits for together.
pub(crate) struct Group {
    /// The board's word that the GPU writes when the wait is over, if there is one.
    pub(super) word: Option<Word>,
    pub(super) state: Mutex<GroupState>,
    pub(super) changed: Condvar,
    /// Number of threads inside `wait`. Queries look at a group without entering it.
    pub(super) waiting: AtomicUsize,
}

pub(super) struct GroupState {
    pub(super) left: usize,
    error: Option<CUresult>,
    data: Vec<u8>,
    pub(super) lead: bool,
}

impl Group {
    /// Creates a group for one reply, which the GPU's word may precede.
    pub(crate) fn watching(word: Option<Word>) -> Arc<Group> {
        Group::make(1, word)
    }

    pub(crate) fn new(answers: usize) -> Arc<Group> {
        Group::make(answers, None)
    }

    /// Returns the word's slot and value for a fence.
    pub(crate) fn word(&self) -> (u32, u64) {
        Word::named(self.word.as_ref())
    }

    /// Returns whether the GPU has reached the point. Data that must reach the program first may
    /// still be under way.
    pub(crate) fn is_reached(&self) -> bool {
        self.word.as_ref().is_some_and(Word::is_written) || self.is_complete()
    }

    fn make(answers: usize, word: Option<Word>) -> Arc<Group> {
        let state = GroupState {
            left: answers,
            error: None,
            data: Vec::new(),
            lead: false,
        };
        Arc::new(Group {
            word,
            state: Mutex::new(state),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
        })
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.state.lock().left == 0
    }

    /// Returns whether the server refused the request because of a stream's capture.
    pub(crate) fn is_refused_in_capture(&self) -> bool {
        let error = self.state.lock().error;
        error.is_some_and(CUresult::is_of_capture)
    }

    /// Adds one more reply.
    pub(crate) fn expect_one(&self) {
        self.state.lock().left += 1;
    }

    pub(crate) fn complete(&self, result: Result<Vec<u8>, CUresult>) {
        let mut state = self.state.lock();
        state.left = state.left.saturating_sub(1);
        match result {
            Ok(data) => state.data = data,
            Err(error) => state.error = state.error.or(Some(error)),
        }
        if state.left == 0 {
            self.changed.notify_all();
        }
    }

    /// Takes the result of the replies, and their data.
    pub(crate) fn take(&self) -> Result<Vec<u8>, CUresult> {
        let mut state = self.state.lock();
        match state.error {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut state.data)),
        }
    }
}
