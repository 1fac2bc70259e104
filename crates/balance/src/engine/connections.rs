//! Connections: their keys in tables of both versions of IP, their states, and their timers.

use super::over::Over;
use super::packet::{Packet, RST};
use super::reason::Reason;
use super::rewrite::Translation;
use super::tcp::{Numbers, Phase, Side, Step, Timeouts};
use outboard_flow::aging::{Due, Timers, Wheel};
use outboard_flow::{BATCH_MAX, FlowTable as _, Growing, NONE, OutOfMemory, Secret, V4, V6};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Duration of a tick of the timers.
const TICK_MS: u64 = 100;
const TICKS: usize = 4096;
/// Time without a packet by a UDP client's link after which packets by another are answered there:
/// nothing proves whose they are.
const LINK_KEPT_MS: u64 = 10_000;
/// Entries for which a table has room at first.
const FLOWS_AT_FIRST: usize = 16_384;

/// Key of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    V4(V4),
    V6(V6),
}

impl Key {
    /// Makes the key of packets from `source` to `destination`; `None` if they are of different
    /// versions of IP.
    pub(super) fn new(source: SocketAddr, destination: SocketAddr, protocol: u8) -> Option<Key> {
        let ports = (source.port(), destination.port());
        match (source.ip(), destination.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                Some(Key::V4(V4::new((from, ports.0), (to, ports.1), protocol)))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                Some(Key::V6(V6::new((from, ports.0), (to, ports.1), protocol)))
            }
            _ => None,
        }
    }

    pub(super) fn of(packet: &Packet) -> Option<Key> {
        Key::new(
            SocketAddr::new(packet.source, packet.source_port),
            SocketAddr::new(packet.destination, packet.destination_port),
            packet.protocol,
        )
    }
}

/// Neighbour on an Ethernet port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    pub port: u16,
    pub mac: [u8; 6],
}

/// A connection from a client to a backend.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Numbers of service and backend, which stay while a connection has them.
    pub service: u32,
    pub backend: u32,
    pub protocol: u8,
    pub client: SocketAddr,
    /// The service's address, to which the client sends.
    pub vip: SocketAddr,
    /// The backend's address.
    pub target: SocketAddr,
    /// The source towards the backend in place of the client's address (full NAT).
    pub source: Option<SocketAddr>,
    /// Packets go to the backend's hardware address as they are, and answers go around.
    pub is_direct: bool,
    pub phase: Phase,
    pub numbers: Numbers,
    pub seen_ms: u64,
    pub client_link: Neighbour,
    /// When a packet last came by that link.
    pub(super) link_ms: u64,
    /// Port of Ethernet where the backend's packets come in, if not by its link, as TCP's numbers
    /// showed.
    pub(super) answers_at: Option<u16>,
    /// Packets from the client, and from the backend.
    pub packets: [u64; 2],
    pub bytes: [u64; 2],
}

impl Connection {
    pub(super) fn key(&self, side: Side) -> Option<Key> {
        match side {
            Side::Client => Key::new(self.client, self.vip, self.protocol),
            Side::Backend if self.is_direct => None,
            Side::Backend => Key::new(
                self.target,
                self.source.unwrap_or(self.client),
                self.protocol,
            ),
        }
    }

    /// Returns how packets of one side are translated.
    pub fn translation(&self, side: Side) -> Translation {
        match side {
            _ if self.is_direct => Translation::default(),
            Side::Client => Translation {
                source: self.source,
                destination: Some(self.target),
            },
            Side::Backend => Translation {
                source: Some(self.vip),
                destination: self.source.map(|_| self.client),
            },
        }
    }

    /// Takes a packet into account. Returns the connection's phase after it, and whether it belongs
    /// to the connection by its numbers.
    pub(super) fn step(&mut self, side: Side, packet: &Packet) -> Result<Step, Reason> {
        match &packet.tcp {
            Some(segment) => {
                let is_cut = packet.fragment.is_some();
                self.numbers.follow(self.phase, side, segment, is_cut)
            }
            None => Ok(Step {
                phase: self.phase.after_udp(side, self.is_direct),
                fits: true,
            }),
        }
    }

    /// Follows the client's link by a packet that belongs to the connection.
    pub(super) fn follow_link(&mut self, packet: &Packet, link: Neighbour, now_ms: u64) {
        let is_followed = match &packet.tcp {
            Some(segment) => !segment.is(RST),
            None => now_ms.saturating_sub(self.link_ms) >= LINK_KEPT_MS,
        };
        if is_followed {
            self.client_link = link;
        }
        if self.client_link == link {
            self.link_ms = now_ms;
        }
    }

    pub(super) fn left_ms(&self, now_ms: u64, timeouts: &Timeouts) -> u64 {
        let end = self.seen_ms.saturating_add(timeouts.of(self.phase));
        end.saturating_sub(now_ms)
    }
}

/// Place of a connection, which no other connection has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) index: u32,
    generation: u32,
}

struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

/// A bounded number of connections.
pub(super) struct Connections {
    rows: Rows,
    wheel: Wheel,
    max: usize,
    secrets: [Secret; 2],
}

struct Rows {
    v4: Growing<V4>,
    v6: Growing<V6>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    over: Over,
}

/// A table's number: a place, and the side whose packets have the key.
fn number(index: u32, side: Side) -> u32 {
    index << 1 | u32::from(side == Side::Backend)
}

fn place_of(number: u32) -> (u32, Side) {
    let side = if number & 1 == 1 {
        Side::Backend
    } else {
        Side::Client
    };
    (number >> 1, side)
}

impl Rows {
    fn insert_key(&mut self, key: Key, number: u32) -> Result<(), outboard_flow::Refused> {
        match key {
            Key::V4(key) => self.v4.insert(key, number),
            Key::V6(key) => self.v6.insert(key, number),
        }
    }

    fn remove_key(&mut self, key: Key) {
        match key {
            Key::V4(key) => self.v4.remove(&key),
            Key::V6(key) => self.v6.remove(&key),
        };
    }

    fn take(&mut self, index: u32) -> Option<Connection> {
        let slot = self.slots.get_mut(index as usize)?;
        let connection = slot.connection.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        self.over.remove(index);
        for key in [Side::Client, Side::Backend].map(|side| connection.key(side)) {
            key.into_iter().for_each(|key| self.remove_key(key));
        }
        Some(connection)
    }
}

/// Number of entries of a table for this many connections: two keys each, and a quarter more.
fn flows_of(connections: usize) -> usize {
    connections * 2 + connections / 2 + 64
}

impl Connections {
    pub(super) fn new(
        max: usize,
        secrets: [Secret; 2],
        now_ms: u64,
    ) -> Result<Connections, OutOfMemory> {
        let max = max.clamp(1, 1 << 28);
        let flows = flows_of(max);
        let first = flows.min(FLOWS_AT_FIRST);
        let [v4, v6] = secrets.clone();
        Ok(Connections {
            secrets,
            rows: Rows {
                v4: Growing::new(first, flows, v4)?,
                v6: Growing::new(first, flows, v6)?,
                slots: Vec::with_capacity(max),
                free: Vec::new(),
                over: Over::new(max),
            },
            wheel: Wheel::new(max, TICKS, now_ms / TICK_MS)?,
            max,
        })
    }

