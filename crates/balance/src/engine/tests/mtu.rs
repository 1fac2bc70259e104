//! Packets that are longer than the next hop's link takes.

use super::*;

const CLIENT: &str = "198.51.100.7:40000";
const VIP: &str = "192.0.2.10:4833";
const BACKEND: &str = "203.0.113.1:4833";
const CLIENT_6: &str = "[2001:db8:1::7]:40000";
const VIP_6: &str = "[2001:db8::10]:4833";
const BACKEND_6: &str = "[2001:db8:2::1]:4833";
const MTU: u32 = 1400;

fn both() -> [[&'static str; 3]; 2] {
    [[CLIENT, VIP, BACKEND], [CLIENT_6, VIP_6, BACKEND_6]]
}

fn narrow(forward: Forward, vip: &str, protocol: u8, target: &str) -> Engine {
    let port = Port {
        mac: None,
        mtu: Some(MTU),
    };
    engine_with(
        &[service(forward, vip, protocol, &[target])],
        options(),
        port,
    )
}

/// A packet of TCP with as much data as makes it `bytes` long.
fn long(from: &str, to: &str, bytes: usize) -> Build {
    let headers = if from.starts_with('[') { 60 } else { 40 };
    let data: Vec<u8> = (0..bytes - headers).map(|i| i as u8).collect();
    let mut packet = Build::tcp(from, to).numbers(101, 901).data(&data);
    packet.dont_fragment = true;
    packet
}

/// The message that a packet is too long, as a router writes it.
fn too_long(from: &str, to: &str, about: &[u8], mtu: u32) -> Vec<u8> {
    let is_v6 = from.starts_with('[');
    let (protocol, kind, kept) = if is_v6 {
        (ICMP_V6, [2, 0], 1232)
    } else {
        (ICMP, [3, 4], 548)
    };
    let mut raw = vec![kind[0], kind[1], 0, 0];
    raw.extend_from_slice(&mtu.to_be_bytes());
    raw.extend_from_slice(&about[..about.len().min(kept)]);
    let mut message = Build::new(from, to, protocol).raw(protocol, raw);
    if !is_v6 {
        message = message.fragment(0, false, 0);
        message.dont_fragment = true;
    }
    message.bytes()
}

#[test]
fn senders_are_told_by_the_address_to_which_they_send() {
    for [client, vip, target] in both() {
        for forward in [Forward::Nat, Forward::FullNat] {
            let mut engine = narrow(forward, vip, TCP, target);
            let (_, source) = connect(&mut engine, client, vip, 0);
            let fits = long(client, vip, MTU as usize).bytes();
            assert_eq!(pass(&mut engine, &fits, 0).expect("fits").len(), fits.len());
            let there = long(client, vip, MTU as usize + 1).bytes();
            let told = pass(&mut engine, &there, 0).expect("told");
            assert_eq!(told, too_long(vip, client, &there, MTU), "to the client");
            // Under NAT the backend sends to the client, for which the service speaks.
            let back = long(target, &source, MTU as usize + 100).bytes();
            let from = if forward == Forward::Nat {
                vip
            } else {
                &source
            };
            let told = pass(&mut engine, &back, 0).expect("told");
            assert_eq!(told, too_long(from, target, &back, MTU), "to the backend");
            let counts = engine.counts();
            assert_eq!(
                (counts.told_too_long, counts.drops.of(Reason::TooLong)),
                (2, 2)
            );
            let frame = Frame {
                bytes: there,
                ..Frame::default()
            };
            let steps = engine.explain(&frame).join(" ");
            assert!(
                steps.contains("(too_long)") && steps.contains("1400"),
                "{steps}"
            );
        }
    }
}

#[test]
fn on_ethernet_the_message_goes_back_to_the_neighbour_it_came_from() {
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 7];
    let mut rule = service(Forward::Direct, VIP, UDP, &["203.0.113.1:4833"]);
    rule.backends[0].link = Some(Neighbour {
        port: 1,
        mac: [2, 0, 0, 0, 0, 8],
    });
    let ports = [None, Some(MTU)].map(|mtu| Port {
        mac: Some(MAC),
        mtu,
    });
    let mut engine = engine_with(&[rule], options(), Port::default());
    engine.set_ports(ports.to_vec());
    let mut packet = Build::udp(CLIENT, VIP).data(&[1; 1400]);
    packet.dont_fragment = true;
    let ethernet =
        |to: [u8; 6], from: [u8; 6], packet: &[u8]| [&to[..], &from, &[8, 0], packet].concat();
    let frame = ethernet(MAC, OTHER, &packet.bytes());
    let told = pass(&mut engine, &frame, 0).expect("told");
    let message = too_long(VIP, CLIENT, &packet.bytes(), MTU);
    assert_eq!(told, ethernet(OTHER, MAC, &message));
    assert_eq!(engine.sizes(), (0, 0, 0), "it opened nothing");
    // A later MTU counts.
    engine.set_mtu(1, Some(1500));
    let mut frames = [Frame {
        bytes: frame,
        ..Frame::default()
    }];
    let mut verdicts = Vec::new();
    engine.process(&mut frames, &mut verdicts, 0);
    assert_eq!(verdicts, [Verdict::Send(1)]);
}

