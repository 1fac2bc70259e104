//! Connections as bytes, for the balancer that runs next.
//!
//! A dump is a magic number, a version, the hardware addresses of the ports and the connections
//! (postcard), and the BLAKE3 hash of all before it. A dump that is cut, changed or of another
//! version is refused whole. Version 3, which has no addresses of ports, is understood.

use super::Engine;
use super::connections::{Connection, Neighbour};
use super::packet::{TCP, UDP};
use super::services::ServiceKey;
use super::tcp::{Numbers, Phase};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

const MAGIC: &[u8; 8] = b"OBBALNCE";
const VERSION: u32 = 4;
const WITHOUT_PORTS: u32 = 3;
const HASH_BYTES: usize = 32;

#[derive(Serialize, Deserialize)]
struct Saved {
    service: ServiceKey,
    target: SocketAddr,
    client: SocketAddr,
    source: Option<SocketAddr>,
    is_direct: bool,
    phase: Phase,
    numbers: Numbers,
    /// Time since its last packet.
    idle_ms: u64,
    /// Place in the dump's list of ports.
    client_port: u16,
    client_mac: [u8; 6],
}

/// The own hardware addresses of ports, in their order.
type Ports = Vec<Option<[u8; 6]>>;

impl Saved {
    fn check(&self) -> Result<(), &'static str> {
        match (self.service.1, self.phase.is_udp()) {
            (UDP, true) => Ok(()),
            (TCP, false) => self.numbers.check(self.phase, self.is_direct),
            _ => Err("a phase of another protocol"),
        }
    }
}

/// Why a dump is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    #[error("not a dump of connections")]
    NotADump,
    #[error("a dump of version {0}, where {VERSION} is understood")]
    Version(u32),
    #[error("the dump is cut or changed")]
    Damaged,
    #[error("the dump has what no balancer writes: {0}")]
    Impossible(&'static str),
}

/// Reads the ports, if the version has them, and the connections.
fn read(document: &[u8], has_ports: bool) -> Result<(Option<Ports>, Vec<Saved>), RestoreError> {
    let (ports, document) = if has_ports {
        let (ports, rest) =
            postcard::take_from_bytes(document).map_err(|_| RestoreError::Damaged)?;
        (Some(ports), rest)
    } else {
        (None, document)
    };
    let (saved, rest) = postcard::take_from_bytes(document).map_err(|_| RestoreError::Damaged)?;
    if !rest.is_empty() {
        return Err(RestoreError::Impossible("bytes after the connections"));
    }
    Ok((ports, saved))
}

/// The beginning of a dump.
pub(super) fn header() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

impl Engine {
    /// Writes all connections, half-open ones too: a client that has its answer asks no more.
    /// Nothing may pass afterwards.
    pub fn dump(&self) -> Vec<u8> {
        self.dump_with(|numbers| numbers)
    }

    /// Writes all connections while they go on: who restores them learns their numbers anew.
    pub fn dump_meanwhile(&self) -> Vec<u8> {
        self.dump_with(Numbers::stale)
    }

    fn dump_with(&self, numbers: impl Fn(Numbers) -> Numbers) -> Vec<u8> {
        let saved: Vec<_> = self
            .connections()
            .map(|one| Saved {
                service: (one.vip, one.protocol),
                target: one.target,
                client: one.client,
                source: one.source,
                is_direct: one.is_direct,
                phase: one.phase,
                numbers: numbers(one.numbers),
                idle_ms: self.now_ms.saturating_sub(one.seen_ms),
                client_port: one.client_link.port,
                client_mac: one.client_link.mac,
            })
            .collect();
        let ports: Ports = self.ports.iter().map(|port| port.mac).collect();
        let mut bytes = header();
        // Memory is all that could be missing, and it ends the process elsewhere.
        bytes.extend(postcard::to_stdvec(&(ports, saved)).unwrap_or_default());
        let hash = blake3::hash(&bytes);
        bytes.extend_from_slice(hash.as_bytes());
        bytes
    }

