//! Foresees what a client is going to wait for, and prepares it: a fence made early, and no
//! acknowledgement in its way.
//!
//! A program that waits after each step waits after the same number of messages each time. Once
//! three waits in a row have come after equally many messages, the session expects the next wait
//! as soon as that number is executed and nothing else has arrived. Clients foresee waits too, and
//! mostly send the fence with the message before it, so that nothing is left to do here; not after
//! copies and memsets, nor with several servers. The session uses the time until the fence comes:
//!
//! - It makes the fence. Over a link without a board, a fence that is made when its message comes
//!   costs the driver's calls and the GPU's front end 5 us, when the GPU is often done already.
//! - It has the kernel acknowledge what has arrived. Over tcp the kernel acknowledges every second
//!   message before it hands it over, which takes 3 to 5 us over loopback: that of a wait, where a
//!   launch came before it.
//!
//! A fence that was made early is used only if its message is the very next one. Otherwise it is
//! kept, unanswered, until the GPU has reached it.

use outboard_device::Pending;
use outboard_wire::{
    Message as _, Op as _, Reader,
    messages::{CopyOut, CopyOutTo, FenceContext, FenceStream},
};

/// Waits in a row after equally many messages, after the first, before one is expected.
const REPEATS_MIN: u8 = 2;
/// Most fences that were made in vain and are not reached yet. No more are made meanwhile.
const FORGONE_MAX: usize = 8;

/// A message that the client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// A fence for which the client watches no word of a board.
    Fence(Fence),
    /// A copy to the host.
    Copy,
}

/// A fence of one stream, or of all of a context's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fence {
    pub(super) context: u64,
    pub(super) stream: Option<u64>,
}

impl Awaited {
    /// Returns what a message is, if the client is known to wait for it.
    #[inline]
    pub(super) fn of(op: u16, context: u64, body: &Reader<'_>) -> Option<Awaited> {
        let mut body = body.clone();
        let (stream, slot) = match op {
            FenceStream::NUMBER => {
                let fence = FenceStream::decode(&mut body).ok()?;
                (Some(fence.stream), fence.slot)
            }
            FenceContext::NUMBER => (None, FenceContext::decode(&mut body).ok()?.slot),
            CopyOut::NUMBER | CopyOutTo::NUMBER => return Some(Awaited::Copy),
            _ => return None,
        };
        (slot == 0).then_some(Awaited::Fence(Fence { context, stream }))
    }
}

/// The distances of waits, and the fence that was made early.
#[derive(Default)]
pub(super) struct Foresight {
    last: Option<Awaited>,
    /// Messages between the last two waits, and since the last.
    usual: u32,
    since: u32,
    /// Waits like `last`, at the usual distance, in a row.
    repeats: u8,
    /// True once the next wait is expected.
    is_expected: bool,
    made: Option<Pending>,
    /// Fences made in vain, until the GPU has reached them: only then what they use is free again.
    forgone: Vec<Pending>,
}

impl Foresight {
    /// Notes the next message, before it is executed: one that is awaited, or another. Returns the
    /// fence if it has been made already.
    #[inline]
    pub(super) fn next(&mut self, awaited: Option<Awaited>) -> Option<Pending> {
        self.is_expected = false;
        if awaited.is_none() || awaited != self.last {
            self.forgone.extend(self.made.take());
        }
        if awaited.is_none() {
            self.since = self.since.saturating_add(1);
            return None;
        }
        let is_usual = self.last == awaited && self.since == self.usual;
        self.repeats = if is_usual {
            self.repeats.saturating_add(1)
        } else {
            0
        };
        self.last = awaited;
        self.usual = std::mem::take(&mut self.since);
        self.made.take()
    }

    /// Returns what the client will wait for next, once for each wait and only after other
    /// messages. Called whenever no message is there.
    #[inline]
    pub(super) fn expect(&mut self) -> Option<Awaited> {
        if !self.forgone.is_empty() {
            self.forgone
                .retain_mut(|fence| matches!(fence.ready(), Ok(false)));
        }
        let is_due = self.repeats >= REPEATS_MIN && self.since == self.usual && self.since > 0;
        if !is_due || self.is_expected {
            return None;
        }
        self.is_expected = true;
        self.last
    }

    /// Returns true if another fence may be made early.
    pub(super) fn has_room(&self) -> bool {
        self.forgone.len() < FORGONE_MAX
    }

    /// Keeps the fence that was [expected](Self::expect).
    pub(super) fn made(&mut self, fence: Option<Pending>) {
        self.made = fence;
    }
}
