//! The engine: what it executes, what it refuses, and with which syndrome. Entries are written into
//! the ring, and completions are read from theirs, as a program does.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::Ordering;

use outboard_net::{
    Access, Adapter, CQN_FIRST, CompletionsSetup, Mapped, Network, PairSetup, Peer, Retries, State,
    cqe::{Completion, Kind},
    wqe::{Control, Data, Entry, Flags, Operation, Remote, Segment},
};
use smallvec::smallvec;

const LOG: u32 = 6;
const BLOCKS: usize = 1 << LOG;
const DATA_BYTES: usize = 65_536;

/// One end of a connection, as a program has it.
struct End {
    qpn: u32,
    setup: PairSetup,
    sends: Mapped,
    receives: Mapped,
    data: Mapped,
    key: u32,
    head: u16,
    received: u16,
    seen: u64,
    seen_receives: u64,
}

impl End {
    fn new(adapter: &mut Adapter, collapsed: bool, domain: u32) -> End {
        let memory = |bytes| Mapped::allocate(bytes).unwrap();
        let (sends, receives) = (memory(BLOCKS * 64), memory(BLOCKS * 64));
        let completions = |entries: &Mapped, collapsed| CompletionsSetup {
            entries: entries.clone().into(),
            log_entries: LOG,
            collapsed,
            record: None,
        };
        let setup = PairSetup {
            domain,
            send_completions: adapter
                .create_completions(completions(&sends, collapsed))
                .unwrap(),
            receive_completions: adapter
                .create_completions(completions(&receives, false))
                .unwrap(),
            ring: memory(BLOCKS * 64).into(),
            log_blocks: LOG,
            receives: Some((memory(BLOCKS * 16), LOG)),
            record: memory(8).into(),
            page: memory(4096),
            retries: Retries {
                timeout_ns: 1000,
                not_ready_ns: 500,
                ..Retries::default()
            },
        };
        let data = memory(DATA_BYTES);
        let key = adapter.register(domain, data.clone(), Access::ALL).unwrap();
        let qpn = adapter.create_pair(setup.clone()).unwrap();
        let (head, received, seen, seen_receives) = (0, 0, 0, 0);
        End {
            qpn,
            setup,
            sends,
            receives,
            data,
            key,
            head,
            received,
            seen,
            seen_receives,
        }
    }

    fn segment(&self, offset: usize, length: u32) -> Segment {
        Segment {
            length,
            lkey: self.key,
            address: self.data.address() + offset as u64,
        }
    }

    fn remote(&self, offset: usize) -> Remote {
        Remote {
            address: self.data.address() + offset as u64,
            rkey: self.key,
        }
    }

    fn store(&mut self, bytes: &[u8]) {
        for (block, bytes) in bytes.chunks(64).enumerate() {
            let slot = usize::from(self.head.wrapping_add(block as u16)) % BLOCKS;
            self.setup.ring.mapped().unwrap().write(slot * 64, bytes);
        }
        self.head = self.head.wrapping_add(bytes.len().div_ceil(64) as u16);
    }

    fn record(&self) {
        self.setup
            .record
            .mapped()
            .unwrap()
            .u32(4)
            .store(u32::from(self.head).to_be(), Ordering::Release);
    }

    fn doorbell(&self) {
        let word = (u64::from(self.head) << 8) << 32 | u64::from(self.qpn << 8);
        self.setup
            .page
            .u64(0x800)
            .store(word.to_be(), Ordering::Release);
    }

    fn entry(&self, operation: Operation) -> Entry {
        Entry {
            index: self.head,
            qpn: self.qpn,
            flags: Flags::SIGNALLED,
            operation,
        }
    }

    fn post(&mut self, operation: Operation) {
        let bytes = self.entry(operation).encode();
        self.store(&bytes);
        self.record();
        self.doorbell();
    }

    fn post_receive(&mut self, segment: Segment) {
        let mut bytes = [0; 16];
        bytes[0..4].copy_from_slice(&segment.length.to_be_bytes());
        bytes[4..8].copy_from_slice(&segment.lkey.to_be_bytes());
        bytes[8..16].copy_from_slice(&segment.address.to_be_bytes());
        let (ring, _) = self.setup.receives.as_ref().unwrap();
        ring.write(usize::from(self.received) % BLOCKS * 16, &bytes);
        self.received = self.received.wrapping_add(1);
        self.setup
            .record
            .mapped()
            .unwrap()
            .u32(0)
            .store(u32::from(self.received).to_be(), Ordering::Release);
    }

    /// Reads the next completion of a plain queue by the owner rule of the adapters' manual.
    fn next(entries: &Mapped, seen: &mut u64) -> Option<Completion> {
        let mut bytes = [0; 64];
        entries.read(*seen as usize % BLOCKS * 64, &mut bytes);
        let (completion, owner) = Completion::parse(&bytes)?;
        if owner != (*seen as usize & BLOCKS != 0) {
            return None;
        }
        *seen += 1;
        Some(completion)
    }

