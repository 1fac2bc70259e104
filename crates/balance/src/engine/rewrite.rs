//! Changes addresses and ports of a packet, and its checksums by the difference (RFC 1624).

use super::packet::{ICMP_V6, Packet, TCP, UDP, u16_at};
use super::sum::Sum;
use std::net::{IpAddr, SocketAddr};

/// Bytes of an address, without an allocation.
pub(super) struct Octets([u8; 16], usize);

impl Octets {
    pub(super) fn of(address: IpAddr) -> Octets {
        let mut bytes = [0; 16];
        match address {
            IpAddr::V4(address) => {
                bytes[..4].copy_from_slice(&address.octets());
                Octets(bytes, 4)
            }
            IpAddr::V6(address) => Octets(address.octets(), 16),
        }
    }
}

impl std::ops::Deref for Octets {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

/// Replaces bytes and returns the difference of the sum; nothing if they are not there.
pub(super) fn replace(bytes: &mut [u8], at: usize, new: &[u8]) -> Sum {
    let Some(place) = bytes.get_mut(at..at + new.len()) else {
        return Sum::default();
    };
    let change = Sum::change(place, new);
    place.copy_from_slice(new);
    change
}

/// Corrects a checksum's field by a difference. Returns the difference of the field itself.
pub(super) fn correct(bytes: &mut [u8], at: usize, change: Sum) -> Sum {
    let Some(field) = u16_at(bytes, at) else {
        return Sum::default();
    };
    let sum = change.and_word(!field).folded();
    replace(bytes, at, &(!sum).to_be_bytes())
}

/// Replaces an address of an IP header, and corrects an IPv4 header's checksum.
fn replace_address(bytes: &mut [u8], ip: usize, is_source: bool, new: IpAddr) -> (Sum, Sum) {
    let octets = Octets::of(new);
    let at = match (new, is_source) {
        (IpAddr::V4(_), true) => 12,
        (IpAddr::V4(_), false) => 16,
        (IpAddr::V6(_), true) => 8,
        (IpAddr::V6(_), false) => 24,
    };
    let change = replace(bytes, ip + at, &octets);
    let header = match new {
        IpAddr::V4(_) => correct(bytes, ip + 10, change),
        IpAddr::V6(_) => Sum::default(),
    };
    (change, header)
}

/// New source and destination of a packet, where they change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    pub source: Option<SocketAddr>,
    pub destination: Option<SocketAddr>,
}

/// Translates addresses and ports of a packet, and corrects its checksums. `partial` says that the
/// transport's checksum has so far the pseudo-header alone. Returns the difference of the sum over
/// all bytes changed.
pub(super) fn translate(bytes: &mut [u8], packet: &Packet, new: Translation, partial: bool) -> Sum {
    let (mut addresses, mut ports, mut all) = (Sum::default(), Sum::default(), Sum::default());
    for (is_source, new) in [(true, new.source), (false, new.destination)] {
        let Some(new) = new else { continue };
        let (address, header) = replace_address(bytes, packet.ip, is_source, new.ip());
        addresses = addresses.and(address);
        all = all.and(address).and(header);
        if !packet.is_later_fragment() && matches!(packet.protocol, TCP | UDP) {
            let at = packet.transport + if is_source { 0 } else { 2 };
            ports = ports.and(replace(bytes, at, &new.port().to_be_bytes()));
        }
    }
    all = all.and(ports);
    if packet.is_later_fragment() {
        return all;
    }
    let field = match packet.protocol {
        TCP => packet.transport + 16,
        UDP => packet.transport + 6,
        ICMP_V6 => packet.transport + 2,
        _ => return all,
    };
    let Some(old) = u16_at(bytes, field) else {
        return all;
    };
    if partial {
        let sum = addresses.and_word(old).folded();
        return all.and(replace(bytes, field, &sum.to_be_bytes()));
    }
    // UDP: 0 means that there is no checksum; a sum that becomes 0 is written in its other form.
    if packet.protocol == UDP && old == 0 {
        return all;
    }
    let changed = correct(bytes, field, addresses.and(ports));
    if packet.protocol == UDP && u16_at(bytes, field) == Some(0) {
        return all.and(changed).and(replace(bytes, field, &[0xff; 2]));
    }
    all.and(changed)
}

/// Sum of the pseudo-header of a transport.
pub(super) fn pseudo(source: IpAddr, destination: IpAddr, protocol: u8, bytes: usize) -> Sum {
    Sum::of(&Octets::of(source))
        .and(Sum::of(&Octets::of(destination)))
        .and_word(protocol.into())
        .and(Sum::length(bytes))
}

/// Fills in a transport's checksum that has so far the pseudo-header alone, as hosts on virtual
/// devices leave it. Returns whether it did.
pub(super) fn complete(bytes: &mut [u8], packet: &Packet) -> bool {
    let field = match packet.protocol {
        TCP => packet.transport + 16,
        UDP => packet.transport + 6,
        _ => return false,
    };
    let length = packet.end - packet.transport;
    let begun = pseudo(packet.source, packet.destination, packet.protocol, length).folded();
    if packet.fragment.is_some() || u16_at(bytes, field) != Some(begun) {
        return false;
    }
    // The field holds the pseudo-header's sum, so the sum over all is the whole one.
    let Some(data) = bytes.get(packet.transport..packet.end) else {
        return false;
    };
    let sum = match !Sum::of(data).folded() {
        0 if packet.protocol == UDP => 0xffff,
        sum => sum,
    };
    replace(bytes, field, &sum.to_be_bytes());
    true
}

/// Replaces the identification of a fragment's packet.
pub(super) fn identify(bytes: &mut [u8], packet: &Packet, at: usize, id: u32) {
    if packet.is_v6() {
        replace(bytes, at, &id.to_be_bytes());
    } else {
        let change = replace(bytes, at, &(id as u16).to_be_bytes());
        correct(bytes, packet.ip + 10, change);
    }
}

/// Lowers a time to live by one. Returns whether any is left.
pub(super) fn hop(bytes: &mut [u8], packet: &Packet) -> bool {
    let at = packet.ip + if packet.is_v6() { 7 } else { 8 };
    let Some(left @ 2..) = bytes.get(at).copied() else {
        return false;
    };
    if packet.is_v6() {
        bytes[at] = left - 1;
    } else {
        let change = replace(bytes, at, &[left - 1, packet.protocol]);
        correct(bytes, packet.ip + 10, change);
    }
    true
}
