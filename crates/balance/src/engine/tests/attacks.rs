//! Frames of those who know a connection's addresses and ports, and not its numbers.

use super::*;
use outboard_flow::random::Random;
use std::collections::HashSet;

const VIP: &str = "192.0.2.10:4833";
const BACKEND: &str = "203.0.113.1:4833";
const CLIENT: &str = "198.51.100.7:40000";
const OTHER_CLIENT: &str = "198.51.100.8:40001";

fn nat() -> ServiceRule {
    service(Forward::Nat, VIP, TCP, &[BACKEND])
}

/// Opens a connection whose sides begin with these numbers.
fn open_at(engine: &mut Engine, client: u32, backend: u32) {
    let [next_client, next_backend] = [client, backend].map(|one| one.wrapping_add(1));
    for packet in [
        Build::tcp(CLIENT, VIP).flags("S").numbers(client, 0),
        Build::tcp(BACKEND, CLIENT)
            .flags("SA")
            .numbers(backend, next_client),
        Build::tcp(CLIENT, VIP)
            .flags("A")
            .numbers(next_client, next_backend),
    ] {
        pass(engine, &packet.bytes(), 0).expect("sent on");
    }
}

/// A segment of the client, or of the backend.
fn of_client(flags: &str, sequence: u32, acknowledged: u32) -> Build {
    let packet = Build::tcp(CLIENT, VIP).flags(flags);
    packet.numbers(sequence, acknowledged)
}

fn of_backend(flags: &str, sequence: u32, acknowledged: u32) -> Build {
    let packet = Build::tcp(BACKEND, CLIENT).flags(flags);
    packet.numbers(sequence, acknowledged)
}

fn phase(engine: &Engine) -> Option<Phase> {
    engine.connections().next().map(|one| one.phase)
}

/// Sends segments of both sides with numbers that are guessed.
fn guess(engine: &mut Engine, flags: &str, count: usize, now: u64) {
    let mut random = Random::new(7);
    for _ in 0..count {
        let (sequence, acknowledged) = (random.next_u64() as u32, random.next_u64() as u32);
        for packet in [
            of_client(flags, sequence, acknowledged),
            of_backend(flags, acknowledged, sequence),
        ] {
            let sent = pass(engine, &packet.bytes(), now);
            assert!(matches!(sent, Ok(_) | Err(Reason::ResetOutOfWindow)));
        }
    }
}

#[test]
fn guessed_ends_and_acknowledgements_change_nothing() {
    // Numbers pass 0 on both sides meanwhile, on one, or on none.
    for (client, backend) in [
        (100, 900),
        (u32::MAX - 3, u32::MAX - 1),
        (1 << 31, u32::MAX),
    ] {
        let [c, b] = [client, backend].map(|one: u32| one.wrapping_add(1));
        let mut engine = engine(&[nat()]);
        open_at(&mut engine, client, backend);
        for flags in ["FA", "A"] {
            guess(&mut engine, flags, 500, 1000);
            assert_eq!(phase(&engine), Some(Phase::Established));
        }
        assert!(engine.counts().out_of_window > 1990, "all but chance hits");
        // An end with one number right is none, either.
        for packet in [
            of_client("FA", c, b.wrapping_add(5_000_000)),
            of_client("FA", c.wrapping_add(5_000_000), b),
            of_backend("FA", b, c.wrapping_sub(5_000_000)),
            of_backend("FA", b.wrapping_sub(5_000_000), c),
            of_client("S", c.wrapping_add(5), 0),
        ] {
            pass(&mut engine, &packet.bytes(), 1000).expect("sent on");
            assert_eq!(phase(&engine), Some(Phase::Established));
        }
        engine.tick(300_000_000);
        assert_eq!(phase(&engine), Some(Phase::Established));
        // Data of both sides, and both ends.
        let (d, e) = (c.wrapping_add(10), b.wrapping_add(10));
        for (packet, next) in [
            (of_client("A", c, b).data(&[7; 10]), Phase::Established),
            (of_backend("A", b, d).data(&[8; 10]), Phase::Established),
            (of_client("FA", d, e), Phase::FinWait),
            (of_backend("FA", e, d.wrapping_add(1)), Phase::LastAck),
            (
                of_client("A", d.wrapping_add(1), e.wrapping_add(1)),
                Phase::TimeWait,
            ),
        ] {
            pass(&mut engine, &packet.bytes(), 300_000_000).expect("sent on");
            assert_eq!(phase(&engine), Some(next));
        }
        // What is guessed does not keep it for longer.
        guess(&mut engine, "A", 10, 300_100_000);
        engine.tick(300_121_000);
        assert_eq!(phase(&engine), None);
    }
}

