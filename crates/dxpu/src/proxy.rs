//! Routing at both proxies (section 3.3.3), without I/O.

use crate::{
    packet::{End, Node, Route},
    switch::{Bridge, Port},
    tables::{Assigned, BoxTable, HostEntry, HostTable, TableError},
    tlp::{Id, Kind, MessageRoute, Status},
};

/// Decision of the host's proxy about a transaction from the root complex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Goes to each of these boxes; the kind may have changed on the way through the switch.
    Forward { routes: Vec<Route>, kind: Kind },
    /// The switch itself answers: a completion, with a register's value if it was read.
    Answer { kind: Kind, value: Option<u32> },
    /// Ends here: a local message, or a posted write that nobody has the address of.
    Dropped,
}

/// Proxy of a host: Table 2, and the switch that the host sees.
#[derive(Debug, Clone)]
pub struct HostProxy {
    node: Node,
    table: HostTable,
    up: Bridge,
    down: Vec<Bridge>,
    up_id: Id,
}

impl HostProxy {
    /// Makes a proxy whose switch has this many slots.
    pub fn new(node: Node, slots: usize) -> HostProxy {
        let table = HostTable::new(slots);
        HostProxy {
            node,
            down: vec![Bridge::new(Port::Down); table.entries().len()],
            table,
            up: Bridge::new(Port::Up),
            up_id: Id::default(),
        }
    }

    pub fn table(&self) -> &HostTable {
        &self.table
    }

    /// Assigns a GPU to a free slot, which the host sees as a hot plug.
    pub fn plug(&mut self, gpu: Assigned) -> Result<usize, TableError> {
        let number = self.table.assign(gpu)?;
        self.down[number].plug(true);
        Ok(number)
    }

    pub fn unplug(&mut self, number: usize) -> Result<Assigned, TableError> {
        let gpu = self.table.release(number)?;
        self.down[number].plug(false);
        Ok(gpu)
    }

    fn route(&self, entry: Option<&HostEntry>) -> Option<Route> {
        let gpu = entry?.assigned?;
        let (node, slot) = (gpu.gpu_box, gpu.slot);
        Some(Route {
            from: End {
                node: self.node,
                slot: 0,
            },
            to: End { node, slot },
            path: gpu.path,
        })
    }

    /// Returns true if a packet comes from a GPU that this host has.
    pub fn admits(&self, route: &Route) -> bool {
        let is_sender =
            |gpu: &Assigned| gpu.gpu_box == route.from.node && gpu.slot == route.from.slot;
        let mut used = self
            .table
            .entries()
            .iter()
            .filter_map(|e| e.assigned.as_ref());
        route.to
            == End {
                node: self.node,
                slot: 0,
            }
            && used.any(is_sender)
    }

    /// Decides about a transaction from the root complex. `data` are the data of a write.
    pub fn take(&mut self, kind: &Kind, data: &[u8]) -> Decision {
        match kind {
            Kind::MemoryRead { address, .. } | Kind::MemoryWrite { address, .. } => {
                self.forward(self.route(self.table.by_address(*address)), kind)
            }
            Kind::IoRead { address, .. } | Kind::IoWrite { address, .. } => {
                self.forward(self.route(self.table.by_io(*address)), kind)
            }
            // The answer to a GPU's own read.
            Kind::Completion { requester, .. } => {
                self.forward(self.route(self.table.by_id(*requester)), kind)
            }
            Kind::ConfigurationRead { .. } | Kind::ConfigurationWrite { .. } => {
                self.configuration(kind, data)
            }
            Kind::Message { route, .. } => match route {
                MessageRoute::ByAddress(address) => {
                    self.forward(self.route(self.table.by_address(*address)), kind)
                }
                MessageRoute::ById(id) => self.forward(self.route(self.table.by_id(*id)), kind),
                MessageRoute::BroadcastFromRoot => {
                    let used = self.table.entries().iter().filter(|entry| entry.is_used);
                    let routes = used.filter_map(|entry| self.route(Some(entry))).collect();
                    Decision::Forward {
                        routes,
                        kind: *kind,
                    }
                }
                // These come from below, or end at the link.
                MessageRoute::Local
                | MessageRoute::ToRootComplex
                | MessageRoute::GatheredToRoot => Decision::Dropped,
            },
        }
    }

    fn forward(&self, route: Option<Route>, kind: &Kind) -> Decision {
        match route {
            Some(route) => Decision::Forward {
                routes: vec![route],
                kind: *kind,
            },
            None => self.refuse(kind),
        }
    }

