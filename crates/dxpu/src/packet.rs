//! Packets of the network (section 3.3.2): a transaction is one header packet, and data packets if
//! it has data.
//!
//! ```text
//!  header packet   prefix 16 | TLP header 12 or 16 | CRC of the TLP 4 | CRC of the packet 4
//!  data packet     prefix 16 | data, 1 to 1,024     | CRC of the packet 4
//!  acknowledgement prefix 16 | CRC of the packet 4
//!  prefix          version and kind 1 | part 1 | data of the whole TLP 2 | sequence 4
//!                  | source node 2, slot 1 | destination slot 1, node 2 | path 2
//! ```
//!
//! Numbers are big-endian. The TLP's CRC has the polynomial of PCIe's own end-to-end check,
//! 0x04C11DB7 (CRC-32/ISO-HDLC), over header and data; the packet's is Castagnoli's, 0x1EDC6F41
//! (CRC-32C), over all of the packet before it. They differ, so an error that one misses is not
//! missed by the other for the same reason. Both are the paper's, polynomials and layout are ours.
//! So is the prefix of data packets: a switch routes each packet by itself.

use crate::tlp::{self, DATA_BYTES_MAX, HEADER_BYTES_MAX, Tlp, TlpError};

pub const PREFIX_BYTES: usize = 16;
pub const CRC_BYTES: usize = 4;
/// Most data in one data packet, so that it fits into an Ethernet frame.
pub const PART_BYTES_MAX: usize = 1_024;
/// Longest packet.
pub const PACKET_BYTES_MAX: usize = PREFIX_BYTES + PART_BYTES_MAX + CRC_BYTES;
const VERSION: u8 = 0x10;

/// Number of a proxy in the fabric, given by the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash)]
pub struct Node(pub u16);

/// One end of a route: node and slot. The slot of a host is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash)]
pub struct End {
    pub node: Node,
    pub slot: u8,
}

/// Way of a packet through the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash)]
pub struct Route {
    pub from: End,
    pub to: End,
    pub path: u16,
}

impl Route {
    pub fn back(self) -> Route {
        Route {
            from: self.to,
            to: self.from,
            path: self.path,
        }
    }
}

/// Bytes that are no packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("a packet of {0} bytes, which no packet has")]
    Length(usize),
    #[error("a packet of unknown version or kind {0:#04x}")]
    Kind(u8),
    #[error("the CRC of a packet is {computed:#010x}, and it says {stated:#010x}")]
    PacketCrc { computed: u32, stated: u32 },
    #[error("the CRC of a transaction is {computed:#010x}, and it says {stated:#010x}")]
    TlpCrc { computed: u32, stated: u32 },
    #[error("a packet of a transaction that does not go on like this")]
    OutOfPlace,
    #[error("a packet of node {}, which is none of this connection's", .0.0)]
    Foreign(Node),
    #[error(transparent)]
    Tlp(#[from] TlpError),
}

/// Type of a packet, with what only it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    Header {
        header: &'a [u8],
        tlp_crc: u32,
    },
    Data(&'a [u8]),
    /// All packets before this one's sequence have arrived.
    Acknowledged,
    /// As [`Body::Acknowledged`]; the next one was lost, and those after it were thrown away.
    Missing,
}

/// A packet that was checked: reading it cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    pub route: Route,
    pub sequence: u32,
    /// Number of this data packet in its transaction.
    pub part: u8,
    /// Data of the whole transaction.
    pub tlp_data_bytes: u16,
    pub body: Body<'a>,
}

impl<'a> Packet<'a> {
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, PacketError> {
        let length = PacketError::Length(bytes.len());
        if bytes.len() > PACKET_BYTES_MAX {
            return Err(length);
        }
        let (checked, crc) = bytes.split_last_chunk::<CRC_BYTES>().ok_or(length)?;
        let (prefix, rest) = checked.split_first_chunk::<PREFIX_BYTES>().ok_or(length)?;
        let (computed, stated) = (crc32c::crc32c(checked), u32::from_be_bytes(*crc));
        if computed != stated {
            return Err(PacketError::PacketCrc { computed, stated });
        }
        let body = match prefix[0].wrapping_sub(VERSION) {
            0 => {
                let (header, crc) = rest.split_last_chunk::<CRC_BYTES>().ok_or(length)?;
                if header.len() != tlp::header_bytes(header)? {
                    return Err(length);
                }
                let tlp_crc = u32::from_be_bytes(*crc);
                Body::Header { header, tlp_crc }
            }
            1 if !rest.is_empty() => Body::Data(rest),
            2 if rest.is_empty() => Body::Acknowledged,
            3 if rest.is_empty() => Body::Missing,
            1..=3 => return Err(length),
            _ => return Err(PacketError::Kind(prefix[0])),
        };
        let two = |at: usize| u16::from_be_bytes([prefix[at], prefix[at + 1]]);
        let end = |node: u16, slot: u8| End {
            node: Node(node),
            slot,
        };
        Ok(Packet {
            route: Route {
                from: end(two(8), prefix[10]),
                to: end(two(12), prefix[11]),
                path: two(14),
            },
            sequence: u32::from_be_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]),
            part: prefix[1],
            tlp_data_bytes: two(2),
            body,
        })
    }

    /// Appends the packet to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        let kind = match self.body {
            Body::Header { .. } => 0,
            Body::Data(_) => 1,
            Body::Acknowledged => 2,
            Body::Missing => 3,
        };
        let Route { from, to, path } = self.route;
        out.extend_from_slice(&[VERSION + kind, self.part]);
        out.extend_from_slice(&self.tlp_data_bytes.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.extend_from_slice(&from.node.0.to_be_bytes());
        out.extend_from_slice(&[from.slot, to.slot]);
        out.extend_from_slice(&to.node.0.to_be_bytes());
        out.extend_from_slice(&path.to_be_bytes());
        match self.body {
            Body::Header { header, tlp_crc } => {
                out.extend_from_slice(header);
                out.extend_from_slice(&tlp_crc.to_be_bytes());
            }
            Body::Data(data) => out.extend_from_slice(data),
            Body::Acknowledged | Body::Missing => {}
        }
        let crc = crc32c::crc32c(&out[begin..]);
        out.extend_from_slice(&crc.to_be_bytes());
    }
}

