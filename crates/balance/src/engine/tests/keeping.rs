//! Connections keep their backends; new ones go where weights, health and affinity say.

use super::*;
use std::collections::{HashMap, HashSet};

const VIP: &str = "192.0.2.10:4833";
const BACKENDS: [&str; 4] = [
    "203.0.113.1:4833",
    "203.0.113.2:4833",
    "203.0.113.3:4833",
    "203.0.113.4:4833",
];

fn client(number: usize) -> String {
    format!("198.51.{}.{}:40000", number / 200, number % 200 + 1)
}

fn nat(backends: &[&str]) -> ServiceRule {
    service(Forward::Nat, VIP, TCP, backends)
}

/// Sends data on a connection that is open and returns the backend that gets it.
fn backend_of(engine: &mut Engine, client: &str, now: u64) -> Result<String, Reason> {
    let data = Build::tcp(client, VIP).numbers(101, 901).data(b"x");
    pass(engine, &data.bytes(), now).map(|sent| build::ends(&sent).1)
}

#[test]
fn a_backend_that_joins_gets_clients_once_its_hardware_address_is_known() {
    let rules = |backends: &[&str]| [nat(backends)];
    let port = Port {
        mac: Some(MAC),
        mtu: None,
    };
    let mut engine = engine_with(&rules(&BACKENDS[..1]), options(), port);
    let known = |engine: &mut Engine, backend: &str| {
        let link = Neighbour {
            port: 0,
            mac: [7; 6],
        };
        engine.set_neighbour(socket(backend).ip(), link);
    };
    known(&mut engine, BACKENDS[0]);
    let targets = |engine: &mut Engine, from: usize, now_ms: u64| -> HashSet<_> {
        let opened = (from..from + 100).map(|number| {
            let syn = Build::tcp(&client(number), VIP).flags("S").bytes();
            let frame = [&MAC[..], &[9; 6], &[8, 0], &syn].concat();
            pass(engine, &frame, now_ms).map(|sent| build::ends(&sent[14..]).1)
        });
        opened.collect()
    };
    let only = |backend: &str| HashSet::from([Ok(backend.to_string())]);
    engine.reload(&rules(&BACKENDS[..3]), Timeouts::default());
    assert_eq!(targets(&mut engine, 0, 1), only(BACKENDS[0]));
    known(&mut engine, BACKENDS[1]);
    let both = targets(&mut engine, 100, 2);
    assert_eq!(both, HashSet::from([0, 1].map(|i| Ok(BACKENDS[i].into()))));
    // It waits for so long, and not again.
    engine.tick(JOIN_MS_MAX - 1);
    assert!(!targets(&mut engine, 200, JOIN_MS_MAX - 1).contains(&Err(Reason::NoNeighbour)));
    engine.tick(JOIN_MS_MAX);
    assert!(targets(&mut engine, 300, JOIN_MS_MAX).contains(&Err(Reason::NoNeighbour)));
    engine.reload(&rules(&BACKENDS[..3]), Timeouts::default());
    assert!(targets(&mut engine, 400, JOIN_MS_MAX).contains(&Err(Reason::NoNeighbour)));
    // If no other takes clients, it is not waited for.
    engine.reload(&rules(&[BACKENDS[0], BACKENDS[3]]), Timeouts::default());
    assert_eq!(targets(&mut engine, 500, JOIN_MS_MAX), only(BACKENDS[0]));
    engine.drain(socket(BACKENDS[0]), true);
    let none = HashSet::from([Err(Reason::NoNeighbour)]);
    assert_eq!(targets(&mut engine, 600, JOIN_MS_MAX), none);
}

#[test]
fn connections_keep_their_backends_whatever_changes() {
    let mut engine = engine(&[nat(&BACKENDS[..3])]);
    let before: Vec<_> = (0..300)
        .map(|i| connect(&mut engine, &client(i), VIP, 0).0)
        .collect();
    let used: HashSet<_> = before.iter().collect();
    assert_eq!(used.len(), 3);
    let check = |engine: &mut Engine, what: &str| {
        for (i, backend) in before.iter().enumerate() {
            assert_eq!(
                backend_of(engine, &client(i), 1).as_ref(),
                Ok(backend),
                "{what}"
            );
        }
    };
    let opens = |engine: &mut Engine, from: usize| -> HashSet<String> {
        (from..from + 100)
            .map(|i| connect(engine, &client(i), VIP, 1).0)
            .collect()
    };
    let timeouts = Timeouts::default;
    engine.reload(&[nat(&BACKENDS)], timeouts());
    check(&mut engine, "one was added");
    assert!(opens(&mut engine, 1000).contains(BACKENDS[3]));
    engine.reload(&[nat(&BACKENDS[1..])], timeouts());
    check(&mut engine, "one was removed");
    assert!(!opens(&mut engine, 2000).contains(BACKENDS[0]));
    assert_eq!(engine.drain(socket(BACKENDS[1]), true), 1);
    check(&mut engine, "one is drained");
    assert!(!opens(&mut engine, 3000).contains(BACKENDS[1]));
    engine.reload(&[nat(&BACKENDS)], timeouts());
    assert!(
        !opens(&mut engine, 4000).contains(BACKENDS[1]),
        "a reload ends no drain"
    );
    engine.drain(socket(BACKENDS[1]), false);
    assert!(opens(&mut engine, 5000).contains(BACKENDS[1]));
    engine.set_health(&(socket(VIP), TCP), socket(BACKENDS[2]), None);
    check(&mut engine, "one is down");
    assert!(!opens(&mut engine, 6000).contains(BACKENDS[2]));
    for backend in &BACKENDS {
        engine.set_health(&(socket(VIP), TCP), socket(backend), None);
    }
    let syn = Build::tcp(&client(7777), VIP).flags("S").bytes();
    assert_eq!(pass(&mut engine, &syn, 1), Err(Reason::NoBackend));
    check(&mut engine, "all are down");
    engine.reload(&[], timeouts());
    check(&mut engine, "the service is gone");
    assert_eq!(pass(&mut engine, &syn, 1), Err(Reason::NoConnection));
}