#[test]
fn few_senders_are_told_at_a_time() {
    let mut engine = narrow(Forward::Nat, VIP, TCP, BACKEND);
    connect(&mut engine, CLIENT, VIP, 0);
    let packet = long(CLIENT, VIP, 1500).bytes();
    let mut told = |count: u64, now_ms| {
        let sent = (0..count).filter(|_| pass(&mut engine, &packet, now_ms).is_ok());
        sent.count() as u64
    };
    assert_eq!(told(150, 0), TOLD_AT_ONCE_MAX);
    assert_eq!(told(50, 10), 10 * TOLD_A_SECOND_MAX / 1000);
    assert_eq!(told(200, 60_000), TOLD_AT_ONCE_MAX);
    // A clock that goes backwards gives nothing.
    assert_eq!(told(50, 5), 0);
    assert_eq!(engine.counts().drops.of(Reason::TooLong), 450);
    assert_eq!(engine.counts().told_too_long, 210);
}

#[test]
fn nobody_is_told_about_errors_and_later_fragments() {
    let mut engine = narrow(Forward::Nat, VIP_6, UDP, BACKEND_6);
    let there = Build::udp(CLIENT_6, VIP_6).data(&[5; 4000]);
    pass(&mut engine, &there.piece(0, 800, 9), 0).expect("the first fits");
    let later = there.piece(800, 2400, 9);
    assert_eq!(pass(&mut engine, &later, 0), Err(Reason::TooLong));
    // A first one is not followed, and its sender is told.
    let first = there.piece(0, 1600, 10);
    let told = pass(&mut engine, &first, 0).expect("told");
    assert_eq!(told, too_long(VIP_6, CLIENT_6, &first, MTU));
    let rest = there.piece(1600, 2400, 10);
    assert_eq!(pass(&mut engine, &rest, 0), Err(Reason::FragmentUnknown));
    // An error with more of its packet than is allowed.
    let mut engine = narrow(Forward::Nat, VIP, TCP, BACKEND);
    connect(&mut engine, CLIENT, VIP, 0);
    let mut raw = vec![3, 1, 0, 0, 0, 0, 0, 0];
    raw.extend_from_slice(&long(CLIENT, BACKEND, 1380).bytes());
    let error = Build::new("203.0.113.254:0", CLIENT, ICMP).raw(ICMP, raw);
    assert_eq!(pass(&mut engine, &error.bytes(), 0), Err(Reason::TooLong));
    assert_eq!(engine.counts().told_too_long, 0);
}

/// Sends a packet, and returns all that comes out.
fn pieces(engine: &mut Engine, frame: Frame) -> Vec<Vec<u8>> {
    let mut frames = [frame];
    let mut verdicts = Vec::new();
    engine.process(&mut frames, &mut verdicts, 0);
    assert_eq!(verdicts, [Verdict::Send(0)]);
    let [first] = frames;
    let further: Vec<_> = engine.take_further().collect();
    assert!(
        further
            .iter()
            .all(|(frame, port)| *port == 0 && !frame.partial)
    );
    let further = further.into_iter().map(|(frame, _)| frame.bytes);
    [first.bytes].into_iter().chain(further).collect()
}

#[test]
fn ipv4_packets_that_may_be_split_go_on_in_fragments() {
    for partial in [false, true] {
        let mut engine = narrow(Forward::FullNat, VIP, UDP, BACKEND);
        let data: Vec<u8> = (0..4000u32).map(|i| (i / 3) as u8).collect();
        let mut there = Build::udp(CLIENT, VIP).data(&data);
        there.partial = partial;
        let frame = Frame {
            bytes: there.bytes(),
            partial,
            ..Frame::default()
        };
        let got = pieces(&mut engine, frame);
        there.partial = false;
        let source = engine.connections().next().and_then(|one| one.source);
        let source = source.expect("full NAT").to_string();
        let expected = there.between(&source, BACKEND);
        let id = u32::from(u16::from_be_bytes([got[0][4], got[0][5]]));
        assert_ne!(id, 7, "several senders share the source");
        let ends = [(0, 1376), (1376, 2752), (2752, 4008)];
        let expected = ends.map(|(begin, end)| expected.piece(begin, end, id));
        assert_eq!(got, expected);
        assert_eq!(engine.counts().split, 3);
    }
    // A fragment, in smaller ones: the last of them is not the packet's last.
    let mut engine = narrow(Forward::Nat, VIP, UDP, BACKEND);
    let there = Build::udp(CLIENT, VIP).data(&[9; 4000]);
    for (begin, end) in [(0, 2000), (2000, 4008)] {
        let frame = Frame {
            bytes: there.piece(begin, end, 20),
            ..Frame::default()
        };
        let got = pieces(&mut engine, frame);
        let id = u32::from(u16::from_be_bytes([got[0][4], got[0][5]]));
        let there = there.clone().between(CLIENT, BACKEND);
        let middle = begin + 1376;
        let expected = [(begin, middle), (middle, end)].map(|(a, b)| there.piece(a, b, id));
        assert_eq!(got, expected);
    }
}

#[test]
fn segments_count_by_their_own_length() {
    for [client, vip, target] in both() {
        let mut engine = narrow(Forward::Nat, vip, TCP, target);
        connect(&mut engine, client, vip, 0);
        let headers = if vip == VIP { 40 } else { 60 };
        let big = long(client, vip, 30_000);
        for (segment_bytes, fits) in [(1400 - headers, true), (1401 - headers, false)] {
            let mut frames = [Frame {
                bytes: big.bytes(),
                segment_bytes,
                ..Frame::default()
            }];
            let mut verdicts = Vec::new();
            engine.process(&mut frames, &mut verdicts, 0);
            assert_eq!(verdicts, [Verdict::Send(0)]);
            let [frame] = frames;
            let expected = if fits {
                big.clone().between(client, target).bytes()
            } else {
                too_long(vip, client, &big.bytes(), MTU)
            };
            assert_eq!(frame.bytes, expected);
            assert_eq!(frame.segment_bytes, if fits { segment_bytes } else { 0 });
        }
    }
}
