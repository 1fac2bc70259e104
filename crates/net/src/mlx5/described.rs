//! Queue pairs of adapters that take no commands: made by verbs in a queue's memory.

use std::sync::Arc;

use outboard_verbs::{
    Mlx5 as Adapter, OwnCompletions, OwnPair, Parent, Patience, Place, Remote, Sizes,
};

use crate::{
    block::{Options, PAGE_BYTES},
    device::Device,
    error::Error,
    memory::Mapped,
};

use super::pair::{COMPLETIONS_RECORD, LOG_READS, NotReady, Pair, RETRIES, Ring, Rings};

/// A queue pair and its completions, dropped in their order here.
pub(super) struct Described {
    pair: OwnPair,
    _sends: OwnCompletions,
    _receives: Option<OwnCompletions>,
}

impl Described {
    /// Makes a queue pair in a queue's memory.
    ///
    /// # Safety
    ///
    /// Memory and records stay mapped until the queue pair is dropped.
    pub(super) unsafe fn create(
        adapter: &Arc<Adapter>,
        memory: &Mapped,
        options: &Options,
        rings: &Rings,
    ) -> Result<Described, Error> {
        let parent = Parent::new(adapter)?;
        let (address, records) = (memory.address(), rings.records.address());
        // The library takes whole pages, which begin with the completions and end in the memory.
        let completions = |ring: &Ring| {
            let place = Place {
                address: ring.memory.address() + ring.at as u64,
                bytes: ring.bytes().next_multiple_of(PAGE_BYTES),
                record: records + COMPLETIONS_RECORD as u64,
            };
            // SAFETY: the caller keeps the memory mapped; others change it by atomics alone.
            unsafe { OwnCompletions::new(&parent, place, ring.log) }
        };
        let sends = completions(&rings.sends)?;
        let receives = rings.receives.as_ref().map(completions).transpose()?;
        let place = Place {
            address: address + options.receives_at() as u64,
            bytes: options.completions_at() - options.receives_at(),
            record: records,
        };
        let sizes = Sizes {
            log_blocks: options.log_blocks,
            receives: options.receives() as u32,
            ring: address + options.ring_at() as u64,
        };
        let both = [&sends, receives.as_ref().unwrap_or(&sends)];
        // SAFETY: the caller keeps the memory mapped; others change it by atomics alone.
        let pair = unsafe { OwnPair::new(&parent, both, place, sizes) }?;
        Ok(Described {
            pair,
            _sends: sends,
            _receives: receives,
        })
    }
}

impl Pair for Described {
    fn number(&self) -> u32 {
        self.pair.number()
    }

    fn doorbell(&self) -> u64 {
        self.pair.doorbell()
    }

    fn connect(
        &self,
        device: &Device,
        mine: &Remote,
        theirs: &Remote,
        not_ready: NotReady,
    ) -> Result<(), Error> {
        let patience = Patience {
            not_ready_timer: not_ready.timer,
            retries: RETRIES,
            not_ready_retries: not_ready.retries,
            reads: 1 << LOG_READS,
        };
        let connected = self
            .pair
            .connect(&device.chosen, mine.psn, theirs, patience);
        Ok(connected?)
    }

    fn fail(&self) -> Result<(), Error> {
        Ok(self.pair.fail()?)
    }

    fn reset(&self) -> Result<(), Error> {
        Ok(self.pair.reset()?)
    }
}
