//! Packets that open connections: the backend and the source address that they get.

use super::connections::{Connection, Neighbour};
use super::packet::{Packet, RST, SYN, Segment, UDP};
use super::reason::Reason;
use super::services::{Forward, ServiceRule};
use super::tcp::{Numbers, Phase, Side};
use super::{Engine, Frame, Table, packet};
use outboard_flow::random::Random;
use std::net::SocketAddr;

/// Source ports tried for a new connection.
const PORTS_TRIED_MAX: usize = 4096;
/// Source ports tried before a connection that is over gives its own up.
const PORTS_TRIED_FIRST: usize = 64;
/// Connections that are over, of which one may have a source port that is still configured.
const OVER_TRIED_MAX: usize = 16;

/// A connection that a packet opens.
pub(super) struct Plan {
    pub(super) connection: Connection,
    /// The connection that has its source port, or its client's, towards the backend.
    pub(super) gives_way: Option<GivesWay>,
}

/// A connection that ends so that another gets its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivesWay {
    /// An open one that is over.
    Over(u32),
    HalfOpen(u32),
}

/// State of the key of a connection's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tuple {
    Free,
    /// The open connection that has it is over.
    Over(u32),
    /// A half-open connection has it.
    HalfOpen(u32),
    Taken,
}

impl Engine {
    /// Removes a connection that is over before its time.
    pub(super) fn evict_over(&mut self, index: u32) {
        self.remove(Table::Open, index);
        self.counts.over_evicted += 1;
    }

    /// Returns whether a connection may be among the open ones; else it stays with the half-open.
    pub(super) fn may_open(&self, protocol: u8) -> bool {
        let has_room = || !self.open.is_full() || self.open.oldest_over().is_some();
        self.services.may_open(protocol, self.open.room()) && (protocol != UDP || has_room())
    }

    /// Opens the connection of a packet for a service.
    pub(super) fn open(&mut self, frame: &mut Frame, packet: &Packet) -> Result<u16, Reason> {
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
        match plan.gives_way {
            Some(GivesWay::Over(index)) => self.evict_over(index),
            Some(GivesWay::HalfOpen(index)) => {
                self.remove(Table::HalfOpen, index);
                self.counts.half_open_evicted += 1;
            }
            None => {}
        }
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
    pub(super) fn plan(
        &self,
        frame: &Frame,
        packet: &Packet,
        over: Option<u32>,
    ) -> Result<Plan, Reason> {
        let vip = SocketAddr::new(packet.destination, packet.destination_port);
        let client = SocketAddr::new(packet.source, packet.source_port);
        let id = self.service_of(packet)?;
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
            answers_at: None,
            packets: [1, 0],
            bytes: [(packet.end - packet.ip) as u64, 0],
        };
        let gives_way = match rule.forward {
            Forward::FullNat => self.choose_source(rule, &mut connection, over)?,
            _ => match self.tuple(&connection, over) {
                Tuple::Free => None,
                Tuple::Over(index) => Some(GivesWay::Over(index)),
                Tuple::HalfOpen(_) | Tuple::Taken => return Err(Reason::TupleInUse),
            },
        };
        Ok(Plan {
            connection,
            gives_way,
        })
    }

    /// Returns the service for which a packet of no connection is, or why it is for none.
    fn service_of(&self, packet: &Packet) -> Result<u32, Reason> {
        let vip = SocketAddr::new(packet.destination, packet.destination_port);
        let to_own = self.services.is_own(packet.destination);
        let from_own = self.services.is_own(packet.source);
        if to_own && from_own {
            // Its answers would come back for ever.
            return Err(Reason::OwnSource);
        }
        let service = self.services.key(&(vip, packet.protocol));
        service.ok_or_else(|| match to_own || from_own {
            true if self.services.is_service(packet.destination) => Reason::NoService,
            true => Reason::NoConnection,
            false => Reason::NotOurs,
        })
    }

    /// Returns who has the key of a connection's answers, besides one that is `over`.
    pub(super) fn tuple(&self, connection: &Connection, over: Option<u32>) -> Tuple {
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
            None => match self.half_open.find(&key) {
                Some((index, _)) => Tuple::HalfOpen(index),
                None => Tuple::Free,
            },
        }
    }

    /// Finds a source address and port that no connection has towards the backend, or else those of
    /// the oldest that is over, or else those of the oldest half-open one among those tried.
    pub(super) fn choose_source(
        &self,
        rule: &ServiceRule,
        connection: &mut Connection,
        over: Option<u32>,
    ) -> Result<Option<GivesWay>, Reason> {
        let (first, last) = rule.source_ports;
        let ports = usize::from(last.saturating_sub(first)) + 1;
        let all = ports * rule.sources.len();
        // Begins somewhere else for each connection, and where no client can know.
        let seed = self.salt ^ u64::from(connection.client.port()) << 32 ^ self.counts.packets[0];
        let begin = Random::new(seed).below(all as u64) as usize;
        let mut over_found: Option<(u32, SocketAddr)> = None;
        let mut half_open_found: Option<(u64, u32, SocketAddr)> = None;
        for step in 0..all.min(PORTS_TRIED_MAX) {
            if step == PORTS_TRIED_FIRST {
                let oldest = self.oldest_source(rule, connection.backend, over);
                over_found = oldest.or(over_found);
            }
            let is_found = over_found.is_some() || half_open_found.is_some();
            if step >= PORTS_TRIED_FIRST && is_found {
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
                Tuple::Over(index) => over_found = over_found.or(Some((index, source))),
                Tuple::HalfOpen(index) => {
                    let seen_ms = self.half_open.get(index).map_or(0, |one| one.seen_ms);
                    if half_open_found.is_none_or(|(oldest_ms, ..)| seen_ms < oldest_ms) {
                        half_open_found = Some((seen_ms, index, source));
                    }
                }
                Tuple::Taken => {}
            }
        }
        let oldest = self.oldest_source(rule, connection.backend, over);
        let (gives_way, source) = match (oldest.or(over_found), half_open_found) {
            (Some((index, source)), _) => (GivesWay::Over(index), source),
            (None, Some((_, index, source))) => (GivesWay::HalfOpen(index), source),
            (None, None) => return Err(Reason::PortsExhausted),
        };
        connection.source = Some(source);
        Ok(Some(gives_way))
    }

    /// Returns the oldest of a backend's connections that are over whose source a service may use.
    pub(super) fn oldest_source(
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
}

/// Returns whether a segment opens a connection.
pub(super) fn is_opening(tcp: &Segment) -> bool {
    tcp.is(SYN) && !tcp.is(packet::ACK | RST)
}

/// Returns the neighbour from whom a frame came.
pub(super) fn client_link(frame: &Frame) -> Neighbour {
    let mac = frame.bytes.get(6..12).and_then(|mac| mac.try_into().ok());
    Neighbour {
        port: frame.port,
        mac: mac.unwrap_or_default(),
    }
}
