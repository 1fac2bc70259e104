//! Frames that must not be sent on, and that explanations agree with what happens.

use super::*;
use outboard_flow::random::Random;

const CLIENT: &str = "198.51.100.7:40000";
const VIP: &str = "192.0.2.10:4833";
const BACKEND: &str = "203.0.113.1:4833";
const CLIENT_6: &str = "[2001:db8:1::7]:40000";
const VIP_6: &str = "[2001:db8::10]:4833";
const BACKEND_6: &str = "[2001:db8:2::1]:4833";

fn all_services() -> Engine {
    let mut rules = Vec::new();
    for (vip, target) in [(VIP, BACKEND), (VIP_6, BACKEND_6)] {
        for protocol in [TCP, UDP] {
            rules.push(service(Forward::Nat, vip, protocol, &[target]));
        }
    }
    engine(&rules)
}

fn good() -> Vec<Build> {
    let mut packets = Vec::new();
    for (client, vip) in [(CLIENT, VIP), (CLIENT_6, VIP_6)] {
        packets.push(
            Build::tcp(client, vip)
                .flags("S")
                .options(&[3, 3, 7, 0])
                .data(b"abc"),
        );
        packets.push(Build::udp(client, vip).data(b"abcde"));
    }
    packets.push(
        Build::udp(CLIENT_6, VIP_6)
            .extension(0, &[0; 7])
            .extension(60, &[0; 7]),
    );
    packets
}

#[test]
fn frames_cut_anywhere_are_dropped() {
    let mut engine = all_services();
    for packet in good() {
        let bytes = packet.bytes();
        for end in 0..bytes.len() {
            assert!(pass(&mut engine, &bytes[..end], 0).is_err(), "cut at {end}");
        }
        assert!(pass(&mut engine, &bytes, 0).is_ok());
    }
}