    /// Makes room for these numbers of connections over IPv4 and IPv6 at once: a table that grows
    /// in steps may refuse some of them. Does nothing if there are connections, or no memory.
    pub(super) fn reserve(&mut self, [v4, v6]: [usize; 2]) {
        let max = flows_of(self.max);
        let larger = |count: usize| Some(flows_of(count)).filter(|flows| *flows > FLOWS_AT_FIRST);
        if self.len() > 0 {
            return;
        }
        let [secret_v4, secret_v6] = &self.secrets;
        if let Some(flows) = larger(v4)
            && let Ok(table) = Growing::new(flows.min(max), max, secret_v4.clone())
        {
            self.rows.v4 = table;
        }
        if let Some(flows) = larger(v6)
            && let Ok(table) = Growing::new(flows.min(max), max, secret_v6.clone())
        {
            self.rows.v6 = table;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.slots.len() - self.rows.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    /// Number of connections for which there is room in all.
    pub(super) fn room(&self) -> usize {
        self.max
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.rows
            .slots
            .iter()
            .filter_map(|slot| slot.connection.as_ref())
    }

    pub(super) fn get(&self, index: u32) -> Option<&Connection> {
        self.rows.slots.get(index as usize)?.connection.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut Connection> {
        self.rows.slots.get_mut(index as usize)?.connection.as_mut()
    }

    pub(super) fn find(&self, key: &Key) -> Option<(u32, Side)> {
        let found = match key {
            Key::V4(key) => self.rows.v4.get(key),
            Key::V6(key) => self.rows.v6.get(key),
        };
        found.map(place_of)
    }

    /// Looks up IPv4 keys together: a number of [`Connections::found`] for each.
    pub(super) fn find_batch(&self, keys: &[V4], numbers: &mut [u32; BATCH_MAX]) {
        let count = keys.len().min(BATCH_MAX);
        self.rows
            .v4
            .get_batch(&keys[..count], &mut numbers[..count]);
    }

    /// Returns the connection that a batch found for `key`, if it is still there.
    pub(super) fn found(&self, number: u32, key: &Key) -> Option<(u32, Side)> {
        if number == NONE {
            return None;
        }
        let (index, side) = place_of(number);
        let connection = self.get(index)?;
        (connection.key(side).as_ref() == Some(key)).then_some((index, side))
    }

    /// Adds a connection, unless there is no room or a key of its is there.
    pub(super) fn insert(
        &mut self,
        connection: Connection,
        timeouts: &Timeouts,
        now_ms: u64,
    ) -> Result<Place, Reason> {
        let forward = connection.key(Side::Client).ok_or(Reason::NoService)?;
        let rows = &mut self.rows;
        let fresh = rows.slots.len();
        let index = rows
            .free
            .last()
            .copied()
            .or((fresh < self.max).then_some(fresh as u32));
        let index = index.ok_or(Reason::TableFull)?;
        let refused = |refused| match refused {
            outboard_flow::Refused::Present(_) => Reason::TupleInUse,
            outboard_flow::Refused::Full => Reason::TableFull,
        };
        rows.insert_key(forward, number(index, Side::Client))
            .map_err(refused)?;
        if let Some(reverse) = connection.key(Side::Backend)
            && let Err(why) = rows.insert_key(reverse, number(index, Side::Backend))
        {
            rows.remove_key(forward);
            return Err(refused(why));
        }
        let after = connection.left_ms(now_ms, timeouts);
        if connection.phase.is_over() {
            rows.over.push(connection.backend, index);
        }
        if rows.free.pop().is_none() {
            rows.slots.push(Slot {
                generation: 0,
                connection: None,
            });
        }
        let slot = &mut rows.slots[index as usize];
        slot.connection = Some(connection);
        let generation = slot.generation;
        self.arm(index, now_ms, after);
        Ok(Place { index, generation })
    }

    /// Notes whether a connection whose phase has changed is over.
    pub(super) fn note_over(&mut self, index: u32) {
        let rows = &mut self.rows;
        let slot = rows.slots.get(index as usize);
        match slot.and_then(|slot| slot.connection.as_ref()) {
            Some(one) if one.phase.is_over() => rows.over.push(one.backend, index),
            _ => rows.over.remove(index),
        }
    }

    /// Returns the connection that has been over for the longest time.
    pub(super) fn oldest_over(&self) -> Option<u32> {
        self.rows.over.oldest()
    }

    /// Returns a backend's connections that are over, the oldest first.
    pub(super) fn over_of(&self, backend: u32) -> impl Iterator<Item = (u32, &Connection)> {
        let of = self.rows.over.of_backend(backend);
        of.filter_map(|index| Some((index, self.get(index)?)))
    }

    /// Has all connections looked at by these timeouts, which may be shorter than those before.
    pub(super) fn arm_all(&mut self, now_ms: u64, timeouts: &Timeouts) {
        for (index, slot) in (0u32..).zip(&self.rows.slots) {
            if let Some(connection) = &slot.connection {
                let left_ms = connection.left_ms(now_ms, timeouts);
                self.wheel
                    .set(index, now_ms / TICK_MS, left_ms / TICK_MS + 1);
            }
        }
    }

    /// Has a connection looked at after a time.
    pub(super) fn arm(&mut self, index: u32, now_ms: u64, after_ms: u64) {
        self.wheel
            .set(index, now_ms / TICK_MS, after_ms / TICK_MS + 1);
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<Connection> {
        let connection = self.rows.take(index)?;
        self.wheel.cancel(index);
        Some(connection)
    }

    /// Returns whether the connection at a place is still there.
    pub(super) fn is_at(&self, place: Place) -> bool {
        let slot = self.rows.slots.get(place.index as usize);
        slot.is_some_and(|slot| slot.generation == place.generation && slot.connection.is_some())
    }

    /// Removes the connection at a place, unless another has it by now.
    pub(super) fn remove_at(&mut self, place: Place) -> Option<Connection> {
        let slot = self.rows.slots.get(place.index as usize)?;
        if slot.generation == place.generation {
            self.remove(place.index)
        } else {
            None
        }
    }

    /// Removes connections that are over, looking at about `budget` of them.
    pub(super) fn age(
        &mut self,
        now_ms: u64,
        budget: usize,
        timeouts: &Timeouts,
        expired: impl FnMut(Connection),
    ) {
        let rows = &mut self.rows;
        let mut fired = Fired {
            rows,
            timeouts,
            now_ms,
            expired,
        };
        self.wheel.advance(now_ms / TICK_MS, budget, &mut fired);
    }
}

/// Removes the connections whose timers fired, unless they were used since.
struct Fired<'a, F> {
    rows: &'a mut Rows,
    timeouts: &'a Timeouts,
    now_ms: u64,
    expired: F,
}

impl<F: FnMut(Connection)> Timers for Fired<'_, F> {
    fn due(&mut self, entries: &[u32], answers: &mut [Due]) {
        for (entry, answer) in entries.iter().zip(answers) {
            let slot = self.rows.slots.get(*entry as usize);
            let connection = slot.and_then(|slot| slot.connection.as_ref());
            match connection.map_or(0, |one| one.left_ms(self.now_ms, self.timeouts)) {
                0 => self
                    .rows
                    .take(*entry)
                    .into_iter()
                    .for_each(&mut self.expired),
                left => *answer = Due::Again(left / TICK_MS + 1),
            }
        }
    }
}