#[test]
fn resets_are_taken_after_guessed_acknowledgements() {
    for start in [900, u32::MAX, u32::MAX - 2000] {
        for is_backend in [true, false] {
            let mut engine = engine(&[nat()]);
            open_at(&mut engine, start, start);
            guess(&mut engine, "A", 500, 0);
            let next = start.wrapping_add(1);
            let reset = if is_backend {
                of_backend("RA", next, next)
            } else {
                of_client("R", next, 0)
            };
            pass(&mut engine, &reset.bytes(), 0).expect("sent on");
            assert_eq!(phase(&engine), Some(Phase::Close));
        }
    }
}

#[test]
fn ends_out_of_order_and_beyond_lost_segments_are_seen() {
    let mut engine = engine(&[nat()]);
    open_at(&mut engine, 100, 900);
    // The data before is lost on its way here, and sent again.
    let end = of_client("FA", 601, 901);
    pass(&mut engine, &end.bytes(), 0).expect("sent on");
    assert_eq!(phase(&engine), Some(Phase::FinWait));
    pass(
        &mut engine,
        &of_client("A", 101, 901).data(&[1; 500]).bytes(),
        0,
    )
    .expect("sent on");
    pass(&mut engine, &of_backend("A", 901, 602).bytes(), 0).expect("sent on");
    assert_eq!(phase(&engine), Some(Phase::CloseWait));
}

/// A first fragment does not say how much follows.
#[test]
fn a_packet_in_fragments_leaves_numbers_that_fit() {
    let mut engine = engine(&[nat()]);
    open_at(&mut engine, 100, 900);
    let long = of_client("A", 101, 901).data(&[1; 900]);
    for piece in [long.piece(0, 400, 9), long.piece(400, 920, 9)] {
        pass(&mut engine, &piece, 0).expect("sent on");
    }
    pass(&mut engine, &of_backend("FA", 901, 1001).bytes(), 0).expect("sent on");
    assert_eq!(phase(&engine), Some(Phase::FinWait));
    assert_eq!(engine.counts().out_of_window, 0);
}

#[test]
fn a_reset_that_is_not_exact_leaves_the_connection() {
    let mut engine = engine(&[nat()]);
    open_at(&mut engine, 100, 900);
    let reset = |number| of_client("R", number, 0).bytes();
    assert_eq!(
        pass(&mut engine, &reset(101 + 1001), 0),
        Err(Reason::ResetOutOfWindow)
    );
    // Its receiver asks, and whoever has the connection goes on.
    pass(&mut engine, &reset(101 + 800), 1000).expect("sent on");
    assert_eq!(phase(&engine), Some(Phase::Doubtful));
    engine.tick(1000 + 10_000_000);
    assert_eq!(
        phase(&engine),
        Some(Phase::Doubtful),
        "idle for less than three hours"
    );
    pass(&mut engine, &of_backend("A", 901, 101).bytes(), 10_001_000).expect("sent on");
    assert_eq!(phase(&engine), Some(Phase::Established));
    engine.tick(400_000_000);
    assert_eq!(phase(&engine), Some(Phase::Established));
    // Who has reset it answers the question with the number that is asked for.
    pass(&mut engine, &reset(101 + 800), 400_000_000).expect("sent on");
    pass(&mut engine, &of_backend("A", 901, 101).bytes(), 400_000_000).expect("sent on");
    pass(&mut engine, &reset(101), 400_000_000).expect("sent on");
    assert_eq!(phase(&engine), Some(Phase::Close));
    engine.tick(400_011_000);
    assert_eq!(phase(&engine), None);
    // Without any answer it is over in time.
    open_at(&mut engine, 100, 900);
    pass(&mut engine, &reset(101 + 800), 400_020_000).expect("sent on");
    engine.tick(400_020_000 + 10_801_000);
    assert_eq!(phase(&engine), None);
}

