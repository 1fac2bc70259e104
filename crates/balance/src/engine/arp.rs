//! Answers questions for the hardware addresses of services (ARP, and IPv6's neighbour discovery).

use super::packet::{ICMP_V6, Packet, address_at};
use super::rewrite::{Octets, pseudo};
use super::sum::Sum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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
    // Solicited, and in place of what is known.
    bytes.extend_from_slice(&advertisement(target, packet.source, 0x60, mac));
}

/// A neighbour advertisement with the option that has the hardware address.
fn advertisement(target: IpAddr, to: IpAddr, flags: u8, mac: [u8; 6]) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, flags, 0, 0, 0];
    message.extend_from_slice(&Octets::of(target));
    message.extend_from_slice(&[2, 1]);
    message.extend_from_slice(&mac);
    let sum = pseudo(target, to, ICMP_V6, message.len()).and(Sum::of(&message));
    message[2..4].copy_from_slice(&(!sum.folded()).to_be_bytes());
    message
}

/// An announcement of an address to all neighbours, for when a balancer takes it over.
pub fn announcement(address: IpAddr, mac: [u8; 6]) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => gratuitous(address, mac),
        IpAddr::V6(address) => unsolicited(address, mac),
    }
}

/// A neighbour advertisement to all nodes that nobody has asked for.
fn unsolicited(address: Ipv6Addr, mac: [u8; 6]) -> Vec<u8> {
    let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let mut frame = vec![0x33, 0x33, 0, 0, 0, 1];
    frame.extend_from_slice(&mac);
    frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, ICMP_V6, 255]);
    frame.extend_from_slice(&address.octets());
    frame.extend_from_slice(&all.octets());
    frame.extend_from_slice(&advertisement(address.into(), all.into(), 0x20, mac));
    frame
}

fn gratuitous(address: Ipv4Addr, mac: [u8; 6]) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use super::super::tests::build::{address, sum};
    use super::*;

    #[test]
    fn an_address_of_ipv6_is_announced_to_all_nodes() {
        let mac = [2, 0, 0, 0, 0, 1];
        let frame = announcement(address("2001:db8::10"), mac);
        let (ethernet, ip) = frame.split_at(ETHERNET_BYTES);
        assert_eq!(
            ethernet,
            [0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]
        );
        let (head, message) = ip.split_at(40);
        assert_eq!(head[..8], [0x60, 0, 0, 0, 0, 32, 58, 255]);
        assert_eq!(head[8..24], *Octets::of(address("2001:db8::10")));
        assert_eq!(head[24..], *Octets::of(address("ff02::1")));
        assert_eq!(message[..2], [136, 0]);
        // In place of what is known, and not an answer.
        assert_eq!(message[4..8], [0x20, 0, 0, 0]);
        assert_eq!(message[8..24], head[8..24]);
        assert_eq!(message[24..], [2, 1, 2, 0, 0, 0, 0, 1]);
        assert_eq!(
            sum(&[&head[8..], &[0, 0, 0, 32, 0, 0, 0, 58], message]),
            0xffff
        );
    }
}