    /// Answers that nobody is there; posted transactions get no answer.
    fn refuse(&self, kind: &Kind) -> Decision {
        let (Kind::MemoryRead { request, .. }
        | Kind::IoRead { request, .. }
        | Kind::IoWrite { request, .. }
        | Kind::ConfigurationRead { request, .. }
        | Kind::ConfigurationWrite { request, .. }) = kind
        else {
            return Decision::Dropped;
        };
        let status = Status::UnsupportedRequest;
        let kind = completion(self.up_id, request.requester, request.tag, status);
        Decision::Answer { kind, value: None }
    }

    /// Handles configuration as a switch does: type 0 is for its upper bridge; type 1 is for a
    /// lower bridge, for the device below one, which gets type 0, or for a bus further below.
    fn configuration(&mut self, kind: &Kind, data: &[u8]) -> Decision {
        let (request, target, register, is_local, is_write) = match *kind {
            Kind::ConfigurationRead {
                request,
                target,
                register,
                is_local,
            } => (request, target, register, is_local, false),
            Kind::ConfigurationWrite {
                request,
                target,
                register,
                is_local,
            } => (request, target, register, is_local, true),
            _ => return Decision::Dropped,
        };
        let value = data.try_into().map_or(0, u32::from_le_bytes);
        let number = usize::from(target.device());
        let bridge = if is_local {
            self.up_id = target;
            (target.device() == 0 && target.function() == 0).then_some(&mut self.up)
        } else if target.bus() == self.up.secondary() && target.function() == 0 {
            self.down.get_mut(number)
        } else {
            return self.below(kind, target);
        };
        let Some(bridge) = bridge else {
            return self.refuse(kind);
        };
        let mut read = None;
        match is_write {
            true => bridge.write(register, value, request.first_enable),
            false => read = Some(bridge.read(register)),
        }
        if is_write && !is_local {
            self.observe(number);
        }
        let kind = completion(target, request.requester, request.tag, Status::Successful);
        Decision::Answer { kind, value: read }
    }

    /// Rewrites bus, base and limit of an entry after a write to its bridge, as the paper says.
    fn observe(&mut self, number: usize) {
        let bridge = &self.down[number];
        if let Some(entry) = self.table.entry_mut(number) {
            entry.bus = bridge.secondary();
            entry.memory = bridge.memory();
            entry.prefetchable = bridge.prefetchable();
            entry.io = bridge.io();
        }
    }

    fn below(&self, kind: &Kind, target: Id) -> Decision {
        let has = |bridge: &Bridge| {
            bridge.secondary() != 0
                && (bridge.secondary()..=bridge.subordinate()).contains(&target.bus())
        };
        let found = self.down.iter().position(has);
        let Some((number, bridge)) = found.map(|number| (number, &self.down[number])) else {
            return self.refuse(kind);
        };
        let is_next = target.bus() == bridge.secondary();
        if is_next && target.device() != 0 {
            return self.refuse(kind);
        }
        let entry = self
            .table
            .entries()
            .get(number)
            .filter(|entry| entry.is_used);
        let mut passed = *kind;
        if let Kind::ConfigurationRead { is_local, .. }
        | Kind::ConfigurationWrite { is_local, .. } = &mut passed
        {
            *is_local = is_next;
        }
        match self.route(entry) {
            Some(route) => Decision::Forward {
                routes: vec![route],
                kind: passed,
            },
            None => self.refuse(kind),
        }
    }
}

/// Makes a completion of one doubleword.
pub fn completion(completer: Id, requester: Id, tag: u16, status: Status) -> Kind {
    Kind::Completion {
        completer,
        requester,
        tag,
        status,
        byte_count: 4,
        lower_address: 0,
    }
}

/// Proxy of a GPU box: each GPU has one host, so there is nothing to look up in transactions.
#[derive(Debug, Clone)]
pub struct BoxProxy {
    node: Node,
    pub table: BoxTable,
}

impl BoxProxy {
    pub fn new(node: Node, slots: usize) -> BoxProxy {
        BoxProxy {
            node,
            table: BoxTable::new(slots),
        }
    }

    /// Returns the way of all that the GPU in a slot sends; none if nobody has it.
    pub fn route(&self, slot: u8) -> Option<Route> {
        let (to, path) = self.table.host_of(slot)?;
        let from = End {
            node: self.node,
            slot,
        };
        Some(Route { from, to, path })
    }

    /// Returns the slot that a packet is for, if it comes from that GPU's host.
    pub fn admits(&self, route: &Route) -> Option<u8> {
        let slot = route.to.slot;
        let (host, _) = self.table.host_of(slot)?;
        (route.to.node == self.node && route.from == host).then_some(slot)
    }
}
