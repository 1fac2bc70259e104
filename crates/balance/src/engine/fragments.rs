//! Fragments: the first decides where all of a packet go, the rest follow.

use super::connections::Neighbour;
use super::packet::{Fragment, Packet};
use super::reason::Reason;
use super::rewrite::Translation;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// Time within which all fragments of a packet must come.
pub const FRAGMENTS_MS_MAX: u64 = 30_000;
/// Age of a packet that is not complete whose name another packet may have, from the same sender.
const FRAGMENTS_NAME_MS: u64 = 1_000;
/// Fragments of one packet that are followed.
pub const FRAGMENTS_A_PACKET_MAX: usize = 64;

/// Where the fragments of a packet go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) translation: Translation,
    /// Port and hardware address of the next hop.
    pub(super) link: Neighbour,
    /// Identification in place of the sender's: senders that now share an address do not
    /// share their numbers.
    pub(super) id: Option<u32>,
    pub(super) is_direct: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    id: u32,
}

impl Name {
    fn of(packet: &Packet, fragment: &Fragment) -> Name {
        Name {
            source: packet.source,
            destination: packet.destination,
            // IPv6 names packets without the protocol, which only the first fragment tells.
            protocol: if packet.is_v6() { 0 } else { packet.protocol },
            id: fragment.id,
        }
    }
}

struct Entry {
    route: Route,
    begun_ms: u64,
    /// Beginnings and ends of what was sent on.
    ranges: Vec<(u32, u32)>,
    /// End of the packet, as its last fragment tells.
    end: Option<u32>,
}

impl Entry {
    /// Returns whether all fragments were sent on, none of which overlaps another.
    fn is_complete(&self) -> bool {
        let bytes: u32 = self.ranges.iter().map(|(begin, end)| end - begin).sum();
        self.end == Some(bytes)
    }
}

/// Packets of which fragments are expected, up to a number; the oldest makes room.
pub(super) struct Fragments {
    entries: HashMap<Name, Entry>,
    order: VecDeque<(Name, u64)>,
    max: usize,
    next_id: u32,
}

impl Fragments {
    pub(super) fn new(max: usize) -> Fragments {
        Fragments {
            entries: HashMap::new(),
            order: VecDeque::new(),
            max: max.max(1),
            next_id: 1,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns an identification for a packet in fragments.
    pub(super) fn new_id(&mut self) -> u32 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Notes the first fragment of a packet and its route. Returns the route with its number.
    pub(super) fn begin(
        &mut self,
        packet: &Packet,
        fragment: &Fragment,
        route: Route,
        now_ms: u64,
    ) -> Result<Route, Reason> {
        self.forget(now_ms);
        let name = Name::of(packet, fragment);
        // Senders use a name again after 65,536 packets, and sockets of one host share the names.
        let before = self.entries.get(&name);
        if before.is_some_and(|one| now_ms.saturating_sub(one.begun_ms) < FRAGMENTS_NAME_MS) {
            return Err(Reason::FragmentOverlap);
        }
        while self.entries.len() >= self.max {
            let Some((oldest, begun_ms)) = self.order.pop_front() else {
                break;
            };
            self.remove(&oldest, begun_ms);
        }
        let id = self.new_id();
        let route = Route {
            id: (!route.is_direct).then_some(id),
            ..route
        };
        let entry = Entry {
            route,
            begun_ms: now_ms,
            ranges: vec![(fragment.begin, fragment.end)],
            end: fragment.is_last.then_some(fragment.end),
        };
        self.entries.insert(name, entry);
        self.order.push_back((name, now_ms));
        if self.order.len() > self.max * 2 {
            let entries = &self.entries;
            self.order.retain(|(name, begun_ms)| {
                let entry = entries.get(name);
                entry.is_some_and(|one| one.begun_ms == *begun_ms)
            });
        }
        Ok(route)
    }

    /// Returns the route of a later fragment.
    pub(super) fn follow(
        &mut self,
        packet: &Packet,
        fragment: &Fragment,
        now_ms: u64,
    ) -> Result<Route, Reason> {
        self.forget(now_ms);
        let name = Name::of(packet, fragment);
        let entry = self.entries.get_mut(&name);
        let entry = entry.ok_or(Reason::FragmentUnknown)?;
        let (begin, end) = (fragment.begin, fragment.end);
        if entry
            .ranges
            .iter()
            .any(|range| begin < range.1 && range.0 < end)
        {
            return Err(Reason::FragmentOverlap);
        }
        if entry.ranges.len() >= FRAGMENTS_A_PACKET_MAX {
            return Err(Reason::FragmentsTooMany);
        }
        entry.ranges.push((begin, end));
        if fragment.is_last {
            entry.end = Some(end);
        }
        let route = entry.route;
        if entry.is_complete() {
            self.entries.remove(&name);
        }
        Ok(route)
    }

    /// Returns the route that a later fragment would take.
    pub(super) fn find(&self, packet: &Packet, fragment: &Fragment) -> Option<Route> {
        self.entries
            .get(&Name::of(packet, fragment))
            .map(|entry| entry.route)
    }

    fn forget(&mut self, now_ms: u64) {
        while let Some((name, begun_ms)) = self.order.front().copied() {
            if now_ms.saturating_sub(begun_ms) < FRAGMENTS_MS_MAX {
                break;
            }
            self.order.pop_front();
            self.remove(&name, begun_ms);
        }
    }

    /// Removes a packet, unless its name is another one's by now.
    fn remove(&mut self, name: &Name, begun_ms: u64) {
        let entry = self.entries.get(name);
        if entry.is_some_and(|one| one.begun_ms == begun_ms) {
            self.entries.remove(name);
        }
    }
}
