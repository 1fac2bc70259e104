//! Services and their backends: which backend a new connection gets.

use super::connections::{Connection, Neighbour};
use super::packet::{TCP, UDP};
use super::reason::Reason;
use outboard_flow::maglev::Maglev;
use outboard_flow::random::Random;
use outboard_flow::{FlowKey as _, Secret, V4, V6};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

/// Weight of a backend as the table of choices sees it, for each of its own: room for a slow
/// start in steps of a hundredth.
const SHARE_FULL: u32 = 100;

/// Time for which a backend that joins others gets no clients for want of its hardware address.
pub const JOIN_MS_MAX: u64 = 2000;

/// How a service's packets reach a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forward {
    /// The destination becomes the backend. Answers must pass the balancer again.
    Nat,
    /// Destination and source change, so answers come back by themselves; backends do not see the
    /// clients' addresses.
    FullNat,
    /// Packets go to the backend's hardware address unchanged. It has the service's address, too,
    /// and answers clients itself.
    Direct,
}

/// Name of a service: its address and protocol.
pub type ServiceKey = (SocketAddr, u8);

/// A service as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRule {
    pub name: String,
    pub address: SocketAddr,
    pub protocol: u8,
    pub forward: Forward,
    /// All connections of a client go to one backend, whatever their ports.
    pub affinity: bool,
    /// A packet in the middle of an unknown connection opens it, by hashing.
    pub adopt: bool,
    /// Source addresses towards backends (full NAT).
    pub sources: Vec<IpAddr>,
    /// First and last source port.
    pub source_ports: (u16, u16),
    pub backends: Vec<BackendRule>,
}

/// A backend as it is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRule {
    pub address: SocketAddr,
    pub weight: u32,
    pub drain: bool,
    /// Checks tell its health; without them it is up.
    pub is_checked: bool,
    /// Hardware address, and the port that leads there.
    pub link: Option<Neighbour>,
}

/// A service in use.
pub(super) struct Service {
    pub(super) rule: ServiceRule,
    /// Numbers of its backends, in the order of `rule`.
    backends: Vec<u32>,
    /// `None` if no backend takes new connections.
    choices: Option<Maglev>,
    /// Connections that were ever opened.
    pub(super) opened: u64,
    pub(super) is_removed: bool,
}

/// A backend in use.
#[derive(Clone, Debug)]
pub struct Backend {
    pub service: u32,
    pub address: SocketAddr,
    pub weight: u32,
    /// Drained by the configuration, or by command.
    pub is_drained: bool,
    pub is_drained_by_command: bool,
    is_checked: bool,
    /// Until when it waits, or has waited, for its hardware address while others have clients.
    joins_until_ms: Option<u64>,
    is_joining: bool,
    pub is_up: bool,
    /// Hundredths of its weight, less during a slow start.
    pub share: u32,
    /// Not in the configuration any more.
    pub is_removed: bool,
    pub connections: u64,
    pub opened: u64,
    pub link: Option<Neighbour>,
    /// It sees the clients' addresses, and answers to them by way of the balancer.
    is_nat: bool,
}

impl Backend {
    fn weight_now(&self) -> u32 {
        let takes = self.is_up && !self.is_drained && !self.is_removed;
        if takes {
            self.weight.saturating_mul(self.share)
        } else {
            0
        }
    }
}

/// A client's backend while it has connections.
#[derive(Clone, Copy, Debug)]
struct Affinity {
    backend: u32,
    connections: u32,
}

/// All services and backends.
pub(super) struct Services {
    services: Vec<Service>,
    by_key: HashMap<ServiceKey, u32>,
    backends: Vec<Backend>,
    affinities: HashMap<(u32, IpAddr), Affinity>,
    /// Addresses of services and sources.
    own: HashSet<IpAddr>,
    /// When the first of the backends that join has waited for long enough.
    join_ends_ms: Option<u64>,
    has_tcp: bool,
    /// Open connections of UDP services.
    udp: usize,
    chooser: Secret,
}

/// Derives the name of a backend in the table of choices: the same in every process.
fn name(address: SocketAddr) -> u64 {
    let words: [u64; 2] = match address.ip() {
        IpAddr::V4(address) => [0, u64::from(address.to_bits())],
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            [(bits >> 64) as u64, bits as u64]
        }
    };
    let mixed = words
        .into_iter()
        .chain([u64::from(address.port())])
        .fold(0, |mixed, word| Random::new(mixed ^ word).next_u64());
    Random::new(mixed).next_u64()
}

