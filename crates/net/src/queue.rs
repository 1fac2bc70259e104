//! A queue pair of the adapter in software with all of its memory in one block.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::{
    adapter::{Adapter, PairSetup, RECEIVE_BYTES, Retries},
    bell::Bell,
    block::{
        ASLEEP, Block, COMPLETION, DOORBELL, Export, Options, PAGE, PAGE_BYTES, PATIENT, RECORD,
        SCRATCH, UNRELIABLE, WITHOUT_END,
    },
    completions::CompletionsSetup,
    cqe::CQE_BYTES,
    error::Error,
    keys::Access,
    memory::Mapped,
    nic::Nic,
};

/// Domain of all queues of a C program.
const DOMAIN: u32 = 1;

/// A queue pair and its block of memory.
#[derive(Debug)]
pub struct Queue {
    _bell: Bell,
    block: Block,
    completions: u32,
    receive_completions: u32,
    export: Export,
}

impl Queue {
    /// Makes a queue pair in a block, whose old contents are lost.
    pub fn create(nic: &Nic, memory: Mapped, options: Options) -> Result<Queue, Error> {
        let block = Block::take(memory, options)?;
        nic.with(|adapter| {
            let mut made = Made::default();
            match made.all_of(adapter, &block) {
                Ok((completions, receive_completions, export)) => Ok(Queue {
                    _bell: Bell::hang(export.doorbell, nic.shared()),
                    block,
                    completions,
                    receive_completions,
                    export,
                }),
                Err(error) => {
                    made.undo(adapter);
                    Err(error)
                }
            }
        })
    }

    /// Bytes of its counters and bits.
    #[must_use]
    pub fn counters_bytes(&self) -> usize {
        self.block.options.counters_bytes()
    }

    #[must_use]
    pub fn export(&self) -> Export {
        self.export
    }

    /// Connects two queues, which may be one. Fails if one is connected.
    pub fn connect(nic: &Nic, one: &Queue, other: &Queue) -> Result<(), Error> {
        let (a, b) = (one.export.qpn, other.export.qpn);
        if one.is_unreliable() != other.is_unreliable() {
            return Err(Error::Reliability(if one.is_unreliable() { a } else { b }));
        }
        nic.with(|adapter| {
            let (of_a, of_b) = (adapter.unconnected(a)?, adapter.unconnected(b)?);
            adapter.connect(a, of_b)?;
            adapter.connect(b, of_a)
        })?;
        one.connected();
        other.connected();
        Ok(())
    }

    pub(crate) fn is_unreliable(&self) -> bool {
        self.block.options.flags & UNRELIABLE != 0
    }

    /// Returns true if its messages wait for their receives without end.
    pub(crate) fn is_patient(&self) -> bool {
        self.block.options.flags & PATIENT != 0
    }

    pub(crate) fn receives(&self) -> usize {
        self.block.options.receives()
    }

    /// Lets threads post after a reset.
    pub(crate) fn connected(&self) {
        self.block.connected();
    }

    /// Puts the queue back to its start. Waits for earlier entries fail from now on, and posts fail
    /// until it is connected again. Threads of the CPU and of the software device may be using it.
    pub fn reset(&self, nic: &Nic) -> Result<(), Error> {
        let again = |_: &_| self.reset_adapter(nic);
        self.block.reset(self.export.qpn, again)
    }

    /// Puts a queue back whose counters are in a GPU's memory: `counters` is a copy of them, to be
    /// copied back afterwards. No thread may be using the queue.
    pub fn reset_counters(&self, nic: &Nic, counters: &Mapped) -> Result<(), Error> {
        let again = |_: &_| self.reset_adapter(nic);
        self.block.reset_counters(self.export.qpn, counters, again)
    }

    fn reset_adapter(&self, nic: &Nic) -> Result<Option<u64>, Error> {
        let block = &self.block;
        nic.with(|adapter| {
            clear(block);
            adapter.reset_completions(self.completions, sent(block)?)?;
            if let Some(setup) = received(block)? {
                adapter.reset_completions(self.receive_completions, setup)?;
            }
            let setup = pair(block, self.completions, self.receive_completions)?;
            adapter.reset(self.export.qpn, setup).map(|()| None)
        })
    }
}

/// Parts of a queue, as far as an adapter has them.
#[derive(Debug, Default)]
struct Made {
    completions: SmallVec<[u32; 2]>,
    qpn: Option<u32>,
    scratch_key: Option<u32>,
}

