//! The balancer without I/O: frames and the time in, frames out.
//!
//! A frame that is not understood, or belongs to no service and no connection, is never sent on:
//! it is dropped and counted by its [`Reason`].

mod arp;
mod connections;
mod dump;
mod explain;
mod fragments;
pub mod fuzz;
mod icmp;
mod mtu;
mod over;
mod packet;
mod reason;
mod rewrite;
mod services;
mod sum;
mod tcp;
#[cfg(test)]
pub(crate) mod tests;

pub use arp::announcement;
pub use connections::{Connection, Neighbour};
pub use dump::RestoreError;
pub use fragments::{FRAGMENTS_A_PACKET_MAX, FRAGMENTS_MS_MAX};
pub use mtu::{TOLD_A_SECOND_MAX, TOLD_AT_ONCE_MAX};
pub use packet::{ICMP, ICMP_V6, Packet, TCP, UDP};
pub use reason::{Drops, Reason};
pub use services::{Backend, BackendRule, Forward, ServiceKey, ServiceRule};
pub use tcp::{Phase, Side, Timeouts};

use connections::{Connections, Key, Place};
use fragments::{Fragments, Route};
use outboard_flow::random::Random;
use outboard_flow::{BATCH_MAX, FlowKey as _, NONE, OutOfMemory, Secret, V4};
use packet::{RST, SYN, Segment};
use services::Services;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use tcp::{Numbers, Step};

/// Connections looked at for their end after each batch.
const AGED_A_BATCH: usize = 256;
/// Time for which a lack of room counts as one that lasts.
const EXHAUSTED_MS: u64 = 60_000;
/// Source ports tried for a new connection.
const PORTS_TRIED_MAX: usize = 4096;
/// Source ports tried before a connection that is over gives its own up.
const PORTS_TRIED_FIRST: usize = 64;
/// Connections that are over, of which one may have a source port that is still configured.
const OVER_TRIED_MAX: usize = 16;

/// One frame, as it came and as it goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    pub bytes: Vec<u8>,
    /// Number of the port where it came in.
    pub port: u16,
    /// The transport's checksum has the pseudo-header alone so far, and whoever sends the frame
    /// fills in the rest.
    pub partial: bool,
    /// Bytes of data in each of the segments that whoever sends the frame cuts it into; 0 if it
    /// goes out as it is.
    pub segment_bytes: u16,
}

/// Place where frames come in and go out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Port {
    /// The own hardware address; without one, frames begin with the IP header.
    pub mac: Option<[u8; 6]>,
    /// Longest packet that goes out here, if there is a limit.
    pub mtu: Option<u32>,
}

/// Fate of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes out at the port with this number.
    Send(u16),
    Drop(Reason),
}

/// Sizes and secrets of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    pub connections_max: usize,
    /// Bound on connections that are not confirmed by both sides.
    pub half_open_max: usize,
    pub fragments_max: usize,
    /// Decides with the backends alone where clients go: balancers with one number agree.
    pub hash_seed: u64,
    /// Nobody else may know these.
    pub secrets: [Secret; 4],
}

/// Frames by what became of them.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Packets and bytes sent on, of clients and of backends.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    pub fragments: u64,
    pub icmp_errors: u64,
    /// Questions for hardware addresses, and echoes, that the balancer itself answered.
    pub answered: u64,
    pub opened: u64,
    pub expired: u64,
    /// Half-open connections that made room for newer ones.
    pub half_open_evicted: u64,
    /// Connections that were over, and made room for newer ones or gave them their source ports.
    pub over_evicted: u64,
    /// TCP segments that changed nothing about their connection, and were sent on.
    pub out_of_window: u64,
    pub checksums_completed: u64,
    /// Senders told that their packet is too long for the way to its destination.
    pub told_too_long: u64,
    /// Fragments made of packets that were too long.
    pub split: u64,
    pub drops: Drops,
}

/// A frame's packet, or another question that is answered here.
enum Parsed {
    Arp(IpAddr),
    Ip(Packet),
}

/// A connection that a packet opens.
struct Plan {
    connection: Connection,
    /// The connection that is over and has its source port, or its client's, towards the backend.
    gives_way: Option<u32>,
}

/// State of the key of a connection's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tuple {
    Free,
    /// The open connection that has it is over.
    Over(u32),
    Taken,
}

