//! A discrete-event simulation of reads and writes between GPUs and their host, to the packet.
//!
//! ```text
//!  GPU ─ link ─► box proxy ─ 2 ports ─► host proxy ─ link ─► memory   a read asks, a write carries
//!  GPU ◄─ link ─ box proxy ◄─ 2 ports ─ host proxy ◄─ link ─ memory   completions carry
//! ```
//!
//! Latencies are Table 6's. A transaction waits for a link or port that is busy, for a place in a
//! proxy, for a tag (reads) or a credit (writes). Time is in picoseconds; no result depends on the
//! machine.

mod part;
pub mod setup;

use std::{cmp::Reverse, collections::BinaryHeap, mem};

pub use setup::{NS, Pcie, Proxies, Setup, Work};

use part::{Held, Link, Network};

/// Header of a read or write of 64-bit addresses, and of others.
const REQUEST_BYTES: u64 = 16;
const COMPLETION_BYTES: u64 = 12;
/// Writes that a sender has at most before the next proxy has taken them.
const CREDITS: u64 = 64;
/// Numbers that fit into an event.
const TAGS_MAX: u32 = 1 << 10;
const GPUS_MAX: u32 = 1 << 10;
/// Reads whose times are noted.
const NOTED_MAX: usize = 64;

/// A read's tag, and the times of its request and of its last completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted {
    pub tag: u32,
    pub asked_ps: u64,
    pub answered_ps: u64,
}

/// Result of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Time at which the last GPU was done.
    pub ended_ps: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
    /// Transactions, completions included.
    pub transactions: u64,
    pub packets: u64,
    pub lost_packets: u64,
    /// Time that transactions waited for places in proxies, all together.
    pub held_up_ps: u64,
    /// Times at which each GPU was done.
    pub gpus_ended_ps: Vec<u64>,
    /// The first reads.
    pub noted: Vec<Noted>,
}

impl Report {
    pub fn read_bytes_per_s(&self) -> f64 {
        self.read_bytes as f64 * 1e12 / self.ended_ps.max(1) as f64
    }

    pub fn written_bytes_per_s(&self) -> f64 {
        self.written_bytes as f64 * 1e12 / self.ended_ps.max(1) as f64
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A GPU, or the processor for it, sends what it can.
    Source,
    /// Arrived at the proxy next to the sender.
    NearProxy,
    FarProxy,
    /// Arrived at its end.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Read,
    Completion { is_last: bool },
    Write,
    HostWrite,
    PeerWrite { peer: u16 },
}

/// A transaction at a place, ordered by time, then by age. Small, for a heap moves it often.
#[derive(Debug, Clone, Copy)]
struct Event {
    at_ps: u64,
    number: u64,
    bytes: u32,
    /// Number of the chain whose work it is of.
    chain: u32,
    kind: Type,
    tag: u16,
    place: Place,
}

const _: () = assert!(size_of::<Event>() == 32);

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (self.at_ps, self.number).cmp(&(other.at_ps, other.number))
    }
}

#[derive(Debug, Default)]
struct Gpu {
    up: Link,
    down: Link,
    free_tags: Vec<u16>,
    asked_ps: Vec<u64>,
    /// Chains that wait for a tag, the first before others.
    waiters: Vec<u32>,
}

/// Works of a GPU, done one after the other from a time on. Those of one GPU that run at the same
/// time share its link and its tags.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chain<'a> {
    pub gpu: u32,
    pub from_ps: u64,
    pub works: &'a [Work],
}

/// State of a chain.
#[derive(Debug, Default)]
struct Going {
    gpu: u16,
    next_work: usize,
    /// Bytes of its work that are not sent yet, and not yet arrived.
    unsent: u64,
    unfinished: u64,
    writes_out: u64,
    is_waiting: bool,
    /// The chain is among those that wait for a tag of its GPU.
    wants_tag: bool,
    /// Times at which its works were done.
    ended_ps: Vec<u64>,
}

#[derive(Debug)]
struct Pair {
    box_held: Held,
    host_held: Held,
    to_host: Network,
    to_box: Network,
    host_up: Link,
    host_down: Link,
}

struct Machine<'a> {
    setup: &'a Setup,
    chains: &'a [Chain<'a>],
    going: Vec<Going>,
    gpus: Vec<Gpu>,
    pairs: Vec<Pair>,
    queue: BinaryHeap<Reverse<Event>>,
    number: u64,
    report: Report,
}

