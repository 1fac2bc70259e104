//! Calls of a queue to its queue pair, however that was made.

use std::sync::atomic::Ordering;

use outboard_verbs::Remote;

use crate::{
    cqe::{CQE_BYTES, FRESH},
    device::Device,
    error::Error,
    memory::Mapped,
};

/// A record of completion queues that nobody writes, behind the queue pair's.
pub(super) const COMPLETIONS_RECORD: usize = 64;
/// Bytes of both records.
pub(super) const RECORDS_BYTES: usize = 128;
const OPCODE_NONE: u8 = 15;
pub(super) const RETRIES: u8 = 7;
/// Reads and atomics under way: 16.
pub(super) const LOG_READS: u8 = 4;

/// Completions of an adapter in memory: 2^`log` of them, or one that is written again and again.
pub(super) struct Ring {
    pub(super) memory: Mapped,
    /// Offset in the memory.
    pub(super) at: usize,
    pub(super) log: u32,
    pub(super) is_collapsed: bool,
}

/// Completions of a queue pair's sends, and of its receives if it has any, and its records.
pub(super) struct Rings {
    pub(super) sends: Ring,
    pub(super) receives: Option<Ring>,
    /// Records that the adapter reads: in the queue's memory, or a page of its own.
    pub(super) records: Mapped,
}

/// Patience with messages for which there is no receive.
#[derive(Clone, Copy)]
pub(super) struct NotReady {
    /// The code of the time after which the peer sends its message again.
    pub(super) timer: u8,
    /// Times that this side sends its own again.
    pub(super) retries: u8,
}

impl Ring {
    pub(super) fn bytes(&self) -> usize {
        CQE_BYTES << self.log
    }

    /// Makes a completion such that nobody takes it.
    pub(super) fn freshen_at(&self, number: usize) {
        let fresh = u64::from_be_bytes([0, 0, 0, 0, 0, 0, 0, FRESH]).to_be();
        let at = self.at + number * CQE_BYTES + 56;
        self.memory.u64(at).store(fresh, Ordering::Release);
    }

    /// Returns true if completion `number` is there.
    pub(super) fn is_written(&self, number: u64) -> bool {
        let slot = self.at + (number & ((1 << self.log) - 1)) as usize * CQE_BYTES;
        let last = self.memory.u64(slot + 56).load(Ordering::Acquire);
        let own = last.to_ne_bytes()[7];
        own >> 4 != OPCODE_NONE && u64::from(own & 1) == number >> self.log & 1
    }
}

impl Rings {
    /// Makes all completions such that nobody takes them.
    pub(super) fn freshen(&self) {
        for ring in [Some(&self.sends), self.receives.as_ref()]
            .into_iter()
            .flatten()
        {
            (0..1 << ring.log).for_each(|number| ring.freshen_at(number));
        }
    }
}

/// A queue pair of an mlx5 adapter.
pub(super) trait Pair: Send + Sync {
    fn number(&self) -> u32;

    /// Returns the address of its doorbell.
    fn doorbell(&self) -> u64;

    fn connect(
        &self,
        device: &Device,
        mine: &Remote,
        theirs: &Remote,
        not_ready: NotReady,
    ) -> Result<(), Error>;

    /// Flushes what was posted.
    fn fail(&self) -> Result<(), Error>;

    /// Takes it back to where it was made.
    fn reset(&self) -> Result<(), Error>;
}
