//! Entries that an adapter refuses, and peers that do not answer, with their syndromes.

use outboard_net::{
    Network,
    wqe::{Operation, Remote, Segment},
};

use super::{Adapter, ends::*};

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