impl Services {
    pub(super) fn new(chooser: Secret) -> Services {
        Services {
            services: Vec::new(),
            by_key: HashMap::new(),
            backends: Vec::new(),
            affinities: HashMap::new(),
            own: HashSet::new(),
            join_ends_ms: None,
            has_tcp: false,
            udp: 0,
            chooser,
        }
    }

    /// Replaces the rules. What connections use stays until they are over.
    pub(super) fn replace(&mut self, rules: &[ServiceRule]) {
        for service in &mut self.services {
            service.is_removed = true;
        }
        for backend in &mut self.backends {
            backend.is_removed = true;
        }
        self.own.clear();
        self.has_tcp = rules.iter().any(|rule| rule.protocol == TCP);
        for rule in rules {
            let id = self.service_for(rule);
            self.services[id as usize].rule = rule.clone();
            let backends = rule
                .backends
                .iter()
                .map(|rule| self.backend_for(id, rule))
                .collect();
            let service = &mut self.services[id as usize];
            service.is_removed = false;
            service.backends = backends;
            self.own.insert(rule.address.ip());
            self.own.extend(rule.sources.iter().copied());
            self.choose_again(id);
        }
        // A service that is gone opens nothing; its number stays with its connections.
        for service in self
            .services
            .iter_mut()
            .filter(|service| service.is_removed)
        {
            service.backends.clear();
            service.choices = None;
        }
    }

    /// Counts addresses that connections use among the balancer's own.
    pub(super) fn keep(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        self.own.extend(addresses);
    }

    fn service_for(&mut self, rule: &ServiceRule) -> u32 {
        let key = (rule.address, rule.protocol);
        *self.by_key.entry(key).or_insert_with(|| {
            self.services.push(Service {
                rule: rule.clone(),
                backends: Vec::new(),
                choices: None,
                opened: 0,
                is_removed: false,
            });
            self.services.len() as u32 - 1
        })
    }

    fn backend_for(&mut self, service: u32, rule: &BackendRule) -> u32 {
        let index = self
            .find_backend(service, rule.address)
            .unwrap_or_else(|| self.add_backend(service, rule.address));
        let is_nat = self.services[service as usize].rule.forward == Forward::Nat;
        let backend = &mut self.backends[index as usize];
        backend.is_nat = is_nat || backend.is_nat && backend.connections > 0;
        backend.weight = rule.weight;
        backend.is_removed = false;
        backend.is_drained = rule.drain || backend.is_drained_by_command;
        backend.is_checked = rule.is_checked;
        if !rule.is_checked {
            (backend.is_up, backend.share) = (true, SHARE_FULL);
        }
        backend.link = rule.link.or(backend.link);
        index
    }

    fn find_backend(&self, service: u32, address: SocketAddr) -> Option<u32> {
        let fits = |one: &Backend| one.service == service && one.address == address;
        self.backends
            .iter()
            .position(fits)
            .map(|index| index as u32)
    }

    /// Adds a backend that takes no connections yet.
    fn add_backend(&mut self, service: u32, address: SocketAddr) -> u32 {
        let backend = Backend {
            service,
            address,
            weight: 0,
            is_drained: false,
            is_drained_by_command: false,
            is_checked: true,
            joins_until_ms: None,
            is_joining: false,
            is_up: true,
            share: SHARE_FULL,
            is_removed: true,
            connections: 0,
            opened: 0,
            link: None,
            is_nat: self.services[service as usize].rule.forward == Forward::Nat,
        };
        self.backends.push(backend);
        self.backends.len() as u32 - 1
    }

    fn choose_again(&mut self, service: u32) {
        let service = &mut self.services[service as usize];
        let choices = |joining_too: bool| {
            let weight = |backend: &Backend| match backend.is_joining && !joining_too {
                true => 0,
                false => backend.weight_now(),
            };
            let weights: Vec<_> = service
                .backends
                .iter()
                .map(|index| &self.backends[*index as usize])
                .map(|backend| (name(backend.address), weight(backend)))
                .collect();
            Maglev::new(&weights)
        };
        service.choices = choices(false).or_else(|| choices(true));
    }

    pub(super) fn key(&self, key: &ServiceKey) -> Option<u32> {
        let id = self.by_key.get(key).copied()?;
        (!self.services[id as usize].is_removed).then_some(id)
    }

    pub(super) fn service(&self, id: u32) -> Option<&Service> {
        self.services.get(id as usize)
    }

    pub(super) fn services(&self) -> impl Iterator<Item = (u32, &Service)> {
        (0u32..)
            .zip(&self.services)
            .filter(|(_, service)| !service.is_removed)
    }

    /// Services that are not configured any more, and still have connections.
    pub(super) fn removed(&self) -> impl Iterator<Item = (u32, &Service)> {
        let services = (0u32..).zip(&self.services);
        services.filter(|(id, service)| {
            let uses = |one: &Backend| one.service == *id && one.connections > 0;
            service.is_removed && self.backends.iter().any(uses)
        })
    }