/// A table of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Open,
    HalfOpen,
}

/// The balancer.
pub struct Engine {
    ports: Vec<Port>,
    services: Services,
    open: Connections,
    half_open: Connections,
    /// Half-open connections, the oldest first; some are over by now.
    half_open_order: VecDeque<Place>,
    half_open_max: usize,
    fragments: Fragments,
    timeouts: Timeouts,
    /// Makes the first source port that is tried unpredictable.
    salt: u64,
    now_ms: u64,
    counts: Counts,
    /// When a packet was last dropped for want of room, by reason.
    exhausted: [(Reason, Option<u64>); 2],
    budget: mtu::Budget,
    /// Frames beside those of the last batch, and their ports.
    further: Vec<(Frame, u16)>,
}

impl Engine {
    pub fn new(options: Options, ports: Vec<Port>, now_ms: u64) -> Result<Engine, OutOfMemory> {
        let [a, b, c, d] = options.secrets;
        let half_open_max = options.half_open_max.max(1);
        let salt = V4::from_bytes([0; 13]).keyed_hash(&a);
        Ok(Engine {
            ports,
            services: Services::new(Secret::from_seed(options.hash_seed)),
            open: Connections::new(options.connections_max, [a, b], now_ms)?,
            half_open: Connections::new(half_open_max, [c, d], now_ms)?,
            half_open_order: VecDeque::new(),
            half_open_max,
            fragments: Fragments::new(options.fragments_max),
            timeouts: Timeouts::default(),
            salt,
            now_ms,
            counts: Counts::default(),
            exhausted: [(Reason::TableFull, None), (Reason::PortsExhausted, None)],
            budget: mtu::Budget::new(now_ms),
            further: Vec::new(),
        })
    }

    /// Replaces services, backends and timeouts. Connections stay where they are.
    pub fn reload(&mut self, services: &[ServiceRule], timeouts: Timeouts) {
        self.services.replace(services);
        self.timeouts = timeouts;
    }

    /// Sets the health of a service's backend: the hundredths of its weight that it gets, or `None`
    /// if it is down.
    pub fn set_health(&mut self, service: &ServiceKey, backend: SocketAddr, up: Option<u32>) {
        self.services.set_health(service, backend, up);
    }

    /// Drains all backends with an address, or ends that. Returns the number of them.
    pub fn drain(&mut self, backend: SocketAddr, drain: bool) -> usize {
        self.services.drain(backend, drain)
    }

    /// Sets the next hop of the backends with an address.
    pub fn set_neighbour(&mut self, backend: IpAddr, link: Neighbour) {
        self.services.set_neighbour(backend, link);
    }

    /// Replaces the places where frames come in and go out.
    pub fn set_ports(&mut self, ports: Vec<Port>) {
        self.ports = ports;
    }

    /// Sets the longest packet that goes out at a port.
    pub fn set_mtu(&mut self, port: usize, mtu: Option<u32>) {
        if let Some(port) = self.ports.get_mut(port) {
            port.mtu = mtu;
        }
    }

