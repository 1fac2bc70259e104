//! The order of doorbells, entries and completions, and what waits for what.

use std::sync::atomic::Ordering;

use outboard_net::{
    CQN_FIRST, CompletionsSetup, Mapped, Network, PairSetup, State,
    cqe::{Completion, Kind},
    wqe::{Data, Operation, Remote},
};
use smallvec::smallvec;

use super::{Adapter, ends::*};

#[test]
fn each_operation_moves_its_bytes_and_completes() {
    let (mut adapter, mut a, mut b) = connected(Network::default());
    let pattern: Vec<u8> = (0..64).map(|byte| byte * 3 + 1).collect();
    post_each(&mut a, &mut b, &pattern);
    adapter.poll(1);
    let mut indices = Vec::new();
    while let Some(done) = a.completion() {
        assert_eq!((done.kind, done.qpn), (Kind::Requester, a.qpn));
        indices.push(done.index);
    }
    // An atomic takes one block: four segments.
    assert_eq!(indices, [0, 1, 2, 3, 4, 5, 6, 7]);
    let bytes = |end: &End, at, count| {
        let mut bytes = vec![0; count];
        end.data.read(at, &mut bytes);
        bytes
    };
    assert_eq!(bytes(&b, 0, 64), pattern);
    assert_eq!(bytes(&b, 128, 28), [9; 28]);
    assert_eq!(b.data.u64(256).load(Ordering::Relaxed), 7);
    assert_eq!(a.data.u64(512).load(Ordering::Relaxed), 40);
    assert_eq!(a.data.u64(520).load(Ordering::Relaxed), 42);
    assert_eq!(bytes(&a, 1024, 64), pattern);
    assert_eq!(bytes(&b, 2048, 32), pattern[..32]);
    assert_eq!(bytes(&b, 300, 16), pattern[..16]);
    let sent = b.receipt().unwrap();
    assert_eq!(
        (sent.kind, sent.index, sent.bytes, sent.imm),
        (Kind::ReceivedImm, 0, 32, 5)
    );
    let written = b.receipt().unwrap();
    assert_eq!(
        (written.kind, written.index, written.imm),
        (Kind::ReceivedWriteImm, 1, 6)
    );
}

#[test]
fn a_ring_of_one_entry_is_filled_again_and_again() {
    let (mut adapter, mut a, b) = connected(Network::default());
    let entries = Mapped::allocate(64).unwrap();
    let completions = adapter.create_completions(CompletionsSetup {
        entries: entries.clone().into(),
        log_entries: 0,
        collapsed: false,
        record: None,
    });
    let setup = PairSetup {
        ring: Mapped::allocate(64).unwrap().into(),
        log_blocks: 0,
        send_completions: completions.unwrap(),
        ..a.setup.clone()
    };
    a.qpn = adapter.create_pair(setup.clone()).unwrap();
    a.setup = setup;
    connect(&mut adapter, &a, &b);
    for round in 0..300_u64 {
        let bytes = a.entry(write(&a, &b)).encode();
        a.setup.ring.mapped().unwrap().write(0, &bytes);
        a.head += 1;
        a.record();
        a.doorbell();
        adapter.poll(round);
        let mut bytes = [0; 64];
        entries.read(0, &mut bytes);
        let (done, owner) = Completion::parse(&bytes).unwrap();
        assert_eq!((done.index, owner), (round as u16, round % 2 != 0));
    }
    // Five segments do not fit.
    let more = Data::Gather(smallvec![
        a.segment(0, 8),
        a.segment(8, 8),
        a.segment(16, 8)
    ]);
    let bytes = a
        .entry(Operation::Write {
            remote: b.remote(0),
            imm: None,
            data: more,
        })
        .encode();
    assert_eq!(bytes.len(), 80);
    a.setup.ring.mapped().unwrap().write(0, &bytes[..64]);
    a.head += 2;
    a.record();
    a.doorbell();
    adapter.poll(301);
    let status = adapter.status(a.qpn).unwrap();
    assert_eq!(status.failure, Some((300, 2)));
}