#[test]
fn a_side_that_goes_on_after_its_reset_did_not_send_it() {
    let mut engine = engine(&[nat()]);
    open_at(&mut engine, 100, 900);
    let mut step = |packet: Build, next| {
        pass(&mut engine, &packet.bytes(), 0).expect("sent on");
        assert_eq!(phase(&engine), Some(next));
    };
    step(of_backend("A", 901, 101).data(&[1; 50]), Phase::Established);
    step(of_backend("R", 951, 0), Phase::Close);
    // Under way before, or sent again.
    step(of_client("A", 101, 951).data(&[2; 20]), Phase::Close);
    step(of_backend("A", 901, 101).data(&[1; 50]), Phase::Close);
    // New data, and then anything of its.
    step(of_backend("A", 951, 121).data(&[3; 10]), Phase::Doubtful);
    step(of_client("A", 121, 961), Phase::Established);
}

/// A handshake without scales of both sides has windows without.
#[test]
fn windows_are_scaled_if_both_sides_say_so() {
    for (is_scaled, next) in [(true, Phase::FinWait), (false, Phase::Established)] {
        let mut engine = engine(&[nat()]);
        let scale: &[u8] = if is_scaled { &[3, 3, 7, 0] } else { &[] };
        let syn = of_client("S", 100, 0).options(&[3, 3, 7, 0]);
        for packet in [
            syn,
            of_backend("SA", 900, 101).options(scale),
            of_client("A", 101, 901),
            // 100,000 bytes beyond what is acknowledged.
            of_backend("FA", 100_901, 101),
        ] {
            pass(&mut engine, &packet.bytes(), 0).expect("sent on");
        }
        assert_eq!(phase(&engine), Some(next));
    }
}

fn ethernet(packet: &Build, from: [u8; 6], port: u16) -> Frame {
    let bytes = packet.bytes();
    Frame {
        bytes: [&MAC[..], &from, &[8, 0], &bytes, &[0; 20]].concat(),
        port,
        ..Frame::default()
    }
}

const BACKEND_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 7];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 8];

/// An engine with clients at port 0 and the backend at port 1.
fn two_ports(protocol: u8) -> Engine {
    let mut rule = service(Forward::Nat, VIP, protocol, &[BACKEND]);
    let mac = BACKEND_MAC;
    rule.backends[0].link = Some(Neighbour { port: 1, mac });
    let port = Port {
        mac: Some(MAC),
        mtu: None,
    };
    let mut engine = engine_with(&[rule], options(), port);
    engine.set_ports(vec![port; 3]);
    engine
}

/// Sends a frame, and returns where it goes: its port and hardware address.
fn sent_to(engine: &mut Engine, frame: Frame, now: u64) -> Result<(u16, [u8; 6]), Reason> {
    let (mut frames, mut verdicts) = ([frame], Vec::new());
    engine.process(&mut frames, &mut verdicts, now);
    match verdicts[0] {
        Verdict::Send(port) => Ok((port, frames[0].bytes[..6].try_into().expect("six"))),
        Verdict::Drop(reason) => Err(reason),
    }
}

fn open_on_two_ports(engine: &mut Engine) {
    for (packet, mac, port) in [
        (of_client("S", 100, 0), CLIENT_MAC, 0),
        (of_backend("SA", 900, 101), BACKEND_MAC, 1),
        (of_client("A", 101, 901), CLIENT_MAC, 0),
    ] {
        sent_to(engine, ethernet(&packet, mac, port), 0).expect("sent on");
    }
}

/// Ports with these numbers as hardware addresses.
fn ports_named(numbers: &[u8]) -> Vec<Port> {
    let port = |number: &u8| Port {
        mac: Some([2, 0, 0, 0, 1, *number]),
        mtu: None,
    };
    numbers.iter().map(port).collect()
}

