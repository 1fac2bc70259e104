//! The first 64 bytes of an Ethernet frame: made from a packet, and parsed.

use super::Packet;
use crate::V4;
use crate::checksum::Checksum;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
const HEADERS_BYTES: usize = 14 + 20;
/// Bytes of a frame that are kept; the rest is payload.
const KEPT_BYTES: usize = 64;

/// The begin of a frame, in a cache line, and its whole length.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Frame {
    pub begin: [u8; KEPT_BYTES],
    pub bytes: u16,
}

/// Fields of a frame that the path needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    pub key: V4,
    pub tcp_flags: u8,
    /// Where the transport header begins.
    pub transport: usize,
}

/// Reads a frame of which `begin` is there and which has `bytes` bytes. `None` if it is not an
/// unfragmented TCP or UDP packet over IPv4, is cut short, or contradicts itself.
#[inline]
pub fn parse(begin: &[u8], bytes: usize) -> Option<Parsed> {
    let ip: &[u8; 20] = begin.get(14..34)?.try_into().ok()?;
    let header = usize::from(ip[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let is_ipv4 = begin[12..14] == [8, 0] && ip[0] >> 4 == 4;
    let is_whole = (u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff) == 0;
    let transport_min = if ip[9] == TCP { 20 } else { 8 };
    if !is_ipv4 || !is_whole || header < 20 || !matches!(ip[9], TCP | UDP) {
        return None;
    }
    if total < header + transport_min || 14 + total > bytes {
        return None;
    }
    let transport = 14 + header;
    let fields = begin.get(transport..transport + transport_min)?;
    let mut key = [0; 13];
    key[..8].copy_from_slice(&ip[12..20]);
    key[8..12].copy_from_slice(&fields[..4]);
    key[12] = ip[9];
    let tcp_flags = if ip[9] == TCP { fields[13] } else { 0 };
    Some(Parsed {
        key: V4::from_bytes(key),
        tcp_flags,
        transport,
    })
}

impl Frame {
    /// Makes the frame of a packet, with a payload of zeros and right checksums.
    pub fn new(packet: &Packet) -> Frame {
        let mut begin = [0; KEPT_BYTES];
        let key = packet.key.bytes();
        let bytes = usize::from(packet.bytes).max(60);
        begin[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
        let total = (bytes - 14) as u16;
        let ip = &mut begin[14..34];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&total.to_be_bytes());
        ip[6] = 0x40;
        ip[8] = 64;
        ip[9] = key[12];
        ip[12..20].copy_from_slice(&key[..8]);
        let sum = Checksum::of(ip);
        ip[10..12].copy_from_slice(&sum.finish());
        let length = total - 20;
        let pseudo = Checksum::of(&key[..8]).and(u16::from(key[12])).and(length);
        let transport = &mut begin[HEADERS_BYTES..];
        transport[..4].copy_from_slice(&key[8..12]);
        let place = if key[12] == TCP {
            transport[12] = 5 << 4;
            transport[13] = packet.tcp_flags;
            16
        } else {
            transport[4..6].copy_from_slice(&length.to_be_bytes());
            6
        };
        let sum = pseudo.and_bytes(transport).finish();
        transport[place..place + 2].copy_from_slice(&sum);
        Frame {
            begin,
            bytes: bytes as u16,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn packet(protocol: u8, bytes: u16) -> Packet {
        let mut key = [192, 0, 2, 1, 198, 18, 0, 1, 0x30, 0x39, 1, 0xbb, 0];
        key[12] = protocol;
        Packet {
            key: V4::from_bytes(key),
            bytes,
            tcp_flags: 0x12,
        }
    }

    #[test]
    fn a_frame_parses_to_its_packet() {
        for (protocol, flags) in [(TCP, 0x12), (UDP, 0)] {
            for bytes in [60, 61, 64, 65, 1514] {
                let packet = packet(protocol, bytes);
                let frame = Frame::new(&packet);
                let parsed = parse(&frame.begin, frame.bytes.into()).expect("a packet");
                assert_eq!(
                    parsed,
                    Parsed {
                        key: packet.key,
                        tcp_flags: flags,
                        transport: 34
                    }
                );
            }
        }
    }

    #[test]
    fn frames_cut_anywhere_and_contradictions_are_refused() {
        let frame = Frame::new(&packet(TCP, 60));
        for end in 0..54 {
            assert_eq!(parse(&frame.begin[..end], 60), None, "cut at {end}");
        }
        for bytes in 0..60 {
            assert_eq!(parse(&frame.begin, bytes), None, "{bytes} bytes");
        }
        let broken = |at: usize, value: u8| {
            let mut begin = frame.begin;
            begin[at] = value;
            parse(&begin, 60)
        };
        assert_eq!(broken(12, 0x86), None, "no IPv4");
        assert_eq!(broken(14, 0x65), None, "version 6");
        assert_eq!(broken(14, 0x44), None, "a header of 16 bytes");
        assert_eq!(broken(14, 0x4f), None, "options beyond the packet");
        assert_eq!(broken(16, 0xff), None, "longer than the frame");
        assert_eq!(broken(17, 39), None, "shorter than its headers");
        assert_eq!(broken(20, 0x20), None, "a first fragment");
        assert_eq!(broken(21, 1), None, "a later fragment");
        assert_eq!(broken(23, 1), None, "ICMP");
    }

    #[test]
    fn random_bytes_are_refused_or_parsed_within_bounds() {
        let mut random = Random::new(9);
        let frame = Frame::new(&packet(UDP, 90));
        for _ in 0..if cfg!(miri) { 200 } else { 100_000 } {
            let mut begin = frame.begin;
            for _ in 0..random.below(6) {
                begin[random.below(64) as usize] = random.next_u64() as u8;
            }
            let end = random.below(65) as usize;
            if let Some(parsed) = parse(&begin[..end], 90) {
                assert!(parsed.transport + 8 <= end);
            }
        }
    }
}
