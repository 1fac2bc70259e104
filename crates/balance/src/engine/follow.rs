//! Packets of connections that are known.

use super::connections::{Connection, Connections, Key};
use super::open::{client_link, is_opening};
use super::packet::{ICMP_V6, Packet, TCP, UDP};
use super::reason::Reason;
use super::tcp::{Phase, Side, Step};
use super::{Engine, Frame, Parsed, Table, arp};

impl Engine {
    pub(super) fn parse(&self, frame: &Frame) -> Result<Parsed, Reason> {
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

    /// Handles a packet; `number` is what a batch found for its key.
    pub(super) fn handle(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
        number: u32,
    ) -> Result<u16, Reason> {
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

    pub(super) fn find(&self, packet: &Packet, number: u32) -> Option<(Table, u32, Side)> {
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

    pub(super) fn table(&self, table: Table) -> &Connections {
        match table {
            Table::Open => &self.open,
            Table::HalfOpen => &self.half_open,
        }
    }

    pub(super) fn table_mut(&mut self, table: Table) -> &mut Connections {
        match table {
            Table::Open => &mut self.open,
            Table::HalfOpen => &mut self.half_open,
        }
    }

    /// Handles a packet of a connection that is known.
    pub(super) fn follow(
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
        let comes_by_link = self.services.comes_by(connection.backend, frame.port);
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
        if side == Side::Backend && !comes_by_link {
            connection.answers_at = Some(frame.port);
        }
        connection.packets[side as usize] += 1;
        connection.bytes[side as usize] += (packet.end - packet.ip) as u64;
        self.counts.out_of_window += u64::from(!fits);
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
            Table::HalfOpen if self.timeouts.of(phase) < self.timeouts.of(before) => {
                let after_ms = self.timeouts.of(phase);
                self.half_open.arm(index, now_ms, after_ms);
            }
            _ => {}
        }
        self.count(side, packet);
        self.begin_fragments(frame, packet, route)
    }

    /// Returns whether the client's next packet goes to another backend, since its own is down: UDP
    /// has no state that would be lost. It stays if there is no other.
    pub(super) fn moves(&self, connection: &Connection) -> bool {
        let is_down = |id| self.services.backend(id).is_some_and(|one| !one.is_up);
        connection.protocol == UDP
            && is_down(connection.backend)
            && self
                .services
                .choose(connection.service, connection.client)
                .is_ok_and(|(other, _)| !is_down(other))
    }

    pub(super) fn count(&mut self, side: Side, packet: &Packet) {
        self.counts.packets[side as usize] += 1;
        self.counts.bytes[side as usize] += (packet.end - packet.ip) as u64;
    }

    pub(super) fn remove(&mut self, table: Table, index: u32) {
        let removed = self.table_mut(table).remove(index);
        if let Some(connection) = removed.filter(|_| table == Table::Open) {
            self.services.closed(&connection);
        }
    }

    /// Returns whether a backend's packet comes in where that backend is, or shows by its numbers
    /// whose it is.
    pub(super) fn check_interface(
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
            || connection.answers_at == Some(frame.port)
            || is_backends();
        is_taken.then_some(()).ok_or(Reason::WrongInterface)
    }

    /// Moves a connection that both sides have confirmed to those that are open.
    pub(super) fn promote(&mut self, index: u32) -> Result<(), Reason> {
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
}
