//! Answers questions for the hardware addresses of services (ARP, and IPv6's neighbour discovery).

use super::packet::{ICMP_V6, Packet, address_at};
use super::rewrite::{Octets, pseudo};
use super::sum::Sum;
use std::net::{IpAddr, Ipv4Addr};

pub(super) const ETHERNET_BYTES: usize = 14;
const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
const SOLICITATION: u8 = 135;

/// Returns the address that an ARP request asks for.
pub(super) fn asked(bytes: &[u8]) -> Option<IpAddr> {
    let arp = bytes.get(ETHERNET_BYTES..ETHERNET_BYTES + 28)?;
    if arp[..8] != REQUEST {
        return None;
    }
    address_at(arp, 24, false)
}

/// Turns an ARP request into its answer.
pub(super) fn answer(bytes: &mut [u8], address: IpAddr, mac: [u8; 6]) {
    let Some(arp) = bytes.get_mut(ETHERNET_BYTES..ETHERNET_BYTES + 28) else {
        return;
    };
    arp[7] = 2;
    arp.copy_within(8..18, 18);
    arp[8..14].copy_from_slice(&mac);
    arp[14..18].copy_from_slice(&Octets::of(address));
}

/// Returns the address that a neighbour solicitation asks for.
pub(super) fn solicited(bytes: &[u8], packet: &Packet) -> Option<IpAddr> {
    let is_solicitation = packet.protocol == ICMP_V6
        && bytes.get(packet.transport..packet.transport + 2)? == [SOLICITATION, 0]
        // Routers do not forward these, so one with less hops comes from elsewhere.
        && bytes.get(packet.ip + 7) == Some(&255);
    let target = address_at(bytes.get(..packet.end)?, packet.transport + 8, true);
    target.filter(|_| is_solicitation)
}

/// Turns a neighbour solicitation into its answer.
pub(super) fn advertise(bytes: &mut Vec<u8>, packet: &Packet, target: IpAddr, mac: [u8; 6]) {
    let ip = packet.ip;
    bytes.truncate(ip + 40);
    bytes[ip + 4..ip + 8].copy_from_slice(&[0, 32, ICMP_V6, 255]);
    bytes[ip + 8..ip + 24].copy_from_slice(&Octets::of(target));
    bytes[ip + 24..ip + 40].copy_from_slice(&Octets::of(packet.source));
    // Solicited, and in place of what is known; then the option with the hardware address.
    let mut message = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    message.extend_from_slice(&Octets::of(target));
    message.extend_from_slice(&[2, 1]);
    message.extend_from_slice(&mac);
    let sum = pseudo(target, packet.source, ICMP_V6, message.len()).and(Sum::of(&message));
    message[2..4].copy_from_slice(&(!sum.folded()).to_be_bytes());
    bytes.extend_from_slice(&message);
}

/// An announcement of an address to all neighbours, for when a balancer takes it over.
pub fn announcement(address: Ipv4Addr, mac: [u8; 6]) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[8, 6]);
    frame.extend_from_slice(&REQUEST);
    for hardware in [mac, [0; 6]] {
        frame.extend_from_slice(&hardware);
        frame.extend_from_slice(&address.octets());
    }
    frame.resize(60, 0);
    frame
}