#[test]
fn new_connections_follow_weights_and_a_slow_start() {
    let mut rule = nat(&BACKENDS[..2]);
    rule.backends[1].weight = 3;
    let mut engine = engine_with(&[rule], options(), Port::default());
    let count = |engine: &mut Engine, from: usize| {
        let backend = |i| connect(engine, &client(from + i), VIP, 0).0;
        (0..1000)
            .map(backend)
            .filter(|one| *one == BACKENDS[1])
            .count()
    };
    let share = count(&mut engine, 0);
    assert!(
        (700..800).contains(&share),
        "{share} of 1000 for a weight of 3 in 4"
    );
    engine.set_health(&(socket(VIP), TCP), socket(BACKENDS[1]), Some(10));
    let share = count(&mut engine, 2000);
    assert!(
        (180..280).contains(&share),
        "{share} of 1000 for a weight of 0.3 in 1.3"
    );
}

#[test]
fn all_connections_of_a_client_go_to_one_backend() {
    let mut rule = nat(&BACKENDS);
    rule.affinity = true;
    let mut engine = engine_with(&[rule.clone()], options(), Port::default());
    let ports = |host: usize, ports: std::ops::Range<u16>, engine: &mut Engine| {
        let connect = |port| connect(engine, &format!("198.51.100.{host}:{port}"), VIP, 0).0;
        let all: HashSet<_> = ports.map(connect).collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().expect("one")
    };
    let first: Vec<_> = (1..100)
        .map(|host| ports(host, 2000..2004, &mut engine))
        .collect();
    assert_eq!(
        first.iter().collect::<HashSet<_>>().len(),
        4,
        "all are used"
    );
    // A client with connections stays while its backend is drained or removed; others do not come.
    let drained = first[0].clone();
    engine.drain(socket(&drained), true);
    assert_eq!(ports(1, 2004..2008, &mut engine), drained);
    let kept: Vec<_> = BACKENDS.into_iter().filter(|one| *one != drained).collect();
    engine.reload(
        &[ServiceRule {
            affinity: true,
            ..nat(&kept)
        }],
        Timeouts::default(),
    );
    assert_eq!(ports(1, 2008..2012, &mut engine), drained);
    assert!((100..150).all(|host| ports(host, 2000..2001, &mut engine) != drained));
    // Once its connections are over, the client goes elsewhere, too.
    for port in 2000..2012 {
        let client = format!("198.51.100.1:{port}");
        let reset = Build::tcp(&client, VIP).flags("R").numbers(101, 0);
        pass(&mut engine, &reset.bytes(), 0).expect("sent");
    }
    engine.tick(11_000);
    assert_ne!(ports(1, 2012..2016, &mut engine), drained);
    // A backend that is down keeps no client.
    let host = 1 + first.iter().position(|one| *one != drained).expect("one");
    let down = first[host - 1].clone();
    engine.set_health(&(socket(VIP), TCP), socket(&down), None);
    assert_ne!(ports(host, 2100..2104, &mut engine), down);
}

