//! A queue of an mlx5 adapter, whose queue pair lies in the queue's memory.
//!
//! Its completions lie where the block has them, but those that are written over one another in
//! the page that `nic` has for doorbells: the adapter's doorbell is a page of its own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::yield_now,
    time::Instant,
};

use outboard_verbs::{Mlx5 as Adapter, Remote};
use parking_lot::Mutex;

use crate::{
    adapter::RECEIVE_BYTES,
    block::{
        BASE, Block, CONSUMED, DONE, Export, Options, PAGE, PAGE_BYTES, PATIENT, PLAIN,
        RECEIVES_READY, RECORD, RESET, SCRATCH, WITHOUT_END,
    },
    cqe::CQE_BYTES,
    device::{Device, first_psn},
    driver::DevicePage,
    endpoint::Counts,
    error::Error,
    keys::Access,
    memory::Mapped,
    reach::Reached,
};

use super::{
    commands::Commanded,
    described::Described,
    pair::{Pair, Ring, Rings},
};

/// Completions in a page: room for those that are written over one another.
const LOG_PAGE: u32 = (PAGE_BYTES / CQE_BYTES).ilog2();
/// Fewer receives than fill a block do not end where the ring begins.
const LOG_RECEIVES_MIN: u32 = 2;
/// The local key of a receive without memory.
const NO_MEMORY: u32 = 0x100;
const NOT_READY_RETRIES: u8 = 6;

/// A queue pair in a queue's memory, dropped in the order here.
pub(super) struct Queue {
    _doorbell: Option<DevicePage>,
    pair: Box<dyn Pair>,
    rings: Rings,
    block: Block,
    export: Export,
    psn: u32,
    is_connected: Mutex<bool>,
    /// The first receive since the last reset.
    first: AtomicU64,
}

impl Queue {
    /// Makes a queue in a block, whose old contents are lost.
    ///
    /// # Safety
    ///
    /// The memory stays mapped until the queue is dropped.
    pub(super) unsafe fn create(
        adapter: &Arc<Adapter>,
        device: &Device,
        memory: Mapped,
        options: Options,
    ) -> Result<Queue, Error> {
        if (1..LOG_RECEIVES_MIN).contains(&options.log_receives) {
            let (log_min, given) = (LOG_RECEIVES_MIN, options.log_receives);
            let why = format!("a queue takes 2^{log_min} receives at least, not 2^{given}");
            return Err(Error::Device(why));
        }
        let takes_commands = adapter.events().is_ok();
        let block = Block::take(memory, options)?;
        let rings = rings(&block, takes_commands)?;
        // SAFETY: the caller keeps the memory mapped; others change it by atomics alone.
        let pair: Box<dyn Pair> = unsafe {
            match takes_commands {
                true => Box::new(Commanded::create(adapter, &block.memory, &options, &rings)?),
                false => Box::new(Described::create(adapter, &block.memory, &options, &rings)?),
            }
        };
        rings.freshen();
        let doorbell = pair.doorbell();
        let of_gpus = DevicePage::register(doorbell & !(PAGE_BYTES as u64 - 1), PAGE_BYTES);
        let of_gpus = of_gpus.map_err(Error::Device)?;
        let address = block.memory.address();
        // SAFETY: as of the whole block.
        let key = unsafe {
            let scratch = std::ptr::with_exposed_provenance_mut(address as usize + SCRATCH);
            device.register(scratch, CQE_BYTES as u64, Access::LOCAL_WRITE)
        }?;
        let mut export = block.export(pair.number(), device.local_key(key).unwrap_or(key));
        export.doorbell = doorbell;
        export.completion = rings.sends.memory.address() + rings.sends.at as u64;
        if !rings.sends.is_collapsed {
            export.flags |= PLAIN;
        }
        Ok(Queue {
            _doorbell: of_gpus,
            pair,
            rings,
            block,
            export,
            psn: first_psn(),
            is_connected: Mutex::new(false),
            first: AtomicU64::new(0),
        })
    }

    pub(super) fn export(&self) -> Export {
        self.export
    }

    pub(super) fn counters_bytes(&self) -> usize {
        self.block.options.counters_bytes()
    }

    pub(super) fn reset(&self) -> Result<(), Error> {
        let again = |counters: &Mapped| self.again(counters);
        self.block.reset(self.export.qpn, again)
    }

    pub(super) fn reset_counters(&self, counters: &Mapped) -> Result<(), Error> {
        let again = |counters: &Mapped| self.again(counters);
        self.block.reset_counters(self.export.qpn, counters, again)
    }