    fn completion(&mut self) -> Option<Completion> {
        End::next(&self.sends, &mut self.seen)
    }

    fn receipt(&mut self) -> Option<Completion> {
        End::next(&self.receives, &mut self.seen_receives)
    }
}

fn connected(network: Network) -> (Adapter, End, End) {
    let mut adapter = Adapter::new(network);
    let (a, b) = (
        End::new(&mut adapter, false, 1),
        End::new(&mut adapter, false, 1),
    );
    connect(&mut adapter, &a, &b);
    (adapter, a, b)
}

fn connect(adapter: &mut Adapter, a: &End, b: &End) {
    let (of_a, of_b) = (
        adapter.end_of(a.qpn).unwrap(),
        adapter.end_of(b.qpn).unwrap(),
    );
    adapter.connect(a.qpn, of_b).unwrap();
    adapter.connect(b.qpn, of_a).unwrap();
}

fn gather(segment: Segment) -> Data {
    Data::Gather(smallvec![segment])
}

fn write(a: &End, b: &End) -> Operation {
    Operation::Write {
        remote: b.remote(0),
        imm: None,
        data: gather(a.segment(0, 64)),
    }
}

/// Polls until the adapter has nothing to do for a while of its own time.
fn run(adapter: &mut Adapter, now_ns: &mut u64) {
    for _ in 0..200 {
        *now_ns += 100;
        adapter.poll(*now_ns);
    }
}

/// Posts one of each kind from `a` to `b`; `a` begins with the pattern.
fn post_each(a: &mut End, b: &mut End, pattern: &[u8]) {
    a.data.write(0, pattern);
    a.post(write(a, b));
    let inline = Data::Inline(smallvec![9; 28]);
    a.post(Operation::Write {
        remote: b.remote(128),
        imm: None,
        data: inline,
    });
    b.data.u64(256).store(40, Ordering::Relaxed);
    a.post(Operation::FetchAdd {
        remote: b.remote(256),
        add: 2,
        into: a.segment(512, 8),
    });
    let (compare, swap) = (42, 7);
    a.post(Operation::CompareSwap {
        remote: b.remote(256),
        compare,
        swap,
        into: a.segment(520, 8),
    });
    a.post(Operation::Read {
        remote: b.remote(0),
        into: smallvec![a.segment(1024, 64)],
    });
    b.post_receive(b.segment(2048, 64));
    b.post_receive(b.segment(4096, 64));
    a.post(Operation::Send {
        imm: Some(5),
        data: gather(a.segment(0, 32)),
    });
    let data = gather(a.segment(0, 16));
    a.post(Operation::Write {
        remote: b.remote(300),
        imm: Some(6),
        data,
    });
    a.post(Operation::Nop);
}

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

/// Posts one operation after another one that is right, and returns its syndrome.
fn syndrome_of(spoil: impl FnOnce(&mut Adapter, &mut End, &mut End)) -> u8 {
    let (mut adapter, mut a, mut b) = connected(Network::default());
    a.post(write(&a, &b));
    spoil(&mut adapter, &mut a, &mut b);
    run(&mut adapter, &mut 0);
    assert_eq!(
        a.completion().unwrap().kind,
        Kind::Requester,
        "the entry before"
    );
    let failed = a.completion().unwrap();
    assert_eq!(failed.kind, Kind::RequesterError);
    assert_eq!(adapter.status(a.qpn).unwrap().state, State::Error);
    a.post(Operation::Nop);
    run(&mut adapter, &mut 1_000_000);
    let behind = std::iter::from_fn(|| a.completion()).last().unwrap();
    assert_eq!(
        (behind.kind, behind.syndrome),
        (Kind::RequesterError, 5),
        "the entry behind"
    );
    failed.syndrome
}

/// Posts bytes that differ from a write's.
fn changed(change: impl FnOnce(&mut Vec<u8>)) -> u8 {
    syndrome_of(|_, a, b| {
        let mut bytes = a.entry(write(a, b)).encode();
        change(&mut bytes);
        a.store(&bytes);
        a.record();
        a.doorbell();
    })
}

fn posted(operation: impl FnOnce(&End, &End) -> Operation) -> u8 {
    syndrome_of(|_, a, b| a.post(operation(a, b)))
}

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

/// Queue pairs of one doorbell: what one rings may be over what the other has rung, unseen.
#[test]
fn a_doorbell_of_two_queue_pairs_is_heard_by_both() {
    let mut adapter = Adapter::new(Network::default());
    let mut ends: Vec<End> = (0..4).map(|_| End::new(&mut adapter, false, 1)).collect();
    let page = ends[0].setup.page.clone();
    ends[1].setup.page = page;
    ends[1].qpn = adapter.create_pair(ends[1].setup.clone()).unwrap();
    let [a, b, c, d] = &mut ends[..] else {
        unreachable!()
    };
    connect(&mut adapter, a, c);
    connect(&mut adapter, b, d);
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