#[test]
fn a_flood_of_syns_costs_no_connection_and_clients_are_served() {
    let rule = nat(&BACKENDS);
    let mut engine = engine_with(&[rule], options(), Port::default());
    let before: Vec<_> = (0..200)
        .map(|i| connect(&mut engine, &client(i), VIP, 0).0)
        .collect();
    let flood = |engine: &mut Engine, round: u32| {
        // In all, a hundred times what the table of half-open connections holds.
        for i in 0..500u32 {
            let from = format!("10.{round}.{}.{}:{}", i / 200, i % 200 + 1, 1000 + i);
            let syn = Build::tcp(&from, VIP).flags("S").bytes();
            pass(engine, &syn, 1).expect("sent on");
        }
    };
    let mut served = 0;
    for round in 0..100u32 {
        let from = client(1000 + round as usize);
        let syn = Build::tcp(&from, VIP).flags("S").numbers(100, 0).bytes();
        let target = build::ends(&pass(&mut engine, &syn, 1).expect("sent on")).1;
        flood(&mut engine, 2 * round);
        let answer = Build::tcp(&target, &from)
            .flags("SA")
            .numbers(900, 101)
            .bytes();
        let answered = pass(&mut engine, &answer, 1).is_ok();
        flood(&mut engine, 2 * round + 1);
        let ack = Build::tcp(&from, VIP).numbers(101, 901).bytes();
        served += usize::from(answered && pass(&mut engine, &ack, 1).is_ok());
    }
    assert_eq!(served, 100);
    assert_eq!(engine.sizes(), (300, 1023, 0));
    assert!(engine.counts().half_open_evicted > 98_000);
    for (i, backend) in before.iter().enumerate() {
        assert_eq!(backend_of(&mut engine, &client(i), 2).as_ref(), Ok(backend));
    }
    engine.tick(121_000);
    assert_eq!(
        engine.sizes(),
        (300, 0, 0),
        "half-open ones are over after their time"
    );
}

#[test]
fn a_full_table_refuses_new_connections_and_keeps_the_old() {
    let mut small = options();
    small.connections_max = 10;
    let mut engine = engine_with(&[nat(&BACKENDS)], small, Port::default());
    let before: Vec<_> = (0..10)
        .map(|i| connect(&mut engine, &client(i), VIP, 0).0)
        .collect();
    let (from, vip) = (client(10), VIP);
    let sent = pass(
        &mut engine,
        &Build::tcp(&from, vip).flags("S").numbers(100, 0).bytes(),
        0,
    );
    let target = build::ends(&sent.expect("half-open")).1;
    let answer = Build::tcp(&target, &from).flags("SA").numbers(900, 101);
    pass(&mut engine, &answer.bytes(), 0).expect("half-open");
    let ack = Build::tcp(&from, vip).numbers(101, 901).bytes();
    assert_eq!(pass(&mut engine, &ack, 0), Err(Reason::TableFull));
    for (i, backend) in before.iter().enumerate() {
        assert_eq!(backend_of(&mut engine, &client(i), 0).as_ref(), Ok(backend));
    }
}

#[test]
fn phases_follow_a_whole_connection_and_end_in_time() {
    let mut engine = engine(&[nat(&BACKENDS[..1])]);
    let (from, target) = (client(1), BACKENDS[0]);
    connect(&mut engine, &from, VIP, 0);
    let phase = |engine: &Engine| engine.connections().next().map(|one| one.phase);
    assert_eq!(phase(&engine), Some(Phase::Established));
    let mut step = |from: &str, to: &str, flags: &str, numbers: (u32, u32), next: Phase| {
        let packet = Build::tcp(from, to)
            .flags(flags)
            .numbers(numbers.0, numbers.1);
        pass(&mut engine, &packet.bytes(), 1000).expect("sent");
        assert_eq!(phase(&engine), Some(next));
    };
    step(&from, VIP, "FA", (101, 901), Phase::FinWait);
    step(target, &from, "A", (901, 102), Phase::CloseWait);
    step(target, &from, "FA", (901, 102), Phase::LastAck);
    step(&from, VIP, "A", (102, 902), Phase::TimeWait);
    engine.tick(1000 + 119_000);
    assert_eq!(phase(&engine), Some(Phase::TimeWait));
    engine.tick(1000 + 121_000);
    assert_eq!(phase(&engine), None);
    // A SYN takes the place of a connection that is over at once.
    connect(&mut engine, &from, VIP, 200_000);
    let reset = Build::tcp(target, &from)
        .flags("RA")
        .numbers(901, 101)
        .bytes();
    pass(&mut engine, &reset, 200_000).expect("sent");
    assert_eq!(phase(&engine), Some(Phase::Close));
    connect(&mut engine, &from, VIP, 200_000);
    assert_eq!(phase(&engine), Some(Phase::Established));
    // Five days without a packet.
    engine.tick(200_000 + 431_000_000);
    assert_eq!(phase(&engine), Some(Phase::Established));
    engine.tick(200_000 + 433_000_000);
    assert_eq!(phase(&engine), None);
}

#[test]
fn resets_beyond_the_window_change_nothing() {
    let mut engine = engine(&[nat(&BACKENDS[..1])]);
    let (from, target) = (client(1), BACKENDS[0]);
    connect(&mut engine, &from, VIP, 0);
    let reset =
        |from: &str, to: &str, number| Build::tcp(from, to).flags("R").numbers(number, 0).bytes();
    for number in [100, 101 + 1001, 5_000_000, 1 << 31, u32::MAX] {
        let forged = reset(&from, VIP, number);
        assert_eq!(
            pass(&mut engine, &forged, 0),
            Err(Reason::ResetOutOfWindow),
            "{number}"
        );
        let forged = reset(target, &from, number.wrapping_add(800));
        assert_eq!(
            pass(&mut engine, &forged, 0),
            Err(Reason::ResetOutOfWindow),
            "{number}"
        );
    }
    assert_eq!(backend_of(&mut engine, &from, 0).as_deref(), Ok(target));
    assert!(pass(&mut engine, &reset(&from, VIP, 101 + 1), 0).is_ok());
    assert_eq!(
        engine.connections().next().map(|one| one.phase),
        Some(Phase::Close)
    );
}