/// An interface is known again by its hardware address.
#[test]
fn a_dump_of_interfaces_in_another_order_is_restored() {
    let to = |number: u8, packet: &Build, mac, port| {
        let mut frame = ethernet(packet, mac, port);
        frame.bytes[..6].copy_from_slice(&[2, 0, 0, 0, 1, number]);
        frame
    };
    let engine_of = |numbers: &[u8], backend_port| {
        let mut engine = two_ports(TCP);
        engine.set_ports(ports_named(numbers));
        let mac = BACKEND_MAC;
        let port = backend_port;
        engine.set_neighbour(socket(BACKEND).ip(), Neighbour { port, mac });
        engine
    };
    let mut old = engine_of(&[10, 11, 12], 1);
    for (packet, mac, port) in [
        (of_client("S", 100, 0), CLIENT_MAC, 0),
        (of_backend("SA", 900, 101), BACKEND_MAC, 1),
        (of_client("A", 101, 901), CLIENT_MAC, 0),
    ] {
        let frame = to(10 + port as u8, &packet, mac, port);
        sent_to(&mut old, frame, 0).expect("sent on");
    }
    let dump = old.dump();
    let mut new = engine_of(&[11, 13, 10], 0);
    assert_eq!(new.restore(&dump), Ok((1, 0)));
    let answer = to(11, &of_backend("A", 901, 101), BACKEND_MAC, 0);
    assert_eq!(sent_to(&mut new, answer, 0), Ok((2, CLIENT_MAC)));
    // The client's interface is gone.
    assert_eq!(engine_of(&[11, 13], 0).restore(&dump), Ok((0, 1)));
}

#[test]
fn a_dump_without_ports_is_restored() {
    let mut old = engine(&[nat()]);
    open_at(&mut old, 100, 900);
    let dump = old.dump();
    // One port without a hardware address: a length and a tag.
    assert_eq!(dump[8..14], [4, 0, 0, 0, 1, 0]);
    let old_dump = [&dump[..8], &[3, 0, 0, 0], &dump[14..dump.len() - 32]].concat();
    let mut new = engine(&[nat()]);
    assert_eq!(new.restore(&sealed(&old_dump)), Ok((1, 0)));
    let mut later = engine(&[nat()]);
    later.set_ports(Vec::new());
    assert_eq!(later.restore(&sealed(&old_dump)), Ok((0, 1)));
}

#[test]
fn answers_follow_a_client_by_segments_that_fit() {
    let mut engine = two_ports(TCP);
    open_on_two_ports(&mut engine);
    let mut answered_at = |packet: Build, mac, port| {
        sent_to(&mut engine, ethernet(&packet, mac, port), 0).expect("sent on");
        let answer = ethernet(&of_backend("A", 901, 101), BACKEND_MAC, 1);
        sent_to(&mut engine, answer, 0).expect("sent on")
    };
    for forged in [
        of_client("A", 5_000_000, 901),
        of_client("A", 101, 5_000_000),
        of_client("S", 100, 0),
        of_client("R", 101 + 500, 0),
    ] {
        assert_eq!(answered_at(forged, OTHER_MAC, 2), (0, CLIENT_MAC));
    }
    let moved = of_client("A", 101, 901);
    assert_eq!(answered_at(moved, OTHER_MAC, 2), (2, OTHER_MAC));
}

#[test]
fn answers_follow_a_client_of_udp_after_a_pause() {
    let mut engine = two_ports(UDP);
    let there = Build::udp(CLIENT, VIP);
    let back = ethernet(&Build::udp(BACKEND, CLIENT), BACKEND_MAC, 1);
    let mut answered_at = |mac, port, now| {
        sent_to(&mut engine, ethernet(&there, mac, port), now).expect("sent on");
        sent_to(&mut engine, back.clone(), now).expect("sent on")
    };
    assert_eq!(answered_at(CLIENT_MAC, 0, 0), (0, CLIENT_MAC));
    assert_eq!(answered_at(OTHER_MAC, 2, 9_000), (0, CLIENT_MAC));
    assert_eq!(answered_at(CLIENT_MAC, 0, 9_500), (0, CLIENT_MAC));
    assert_eq!(answered_at(OTHER_MAC, 2, 19_000), (0, CLIENT_MAC));
    assert_eq!(answered_at(OTHER_MAC, 2, 19_500), (2, OTHER_MAC));
}

