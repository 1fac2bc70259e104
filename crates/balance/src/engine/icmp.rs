//! ICMP errors: what they are about, and its translation.

use super::packet::{ICMP_V6, Packet, TCP, UDP, address_at, u16_at};
use super::reason::Reason;
use super::rewrite::{Translation, correct, replace, translate};
use super::sum::Sum;
use std::net::SocketAddr;

/// Kinds of ICMP messages that concern a balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    EchoRequest,
    /// An error about a packet, of which the message contains the begin.
    Error,
    Other,
}

/// Returns the kind of an ICMP packet.
pub(super) fn message(bytes: &[u8], packet: &Packet) -> Message {
    let kind = bytes.get(packet.transport).copied();
    match (kind, packet.protocol == ICMP_V6) {
        (Some(8), false) | (Some(128), true) => Message::EchoRequest,
        // Unreachable, too big, time exceeded, parameter problem.
        (Some(3 | 11 | 12), false) | (Some(1..=4), true) => Message::Error,
        _ => Message::Other,
    }
}

/// Reads the packet that an error is about. It may be cut after its ports.
pub(super) fn embedded(bytes: &[u8], packet: &Packet) -> Result<Packet, Reason> {
    let ip = packet.transport + 8;
    let bytes = bytes.get(..packet.end).ok_or(Reason::IcmpShort)?;
    let first = *bytes.get(ip).ok_or(Reason::IcmpShort)?;
    let is_v6 = packet.is_v6();
    let is_understood = if is_v6 {
        first >> 4 == 6
    } else {
        first == 0x45
    };
    if !is_understood {
        return Err(Reason::IcmpShort);
    }
    let (protocol_at, source_at, destination_at, header) = if is_v6 {
        (6, 8, 24, 40)
    } else {
        (9, 12, 16, 20)
    };
    let address = |at| address_at(bytes, ip + at, is_v6).ok_or(Reason::IcmpShort);
    let (source, destination) = (address(source_at)?, address(destination_at)?);
    let transport = ip + header;
    // A later fragment has no ports.
    let offset = u16_at(bytes, ip + 6).unwrap_or_default() & 0x1fff;
    let protocol = bytes[ip + protocol_at];
    if !is_v6 && offset != 0 || !matches!(protocol, TCP | UDP) {
        return Err(Reason::IcmpShort);
    }
    let port = |at| u16_at(bytes, transport + at).ok_or(Reason::IcmpShort);
    Ok(Packet {
        ip,
        transport,
        end: packet.end,
        protocol,
        source,
        destination,
        source_port: port(0)?,
        destination_port: port(2)?,
        fragment: None,
        tcp: None,
    })
}

/// Translates an error and what it is about.
pub(super) fn translate_error(
    bytes: &mut [u8],
    outer: &Packet,
    about: &Packet,
    new_outer: Translation,
    new_about: Translation,
) {
    let end = outer.end;
    let Some(message) = bytes.get_mut(..end) else {
        return;
    };
    let change = translate(message, about, new_about, false);
    correct(message, outer.transport + 2, change);
    translate(message, outer, new_outer, false);
}

/// Turns a request for an echo into its reply.
pub(super) fn answer_echo(bytes: &mut [u8], packet: &Packet) {
    let kind = if packet.protocol == ICMP_V6 { 129 } else { 0 };
    let swapped = Translation {
        source: Some(SocketAddr::new(packet.destination, 0)),
        destination: Some(SocketAddr::new(packet.source, 0)),
    };
    translate(bytes, packet, swapped, false);
    let code = bytes.get(packet.transport + 1).copied().unwrap_or_default();
    let change: Sum = replace(bytes, packet.transport, &[kind, code]);
    correct(bytes, packet.transport + 2, change);
    let hops = packet.ip + if packet.is_v6() { 7 } else { 8 };
    let fresh = if packet.is_v6() {
        [64, 0]
    } else {
        [64, packet.protocol]
    };
    if packet.is_v6() {
        bytes[hops] = 64;
    } else {
        let change = replace(bytes, hops, &fresh);
        correct(bytes, packet.ip + 10, change);
    }
}
