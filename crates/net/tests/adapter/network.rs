//! Networks that lose and delay, garbage in rings, and the share of each queue in a poll.

use std::sync::{Arc, Mutex, atomic::Ordering};

use outboard_net::{
    Access, Mapped, Network, State, Watch,
    cqe::Kind,
    wqe::{Control, Data, Operation, Remote, Segment},
};
use smallvec::smallvec;

use super::{Adapter, ends::*};

/// Adds by many messages over a network that loses and reorders them: every addition counts once.
#[test]
fn nothing_is_lost_or_done_twice_on_a_bad_network() {
    for seed in 0..8 {
        let network = Network {
            seed,
            loss_ppm: 100_000,
            delay_ns_min: 50,
            delay_ns_max: 900,
            bytes_per_s: 0,
        };
        let (mut adapter, mut a, b) = connected(network);
        let count = 3000_u64;
        let (mut posted, mut completed, mut now_ns) = (0, 0, 0);
        while completed < count {
            while posted < count && posted - completed < BLOCKS as u64 {
                let into = a.segment(posted as usize % 64 * 8, 8);
                a.post(Operation::FetchAdd {
                    remote: b.remote(0),
                    add: posted + 1,
                    into,
                });
                posted += 1;
            }
            now_ns += 100;
            adapter.poll(now_ns);
            while let Some(done) = a.completion() {
                assert_eq!(
                    (done.kind, done.index),
                    (Kind::Requester, completed as u16),
                    "seed {seed}"
                );
                // The value before it: all additions before it, each once.
                let got = a
                    .data
                    .u64(completed as usize % 64 * 8)
                    .load(Ordering::Relaxed);
                assert_eq!(got, completed * (completed + 1) / 2, "seed {seed}");
                completed += 1;
            }
            assert!(now_ns < 1_000_000_000, "seed {seed}: no progress");
        }
        assert_eq!(
            b.data.u64(0).load(Ordering::Relaxed),
            count * (count + 1) / 2
        );
        assert!(adapter.status(a.qpn).unwrap().retries > 0);
    }
}

#[test]
fn bandwidth_and_delay_are_kept() {
    let network = Network {
        delay_ns_min: 700,
        delay_ns_max: 700,
        bytes_per_s: 1_000_000_000,
        ..Network::default()
    };
    let (mut adapter, mut a, b) = connected(network);
    a.setup.retries.timeout_ns = 1_000_000_000;
    let data = gather(a.segment(0, 300));
    a.post(Operation::Write {
        remote: b.remote(0),
        imm: None,
        data,
    });
    let mut now_ns = 0;
    while a.completion().is_none() {
        now_ns += 1;
        adapter.poll(now_ns);
    }
    // 300 bytes at 1 byte/ns, there and back.
    assert!((1700..=1704).contains(&now_ns), "{now_ns} ns");
}

/// Calls of programs that wait for both tell of the entry first, though both arrive at one look.
#[test]
fn an_entry_completes_before_the_reply_to_it() {
    let network = Network {
        delay_ns_min: 700,
        delay_ns_max: 700,
        ..Network::default()
    };
    let (mut adapter, mut a, mut b) = connected(network);
    let told = Arc::new(Mutex::new(Vec::new()));
    let setup = &a.setup;
    for (number, what) in [
        (setup.receive_completions, "received"),
        (setup.send_completions, "sent"),
    ] {
        let told = told.clone();
        let watch = Arc::new(Watch::new(move || told.lock().unwrap().push(what)));
        watch.arm();
        adapter.watch(number, watch).unwrap();
    }
    a.post_receive(a.segment(64, 8));
    b.post_receive(b.segment(64, 8));
    let send = |of: &End| Operation::Send {
        imm: None,
        data: gather(of.segment(0, 8)),
    };
    a.post(send(&a));
    adapter.poll(0);
    adapter.poll(700);
    assert_eq!(b.receipt().unwrap().kind, Kind::Received);
    b.post(send(&b));
    adapter.poll(701);
    assert!(told.lock().unwrap().is_empty());
    adapter.poll(1500);
    assert_eq!(*told.lock().unwrap(), ["sent", "received"]);
}

#[test]
fn garbage_in_a_ring_ends_its_queue_and_no_other() {
    let mut state = 1_u64;
    for _ in 0..2000 {
        let (mut adapter, mut a, mut b) = connected(Network::default());
        let mut bytes = a.entry(write(&a, &b)).encode();
        for byte in &mut bytes {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            if state >> 62 == 0 {
                *byte = (state >> 40) as u8;
            }
        }
        let blocks = Control::read(&bytes).unwrap().blocks();
        a.store(&bytes);
        a.head = blocks;
        a.record();
        a.doorbell();
        adapter.poll(1);
        let (mut c, d) = (
            End::new(&mut adapter, false, 1),
            End::new(&mut adapter, false, 1),
        );
        connect(&mut adapter, &c, &d);
        c.post(write(&c, &d));
        adapter.poll(2);
        assert_eq!(c.completion().unwrap().kind, Kind::Requester);
        let _ = (a.completion(), b.completion());
    }
}