fn sealed(document: &[u8]) -> Vec<u8> {
    [document, blake3::hash(document).as_bytes()].concat()
}

#[test]
fn a_dump_of_what_cannot_be_is_refused_whole() {
    let scaled = |packet: Build| packet.options(&[3, 3, 14, 0]);
    let mut old = engine(&[nat()]);
    let mut reasons = HashSet::new();
    for packet in [
        scaled(of_client("S", 100, 0)),
        scaled(of_backend("SA", 900, 101)),
        of_client("A", 101, 901).window(65_535),
        of_client("FA", 101, 901),
    ] {
        pass(&mut old, &packet.bytes(), 0).expect("sent on");
        let dump = old.dump();
        change_each_byte(&dump[..dump.len() - 32], &mut reasons);
    }
    for why in [
        "a window scale above 14",
        "a window above 1 GiB",
        "numbers of a side that has sent nothing",
        "a phase of another protocol",
        "a phase that needs the backend's numbers",
        "a connection without its client's numbers",
        "a phase of a connection that nobody has ended",
        "numbers of another way to forward",
        "bytes after the connections",
    ] {
        assert!(reasons.contains(why), "{why}: {reasons:?}");
    }
}

/// Restores dumps with a byte that is different or at the end, and sends packets if that worked.
fn change_each_byte(document: &[u8], reasons: &mut HashSet<&'static str>) {
    let mut new = engine(&[nat()]);
    for at in 12..=document.len() {
        for value in [0, 1, 2, 3, 10, 14, 15, 127, 128, 255] {
            let mut changed = [document, &[0]].concat();
            changed[at] = value;
            if at < document.len() {
                changed.truncate(document.len());
            }
            match new.restore(&sealed(&changed)) {
                Err(RestoreError::Impossible(why)) => drop(reasons.insert(why)),
                Err(_) | Ok((0, _)) => {}
                Ok(_) => {
                    for packet in [
                        of_client("A", 102, 901),
                        of_backend("A", 901, 102),
                        of_client("R", 102, 0),
                    ] {
                        let _ = pass(&mut new, &packet.bytes(), 0);
                    }
                    new = engine(&[nat()]);
                }
            }
            assert_eq!(new.sizes(), (0, 0, 0));
        }
    }
}

/// A balancer that was killed leaves a dump of some time ago: its successor believes what both
/// sides agree about, and ends nothing before.
#[test]
fn numbers_of_an_old_dump_are_learned_anew() {
    let mut old = engine(&[nat()]);
    open_at(&mut old, 100, 900);
    let dump = old.dump_meanwhile();
    // Since then: each side has sent more than it has room to tell.
    let (c, b) = (3_000_000_000, 2_000_000_000);
    let restored = || {
        let mut new = engine(&[nat()]);
        assert_eq!(new.restore(&dump), Ok((1, 0)));
        new
    };
    let mut new = restored();
    for packet in [
        of_client("FA", 4_000_000, 5_000_000),
        of_backend("FA", 6_000_000, 7_000_000),
    ] {
        pass(&mut new, &packet.bytes(), 0).expect("sent on");
        assert_eq!(phase(&new), Some(Phase::Established));
    }
    let mut steps = |packets: [(Build, Phase); 4]| {
        for (packet, next) in packets {
            pass(&mut new, &packet.bytes(), 0).expect("sent on");
            assert_eq!(phase(&new), Some(next));
        }
    };
    steps([
        (of_client("A", c, b).data(&[1; 10]), Phase::Established),
        (of_backend("A", b, c + 10), Phase::Established),
        (of_client("FA", c + 10, b), Phase::FinWait),
        (of_backend("A", b, c + 11), Phase::CloseWait),
    ]);
    // Once they are known, nothing else is learned.
    let mut new = restored();
    for packet in [of_client("A", c, b), of_backend("A", b, c)] {
        pass(&mut new, &packet.bytes(), 0).expect("sent on");
    }
    for packet in [
        of_client("FA", 5, 6),
        of_backend("FA", 6, 6),
        of_client("A", 6, 7),
    ] {
        pass(&mut new, &packet.bytes(), 0).expect("sent on");
        assert_eq!(phase(&new), Some(Phase::Established));
    }
    // An end is believed when the other side agrees with it.
    let mut new = restored();
    for packet in [of_client("A", c, b), of_backend("FA", b, c)] {
        pass(&mut new, &packet.bytes(), 0).expect("sent on");
    }
    assert_eq!(phase(&new), Some(Phase::FinWait));
}

