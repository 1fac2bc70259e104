//! The kernel's neighbours: hardware addresses of hosts on its links (rtnetlink).

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink,
};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;

const HEADER_BYTES: usize = 16;
const NEIGHBOUR_BYTES: usize = 12;
const DONE: u16 = 3;
const ERROR: u16 = 2;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
/// A request for all of them.
const REQUEST_ALL: u16 = 0x301;
const ADDRESS: u16 = 1;
const HARDWARE: u16 = 2;
/// Incomplete and failed ones have no hardware address that holds.
const UNUSABLE: u16 = 0x01 | 0x20;
/// Answers that are read; each has dozens of neighbours.
const ANSWERS_MAX: usize = 4096;

/// Reads all neighbours: index of the interface, and hardware address.
pub(crate) fn read() -> io::Result<HashMap<IpAddr, (u32, [u8; 6])>> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    let timeout = Some(std::time::Duration::from_secs(1));
    rustix::net::sockopt::set_socket_timeout(
        &socket,
        rustix::net::sockopt::Timeout::Recv,
        timeout,
    )?;
    let mut request = Vec::with_capacity(HEADER_BYTES + NEIGHBOUR_BYTES);
    request.extend_from_slice(&((HEADER_BYTES + NEIGHBOUR_BYTES) as u32).to_ne_bytes());
    request.extend_from_slice(&GET_NEIGHBOUR.to_ne_bytes());
    request.extend_from_slice(&REQUEST_ALL.to_ne_bytes());
    request.resize(HEADER_BYTES + NEIGHBOUR_BYTES, 0);
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &kernel)?;
    let mut found = HashMap::new();
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..ANSWERS_MAX {
        let (count, _) = rustix::net::recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if parse(&buffer[..count], &mut found) {
            return Ok(found);
        }
    }
    Err(io::Error::other("the list of neighbours does not end"))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Adds the neighbours of an answer. Returns whether it is the last.
fn parse(mut bytes: &[u8], found: &mut HashMap<IpAddr, (u32, [u8; 6])>) -> bool {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let length = length as usize;
        let Some(message) = bytes.get(HEADER_BYTES..length.max(HEADER_BYTES)) else {
            return true;
        };
        match kind {
            DONE | ERROR => return true,
            NEW_NEIGHBOUR => {
                if let Some((address, index, mac)) = neighbour(message) {
                    found.insert(address, (index, mac));
                }
            }
            _ => {}
        }
        let next = length.max(HEADER_BYTES).next_multiple_of(4);
        bytes = bytes.get(next..).unwrap_or_default();
    }
    false
}

fn neighbour(message: &[u8]) -> Option<(IpAddr, u32, [u8; 6])> {
    let (index, state) = (u32_at(message, 4)?, u16_at(message, 8)?);
    let (mut address, mut mac) = (None, None);
    let mut rest = message.get(NEIGHBOUR_BYTES..)?;
    while let (Some(length), Some(kind)) = (u16_at(rest, 0), u16_at(rest, 2)) {
        let length = usize::from(length);
        let value = rest.get(4..length)?;
        match (kind, value.len()) {
            (ADDRESS, 4) => address = <[u8; 4]>::try_from(value).ok().map(IpAddr::from),
            (ADDRESS, 16) => address = <[u8; 16]>::try_from(value).ok().map(IpAddr::from),
            (HARDWARE, 6) => mac = value.try_into().ok(),
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    (state & UNUSABLE == 0).then_some((address?, index, mac?))
}
