//! What a thread waits for: one or several answers, and the word by which the GPU says so first.

use std::sync::{Arc, atomic::AtomicUsize};

use outboard_api::CUresult;
use parking_lot::{Condvar, Mutex};

use crate::state::Word;

/// One or several answers that somebody waits for together.
pub(crate) struct Group {
    /// The GPU's own word that the wait is over, where it writes one.
    pub(super) word: Option<Word>,
    pub(super) state: Mutex<GroupState>,
    pub(super) changed: Condvar,
    /// Threads inside `wait`: a group can also be looked at now and then (queries).
    pub(super) waiting: AtomicUsize,
}

pub(super) struct GroupState {
    pub(super) left: usize,
    error: Option<CUresult>,
    data: Vec<u8>,
    pub(super) lead: bool,
}

impl Group {
    /// One answer, which the GPU's word may precede.
    pub(crate) fn watching(word: Option<Word>) -> Arc<Group> {
        Group::make(1, word)
    }

    pub(crate) fn new(answers: usize) -> Arc<Group> {
        Group::make(answers, None)
    }

    /// The word's slot and value, as a fence names them.
    pub(crate) fn word(&self) -> (u32, u64) {
        Word::named(self.word.as_ref())
    }

    /// Whether the GPU has got there. What must reach the program first may still be on its way.
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

    /// One more answer belongs to it.
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

    /// What the answers came to; the data is gone from the group then.
    pub(crate) fn take(&self) -> Result<Vec<u8>, CUresult> {
        let mut state = self.state.lock();
        match state.error {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut state.data)),
        }
    }
}
