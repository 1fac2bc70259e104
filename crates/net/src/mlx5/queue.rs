//! A queue pair of an mlx5 adapter, made by commands in a queue's memory.
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

use outboard_verbs::{Chosen, HOP_LIMIT, Mlx5 as Adapter, Object, Page, Pages, Remote, mtu_code};
use parking_lot::Mutex;

use crate::{
    adapter::RECEIVE_BYTES,
    block::{
        BASE, Block, CONSUMED, DONE, Export, Options, PAGE, PAGE_BYTES, PATIENT, RECEIVES_READY,
        RECORD, RESET, SCRATCH, WITHOUT_END,
    },
    command::{Command, NUMBER, Opcode, cq, qp},
    cqe::{CQE_BYTES, FRESH},
    device::{Device, first_psn},
    driver::DevicePage,
    endpoint::Counts,
    error::Error,
    keys::Access,
    memory::Mapped,
};

/// Completions in a page: room for those that are written over one another.
const LOG_PAGE: u32 = (PAGE_BYTES / CQE_BYTES).ilog2();
/// Fewer receives than fill a block do not end where the ring begins.
const LOG_RECEIVES_MIN: u32 = 2;
const MIGRATED: u32 = 3;
const NO_RECEIVES: u32 = 3;
const RETRIES: u32 = 7;
const NOT_READY_RETRIES: u32 = 6;
/// 0.12 ms.
const NOT_READY_TIMER: u32 = 7;
/// Reads and atomics under way: 16.
const LOG_READS: u32 = 4;
const LOG_MESSAGE_MAX: u32 = 30;
/// Remote reads, writes and atomics, these as InfiniBand has them.
const TAKES_ALL: u32 = 7;
const ATOMICS: u32 = 1;
const UDP_PORT: u32 = 0xc000;
const COMMAND_BYTES: usize = 16;
const ANSWER_BYTES: usize = 16;
/// The local key of a receive without memory.
const NO_MEMORY: u32 = 0x100;
const OPCODE_NONE: u8 = 15;
/// A record of completion queues that nobody writes, behind the queue pair's.
const COMPLETIONS_RECORD: usize = RECORD + 64;