#[test]
fn handshakes_that_do_not_fit_open_nothing() {
    let mut engine = engine(&[nat(&BACKENDS[..1])]);
    let (from, target) = (client(1), BACKENDS[0]);
    let middle = Build::tcp(&from, VIP).numbers(5, 6).bytes();
    assert_eq!(pass(&mut engine, &middle, 0), Err(Reason::NoConnection));
    let syn = Build::tcp(&from, VIP).flags("S").numbers(100, 0).bytes();
    pass(&mut engine, &syn, 0).expect("sent");
    for (from, to, flags, numbers) in [
        (&from[..], VIP, "A", (101, 901)),
        (target, &from[..], "SA", (900, 102)),
        (target, &from[..], "S", (900, 0)),
    ] {
        let wrong = Build::tcp(from, to)
            .flags(flags)
            .numbers(numbers.0, numbers.1)
            .bytes();
        assert_eq!(
            pass(&mut engine, &wrong, 0),
            Err(Reason::BadHandshake),
            "{flags} {numbers:?}"
        );
    }
    let forged = Build::tcp(target, &from).flags("RA").numbers(0, 55).bytes();
    assert_eq!(pass(&mut engine, &forged, 0), Err(Reason::ResetOutOfWindow));
    let refused = Build::tcp(target, &from)
        .flags("RA")
        .numbers(0, 101)
        .bytes();
    pass(&mut engine, &refused, 0).expect("sent");
    assert_eq!(engine.sizes(), (0, 0, 0));
}

/// A backend that still has a connection with the client's port answers a SYN with what it expects;
/// the client's reset ends that connection, and its next SYN opens the new one.
#[test]
fn a_backend_with_an_older_connection_is_told_that_it_is_over() {
    let mut engine = engine(&[nat(&BACKENDS[..1])]);
    let (from, target) = (client(1), BACKENDS[0]);
    let syn = Build::tcp(&from, VIP).flags("S").numbers(100, 0).bytes();
    pass(&mut engine, &syn, 0).expect("sent");
    let reset = |number| Build::tcp(&from, VIP).flags("R").numbers(number, 0).bytes();
    assert_eq!(
        pass(&mut engine, &reset(5_000_000), 0),
        Err(Reason::ResetOutOfWindow)
    );
    let expects = Build::tcp(target, &from).numbers(77, 5_000_000).bytes();
    pass(&mut engine, &expects, 0).expect("sent");
    pass(&mut engine, &reset(5_000_000), 0).expect("sent");
    assert_eq!(
        pass(&mut engine, &reset(6_000_000), 0),
        Err(Reason::ResetOutOfWindow)
    );
    assert_eq!(connect(&mut engine, &from, VIP, 1).0, target);
    assert_eq!(engine.sizes(), (1, 0, 0));
}

#[test]
fn addresses_of_connections_stay_the_balancers_own() {
    let old = service(Forward::FullNat, VIP, TCP, &BACKENDS[..1]);
    let mut other = service(Forward::Nat, "192.0.2.77:80", TCP, &BACKENDS[..1]);
    other.name = "other".into();
    let mut engine = engine(&[old]);
    connect(&mut engine, &client(1), VIP, 0);
    let own = |engine: &Engine| -> HashSet<_> {
        engine.own_addresses().map(|one| one.to_string()).collect()
    };
    engine.reload(&[other.clone()], Timeouts::default());
    let all = ["192.0.2.10", "192.0.2.77", "192.0.2.99"].map(String::from);
    assert_eq!(own(&engine), HashSet::from(all));
    assert_eq!(engine.removed_services().count(), 1);
    assert!(backend_of(&mut engine, &client(1), 1).is_ok());
    let reset = Build::tcp(&client(1), VIP).flags("R").numbers(102, 0);
    pass(&mut engine, &reset.bytes(), 1).expect("sent");
    engine.tick(60_000);
    engine.reload(&[other], Timeouts::default());
    assert_eq!(own(&engine), HashSet::from(["192.0.2.77".into()]));
    assert_eq!(engine.removed_services().count(), 0);
}

