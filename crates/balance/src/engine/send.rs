//! The way of a packet that goes on, and its frame there.

use super::connections::{Connection, Neighbour};
use super::fragments::Route;
use super::packet::{Fragment, Packet};
use super::reason::Reason;
use super::tcp::Side;
use super::{Engine, Frame, rewrite};

impl Engine {
    /// Returns the way of a connection's packet, if it can go there.
    pub(super) fn route(
        &self,
        frame: &Frame,
        packet: &Packet,
        connection: &Connection,
        side: Side,
    ) -> Result<Route, Reason> {
        let is_ethernet = self.port(frame.port).mac.is_some();
        let link = match side {
            _ if !is_ethernet => Some(Neighbour {
                port: frame.port,
                mac: [0; 6],
            }),
            Side::Client => self
                .services
                .backend(connection.backend)
                .and_then(|backend| backend.link),
            Side::Backend => Some(connection.client_link),
        };
        let hops_at = packet.ip + if packet.is_v6() { 7 } else { 8 };
        let hops = frame.bytes.get(hops_at).copied().unwrap_or_default();
        if is_ethernet && !connection.is_direct && hops <= 1 {
            return Err(Reason::HopLimit);
        }
        Ok(Route {
            translation: connection.translation(side),
            link: link.ok_or(Reason::NoNeighbour)?,
            id: None,
            is_direct: connection.is_direct,
        })
    }

    /// Sends a packet, and has its fragments follow if it is the first of several.
    pub(super) fn begin_fragments(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
        route: Route,
    ) -> Result<u16, Reason> {
        // A packet of one fragment, as IPv6 allows it (RFC 6946), has none that follow.
        let several = |one: &&Fragment| one.begin > 0 || !one.is_last;
        let Some(fragment) = packet.fragment.as_ref().filter(several) else {
            return self.send(frame, packet, route);
        };
        let route = self.fragments.begin(packet, fragment, route, self.now_ms)?;
        self.counts.fragments += 1;
        self.send(frame, packet, route)
    }

    pub(super) fn send(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
        mut route: Route,
    ) -> Result<u16, Reason> {
        let exceeded = self.exceeded(frame, packet, route.link.port);
        if exceeded.is_some() {
            if !Engine::may_be_split(frame, packet) {
                return Err(Reason::TooLong);
            }
            // Nobody can fill in a checksum over several fragments.
            frame.partial = false;
            if packet.fragment.is_none() && !route.is_direct {
                route.id = Some(self.fragments.new_id());
            }
        }
        let bytes = &mut frame.bytes;
        if !frame.partial && !packet.is_later_fragment() && rewrite::complete(bytes, packet) {
            self.counts.checksums_completed += 1;
        }
        rewrite::translate(bytes, packet, route.translation, frame.partial);
        if let Some(id) = route.id {
            let at = packet.fragment.map_or(packet.ip + 4, |one| one.id_at);
            rewrite::identify(bytes, packet, at, id);
        }
        let port = self.address_frame(frame, packet, route.link, route.is_direct)?;
        if let Some(mtu) = exceeded {
            self.split(frame, packet, port, mtu)?;
        }
        Ok(port)
    }

    /// Writes the hardware addresses of a frame's next hop.
    pub(super) fn address_frame(
        &self,
        frame: &mut Frame,
        packet: &Packet,
        link: Neighbour,
        is_direct: bool,
    ) -> Result<u16, Reason> {
        let Some(mac) = self.port(link.port).mac else {
            return Ok(link.port);
        };
        if !is_direct && !rewrite::hop(&mut frame.bytes, packet) {
            return Err(Reason::HopLimit);
        }
        let header = frame.bytes.get_mut(..12).ok_or(Reason::Cut)?;
        header[..6].copy_from_slice(&link.mac);
        header[6..].copy_from_slice(&mac);
        // A frame may be padded, and the padding would be sent to others.
        frame.bytes.truncate(packet.end.max(60));
        frame.bytes[packet.end..].fill(0);
        Ok(link.port)
    }
}
