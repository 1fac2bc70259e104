//! Packets that are longer than the next hop's link takes: they go on in fragments where IPv4
//! allows that, and otherwise their senders are told, as by a router (RFC 1191, RFC 8201).

use super::packet::{ICMP, ICMP_V6, Packet, UDP, u16_at};
use super::reason::Reason;
use super::rewrite::{Octets, pseudo};
use super::sum::Sum;
use super::{Engine, Frame, Route};
use std::net::IpAddr;

/// Senders told within a second, and at once after a pause.
pub const TOLD_A_SECOND_MAX: u64 = 1000;
pub const TOLD_AT_ONCE_MAX: u64 = 100;
/// Longest ICMP errors (RFC 1812, RFC 4443).
const ERROR_BYTES_MAX: usize = 576;
const ERROR_V6_BYTES_MAX: usize = 1280;
/// Smallest packets that every link takes.
const MTU_MIN: u32 = 68;
const MTU_V6_MIN: u32 = 1280;
const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// Number of senders that may be told.
#[derive(Debug)]
pub(super) struct Budget {
    left: u64,
    at_ms: u64,
}

impl Budget {
    pub(super) fn new(now_ms: u64) -> Budget {
        Budget {
            left: TOLD_AT_ONCE_MAX,
            at_ms: now_ms,
        }
    }

