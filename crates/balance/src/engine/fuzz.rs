//! Checks for `crates/fuzz`: any bytes as frames, and as dumps.

use super::rewrite::{Octets, pseudo};
use super::{
    BackendRule, Engine, Forward, Frame, Neighbour, Options, Packet, Port, ServiceRule, TCP,
    Timeouts, UDP, Verdict, arp, sum::Sum,
};
use outboard_flow::Secret;
use std::net::SocketAddr;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Services, their sources and backends, of NAT and of full NAT.
const SERVICES: [[&str; 3]; 4] = [
    ["192.0.2.10:4833", "192.0.2.99", "203.0.113.1:4833"],
    ["192.0.2.11:4833", "192.0.2.99", "203.0.113.2:4833"],
    [
        "[2001:db8::10]:4833",
        "2001:db8::99",
        "[2001:db8:2::1]:4833",
    ],
    [
        "[2001:db8::11]:4833",
        "2001:db8::99",
        "[2001:db8:2::2]:4833",
    ],
];

fn socket(text: &str) -> SocketAddr {
    let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
    text.parse().unwrap_or(nobody)
}

fn rules() -> Vec<ServiceRule> {
    let mut rules = Vec::new();
    for (number, [vip, source, backend]) in SERVICES.into_iter().enumerate() {
        for protocol in [TCP, UDP] {
            rules.push(ServiceRule {
                name: String::new(),
                address: socket(vip),
                protocol,
                forward: [Forward::Nat, Forward::FullNat][number % 2],
                affinity: true,
                adopt: true,
                sources: source.parse().into_iter().collect(),
                source_ports: (5000, 5001),
                backends: vec![BackendRule {
                    address: socket(backend),
                    weight: 1,
                    drain: false,
                    is_checked: true,
                    link: Some(Neighbour { port: 0, mac: MAC }),
                }],
            });
        }
    }
    rules
}

/// Makes an engine with a port.
fn engine(port: Port) -> Option<Engine> {
    let options = Options {
        connections_max: 64,
        half_open_max: 64,
        fragments_max: 8,
        hash_seed: 0,
        secrets: [1, 2, 3, 4].map(Secret::from_seed),
    };
    let mut engine = Engine::new(options, vec![port], 0).ok()?;
    engine.reload(&rules(), Timeouts::default());
    Some(engine)
}

/// Returns whether a packet's transport checksum is right; `None` if it has none, or not all of it
/// is there.
fn is_right(bytes: &[u8], packet: &Packet) -> Option<bool> {
    let data = bytes.get(packet.transport..packet.end)?;
    if packet.fragment.is_some() || packet.protocol == UDP && data.get(6..8)? == [0, 0] {
        return None;
    }
    let sum = Sum::of(data);
    let sum = match packet.protocol {
        super::ICMP => sum,
        other => sum.and(pseudo(packet.source, packet.destination, other, data.len())),
    };
    Some(sum.folded() == 0xffff)
}

thread_local! {
    /// An engine of Ethernet and one without, and the time. They live as long as the fuzzer, so
    /// that connections of earlier frames are there.
    static ENGINES: std::cell::RefCell<([Option<Engine>; 2], u64)> =
        std::cell::RefCell::new((engines(), 0));
}

fn engines() -> [Option<Engine>; 2] {
    [Some(MAC), None].map(|mac| engine(Port { mac, mtu: None }))
}