/// The objects of a queue, dropped in their order here: an adapter refuses to destroy what another
/// uses.
pub(super) struct Queue {
    pair: Object,
    _sends: Object,
    _receives: Option<Object>,
    _doorbell: Option<DevicePage>,
    _page: Page,
    _pages: Pages,
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
        let block = Block::take(memory, options)?;
        freshen(&block);
        let address = block.memory.address();
        // SAFETY: the caller keeps the memory mapped; others change it by atomics alone.
        let pages = unsafe { adapter.pages(address, options.bytes()) }?;
        let page = adapter.page()?;
        let doorbell = page.doorbell();
        let of_gpus = DevicePage::register(doorbell & !(PAGE_BYTES as u64 - 1), PAGE_BYTES);
        let of_gpus = of_gpus.map_err(Error::Device)?;
        let completions = |at: usize, log: u32, is_collapsed: bool| {
            let command = completions(adapter, (&pages, &page), at, log, is_collapsed)?;
            let (object, answer) = adapter.create::<ANSWER_BYTES>(command.bytes())?;
            Ok::<_, Error>((object, NUMBER.of(&answer) as u32))
        };
        let (sends, sends_number) = match options.is_plain() {
            true => completions(options.completions_at(), options.log_blocks, false)?,
            false => completions(PAGE, LOG_PAGE, true)?,
        };
        let receives = match options.log_receives {
            0 => None,
            log => Some(completions(options.receive_completions_at(), log, false)?),
        };
        let receives_number = receives
            .as_ref()
            .map_or(sends_number, |(_, number)| *number);
        let numbers = [sends_number, receives_number];
        let command = pair(adapter, (&pages, &page), &options, numbers);
        let (pair, answer) = adapter.create::<ANSWER_BYTES>(command.bytes())?;
        let qpn = NUMBER.of(&answer) as u32;
        // SAFETY: as of the whole block.
        let key = unsafe {
            let scratch = std::ptr::with_exposed_provenance_mut(address as usize + SCRATCH);
            device.register(scratch, CQE_BYTES as u64, Access::LOCAL_WRITE)
        }?;
        let mut export = block.export(qpn, device.local_key(key).unwrap_or(key));
        export.doorbell = doorbell;
        if !options.is_plain() {
            export.completion = address + PAGE as u64;
        }
        Ok(Queue {
            pair,
            _sends: sends,
            _receives: receives.map(|(object, _)| object),
            _doorbell: of_gpus,
            _page: page,
            _pages: pages,
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

    pub(super) fn reached(&self, device: &Device) -> Remote {
        device.reached(self.export.qpn, self.psn)
    }

    pub(super) fn check_unconnected(&self) -> Result<(), Error> {
        match *self.is_connected.lock() {
            true => Err(Error::Connected(self.export.qpn)),
            false => Ok(()),
        }
    }

    /// Connects the queue pair, and lets threads post.
    pub(super) fn connect(
        &self,
        adapter: &Adapter,
        device: &Device,
        mine: &Remote,
        theirs: &Remote,
    ) -> Result<(), Error> {
        let mut is_connected = self.is_connected.lock();
        if *is_connected {
            return Err(Error::Connected(self.export.qpn));
        }
        let chosen = &device.chosen;
        let station = match chosen.is_ethernet {
            true => adapter.station(chosen, theirs)?,
            false => [0; 6],
        };
        let patience = match self.block.options.flags & PATIENT {
            0 => NOT_READY_RETRIES,
            _ => WITHOUT_END,
        };
        for command in [
            to_init(self.export.qpn, chosen),
            to_receive(self.export.qpn, chosen, theirs, station),
            to_send(self.export.qpn, chosen, mine.psn, patience),
        ] {
            self.pair.modify(command.bytes())?;
        }
        *is_connected = true;
        self.block.connected();
        Ok(())
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
            self.simple(Opcode::ToError)?;
            self.flush_receives(counters)?;
            self.simple(Opcode::ToReset)?;
            *is_connected = false;
        }
        let ready = counters.u64(RECEIVES_READY).load(Ordering::Acquire);
        self.first.store(next_round(ready), Ordering::Release);
        self.block.memory.u64(RECORD).store(0, Ordering::Release);
        let options = &self.block.options;
        if !options.is_plain() {
            freshen_at(&self.block.memory, PAGE);
            return Ok(None);
        }
        let mut next = counters.u64(CONSUMED).load(Ordering::Acquire);
        let end = next + (1 << options.log_blocks);
        let at = options.completions_at();
        while next < end && is_written(&self.block.memory, at, options.log_blocks, next) {
            next += 1;
        }
        Ok(Some(next))
    }

    fn simple(&self, opcode: Opcode) -> Result<(), Error> {
        let command = Command::new(opcode, COMMAND_BYTES).with(NUMBER, self.export.qpn);
        Ok(self.pair.modify(command.bytes())?)
    }

    /// Waits until all receives are flushed, and as many more as end a round of completions.
    fn flush_receives(&self, counters: &Mapped) -> Result<(), Error> {
        let (memory, options) = (&self.block.memory, &self.block.options);
        let ready = counters.u64(RECEIVES_READY).load(Ordering::Acquire);
        if options.log_receives == 0 || ready == self.first.load(Ordering::Acquire) {
            return Ok(());
        }
        let (log, count) = (options.log_receives, options.receives() as u64);
        let deadline = Instant::now() + RESET;
        let flushed = |number: u64| {
            let at = options.receive_completions_at();
            while !is_written(memory, at, log, number) {
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

/// Makes completions such that nobody takes them.
fn freshen(block: &Block) {
    let options = &block.options;
    let (at, count) = match options.is_plain() {
        true => (options.completions_at(), 1 << options.log_blocks),
        false => (PAGE, 1 << LOG_PAGE),
    };
    let received = options.receive_completions_at();
    let of_sends = (0..count).map(|number| at + number * CQE_BYTES);
    let of_receives = (0..options.receives()).map(|number| received + number * CQE_BYTES);
    for at in of_sends.chain(of_receives) {
        freshen_at(&block.memory, at);
    }
}

fn freshen_at(memory: &Mapped, at: usize) {
    let fresh = u64::from_be_bytes([0, 0, 0, 0, 0, 0, 0, FRESH]).to_be();
    memory.u64(at + 56).store(fresh, Ordering::Release);
}

/// Returns true if completion `number` of a ring is there.
fn is_written(memory: &Mapped, at: usize, log: u32, number: u64) -> bool {
    let slot = at + (number & ((1 << log) - 1)) as usize * CQE_BYTES;
    let last = memory.u64(slot + 56).load(Ordering::Acquire);
    let own = last.to_ne_bytes()[7];
    own >> 4 != OPCODE_NONE && u64::from(own & 1) == number >> log & 1
}

/// Returns the first receive of the next generation of a queue, as its reset has it.
fn next_round(ready: u64) -> u64 {
    (ready + 1).next_multiple_of(crate::block::ROUND)
}

fn completions(
    adapter: &Adapter,
    (pages, page): (&Pages, &Page),
    at: usize,
    log: u32,
    is_collapsed: bool,
) -> Result<Command, Error> {
    // An entry's room comes from its completion: nothing is overrun, and nobody writes a record.
    Ok(Command::new(Opcode::CreateCompletions, cq::BYTES)
        .with(cq::COLLAPSED, is_collapsed)
        .with(cq::OVERRUN_IGNORED, true)
        .with(cq::LOG_SIZE, log)
        .with(cq::PAGE, page.number())
        .with(cq::EVENTS, adapter.events()?)
        .with(cq::RECORD_IS_PAGES, true)
        .with(cq::RECORD_PAGES, pages.number())
        .with(cq::RECORD_OFFSET, COMPLETIONS_RECORD as u64)
        .with(cq::PAGES, pages.number())
        .with(cq::IS_PAGES, true)
        .with(cq::OFFSET, at as u64))
}

fn pair(
    adapter: &Adapter,
    (pages, page): (&Pages, &Page),
    options: &Options,
    [sends, receives]: [u32; 2],
) -> Command {
    let command = Command::new(Opcode::CreatePair, qp::BYTES)
        .with(qp::PATH_STATE, MIGRATED)
        .with(qp::DOMAIN, adapter.domain())
        .with(qp::LOG_BLOCKS, options.log_blocks)
        .with(qp::PAGE, page.number())
        .with(qp::SEND_COMPLETIONS, sends)
        .with(qp::RECEIVE_COMPLETIONS, receives)
        .with(qp::RECORD_IS_PAGES, true)
        .with(qp::RECORD_PAGES, pages.number())
        .with(qp::RECORD_OFFSET, RECORD as u64)
        .with(qp::PAGES, pages.number())
        .with(qp::IS_PAGES, true)
        .with(qp::OFFSET, options.receives_at() as u64);
    match options.log_receives {
        0 => command.with(qp::RECEIVES_KIND, NO_RECEIVES),
        log => command.with(qp::LOG_RECEIVES, log),
    }
}

fn to_init(qpn: u32, chosen: &Chosen) -> Command {
    Command::new(Opcode::ToInit, qp::BYTES)
        .with(NUMBER, qpn)
        .with(qp::PATH_STATE, MIGRATED)
        .with(qp::PARTITION, chosen.pkey_index)
        .with(qp::PORT, chosen.port)
        .with(qp::TAKEN, TAKES_ALL)
        .with(qp::ATOMICS, ATOMICS)
}

fn to_receive(qpn: u32, chosen: &Chosen, theirs: &Remote, station: [u8; 6]) -> Command {
    let [high, low] = [&theirs.gid[..8], &theirs.gid[8..]].map(|half| {
        half.iter()
            .fold(0, |word, byte| word << 8 | u64::from(*byte))
    });
    let station = station
        .iter()
        .fold(0, |all, byte| all << 8 | u64::from(*byte));
    let is_global = chosen.is_ethernet || theirs.gid[..8] != chosen.gid[..8];
    Command::new(Opcode::InitToReceive, qp::BYTES)
        .with(NUMBER, qpn)
        .with(qp::PATH_STATE, MIGRATED)
        .with(qp::MTU, mtu_code(chosen.mtu.min(theirs.mtu)))
        .with(qp::LOG_MESSAGE_MAX, LOG_MESSAGE_MAX)
        .with(qp::REMOTE, theirs.number)
        .with(qp::RECEIVE_NUMBER, theirs.psn)
        .with(qp::NOT_READY_TIMER, NOT_READY_TIMER)
        .with(qp::LOG_READS_TAKEN, LOG_READS)
        .with(qp::TAKEN, TAKES_ALL)
        .with(qp::ATOMICS, ATOMICS)
        .with(qp::PORT, chosen.port)
        .with(qp::PARTITION, chosen.pkey_index)
        .with(qp::IS_GLOBAL, is_global)
        .with(qp::LID, if chosen.is_ethernet { 0 } else { theirs.lid })
        .with(qp::GID_INDEX, chosen.gid_index)
        .with(qp::HOP_LIMIT, HOP_LIMIT)
        .with(qp::TRAFFIC_CLASS, chosen.traffic_class)
        .with(qp::DIFFERENTIATED, chosen.traffic_class >> 2)
        .with(qp::UDP_PORT, if chosen.is_ethernet { UDP_PORT } else { 0 })
        .with(qp::GID[0], high)
        .with(qp::GID[1], low)
        .with(qp::STATION, station)
}

fn to_send(qpn: u32, chosen: &Chosen, psn: u32, not_ready_retries: u32) -> Command {
    Command::new(Opcode::ReceiveToSend, qp::BYTES)
        .with(NUMBER, qpn)
        .with(qp::PATH_STATE, MIGRATED)
        .with(qp::SEND_NUMBER, psn)
        .with(qp::TIMEOUT, chosen.ack_timeout.code())
        .with(qp::RETRIES, RETRIES)
        .with(qp::NOT_READY_RETRIES, not_ready_retries)
        .with(qp::LOG_READS, LOG_READS)
}