#[test]
fn a_connection_adopted_by_a_guess_is_learned_from_both_sides() {
    let rule = ServiceRule {
        adopt: true,
        ..nat()
    };
    let mut engine = engine(&[rule]);
    // Before the client: somebody who knows its address.
    for (packet, next) in [
        (of_client("A", 5_000_000, 6_000_000), Phase::Adopted),
        (of_client("A", 101, 901).data(&[1; 10]), Phase::Adopted),
        (of_backend("A", 901, 111), Phase::Established),
        (of_client("FA", 5_000_000, 6_000_000), Phase::Established),
        (of_backend("FA", 600_000_000, 5_000_000), Phase::Established),
        (of_client("FA", 111, 901), Phase::FinWait),
    ] {
        pass(&mut engine, &packet.bytes(), 0).expect("sent on");
        assert_eq!(phase(&engine), Some(next));
    }
}

/// The balancer sees the client's side alone.
#[test]
fn guessed_ends_of_direct_connections_change_nothing() {
    let mut engine = engine(&[service(Forward::Direct, VIP, TCP, &["203.0.113.1:4833"])]);
    for packet in [of_client("S", 100, 0), of_client("A", 101, 901)] {
        pass(&mut engine, &packet.bytes(), 0).expect("sent on");
    }
    let mut random = Random::new(7);
    for _ in 0..500 {
        let (sequence, acknowledged) = (random.next_u64() as u32, random.next_u64() as u32);
        let packet = of_client("FA", sequence, acknowledged);
        pass(&mut engine, &packet.bytes(), 0).expect("sent on");
        assert_eq!(phase(&engine), Some(Phase::Established));
    }
    // Half a window was received meanwhile, and more acknowledged later.
    for (packet, next) in [
        (
            of_client("A", 101, 1401).data(&[1; 100]),
            Phase::Established,
        ),
        (of_client("A", 201, 1901), Phase::Established),
        (of_client("FA", 201, 1901), Phase::FinWait),
    ] {
        pass(&mut engine, &packet.bytes(), 0).expect("sent on");
        assert_eq!(phase(&engine), Some(next));
    }
}

