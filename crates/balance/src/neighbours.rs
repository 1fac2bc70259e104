//! The kernel's neighbours, addresses and links (rtnetlink).

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink,
};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

const HEADER_BYTES: usize = 16;
const NEIGHBOUR_BYTES: usize = 12;
const ADDRESS_BYTES: usize = 8;
const LINK_BYTES: usize = 16;
const DONE: u16 = 3;
const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
/// A request for one thing, or for all of them.
const REQUEST: u16 = 1;
const REQUEST_ALL: u16 = 0x301;
/// Attributes of neighbours, of addresses and of links.
const ADDRESS: u16 = 1;
const HARDWARE: u16 = 2;
const LOCAL: u16 = 2;
const MTU: u16 = 4;
/// Incomplete and failed ones have no hardware address that holds.
const UNUSABLE: u16 = 0x01 | 0x20;
/// Answers that are read; each has dozens of neighbours.
const ANSWERS_MAX: usize = 4096;

/// Asks the kernel for things of a kind. `one` gets each answer's kind and message.
fn ask(kind: u16, flags: u16, header: &[u8], mut one: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket_flags = SocketFlags::CLOEXEC;
    let kinds = (AddressFamily::NETLINK, SocketType::RAW);
    let socket = rustix::net::socket_with(kinds.0, kinds.1, socket_flags, None)?;
    let timeout = Some(std::time::Duration::from_secs(1));
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        timeout,
    )?;
    let length = HEADER_BYTES + header.len();
    let mut request = Vec::with_capacity(length);
    request.extend_from_slice(&(length as u32).to_ne_bytes());
    request.extend_from_slice(&kind.to_ne_bytes());
    request.extend_from_slice(&flags.to_ne_bytes());
    request.resize(HEADER_BYTES, 0);
    request.extend_from_slice(header);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &kernel)?;
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..ANSWERS_MAX {
        let (count, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if parse(&buffer[..count], &mut one) || flags == REQUEST {
            return Ok(());
        }
    }
    Err(io::Error::other("the kernel's answer does not end"))
}

/// Reads all neighbours: index of the interface, and hardware address.
pub(crate) fn read() -> io::Result<HashMap<IpAddr, (u32, [u8; 6])>> {
    let mut found = HashMap::new();
    ask(
        GET_NEIGHBOUR,
        REQUEST_ALL,
        &[0; NEIGHBOUR_BYTES],
        |kind, message| {
            if let (NEW_NEIGHBOUR, Some((address, index, mac))) = (kind, neighbour(message)) {
                found.insert(address, (index, mac));
            }
        },
    )?;
    Ok(found)
}

/// Reads the addresses of this machine's interfaces.
pub(crate) fn own_addresses() -> io::Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    ask(
        GET_ADDRESS,
        REQUEST_ALL,
        &[0; ADDRESS_BYTES],
        |kind, message| {
            if let (NEW_ADDRESS, Some(address)) = (kind, own_address(message)) {
                found.push(address);
            }
        },
    )?;
    Ok(found)
}

/// Reads the longest packet that an interface sends; `None` if there is no such interface.
pub(crate) fn mtu(index: u32) -> io::Result<Option<u32>> {
    let mut header = [0; LINK_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    let mut found = None;
    ask(GET_LINK, REQUEST, &header, |kind, message| {
        if kind == NEW_LINK {
            attributes(message, LINK_BYTES, |kind, value| {
                if kind == MTU {
                    found = u32_at(value, 0);
                }
            });
        }
    })?;
    Ok(found)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Passes the things of an answer to `one`. Returns whether the answer is the last.
fn parse(mut bytes: &[u8], one: &mut impl FnMut(u16, &[u8])) -> bool {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = length as usize;
        let Some(message) = bytes.get(HEADER_BYTES..length.max(HEADER_BYTES)) else {
            return true;
        };
        match kind {
            DONE | ERROR => return true,
            _ => one(kind, message),
        }
        let next = length.max(HEADER_BYTES).next_multiple_of(4);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    false
}

/// Passes the attributes after a message's header to `one`, up to one with a length that lies.
fn attributes(message: &[u8], header_bytes: usize, mut one: impl FnMut(u16, &[u8])) {
    let mut rest = message.get(header_bytes..).unwrap_or_default();
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let Some(value) = rest.get(4..length) else {
            return;
        };
        one(kind, value);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
}

/// Reads an address of 4 or 16 bytes.
fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    v4.or(<[u8; 16]>::try_from(value).ok().map(IpAddr::from))
}

fn neighbour(message: &[u8]) -> Option<(IpAddr, u32, [u8; 6])> {
    let (index, state) = (u32_at(message, 4)?, u16_at(message, 8)?);
    let (mut of, mut mac) = (None, None);
    attributes(message, NEIGHBOUR_BYTES, |kind, value| match kind {
        ADDRESS => of = address(value),
        HARDWARE => mac = value.try_into().ok(),
        _ => {}
    });
    (state & UNUSABLE == 0).then_some((of?, index, mac?))
}

fn own_address(message: &[u8]) -> Option<IpAddr> {
    let (mut local, mut other) = (None, None);
    attributes(message, ADDRESS_BYTES, |kind, value| match kind {
        ADDRESS => other = address(value),
        LOCAL => local = address(value),
        _ => {}
    });
    // With both, the other is the peer's.
    local.or(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_the_loopback_device() {
        let own = own_addresses().expect("rtnetlink");
        assert!(own.contains(&IpAddr::from([127, 0, 0, 1])), "{own:?}");
        assert!(mtu(1).expect("rtnetlink").is_some_and(|mtu| mtu >= 1280));
        assert_eq!(mtu(0x7fff_ffff).expect("rtnetlink"), None);
        read().expect("rtnetlink");
    }

    #[test]
    fn answers_that_are_cut_are_read_as_far_as_they_go() {
        // One address: header, family and prefix, and the attribute.
        let mut whole = vec![
            32, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 24, 0, 0, 1, 0,
        ];
        whole.extend([0, 0, 8, 0, 2, 0, 192, 0, 2, 1]);
        for end in 0..=whole.len() {
            let mut found = Vec::new();
            parse(&whole[..end], &mut |_, message: &[u8]| {
                found.extend(own_address(message))
            });
            assert_eq!(found.len(), usize::from(end == whole.len()), "{end}");
        }
    }
}
