//! Questions answered (ARP, neighbours, echo), and ICMP errors translated.

use super::connections::Key;
use super::fragments::Route;
use super::packet::Packet;
use super::reason::Reason;
use super::tcp::Side;
use super::{Engine, Frame, Table, arp, icmp, rewrite};
use std::net::{IpAddr, SocketAddr};

impl Engine {
    pub(super) fn answer_arp(&mut self, frame: &mut Frame, address: IpAddr) -> Result<u16, Reason> {
        let mac = self.port(frame.port).mac.ok_or(Reason::NotOurs)?;
        if !self.services.is_own(address) {
            return Err(Reason::NotOurs);
        }
        arp::answer(&mut frame.bytes, address, mac);
        Ok(self.answer(frame))
    }

    pub(super) fn answer(&mut self, frame: &mut Frame) -> u16 {
        self.counts.answered += 1;
        self.turn_around(frame)
    }

    /// Sends a frame back to where it came from.
    pub(super) fn turn_around(&self, frame: &mut Frame) -> u16 {
        if let Some(mac) = self.port(frame.port).mac {
            frame.bytes.copy_within(6..12, 0);
            frame.bytes[6..12].copy_from_slice(&mac);
        }
        frame.port
    }

    pub(super) fn handle_icmp(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
    ) -> Result<u16, Reason> {
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
    pub(super) fn translate_error(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
    ) -> Result<u16, Reason> {
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
    pub(super) fn route_error(
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