/// Runs each GPU's works, one list for each GPU; GPUs beyond the lists do nothing.
pub fn run(setup: &Setup, programs: &[Vec<Work>]) -> Report {
    let chain = |(gpu, works)| Chain {
        gpu,
        from_ps: 0,
        works,
    };
    let programs = programs.iter().map(Vec::as_slice);
    let chains: Vec<_> = (0..setup.gpus.clamp(1, GPUS_MAX))
        .zip(programs)
        .map(chain)
        .collect();
    play(setup, &chains).0
}

/// Runs chains of works. Returns the times at which the works of each were done, too. A chain of a
/// GPU that is not there is that of the last one.
pub fn play(setup: &Setup, chains: &[Chain<'_>]) -> (Report, Vec<Vec<u64>>) {
    let mut machine = Machine::new(setup, chains);
    for (number, chain) in (0..).zip(chains) {
        machine.next_work(number, chain.from_ps);
    }
    while let Some(Reverse(event)) = machine.queue.pop() {
        machine.handle(event);
    }
    let ended_ps = machine.going.into_iter().map(|going| going.ended_ps);
    let ended_ps = ended_ps.collect();
    let mut report = machine.report;
    for pair in &machine.pairs {
        report.packets += pair.to_host.packets + pair.to_box.packets;
        report.lost_packets += pair.to_host.lost + pair.to_box.lost;
        report.held_up_ps += pair.box_held.waited_ps + pair.host_held.waited_ps;
    }
    (report, ended_ps)
}

/// Round trip of a read of `bytes`, with nothing else under way.
pub fn read_latency_ps(setup: &Setup, bytes: u64) -> u64 {
    run(setup, &[vec![Work::Read { bytes }]]).ended_ps
}

impl<'a> Machine<'a> {
    fn new(setup: &'a Setup, chains: &'a [Chain<'a>]) -> Machine<'a> {
        let tags = setup.pcie.tags.clamp(1, TAGS_MAX) as u16;
        let gpu = || Gpu {
            free_tags: (0..tags).rev().collect(),
            asked_ps: vec![0; usize::from(tags)],
            ..Gpu::default()
        };
        let pair = |proxies: &Proxies, number: u64| Pair {
            box_held: Held::new(proxies.held_max),
            host_held: Held::new(proxies.held_max),
            to_host: Network::new(proxies, setup.seed ^ number << 32),
            to_box: Network::new(proxies, !setup.seed ^ number << 32),
            host_up: Link::default(),
            host_down: Link::default(),
        };
        let pairs = setup.proxies.map_or(Vec::new(), |proxies| {
            let numbers = 0..u64::from(proxies.pairs.max(1));
            numbers.map(|number| pair(&proxies, number)).collect()
        });
        let gpus = setup.gpus.clamp(1, GPUS_MAX) as usize;
        let going = |chain: &Chain<'_>| Going {
            gpu: (chain.gpu as usize).min(gpus - 1) as u16,
            ..Going::default()
        };
        Machine {
            setup,
            chains,
            going: chains.iter().map(going).collect(),
            gpus: (0..gpus).map(|_| gpu()).collect(),
            pairs,
            queue: BinaryHeap::new(),
            number: 0,
            report: Report {
                gpus_ended_ps: vec![0; gpus],
                ..Report::default()
            },
        }
    }

    fn push(&mut self, at_ps: u64, place: Place, from: Event) {
        self.number += 1;
        let number = self.number;
        self.queue.push(Reverse(Event {
            at_ps,
            number,
            place,
            ..from
        }));
    }

    /// Begins a chain's next work.
    fn next_work(&mut self, chain: u32, at_ps: u64) {
        let state = &mut self.going[chain as usize];
        if state.next_work > 0 {
            state.ended_ps.push(at_ps);
        }
        let Some(work) = self.chains[chain as usize].works.get(state.next_work) else {
            let ended_ps = &mut self.report.gpus_ended_ps[usize::from(state.gpu)];
            *ended_ps = at_ps.max(*ended_ps);
            self.report.ended_ps = self.report.ended_ps.max(at_ps);
            return;
        };
        state.next_work += 1;
        let (bytes, at_ps) = match *work {
            Work::Compute { ps } => (0, at_ps + ps),
            Work::Read { bytes } | Work::Write { bytes } => (bytes, at_ps),
            Work::HostWrite { bytes, .. } | Work::PeerWrite { bytes, .. } => (bytes, at_ps),
        };
        (state.unsent, state.unfinished) = (bytes, bytes);
        self.wake(chain, at_ps);
    }

    fn wake(&mut self, chain: u32, at_ps: u64) {
        if !self.going[chain as usize].is_waiting {
            self.going[chain as usize].is_waiting = true;
            let (kind, bytes, tag) = (Type::Read, 0, 0);
            let (number, place) = (0, Place::Source);
            self.push(
                at_ps,
                place,
                Event {
                    at_ps,
                    number,
                    place,
                    chain,
                    kind,
                    bytes,
                    tag,
                },
            );
        }
    }

    fn handle(&mut self, event: Event) {
        match (event.place, event.kind) {
            (Place::Source, _) => self.send(event.chain, event.at_ps),
            (Place::NearProxy, _) => self.near(event),
            (Place::FarProxy, _) => self.far(event),
            (Place::End, Type::Read) => self.answer(event),
            (Place::End, Type::Completion { is_last }) => self.answered(event, is_last),
            (Place::End, _) => self.written(event),
        }
    }

    /// Sends the next transaction of a chain's work, if a tag or credit is free.
    fn send(&mut self, chain: u32, at_ps: u64) {
        let pcie = self.setup.pcie;
        let state = &mut self.going[chain as usize];
        state.is_waiting = false;
        if state.unfinished == 0 {
            return self.next_work(chain, at_ps);
        }
        let gpu = state.gpu;
        if state.unsent == 0 {
            return;
        }
        let work = self.chains[chain as usize].works[state.next_work - 1];
        let Some((kind, most)) = transactions_of(work, &pcie) else {
            return;
        };
        let bytes = state.unsent.min(u64::from(most.max(1)));
        let (mut tag, is_read) = (0, kind == Type::Read);
        if is_read {
            // A completion wakes those that wait.
            let of = &mut self.gpus[usize::from(gpu)];
            let Some(free) = of.free_tags.pop() else {
                if !mem::replace(&mut state.wants_tag, true) {
                    of.waiters.push(chain);
                }
                return;
            };
            tag = free;
            of.asked_ps[tag as usize] = at_ps;
        } else if state.writes_out >= CREDITS {
            return;
        } else {
            state.writes_out += 1;
        }
        state.unsent -= bytes;
        let busy_ps = pcie.busy_ps(REQUEST_BYTES, if is_read { 0 } else { bytes });
        let pair = self.pair_of(gpu);
        let link = match kind {
            Type::HostWrite if self.setup.proxies.is_some() => &mut self.pairs[pair].host_down,
            Type::HostWrite => &mut self.gpus[usize::from(gpu)].down,
            _ => &mut self.gpus[usize::from(gpu)].up,
        };
        let begins_ps = link.begin(at_ps, busy_ps);
        let free_ps = link.free_ps();
        self.report.transactions += 1;
        let place = Place::NearProxy;
        let event = Event {
            at_ps,
            number: 0,
            place,
            chain,
            kind,
            bytes: bytes as u32,
            tag,
        };
        let (place, hop_ps) = match self.setup.proxies {
            Some(_) => (Place::NearProxy, pcie.rtt_ps / 4),
            None => (Place::End, pcie.rtt_ps / 2),
        };
        self.push(begins_ps + hop_ps, place, event);
        self.wake(chain, free_ps);
    }

    fn gpu_of(&self, event: Event) -> u16 {
        self.going[event.chain as usize].gpu
    }

    fn pair_of(&self, gpu: u16) -> usize {
        usize::from(gpu) % self.pairs.len().max(1)
    }

    /// Converts a transaction to packets at the first proxy, and sends them.
    fn near(&mut self, event: Event) {
        let Some(proxies) = self.setup.proxies else {
            return;
        };
        let pair = self.pair_of(self.gpu_of(event));
        let pair = &mut self.pairs[pair];
        let (header, data) = sizes(&event);
        let cipher_ps =
            proxies.cipher_ps + (proxies.cipher_ps_per_byte * (header + data) as f64) as u64;
        let takes_ps = proxies.conversion_ps + cipher_ps;
        let is_up = is_up(event.kind);
        let (held, network) = match is_up {
            true => (&mut pair.box_held, &mut pair.to_host),
            false => (&mut pair.host_held, &mut pair.to_box),
        };
        let begins_ps = held.admit(event.at_ps, takes_ps);
        let arrived_ps = network.cross(&proxies, begins_ps + takes_ps, header, data);
        self.push(arrived_ps, Place::FarProxy, event);
        if matches!(
            event.kind,
            Type::Write | Type::HostWrite | Type::PeerWrite { .. }
        ) {
            self.going[event.chain as usize].writes_out -= 1;
            self.wake(event.chain, begins_ps);
        }
    }

    /// Makes a transaction of packets again, and sends it over the last link.
    fn far(&mut self, event: Event) {
        let Some(proxies) = self.setup.proxies else {
            return;
        };
        let (header, data) = sizes(&event);
        let cipher_ps =
            proxies.cipher_ps + (proxies.cipher_ps_per_byte * (header + data) as f64) as u64;
        let takes_ps = proxies.conversion_ps + cipher_ps;
        let busy_ps = self.setup.pcie.busy_ps(header, data);
        let gpu = self.gpu_of(event);
        let number = match event.kind {
            Type::PeerWrite { peer } => self.pair_of(peer),
            _ => self.pair_of(gpu),
        };
        let pair = &mut self.pairs[number];
        let (held, link) = match event.kind {
            Type::Read | Type::Write => (&mut pair.host_held, &mut pair.host_up),
            Type::Completion { .. } | Type::HostWrite => {
                (&mut pair.box_held, &mut self.gpus[usize::from(gpu)].down)
            }
            Type::PeerWrite { peer } => (&mut pair.box_held, &mut self.gpus[peer as usize].down),
        };
        let converted_ps = held.admit(event.at_ps, takes_ps) + takes_ps;
        let begins_ps = link.begin(converted_ps, busy_ps);
        self.push(begins_ps + self.setup.pcie.rtt_ps / 4, Place::End, event);
    }

    /// Splits a read's answer at completion boundaries, as the root complex does.
    fn answer(&mut self, event: Event) {
        let pcie = self.setup.pcie;
        let most =
            (pcie.mps_bytes / pcie.rcb_bytes.max(1) * pcie.rcb_bytes).max(pcie.rcb_bytes.max(1));
        let mut left = event.bytes;
        while left > 0 {
            let bytes = left.min(most);
            left -= bytes;
            let busy_ps = pcie.busy_ps(COMPLETION_BYTES, u64::from(bytes));
            let gpu = self.gpu_of(event);
            let pair = self.pair_of(gpu);
            let (link, place, hop_ps) = match self.setup.proxies {
                Some(_) => (
                    &mut self.pairs[pair].host_down,
                    Place::NearProxy,
                    pcie.rtt_ps / 4,
                ),
                None => (
                    &mut self.gpus[usize::from(gpu)].down,
                    Place::End,
                    pcie.rtt_ps / 2,
                ),
            };
            let begins_ps = link.begin(event.at_ps, busy_ps);
            self.report.transactions += 1;
            let kind = Type::Completion { is_last: left == 0 };
            self.push(
                begins_ps + hop_ps,
                place,
                Event {
                    kind,
                    bytes,
                    ..event
                },
            );
        }
    }

    fn answered(&mut self, event: Event, is_last: bool) {
        let state = &mut self.going[event.chain as usize];
        let of = &mut self.gpus[usize::from(state.gpu)];
        self.report.read_bytes += u64::from(event.bytes);
        state.unfinished -= u64::from(event.bytes);
        let mut waiters = Vec::new();
        if is_last {
            of.free_tags.push(event.tag);
            waiters = mem::take(&mut of.waiters);
            if self.report.noted.len() < NOTED_MAX {
                self.report.noted.push(Noted {
                    tag: u32::from(event.tag),
                    asked_ps: of.asked_ps[event.tag as usize],
                    answered_ps: event.at_ps,
                });
            }
        }
        for waiter in waiters {
            self.going[waiter as usize].wants_tag = false;
            self.wake(waiter, event.at_ps);
        }
        self.wake(event.chain, event.at_ps);
    }

    fn written(&mut self, event: Event) {
        let state = &mut self.going[event.chain as usize];
        self.report.written_bytes += u64::from(event.bytes);
        state.unfinished -= u64::from(event.bytes);
        if self.setup.proxies.is_none() {
            state.writes_out -= 1;
        }
        self.wake(event.chain, event.at_ps);
    }
}

/// Returns the type of a work's transactions, and the most bytes of one.
fn transactions_of(work: Work, pcie: &Pcie) -> Option<(Type, u32)> {
    match work {
        Work::Read { .. } => Some((Type::Read, pcie.mrrs_bytes)),
        Work::Write { .. } => Some((Type::Write, pcie.mps_bytes)),
        Work::HostWrite { unit_bytes, .. } => {
            Some((Type::HostWrite, unit_bytes.min(pcie.mps_bytes)))
        }
        Work::PeerWrite { peer, .. } => {
            let peer = peer.min(GPUS_MAX - 1) as u16;
            Some((Type::PeerWrite { peer }, pcie.mps_bytes))
        }
        Work::Compute { .. } => None,
    }
}

fn is_up(kind: Type) -> bool {
    matches!(kind, Type::Read | Type::Write | Type::PeerWrite { .. })
}

fn sizes(event: &Event) -> (u64, u64) {
    match event.kind {
        Type::Read => (REQUEST_BYTES, 0),
        Type::Completion { .. } => (COMPLETION_BYTES, u64::from(event.bytes)),
        _ => (REQUEST_BYTES, u64::from(event.bytes)),
    }
}