/// Sends bytes through an engine. A frame that comes out must be a packet, and its checksum must be
/// right if it was.
///
/// # Panics
///
/// If the engine breaks this.
pub fn frame(data: &[u8]) {
    let Some((choice, bytes)) = data.split_first() else {
        return;
    };
    ENGINES.with_borrow_mut(|(engines, now_ms)| {
        let is_ethernet = choice & 1 == 0;
        let Some(engine) = &mut engines[usize::from(!is_ethernet)] else {
            return;
        };
        *now_ms += u64::from(*choice) * 16;
        let mut frames = [Frame {
            bytes: bytes.to_vec(),
            port: 0,
            partial: choice & 2 != 0,
            segment_bytes: if choice & 4 != 0 { 100 } else { 0 },
        }];
        // The smallest link of all, now and then.
        engine.set_mtu(0, (choice & 8 != 0).then_some(68));
        engine.explain(&frames[0]);
        let ip = if is_ethernet { arp::ETHERNET_BYTES } else { 0 };
        let was_right = Packet::parse(bytes, ip)
            .ok()
            .and_then(|one| is_right(bytes, &one));
        let mut verdicts = Vec::new();
        engine.process(&mut frames, &mut verdicts, *now_ms);
        let sent = &frames[0].bytes;
        for (piece, _) in engine.take_further() {
            let packet = Packet::parse(&piece.bytes, ip);
            assert!(packet.is_ok(), "{packet:?} is a piece of {bytes:02x?}");
        }
        let is_arp = is_ethernet && sent.get(12..14) == Some(&[8, 6]);
        if matches!(verdicts[..], [Verdict::Send(_)]) && !is_arp {
            let packet = Packet::parse(sent, ip);
            assert!(packet.is_ok(), "{packet:?} came out of {bytes:02x?}");
            let is_partial = choice & 2 != 0;
            if was_right == Some(true) && !is_partial {
                let is_right = packet.ok().and_then(|one| is_right(sent, &one));
                // A fragment has no checksum of its own.
                assert_ne!(
                    is_right,
                    Some(false),
                    "a checksum became wrong: {bytes:02x?}"
                );
            }
        }
    });
}

/// Dumps that one engine restores. Making an engine takes a thousand times as long as a dump, for
/// the choices of its services.
const DUMPS_AN_ENGINE: u32 = 64;

thread_local! {
    /// The engine that restores dumps, and their number.
    static RESTORING: std::cell::RefCell<(Option<Engine>, u32)> = const {
        std::cell::RefCell::new((None, 0))
    };
}

/// Restores a dump of any bytes, as they are and with a hash that fits, into an engine that has the
/// connections of some earlier ones.
pub fn dump(data: &[u8]) {
    RESTORING.with_borrow_mut(|(kept, count)| {
        if count.is_multiple_of(DUMPS_AN_ENGINE) {
            *kept = engine(Port::default());
        }
        *count = count.wrapping_add(1);
        if let Some(engine) = kept {
            restore(engine, data);
        }
    });
}

fn restore(engine: &mut Engine, data: &[u8]) {
    let _ = engine.restore(data);
    let mut sealed = super::dump::header();
    sealed.extend_from_slice(data);
    let hash = blake3::hash(&sealed);
    sealed.extend_from_slice(hash.as_bytes());
    if engine.restore(&sealed).is_ok() {
        engine.tick(1000);
        let ends: Vec<_> = engine
            .connections()
            .map(|one| [one.client, one.vip])
            .collect();
        for ends in ends
            .into_iter()
            .filter(|[from, to]| from.is_ipv4() == to.is_ipv4())
        {
            let mut frames = [Frame {
                bytes: tcp(ends, 16, [101, 901]),
                ..Frame::default()
            }];
            engine.process(&mut frames, &mut Vec::new(), 1000);
        }
    }
}