/// Clients are at port 0, the backend is at port 1.
#[test]
fn packets_of_a_backend_must_come_from_where_it_is() {
    let mut engine = two_ports(TCP);
    let mut step = |packet: Build, mac, port| {
        let frame = ethernet(&packet, mac, port);
        let steps = engine.explain(&frame);
        let sent = sent_to(&mut engine, frame, 0).map(|(port, _)| port);
        let last = steps.last().expect("an outcome");
        assert_eq!(last.starts_with("dropped"), sent.is_err(), "{last}");
        sent
    };
    let refused = Err(Reason::WrongInterface);
    assert_eq!(step(of_client("S", 100, 0), CLIENT_MAC, 0), Ok(1));
    assert_eq!(step(of_backend("SA", 900, 5_000), OTHER_MAC, 0), refused);
    assert_eq!(step(of_backend("RA", 0, 101), OTHER_MAC, 0), refused);
    assert_eq!(step(of_backend("SA", 900, 101), BACKEND_MAC, 1), Ok(0));
    assert_eq!(step(of_client("A", 101, 901), CLIENT_MAC, 0), Ok(1));
    for forged in [
        of_backend("R", 901, 0),
        of_backend("FA", 5_000, 101),
        of_backend("A", 901, 5_000_000),
    ] {
        assert_eq!(step(forged, OTHER_MAC, 0), refused);
    }
    // Answers may come another way than packets go: the numbers show it, and then all of the
    // connection's are taken, but not those of other clients.
    assert_eq!(step(of_backend("A", 901, 101), BACKEND_MAC, 2), Ok(0));
    assert_eq!(step(of_backend("R", 901, 0), BACKEND_MAC, 2), Ok(0));
    let of_other = |flags, numbers: (u32, u32)| {
        let packet = Build::tcp(OTHER_CLIENT, VIP).flags(flags);
        packet.numbers(numbers.0, numbers.1)
    };
    assert_eq!(step(of_other("S", (100, 0)), CLIENT_MAC, 0), Ok(1));
    let answer = Build::tcp(BACKEND, OTHER_CLIENT).flags("R").numbers(901, 0);
    assert_eq!(step(answer, OTHER_MAC, 2), refused);
    assert_eq!(engine.counts().drops.of(Reason::WrongInterface), 6);
    let mut engine = two_ports(UDP);
    let there = ethernet(&Build::udp(CLIENT, VIP), CLIENT_MAC, 0);
    sent_to(&mut engine, there, 0).expect("sent on");
    let back = |port| ethernet(&Build::udp(BACKEND, CLIENT), OTHER_MAC, port);
    assert_eq!(
        sent_to(&mut engine, back(0), 0),
        Err(Reason::WrongInterface)
    );
    assert_eq!(sent_to(&mut engine, back(1), 0), Ok((0, CLIENT_MAC)));
}

/// Clients whose addresses are forged are answered like any other.
#[test]
fn a_flood_of_udp_leaves_tcp_its_half_of_the_table() {
    const NAMES: &str = "192.0.2.10:53";
    let mut small = options();
    (small.connections_max, small.half_open_max) = (100, 50);
    let names = service(Forward::Nat, NAMES, UDP, &[BACKEND]);
    let rules = [nat(), names.clone()];
    let mut engine = engine_with(&rules, small.clone(), Port::default());
    let flood = |engine: &mut Engine, count: usize| {
        for number in 0..count {
            let from = format!("198.51.{}.{}:1000", number / 200, number % 200 + 1);
            for packet in [Build::udp(&from, NAMES), Build::udp(BACKEND, &from)] {
                pass(engine, &packet.bytes(), 0).expect("sent on, beyond its share too");
            }
        }
    };
    flood(&mut engine, 1000);
    assert_eq!(engine.sizes(), (50, 50, 0));
    for number in 0..50 {
        let from = format!("198.51.100.{}:40000", number + 1);
        connect(&mut engine, &from, VIP, 0);
    }
    assert_eq!(engine.sizes().0, 100);
    let dump = engine.dump();
    let mut next = engine_with(&rules, small.clone(), Port::default());
    assert!(next.restore(&dump).expect("whole").0 >= 100);
    assert_eq!(next.sizes().0, 100);
    // What is over makes room for others of UDP.
    engine.tick(40_000);
    flood(&mut engine, 60);
    assert_eq!(engine.sizes().0, 100);
    // Alone it may have all.
    let mut alone = engine_with(&[names], small, Port::default());
    flood(&mut alone, 90);
    assert_eq!(alone.sizes(), (90, 0, 0));
    // More are served from the table of half-open ones.
    flood(&mut alone, 140);
    assert_eq!(alone.sizes(), (100, 40, 0));
}

/// The answers to such a datagram would come back to the balancer, and go to the backend again.
#[test]
fn a_packet_from_an_address_of_its_own_is_dropped() {
    let mut engine = engine(&[service(Forward::FullNat, VIP, UDP, &[BACKEND])]);
    for from in [VIP, "192.0.2.10:9", "192.0.2.99:1024"] {
        let forged = Build::udp(from, VIP).bytes();
        assert_eq!(pass(&mut engine, &forged, 0), Err(Reason::OwnSource));
    }
    assert_eq!(engine.sizes(), (0, 0, 0));
}