/// Makes a transaction's packets, the first with this sequence, and hands each to `send`. Returns
/// their number.
pub fn split(
    tlp: &Tlp<'_>,
    route: Route,
    sequence: u32,
    mut send: impl FnMut(&[u8]),
) -> Result<u32, TlpError> {
    let mut header = Vec::with_capacity(HEADER_BYTES_MAX);
    tlp.emit_header(&mut header)?;
    let mut packet = Packet {
        route,
        sequence,
        part: 0,
        tlp_data_bytes: tlp.data.len() as u16,
        body: Body::Header {
            header: &header,
            tlp_crc: tlp_crc(&header, tlp.data),
        },
    };
    let mut out = Vec::with_capacity(PACKET_BYTES_MAX);
    packet.emit(&mut out);
    send(&out);
    for (part, data) in tlp.data.chunks(PART_BYTES_MAX).enumerate() {
        packet.sequence = packet.sequence.wrapping_add(1);
        packet.part = part as u8;
        packet.body = Body::Data(data);
        out.clear();
        packet.emit(&mut out);
        send(&out);
    }
    Ok(packet.sequence.wrapping_sub(sequence).wrapping_add(1))
}

fn tlp_crc(header: &[u8], data: &[u8]) -> u32 {
    let mut digest = crc32fast::Hasher::new();
    digest.update(header);
    digest.update(data);
    digest.finalize()
}

/// Makes transactions of packets that come in their order. Holds one transaction at most.
#[derive(Debug, Default)]
pub struct Joiner {
    route: Route,
    header: Vec<u8>,
    data: Vec<u8>,
    crc: u32,
    data_bytes: usize,
    parts: u8,
}

impl Joiner {
    /// Takes a packet; returns a transaction and its route if this was its last packet.
    pub fn take(&mut self, packet: &Packet<'_>) -> Result<Option<(Route, Tlp<'_>)>, PacketError> {
        match packet.body {
            Body::Header { header, tlp_crc } => {
                let is_free = self.header.is_empty();
                let data_bytes = tlp::data_bytes(header)?;
                if !is_free || data_bytes != usize::from(packet.tlp_data_bytes) {
                    self.header.clear();
                    return Err(PacketError::OutOfPlace);
                }
                self.route = packet.route;
                self.header.extend_from_slice(header);
                self.data.clear();
                (self.crc, self.data_bytes, self.parts) = (tlp_crc, data_bytes, 0);
            }
            Body::Data(data) => {
                let is_next = !self.header.is_empty()
                    && packet.part == self.parts
                    && packet.route == self.route
                    && self.data.len() + data.len() <= self.data_bytes;
                if !is_next {
                    self.header.clear();
                    return Err(PacketError::OutOfPlace);
                }
                self.parts = self.parts.wrapping_add(1);
                self.data.extend_from_slice(data);
            }
            Body::Acknowledged | Body::Missing => return Ok(None),
        }
        if self.data.len() < self.data_bytes {
            return Ok(None);
        }
        self.whole().map(Some)
    }

    fn whole(&mut self) -> Result<(Route, Tlp<'_>), PacketError> {
        debug_assert!(self.data_bytes <= DATA_BYTES_MAX);
        let mut header = [0; HEADER_BYTES_MAX];
        let length = self.header.len();
        header[..length].copy_from_slice(&self.header);
        let computed = tlp_crc(&self.header, &self.data);
        self.header.clear();
        if computed != self.crc {
            let stated = self.crc;
            return Err(PacketError::TlpCrc { computed, stated });
        }
        let tlp = Tlp::from_parts(&header[..length], &self.data)?;
        Ok((self.route, tlp))
    }
}
