//! A queue of an mlx5 adapter, whose queue pair lies in the queue's memory.
//!
//! Its completions lie where the block has them, but those that are written over one another in
//! the page that `nic` has for doorbells: the adapter's doorbell is a page of its own. Where nobody
//! but a thread has that page, the doorbell in the block is rung, which is behind them there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::yield_now,
    time::Instant,
};

use outboard_budget::Charge;
use outboard_verbs::{Mlx5 as Adapter, Remote};
use parking_lot::Mutex;

use crate::{
    adapter::RECEIVE_BYTES,
    block::{
        BASE, Block, CONSUMED, DONE, DOORBELL, Export, Options, PAGE, PAGE_BYTES, PATIENT, PLAIN,
        RECEIVES_READY, RECORD, RESET, SCRATCH, WITHOUT_END, next_round,
    },
    cqe::CQE_BYTES,
    device::{Device, charge, first_psn},
    driver::DevicePage,
    endpoint::Counts,
    error::Error,
    keys::Access,
    looker::Looked,
    memory::Mapped,
    reach::Reached,
};

use super::{
    commands::Commanded,
    described::Described,
    pair::{NotReady, Pair, RECORDS_BYTES, Ring, Rings},
    ringer::Ringer,
};

/// Completions in a page: room for those that are written over one another.
const LOG_PAGE: u32 = (PAGE_BYTES / CQE_BYTES).ilog2();
/// Completions before the doorbell in that page.
const LOG_HALF: u32 = ((DOORBELL - PAGE) / CQE_BYTES).ilog2();
/// Fewer receives than fill a block do not end where the ring begins.
const LOG_RECEIVES_MIN: u32 = 2;
/// The local key of a receive without memory.
const NO_MEMORY: u32 = 0x100;
const NOT_READY_RETRIES: u8 = 6;
/// 0.12 ms.
const NOT_READY_TIMER: u8 = 7;
/// 10.24 ms, in which a thread that sleeps sees a receive.
const NOT_SHOWN_TIMER: u8 = 20;

/// Those who ring an adapter's doorbell for what was posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ringing {
    /// Kernels and threads that post.
    ByPosters,
    /// A thread that looks at the queue.
    ByThread,
}

/// Why a queue has no completions that are written over one another.
const NOT_COLLAPSED: &str = "the adapter takes no commands (DEVX), by which alone completions are \
    written over one another: a queue at a server has to be OUTBOARD_NET_PLAIN then";

/// A queue pair in a queue's memory, dropped in the order here.
pub(crate) struct Queue {
    _doorbell: Option<DevicePage>,
    state: Mutex<State>,
    pair: Box<dyn Pair>,
    rings: Rings,
    block: Block,
    export: Export,
    psn: u32,
    /// Memory that the queue pair and its record cost the kernel, as two registrations.
    _charges: [Charge; 2],
    /// The first receive since the last reset.
    first: AtomicU64,
}

