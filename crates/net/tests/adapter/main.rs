//! The engine: what it executes, what it refuses, and with which syndrome. Entries are written into
//! the ring, and completions are read from theirs, as a program does.
#![allow(clippy::unwrap_used)]

mod network;
mod order;
mod refused;

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

/// Spoils a queue after an entry that is right, and returns the syndrome of the next.
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

/// Posts one operation after another one that is right, and returns its syndrome.
fn posted(operation: impl FnOnce(&End, &End) -> Operation) -> u8 {
    syndrome_of(|_, a, b| a.post(operation(a, b)))
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