#[test]
fn nothing_happens_before_the_doorbell_and_a_doorbell_may_come_first() {
    let (mut adapter, mut a, b) = connected(Network::default());
    let bytes = a.entry(write(&a, &b)).encode();
    a.store(&bytes);
    a.record();
    adapter.poll(1);
    assert_eq!(a.completion(), None, "no doorbell");
    a.doorbell();
    adapter.poll(2);
    assert_eq!(a.completion().map(|done| done.index), Some(0));
    let bytes = a.entry(write(&a, &b)).encode();
    a.store(&bytes);
    a.doorbell();
    adapter.poll(3);
    assert_eq!(a.completion(), None, "no record");
    a.record();
    adapter.poll(4);
    assert_eq!(a.completion().map(|done| done.index), Some(1));
    // rdma-core rings with the first bytes of the entry itself: its own index.
    let bytes = a.entry(write(&a, &b)).encode();
    a.store(&bytes);
    a.record();
    let first = bytes[..8].try_into().map(u64::from_ne_bytes).unwrap();
    a.setup.page.u64(0x800).store(first, Ordering::Release);
    adapter.poll(5);
    assert_eq!(a.completion().map(|done| done.index), Some(2));
}

/// Two queue pairs with one doorbell, and their peers.
fn of_one_doorbell(adapter: &mut Adapter) -> [End; 4] {
    let mut ends = [(); 4].map(|()| End::new(adapter, false, 1));
    ends[1].setup.page = ends[0].setup.page.clone();
    ends[1].qpn = adapter.create_pair(ends[1].setup.clone()).unwrap();
    connect(adapter, &ends[0], &ends[2]);
    connect(adapter, &ends[1], &ends[3]);
    ends
}

/// Queue pairs of one doorbell: what one rings may be over what the other has rung, unseen.
#[test]
fn a_doorbell_of_two_queue_pairs_is_heard_by_both() {
    let mut adapter = Adapter::new(Network::default());
    let [mut a, mut b, c, d] = of_one_doorbell(&mut adapter);
    let (a, b, c, d) = (&mut a, &mut b, &c, &d);
    for index in 0..100 {
        a.post(write(a, c));
        b.post(write(b, d));
        adapter.poll(1);
        assert_eq!(a.completion().map(|done| done.index), Some(index));
        assert_eq!(b.completion().map(|done| done.index), Some(index));
    }
    // A doorbell that comes before its record is remembered when the other rings.
    let bytes = a.entry(write(a, c)).encode();
    a.store(&bytes);
    a.doorbell();
    adapter.poll(2);
    b.post(write(b, d));
    adapter.poll(3);
    assert_eq!(b.completion().map(|done| done.index), Some(100));
    assert_eq!(a.completion(), None, "no record");
    a.record();
    adapter.poll(4);
    assert_eq!(a.completion().map(|done| done.index), Some(100));
    for end in [a, b] {
        assert_eq!(adapter.status(end.qpn).unwrap().foreign_doorbells, 0);
    }
}

/// GPUNetIO rings before its record and after it, with the same word.
#[test]
fn a_doorbell_that_rings_again_with_the_same_word_is_heard() {
    let mut adapter = Adapter::new(Network::default());
    let [mut a, mut b, c, d] = of_one_doorbell(&mut adapter);
    for round in 0..100 {
        let bytes = a.entry(write(&a, &c)).encode();
        a.store(&bytes);
        let bytes = b.entry(write(&b, &d)).encode();
        b.store(&bytes);
        a.doorbell();
        b.doorbell();
        adapter.poll(2 * round);
        assert_eq!((a.completion(), b.completion()), (None, None), "no record");
        a.record();
        a.doorbell();
        b.record();
        b.doorbell();
        adapter.poll(2 * round + 1);
        let done = [a.completion(), b.completion()].map(|of| of.map(|done| done.index));
        assert_eq!(done, [Some(round as u16); 2]);
    }
}

