//! Ends of connections as programs have them, and one of each operation, for tests of both engines.

use std::sync::atomic::Ordering;

use outboard_net::{
    Access, CompletionsSetup, Mapped, Network, PairSetup, Retries, State,
    cqe::{Completion, Kind},
    wqe::{Data, Entry, Flags, Operation, Remote, Segment},
};
use smallvec::smallvec;

use super::Adapter;

pub(crate) const LOG: u32 = 6;
pub(crate) const BLOCKS: usize = 1 << LOG;
pub(crate) const DATA_BYTES: usize = 65_536;

/// Calls of an adapter that set a connection up.
pub(crate) trait Engine {
    fn completions(&mut self, setup: CompletionsSetup) -> u32;
    fn key(&mut self, domain: u32, memory: &Mapped) -> u32;
    fn pair(&mut self, setup: &PairSetup) -> u32;
    fn join(&mut self, one: u32, other: u32);
    fn make_unreliable(&mut self, qpn: u32);
}

/// Implements [`Engine`] by calls of these names, which adapters have.
macro_rules! engine {
    ($adapter:ty) => {
        impl $crate::ends::Engine for $adapter {
            fn completions(&mut self, setup: CompletionsSetup) -> u32 {
                self.create_completions(setup).unwrap()
            }

            fn key(&mut self, domain: u32, memory: &Mapped) -> u32 {
                self.register(domain, memory.clone(), Access::ALL).unwrap()
            }

            fn pair(&mut self, setup: &PairSetup) -> u32 {
                self.create_pair(setup.clone()).unwrap()
            }

            fn join(&mut self, one: u32, other: u32) {
                let (of_one, of_other) = (self.end_of(one).unwrap(), self.end_of(other).unwrap());
                self.connect(one, of_other).unwrap();
                self.connect(other, of_one).unwrap();
            }

            fn make_unreliable(&mut self, qpn: u32) {
                self.set_unreliable(qpn).unwrap();
            }
        }
    };
}

engine!(outboard_net::Adapter);

/// One end of a connection, as a program has it.
pub(crate) struct End {
    pub(crate) qpn: u32,
    pub(crate) setup: PairSetup,
    pub(crate) sends: Mapped,
    pub(crate) receives: Mapped,
    pub(crate) data: Mapped,
    pub(crate) key: u32,
    pub(crate) head: u16,
    pub(crate) received: u16,
    pub(crate) seen: u64,
    pub(crate) seen_receives: u64,
}

impl End {
    pub(crate) fn new(adapter: &mut impl Engine, collapsed: bool, domain: u32) -> End {
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
            send_completions: adapter.completions(completions(&sends, collapsed)),
            receive_completions: adapter.completions(completions(&receives, false)),
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
        let key = adapter.key(domain, &data);
        let qpn = adapter.pair(&setup);
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

    pub(crate) fn segment(&self, offset: usize, length: u32) -> Segment {
        Segment {
            length,
            lkey: self.key,
            address: self.data.address() + offset as u64,
        }
    }

    pub(crate) fn remote(&self, offset: usize) -> Remote {
        Remote {
            address: self.data.address() + offset as u64,
            rkey: self.key,
        }
    }

    pub(crate) fn store(&mut self, bytes: &[u8]) {
        for (block, bytes) in bytes.chunks(64).enumerate() {
            let slot = usize::from(self.head.wrapping_add(block as u16)) % BLOCKS;
            self.setup.ring.mapped().unwrap().write(slot * 64, bytes);
        }
        self.head = self.head.wrapping_add(bytes.len().div_ceil(64) as u16);
    }

    pub(crate) fn record(&self) {
        self.setup
            .record
            .mapped()
            .unwrap()
            .u32(4)
            .store(u32::from(self.head).to_be(), Ordering::Release);
    }

    pub(crate) fn doorbell(&self) {
        let word = (u64::from(self.head) << 8) << 32 | u64::from(self.qpn << 8);
        self.setup
            .page
            .u64(0x800)
            .store(word.to_be(), Ordering::Release);
    }

    pub(crate) fn entry(&self, operation: Operation) -> Entry {
        Entry {
            index: self.head,
            qpn: self.qpn,
            flags: Flags::SIGNALLED,
            operation,
        }
    }

    pub(crate) fn post(&mut self, operation: Operation) {
        let bytes = self.entry(operation).encode();
        self.store(&bytes);
        self.record();
        self.doorbell();
    }

    pub(crate) fn post_receive(&mut self, segment: Segment) {
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
    pub(crate) fn next(entries: &Mapped, seen: &mut u64) -> Option<Completion> {
        let mut bytes = [0; 64];
        entries.read(*seen as usize % BLOCKS * 64, &mut bytes);
        let (completion, owner) = Completion::parse(&bytes)?;
        if owner != (*seen as usize & BLOCKS != 0) {
            return None;
        }
        *seen += 1;
        Some(completion)
    }

    pub(crate) fn completion(&mut self) -> Option<Completion> {
        End::next(&self.sends, &mut self.seen)
    }

    pub(crate) fn receipt(&mut self) -> Option<Completion> {
        End::next(&self.receives, &mut self.seen_receives)
    }
}

pub(crate) fn connected(network: Network) -> (Adapter, End, End) {
    let mut adapter = Adapter::new(network);
    let (a, b) = (
        End::new(&mut adapter, false, 1),
        End::new(&mut adapter, false, 1),
    );
    connect(&mut adapter, &a, &b);
    (adapter, a, b)
}

pub(crate) fn connect(adapter: &mut impl Engine, a: &End, b: &End) {
    adapter.join(a.qpn, b.qpn);
}

/// Gives the connections of two ends to one block of a kernel: a queue pair completes to both.
pub(crate) fn together(adapter: &mut impl Engine, one: &End, other: &End) {
    let setup = PairSetup {
        receive_completions: other.setup.send_completions,
        page: Mapped::allocate(4096).unwrap(),
        ..one.setup.clone()
    };
    adapter.pair(&setup);
}

pub(crate) fn gather(segment: Segment) -> Data {
    Data::Gather(smallvec![segment])
}

pub(crate) fn write(a: &End, b: &End) -> Operation {
    Operation::Write {
        remote: b.remote(0),
        imm: None,
        data: gather(a.segment(0, 64)),
    }
}

/// Polls until the adapter has nothing to do for a while of its own time.
pub(crate) fn run(adapter: &mut Adapter, now_ns: &mut u64) {
    for _ in 0..200 {
        *now_ns += 100;
        adapter.poll(*now_ns);
    }
}

/// Posts one of each kind from `a` to `b`; `a` begins with the pattern.
pub(crate) fn post_each(a: &mut End, b: &mut End, pattern: &[u8]) {
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
pub(crate) fn syndrome_of(spoil: impl FnOnce(&mut Adapter, &mut End, &mut End)) -> u8 {
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
pub(crate) fn changed(change: impl FnOnce(&mut Vec<u8>)) -> u8 {
    syndrome_of(|_, a, b| {
        let mut bytes = a.entry(write(a, b)).encode();
        change(&mut bytes);
        a.store(&bytes);
        a.record();
        a.doorbell();
    })
}

/// Posts one operation after another one that is right, and returns its syndrome.
pub(crate) fn posted(operation: impl FnOnce(&End, &End) -> Operation) -> u8 {
    syndrome_of(|_, a, b| a.post(operation(a, b)))
}
