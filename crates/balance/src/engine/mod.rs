//! The balancer without I/O: frames and the time in, frames out.
//!
//! A frame that is not understood, or belongs to no service and no connection, is never sent on:
//! it is dropped and counted by its [`Reason`].

mod arp;
mod connections;
mod dump;
mod errors;
mod explain;
mod follow;
mod fragments;
pub mod fuzz;
mod icmp;
mod mtu;
mod open;
mod over;
mod packet;
mod reason;
mod rewrite;
mod send;
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
pub use services::{Backend, BackendRule, Forward, JOIN_MS_MAX, ServiceKey, ServiceRule};
pub use tcp::{Phase, Side, Timeouts};

use connections::{Connections, Key, Place};
use fragments::{Fragments, Route};
use outboard_flow::{BATCH_MAX, FlowKey as _, NONE, OutOfMemory, Secret, V4};
use services::Services;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// Connections looked at for their end after each batch.
const AGED_A_BATCH: usize = 256;
/// Time for which a lack of room counts as one that lasts.
const EXHAUSTED_MS: u64 = 60_000;

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

    /// Replaces services, backends and timeouts. Connections stay where they are, and keep their
    /// addresses answered until the next reload.
    pub fn reload(&mut self, services: &[ServiceRule], timeouts: Timeouts) {
        self.services.replace(services);
        let connections = self.open.iter().chain(self.half_open.iter());
        let used = connections.flat_map(|one| [Some(one.vip), one.source]);
        self.services.keep(used.flatten().map(|one| one.ip()));
        if self.timeouts != timeouts {
            self.timeouts = timeouts;
            self.open.arm_all(self.now_ms, &self.timeouts);
            self.half_open.arm_all(self.now_ms, &self.timeouts);
        }
        self.await_neighbours();
    }

    /// Has backends whose hardware addresses are not known wait for them, where it matters.
    pub fn await_neighbours(&mut self) {
        if self.ports.iter().any(|one| one.mac.is_some()) {
            self.services.await_links(self.now_ms);
        }
    }

    /// Returns the health of a service's backend as [`Engine::set_health`] takes it.
    pub fn health(&self, service: &ServiceKey, backend: SocketAddr) -> Option<u32> {
        self.services.health(service, backend)
    }

    /// Sets the health of a service's backend, if it is checked: the hundredths of its weight that
    /// it gets, or `None` if it is down.
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

    /// Services that are not configured any more and still have connections, as in `services`.
    pub fn removed_services(&self) -> impl Iterator<Item = (u32, &ServiceRule, u64)> {
        self.services
            .removed()
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
        self.services.end_joins(self.now_ms);
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
}