#[test]
fn shorter_timeouts_count_at_once() {
    let mut timeouts = Timeouts::default();
    timeouts.set(Phase::SynReceived, 2_000);
    let mut engine = engine(&[nat(&BACKENDS[..1])]);
    engine.reload(&[nat(&BACKENDS[..1])], timeouts.clone());
    let syn = Build::tcp(&client(1), VIP).flags("S").numbers(100, 0);
    pass(&mut engine, &syn.bytes(), 0).expect("sent");
    let answer = Build::tcp(BACKENDS[0], &client(1)).flags("SA");
    pass(&mut engine, &answer.numbers(900, 101).bytes(), 0).expect("sent");
    connect(&mut engine, &client(2), VIP, 0);
    engine.tick(8_000);
    assert_eq!(engine.sizes(), (1, 0, 0));
    timeouts.set(Phase::Established, 10_000);
    engine.reload(&[nat(&BACKENDS[..1])], timeouts);
    engine.tick(18_000);
    assert_eq!(engine.sizes(), (0, 0, 0));
}

#[test]
fn half_open_connections_give_their_ports_up_the_oldest_first() {
    let mut rule = service(Forward::FullNat, VIP, TCP, &BACKENDS[..1]);
    rule.source_ports = (5000, 5099);
    let mut engine = engine(&[rule]);
    let before: Vec<_> = (0..50)
        .map(|i| connect(&mut engine, &client(i), VIP, 0).0)
        .collect();
    let flood = |engine: &mut Engine, from: u32, now: u64| {
        for i in from..from + 500 {
            let forged = format!("10.0.{}.{}:{}", i / 200, i % 200 + 1, 1000 + i);
            let syn = Build::tcp(&forged, VIP).flags("S").bytes();
            pass(engine, &syn, now).expect("sent on");
        }
    };
    flood(&mut engine, 0, 1);
    let from = client(1000);
    let syn = Build::tcp(&from, VIP).flags("S").numbers(100, 0).bytes();
    let target = build::ends(&pass(&mut engine, &syn, 2).expect("sent on")).1;
    // Some more come before the handshake is done; the newest keeps its port.
    for i in 0..10 {
        let syn = Build::tcp(&format!("10.1.0.{i}:9"), VIP).flags("S").bytes();
        pass(&mut engine, &syn, 3).expect("sent on");
    }
    let source = build::ends(&pass(&mut engine, &syn, 3).expect("sent again")).0;
    let answer = Build::tcp(&target, &source).flags("SA");
    pass(&mut engine, &answer.numbers(900, 101).bytes(), 3).expect("answered");
    let ack = Build::tcp(&from, VIP).numbers(101, 901).bytes();
    pass(&mut engine, &ack, 3).expect("acknowledged");
    assert_eq!(engine.sizes().0, 51);
    assert!(engine.counts().half_open_evicted > 400);
    for (i, backend) in before.iter().enumerate() {
        assert_eq!(backend_of(&mut engine, &client(i), 4).as_ref(), Ok(backend));
    }
    assert_eq!(engine.exhausted().count(), 0);
}

#[test]
fn source_ports_are_used_up_and_come_back() {
    let mut rule = service(Forward::FullNat, VIP, TCP, &BACKENDS[..1]);
    rule.source_ports = (5000, 5003);
    let mut engine = engine(&[rule]);
    let sources: HashSet<_> = (0..4)
        .map(|i| connect(&mut engine, &client(i), VIP, 0).1)
        .collect();
    assert_eq!(sources.len(), 4);
    let syn = Build::tcp(&client(4), VIP)
        .flags("S")
        .numbers(100, 0)
        .bytes();
    assert_eq!(pass(&mut engine, &syn, 0), Err(Reason::PortsExhausted));
    let reset = Build::tcp(&client(2), VIP)
        .flags("R")
        .numbers(101, 0)
        .bytes();
    assert_eq!(
        engine.exhausted().collect::<Vec<_>>(),
        [Reason::PortsExhausted]
    );
    pass(&mut engine, &reset, 0).expect("sent");
    assert!(pass(&mut engine, &syn, 9_000).is_ok());
    assert_eq!(engine.counts().over_evicted, 1);
    engine.tick(60_000);
    assert_eq!(engine.exhausted().count(), 0);
}

/// Ends a connection of [`connect`] from the client's side, up to its time of waiting.
fn end(engine: &mut Engine, client: &str, (target, source): &(String, String), now: u64) {
    let mut step = |from: &str, to: &str, flags: &str, numbers: (u32, u32)| {
        let packet = Build::tcp(from, to)
            .flags(flags)
            .numbers(numbers.0, numbers.1);
        pass(engine, &packet.bytes(), now).expect("sent");
    };
    step(client, VIP, "FA", (101, 901));
    step(target, source, "FA", (901, 102));
    step(client, VIP, "A", (102, 902));
}