impl Made {
    /// Makes all parts. Returns the completion queues of sends and of receives, and the queue.
    fn all_of(
        &mut self,
        adapter: &mut Adapter,
        block: &Block,
    ) -> Result<(u32, u32, Export), Error> {
        let completions = adapter.create_completions(sent(block)?)?;
        self.completions.push(completions);
        let receive_completions = match received(block)? {
            Some(setup) => {
                let number = adapter.create_completions(setup)?;
                self.completions.push(number);
                number
            }
            None => completions,
        };
        let qpn = adapter.create_pair(pair(block, completions, receive_completions)?)?;
        self.qpn = Some(qpn);
        if block.options.flags & UNRELIABLE != 0 {
            adapter.set_unreliable(qpn)?;
        }
        let scratch = block.part(SCRATCH, 64)?;
        let scratch_key = adapter.register(DOMAIN, scratch, Access::LOCAL_WRITE)?;
        self.scratch_key = Some(scratch_key);
        adapter.tell_posters(block.part(ASLEEP, 8)?);
        let export = block.export(qpn, scratch_key);
        Ok((completions, receive_completions, export))
    }

    fn undo(self, adapter: &mut Adapter) {
        // There is nothing to say about what is not there.
        let _ = self.scratch_key.map(|key| adapter.unregister(key));
        let _ = self.qpn.map(|qpn| adapter.destroy_pair(qpn));
        for number in self.completions {
            let _ = adapter.destroy_completions(number);
        }
    }
}

/// Completions of the send queue. A plain ring has as many as there are entries, and an entry's
/// room comes from its completion: it cannot be overrun, and needs no record.
pub(crate) fn sent(block: &Block) -> Result<CompletionsSetup, Error> {
    let options = &block.options;
    let (at, log_entries) = if options.is_plain() {
        (options.completions_at(), options.log_blocks)
    } else {
        (COMPLETION, 0)
    };
    Ok(CompletionsSetup {
        entries: block.part(at, CQE_BYTES << log_entries)?.into(),
        log_entries,
        collapsed: !options.is_plain(),
        record: None,
    })
}

/// Completions of receives: as many as there are receives.
pub(crate) fn received(block: &Block) -> Result<Option<CompletionsSetup>, Error> {
    let options = &block.options;
    if options.log_receives == 0 {
        return Ok(None);
    }
    let at = options.receive_completions_at();
    Ok(Some(CompletionsSetup {
        entries: block.part(at, CQE_BYTES << options.log_receives)?.into(),
        log_entries: options.log_receives,
        collapsed: false,
        record: None,
    }))
}

/// Takes back what was rung for.
pub(crate) fn clear(block: &Block) {
    block.memory.u64(RECORD).store(0, Ordering::Relaxed);
    block.memory.u64(DOORBELL).store(0, Ordering::Relaxed);
}

pub(crate) fn pair(
    block: &Block,
    send_completions: u32,
    receive_completions: u32,
) -> Result<PairSetup, Error> {
    let options = &block.options;
    let receives = match options.log_receives {
        0 => None,
        log => Some((
            block.part(options.receives_at(), RECEIVE_BYTES << log)?,
            log,
        )),
    };
    Ok(PairSetup {
        domain: DOMAIN,
        send_completions,
        receive_completions,
        ring: block.part(options.ring_at(), options.ring_bytes())?.into(),
        log_blocks: options.log_blocks,
        receives,
        record: block.part(RECORD, 8)?.into(),
        page: block.part(PAGE, PAGE_BYTES)?,
        retries: retries(options),
    })
}

fn retries(options: &Options) -> Retries {
    let mut retries = Retries::default();
    if options.flags & PATIENT != 0 {
        retries.not_ready_count_max = WITHOUT_END;
    }
    retries
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::keys::REGIONS_MAX;

    #[test]
    fn a_queue_that_finds_no_room_leaves_nothing_behind() {
        let nic = Nic::without_thread();
        let options = Options {
            log_blocks: 6,
            log_receives: 4,
            signal_every: 1,
            ..Options::default()
        };
        let create = || {
            let memory = Mapped::allocate(options.bytes()).unwrap();
            Queue::create(&nic, memory, options)
        };
        let fill = |adapter: &mut Adapter| {
            let one = Mapped::allocate(8).unwrap();
            let keys = (0..REGIONS_MAX).map(|_| adapter.register(1, one.clone(), Access::ALL));
            keys.map(Result::unwrap).last().unwrap()
        };
        let last = nic.with(fill);
        for _ in 0..2 {
            assert!(matches!(create(), Err(Error::TooMany { .. })));
        }
        nic.with(|adapter| adapter.unregister(last)).unwrap();
        let queue = create().unwrap();
        assert_eq!((queue.completions, queue.receive_completions), (0, 1));
        assert_eq!(
            nic.with(|adapter| adapter.status(queue.export.qpn - 1).ok()),
            None
        );
    }
}