    /// Takes the frames that are to be sent beside those of the last batch, with their ports: later
    /// fragments of packets that were too long. What is not taken is lost with the next batch.
    pub fn take_further(&mut self) -> impl Iterator<Item = (Frame, u16)> + '_ {
        self.further.drain(..)
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Reasons of the last minute for which clients are not served that more room would serve.
    pub fn exhausted(&self) -> impl Iterator<Item = Reason> + '_ {
        let lasts = |at: u64| self.now_ms.saturating_sub(at) < EXHAUSTED_MS;
        let exhausted = self
            .exhausted
            .iter()
            .filter(move |(_, at)| at.is_some_and(lasts));
        exhausted.map(|(reason, _)| *reason)
    }

    /// Numbers of open and of half-open connections, and of packets of which fragments are due.
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.open.len(), self.half_open.len(), self.fragments.len())
    }

    /// Services with the number of connections that they ever opened.
    pub fn services(&self) -> impl Iterator<Item = (u32, &ServiceRule, u64)> {
        self.services
            .services()
            .map(|(id, one)| (id, &one.rule, one.opened))
    }

    pub fn backends(&self) -> impl Iterator<Item = &Backend> {
        self.services.backends()
    }

    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.open.iter().chain(self.half_open.iter())
    }

    /// Addresses of services and sources.
    pub fn own_addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.services.own()
    }

    /// Addresses and protocols of the backends that answer to clients' addresses.
    pub fn answering(&self) -> impl Iterator<Item = (SocketAddr, u8)> + '_ {
        self.services.answering()
    }

    pub fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Handles frames and says for each where it goes.
    pub fn process(&mut self, frames: &mut [Frame], verdicts: &mut Vec<Verdict>, now_ms: u64) {
        verdicts.clear();
        self.further.clear();
        // A clock that goes backwards stands still.
        self.now_ms = self.now_ms.max(now_ms);
        for frames in frames.chunks_mut(BATCH_MAX) {
            self.age(AGED_A_BATCH);
            self.process_batch(frames, verdicts);
        }
    }

    /// Counts a frame that was to be sent and could not be.
    pub fn note_unsent(&mut self) {
        self.counts.drops.add(Reason::Unsent);
    }

    /// Ends connections that are over: for times without frames.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.age(AGED_A_BATCH * 64);
    }

    fn age(&mut self, budget: usize) {
        let (services, counts) = (&mut self.services, &mut self.counts);
        self.open
            .age(self.now_ms, budget, &self.timeouts, |connection| {
                services.closed(&connection);
                counts.expired += 1;
            });
        self.half_open
            .age(self.now_ms, budget, &self.timeouts, |_| counts.expired += 1);
    }

    /// Parses all frames, looks up those of IPv4 together, and handles one after the other.
    fn process_batch(&mut self, frames: &mut [Frame], verdicts: &mut Vec<Verdict>) {
        let parsed: Vec<_> = frames.iter().map(|frame| self.parse(frame)).collect();
        let mut keys = [V4::from_bytes([0; 13]); BATCH_MAX];
        let mut numbers = [NONE; BATCH_MAX];
        for (key, parsed) in keys.iter_mut().zip(&parsed) {
            if let Ok(Parsed::Ip(packet)) = parsed
                && let Some(Key::V4(of_packet)) = Key::of(packet)
            {
                *key = of_packet;
            }
        }
        self.open
            .find_batch(&keys[..frames.len().min(BATCH_MAX)], &mut numbers);
        for ((frame, parsed), number) in frames.iter_mut().zip(parsed).zip(numbers) {
            let sent = parsed.and_then(|parsed| match parsed {
                Parsed::Arp(address) => self.answer_arp(frame, address),
                Parsed::Ip(packet) => self.handle(frame, &packet, number),
            });
            verdicts.push(match sent {
                Ok(port) => Verdict::Send(port),
                Err(reason) => {
                    self.note_dropped(reason);
                    Verdict::Drop(reason)
                }
            });
        }
    }

    fn note_dropped(&mut self, reason: Reason) {
        self.counts.drops.add(reason);
        let mut exhausted = self.exhausted.iter_mut();
        if let Some((_, at)) = exhausted.find(|(one, _)| *one == reason) {
            *at = Some(self.now_ms);
        }
    }

    fn port(&self, number: u16) -> Port {
        self.ports
            .get(usize::from(number))
            .copied()
            .unwrap_or_default()
    }

    fn parse(&self, frame: &Frame) -> Result<Parsed, Reason> {
        let bytes = &frame.bytes;
        let Some(mac) = self.port(frame.port).mac else {
            return Packet::parse(bytes, 0).map(Parsed::Ip);
        };
        let header = bytes.get(..arp::ETHERNET_BYTES).ok_or(Reason::Cut)?;
        let is_to_group = header[0] & 1 == 1;
        if !is_to_group && header[..6] != mac {
            return Err(Reason::NotOurs);
        }
        match [header[12], header[13]] {
            [8, 6] => arp::asked(bytes).map(Parsed::Arp).ok_or(Reason::NotOurs),
            [8, 0] if !is_to_group && bytes.get(14).is_some_and(|first| first >> 4 == 4) => {
                Packet::parse(bytes, 14).map(Parsed::Ip)
            }
            [0x86, 0xdd] if bytes.get(14).is_some_and(|first| first >> 4 == 6) => {
                let packet = Packet::parse(bytes, 14)?;
                // Questions for addresses go to groups; all else does not.
                if is_to_group && packet.protocol != ICMP_V6 {
                    return Err(Reason::NotOurs);
                }
                Ok(Parsed::Ip(packet))
            }
            _ => Err(Reason::NotOurs),
        }
    }

    fn answer_arp(&mut self, frame: &mut Frame, address: IpAddr) -> Result<u16, Reason> {
        let mac = self.port(frame.port).mac.ok_or(Reason::NotOurs)?;
        if !self.services.is_own(address) {
            return Err(Reason::NotOurs);
        }
        arp::answer(&mut frame.bytes, address, mac);
        Ok(self.answer(frame))
    }

    fn answer(&mut self, frame: &mut Frame) -> u16 {
        self.counts.answered += 1;
        self.turn_around(frame)
    }

    /// Sends a frame back to where it came from.
    fn turn_around(&self, frame: &mut Frame) -> u16 {
        if let Some(mac) = self.port(frame.port).mac {
            frame.bytes.copy_within(6..12, 0);
            frame.bytes[6..12].copy_from_slice(&mac);
        }
        frame.port
    }

    /// Handles a packet; `number` is what a batch found for its key.
    fn handle(&mut self, frame: &mut Frame, packet: &Packet, number: u32) -> Result<u16, Reason> {
        if let Some(fragment) = packet.fragment.filter(|_| packet.is_later_fragment()) {
            let route = self.fragments.follow(packet, &fragment, self.now_ms)?;
            self.counts.fragments += 1;
            return self.send(frame, packet, route);
        }
        if !matches!(packet.protocol, TCP | UDP) {
            return self.handle_icmp(frame, packet);
        }
        match self.find(packet, number) {
            Some((table, index, side)) => self.follow(frame, packet, (table, index, side)),
            None => self.open(frame, packet),
        }
    }

    fn find(&self, packet: &Packet, number: u32) -> Option<(Table, u32, Side)> {
        let key = Key::of(packet)?;
        // What the batch found may be over by now, and what it did not find may be there.
        let open = self
            .open
            .found(number, &key)
            .or_else(|| self.open.find(&key));
        if let Some((index, side)) = open {
            return Some((Table::Open, index, side));
        }
        let (index, side) = self.half_open.find(&key)?;
        Some((Table::HalfOpen, index, side))
    }

    fn table(&self, table: Table) -> &Connections {
        match table {
            Table::Open => &self.open,
            Table::HalfOpen => &self.half_open,
        }
    }

    fn table_mut(&mut self, table: Table) -> &mut Connections {
        match table {
            Table::Open => &mut self.open,
            Table::HalfOpen => &mut self.half_open,
        }
    }

    /// Handles a packet of a connection that is known.
    fn follow(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
        (table, index, side): (Table, u32, Side),
    ) -> Result<u16, Reason> {
        let now_ms = self.now_ms;
        let connection = self.table(table).get(index).ok_or(Reason::NoConnection)?;
        let opens_again = packet.tcp.is_some_and(|tcp| is_opening(&tcp));
        let is_over = connection.phase.is_over() && opens_again;
        if side == Side::Client && (is_over || self.moves(connection)) {
            self.remove(table, index);
            return self.open(frame, packet);
        }
        let backend = connection.backend;
        self.check_interface(frame, packet, connection, side)?;
        let route = self.route(frame, packet, connection, side)?;
        if let Some(mtu) = self.limit(frame, packet, &route) {
            let service = connection.vip.ip();
            return self.tell(frame, packet, service, mtu);
        }
        let connection = self
            .table_mut(table)
            .get_mut(index)
            .ok_or(Reason::NoConnection)?;
        let before = connection.phase;
        let Step { phase, fits } = connection.step(side, packet)?;
        if side == Side::Client && fits {
            connection.follow_link(packet, client_link(frame), now_ms);
        }
        connection.phase = phase;
        // One that has no end in sight is not ended because its numbers are not understood.
        if fits || phase == Phase::Established {
            connection.seen_ms = now_ms;
        }
        connection.packets[side as usize] += 1;
        connection.bytes[side as usize] += (packet.end - packet.ip) as u64;
        self.counts.out_of_window += u64::from(!fits);
        if side == Side::Backend && !self.services.comes_by(backend, frame.port) {
            self.services.set_answers_at(backend, frame.port);
        }
        if table == Table::Open && before.is_over() != phase.is_over() {
            self.open.note_over(index);
        }
        match table {
            // The longer time of an earlier phase must not pass first.
            Table::Open if self.timeouts.of(phase) < self.timeouts.of(before) => {
                self.open.arm(index, now_ms, self.timeouts.of(phase));
            }
            Table::HalfOpen if phase == Phase::Close => self.remove(table, index),
            Table::HalfOpen if !phase.is_half_open() && self.may_open(packet.protocol) => {
                self.promote(index)?;
            }
            _ => {}
        }
        self.count(side, packet);
        self.begin_fragments(frame, packet, route)
    }

    /// Returns whether the client's next packet goes to another backend, since its own is down: UDP
    /// has no state that would be lost. It stays if there is no other.
    fn moves(&self, connection: &Connection) -> bool {
        let is_down = |id| self.services.backend(id).is_some_and(|one| !one.is_up);
        connection.protocol == UDP
            && is_down(connection.backend)
            && self
                .services
                .choose(connection.service, connection.client)
                .is_ok_and(|(other, _)| !is_down(other))
    }

    fn count(&mut self, side: Side, packet: &Packet) {
        self.counts.packets[side as usize] += 1;
        self.counts.bytes[side as usize] += (packet.end - packet.ip) as u64;
    }

    fn remove(&mut self, table: Table, index: u32) {
        let removed = self.table_mut(table).remove(index);
        if let Some(connection) = removed.filter(|_| table == Table::Open) {
            self.services.closed(&connection);
        }
    }

    /// Removes a connection that is over before its time.
    fn evict_over(&mut self, index: u32) {
        self.remove(Table::Open, index);
        self.counts.over_evicted += 1;
    }

    /// Returns whether a connection may be among the open ones; else it stays with the half-open.
    fn may_open(&self, protocol: u8) -> bool {
        self.services.may_open(protocol, self.open.room())
    }

    /// Returns whether a backend's packet comes in where that backend is, or shows by its numbers
    /// whose it is.
    fn check_interface(
        &self,
        frame: &Frame,
        packet: &Packet,
        connection: &Connection,
        side: Side,
    ) -> Result<(), Reason> {
        let is_backends = || {
            let segment = packet.tcp.as_ref();
            segment.is_some_and(|one| connection.numbers.is_backends(connection.phase, one))
        };
        let has_others = self.ports.len() > 1 && self.port(frame.port).mac.is_some();
        let is_taken = side == Side::Client
            || !has_others
            || self.services.comes_by(connection.backend, frame.port)
            || is_backends();
        is_taken.then_some(()).ok_or(Reason::WrongInterface)
    }

    /// Moves a connection that both sides have confirmed to those that are open.
    fn promote(&mut self, index: u32) -> Result<(), Reason> {
        if self.open.is_full() {
            let over = self.open.oldest_over().ok_or(Reason::TableFull)?;
            self.evict_over(over);
        }
        let connection = self.half_open.remove(index).ok_or(Reason::NoConnection)?;
        self.open
            .insert(connection.clone(), &self.timeouts, self.now_ms)?;
        self.services.opened(&connection);
        self.counts.opened += 1;
        Ok(())
    }

    /// Opens the connection of a packet for a service.
    fn open(&mut self, frame: &mut Frame, packet: &Packet) -> Result<u16, Reason> {
        let plan = self.plan(frame, packet, None)?;
        let connection = plan.connection;
        let route = self.route(frame, packet, &connection, Side::Client)?;
        if let Some(mtu) = self.limit(frame, packet, &route) {
            return self.tell(frame, packet, connection.vip.ip(), mtu);
        }
        while self.half_open.is_full() {
            let oldest = self.half_open_order.pop_front().ok_or(Reason::TableFull)?;
            if self.half_open.remove_at(oldest).is_some() {
                self.counts.half_open_evicted += 1;
            }
        }
        plan.gives_way.inspect(|index| self.evict_over(*index));
        let place = self
            .half_open
            .insert(connection, &self.timeouts, self.now_ms)?;
        self.half_open_order.push_back(place);
        if self.half_open_order.len() > self.half_open_max * 2 {
            let half_open = &self.half_open;
            self.half_open_order.retain(|place| half_open.is_at(*place));
        }
        self.count(Side::Client, packet);
        self.begin_fragments(frame, packet, route)
    }

    /// Decides about a packet of no known connection, or of one that is `over`: the connection that
    /// it opens.
    fn plan(&self, frame: &Frame, packet: &Packet, over: Option<u32>) -> Result<Plan, Reason> {
        let vip = SocketAddr::new(packet.destination, packet.destination_port);
        let client = SocketAddr::new(packet.source, packet.source_port);
        let Some(id) = self.services.key(&(vip, packet.protocol)) else {
            let is_own = self.services.is_own(packet.destination);
            let is_answer = self.services.is_own(packet.source);
            return Err(match (is_own, is_answer) {
                (true, _) if self.services.is_service(packet.destination) => Reason::NoService,
                (true, _) | (_, true) => Reason::NoConnection,
                _ => Reason::NotOurs,
            });
        };
        let rule = &self.services.service(id).ok_or(Reason::NoService)?.rule;
        let is_direct = rule.forward == Forward::Direct;
        let (phase, numbers) = match &packet.tcp {
            None => (Phase::UdpNew, Numbers::default()),
            Some(tcp) if is_opening(tcp) => (Phase::SynSent, Numbers::begin(tcp, is_direct)),
            Some(tcp) if rule.adopt && rule.forward != Forward::FullNat && !tcp.is(SYN | RST) => {
                let is_cut = packet.fragment.is_some();
                (Phase::Adopted, Numbers::adopt(tcp, is_direct, is_cut))
            }
            Some(_) => return Err(Reason::NoConnection),
        };
        let (backend, _) = self.services.choose(id, client)?;
        let target = self
            .services
            .backend(backend)
            .ok_or(Reason::NoBackend)?
            .address;
        if rule.forward == Forward::Nat && target.ip() == client.ip() {
            return Err(Reason::Hairpin);
        }
        let mut connection = Connection {
            service: id,
            backend,
            protocol: packet.protocol,
            client,
            vip,
            target,
            source: None,
            is_direct,
            phase,
            numbers,
            seen_ms: self.now_ms,
            client_link: client_link(frame),
            link_ms: self.now_ms,
            packets: [1, 0],
            bytes: [(packet.end - packet.ip) as u64, 0],
        };
        let gives_way = match rule.forward {
            Forward::FullNat => self.choose_source(rule, &mut connection, over)?,
            _ => match self.tuple(&connection, over) {
                Tuple::Free => None,
                Tuple::Over(index) => Some(index),
                Tuple::Taken => return Err(Reason::TupleInUse),
            },
        };
        Ok(Plan {
            connection,
            gives_way,
        })
    }

    /// Returns who has the key of a connection's answers, besides one that is `over`.
    fn tuple(&self, connection: &Connection, over: Option<u32>) -> Tuple {
        let Some(key) = connection.key(Side::Backend) else {
            return Tuple::Free;
        };
        match self.open.find(&key) {
            Some((index, _)) if Some(index) == over => Tuple::Free,
            Some((index, Side::Backend))
                if self.open.get(index).is_some_and(|one| one.phase.is_over()) =>
            {
                Tuple::Over(index)
            }
            Some(_) => Tuple::Taken,
            None if self.half_open.find(&key).is_some() => Tuple::Taken,
            None => Tuple::Free,
        }
    }

    /// Finds a source address and port that no connection has towards the backend, or else those of
    /// the oldest that is over, which gives way.
    fn choose_source(
        &self,
        rule: &ServiceRule,
        connection: &mut Connection,
        over: Option<u32>,
    ) -> Result<Option<u32>, Reason> {
        let (first, last) = rule.source_ports;
        let ports = usize::from(last.saturating_sub(first)) + 1;
        let all = ports * rule.sources.len();
        // Begins somewhere else for each connection, and where no client can know.
        let seed = self.salt ^ u64::from(connection.client.port()) << 32 ^ self.counts.packets[0];
        let begin = Random::new(seed).below(all as u64) as usize;
        let mut found: Option<(u32, SocketAddr)> = None;
        for step in 0..all.min(PORTS_TRIED_MAX) {
            if step == PORTS_TRIED_FIRST {
                found = self.oldest_source(rule, connection.backend, over).or(found);
            }
            if step >= PORTS_TRIED_FIRST && found.is_some() {
                break;
            }
            let number = (begin + step) % all;
            let address = rule.sources[number / ports];
            let port = first + (number % ports) as u16;
            let source = SocketAddr::new(address, port);
            connection.source = Some(source);
            match self.tuple(connection, over) {
                Tuple::Free => return Ok(None),
                // Perhaps of another service with the same backend.
                Tuple::Over(index) => found = found.or(Some((index, source))),
                Tuple::Taken => {}
            }
        }
        let found = self.oldest_source(rule, connection.backend, over).or(found);
        let (index, source) = found.ok_or(Reason::PortsExhausted)?;
        connection.source = Some(source);
        Ok(Some(index))
    }

    /// Returns the oldest of a backend's connections that are over whose source a service may use.
    fn oldest_source(
        &self,
        rule: &ServiceRule,
        backend: u32,
        over: Option<u32>,
    ) -> Option<(u32, SocketAddr)> {
        let ports = rule.source_ports.0..=rule.source_ports.1;
        self.open
            .over_of(backend)
            .take(OVER_TRIED_MAX)
            .filter(|(index, _)| Some(*index) != over)
            .filter_map(|(index, one)| Some((index, one.source?)))
            .find(|(_, one)| ports.contains(&one.port()) && rule.sources.contains(&one.ip()))
    }

    /// Returns the way of a connection's packet, if it can go there.
    fn route(
        &self,
        frame: &Frame,
        packet: &Packet,
        connection: &Connection,
        side: Side,
    ) -> Result<Route, Reason> {
        let is_ethernet = self.port(frame.port).mac.is_some();
        let link = match side {
            _ if !is_ethernet => Some(Neighbour {
                port: frame.port,
                mac: [0; 6],
            }),
            Side::Client => self
                .services
                .backend(connection.backend)
                .and_then(|backend| backend.link),
            Side::Backend => Some(connection.client_link),
        };
        let hops_at = packet.ip + if packet.is_v6() { 7 } else { 8 };
        let hops = frame.bytes.get(hops_at).copied().unwrap_or_default();
        if is_ethernet && !connection.is_direct && hops <= 1 {
            return Err(Reason::HopLimit);
        }
        Ok(Route {
            translation: connection.translation(side),
            link: link.ok_or(Reason::NoNeighbour)?,
            id: None,
            is_direct: connection.is_direct,
        })
    }

    /// Sends a packet, and has its fragments follow if it is the first of several.
    fn begin_fragments(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
        route: Route,
    ) -> Result<u16, Reason> {
        let Some(fragment) = &packet.fragment else {
            return self.send(frame, packet, route);
        };
        let route = self.fragments.begin(packet, fragment, route, self.now_ms)?;
        self.counts.fragments += 1;
        self.send(frame, packet, route)
    }

    fn send(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
        mut route: Route,
    ) -> Result<u16, Reason> {
        let exceeded = self.exceeded(frame, packet, route.link.port);
        if exceeded.is_some() {
            if !Engine::may_be_split(frame, packet) {
                return Err(Reason::TooLong);
            }
            // Nobody can fill in a checksum over several fragments.
            frame.partial = false;
            if packet.fragment.is_none() && !route.is_direct {
                route.id = Some(self.fragments.new_id());
            }
        }
        let bytes = &mut frame.bytes;
        if !frame.partial && !packet.is_later_fragment() && rewrite::complete(bytes, packet) {
            self.counts.checksums_completed += 1;
        }
        rewrite::translate(bytes, packet, route.translation, frame.partial);
        if let Some(id) = route.id {
            let at = packet.fragment.map_or(packet.ip + 4, |one| one.id_at);
            rewrite::identify(bytes, packet, at, id);
        }
        let port = self.address_frame(frame, packet, route.link, route.is_direct)?;
        if let Some(mtu) = exceeded {
            self.split(frame, packet, port, mtu)?;
        }
        Ok(port)
    }

    /// Writes the hardware addresses of a frame's next hop.
    fn address_frame(
        &self,
        frame: &mut Frame,
        packet: &Packet,
        link: Neighbour,
        is_direct: bool,
    ) -> Result<u16, Reason> {
        let Some(mac) = self.port(link.port).mac else {
            return Ok(link.port);
        };
        if !is_direct && !rewrite::hop(&mut frame.bytes, packet) {
            return Err(Reason::HopLimit);
        }
        let header = frame.bytes.get_mut(..12).ok_or(Reason::Cut)?;
        header[..6].copy_from_slice(&link.mac);
        header[6..].copy_from_slice(&mac);
        // A frame may be padded, and the padding would be sent to others.
        frame.bytes.truncate(packet.end.max(60));
        frame.bytes[packet.end..].fill(0);
        Ok(link.port)
    }

    fn handle_icmp(&mut self, frame: &mut Frame, packet: &Packet) -> Result<u16, Reason> {
        if let Some(mac) = self.port(frame.port).mac
            && let Some(target) = arp::solicited(&frame.bytes, packet)
        {
            if !self.services.is_own(target) {
                return Err(Reason::NotOurs);
            }
            arp::advertise(&mut frame.bytes, packet, target, mac);
            return Ok(self.answer(frame));
        }
        match icmp::message(&frame.bytes, packet) {
            _ if packet.fragment.is_some() => Err(Reason::Protocol),
            icmp::Message::EchoRequest if self.services.is_own(packet.destination) => {
                icmp::answer_echo(&mut frame.bytes, packet);
                Ok(self.answer(frame))
            }
            icmp::Message::Error => self.translate_error(frame, packet),
            _ if self.services.is_own(packet.destination) => Err(Reason::Protocol),
            _ => Err(Reason::NotOurs),
        }
    }

    /// Sends an ICMP error on to the side whose packet it is about.
    fn translate_error(&mut self, frame: &mut Frame, packet: &Packet) -> Result<u16, Reason> {
        let about = icmp::embedded(&frame.bytes, packet)?;
        let (route, outer, inner) = self.route_error(frame, packet, &about)?;
        if self.exceeded(frame, packet, route.link.port).is_some() {
            return Err(Reason::TooLong);
        }
        icmp::translate_error(&mut frame.bytes, packet, &about, outer, inner);
        self.counts.icmp_errors += 1;
        self.address_frame(frame, packet, route.link, route.is_direct)
    }

    /// Finds the way of an ICMP error, and the translations of it and of what it is about.
    fn route_error(
        &self,
        frame: &Frame,
        packet: &Packet,
        about: &Packet,
    ) -> Result<(Route, rewrite::Translation, rewrite::Translation), Reason> {
        // Its sender saw a packet that went to a client, or to a backend; the connection's key is
        // that of packets the other way.
        let key = Key::new(
            SocketAddr::new(about.destination, about.destination_port),
            SocketAddr::new(about.source, about.source_port),
            about.protocol,
        );
        let find = |table: Table| {
            let (index, side) = self.table(table).find(&key?)?;
            Some((self.table(table).get(index)?, side))
        };
        let found = find(Table::Open).or_else(|| find(Table::HalfOpen));
        let (connection, side) = found.ok_or(Reason::IcmpUnknown)?;
        if packet.destination != about.source {
            return Err(Reason::IcmpUnknown);
        }
        let route = self.route(frame, packet, connection, side)?;
        if connection.is_direct {
            let none = rewrite::Translation::default();
            return Ok((route, none, none));
        }
        let there = connection.translation(side);
        // The packet in question went the other way, so its source is where this one goes.
        let inner = rewrite::Translation {
            source: Some(match side {
                Side::Client => connection.target,
                Side::Backend => connection.client,
            }),
            destination: match side {
                Side::Client => connection.source,
                Side::Backend => Some(connection.vip),
            },
        };
        let outer = rewrite::Translation {
            source: there.source,
            destination: Some(match side {
                Side::Client => connection.target,
                Side::Backend => connection.client,
            }),
        };
        Ok((route, outer, inner))
    }
}

/// Returns whether a segment opens a connection.
fn is_opening(tcp: &Segment) -> bool {
    tcp.is(SYN) && !tcp.is(packet::ACK | RST)
}

/// Returns the neighbour from whom a frame came.
fn client_link(frame: &Frame) -> Neighbour {
    let mac = frame.bytes.get(6..12).and_then(|mac| mac.try_into().ok());
    Neighbour {
        port: frame.port,
        mac: mac.unwrap_or_default(),
    }
}