#[test]
fn a_connection_that_is_over_gives_its_port_up_the_oldest_first() {
    for (first, last) in [(5000, 5003), (1024, 1323)] {
        let mut rule = service(Forward::FullNat, VIP, TCP, &BACKENDS[..1]);
        rule.source_ports = (first, last);
        let count = usize::from(last - first) + 1;
        let mut engine = engine(&[rule]);
        // One that is open keeps its port, whatever comes and goes.
        let kept = connect(&mut engine, &client(0), VIP, 0);
        let mut ports = Vec::new();
        for i in 1..5 * count {
            let now = i as u64;
            let ends = connect(&mut engine, &client(i), VIP, now);
            end(&mut engine, &client(i), &ends, now);
            assert_ne!(ends.1, kept.1);
            ports.push(ends.1);
        }
        // Some may be taken before all others were once.
        let evicted = engine.counts().over_evicted as usize;
        assert!(evicted >= 4 * count, "{evicted}");
        for two in ports[2 * count..].windows(2) {
            assert_ne!(two[0], two[1]);
        }
        let rounds: HashSet<_> = ports[ports.len() - count + 1..].iter().collect();
        assert!(
            rounds.len() * 10 >= 9 * (count - 1),
            "{} of {count}",
            rounds.len()
        );
        assert_eq!(
            backend_of(&mut engine, &client(0), 0).as_deref(),
            Ok(BACKENDS[0])
        );
        let back = Build::tcp(&kept.0, &kept.1).numbers(901, 102).bytes();
        let sent = pass(&mut engine, &back, 0).expect("sent");
        assert_eq!(build::ends(&sent), (VIP.to_string(), client(0)));
        assert_eq!(engine.counts().drops.total(), 0);
    }
}

#[test]
fn connections_that_are_over_make_room_in_a_full_table() {
    let mut small = options();
    small.connections_max = 10;
    let mut engine = engine_with(&[nat(&BACKENDS)], small, Port::default());
    let kept: Vec<_> = (0..5)
        .map(|i| connect(&mut engine, &client(i), VIP, 0).0)
        .collect();
    for i in 5..100 {
        let ends = connect(&mut engine, &client(i), VIP, 1);
        end(&mut engine, &client(i), &ends, 1);
    }
    assert_eq!(engine.sizes(), (10, 0, 0));
    assert_eq!(engine.counts().over_evicted, 90);
    for (i, backend) in kept.iter().enumerate() {
        assert_eq!(backend_of(&mut engine, &client(i), 1).as_ref(), Ok(backend));
    }
    let connections: u64 = engine.backends().map(|one| one.connections).sum();
    assert_eq!(connections, 10);
    // Of those that are over, the newest are left.
    let left: HashSet<_> = engine.connections().map(|one| one.client).collect();
    assert!((95..100).all(|i| left.contains(&socket(&client(i)))));
    // They make room in this order after a restart, too.
    let mut small = options();
    small.connections_max = 10;
    let mut next = engine_with(&[nat(&BACKENDS)], small, Port::default());
    assert_eq!(next.restore(&engine.dump()), Ok((10, 0)));
    for i in 100..105 {
        connect(&mut next, &client(i), VIP, 2);
    }
    let (from, vip) = (client(105), VIP);
    let syn = Build::tcp(&from, vip).flags("S").numbers(100, 0).bytes();
    let target = build::ends(&pass(&mut next, &syn, 2).expect("half-open")).1;
    let answer = Build::tcp(&target, &from).flags("SA").numbers(900, 101);
    pass(&mut next, &answer.bytes(), 2).expect("half-open");
    let ack = Build::tcp(&from, vip).numbers(101, 901).bytes();
    assert_eq!(pass(&mut next, &ack, 2), Err(Reason::TableFull));
    assert_eq!(next.exhausted().collect::<Vec<_>>(), [Reason::TableFull]);
}

/// Two services with one backend: under NAT a client may come to both from one port.
#[test]
fn a_client_port_that_is_over_at_one_service_is_free_at_another() {
    const OTHER: &str = "192.0.2.11:4833";
    let mut other = service(Forward::Nat, OTHER, TCP, &BACKENDS[..1]);
    other.name = "other".into();
    let mut engine = engine(&[nat(&BACKENDS[..1]), other]);
    let ends = connect(&mut engine, &client(1), VIP, 0);
    let syn = Build::tcp(&client(1), OTHER).flags("S").bytes();
    assert_eq!(pass(&mut engine, &syn, 0), Err(Reason::TupleInUse));
    end(&mut engine, &client(1), &ends, 0);
    connect(&mut engine, &client(1), OTHER, 0);
    assert_eq!(engine.sizes(), (1, 0, 0));
}

#[test]
fn udp_lives_as_long_as_its_phase() {
    let mut engine = engine(&[service(Forward::Nat, VIP, UDP, &BACKENDS[..1])]);
    let from = client(1);
    let there = Build::udp(&from, VIP).data(b"q").bytes();
    let back = Build::udp(BACKENDS[0], &from).data(b"a").bytes();
    pass(&mut engine, &there, 0).expect("sent");
    engine.tick(31_000);
    assert_eq!(engine.sizes(), (0, 0, 0));
    pass(&mut engine, &there, 40_000).expect("sent");
    pass(&mut engine, &back, 40_000).expect("sent");
    pass(&mut engine, &there, 40_000).expect("sent");
    engine.tick(40_000 + 119_000);
    assert_eq!(engine.sizes(), (1, 0, 0));
    engine.tick(40_000 + 121_000);
    assert_eq!(engine.sizes(), (0, 0, 0));
}