/// Writes an IP header before a transport whose checksum is filled in at `sum_at`. Extension
/// headers are a number and bytes each, for IPv6.
fn packet(
    [from, to]: [SocketAddr; 2],
    protocol: u8,
    mut transport: Vec<u8>,
    sum_at: usize,
    extensions: &[(u8, Vec<u8>)],
) -> Vec<u8> {
    let header = pseudo(from.ip(), to.ip(), protocol, transport.len());
    let begin = if protocol == super::ICMP {
        Sum::default()
    } else {
        header
    };
    let sum = !begin.and(Sum::of(&transport)).folded();
    transport[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
    let next = |at: usize| extensions.get(at).map_or(protocol, |one| one.0);
    let mut body = Vec::new();
    for (at, (_, contents)) in extensions.iter().enumerate() {
        body.push(next(at + 1));
        body.extend_from_slice(contents);
    }
    body.extend_from_slice(&transport);
    let ends = [Octets::of(from.ip()), Octets::of(to.ip())];
    let length = (body.len() as u16 + if from.is_ipv4() { 20 } else { 0 }).to_be_bytes();
    let mut bytes = if from.is_ipv4() {
        vec![
            0x45, 0, length[0], length[1], 0, 7, 0, 0, 64, protocol, 0, 0,
        ]
    } else {
        vec![0x60, 0, 0, 0, length[0], length[1], next(0), 64]
    };
    ends.iter().for_each(|one| bytes.extend_from_slice(one));
    if from.is_ipv4() {
        let sum = !Sum::of(&bytes).folded();
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    [bytes, body].concat()
}

fn tcp([from, to]: [SocketAddr; 2], flags: u8, [sequence, acknowledged]: [u32; 2]) -> Vec<u8> {
    let mut transport = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    transport.extend_from_slice(&sequence.to_be_bytes());
    transport.extend_from_slice(&acknowledged.to_be_bytes());
    // With a window scale, as in SYNs.
    transport.extend_from_slice(&[0x60, flags, 4, 0, 0, 0, 0, 0, 3, 3, 7, 0]);
    packet([from, to], TCP, transport, 16, &[])
}

fn udp([from, to]: [SocketAddr; 2], bytes: u16, extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut transport = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    transport.extend_from_slice(&(8 + bytes).to_be_bytes());
    transport.resize(8 + usize::from(bytes), 0);
    packet([from, to], UDP, transport, 6, extensions)
}

/// An ICMP message of a kind that contains a packet.
fn icmp(ends: [SocketAddr; 2], kind: u8, about: &[u8]) -> Vec<u8> {
    let protocol = if ends[0].is_ipv4() {
        super::ICMP
    } else {
        super::ICMP_V6
    };
    let transport = [&[kind, 0, 0, 0, 0, 0, 5, 0][..], about].concat();
    packet(ends, protocol, transport, 2, &[])
}

/// Makes the first fragment and a later one of an IPv4 packet.
fn pieces(packet: &[u8]) -> [Vec<u8>; 2] {
    [(20..44, 0x2000u16), (44..packet.len(), 3)].map(|(range, word)| {
        let mut piece = packet[..20].to_vec();
        piece[2..4].copy_from_slice(&(20 + range.len() as u16).to_be_bytes());
        piece[6..8].copy_from_slice(&word.to_be_bytes());
        piece[10..12].fill(0);
        let sum = !Sum::of(&piece).folded();
        piece[10..12].copy_from_slice(&sum.to_be_bytes());
        piece.extend_from_slice(&packet[range]);
        piece
    })
}

/// Packets to begin with: handshakes, data and ends of both sides, datagrams, their fragments,
/// chains of extension headers, ICMP errors and echoes.
fn packets() -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for (number, [vip, source, backend]) in SERVICES.into_iter().enumerate() {
        let (vip, target) = (socket(vip), socket(backend));
        let client = socket(if vip.is_ipv4() {
            "198.51.100.7:40000"
        } else {
            "[2001:db8:1::7]:40000"
        });
        // With full NAT, answers go to one of the few source ports.
        let source = source.parse().map(|host| SocketAddr::new(host, 5000));
        let seen = source.ok().filter(|_| number % 2 == 1).unwrap_or(client);
        let (there, back) = ([client, vip], [target, seen]);
        for (ends, flags, numbers) in [
            (there, 2, [100, 0]),
            (back, 18, [900, 101]),
            (there, 16, [101, 901]),
            (back, 16, [901, 101]),
            (there, 17, [101, 901]),
            (back, 17, [901, 102]),
            (there, 4, [102, 0]),
        ] {
            packets.push(tcp(ends, flags, numbers));
        }
        packets.push(udp(there, 4, &[]));
        packets.push(udp(back, 60, &[]));
        let kinds = if vip.is_ipv4() {
            [3, 11, 8]
        } else {
            [1, 2, 128]
        };
        for kind in kinds {
            packets.push(icmp(
                [target, client],
                kind,
                &tcp([seen, target], 16, [101, 901]),
            ));
            packets.push(icmp(there, kind, &udp([vip, client], 4, &[])));
        }
        if vip.is_ipv4() {
            packets.extend(pieces(&udp(there, 60, &[])));
            continue;
        }
        let options = |kind| (kind, vec![0; 7]);
        let fragment = |word: u8| (44, vec![0, 0, word, 0, 0, 0, 9]);
        packets.push(udp(there, 4, &[options(0), options(60), options(43)]));
        packets.push(udp(there, 40, &[options(60), fragment(1)]));
        packets.push(udp(there, 40, &[fragment(48)]));
    }
    packets
}

/// Frames to begin with, for a port without Ethernet and for one with it.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for packet in packets() {
        let kind = if packet[0] == 0x45 {
            [8, 0]
        } else {
            [0x86, 0xdd]
        };
        seeds.push([&[1], &packet[..]].concat());
        seeds.push([&[0], &MAC[..], &[2, 0, 0, 0, 0, 9], &kind, &packet].concat());
    }
    // A question for a service's hardware address.
    let mut asks = [&[0][..], &[0xff; 6], &[2, 0, 0, 0, 0, 9], &[8, 6]].concat();
    asks.extend_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 198, 51, 100, 7]);
    asks.extend_from_slice(&[0, 0, 0, 0, 0, 0, 192, 0, 2, 10]);
    seeds.push(asks);
    seeds
}

