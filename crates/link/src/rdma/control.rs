//! The words by which the two ends of a direction know of each other, and how one may sleep without missing the other.
//!
//! Each end has a block of its own, which it writes to the peer's memory when the peer is to know, and which the peer may
//! read by itself. An end that is about to sleep writes so to the peer, and then reads the peer's block, on one connection:
//! the read is carried out after the write. The other end stores its position in its block before it looks whether it is slept
//! upon. Hence one of the two sees the other's word: the sleeper the position, or the other the sleep, and then it makes its
//! next write one that wakes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering, fence},
};

use super::{check, memory::Memory};

/// What a block occupies.
pub(super) const BLOCK_BYTES: usize = 24;
/// The control words of one end of one direction, in a page with the other direction's.
pub(super) const CONTROL_BYTES: usize = 512;
/// Apart from each other by two cache lines, since processors prefetch them in pairs.
pub(super) const OWN: usize = 0;
pub(super) const TOLD: usize = 128;
pub(super) const LANDING: usize = 256;

/// What an end says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    /// How far it has produced, or consumed.
    pub(super) position: u64,
    /// Which of its sleeps it is in, or was last in; 0 before the first.
    pub(super) sleep: u32,
    /// It takes no more, or gives no more.
    pub(super) is_closed: bool,
}

/// The control words of this end.
pub(super) struct Control {
    memory: Arc<Memory>,
    at: usize,
    own: Block,
    told: Block,
    /// The peer's sleep that was answered.
    woken: u32,
}

impl Control {
    /// `at` in fresh memory.
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

    /// Lets the peer find `position` when it looks.
    #[inline]
    pub(super) fn publish(&mut self, position: u64) {
        self.own.position = position;
        let state = u64::from(self.own.sleep) << 1 | u64::from(self.own.is_closed);
        let words = [position, state, check::of_block(position, state)];
        for (index, word) in words.into_iter().enumerate() {
            self.word(OWN, index).store(word, Ordering::Release);
        }
    }

    /// Says, when it is next told, that this end is about to sleep.
    pub(super) fn begin_sleep(&mut self) {
        self.own.sleep = self.own.sleep.wrapping_add(1);
        self.publish(self.own.position);
    }

    /// Says, when it is next told, that this end is finished.
    pub(super) fn close(&mut self) {
        self.own.is_closed = true;
        self.publish(self.own.position);
    }

    /// Whether the peer sleeps upon what was just published, and has not been woken yet: the next write is to wake it.
    #[inline]
    pub(super) fn must_wake(&mut self) -> bool {
        fence(Ordering::SeqCst);
        let sleep = self.told().sleep;
        let must = sleep != self.woken;
        self.woken = sleep;
        must
    }

    /// What the peer said last. What is being written at this moment is as if it had not been: the peer reads, after it has
    /// written, what was published before this.
    #[inline]
    pub(super) fn told(&mut self) -> Block {
        if let Some(block) = self.read(TOLD) {
            self.told = block;
        }
        self.told
    }

    /// What the peer's block was when this end looked at it; `None` if it was changing.
    pub(super) fn looked(&self) -> Option<Block> {
        self.read(LANDING)
    }

    fn read(&self, place: usize) -> Option<Block> {
        let word = |index| self.word(place, index).load(Ordering::Acquire);
        // Copies, which are what is checked and used.
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