#[test]
fn datagrams_go_elsewhere_if_their_backend_is_down() {
    for forward in [Forward::Nat, Forward::FullNat] {
        for affinity in [false, true] {
            let mut rule = service(forward, VIP, UDP, &BACKENDS[..2]);
            rule.affinity = affinity;
            let mut engine = engine(&[rule]);
            let (from, key) = (client(1), (socket(VIP), UDP));
            let there = Build::udp(&from, VIP).data(b"q").bytes();
            let ask = |engine: &mut Engine, now| {
                let frame = Frame {
                    bytes: there.clone(),
                    ..Frame::default()
                };
                let explained = engine.explain(&frame).concat();
                let sent = pass(engine, &there, now).expect("sent");
                let (source, target) = build::ends(&sent);
                assert!(explained.contains(&target), "{explained} {target}");
                (source, target)
            };
            // Half-open at first, and later open.
            for is_answered in [false, true] {
                let (source, first) = ask(&mut engine, 0);
                let answer = Build::udp(&first, &source).data(b"a").bytes();
                if is_answered {
                    pass(&mut engine, &answer, 0).expect("sent");
                }
                assert_eq!(ask(&mut engine, 1).1, first);
                engine.set_health(&key, socket(&first), None);
                let (_, second) = ask(&mut engine, 2);
                assert_ne!(second, first);
                assert_eq!(ask(&mut engine, 3).1, second, "it stays there");
                // What the dead one still sends belongs to nobody.
                assert!(pass(&mut engine, &answer, 3).is_err());
                engine.set_health(&key, socket(&second), None);
                assert_eq!(ask(&mut engine, 4).1, second, "there is no other");
                engine.set_health(&key, socket(&first), Some(100));
                engine.set_health(&key, socket(&second), Some(100));
                assert_eq!(ask(&mut engine, 5).1, second, "one that is up again");
                let (open, half_open, _) = engine.sizes();
                assert_eq!(open + half_open, 1);
                let connections: u64 = engine.backends().map(|one| one.connections).sum();
                assert_eq!(connections as usize, open);
            }
        }
    }
}

#[test]
fn a_dump_restores_every_connection_and_a_broken_one_is_refused() {
    for forward in [Forward::Nat, Forward::FullNat] {
        let rule = service(forward, VIP, TCP, &BACKENDS);
        let mut old = engine(std::slice::from_ref(&rule));
        let before: Vec<_> = (0..100)
            .map(|i| connect(&mut old, &client(i), VIP, 5))
            .collect();
        let dump = old.dump();
        let mut other = options();
        other.secrets = [5, 6, 7, 8].map(Secret::from_seed);
        let mut new = engine_with(std::slice::from_ref(&rule), other, Port::default());
        assert_eq!(new.restore(&dump), Ok((100, 0)));
        assert_eq!(new.restore(&dump), Ok((0, 100)), "twice");
        // They are there, and were opened by another process.
        let opened: u64 = new.services().map(|one| one.2).sum();
        assert_eq!((new.sizes().0, opened, new.counts().opened), (100, 0, 0));
        let backends: Vec<_> = new.backends().cloned().collect();
        assert_eq!(backends.iter().map(|one| one.connections).sum::<u64>(), 100);
        assert_eq!(backends.iter().map(|one| one.opened).sum::<u64>(), 0);
        for (i, (target, source)) in before.iter().enumerate() {
            assert_eq!(backend_of(&mut new, &client(i), 6).as_ref(), Ok(target));
            let back = Build::tcp(target, source).numbers(901, 102).bytes();
            let sent = pass(&mut new, &back, 6).expect("sent");
            assert_eq!(build::ends(&sent), (VIP.to_string(), client(i)));
            let forged = Build::tcp(target, source)
                .flags("R")
                .numbers(77_777, 0)
                .bytes();
            assert_eq!(pass(&mut new, &forged, 6), Err(Reason::ResetOutOfWindow));
        }
        let mut empty = engine(&[rule]);
        for end in 0..dump.len() {
            assert!(empty.restore(&dump[..end]).is_err(), "cut at {end}");
        }
        for at in 0..dump.len() {
            let mut changed = dump.clone();
            changed[at] ^= 1;
            assert!(empty.restore(&changed).is_err(), "changed at {at}");
        }
        let mut future = dump.clone();
        future[8] = 9;
        assert_eq!(empty.restore(&future), Err(RestoreError::Version(9)));
        assert_eq!(empty.sizes(), (0, 0, 0));
        // Backends that are gone keep what they have; services that are gone do not.
        let mut fewer = engine(&[service(forward, VIP, TCP, &BACKENDS[..1])]);
        assert_eq!(fewer.restore(&dump), Ok((100, 0)));
        assert_eq!(engine(&[]).restore(&dump), Ok((0, 100)));
    }
}