    /// Puts the queue pair back. Its completion queues go on from where they are, so that of its
    /// receives has to end at a round, and the number of the next completion of sends is looked up.
    fn again(&self, counters: &Mapped) -> Result<Option<u64>, Error> {
        let mut is_connected = self.is_connected.lock();
        if *is_connected {
            self.pair.fail()?;
            self.flush_receives(counters)?;
            self.pair.reset()?;
            *is_connected = false;
        }
        let ready = counters.u64(RECEIVES_READY).load(Ordering::Acquire);
        self.first.store(next_round(ready), Ordering::Release);
        self.block.memory.u64(RECORD).store(0, Ordering::Release);
        let sends = &self.rings.sends;
        if sends.is_collapsed {
            sends.freshen_at(0);
            return Ok(None);
        }
        let mut next = counters.u64(CONSUMED).load(Ordering::Acquire);
        let end = next + (1 << sends.log);
        while next < end && sends.is_written(next) {
            next += 1;
        }
        Ok(Some(next))
    }

    /// Waits until all receives are flushed, and as many more as end a round of completions.
    fn flush_receives(&self, counters: &Mapped) -> Result<(), Error> {
        let (memory, options) = (&self.block.memory, &self.block.options);
        let ready = counters.u64(RECEIVES_READY).load(Ordering::Acquire);
        let Some(received) = &self.rings.receives else {
            return Ok(());
        };
        if ready == self.first.load(Ordering::Acquire) {
            return Ok(());
        }
        let count = options.receives() as u64;
        let deadline = Instant::now() + RESET;
        let flushed = |number: u64| {
            while !received.is_written(number) {
                if Instant::now() > deadline {
                    return Err(Error::Device("receives are not flushed".into()));
                }
                yield_now();
            }
            Ok(())
        };
        let nothing = u64::from(NO_MEMORY).to_be();
        let end = ready.next_multiple_of(2 * count);
        for number in ready..end {
            if number >= self.first.load(Ordering::Acquire) + count {
                flushed(number - count)?;
            }
            let slot = options.receives_at() + (number & (count - 1)) as usize * RECEIVE_BYTES;
            memory.u64(slot).store(nothing, Ordering::Relaxed);
            let index = ((number + 1) & 0xffff) as u32;
            memory.u32(RECORD).store(index.to_be(), Ordering::Release);
        }
        flushed(end - 1)
    }

    /// Returns what the queue's threads have noted.
    pub(super) fn counts(&self) -> Counts {
        let word = |at| self.block.memory.u64(at).load(Ordering::Acquire);
        Counts {
            succeeded: word(DONE).saturating_sub(word(BASE)),
            failure: self.block.failure(),
            ..Counts::default()
        }
    }
}

impl Reached for Queue {
    fn reached(&self, device: &Device) -> Remote {
        device.reached(self.export.qpn, self.psn)
    }

    fn check_unconnected(&self) -> Result<(), Error> {
        match *self.is_connected.lock() {
            true => Err(Error::Connected(self.export.qpn)),
            false => Ok(()),
        }
    }

    fn connect(&self, device: &Device, mine: &Remote, theirs: &Remote) -> Result<(), Error> {
        let mut is_connected = self.is_connected.lock();
        if *is_connected {
            return Err(Error::Connected(self.export.qpn));
        }
        let patience = match self.block.options.flags & PATIENT {
            0 => NOT_READY_RETRIES,
            _ => WITHOUT_END as u8,
        };
        self.pair.connect(device, mine, theirs, patience)?;
        *is_connected = true;
        self.block.connected();
        Ok(())
    }
}

/// Returns where the completions of a queue lie. Only commands make them such that they are written
/// over one another: others have a ring, of its own memory if the queue's has no room for it.
fn rings(block: &Block, takes_commands: bool) -> Result<Rings, Error> {
    let options = &block.options;
    let ring = |at, log| Ring {
        memory: block.memory.clone(),
        at,
        log,
        is_collapsed: false,
    };
    let sends = match (options.is_plain(), takes_commands) {
        (true, _) => ring(options.completions_at(), options.log_blocks),
        (false, true) => Ring {
            is_collapsed: true,
            ..ring(PAGE, LOG_PAGE)
        },
        (false, false) => Ring {
            memory: own((CQE_BYTES << options.log_blocks).next_multiple_of(PAGE_BYTES))?,
            ..ring(0, options.log_blocks)
        },
    };
    let receives = match options.log_receives {
        0 => None,
        log => Some(ring(options.receive_completions_at(), log)),
    };
    Ok(Rings { sends, receives })
}

fn own(bytes: usize) -> Result<Mapped, Error> {
    Mapped::pinned(bytes).ok_or(Error::OutOfMemory(bytes))
}

/// Returns the first receive of the next generation of a queue, as its reset has it.
fn next_round(ready: u64) -> u64 {
    (ready + 1).next_multiple_of(crate::block::ROUND)
}