    /// Adds the connections of a dump. Returns how many there are, and how many of the dump are
    /// left out: their service or their client's interface is gone, their service forwards in
    /// another way, or there is no room.
    pub fn restore(&mut self, dump: &[u8]) -> Result<(usize, usize), RestoreError> {
        let rest = dump.strip_prefix(MAGIC).ok_or(RestoreError::NotADump)?;
        let (version, rest) = rest.split_first_chunk().ok_or(RestoreError::Damaged)?;
        let has_ports = match u32::from_le_bytes(*version) {
            VERSION => true,
            WITHOUT_PORTS => false,
            other => return Err(RestoreError::Version(other)),
        };
        let (document, hash) = rest
            .split_last_chunk::<HASH_BYTES>()
            .ok_or(RestoreError::Damaged)?;
        if blake3::hash(&dump[..dump.len() - HASH_BYTES]).as_bytes() != hash {
            return Err(RestoreError::Damaged);
        }
        let (ports, mut saved) = read(document, has_ports)?;
        // An interface is known by its address, wherever the file names it.
        let ports = ports.map(|ports| self.places(&ports));
        for one in &saved {
            one.check().map_err(RestoreError::Impossible)?;
        }
        let count = saved.len();
        // The oldest first: in this order they make room later.
        saved.sort_by_key(|one| std::cmp::Reverse(one.idle_ms));
        let number = |is_half_open: bool, is_v6: bool| {
            let fits = |one: &&Saved| {
                one.phase.is_half_open() == is_half_open && one.client.is_ipv6() == is_v6
            };
            saved.iter().filter(fits).count()
        };
        let both = |is_half_open| [number(is_half_open, false), number(is_half_open, true)];
        self.open.reserve(both(false));
        self.half_open.reserve(both(true));
        let restored = saved
            .into_iter()
            .filter(|one| {
                let port = usize::from(one.client_port);
                let place = match &ports {
                    Some(places) => places.get(port).copied().flatten(),
                    None => (port < self.ports.len()).then_some(one.client_port),
                };
                place.is_some_and(|place| self.restore_one(one, place).is_some())
            })
            .count();
        Ok((restored, count - restored))
    }

    /// Returns where the ports of a dump are now; `None` for one that is gone.
    fn places(&self, ports: &Ports) -> Vec<Option<u16>> {
        let place = |(at, mac): (usize, &Option<[u8; 6]>)| {
            let is_it = |port: &super::Port| port.mac == *mac;
            let same_place = self.ports.get(at).is_some_and(is_it).then_some(at);
            let place = same_place.or_else(|| self.ports.iter().position(is_it));
            place.and_then(|place| u16::try_from(place).ok())
        };
        ports.iter().enumerate().map(place).collect()
    }

    fn restore_one(&mut self, saved: &Saved, client_port: u16) -> Option<()> {
        let (service, backend) = self.services.restore(&saved.service, saved.target)?;
        let rule = &self.services.service(service)?.rule;
        let (vip, protocol) = saved.service;
        let is_v6 = vip.is_ipv6();
        let addresses = [saved.target, saved.client].into_iter().chain(saved.source);
        let fits = saved.is_direct == (rule.forward == super::Forward::Direct)
            && saved.source.is_some() == (rule.forward == super::Forward::FullNat)
            && saved
                .source
                .is_none_or(|source| rule.sources.contains(&source.ip()))
            && addresses
                .into_iter()
                .all(|address| address.is_ipv6() == is_v6);
        let connection = Connection {
            service,
            backend,
            protocol,
            client: saved.client,
            vip,
            target: saved.target,
            source: saved.source,
            is_direct: saved.is_direct,
            phase: saved.phase,
            numbers: saved.numbers,
            link_ms: self.now_ms.saturating_sub(saved.idle_ms),
            answers_at: None,
            seen_ms: self.now_ms.saturating_sub(saved.idle_ms),
            client_link: Neighbour {
                port: client_port,
                mac: saved.client_mac,
            },
            packets: [0; 2],
            bytes: [0; 2],
        };
        if !fits || self.tuple(&connection, None) != super::open::Tuple::Free {
            return None;
        }
        if connection.phase.is_half_open() || !self.may_open(protocol) {
            let inserted = self
                .half_open
                .insert(connection, &self.timeouts, self.now_ms);
            self.half_open_order.push_back(inserted.ok()?);
            return Some(());
        }
        self.open
            .insert(connection.clone(), &self.timeouts, self.now_ms)
            .ok()?;
        self.services.has(&connection);
        Some(())
    }
}
