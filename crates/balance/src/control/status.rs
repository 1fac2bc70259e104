//! The state of a balancer as a document.

use crate::engine::{Connection, Engine, Forward, Reason, ServiceRule, TCP};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// State of a whole balancer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    pub connections: usize,
    pub half_open: usize,
    pub fragmented: usize,
    /// Packets and bytes sent on: from clients, from backends.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
    pub opened: u64,
    pub expired: u64,
    pub half_open_evicted: u64,
    /// Connections that were over and made room.
    #[serde(default)]
    pub over_evicted: u64,
    /// Reasons of the last minute for which clients were not served that more room would serve.
    #[serde(default)]
    pub exhausted: Vec<String>,
    /// TCP segments out of their connection's window, which were sent on and changed nothing.
    #[serde(default)]
    pub out_of_window: u64,
    pub icmp_errors: u64,
    pub fragments: u64,
    pub answered: u64,
    pub checksums_completed: u64,
    /// Senders told that their packets are too long, and fragments made of such packets.
    pub told_too_long: u64,
    pub split: u64,
    /// Dropped frames by reason; reasons without any are left out.
    pub dropped: BTreeMap<String, u64>,
    /// Interfaces that have vanished, and whose frames are missing.
    pub interfaces_gone: Vec<String>,
    pub services: Vec<ServiceStatus>,
}

/// State of a service.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub name: String,
    pub address: String,
    pub protocol: String,
    pub forward: Forward,
    pub opened: u64,
    /// Not in the configuration any more; its connections go on.
    #[serde(default)]
    pub is_removed: bool,
    pub backends: Vec<BackendStatus>,
}

/// State of a backend.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackendStatus {
    pub address: String,
    pub weight: u32,
    /// Hundredths of its weight that it gets.
    pub share: u32,
    pub is_up: bool,
    pub is_drained: bool,
    pub is_removed: bool,
    pub connections: u64,
    pub opened: u64,
}

/// Health of the balancer: clients are served, or why not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Health {
    /// Each service has a backend for new clients, and no interface is gone.
    pub healthy: bool,
    /// As in [`Status`]: connections that are there go on meanwhile.
    #[serde(default)]
    pub exhausted: Vec<String>,
    pub interfaces_gone: Vec<String>,
    pub services: Vec<ServiceHealth>,
}

/// Number of a service's backends that new clients can come to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServiceHealth {
    pub name: String,
    pub usable: usize,
    pub backends: usize,
}

/// One connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Flow {
    pub protocol: String,
    pub client: String,
    pub service: String,
    pub backend: String,
    pub source: Option<String>,
    pub phase: String,
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
}

fn protocol(number: u8) -> String {
    if number == TCP {
        "tcp".into()
    } else {
        "udp".into()
    }
}

impl Status {
    pub(super) fn of(engine: &Engine) -> Status {
        let counts = engine.counts();
        let (connections, half_open, fragmented) = engine.sizes();
        let dropped = Reason::ALL
            .iter()
            .map(|one| (one.label().into(), counts.drops.of(*one)));
        Status {
            connections,
            half_open,
            fragmented,
            packets: counts.packets,
            bytes: counts.bytes,
            opened: counts.opened,
            expired: counts.expired,
            half_open_evicted: counts.half_open_evicted,
            over_evicted: counts.over_evicted,
            exhausted: exhausted(engine),
            out_of_window: counts.out_of_window,
            icmp_errors: counts.icmp_errors,
            fragments: counts.fragments,
            answered: counts.answered,
            checksums_completed: counts.checksums_completed,
            told_too_long: counts.told_too_long,
            split: counts.split,
            dropped: dropped.filter(|(_, count)| *count > 0).collect(),
            interfaces_gone: Vec::new(),
            services: services(engine),
        }
    }
}

impl Health {
    pub(super) fn of(engine: &Engine) -> Health {
        let service = |service: ServiceStatus| {
            let present = service.backends.iter().filter(|one| !one.is_removed);
            let is_usable = |one: &&BackendStatus| one.is_up && !one.is_drained && one.weight > 0;
            ServiceHealth {
                usable: present.clone().filter(is_usable).count(),
                backends: present.count(),
                name: service.name,
            }
        };
        let configured = services(engine).into_iter().filter(|one| !one.is_removed);
        let services: Vec<_> = configured.map(service).collect();
        Health {
            interfaces_gone: Vec::new(),
            healthy: services.iter().all(|one| one.usable > 0),
            exhausted: exhausted(engine),
            services,
        }
    }
}

fn exhausted(engine: &Engine) -> Vec<String> {
    engine.exhausted().map(|one| one.label().into()).collect()
}

fn services(engine: &Engine) -> Vec<ServiceStatus> {
    let backends_of = |service: u32| {
        let backends = engine.backends().filter(move |one| one.service == service);
        let status = |one: &crate::engine::Backend| BackendStatus {
            address: one.address.to_string(),
            weight: one.weight,
            share: one.share,
            is_up: one.is_up,
            is_drained: one.is_drained,
            is_removed: one.is_removed,
            connections: one.connections,
            opened: one.opened,
        };
        backends.map(status).collect()
    };
    let status = |(id, rule, opened): (u32, &ServiceRule, u64), is_removed| ServiceStatus {
        is_removed,
        name: rule.name.clone(),
        address: rule.address.to_string(),
        protocol: protocol(rule.protocol),
        forward: rule.forward,
        opened,
        backends: backends_of(id),
    };
    let configured = engine.services().map(|one| status(one, false));
    let removed = engine.removed_services().map(|one| status(one, true));
    configured.chain(removed).collect()
}

impl Flow {
    pub(super) fn of(connection: &Connection) -> Flow {
        Flow {
            protocol: protocol(connection.protocol),
            client: connection.client.to_string(),
            service: connection.vip.to_string(),
            backend: connection.target.to_string(),
            source: connection.source.map(|source| source.to_string()),
            phase: connection.phase.label().into(),
            packets: connection.packets,
            bytes: connection.bytes,
        }
    }
}
