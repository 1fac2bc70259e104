//! Queue pairs that are made and changed by commands to the adapter's firmware (DEVX).

use std::sync::Arc;

use outboard_verbs::{Chosen, HOP_LIMIT, Mlx5 as Adapter, Object, Page, Pages, Remote, mtu_code};

use crate::{
    block::Options,
    command::{Command, NUMBER, Opcode, cq, qp},
    device::Device,
    error::Error,
    memory::Mapped,
};

use super::pair::{COMPLETIONS_RECORD, LOG_READS, NotReady, Pair, RETRIES, Ring, Rings};

const MIGRATED: u32 = 3;
const NO_RECEIVES: u32 = 3;
const LOG_MESSAGE_MAX: u32 = 30;
/// Remote reads, writes and atomics, these as InfiniBand has them.
const TAKES_ALL: u32 = 7;
const ATOMICS: u32 = 1;
const UDP_PORT: u32 = 0xc000;
const COMMAND_BYTES: usize = 16;
const ANSWER_BYTES: usize = 16;

/// Memory of a queue pair, as commands name it.
struct Memory {
    pages: Pages,
    /// Pages with its records, if they are others.
    others: Option<Pages>,
    /// Offset of the records in their pages.
    records_at: usize,
}

impl Memory {
    fn records(&self) -> u32 {
        self.others.as_ref().unwrap_or(&self.pages).number()
    }
}

/// A queue pair and what it uses, dropped in their order here: an adapter refuses to destroy what
/// another uses.
pub(super) struct Commanded {
    pair: Object,
    _sends: Object,
    _receives: Option<Object>,
    page: Page,
    _memory: Memory,
    number: u32,
    adapter: Arc<Adapter>,
}

impl Commanded {
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
    ) -> Result<Commanded, Error> {
        // SAFETY: the caller keeps the memory mapped; others change it by atomics alone.
        let pages = |address, bytes| unsafe { adapter.pages(address, bytes) };
        let records = &rings.records;
        let records_at = memory.offset_of(records.address(), records.len() as u64);
        let memory = Memory {
            pages: pages(memory.address(), options.bytes())?,
            others: match records_at {
                Some(_) => None,
                None => Some(pages(records.address(), records.len())?),
            },
            records_at: records_at.unwrap_or(0),
        };
        let page = adapter.page()?;
        let completions = |ring: &Ring| {
            let command = completions(adapter, (&memory, &page), ring)?;
            let (object, answer) = adapter.create::<ANSWER_BYTES>(command.bytes())?;
            Ok::<_, Error>((object, NUMBER.of(&answer) as u32))
        };
        let (sends, sends_number) = completions(&rings.sends)?;
        let receives = rings.receives.as_ref().map(completions).transpose()?;
        let receives_number = receives
            .as_ref()
            .map_or(sends_number, |(_, number)| *number);
        let numbers = [sends_number, receives_number];
        let command = pair(adapter, (&memory, &page), options, numbers);
        let (pair, answer) = adapter.create::<ANSWER_BYTES>(command.bytes())?;
        Ok(Commanded {
            pair,
            _sends: sends,
            _receives: receives.map(|(object, _)| object),
            page,
            _memory: memory,
            number: NUMBER.of(&answer) as u32,
            adapter: adapter.clone(),
        })
    }

    fn simple(&self, opcode: Opcode) -> Result<(), Error> {
        let command = Command::new(opcode, COMMAND_BYTES).with(NUMBER, self.number);
        Ok(self.pair.modify(command.bytes())?)
    }
}

impl Pair for Commanded {
    fn number(&self) -> u32 {
        self.number
    }

    fn doorbell(&self) -> u64 {
        self.page.doorbell()
    }

    fn connect(
        &self,
        device: &Device,
        mine: &Remote,
        theirs: &Remote,
        not_ready: NotReady,
    ) -> Result<(), Error> {
        let chosen = &device.chosen;
        let station = match chosen.is_ethernet {
            true => self.adapter.station(chosen, theirs)?,
            false => [0; 6],
        };
        for command in [
            to_init(self.number, chosen),
            to_receive(self.number, chosen, theirs, (station, not_ready.timer)),
            to_send(self.number, chosen, mine.psn, not_ready.retries),
        ] {
            self.pair.modify(command.bytes())?;
        }
        Ok(())
    }

    fn fail(&self) -> Result<(), Error> {
        self.simple(Opcode::ToError)
    }

    fn reset(&self) -> Result<(), Error> {
        self.simple(Opcode::ToReset)
    }
}

fn completions(
    adapter: &Adapter,
    (memory, page): (&Memory, &Page),
    ring: &Ring,
) -> Result<Command, Error> {
    // An entry's room comes from its completion: nothing is overrun, and nobody writes a record.
    Ok(Command::new(Opcode::CreateCompletions, cq::BYTES)
        .with(cq::COLLAPSED, ring.is_collapsed)
        .with(cq::OVERRUN_IGNORED, true)
        .with(cq::LOG_SIZE, ring.log)
        .with(cq::PAGE, page.number())
        .with(cq::EVENTS, adapter.events()?)
        .with(cq::RECORD_IS_PAGES, true)
        .with(cq::RECORD_PAGES, memory.records())
        .with(
            cq::RECORD_OFFSET,
            (memory.records_at + COMPLETIONS_RECORD) as u64,
        )
        .with(cq::PAGES, memory.pages.number())
        .with(cq::IS_PAGES, true)
        .with(cq::OFFSET, ring.at as u64))
}

fn pair(
    adapter: &Adapter,
    (memory, page): (&Memory, &Page),
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
        .with(qp::RECORD_PAGES, memory.records())
        .with(qp::RECORD_OFFSET, memory.records_at as u64)
        .with(qp::PAGES, memory.pages.number())
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

fn to_receive(
    qpn: u32,
    chosen: &Chosen,
    theirs: &Remote,
    (station, not_ready_timer): ([u8; 6], u8),
) -> Command {
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
        .with(qp::NOT_READY_TIMER, not_ready_timer)
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

fn to_send(qpn: u32, chosen: &Chosen, psn: u32, not_ready_retries: u8) -> Command {
    Command::new(Opcode::ReceiveToSend, qp::BYTES)
        .with(NUMBER, qpn)
        .with(qp::PATH_STATE, MIGRATED)
        .with(qp::SEND_NUMBER, psn)
        .with(qp::TIMEOUT, chosen.ack_timeout.code())
        .with(qp::RETRIES, RETRIES)
        .with(qp::NOT_READY_RETRIES, not_ready_retries)
        .with(qp::LOG_READS, LOG_READS)
}