struct State {
    is_connected: bool,
    ringer: Option<Ringer>,
    /// Receives that the adapter is shown by a reset which has not ended.
    flushing: Option<u64>,
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
        ringing: Ringing,
    ) -> Result<Queue, Error> {
        if (1..LOG_RECEIVES_MIN).contains(&options.log_receives) {
            let (log_min, given) = (LOG_RECEIVES_MIN, options.log_receives);
            let why = format!("a queue takes 2^{log_min} receives at least, not 2^{given}");
            return Err(Error::Device(why));
        }
        let takes_commands = adapter.events().is_ok();
        let block = Block::take(memory, options)?;
        device.check_here(&block.memory)?;
        let charges = [charge(options.bytes() as u64)?, charge(PAGE_BYTES as u64)?];
        let rings = rings(&block, takes_commands, ringing)?;
        // SAFETY: the caller keeps the memory mapped; others change it by atomics alone.
        let pair: Box<dyn Pair> = unsafe {
            match takes_commands {
                true => Box::new(Commanded::create(adapter, &block.memory, &options, &rings)?),
                false => Box::new(Described::create(adapter, &block.memory, &options, &rings)?),
            }
        };
        rings.freshen();
        let doorbell = pair.doorbell();
        let mut export = block.export(pair.number(), 0);
        let (mut of_gpus, mut ringer) = (None, None);
        match ringing {
            Ringing::ByPosters => {
                export.doorbell = doorbell;
                let page = doorbell & !(PAGE_BYTES as u64 - 1);
                of_gpus = DevicePage::register(page, PAGE_BYTES).map_err(Error::Device)?;
            }
            Ringing::ByThread => {
                // SAFETY: the queue pair, which has the doorbell, is dropped after the ringer.
                ringer = Some(unsafe { Ringer::new(&block, &rings.records, doorbell) }?);
            }
        }
        export.completion = rings.sends.memory.address() + rings.sends.at as u64;
        if !rings.sends.is_collapsed {
            export.flags |= PLAIN;
        }
        let scratch = block.part(SCRATCH, CQE_BYTES)?;
        let key = device.register_mapped(&scratch, Access::LOCAL_WRITE)?;
        export.scratch_key = device.local_key(key).unwrap_or(key);
        let is_connected = false;
        Ok(Queue {
            _doorbell: of_gpus,
            state: Mutex::new(State {
                is_connected,
                ringer,
                flushing: None,
            }),
            pair,
            rings,
            block,
            export,
            psn: first_psn(),
            _charges: charges,
            first: AtomicU64::new(0),
        })
    }

    pub(super) fn export(&self) -> Export {
        self.export
    }

    pub(crate) fn counters_bytes(&self) -> usize {
        self.block.options.counters_bytes()
    }

    pub(crate) fn reset(&self) -> Result<(), Error> {
        let again = |counters: &Mapped| self.again(counters);
        self.block.reset(self.export.qpn, again)
    }

    pub(crate) fn reset_counters(&self, counters: &Mapped) -> Result<(), Error> {
        let again = |counters: &Mapped| self.again(counters);
        self.block.reset_counters(self.export.qpn, counters, again)
    }

    /// Puts the queue pair back. Its completion queues go on from where they are, so that of its
    /// receives has to end at a round, and the number of the next completion of sends is looked up.
    fn again(&self, counters: &Mapped) -> Result<Option<u64>, Error> {
        let mut state = self.state.lock();
        if state.is_connected {
            self.pair.fail()?;
            self.flush_receives(counters, &mut state.flushing)?;
            self.pair.reset()?;
            state.is_connected = false;
            state.flushing = None;
        }
        let ready = counters.u64(RECEIVES_READY).load(Ordering::Acquire);
        self.first.store(next_round(ready), Ordering::Release);
        self.rings.records.u64(0).store(0, Ordering::Release);
        if let Some(ringer) = &mut state.ringer {
            ringer.again(&self.block)?;
        }
        let sends = &self.rings.sends;
        if sends.is_collapsed {
            sends.freshen_at(0);
            return Ok(None);
        }
        // Any number: it is the program's.
        let consumed = counters.u64(CONSUMED).load(Ordering::Acquire);
        let count = 1 << sends.log;
        let written = (0..count).take_while(|more| sends.is_written(consumed.wrapping_add(*more)));
        Ok(Some(consumed.wrapping_add(written.count() as u64)))
    }

    /// Waits until all receives are flushed, and as many more as end a round of completions. The
    /// adapter is shown those that no thread has shown it. A second try goes on where one ended.
    fn flush_receives(&self, counters: &Mapped, shown: &mut Option<u64>) -> Result<(), Error> {
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
        // Any number: it is the program's.
        let more = ready.wrapping_neg() & (2 * count - 1);
        let show = |next: u64| {
            let index = (next & 0xffff) as u32;
            let record = self.rings.records.u32(0);
            record.store(index.to_be(), Ordering::Release);
        };
        let ahead = shown.map_or(0, |shown| shown.wrapping_sub(ready));
        let ahead = if ahead <= more { ahead } else { 0 };
        show(ready.wrapping_add(ahead));
        for number in (ahead..more).map(|more| ready.wrapping_add(more)) {
            if number.wrapping_sub(self.first.load(Ordering::Acquire)) >= count {
                flushed(number.wrapping_sub(count))?;
            }
            let slot = options.receives_at() + (number & (count - 1)) as usize * RECEIVE_BYTES;
            memory.u64(slot).store(nothing, Ordering::Relaxed);
            show(number.wrapping_add(1));
            *shown = Some(number.wrapping_add(1));
        }
        flushed(ready.wrapping_add(more).wrapping_sub(1))
    }

    /// Returns what the queue's threads have noted.
    pub(crate) fn counts(&self) -> Counts {
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
        match self.state.lock().is_connected {
            true => Err(Error::Connected(self.export.qpn)),
            false => Ok(()),
        }
    }

    fn connect(&self, device: &Device, mine: &Remote, theirs: &Remote) -> Result<(), Error> {
        let mut state = self.state.lock();
        if state.is_connected {
            return Err(Error::Connected(self.export.qpn));
        }
        let is_patient = self.block.options.flags & PATIENT != 0;
        // Receives that a thread shows are there some time after they were posted.
        let is_shown = state.ringer.is_some();
        let not_ready = NotReady {
            timer: if is_shown {
                NOT_SHOWN_TIMER
            } else {
                NOT_READY_TIMER
            },
            retries: match is_patient || is_shown {
                true => WITHOUT_END as u8,
                false => NOT_READY_RETRIES,
            },
        };
        self.pair.connect(device, mine, theirs, not_ready)?;
        state.is_connected = true;
        self.block.connected();
        Ok(())
    }
}

impl Looked for Queue {
    fn registered_bytes(&self) -> u64 {
        self.block.options.bytes() as u64
    }

    fn serve(&self, _: &Device) -> usize {
        // A reset takes its time, and everybody who changes memory waits for a look.
        let Some(mut state) = self.state.try_lock() else {
            return 0;
        };
        let State {
            is_connected,
            ringer,
            ..
        } = &mut *state;
        match ringer.as_mut().filter(|_| *is_connected) {
            Some(ringer) => ringer.serve(self.export.qpn),
            None => 0,
        }
    }
}

/// Returns where the completions of a queue lie. Only commands make them such that they are written
/// over one another: others have a ring, of its own memory if the queue's has no room for it.
fn rings(block: &Block, takes_commands: bool, ringing: Ringing) -> Result<Rings, Error> {
    let is_by_thread = ringing == Ringing::ByThread;
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
            ..ring(PAGE, if is_by_thread { LOG_HALF } else { LOG_PAGE })
        },
        (false, false) if is_by_thread => return Err(Error::Device(NOT_COLLAPSED.into())),
        (false, false) => Ring {
            memory: own((CQE_BYTES << options.log_blocks).next_multiple_of(PAGE_BYTES))?,
            ..ring(0, options.log_blocks)
        },
    };
    let receives = match options.log_receives {
        0 => None,
        log => Some(ring(options.receive_completions_at(), log)),
    };
    let records = match is_by_thread {
        true => Mapped::allocate(PAGE_BYTES).ok_or(Error::OutOfMemory(PAGE_BYTES))?,
        false => block.part(RECORD, RECORDS_BYTES)?,
    };
    Ok(Rings {
        sends,
        receives,
        records,
    })
}

fn own(bytes: usize) -> Result<Mapped, Error> {
    Mapped::pinned(bytes).ok_or(Error::OutOfMemory(bytes))
}