/// Two processes that each begin at the first entry: the second is an error of this queue alone.
#[test]
fn two_that_count_for_themselves_on_one_ring_end_its_queue_and_no_other() {
    let (mut adapter, mut a, b) = connected(Network::default());
    let mut now_ns = 0;
    for _ in 0..5 {
        let operation = write(&a, &b);
        a.post(operation);
    }
    run(&mut adapter, &mut now_ns);
    while a.completion().is_some() {}
    assert_eq!(a.seen, 5);
    a.head = 0;
    let operation = write(&a, &b);
    a.post(operation);
    run(&mut adapter, &mut now_ns);
    let completion = a.completion().unwrap();
    assert_eq!(
        (completion.kind, completion.syndrome),
        (Kind::RequesterError, 0x02)
    );
    assert_eq!(adapter.status(a.qpn).unwrap().state, State::Error);
    let (mut c, d) = (
        End::new(&mut adapter, false, 1),
        End::new(&mut adapter, false, 1),
    );
    connect(&mut adapter, &c, &d);
    let operation = write(&c, &d);
    c.post(operation);
    run(&mut adapter, &mut now_ns);
    assert_eq!(c.completion().unwrap().kind, Kind::Requester);
}

/// Writes with a number each over an unreliable connection: what is lost is not sent again, and all
/// succeed; what arrives is whole, in order, and arrives once.
#[test]
fn an_unreliable_connection_loses_what_its_network_loses() {
    let lossy = Network {
        seed: 11,
        loss_ppm: 200_000,
        delay_ns_max: 2_000,
        ..Network::default()
    };
    for network in [lossy, Network::default()] {
        let (mut adapter, mut a, mut b) = connected(network);
        adapter.set_unreliable(a.qpn).unwrap();
        adapter.set_unreliable(b.qpn).unwrap();
        let (mut now_ns, mut last, mut arrived) = (0, 0, 0);
        for _ in 0..16 {
            b.post_receive(b.segment(0, 0));
        }
        for number in 1..=496 {
            a.post(Operation::Write {
                remote: b.remote(0),
                imm: Some(number),
                data: Data::Inline(smallvec![number as u8; 24]),
            });
            if number % 8 > 0 {
                continue;
            }
            run(&mut adapter, &mut now_ns);
            while let Some(done) = a.completion() {
                assert_eq!(done.syndrome, 0);
            }
            while let Some(receipt) = b.receipt() {
                assert!(receipt.imm > last && receipt.imm <= number);
                (last, arrived) = (receipt.imm, arrived + 1);
                b.post_receive(b.segment(0, 0));
            }
            let mut bytes = [0; 24];
            b.data.read(0, &mut bytes);
            assert_eq!(bytes, [last as u8; 24]);
        }
        let status = adapter.status(a.qpn).unwrap();
        assert_eq!((status.state, status.retries), (State::Ready, 0));
        assert_eq!(status.succeeded, 496);
        match network.loss_ppm {
            0 => assert_eq!(arrived, 496),
            _ => assert!((80..300).contains(&arrived), "{arrived}"),
        }
    }
}

/// Requests that an unreliable peer refuses are lost; reads and atomics are refused here.
#[test]
fn an_unreliable_connection_has_no_answers() {
    let (mut adapter, mut a, mut b) = connected(Network::default());
    adapter.set_unreliable(a.qpn).unwrap();
    adapter.set_unreliable(b.qpn).unwrap();
    let mut now_ns = 0;
    let mut beyond = b.remote(0);
    beyond.rkey += 1;
    a.post(Operation::Write {
        remote: beyond,
        imm: None,
        data: gather(a.segment(0, 64)),
    });
    // Nobody has posted a receive.
    a.post(Operation::Send {
        imm: None,
        data: gather(a.segment(0, 16)),
    });
    run(&mut adapter, &mut now_ns);
    for pair in [a.qpn, b.qpn] {
        assert_eq!(adapter.status(pair).unwrap().state, State::Ready);
    }
    assert_eq!(adapter.status(a.qpn).unwrap().succeeded, 2);
    b.post_receive(b.segment(0, 64));
    a.post(Operation::Read {
        remote: b.remote(0),
        into: smallvec![a.segment(0, 8)],
    });
    run(&mut adapter, &mut now_ns);
    let status = adapter.status(a.qpn).unwrap();
    assert_eq!((status.state, status.failure), (State::Error, Some((2, 2))));
}

#[test]
fn a_poll_ends_after_any_queue_and_the_next_goes_on_behind_it() {
    let (mut adapter, mut a, mut b) = connected(Network::default());
    a.post(Operation::Nop);
    b.post(Operation::Nop);
    let succeeded = |adapter: &Adapter| {
        let of = |end: &End| adapter.status(end.qpn).unwrap().succeeded;
        [of(&a), of(&b)]
    };
    assert!(adapter.poll_while(1, || false) > 0);
    assert_eq!(succeeded(&adapter), [1, 0]);
    adapter.poll_while(2, || false);
    assert_eq!(succeeded(&adapter), [1, 1]);
}

#[test]
fn one_queue_moves_no_more_than_its_turn_has() {
    const BYTES: u32 = 9 << 20;
    let (mut adapter, mut a, b) = connected(Network::default());
    let memory = Mapped::allocate(BYTES as usize).unwrap();
    let (address, key) = (
        memory.address(),
        adapter.register(1, memory, Access::ALL).unwrap(),
    );
    for _ in 0..3 {
        let remote = Remote { address, rkey: key };
        let data = gather(Segment {
            length: BYTES,
            lkey: key,
            address,
        });
        let imm = None;
        a.post(Operation::Write { remote, imm, data });
    }
    for turn in 1..=3 {
        adapter.poll(turn);
        assert_eq!(adapter.status(a.qpn).unwrap().succeeded, turn);
    }
    assert_eq!(adapter.status(b.qpn).unwrap().succeeded, 0);
}
