//! Reads the headers of a packet. All that is read later lies within the lengths checked here.

use super::reason::Reason;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP_V6: u8 = 58;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION_OPTIONS: u8 = 60;
/// Extension headers of one packet that are walked over.
const EXTENSION_HEADERS_MAX: usize = 8;

/// The headers of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Offset of the IP header in the frame.
    pub ip: usize,
    /// Offset of the transport header; in a later fragment, of its data.
    pub transport: usize,
    /// End of the packet; a frame may be padded.
    pub end: usize,
    pub protocol: u8,
    pub source: IpAddr,
    pub destination: IpAddr,
    /// Both 0 for ICMP and later fragments.
    pub source_port: u16,
    pub destination_port: u16,
    pub fragment: Option<Fragment>,
    pub tcp: Option<Segment>,
}

/// Place of a fragment in its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub id: u32,
    /// Offset of the id in the frame: 2 bytes for IPv4, 4 for IPv6.
    pub id_at: usize,
    /// First byte and end within the packet's data.
    pub begin: u32,
    pub end: u32,
    pub is_last: bool,
}

/// Fields of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub sequence: u32,
    pub acknowledged: u32,
    pub flags: u8,
    pub window: u16,
    /// Window scale of a SYN.
    pub scale: Option<u8>,
    pub data_bytes: u32,
}

impl Segment {
    pub fn is(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Sequence number after this segment.
    pub fn end(&self) -> u32 {
        let flags = u32::from(self.is(SYN)) + u32::from(self.is(FIN));
        self.sequence
            .wrapping_add(self.data_bytes)
            .wrapping_add(flags)
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from(u16_at(bytes, at)?) << 16 | u32::from(u16_at(bytes, at + 2)?))
}

/// Reads the address at `at`, of the version that `is_v6` says.
pub(super) fn address_at(bytes: &[u8], at: usize, is_v6: bool) -> Option<IpAddr> {
    if is_v6 {
        let octets: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
        Some(Ipv6Addr::from(octets).into())
    } else {
        let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(octets).into())
    }
}

impl Packet {
    pub fn is_v6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Returns whether this is a fragment other than the first.
    pub fn is_later_fragment(&self) -> bool {
        self.fragment.is_some_and(|fragment| fragment.begin > 0)
    }

    /// Reads the packet that begins at `ip`.
    pub fn parse(bytes: &[u8], ip: usize) -> Result<Packet, Reason> {
        let mut packet = match bytes.get(ip).ok_or(Reason::Cut)? >> 4 {
            4 => Packet::parse_v4(bytes, ip)?,
            6 => Packet::parse_v6(bytes, ip)?,
            _ => return Err(Reason::Version),
        };
        if !is_one_host(packet.source) {
            return Err(Reason::Address);
        }
        if !packet.is_later_fragment() {
            packet.parse_transport(bytes)?;
        }
        Ok(packet)
    }

    fn parse_v4(bytes: &[u8], ip: usize) -> Result<Packet, Reason> {
        let header = bytes.get(ip..ip + 20).ok_or(Reason::Cut)?;
        match header[0] & 15 {
            5 => {}
            0..5 => return Err(Reason::Length),
            _ => return Err(Reason::IpOptions),
        }
        let total = usize::from(u16_at(header, 2).ok_or(Reason::Cut)?);
        if total < 20 || ip + total > bytes.len() {
            return Err(Reason::Length);
        }
        if super::sum::Sum::of(header).folded() != 0xffff {
            return Err(Reason::HeaderChecksum);
        }
        let word = u16_at(header, 6).ok_or(Reason::Cut)?;
        let (begin, more) = (u32::from(word & 0x1fff) * 8, word & 0x2000 != 0);
        let fragment = Fragment {
            id: u16_at(header, 4).ok_or(Reason::Cut)?.into(),
            id_at: ip + 4,
            begin,
            end: begin + total as u32 - 20,
            is_last: !more,
        };
        let (transport, end) = (ip + 20, ip + total);
        let fragment = (begin > 0 || more).then_some(fragment);
        check_fragment(fragment, more)?;
        Ok(Packet {
            ip,
            transport,
            end,
            protocol: header[9],
            source: address_at(header, 12, false).ok_or(Reason::Cut)?,
            destination: address_at(header, 16, false).ok_or(Reason::Cut)?,
            source_port: 0,
            destination_port: 0,
            fragment,
            tcp: None,
        })
    }

    fn parse_v6(bytes: &[u8], ip: usize) -> Result<Packet, Reason> {
        let header = bytes.get(ip..ip + 40).ok_or(Reason::Cut)?;
        let end = ip + 40 + usize::from(u16_at(header, 4).ok_or(Reason::Cut)?);
        if end > bytes.len() {
            return Err(Reason::Length);
        }
        let mut packet = Packet {
            ip,
            transport: ip + 40,
            end,
            protocol: header[6],
            source: address_at(header, 8, true).ok_or(Reason::Cut)?,
            destination: address_at(header, 24, true).ok_or(Reason::Cut)?,
            source_port: 0,
            destination_port: 0,
            fragment: None,
            tcp: None,
        };
        packet.walk_extensions(&bytes[..end])?;
        Ok(packet)
    }