#[test]
fn a_wait_holds_what_is_behind_it_until_the_other_queue_has_completed() {
    for collapsed in [false, true] {
        let mut adapter = Adapter::new(Network::default());
        let mut first = End::new(&mut adapter, collapsed, 1);
        let mut second = End::new(&mut adapter, false, 1);
        let peer = End::new(&mut adapter, false, 1);
        let other = End::new(&mut adapter, false, 1);
        connect(&mut adapter, &first, &peer);
        connect(&mut adapter, &second, &other);
        together(&mut adapter, &first, &second);
        let word = |end: &End| end.data.u64(64).load(Ordering::Relaxed);
        second.post(write(&second, &other));
        second.post(Operation::Wait {
            completions: CQN_FIRST + first.setup.send_completions,
            number: 2,
        });
        second.post(Operation::FetchAdd {
            remote: other.remote(64),
            add: 7,
            into: second.segment(0, 8),
        });
        // Longer than an answer is waited for.
        for now_ns in [1_000_000, 2_000_000] {
            adapter.poll(now_ns);
        }
        assert_eq!(word(&other), 0, "nothing has completed");
        first.post(write(&first, &peer));
        for now_ns in [3_000_000, 4_000_000] {
            adapter.poll(now_ns);
        }
        assert_eq!(word(&other), 0, "one has completed, of three");
        // In one turn: a collapsed queue has the last alone.
        (0..2).for_each(|_| first.post(write(&first, &peer)));
        run(&mut adapter, &mut 7_000_000);
        assert_eq!(word(&other), 7);
        assert!((0..3).all(|index| second.completion().map(|done| done.index) == Some(index)));
        assert_eq!(adapter.status(second.qpn).unwrap().retries, 0);
    }
}

/// Entries of a failed queue end, too: who waits for them goes on.
#[test]
fn a_wait_goes_on_when_the_other_queue_has_failed() {
    for collapsed in [false, true] {
        let mut adapter = Adapter::new(Network::default());
        let mut first = End::new(&mut adapter, collapsed, 1);
        let mut second = End::new(&mut adapter, false, 1);
        let [peer, other] = [(); 2].map(|()| End::new(&mut adapter, false, 1));
        connect(&mut adapter, &first, &peer);
        connect(&mut adapter, &second, &other);
        together(&mut adapter, &first, &second);
        let wait = Operation::Wait {
            completions: CQN_FIRST + first.setup.send_completions,
            number: 2,
        };
        second.post(wait);
        let mut wrong = peer.remote(0);
        wrong.rkey += 0x100;
        first.post(Operation::Write {
            remote: wrong,
            imm: None,
            data: gather(first.segment(0, 8)),
        });
        (0..2).for_each(|_| first.post(write(&first, &peer)));
        run(&mut adapter, &mut 0);
        let done = second.completion();
        assert_eq!(done.map(|done| done.kind), Some(Kind::Requester));
    }
}

#[test]
fn a_dump_reads_memory_of_its_own_side() {
    let (mut adapter, mut a, b) = connected(Network::default());
    a.post(Operation::Read {
        remote: b.remote(0),
        into: smallvec![a.segment(0, 64)],
    });
    a.post(Operation::Dump {
        from: smallvec![a.segment(0, 1)],
    });
    run(&mut adapter, &mut 0);
    assert_eq!(a.completion().map(|done| done.kind), Some(Kind::Requester));
    assert_eq!(a.completion().map(|done| done.index), Some(1));
    let beyond = |a: &End, _: &End| Operation::Dump {
        from: smallvec![a.segment(DATA_BYTES, 1)],
    };
    assert_eq!(posted(beyond), 4, "memory that is not registered");
    let nobody = |_: &End, _: &End| Operation::Wait {
        completions: 3,
        number: 0,
    };
    assert_eq!(posted(nobody), 2, "a completion queue that is not there");
}

