//! Frames that go somewhere: each is compared with one that was built for its new ends.

use super::build::sum;
use super::*;

const CLIENT: &str = "198.51.100.7:40000";
const VIP: &str = "192.0.2.10:4833";
const BACKEND: &str = "203.0.113.1:4800";
const SOURCE_ADDRESS: &str = "192.0.2.99";
const CLIENT_6: &str = "[2001:db8:1::7]:40000";
const VIP_6: &str = "[2001:db8::10]:4833";
const BACKEND_6: &str = "[2001:db8:2::1]:4800";

/// Client, service and backend of both versions.
fn both() -> [[&'static str; 3]; 2] {
    [[CLIENT, VIP, BACKEND], [CLIENT_6, VIP_6, BACKEND_6]]
}

#[test]
fn nat_of_tcp_and_udp_is_what_was_built_for_the_new_ends() {
    for [client, vip, target] in both() {
        for length in [0, 1, 2, 3, 100, 1401] {
            let data: Vec<u8> = (0..length).map(|i| (i * 31) as u8).collect();
            let rules = [TCP, UDP].map(|protocol| service(Forward::Nat, vip, protocol, &[target]));
            let mut engine = engine(&rules);
            for protocol in [TCP, UDP] {
                let mut there = Build::new(client, vip, protocol).data(&data).numbers(5, 0);
                if protocol == TCP {
                    there = there.flags("S").options(&[2, 4, 5, 180, 3, 3, 7, 1]);
                }
                let sent = pass(&mut engine, &there.bytes(), 0).expect("sent");
                assert_eq!(
                    sent,
                    there.clone().between(client, target).bytes(),
                    "{length}"
                );
                let back = Build::new(target, client, protocol).data(&data).flags("SA");
                let back = back.numbers(9, 6 + length as u32);
                let sent = pass(&mut engine, &back.bytes(), 0).expect("sent");
                assert_eq!(sent, back.clone().between(vip, client).bytes(), "{length}");
            }
        }
    }
}

#[test]
fn full_nat_changes_both_ends_and_back() {
    for [client, vip, target] in both() {
        let mut engine = engine(&[service(Forward::FullNat, vip, TCP, &[target])]);
        let syn = Build::tcp(client, vip).flags("S").numbers(5, 0);
        let sent = pass(&mut engine, &syn.bytes(), 0).expect("sent");
        let (source, destination) = build::ends(&sent);
        assert_eq!(destination, target);
        let expected = if vip == VIP {
            SOURCE_ADDRESS
        } else {
            "2001:db8::99"
        };
        assert_eq!(socket(&source).ip(), address(expected));
        assert!(socket(&source).port() >= 1024);
        assert_eq!(sent, syn.clone().between(&source, target).bytes());
        let back = Build::tcp(target, &source).flags("SA").numbers(9, 6);
        let sent = pass(&mut engine, &back.bytes(), 0).expect("sent");
        assert_eq!(sent, back.clone().between(vip, client).bytes());
    }
}

#[test]
fn checksums_that_are_absent_or_would_be_zero_keep_their_meaning() {
    let mut engine = engine(&[service(Forward::Nat, VIP, UDP, &[BACKEND])]);
    let mut none = Build::udp(CLIENT, VIP).data(b"abc");
    none.has_checksum = false;
    let sent = pass(&mut engine, &none.bytes(), 0).expect("sent");
    assert_eq!(sent, none.clone().between(CLIENT, BACKEND).bytes());
    // Data for which the new packet's checksum comes out as 0, which is written as 0xffff.
    let zero = (0..=u16::MAX).find(|word| {
        let packet = Build::udp(CLIENT, BACKEND).data(&word.to_be_bytes());
        packet.transport()[6..8] == [0xff, 0xff]
    });
    let there = Build::udp(CLIENT, VIP).data(&zero.expect("a word").to_be_bytes());
    let sent = pass(&mut engine, &there.bytes(), 0).expect("sent");
    assert_eq!(sent, there.between(CLIENT, BACKEND).bytes());
}

/// A checksum that is left to the device is filled in, or stays left to it with the new addresses
/// if the frame says so.
#[test]
fn partial_checksums_are_completed_or_kept_partial() {
    for [client, vip, target] in both() {
        for protocol in [TCP, UDP] {
            let mut engine = engine(&[service(Forward::Nat, vip, protocol, &[target])]);
            let mut there = Build::new(client, vip, protocol).flags("S").data(b"odd");
            there.partial = true;
            let mut whole = there.clone().between(client, target);
            whole.partial = false;
            let sent = pass(&mut engine, &there.bytes(), 0).expect("sent");
            assert_eq!(sent, whole.bytes());
            assert_eq!(engine.counts().checksums_completed, 1);
            let mut frames = [Frame {
                bytes: there.bytes(),
                port: 0,
                partial: true,
                segment_bytes: 0,
            }];
            engine.process(&mut frames, &mut Vec::new(), 0);
            let expected = there.clone().between(client, target).bytes();
            let field = frames[0].bytes.len() - there.transport().len()
                + if protocol == TCP { 16 } else { 6 };
            let mut sent = frames[0].bytes.clone();
            // Both forms of zero are one number.
            if sent[field..field + 2] == [0xff; 2] && expected[field..field + 2] == [0; 2] {
                sent[field..field + 2].fill(0);
            }
            assert_eq!(sent, expected);
        }
    }
}

fn ethernet(payload: &[u8], to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let kind: [u8; 2] = if payload[0] >> 4 == 4 {
        [8, 0]
    } else {
        [0x86, 0xdd]
    };
    let mut frame = [&to[..], &from, &kind, payload].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
const BACKEND_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

fn on_ethernet(forward: Forward, vip: &str, target: &str) -> Engine {
    let mut rule = service(forward, vip, TCP, &[target]);
    rule.backends[0].link = Some(Neighbour {
        port: 0,
        mac: BACKEND_MAC,
    });
    engine_with(
        &[rule],
        options(),
        Port {
            mac: Some(MAC),
            mtu: None,
        },
    )
}

#[test]
fn ethernet_frames_go_to_the_next_hop_with_one_hop_less() {
    for [client, vip, target] in both() {
        let mut engine = on_ethernet(Forward::Nat, vip, target);
        let mut syn = Build::tcp(client, vip).flags("S").numbers(5, 0);
        let sent = pass(&mut engine, &ethernet(&syn.bytes(), MAC, CLIENT_MAC), 0).expect("sent");
        syn.hops = 63;
        let expected = syn.clone().between(client, target).bytes();
        assert_eq!(sent, ethernet(&expected, BACKEND_MAC, MAC));
        let mut back = Build::tcp(target, client).flags("SA").numbers(9, 6);
        let sent = pass(&mut engine, &ethernet(&back.bytes(), MAC, BACKEND_MAC), 0).expect("sent");
        back.hops = 63;
        let expected = back.between(vip, client).bytes();
        assert_eq!(sent, ethernet(&expected, CLIENT_MAC, MAC));
        syn.hops = 1;
        let last = ethernet(&syn.bytes(), MAC, CLIENT_MAC);
        assert_eq!(pass(&mut engine, &last, 0), Err(Reason::HopLimit));
        let elsewhere = ethernet(&syn.bytes(), BACKEND_MAC, CLIENT_MAC);
        assert_eq!(pass(&mut engine, &elsewhere, 0), Err(Reason::NotOurs));
    }
}

#[test]
fn direct_return_changes_hardware_addresses_alone() {
    for ([client, vip, _], target) in both()
        .into_iter()
        .zip(["203.0.113.1:4833", "[2001:db8:2::1]:4833"])
    {
        let mut engine = on_ethernet(Forward::Direct, vip, target);
        let syn = Build::tcp(client, vip).flags("S").numbers(5, 0).bytes();
        let sent = pass(&mut engine, &ethernet(&syn, MAC, CLIENT_MAC), 0).expect("sent");
        assert_eq!(sent, ethernet(&syn, BACKEND_MAC, MAC));
        let ack = Build::tcp(client, vip).numbers(6, 77).bytes();
        let sent = pass(&mut engine, &ethernet(&ack, MAC, CLIENT_MAC), 0).expect("sent");
        assert_eq!(sent, ethernet(&ack, BACKEND_MAC, MAC));
        assert_eq!(engine.sizes().0, 1, "open");
    }
}

#[test]
fn a_backend_without_a_known_neighbour_gets_nothing() {
    let rule = service(Forward::Nat, VIP, TCP, &[BACKEND]);
    let mut engine = engine_with(
        &[rule],
        options(),
        Port {
            mac: Some(MAC),
            mtu: None,
        },
    );
    let syn = ethernet(&Build::tcp(CLIENT, VIP).flags("S").bytes(), MAC, CLIENT_MAC);
    assert_eq!(pass(&mut engine, &syn, 0), Err(Reason::NoNeighbour));
    assert_eq!(engine.sizes(), (0, 0, 0));
    let link = Neighbour {
        port: 0,
        mac: BACKEND_MAC,
    };
    engine.set_neighbour(address("203.0.113.1"), link);
    assert!(pass(&mut engine, &syn, 0).is_ok());
}

/// An ICMP error: type, code, four bytes (a path's MTU, say) and what it is about.
fn error(from: &str, to: &str, kind: u8, rest: [u8; 4], about: &[u8]) -> Build {
    let mut raw = vec![kind, 4, 0, 0];
    raw.extend_from_slice(&rest);
    raw.extend_from_slice(about);
    let protocol = if from.starts_with('[') { ICMP_V6 } else { ICMP };
    Build::new(from, to, protocol).raw(protocol, raw)
}

/// Errors of a router between client and balancer go to the backend, those of one between balancer
/// and backend to the client, each about the packet that its receiver knows.
#[test]
fn icmp_errors_are_translated_with_what_they_embed() {
    let routers = ["198.51.100.1:0", "[2001:db8:3::1]:0"];
    for ([client, vip, target], router) in both().into_iter().zip(routers) {
        for forward in [Forward::Nat, Forward::FullNat] {
            let mut engine = engine(&[service(forward, vip, TCP, &[target])]);
            let (_, source) = connect(&mut engine, client, vip, 0);
            let kind = if vip == VIP { 3 } else { 2 };
            let mtu = [0, 0, 5, 100];
            // About data of the backend's; 28 bytes of it, or all.
            for cut in [true, false] {
                let seen = Build::tcp(vip, client)
                    .numbers(901, 101)
                    .data(b"0123456789");
                let sent = Build::tcp(target, &source)
                    .numbers(901, 101)
                    .data(b"0123456789");
                let header = if vip == VIP { 20 } else { 40 };
                let end = |packet: &Build| {
                    let bytes = packet.bytes();
                    if cut {
                        bytes[..header + 8].to_vec()
                    } else {
                        bytes
                    }
                };
                let came = error(router, vip, kind, mtu, &end(&seen));
                let from = if forward == Forward::Nat {
                    router
                } else {
                    &source
                };
                let expected = error(from, target, kind, mtu, &end(&sent));
                let got = pass(&mut engine, &came.bytes(), 0).expect("sent");
                assert_eq!(
                    got,
                    expected.bytes(),
                    "to the backend, {forward:?}, cut {cut}"
                );
                // About data of the client's.
                let seen = Build::tcp(&source, target)
                    .numbers(101, 901)
                    .data(b"0123456789");
                let sent = Build::tcp(client, vip)
                    .numbers(101, 901)
                    .data(b"0123456789");
                let came = error(router, &source, kind, mtu, &end(&seen));
                let expected = error(vip, client, kind, mtu, &end(&sent));
                let got = pass(&mut engine, &came.bytes(), 0).expect("sent");
                assert_eq!(
                    got,
                    expected.bytes(),
                    "to the client, {forward:?}, cut {cut}"
                );
            }
            let about = Build::tcp(vip, "198.51.100.8:1").bytes();
            if vip == VIP {
                let nothing = error(router, vip, kind, mtu, &about);
                assert_eq!(
                    pass(&mut engine, &nothing.bytes(), 0),
                    Err(Reason::IcmpUnknown)
                );
                let short = error(router, vip, kind, mtu, &about[..22]);
                assert_eq!(pass(&mut engine, &short.bytes(), 0), Err(Reason::IcmpShort));
            }
        }
    }
}

#[test]
fn fragments_follow_their_first_with_a_number_of_their_own() {
    for [client, vip, target] in both() {
        for forward in [Forward::Nat, Forward::FullNat] {
            let mut engine = engine(&[service(forward, vip, UDP, &[target])]);
            let data: Vec<u8> = (0..3000u32).map(|i| i as u8).collect();
            let there = Build::udp(client, vip).data(&data);
            let pieces = [(0, 1208), (1208, 2408), (2408, 3008)];
            let late = there.piece(1208, 2408, 77);
            assert_eq!(pass(&mut engine, &late, 0), Err(Reason::FragmentUnknown));
            let mut id = None;
            for (begin, end) in [pieces[0], pieces[2], pieces[1]] {
                let got = pass(&mut engine, &there.piece(begin, end, 77), 0).expect("sent");
                let new = match vip == VIP {
                    true => u32::from(u16::from_be_bytes([got[4], got[5]])),
                    false => u32::from_be_bytes([got[44], got[45], got[46], got[47]]),
                };
                assert_eq!(*id.get_or_insert(new), new, "one number for all");
                let source = engine.connections().next().expect("a connection").source;
                let source = source.map_or(client.to_string(), |source| source.to_string());
                let expected = there
                    .clone()
                    .between(&source, target)
                    .piece(begin, end, new);
                assert_eq!(got, expected, "{begin}");
            }
            assert_ne!(id, Some(77));
            let again = there.piece(1208, 2408, 77);
            assert_eq!(pass(&mut engine, &again, 0), Err(Reason::FragmentUnknown));
            assert_eq!(
                engine.sizes().2,
                0,
                "nothing is kept of a packet that is complete"
            );
        }
    }
}

#[test]
fn another_packet_may_have_the_name_of_one_before() {
    for [client, vip, target] in both() {
        let mut engine = engine(&[service(Forward::FullNat, vip, UDP, &[target])]);
        let packet = Build::udp(client, vip).data(&[7; 3000]);
        let (begin, end) = (packet.piece(0, 1208, 77), packet.piece(1208, 3008, 77));
        for now in [0, 1, 2] {
            pass(&mut engine, &begin, now).expect("another one");
            pass(&mut engine, &end, now).expect("whole");
        }
        // Of one that is not complete, too, but not at once: its fragments may still come.
        pass(&mut engine, &begin, 3).expect("a first fragment");
        assert_eq!(pass(&mut engine, &begin, 4), Err(Reason::FragmentOverlap));
        pass(&mut engine, &begin, 1_003).expect("another one");
        pass(&mut engine, &end, 1_004).expect("whole");
        assert_eq!(engine.sizes().2, 0);
        // Many that are complete leave no more behind.
        for id in 0..100 {
            pass(&mut engine, &packet.piece(0, 1208, id), 1_005).expect("sent");
            pass(&mut engine, &packet.piece(1208, 3008, id), 1_005).expect("sent");
        }
        assert_eq!(engine.sizes().2, 0);
    }
}

/// RFC 6946: packets of one fragment have nothing to do with each other.
#[test]
fn atomic_fragments_are_packets() {
    let [client, vip, target] = both()[1];
    let mut engine = engine(&[service(Forward::Nat, vip, UDP, &[target])]);
    let atomic = Build::udp(client, vip).data(&[7; 100]).piece(0, 108, 0);
    for _ in 0..3 {
        pass(&mut engine, &atomic, 0).expect("sent");
    }
    assert_eq!(engine.sizes().2, 0);
}

#[test]
fn the_balancer_answers_echoes_arp_and_solicitations_for_its_addresses() {
    for [client, vip, target] in both() {
        let mut engine = on_ethernet(Forward::Nat, vip, target);
        let protocol = if vip == VIP { ICMP } else { ICMP_V6 };
        let kinds = if vip == VIP { [8, 0] } else { [128, 129] };
        let echo = |from, to, kind| {
            let raw = vec![kind, 0, 0, 0, 1, 2, 3, 4, 5];
            Build::new(from, to, protocol).raw(protocol, raw).bytes()
        };
        let request = ethernet(&echo(client, vip, kinds[0]), MAC, CLIENT_MAC);
        let reply = ethernet(&echo(vip, client, kinds[1]), CLIENT_MAC, MAC);
        assert_eq!(pass(&mut engine, &request, 0), Ok(reply));
    }
    let mut engine = on_ethernet(Forward::Nat, VIP, BACKEND);
    let asks = |target: [u8; 4]| {
        let mut frame = vec![0xff; 6];
        frame.extend_from_slice(&CLIENT_MAC);
        frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend_from_slice(&CLIENT_MAC);
        frame.extend_from_slice(&[198, 51, 100, 7]);
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&target);
        frame
    };
    let answer = pass(&mut engine, &asks([192, 0, 2, 10]), 0).expect("answered");
    assert_eq!(answer[..12], [CLIENT_MAC, MAC].concat());
    assert_eq!(answer[20..22], [0, 2]);
    assert_eq!(answer[22..32], [&MAC[..], &[192, 0, 2, 10]].concat());
    assert_eq!(
        answer[32..42],
        [&CLIENT_MAC[..], &[198, 51, 100, 7]].concat()
    );
    assert_eq!(
        pass(&mut engine, &asks([192, 0, 2, 11]), 0),
        Err(Reason::NotOurs)
    );
}

#[test]
fn a_neighbour_solicitation_gets_the_hardware_address() {
    let mut engine = on_ethernet(Forward::Nat, VIP_6, BACKEND_6);
    let IpAddr::V6(own) = address("2001:db8::10") else {
        unreachable!()
    };
    let mut raw = vec![135, 0, 0, 0, 0, 0, 0, 0];
    raw.extend_from_slice(&own.octets());
    raw.extend_from_slice(&[1, 1, 2, 0, 0, 0, 0, 7]);
    let mut asks = Build::new(CLIENT_6, "[ff02::1:ff00:10]:0", ICMP_V6).raw(ICMP_V6, raw);
    asks.hops = 255;
    let group = [0x33, 0x33, 0xff, 0, 0, 0x10];
    let question = ethernet(&asks.bytes(), group, CLIENT_MAC);
    let answer = pass(&mut engine, &question, 0).expect("answered");
    let mut raw = vec![136, 0, 0, 0, 0x60, 0, 0, 0];
    raw.extend_from_slice(&own.octets());
    raw.extend_from_slice(&[2, 1]);
    raw.extend_from_slice(&MAC);
    let mut expected = Build::new(VIP_6, CLIENT_6, ICMP_V6).raw(ICMP_V6, raw);
    expected.hops = 255;
    assert_eq!(answer, ethernet(&expected.bytes(), CLIENT_MAC, MAC));
    asks.hops = 64;
    let routed = ethernet(&asks.bytes(), group, CLIENT_MAC);
    assert!(
        pass(&mut engine, &routed, 0).is_err(),
        "from beyond a router"
    );
}

#[test]
fn sums_of_the_builder_are_those_of_a_known_packet() {
    // The example of RFC 1071.
    assert_eq!(sum(&[&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]]), 0xddf2);
}