    /// Walks over extension headers up to the transport header, or to a later fragment's data.
    fn walk_extensions(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        let first = self.transport;
        for _ in 0..=EXTENSION_HEADERS_MAX {
            let at = self.transport;
            let is_extension = matches!(
                self.protocol,
                HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS
            );
            if !is_extension {
                return Ok(());
            }
            let header = bytes.get(at..at + 8).ok_or(Reason::Length)?;
            let is_misplaced = self.protocol == HOP_BY_HOP && at != first;
            // The final destination is elsewhere while segments are left.
            let is_routed = self.protocol == ROUTING && header[3] != 0;
            if is_misplaced || is_routed || self.protocol == FRAGMENT && self.fragment.is_some() {
                return Err(Reason::ExtensionHeaders);
            }
            if self.protocol != FRAGMENT {
                self.transport += 8 + usize::from(header[1]) * 8;
                self.protocol = header[0];
                continue;
            }
            self.transport += 8;
            self.protocol = header[0];
            let word = u16_at(header, 2).ok_or(Reason::Cut)?;
            let begin = u32::from(word & 0xfff8);
            let more = word & 1 != 0;
            let fragment = Fragment {
                id: u32_at(header, 4).ok_or(Reason::Cut)?,
                id_at: at + 4,
                begin,
                end: begin + (self.end - self.transport) as u32,
                is_last: !more,
            };
            check_fragment(Some(fragment), more)?;
            self.fragment = Some(fragment);
            if begin > 0 {
                return Ok(());
            }
        }
        Err(Reason::ExtensionHeaders)
    }

    fn parse_transport(&mut self, bytes: &[u8]) -> Result<(), Reason> {
        let short = match self.fragment {
            Some(_) => Reason::FirstFragmentShort,
            None => Reason::Length,
        };
        let data = bytes.get(self.transport..self.end).ok_or(Reason::Length)?;
        match self.protocol {
            TCP => self.tcp = Some(parse_tcp(data, short)?),
            UDP => {
                let length = usize::from(u16_at(data, 4).ok_or(short)?);
                let checksum = u16_at(data, 6).ok_or(short)?;
                let is_whole = self.fragment.is_none();
                if length < 8 || is_whole && length != data.len() || length < data.len() {
                    return Err(Reason::Length);
                }
                if checksum == 0 && self.is_v6() {
                    return Err(Reason::UdpChecksum);
                }
            }
            ICMP if !self.is_v6() => return data.get(..8).map(drop).ok_or(short),
            ICMP_V6 if self.is_v6() => return data.get(..8).map(drop).ok_or(short),
            _ => return Err(Reason::Protocol),
        }
        self.source_port = u16_at(data, 0).ok_or(short)?;
        self.destination_port = u16_at(data, 2).ok_or(short)?;
        Ok(())
    }
}

fn check_fragment(fragment: Option<Fragment>, more: bool) -> Result<(), Reason> {
    let Some(fragment) = fragment else {
        return Ok(());
    };
    let bytes = fragment.end - fragment.begin;
    // All but the last consist of whole words of 8 bytes, and no packet is longer than 64 KiB.
    if bytes == 0 || more && !bytes.is_multiple_of(8) || fragment.end > 65_535 {
        return Err(Reason::Length);
    }
    Ok(())
}

fn parse_tcp(data: &[u8], short: Reason) -> Result<Segment, Reason> {
    let header = data.get(..20).ok_or(short)?;
    let header_bytes = usize::from(header[12] >> 4) * 4;
    if header_bytes < 20 {
        return Err(Reason::Length);
    }
    let options = data.get(20..header_bytes).ok_or(short)?;
    let flags = header[13];
    let is_nonsense = flags & SYN != 0 && flags & (FIN | RST) != 0
        || flags & FIN != 0 && flags & RST != 0
        || flags & (SYN | RST | ACK) == 0;
    if is_nonsense {
        return Err(Reason::TcpHeader);
    }
    let word = |at| u32_at(header, at).ok_or(short);
    Ok(Segment {
        sequence: word(4)?,
        acknowledged: word(8)?,
        flags,
        window: u16_at(header, 14).ok_or(short)?,
        scale: if flags & SYN != 0 {
            scale(options)?
        } else {
            None
        },
        data_bytes: (data.len() - header_bytes) as u32,
    })
}

/// Finds the window scale among the options of a SYN.
fn scale(mut options: &[u8]) -> Result<Option<u8>, Reason> {
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (0, _) => return Ok(None),
            (1, _) => rest,
            (3, [3, shift, ..]) => return Ok(Some((*shift).min(14))),
            (_, [length, ..]) if *length >= 2 => options
                .get(usize::from(*length)..)
                .ok_or(Reason::TcpHeader)?,
            _ => return Err(Reason::TcpHeader),
        };
    }
    Ok(None)
}

/// Returns whether an address can be one host's.
fn is_one_host(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_multicast() || address.is_unspecified() || address.is_loopback() || is_broadcast)
}