/// The longest dump while these packets pass, whole and without what is added to `dump`'s input.
pub fn dumps() -> Vec<Vec<u8>> {
    let Some(mut engine) = engine(Port::default()) else {
        return Vec::new();
    };
    let mut longest = Vec::new();
    for (bytes, now_ms) in packets().into_iter().zip(0..) {
        let mut frames = [Frame {
            bytes,
            ..Frame::default()
        }];
        engine.process(&mut frames, &mut Vec::new(), now_ms);
        let dump = engine.dump();
        if dump.len() > longest.len() {
            longest = dump;
        }
    }
    let header = super::dump::header().len();
    let end = longest.len().saturating_sub(blake3::OUT_LEN);
    let contents = longest.get(header..end).unwrap_or_default().to_vec();
    vec![longest, contents]
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_seeds_are_understood() {
        super::seeds().iter().for_each(|seed| super::frame(seed));
        super::ENGINES.with_borrow(|(engines, _)| {
            for engine in engines {
                let counts = engine.as_ref().expect("memory").counts();
                for reason in [
                    super::super::Reason::Length,
                    super::super::Reason::HeaderChecksum,
                    super::super::Reason::ExtensionHeaders,
                    super::super::Reason::TcpHeader,
                ] {
                    assert_eq!(counts.drops.of(reason), 0, "{reason}: {counts:?}");
                }
                assert!(
                    counts.icmp_errors >= 8 && counts.fragments >= 8,
                    "{counts:?}"
                );
                assert!(counts.packets[1] >= 6 && counts.answered >= 4, "{counts:?}");
            }
        });
    }

    #[test]
    fn the_seeds_and_what_is_near_them_pass() {
        let mut random = outboard_flow::random::Random::new(3);
        let seeds = super::seeds();
        for round in 0..20_000 {
            let mut seed = seeds[round % seeds.len()].clone();
            for _ in 0..random.below(4) {
                let at = random.below(seed.len() as u64) as usize;
                seed[at] = random.next_u64() as u8;
            }
            super::frame(&seed);
        }
        super::ENGINES.with_borrow(|(engines, _)| {
            let counts = engines[1].as_ref().expect("memory").counts();
            assert!(
                counts.packets[0] > 1000 && counts.drops.total() > 1000,
                "{counts:?}"
            );
        });
    }
}
