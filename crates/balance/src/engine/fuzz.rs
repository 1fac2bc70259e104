//! Checks for `crates/fuzz`: any bytes as frames, and as dumps.

use super::rewrite::pseudo;
use super::{
    BackendRule, Engine, Forward, Frame, Neighbour, Options, Packet, Port, ServiceRule, TCP,
    Timeouts, UDP, Verdict, arp, sum::Sum,
};
use outboard_flow::Secret;
use std::net::SocketAddr;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn rules() -> Vec<ServiceRule> {
    let mut rules = Vec::new();
    for (host, source, backend) in [
        ([192, 0, 2, 10], [192, 0, 2, 99], [203, 0, 113, 1]),
        ([192, 0, 2, 11], [192, 0, 2, 99], [203, 0, 113, 2]),
    ] {
        for protocol in [TCP, UDP] {
            let forward = if host[3] == 10 {
                Forward::Nat
            } else {
                Forward::FullNat
            };
            rules.push(ServiceRule {
                name: String::new(),
                address: SocketAddr::from((host, 4833)),
                protocol,
                forward,
                affinity: true,
                adopt: true,
                sources: vec![source.into()],
                source_ports: (5000, 5010),
                backends: vec![BackendRule {
                    address: SocketAddr::from((backend, 4833)),
                    weight: 1,
                    drain: false,
                    link: Some(Neighbour { port: 0, mac: MAC }),
                }],
            });
        }
    }
    rules
}

/// Makes an engine with an Ethernet port and one without.
fn engine() -> Option<Engine> {
    let options = Options {
        connections_max: 64,
        half_open_max: 64,
        fragments_max: 8,
        hash_seed: 0,
        secrets: [1, 2, 3, 4].map(Secret::from_seed),
    };
    let ports = vec![
        Port {
            mac: Some(MAC),
            mtu: None,
        },
        Port::default(),
    ];
    let mut engine = Engine::new(options, ports, 0).ok()?;
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
    /// Lives as long as the fuzzer, so that connections of earlier frames are there.
    static ENGINE: std::cell::RefCell<(Option<Engine>, u64)> =
        std::cell::RefCell::new((engine(), 0));
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
    ENGINE.with_borrow_mut(|(engine, now_ms)| {
        let Some(engine) = engine else { return };
        *now_ms += u64::from(*choice) * 16;
        let port = u16::from(choice & 1);
        let mut frames = [Frame {
            bytes: bytes.to_vec(),
            port,
            partial: choice & 2 != 0,
            segment_bytes: if choice & 4 != 0 { 100 } else { 0 },
        }];
        // The smallest link of all, now and then.
        engine.set_mtu(port.into(), (choice & 8 != 0).then_some(68));
        engine.explain(&frames[0]);
        let ip = if port == 0 { arp::ETHERNET_BYTES } else { 0 };
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
        let is_arp = port == 0 && sent.get(12..14) == Some(&[8, 6]);
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

/// Restores a dump of any bytes, as they are and with a hash that fits.
pub fn dump(data: &[u8]) {
    let Some(mut engine) = engine() else { return };
    let _ = engine.restore(data);
    let mut sealed = super::dump::header();
    sealed.extend_from_slice(data);
    let hash = blake3::hash(&sealed);
    sealed.extend_from_slice(hash.as_bytes());
    if engine.restore(&sealed).is_ok() {
        engine.tick(1000);
    }
}

/// Frames to begin with: a handshake with data on both kinds of port, fragments, an error.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for vip in [10, 11] {
        for (flags, numbers) in [(2u8, [100u32, 0]), (16, [101, 901]), (17, [101, 901])] {
            let mut packet = vec![
                0x45, 0, 0, 40, 0, 7, 0, 0, 64, TCP, 0, 0, 198, 51, 100, 7, 192, 0, 2, vip, 0x9c,
                0x40, 0x12, 0xe1,
            ];
            numbers
                .iter()
                .for_each(|one| packet.extend_from_slice(&one.to_be_bytes()));
            packet.extend_from_slice(&[0x50, flags, 4, 0, 0, 0, 0, 0]);
            let header = Sum::of(&packet[..20]).folded();
            packet[10..12].copy_from_slice(&(!header).to_be_bytes());
            let [from, to] = [[198, 51, 100, 7], [192, 0, 2, vip]].map(std::net::IpAddr::from);
            let sum = Sum::of(&packet[20..])
                .and(pseudo(from, to, TCP, 20))
                .folded();
            packet[36..38].copy_from_slice(&(!sum).to_be_bytes());
            seeds.push([&[1], &packet[..]].concat());
            seeds.push([&[0], &MAC[..], &[2, 0, 0, 0, 0, 9, 8, 0], &packet].concat());
        }
    }
    // An error about what was sent to the backend.
    let about = seeds
        .first()
        .map(|one| one[1..].to_vec())
        .unwrap_or_default();
    let mut error = vec![
        0x45, 0, 0, 68, 0, 9, 0, 0, 64, 1, 0, 0, 203, 0, 113, 9, 198, 51, 100, 7,
    ];
    let header = Sum::of(&error).folded();
    error[10..12].copy_from_slice(&(!header).to_be_bytes());
    error.extend_from_slice(&[3, 1, 0, 0, 0, 0, 0, 0]);
    error.extend_from_slice(&about);
    seeds.push([&[1], &error[..]].concat());
    seeds
}

#[cfg(test)]
mod tests {
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
        super::ENGINE.with_borrow(|(engine, _)| {
            let counts = engine.as_ref().expect("memory").counts();
            assert!(
                counts.packets[0] > 1000 && counts.drops.total() > 1000,
                "{counts:?}"
            );
        });
    }
}