/// Tables grow while memory for them is found, and refuse when they are full meanwhile: all of a
/// dump come at once, so its tables have their size beforehand.
#[test]
fn a_dump_of_many_connections_is_restored_whole() {
    const COUNT: usize = 40_000;
    let rule = nat(&BACKENDS);
    let mut options = options();
    options.half_open_max = COUNT;
    let new = || {
        engine_with(
            std::slice::from_ref(&rule),
            options.clone(),
            Port::default(),
        )
    };
    let mut old = new();
    for number in 0..COUNT {
        let syn = Build::tcp(&client(number), VIP).flags("S").bytes();
        while pass(&mut old, &syn, 0) == Err(Reason::TableFull) {
            std::thread::yield_now();
        }
    }
    assert_eq!(old.sizes(), (0, COUNT, 0));
    let dump = old.dump();
    for _ in 0..5 {
        assert_eq!(new().restore(&dump), Ok((COUNT, 0)));
    }
}

/// Two balancers that share the configuration alone send new connections to the same backends,
/// and adopt each other's.
#[test]
fn a_second_balancer_agrees_by_hashing_alone() {
    let mut rule = nat(&BACKENDS);
    rule.adopt = true;
    let mut first = engine(&[rule.clone()]);
    let mut other = options();
    other.secrets = [9, 10, 11, 12].map(Secret::from_seed);
    let mut second = engine_with(&[rule], other, Port::default());
    for i in 0..200 {
        let (target, _) = connect(&mut first, &client(i), VIP, 0);
        assert_eq!(backend_of(&mut second, &client(i), 0), Ok(target.clone()));
        assert_eq!(
            second.sizes().0,
            i,
            "not open before the backend has answered"
        );
        let answer = Build::tcp(&target, &client(i)).numbers(901, 102).bytes();
        pass(&mut second, &answer, 0).expect("sent");
    }
    assert_eq!(second.sizes(), (200, 0, 0));
}

/// A balancer that has lost one of ten backends takes over the other nine's connections, all but a
/// few of them.
#[test]
fn a_second_balancer_with_fewer_backends_agrees_about_most() {
    let names: Vec<_> = (1..=10).map(|i| format!("203.0.113.{i}:4833")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let rule = |names: &[&str]| ServiceRule {
        adopt: true,
        ..nat(names)
    };
    let mut first = engine(&[rule(&names)]);
    let mut second = engine(&[rule(&names[1..])]);
    let (mut kept, mut moved) = (0, 0);
    for i in 0..2000 {
        let (target, _) = connect(&mut first, &client(i), VIP, 0);
        if target != names[0] {
            let there = backend_of(&mut second, &client(i), 0).expect("sent");
            *(if there == target {
                &mut kept
            } else {
                &mut moved
            }) += 1;
        }
    }
    assert!(moved * 100 <= 4 * kept, "{kept} kept, {moved} moved");
}

#[test]
fn a_clock_that_goes_backwards_ends_nothing_and_keeps_times() {
    let mut engine = engine(&[nat(&BACKENDS)]);
    connect(&mut engine, &client(1), VIP, 1_000_000);
    engine.tick(5);
    assert!(backend_of(&mut engine, &client(1), 7).is_ok());
    connect(&mut engine, &client(2), VIP, 8);
    engine.tick(1_000_000 + 431_000_000);
    assert_eq!(engine.sizes(), (2, 0, 0));
    engine.tick(1_000_000 + 433_000_000);
    assert_eq!(engine.sizes(), (0, 0, 0));
}

#[test]
fn a_batch_may_open_and_use_a_connection() {
    let mut engine = engine(&[nat(&BACKENDS)]);
    let from = client(1);
    let (target, _) = connect(&mut self::engine(&[nat(&BACKENDS)]), &from, VIP, 0);
    let packets = [
        Build::tcp(&from, VIP).flags("S").numbers(100, 0),
        Build::tcp(&target, &from).flags("SA").numbers(900, 101),
        Build::tcp(&from, VIP).numbers(101, 901),
        Build::tcp(&from, VIP).flags("R").numbers(101, 901),
        Build::tcp(&from, VIP).flags("S").numbers(300, 0),
    ];
    let frame = |packet: &Build| Frame {
        bytes: packet.bytes(),
        ..Frame::default()
    };
    let mut frames: Vec<_> = packets.iter().map(frame).collect();
    let mut verdicts = Vec::new();
    engine.process(&mut frames, &mut verdicts, 0);
    assert_eq!(verdicts, [Verdict::Send(0); 5]);
    assert_eq!(engine.sizes(), (0, 1, 0));
    let mut counts: HashMap<_, usize> = HashMap::new();
    frames
        .iter()
        .for_each(|one| *counts.entry(build::ends(&one.bytes)).or_default() += 1);
    assert_eq!(counts[&(from, target)], 4);
}