    /// Backends that are configured, or still have connections.
    pub(super) fn backends(&self) -> impl Iterator<Item = &Backend> {
        self.backends
            .iter()
            .filter(|one| !one.is_removed || one.connections > 0)
    }

    /// Addresses and protocols of the backends that answer to clients' addresses.
    pub(super) fn answering(&self) -> impl Iterator<Item = (SocketAddr, u8)> + '_ {
        self.backends().filter(|one| one.is_nat).map(|one| {
            let service = &self.services[one.service as usize];
            (one.address, service.rule.protocol)
        })
    }

    pub(super) fn backend(&self, id: u32) -> Option<&Backend> {
        self.backends.get(id as usize)
    }

    pub(super) fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains(&address)
    }

    /// Returns whether a service has an address, which may be of several ports.
    pub(super) fn is_service(&self, address: IpAddr) -> bool {
        self.services()
            .any(|(_, service)| service.rule.address.ip() == address)
    }

    pub(super) fn own(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.own.iter().copied()
    }

    /// Returns the backend of a new connection, and whether the client's other connections decided.
    pub(super) fn choose(&self, service: u32, client: SocketAddr) -> Result<(u32, bool), Reason> {
        let id = service;
        let service = self.service(id).ok_or(Reason::NoService)?;
        if service.rule.affinity
            && let Some(affinity) = self.affinities.get(&(id, client.ip()))
            && self.backend(affinity.backend).is_some_and(|one| one.is_up)
        {
            return Ok((affinity.backend, true));
        }
        let port = if service.rule.affinity {
            0
        } else {
            client.port()
        };
        let (vip, protocol) = (service.rule.address, service.rule.protocol);
        let hash = match (client.ip(), vip.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                V4::new((from, port), (to, vip.port()), protocol).keyed_hash(&self.chooser)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                V6::new((from, port), (to, vip.port()), protocol).keyed_hash(&self.chooser)
            }
            _ => return Err(Reason::NoService),
        };
        let choices = service.choices.as_ref().ok_or(Reason::NoBackend)?;
        let place = usize::from(choices.choose(hash));
        let backend = service.backends.get(place).ok_or(Reason::NoBackend)?;
        Ok((*backend, false))
    }

    /// Returns whether a connection may be among `room` open ones. Those of UDP, whose clients may
    /// be forged, have half of the room if others need it.
    pub(super) fn may_open(&self, protocol: u8, room: usize) -> bool {
        protocol != UDP || !self.has_tcp || self.udp < room / 2
    }

    /// Notes a connection that has opened.
    pub(super) fn opened(&mut self, connection: &Connection) {
        if let Some(service) = self.services.get_mut(connection.service as usize) {
            service.opened += 1;
        }
        if let Some(backend) = self.backends.get_mut(connection.backend as usize) {
            backend.opened += 1;
        }
        self.has(connection);
    }

    /// Notes a connection that is open: its client stays with its backend while it has any.
    pub(super) fn has(&mut self, connection: &Connection) {
        self.udp += usize::from(connection.protocol == UDP);
        let Some(service) = self.services.get(connection.service as usize) else {
            return;
        };
        let has_affinity = service.rule.affinity;
        if let Some(backend) = self.backends.get_mut(connection.backend as usize) {
            backend.connections += 1;
        }
        if !has_affinity {
            return;
        }
        let client = (connection.service, connection.client.ip());
        let new = Affinity {
            backend: connection.backend,
            connections: 0,
        };
        let affinity = self.affinities.entry(client).or_insert(new);
        affinity.connections += 1;
        if !self
            .backends
            .get(affinity.backend as usize)
            .is_some_and(|one| one.is_up)
        {
            affinity.backend = connection.backend;
        }
    }

    /// Notes that a connection that was open is over.
    pub(super) fn closed(&mut self, connection: &Connection) {
        let is_udp = usize::from(connection.protocol == UDP);
        self.udp = self.udp.saturating_sub(is_udp);
        if let Some(backend) = self.backends.get_mut(connection.backend as usize) {
            backend.connections = backend.connections.saturating_sub(1);
        }
        let client = (connection.service, connection.client.ip());
        if let Some(affinity) = self.affinities.get_mut(&client) {
            affinity.connections = affinity.connections.saturating_sub(1);
            if affinity.connections == 0 {
                self.affinities.remove(&client);
            }
        }
    }

    /// Changes a backend, and then the choices of its service if its weight has changed.
    fn change(&mut self, service: u32, address: SocketAddr, act: impl Fn(&mut Backend)) -> bool {
        let Some(index) = self.find_backend(service, address) else {
            return false;
        };
        let backend = &mut self.backends[index as usize];
        let before = backend.weight_now();
        act(backend);
        if backend.weight_now() != before {
            self.choose_again(service);
        }
        true
    }

    /// Returns the hundredths of its weight that a backend gets, or `None` if it is down. One that
    /// is not known counts as up.
    pub(super) fn health(&self, key: &ServiceKey, address: SocketAddr) -> Option<u32> {
        let index = self
            .key(key)
            .and_then(|service| self.find_backend(service, address));
        let backend = index.and_then(|index| self.backend(index));
        backend.map_or(Some(SHARE_FULL), |one| one.is_up.then_some(one.share))
    }

    /// Sets the health of a backend that is checked, and the hundredths of its weight that it gets.
    pub(super) fn set_health(&mut self, key: &ServiceKey, address: SocketAddr, up: Option<u32>) {
        if let Some(service) = self.key(key) {
            self.change(service, address, |backend| {
                // A check that has ended may still have told something.
                if backend.is_checked {
                    backend.is_up = up.is_some();
                    backend.share = up.unwrap_or(SHARE_FULL).clamp(1, SHARE_FULL);
                }
            });
        }
    }

    /// Drains the backends with an address, or ends that. Returns how many there are.
    pub(super) fn drain(&mut self, address: SocketAddr, drain: bool) -> usize {
        let services: Vec<_> = self.services().map(|(id, _)| id).collect();
        let drained = services.into_iter().filter(|id| {
            self.change(*id, address, |backend| {
                backend.is_drained_by_command = drain;
                backend.is_drained = drain;
            })
        });
        drained.count()
    }

    /// Sets the hardware address of the backends that have an address.
    pub(super) fn set_neighbour(&mut self, address: IpAddr, link: Neighbour) {
        let mut joined = Vec::new();
        for backend in self
            .backends
            .iter_mut()
            .filter(|one| one.address.ip() == address)
        {
            backend.link = Some(link);
            if std::mem::take(&mut backend.is_joining) {
                joined.push(backend.service);
            }
        }
        joined.into_iter().for_each(|id| self.choose_again(id));
    }

    /// Has the backends whose hardware addresses are not known wait for them, for a while, where
    /// others of their service are reached already.
    pub(super) fn await_links(&mut self, now_ms: u64) {
        let ids: Vec<_> = self.services().map(|(id, _)| id).collect();
        let until_ms = now_ms + JOIN_MS_MAX;
        for id in ids {
            let backends = self.services[id as usize].backends.clone();
            let is_reached = |index: &u32| self.backends[*index as usize].link.is_some();
            if !backends.iter().any(is_reached) {
                continue;
            }
            for index in backends {
                let backend = &mut self.backends[index as usize];
                if backend.link.is_none() && backend.joins_until_ms.is_none() {
                    (backend.joins_until_ms, backend.is_joining) = (Some(until_ms), true);
                    let ends_ms = self.join_ends_ms.map_or(until_ms, |ms| ms.min(until_ms));
                    self.join_ends_ms = Some(ends_ms);
                }
            }
            self.choose_again(id);
        }
    }

    /// Lets backends that have waited for long enough take clients.
    pub(super) fn end_joins(&mut self, now_ms: u64) {
        if self.join_ends_ms.is_none_or(|ms| now_ms < ms) {
            return;
        }
        let mut joined = Vec::new();
        self.join_ends_ms = None;
        for backend in self.backends.iter_mut().filter(|one| one.is_joining) {
            match backend.joins_until_ms {
                Some(until_ms) if now_ms < until_ms => {
                    let ends_ms = self.join_ends_ms.map_or(until_ms, |ms| ms.min(until_ms));
                    self.join_ends_ms = Some(ends_ms);
                }
                _ => {
                    backend.is_joining = false;
                    joined.push(backend.service);
                }
            }
        }
        joined.into_iter().for_each(|id| self.choose_again(id));
    }

    /// Returns whether packets of a backend may come in at a port.
    pub(super) fn comes_by(&self, backend: u32, port: u16) -> bool {
        let link = self.backend(backend).and_then(|one| one.link);
        link.is_none_or(|link| link.port == port)
    }

    /// Finds the service and backend of a connection that is restored, adding a backend that is
    /// not configured any more.
    pub(super) fn restore(&mut self, key: &ServiceKey, target: SocketAddr) -> Option<(u32, u32)> {
        let service = self.key(key)?;
        let known = self.find_backend(service, target);
        let backend = known.unwrap_or_else(|| self.add_backend(service, target));
        Some((service, backend))
    }
}
