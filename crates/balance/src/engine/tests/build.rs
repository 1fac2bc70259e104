//! Builds packets, with checksums over all their bytes.

use super::super::packet::{ICMP, ICMP_V6, TCP, UDP};
use std::net::{IpAddr, SocketAddr};

pub(crate) fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub(crate) fn socket(text: &str) -> SocketAddr {
    text.parse().expect("an address and port")
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// Sum of all 16-bit words, carries added at once.
pub(crate) fn sum(parts: &[&[u8]]) -> u16 {
    let all: Vec<u8> = parts.concat();
    all.chunks(2).fold(0u16, |sum, pair| {
        let word = u16::from(pair[0]) << 8 | u16::from(*pair.get(1).unwrap_or(&0));
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

/// A packet to be built.
#[derive(Clone)]
pub(crate) struct Build {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    protocol: u8,
    flags: u8,
    numbers: (u32, u32),
    window: u16,
    options: Vec<u8>,
    data: Vec<u8>,
    /// Bytes after the IP header in place of a transport.
    raw: Option<Vec<u8>>,
    /// Extension headers of IPv6: kind and contents after the kind of the next.
    extensions: Vec<(u8, Vec<u8>)>,
    /// Offset, whether more follow, and identification.
    fragment: Option<(u16, bool, u32)>,
    pub(crate) hops: u8,
    pub(crate) has_checksum: bool,
    pub(crate) partial: bool,
    /// Says in an IPv4 header that the packet may not be split.
    pub(crate) dont_fragment: bool,
}

impl Build {
    pub(crate) fn new(from: &str, to: &str, protocol: u8) -> Build {
        Build {
            from: socket(from),
            to: socket(to),
            protocol,
            flags: 0x10,
            numbers: (0, 0),
            window: 1000,
            options: Vec::new(),
            data: Vec::new(),
            raw: None,
            extensions: Vec::new(),
            fragment: None,
            hops: 64,
            has_checksum: true,
            partial: false,
            dont_fragment: false,
        }
    }

    pub(crate) fn tcp(from: &str, to: &str) -> Build {
        Build::new(from, to, TCP)
    }

    pub(crate) fn udp(from: &str, to: &str) -> Build {
        Build::new(from, to, UDP)
    }

    pub(crate) fn flags(mut self, names: &str) -> Build {
        let bit = |name| match name {
            'F' => 1,
            'S' => 2,
            'R' => 4,
            'A' => 16,
            other => panic!("{other}"),
        };
        self.flags = names.chars().map(bit).sum();
        self
    }

    pub(crate) fn numbers(mut self, sequence: u32, acknowledged: u32) -> Build {
        self.numbers = (sequence, acknowledged);
        self
    }

    pub(crate) fn window(mut self, window: u16) -> Build {
        self.window = window;
        self
    }

    pub(crate) fn data(mut self, data: &[u8]) -> Build {
        self.data = data.to_vec();
        self
    }

    pub(crate) fn options(mut self, options: &[u8]) -> Build {
        self.options = options.to_vec();
        self
    }

    pub(crate) fn raw(mut self, protocol: u8, bytes: Vec<u8>) -> Build {
        (self.protocol, self.raw) = (protocol, Some(bytes));
        self
    }

    pub(crate) fn extension(mut self, kind: u8, contents: &[u8]) -> Build {
        self.extensions.push((kind, contents.to_vec()));
        self
    }

    pub(crate) fn fragment(mut self, offset: u16, more: bool, id: u32) -> Build {
        self.fragment = Some((offset, more, id));
        self
    }

    /// Changes the ends, for the packet that is expected.
    pub(crate) fn between(mut self, from: &str, to: &str) -> Build {
        (self.from, self.to) = (socket(from), socket(to));
        self
    }

    fn pseudo(&self, length: usize) -> Vec<u8> {
        let mut pseudo = [octets(self.from.ip()), octets(self.to.ip())].concat();
        pseudo.extend_from_slice(&(length as u32).to_be_bytes());
        pseudo.extend_from_slice(&[0, self.protocol]);
        pseudo
    }

    /// The transport's header and data, with its checksum.
    pub(crate) fn transport(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(raw) = &self.raw {
            bytes.extend_from_slice(raw);
            if self.protocol == ICMP {
                let sum = !sum(&[&bytes]);
                bytes[2..4].copy_from_slice(&sum.to_be_bytes());
            }
            if self.protocol == ICMP_V6 {
                let sum = !sum(&[&self.pseudo(bytes.len()), &bytes]);
                bytes[2..4].copy_from_slice(&sum.to_be_bytes());
            }
            return bytes;
        }
        bytes.extend_from_slice(&self.from.port().to_be_bytes());
        bytes.extend_from_slice(&self.to.port().to_be_bytes());
        let at = if self.protocol == TCP {
            bytes.extend_from_slice(&self.numbers.0.to_be_bytes());
            bytes.extend_from_slice(&self.numbers.1.to_be_bytes());
            let words = 5 + self.options.len() / 4;
            bytes.extend_from_slice(&[(words << 4) as u8, self.flags]);
            bytes.extend_from_slice(&self.window.to_be_bytes());
            bytes.extend_from_slice(&[0, 0, 0, 0]);
            bytes.extend_from_slice(&self.options);
            16
        } else {
            let length = 8 + self.data.len() as u16;
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.extend_from_slice(&[0, 0]);
            6
        };
        bytes.extend_from_slice(&self.data);
        let pseudo = self.pseudo(bytes.len());
        let checksum = match !sum(&[&pseudo, &bytes]) {
            _ if self.partial => sum(&[&pseudo]),
            _ if !self.has_checksum => 0,
            0 if self.protocol == UDP => 0xffff,
            sum => sum,
        };
        bytes[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    /// The packet from its IP header on.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.with_payload(&self.transport())
    }

    /// A fragment of the packet: `end` is the end of its data, `id` its identification.
    pub(crate) fn piece(&self, begin: usize, end: usize, id: u32) -> Vec<u8> {
        let transport = self.transport();
        let more = end < transport.len();
        let piece = self.clone().fragment(begin as u16, more, id);
        piece.with_payload(&transport[begin..end])
    }

    fn with_payload(&self, payload: &[u8]) -> Vec<u8> {
        if self.from.is_ipv4() {
            self.v4(payload)
        } else {
            self.v6(payload)
        }
    }

    fn v4(&self, payload: &[u8]) -> Vec<u8> {
        let (offset, more, id) = self.fragment.unwrap_or((0, false, 7));
        let word = (offset / 8) | if more { 0x2000 } else { 0 };
        let word = word | if self.dont_fragment { 0x4000 } else { 0 };
        let total = 20 + payload.len() as u16;
        let mut header = vec![0x45, 0];
        header.extend_from_slice(&total.to_be_bytes());
        header.extend_from_slice(&(id as u16).to_be_bytes());
        header.extend_from_slice(&word.to_be_bytes());
        header.extend_from_slice(&[self.hops, self.protocol, 0, 0]);
        header.extend_from_slice(&octets(self.from.ip()));
        header.extend_from_slice(&octets(self.to.ip()));
        let sum = !sum(&[&header]);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&header, payload].concat()
    }

    fn v6(&self, payload: &[u8]) -> Vec<u8> {
        let mut extensions = self.extensions.clone();
        if let Some((offset, more, id)) = self.fragment {
            let word = offset | u16::from(more);
            let contents = [
                vec![0],
                word.to_be_bytes().to_vec(),
                id.to_be_bytes().to_vec(),
            ];
            extensions.push((44, contents.concat()));
        }
        let kinds: Vec<_> = extensions.iter().map(|(kind, _)| *kind).collect();
        let next = |index: usize| kinds.get(index).copied().unwrap_or(self.protocol);
        let mut body = Vec::new();
        for (index, (_, contents)) in extensions.iter().enumerate() {
            body.push(next(index + 1));
            body.extend_from_slice(contents);
        }
        body.extend_from_slice(payload);
        let mut header = vec![0x60, 0, 0, 0];
        header.extend_from_slice(&(body.len() as u16).to_be_bytes());
        header.extend_from_slice(&[next(0), self.hops]);
        header.extend_from_slice(&octets(self.from.ip()));
        header.extend_from_slice(&octets(self.to.ip()));
        [header, body].concat()
    }
}

/// Source and destination of a TCP or UDP packet without options.
pub(crate) fn ends(packet: &[u8]) -> (String, String) {
    let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    if packet[0] >> 4 == 4 {
        let host = |at: usize| {
            let bytes: [u8; 4] = packet[at..at + 4].try_into().expect("four bytes");
            IpAddr::from(bytes)
        };
        let end = |at, port| SocketAddr::new(host(at), port).to_string();
        (end(12, port(20)), end(16, port(22)))
    } else {
        let host = |at: usize| {
            let bytes: [u8; 16] = packet[at..at + 16].try_into().expect("sixteen bytes");
            IpAddr::from(bytes)
        };
        let end = |at, port| SocketAddr::new(host(at), port).to_string();
        (end(8, port(40)), end(24, port(42)))
    }
}