    fn take(&mut self, now_ms: u64) -> bool {
        let new = now_ms.saturating_sub(self.at_ms) * TOLD_A_SECOND_MAX / 1000;
        self.left = self.left.saturating_add(new).min(TOLD_AT_ONCE_MAX);
        self.at_ms = now_ms;
        let is_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

/// Length of the longest packet that a frame becomes on the wire: a device cuts it into segments if
/// it has any.
fn packet_bytes(frame: &Frame, packet: &Packet) -> usize {
    let whole = packet.end - packet.ip;
    if frame.segment_bytes == 0 {
        return whole;
    }
    let headers = match (&packet.tcp, packet.protocol) {
        (Some(tcp), _) => whole.saturating_sub(tcp.data_bytes as usize),
        (None, UDP) => packet.transport - packet.ip + 8,
        (None, _) => return whole,
    };
    whole.min(headers + usize::from(frame.segment_bytes))
}

fn flags(frame: &Frame, packet: &Packet) -> u16 {
    u16_at(&frame.bytes, packet.ip + 6).unwrap_or_default()
}

impl Engine {
    /// Returns the next hop's MTU if a packet is longer.
    pub(super) fn exceeded(&self, frame: &Frame, packet: &Packet, port: u16) -> Option<u32> {
        let mtu = self.port(port).mtu?;
        (packet_bytes(frame, packet) > mtu as usize).then_some(mtu)
    }

    /// Returns whether a packet that is too long may go on in fragments.
    pub(super) fn may_be_split(frame: &Frame, packet: &Packet) -> bool {
        let is_allowed = !packet.is_v6() && flags(frame, packet) & DONT_FRAGMENT == 0;
        is_allowed && frame.segment_bytes == 0
    }

    /// Returns the next hop's MTU if a packet is longer and may not go on in fragments.
    pub(super) fn limit(&self, frame: &Frame, packet: &Packet, route: &Route) -> Option<u32> {
        self.exceeded(frame, packet, route.link.port)
            .filter(|_| !Engine::may_be_split(frame, packet))
    }

    /// Drops a packet of TCP or UDP, and turns its frame into a message to its sender that names
    /// `mtu`. It comes from the address to which the sender sent, or else from the service's.
    pub(super) fn tell(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
        service: IpAddr,
        mtu: u32,
    ) -> Result<u16, Reason> {
        let is_bound = packet.is_v6() || flags(frame, packet) & DONT_FRAGMENT != 0;
        if !is_bound || packet.is_later_fragment() || !self.budget.take(self.now_ms) {
            return Err(Reason::TooLong);
        }
        let from = if self.services.is_own(packet.destination) {
            packet.destination
        } else {
            service
        };
        write_error(&mut frame.bytes, packet, from, mtu);
        (frame.partial, frame.segment_bytes) = (false, 0);
        self.counts.drops.add(Reason::TooLong);
        self.counts.told_too_long += 1;
        Ok(self.turn_around(frame))
    }

    /// Cuts a packet that is ready to go out at `port` into fragments.
    pub(super) fn split(
        &mut self,
        frame: &mut Frame,
        packet: &Packet,
        port: u16,
        mtu: u32,
    ) -> Result<(), Reason> {
        let room = mtu.max(MTU_MIN) as usize - V4_BYTES;
        let (step, at) = (room & !7, packet.ip + V4_BYTES);
        let head = frame.bytes.get(..at).ok_or(Reason::Cut)?.to_vec();
        let data = frame.bytes.get(at..packet.end).ok_or(Reason::Cut)?.to_vec();
        let word = flags(frame, packet);
        for (index, piece) in data.chunks(step).enumerate() {
            let is_last = (index + 1) * step >= data.len();
            let more = if is_last {
                word & MORE_FRAGMENTS
            } else {
                MORE_FRAGMENTS
            };
            let offset = (word & 0x1fff) + (index * step / 8) as u16;
            let mut bytes = head.clone();
            let header = &mut bytes[packet.ip..];
            header[2..4].copy_from_slice(&((V4_BYTES + piece.len()) as u16).to_be_bytes());
            header[6..8].copy_from_slice(&(more | offset).to_be_bytes());
            header[10..12].fill(0);
            let sum = !Sum::of(header).folded();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            bytes.extend_from_slice(piece);
            self.counts.split += 1;
            if index == 0 {
                frame.bytes = bytes;
            } else {
                let piece = Frame {
                    bytes,
                    port: frame.port,
                    ..Frame::default()
                };
                self.further.push((piece, port));
            }
        }
        Ok(())
    }
}

/// Replaces a packet by an ICMP message to its sender that it is too long, which contains its
/// begin.
fn write_error(bytes: &mut Vec<u8>, packet: &Packet, from: IpAddr, mtu: u32) {
    let (ip, to) = (packet.ip, packet.source);
    let (header, whole) = if packet.is_v6() {
        (V6_BYTES, ERROR_V6_BYTES_MAX)
    } else {
        (V4_BYTES, ERROR_BYTES_MAX)
    };
    let kept = (packet.end - ip).min(whole - header - 8);
    let about = bytes.get(ip..ip + kept).unwrap_or_default().to_vec();
    let mut message = if packet.is_v6() {
        vec![2, 0, 0, 0]
    } else {
        vec![3, 4, 0, 0]
    };
    let named = if packet.is_v6() {
        mtu.max(MTU_V6_MIN)
    } else {
        // The upper half is unused here.
        mtu.min(0xffff)
    };
    message.extend_from_slice(&named.to_be_bytes());
    message.extend_from_slice(&about);
    let begin = if packet.is_v6() {
        pseudo(from, to, ICMP_V6, message.len())
    } else {
        Sum::default()
    };
    let sum = !begin.and(Sum::of(&message)).folded();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes.truncate(ip);
    if packet.is_v6() {
        bytes.extend_from_slice(&[0x60, 0, 0, 0]);
        bytes.extend_from_slice(&(message.len() as u16).to_be_bytes());
        bytes.extend_from_slice(&[ICMP_V6, 64]);
    } else {
        bytes.extend_from_slice(&[0x45, 0]);
        bytes.extend_from_slice(&((V4_BYTES + message.len()) as u16).to_be_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&DONT_FRAGMENT.to_be_bytes());
        bytes.extend_from_slice(&[64, ICMP, 0, 0]);
    }
    bytes.extend_from_slice(&Octets::of(from));
    bytes.extend_from_slice(&Octets::of(to));
    if !packet.is_v6() {
        let sum = !Sum::of(&bytes[ip..]).folded();
        bytes[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes.extend_from_slice(&message);
}