/// Changes bytes of a packet, and corrects an IPv4 header's checksum unless that is what changed.
fn broken(packet: &Build, changes: &[(usize, u8)]) -> Vec<u8> {
    let mut bytes = packet.bytes();
    for (at, value) in changes {
        bytes[*at] = *value;
    }
    if bytes[0] >> 4 == 4 && changes.iter().all(|(at, _)| !(10..12).contains(at)) {
        bytes[10..12].fill(0);
        let sum = !build::sum(&[&bytes[..20]]);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

#[test]
fn lengths_that_lie_and_contradictions_are_dropped_by_reason() {
    let mut engine = all_services();
    let packets = good();
    let [tcp, udp, tcp_6, udp_6, _] = &packets[..] else {
        panic!("five")
    };
    for (packet, changes, reason) in [
        (tcp, &[(0, 0x55)][..], Reason::Version),
        (tcp, &[(0, 0x44)], Reason::Length),
        (tcp, &[(0, 0x46)], Reason::IpOptions),
        (tcp, &[(2, 1)], Reason::Length),
        (tcp, &[(3, 19)], Reason::Length),
        (tcp, &[(3, 30)], Reason::Length),
        (tcp, &[(11, 1)], Reason::HeaderChecksum),
        (tcp, &[(9, 47)], Reason::Protocol),
        (tcp, &[(9, 58)], Reason::Protocol),
        (tcp, &[(12, 224)], Reason::Address),
        (tcp, &[(12, 127)], Reason::Address),
        (tcp, &[(12, 0), (13, 0), (14, 0), (15, 0)], Reason::Address),
        (tcp, &[(32, 0x40)], Reason::Length),
        (tcp, &[(32, 0xf0)], Reason::Length),
        (tcp, &[(33, 3)], Reason::TcpHeader),
        (tcp, &[(33, 6)], Reason::TcpHeader),
        (tcp, &[(33, 0)], Reason::TcpHeader),
        (tcp, &[(41, 0)], Reason::TcpHeader),
        (tcp, &[(41, 9)], Reason::TcpHeader),
        (tcp, &[(22, 9)], Reason::NoService),
        (tcp, &[(19, 11)], Reason::NotOurs),
        (udp, &[(25, 7)], Reason::Length),
        (udp, &[(25, 12)], Reason::Length),
        (udp, &[(25, 14)], Reason::Length),
        (tcp_6, &[(4, 1)], Reason::Length),
        (tcp_6, &[(6, 50)], Reason::Protocol),
        (tcp_6, &[(6, 1)], Reason::Protocol),
        (tcp_6, &[(8, 0xff)], Reason::Address),
        (udp_6, &[(46, 0), (47, 0)], Reason::UdpChecksum),
    ] {
        let bytes = broken(packet, changes);
        assert_eq!(pass(&mut engine, &bytes, 0), Err(reason), "{changes:?}");
    }
    assert_eq!(engine.sizes(), (0, 0, 0));
    assert_eq!(engine.counts().drops.total(), 29);
    assert_eq!(engine.counts().drops.of(Reason::Address), 4);
}

#[test]
fn chains_of_extension_headers_are_walked_within_bounds() {
    let mut engine = all_services();
    let udp = || Build::udp(CLIENT_6, VIP_6).data(b"x");
    let chain = |length: usize| (0..length).fold(udp(), |one, _| one.extension(60, &[0; 7]));
    let sent = pass(&mut engine, &chain(8).bytes(), 0).expect("sent");
    assert_eq!(sent, chain(8).between(CLIENT_6, BACKEND_6).bytes());
    for (packet, reason) in [
        (chain(9), Reason::ExtensionHeaders),
        (chain(200), Reason::ExtensionHeaders),
        (
            udp().extension(60, &[0; 7]).extension(0, &[0; 7]),
            Reason::ExtensionHeaders,
        ),
        (
            udp().extension(43, &[0, 0, 1, 0, 0, 0, 0]),
            Reason::ExtensionHeaders,
        ),
        (
            udp().extension(60, &[200, 0, 0, 0, 0, 0, 0]),
            Reason::Length,
        ),
        (udp().extension(51, &[0; 7]), Reason::Protocol),
        (
            udp().fragment(0, true, 1).extension(44, &[0; 7]),
            Reason::ExtensionHeaders,
        ),
    ] {
        assert_eq!(pass(&mut engine, &packet.bytes(), 0), Err(reason));
    }
}

#[test]
fn fragments_that_overlap_or_are_too_many_or_too_short_are_dropped() {
    for (client, vip) in [(CLIENT, VIP), (CLIENT_6, VIP_6)] {
        let mut engine = all_services();
        let udp = Build::udp(client, vip).data(&[7; 3000]);
        let tcp = Build::tcp(client, vip).flags("S").data(&[7; 100]);
        let mut check = |bytes: Vec<u8>, expected: Result<(), Reason>| {
            assert_eq!(pass(&mut engine, &bytes, 0).map(drop), expected);
        };
        check(tcp.piece(0, 16, 1), Err(Reason::FirstFragmentShort));
        check(tcp.piece(8, 32, 1), Err(Reason::FragmentUnknown));
        check(udp.piece(0, 804, 1), Err(Reason::Length));
        check(udp.piece(0, 800, 2), Ok(()));
        check(udp.piece(8, 800, 2), Err(Reason::FragmentOverlap));
        check(udp.piece(0, 800, 2), Err(Reason::FragmentOverlap));
        check(udp.piece(792, 1600, 2), Err(Reason::FragmentOverlap));
        check(udp.piece(1600, 2400, 2), Ok(()));
        check(udp.piece(800, 2400, 2), Err(Reason::FragmentOverlap));
        check(udp.piece(800, 1600, 2), Ok(()));
        let many = 8..8 * FRAGMENTS_A_PACKET_MAX;
        check(udp.piece(0, 8, 3), Ok(()));
        many.step_by(8)
            .for_each(|at| check(udp.piece(at, at + 8, 3), Ok(())));
        let end = 8 * FRAGMENTS_A_PACKET_MAX;
        check(udp.piece(end, end + 8, 3), Err(Reason::FragmentsTooMany));
        // More packets than are remembered: the oldest make room.
        (10..30).for_each(|id| check(udp.piece(0, 8, id), Ok(())));
        check(udp.piece(8, 16, 10), Err(Reason::FragmentUnknown));
        check(udp.piece(8, 16, 29), Ok(()));
        assert_eq!(engine.sizes().2, 16);
    }
}

#[test]
fn a_packet_of_the_backend_itself_is_dropped() {
    let mut engine = all_services();
    let syn = Build::tcp("203.0.113.1:99", VIP).flags("S").bytes();
    assert_eq!(pass(&mut engine, &syn, 0), Err(Reason::Hairpin));
}

#[test]
fn two_connections_that_the_backend_could_not_tell_apart_are_not_made() {
    let second = "192.0.2.11:4833";
    let rules = [VIP, second].map(|vip| service(Forward::Nat, vip, TCP, &[BACKEND]));
    let mut engine = engine(&rules);
    connect(&mut engine, CLIENT, VIP, 0);
    let syn = Build::tcp(CLIENT, second).flags("S").bytes();
    assert_eq!(pass(&mut engine, &syn, 0), Err(Reason::TupleInUse));
}

/// Random packets, right and broken: whatever is sent on has right lengths and checksums if it had
/// them before, goes to a backend or from a service, and was explained as what happened.
#[test]
fn explanations_agree_with_what_happens() {
    let mut random = Random::new(11);
    let mut engine = all_services();
    let ends = [CLIENT, VIP, BACKEND, "198.51.100.8:41000"];
    let ends_6 = [CLIENT_6, VIP_6, BACKEND_6, "[2001:db8:1::8]:41000"];
    let (mut sent, mut dropped) = (0, 0);
    for round in 0..20_000 {
        let ends = if random.below(2) == 0 { ends } else { ends_6 };
        let mut pick = |count: u64| random.below(count) as usize;
        let (from, to) = (ends[pick(4)], ends[pick(4)]);
        let flags = ["S", "SA", "A", "FA", "R", "RA"][pick(6)];
        let packet = Build::new(from, to, [TCP, UDP][pick(2)])
            .flags(flags)
            .numbers([100, 101, 900, 901][pick(4)], [0, 101, 102, 901][pick(4)])
            .data(&vec![1; pick(4)]);
        let mut bytes = packet.bytes();
        let is_broken = pick(4) == 0;
        if is_broken {
            let at = pick(bytes.len() as u64);
            bytes[at] ^= 1 << pick(8);
        }
        let frame = Frame {
            bytes: bytes.clone(),
            ..Frame::default()
        };
        engine.tick(round * 10);
        let steps = engine.explain(&frame);
        let outcome = steps.last().expect("an outcome").clone();
        match pass(&mut engine, &bytes, round * 10) {
            Ok(after) => {
                sent += 1;
                assert!(outcome.starts_with("sent on"), "{steps:?} but sent");
                let (new_from, new_to) = build::ends(&after);
                let is_there = new_to == BACKEND || new_to == BACKEND_6;
                let is_back = new_from == VIP || new_from == VIP_6;
                if !is_broken {
                    assert!(is_there || is_back, "{new_from} {new_to}");
                    assert_eq!(after, packet.between(&new_from, &new_to).bytes());
                }
            }
            Err(reason) => {
                dropped += 1;
                assert!(outcome.contains(reason.label()), "{steps:?} but {reason:?}");
            }
        }
    }
    assert!(
        sent > 1000 && dropped > 1000,
        "{sent} sent, {dropped} dropped"
    );
    let counts = engine.counts();
    assert_eq!(counts.drops.total(), dropped);
    assert_eq!(counts.packets.iter().sum::<u64>(), sent);
}
