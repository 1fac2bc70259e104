//! Peers that are slow or in another process, and do not answer.

use outboard_net::{
    Access, CQN_FIRST, Mapped, Network, Peer,
    cqe::Kind,
    wqe::{Operation, Segment},
};
use smallvec::smallvec;

use super::{Adapter, ends::*};

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

#[test]
fn a_wait_fails_when_the_peer_is_gone() {
    let mut adapter = Adapter::new(Network::default());
    let mut a = End::new(&mut adapter, false, 1);
    let peer = Peer { qpn: 1, epoch: 2 };
    adapter.connect_remote(a.qpn, peer).unwrap();
    let wait = Operation::Wait {
        completions: CQN_FIRST + a.setup.send_completions,
        number: 7,
    };
    a.post(wait);
    adapter.poll(1);
    assert_eq!(a.completion(), None);
    let epoch = adapter.end_of(a.qpn).unwrap().epoch;
    adapter.link_down(a.qpn, epoch);
    adapter.poll(2);
    assert_eq!(a.completion().map(|end| end.syndrome), Some(0x15));
}

/// A dump reads more than a message to another process has: none of it travels.
#[test]
fn a_dump_of_any_length_goes_to_no_peer() {
    const LENGTH: usize = (16 << 20) + 64;
    let mut adapter = Adapter::new(Network::default());
    let mut a = End::new(&mut adapter, false, 1);
    let peer = Peer { qpn: 1, epoch: 2 };
    adapter.connect_remote(a.qpn, peer).unwrap();
    let whole = Mapped::allocate(LENGTH).unwrap();
    let key = adapter.register(1, whole.clone(), Access::ALL).unwrap();
    let from = smallvec![Segment {
        length: LENGTH as u32,
        lkey: key,
        address: whole.address(),
    }];
    a.post(Operation::Dump { from });
    adapter.poll(1);
    assert_eq!(a.completion(), None, "the peer has not answered yet");
    let epoch = adapter.end_of(a.qpn).unwrap().epoch;
    let sent = adapter.outgoing(a.qpn, epoch).unwrap();
    assert_eq!(sent.map(|frame| frame.len()), Some(48));
}
