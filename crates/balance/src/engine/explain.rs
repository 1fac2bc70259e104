//! Explains why a frame would go where it goes, without changing anything.

use super::connections::Connection;
use super::open::GivesWay;
use super::packet::{Packet, TCP, UDP};
use super::reason::Reason;
use super::rewrite::Translation;
use super::{Engine, Frame, Parsed, Route, Side, Table, icmp};
use outboard_flow::NONE;
use std::net::SocketAddr;

impl Engine {
    /// Returns the steps of the decision about a frame, the outcome last.
    pub fn explain(&self, frame: &Frame) -> Vec<String> {
        let mut steps = Vec::new();
        let outcome = match self.parse(frame) {
            Ok(Parsed::Arp(address)) if self.services.is_own(address) => {
                steps.push(format!("asks for the hardware address of {address}"));
                Ok("answered by the balancer".to_string())
            }
            Ok(Parsed::Arp(_)) => Err(Reason::NotOurs),
            Ok(Parsed::Ip(packet)) => self.explain_packet(frame, &packet, &mut steps),
            Err(reason) => Err(reason),
        };
        steps.push(match outcome {
            Ok(outcome) => outcome,
            Err(reason) => format!("dropped: {reason} ({})", reason.label()),
        });
        steps
    }

    fn explain_packet(
        &self,
        frame: &Frame,
        packet: &Packet,
        steps: &mut Vec<String>,
    ) -> Result<String, Reason> {
        steps.push(describe(packet));
        if let Some(fragment) = packet.fragment.filter(|_| packet.is_later_fragment()) {
            let route = self
                .fragments
                .find(packet, &fragment)
                .ok_or(Reason::FragmentUnknown)?;
            steps.push("follows the first fragment of its packet".into());
            self.explain_length(frame, packet, &route, steps)?;
            return Ok(sent(&route.translation, route.is_direct));
        }
        if !matches!(packet.protocol, TCP | UDP) {
            return self.explain_icmp(frame, packet, steps);
        }
        let mut over = None;
        if let Some((table, index, side)) = self.find(packet, NONE) {
            let connection = self.table(table).get(index).ok_or(Reason::NoConnection)?;
            steps.push(describe_connection(connection, table, side));
            let reopens = packet.tcp.is_some_and(|tcp| super::open::is_opening(&tcp));
            let moves = side == Side::Client && self.moves(connection);
            if !moves && (side == Side::Backend || !connection.phase.is_over() || !reopens) {
                self.check_interface(frame, packet, connection, side)?;
                if packet.tcp.is_some() {
                    let step = connection.clone().step(side, packet)?;
                    if !step.fits {
                        steps.push("out of its window: nothing is noted of it".into());
                    }
                    steps.push(format!("its phase is then {}", step.phase.label()));
                }
                let route = self.route(frame, packet, connection, side)?;
                self.explain_length(frame, packet, &route, steps)?;
                return Ok(sent(&route.translation, route.is_direct));
            }
            let why = if moves {
                "its backend is down"
            } else {
                "it is over"
            };
            steps.push(format!("{why}: this opens a new one"));
            over = (table == Table::Open).then_some(index);
        }
        self.explain_opening(frame, packet, over, steps)
    }

    /// Explains a packet that opens a connection, in place of one that is `over` if there is one.
    fn explain_opening(
        &self,
        frame: &Frame,
        packet: &Packet,
        over: Option<u32>,
        steps: &mut Vec<String>,
    ) -> Result<String, Reason> {
        let plan = self.plan(frame, packet, over)?;
        let connection = plan.connection;
        let (_, is_kept) = self
            .services
            .choose(connection.service, connection.client)?;
        let name = self
            .services
            .service(connection.service)
            .map(|one| one.rule.name.as_str());
        steps.push(format!(
            "opens a connection to service {}",
            name.unwrap_or_default()
        ));
        let why = if is_kept {
            "the client's other connections"
        } else {
            "its hash"
        };
        steps.push(format!("{why} decided for backend {}", connection.target));
        let gives_way = plan.gives_way.and_then(|way| match way {
            GivesWay::Over(index) => Some((self.open.get(index)?, "over")),
            GivesWay::HalfOpen(index) => Some((self.half_open.get(index)?, "half-open")),
        });
        if let Some((one, state)) = gives_way {
            let (client, source) = (one.client, one.source.unwrap_or(one.client));
            steps.push(format!(
                "the connection of {client}, which is {state}, gives {source} up for it"
            ));
        }
        let route = self.route(frame, packet, &connection, Side::Client)?;
        self.explain_length(frame, packet, &route, steps)?;
        Ok(sent(&route.translation, route.is_direct))
    }

    fn explain_length(
        &self,
        frame: &Frame,
        packet: &Packet,
        route: &Route,
        steps: &mut Vec<String>,
    ) -> Result<(), Reason> {
        if let Some(mtu) = self.exceeded(frame, packet, route.link.port) {
            steps.push(format!("the next hop's link takes {mtu} bytes"));
            if !Engine::may_be_split(frame, packet) {
                return Err(Reason::TooLong);
            }
            steps.push("it goes in fragments".into());
        }
        Ok(())
    }

    fn explain_icmp(
        &self,
        frame: &Frame,
        packet: &Packet,
        steps: &mut Vec<String>,
    ) -> Result<String, Reason> {
        match icmp::message(&frame.bytes, packet) {
            _ if packet.fragment.is_some() => Err(Reason::Protocol),
            icmp::Message::EchoRequest if self.services.is_own(packet.destination) => {
                Ok("answered by the balancer".into())
            }
            icmp::Message::Error => {
                let about = icmp::embedded(&frame.bytes, packet)?;
                steps.push(format!("an error about {}", describe(&about)));
                let (route, outer, _) = self.route_error(frame, packet, &about)?;
                if self.exceeded(frame, packet, route.link.port).is_some() {
                    return Err(Reason::TooLong);
                }
                Ok(sent(&outer, route.is_direct))
            }
            _ if self.services.is_own(packet.destination) => Err(Reason::Protocol),
            _ => Err(Reason::NotOurs),
        }
    }
}

fn describe(packet: &Packet) -> String {
    let [source, destination] = [
        SocketAddr::new(packet.source, packet.source_port),
        SocketAddr::new(packet.destination, packet.destination_port),
    ];
    match (packet.protocol, packet.is_later_fragment()) {
        (TCP, false) => format!("tcp from {source} to {destination}"),
        (UDP, false) => format!("udp from {source} to {destination}"),
        (other, true) => format!(
            "a later fragment of protocol {other} from {} to {}",
            packet.source, packet.destination
        ),
        (other, false) => {
            format!(
                "protocol {other} from {} to {}",
                packet.source, packet.destination
            )
        }
    }
}

fn describe_connection(connection: &Connection, table: Table, side: Side) -> String {
    let whose = match side {
        Side::Client => "the client's side",
        Side::Backend => "the backend's side",
    };
    let kind = match table {
        Table::Open => "",
        Table::HalfOpen => "half-open ",
    };
    format!(
        "{whose} of the {kind}connection from {} by {} to {}, phase {}",
        connection.client,
        connection.vip,
        connection.target,
        connection.phase.label()
    )
}

fn sent(translation: &Translation, is_direct: bool) -> String {
    if is_direct {
        return "sent on unchanged, to the backend's hardware address".into();
    }
    let part = |name: &str, new: Option<SocketAddr>| new.map(|new| format!("{name} {new}"));
    let parts = [
        part("source", translation.source),
        part("destination", translation.destination),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    format!("sent on with {}", parts.join(" and "))
}