#[test]
fn indices_wrap_and_a_reset_begins_again() {
    let (mut adapter, mut a, b) = connected(Network::default());
    let mut now_ns = 0;
    for number in 0..70_000_u32 {
        a.post(write(&a, &b));
        now_ns += 1;
        adapter.poll(now_ns);
        assert_eq!(a.completion().map(|done| done.index), Some(number as u16));
    }
    adapter.fail(a.qpn).unwrap();
    a.post(Operation::Nop);
    adapter.poll(now_ns);
    assert_eq!(a.completion().unwrap().syndrome, 5);
    let before = adapter.end_of(a.qpn).unwrap();
    a.setup
        .record
        .mapped()
        .unwrap()
        .u64(0)
        .store(0, Ordering::Relaxed);
    a.setup.page.u64(0x800).store(0, Ordering::Relaxed);
    a.head = 0;
    adapter.reset(a.qpn, a.setup.clone()).unwrap();
    assert_ne!(adapter.end_of(a.qpn).unwrap(), before);
    // The peer still speaks to the epoch before: it is not answered.
    let of_b = adapter.end_of(b.qpn).unwrap();
    adapter.connect(a.qpn, of_b).unwrap();
    a.post(write(&a, &b));
    run(&mut adapter, &mut now_ns);
    assert_eq!(a.completion().unwrap().syndrome, 0x15);
}

#[test]
fn a_collapsed_queue_has_the_last_index_and_keeps_its_first_error() {
    let mut adapter = Adapter::new(Network::default());
    let (mut a, b) = (
        End::new(&mut adapter, true, 1),
        End::new(&mut adapter, false, 1),
    );
    connect(&mut adapter, &a, &b);
    let first = |a: &End| {
        let mut bytes = [0; 64];
        a.sends.read(0, &mut bytes);
        Completion::parse(&bytes).map(|(completion, _)| completion)
    };
    assert_eq!(first(&a), None);
    for index in 0..100 {
        a.post(write(&a, &b));
        adapter.poll(1);
        assert_eq!(first(&a).map(|done| done.index), Some(index));
    }
    let bad = Remote {
        rkey: 0,
        ..b.remote(0)
    };
    a.post(Operation::Write {
        remote: bad,
        imm: None,
        data: gather(a.segment(0, 8)),
    });
    a.post(Operation::Nop);
    adapter.poll(2);
    assert_eq!(
        first(&a).map(|done| (done.index, done.syndrome)),
        Some((100, 0x13))
    );
    assert_eq!(adapter.status(a.qpn).unwrap().flushed, 1);
}

/// A message that is longer than its receive is lost, and the receive takes the next one; a receive
/// whose memory is not registered ends its own queue pair.
#[test]
fn an_unreliable_receive_that_is_too_short_waits_for_the_next_message() {
    let (mut adapter, mut a, mut b) = connected(Network::default());
    adapter.make_unreliable(a.qpn);
    adapter.make_unreliable(b.qpn);
    let mut now_ns = 0;
    b.post_receive(b.segment(0, 16));
    for bytes in [17, 64, 16] {
        a.data.write(0, &[bytes as u8; 64]);
        a.post(Operation::Send {
            imm: Some(bytes),
            data: gather(a.segment(0, bytes)),
        });
        run(&mut adapter, &mut now_ns);
        assert_eq!(a.completion().unwrap().syndrome, 0);
    }
    let receipt = b.receipt().unwrap();
    assert_eq!((receipt.imm, receipt.bytes), (16, 16));
    assert!(b.receipt().is_none());
    let mut bytes = [0; 24];
    b.data.read(0, &mut bytes);
    assert_eq!((bytes[0], bytes[15], bytes[16]), (16, 16, 0));
    let pairs = [a.qpn, b.qpn];
    let states = |adapter: &Adapter| pairs.map(|of| adapter.status(of).unwrap().state);
    assert_eq!(states(&adapter), [State::Ready; 2]);
    let mut wrong = b.segment(0, 16);
    wrong.lkey += 1;
    b.post_receive(wrong);
    a.post(Operation::Send {
        imm: None,
        data: gather(a.segment(0, 8)),
    });
    run(&mut adapter, &mut now_ns);
    assert_eq!(b.receipt().unwrap().syndrome, 0x04);
    assert_eq!(a.completion().unwrap().syndrome, 0);
    assert_eq!(states(&adapter), [State::Ready, State::Error]);
}
