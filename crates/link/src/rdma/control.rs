//! Control words with which the two ends of a direction tell each other their state, so that one
//! may sleep without missing the other.
//!
//! Each end has a block, which it writes into the peer's memory to tell the peer, and which the
//! peer may also read. An end that is about to sleep first writes so to the peer and then reads the
//! peer's block, on one connection, so that the read is carried out after the write. The other end
//! stores its position in its block before it looks whether its peer sleeps. Hence one of the two
//! sees the other's word: either the sleeper sees the position, or the other end sees the sleep and
//! wakes the sleeper with its next write.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

use outboard_verbs::Memory;

use super::check;

/// Length of a block.
pub(super) const BLOCK_BYTES: usize = 24;
/// The control words of one end of one direction; a page holds those of both directions.
pub(super) const CONTROL_BYTES: usize = 512;
/// Memory for the control words of both directions, and for grants: a page, since whole pages are
/// registered.
pub(super) const CONTROL_PAGE_BYTES: usize = 4096;
/// Two cache lines apart, since processors prefetch them in pairs.
pub(super) const OWN: usize = 0;
pub(super) const TOLD: usize = 128;
pub(super) const READ_BUFFER: usize = 256;

/// The state of an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    /// Bytes that it has produced, or consumed.
    pub(super) position: u64,
    /// Number of its current or last sleep; 0 before the first.
    pub(super) sleep: u32,
    /// It consumes no more, or produces no more.
    pub(super) is_closed: bool,
}

/// The control words of this end.
pub(super) struct Control {
    memory: Arc<Memory>,
    at: usize,
    own: Block,
    told: Block,
    /// Number of the peer's last sleep that was answered.
    woken: u32,
}

impl Control {
    /// Control words `at` an offset in fresh memory.
    pub(super) fn new(memory: Arc<Memory>, at: usize) -> Self {
        let mut control = Self {
            memory,
            at,
            own: Block::default(),
            told: Block::default(),
            woken: 0,
        };
        // Before the peer can read it.
        control.publish(0);
        control
    }

    /// Stores `position` where the peer's read finds it.
    #[inline]
    pub(super) fn publish(&mut self, position: u64) {
        self.own.position = position;
        let state = u64::from(self.own.sleep) << 1 | u64::from(self.own.is_closed);
        let words = [position, state, check::of_block(position, state)];
        for (index, word) in words.into_iter().enumerate() {
            self.word(OWN, index).store(word, Ordering::Release);
        }
    }

    /// Marks this end as about to sleep; the next block sent says so.
    pub(super) fn begin_sleep(&mut self) {
        self.own.sleep = self.own.sleep.wrapping_add(1);
        self.publish(self.own.position);
    }

    /// Marks this end as finished; the next block sent says so.
    pub(super) fn close(&mut self) {
        self.own.is_closed = true;
        self.publish(self.own.position);
    }

    /// Returns true if the peer sleeps without having seen what was just published, and has not
    /// been woken yet: the next write must wake it.
    #[inline]
    pub(super) fn must_wake(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let sleep = self.told().sleep;
        let must = sleep != self.woken;
        self.woken = sleep;
        must
    }

    /// Returns the state that the peer wrote last. A block that is being written counts as not
    /// written: after its write the peer reads what was published before this call.
    #[inline]
    pub(super) fn told(&mut self) -> Block {
        if let Some(block) = self.read(TOLD) {
            self.told = block;
        }
        self.told
    }

    /// Returns the peer's block as this end read it; `None` if it was changing.
    pub(super) fn looked(&self) -> Option<Block> {
        self.read(READ_BUFFER)
    }

    fn read(&self, place: usize) -> Option<Block> {
        let word = |index| self.word(place, index).load(Ordering::Acquire);
        // Copies of the words are checked and used.
        let [position, state, sum] = [word(0), word(1), word(2)];
        (sum == check::of_block(position, state)).then_some(Block {
            position,
            sleep: (state >> 1) as u32,
            is_closed: state & 1 != 0,
        })
    }

    fn word(&self, place: usize, index: usize) -> &AtomicU64 {
        self.memory.word(self.at + place + 8 * index)
    }
}
