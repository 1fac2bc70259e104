//! Entries that an adapter refuses, and peers that do not answer, with their syndromes.

use super::*;

#[test]
fn wrong_entries_are_local_operation_errors() {
    assert_eq!(changed(|bytes| bytes[7] = 1), 2, "too few segments");
    assert_eq!(changed(|bytes| bytes[7] = 0), 2, "no segment");
    assert_eq!(changed(|bytes| bytes[7] = 5), 2, "beyond what was posted");
    assert_eq!(changed(|bytes| bytes[5] ^= 1), 2, "another queue's number");
    assert_eq!(changed(|bytes| bytes[2] ^= 1), 2, "an index that jumps");
    assert_eq!(
        changed(|bytes| bytes[3] = 0x0e),
        2,
        "an opcode that is not served"
    );
    assert_eq!(changed(|bytes| bytes[0] = 8), 2, "a modifier");
    let (mut adapter, mut a, b) = connected(Network::default());
    a.post(write(&a, &b));
    a.head = BLOCKS as u16 + 9;
    a.record();
    adapter.poll(1);
    let beyond = a.completion().map(|done| (done.index, done.syndrome));
    assert_eq!(beyond, Some((0, 2)), "a record beyond the ring");
}

#[test]
fn wrong_keys_ranges_and_lengths_have_the_syndromes_of_adapters() {
    let to = |a: &End, remote| Operation::Write {
        remote,
        imm: None,
        data: gather(a.segment(0, 64)),
    };
    let wrong_key = |remote: Remote| Remote {
        rkey: remote.rkey ^ 1,
        ..remote
    };
    assert_eq!(posted(|a, b| to(a, wrong_key(b.remote(0)))), 0x13);
    assert_eq!(posted(|a, b| to(a, b.remote(DATA_BYTES - 63))), 0x13);
    let from = |b: &End, one| Operation::Write {
        remote: b.remote(0),
        imm: None,
        data: gather(one),
    };
    assert_eq!(
        posted(|a, b| from(
            b,
            Segment {
                lkey: 0,
                ..a.segment(0, 64)
            }
        )),
        4
    );
    assert_eq!(posted(|a, b| from(b, a.segment(DATA_BYTES - 63, 64))), 4);
    assert_eq!(
        posted(|a, b| from(b, a.segment(0, 0))),
        4,
        "0 stands for 2 GiB"
    );
    let add = |b: &End, at, into| Operation::FetchAdd {
        remote: b.remote(at),
        add: 1,
        into,
    };
    assert_eq!(
        posted(|a, b| add(b, 4, a.segment(0, 8))),
        0x12,
        "not aligned"
    );
    assert_eq!(posted(|a, b| add(b, 0, a.segment(0, 4))), 1, "four bytes");
    let send = |a: &End| Operation::Send {
        imm: None,
        data: gather(a.segment(0, 64)),
    };
    assert_eq!(posted(|a, _| send(a)), 0x16, "no receive");
    let short = syndrome_of(|_, a, b| {
        b.post_receive(b.segment(0, 32));
        a.post(send(a));
    });
    assert_eq!(short, 0x12, "a receive that is too short");
    let silent = syndrome_of(|adapter, a, b| {
        adapter.poll(1);
        adapter.set_unreachable(b.qpn, true).unwrap();
        a.post(write(a, b));
    });
    assert_eq!(silent, 0x15, "a peer that does not answer");
    let gone = syndrome_of(|adapter, a, b| {
        adapter.poll(1);
        adapter.unregister(b.key).unwrap();
        a.post(write(a, b));
    });
    assert_eq!(gone, 0x13, "memory that is no longer registered");
}

#[test]
fn a_key_of_another_domain_opens_nothing() {
    let mut adapter = Adapter::new(Network::default());
    let (mut a, b) = (
        End::new(&mut adapter, false, 1),
        End::new(&mut adapter, false, 2),
    );
    connect(&mut adapter, &a, &b);
    a.post(Operation::Write {
        remote: a.remote(0),
        imm: None,
        data: gather(a.segment(64, 64)),
    });
    run(&mut adapter, &mut 0);
    assert_eq!(a.completion().unwrap().syndrome, 0x13);
}

/// A peer is destroyed when the request is on its way to it, or its answer on the way back.
#[test]
fn a_peer_that_dies_between_doorbell_and_completion_does_not_answer() {
    for polls in [1, 8] {
        let network = Network {
            delay_ns_min: 500,
            delay_ns_max: 500,
            ..Network::default()
        };
        let (mut adapter, mut a, b) = connected(network);
        let (mut c, d) = (
            End::new(&mut adapter, false, 1),
            End::new(&mut adapter, false, 1),
        );
        connect(&mut adapter, &c, &d);
        a.setup.retries.timeout_ns = 1000;
        a.post(write(&a, &b));
        c.post(write(&c, &d));
        let mut now_ns = 0;
        for _ in 0..polls {
            now_ns += 100;
            adapter.poll(now_ns);
        }
        adapter.destroy_pair(b.qpn).unwrap();
        run(&mut adapter, &mut now_ns);
        let end = a.completion().unwrap();
        // An answer that has left arrives.
        let expected = [(Kind::RequesterError, 0x15), (Kind::Requester, 0)];
        assert_eq!(
            (end.kind, end.syndrome),
            expected[usize::from(polls == 8)],
            "{polls}"
        );
        assert_eq!(c.completion().unwrap().kind, Kind::Requester);
        // A new queue pair in its place is another one.
        let mut e = End::new(&mut adapter, false, 1);
        assert_eq!(e.qpn, b.qpn);
        let of_a = adapter.end_of(a.qpn).unwrap();
        adapter.connect(e.qpn, of_a).unwrap();
        a.post(write(&a, &b));
        run(&mut adapter, &mut now_ns);
        let after = a.completion().unwrap();
        assert_eq!(after.kind, Kind::RequesterError);
        assert_eq!(e.receipt(), None);
    }
}

/// Nothing that is posted leaves this adapter: more of it than waits for a peer at most.
#[test]
fn a_silent_peer_does_not_answer_however_much_waits_for_it() {
    const LENGTH: usize = 3 << 20;
    let mut adapter = Adapter::new(Network::default());
    let mut a = End::new(&mut adapter, false, 1);
    let peer = Peer { qpn: 1, epoch: 2 };
    adapter.connect_remote(a.qpn, peer).unwrap();
    let whole = Mapped::allocate(LENGTH).unwrap();
    let key = adapter.register(1, whole.clone(), Access::ALL).unwrap();
    for _ in 0..6 {
        let from = Segment {
            length: LENGTH as u32,
            lkey: key,
            address: whole.address(),
        };
        a.post(Operation::Write {
            remote: a.remote(0),
            imm: None,
            data: gather(from),
        });
    }
    // A peer in another process has a second for each answer.
    let end = (0..a.setup.retries.count_max + 4).find_map(|second| {
        adapter.poll(u64::from(second) * 1_000_000_001);
        a.completion()
    });
    assert_eq!(end.map(|end| end.syndrome), Some(0x15));
}
