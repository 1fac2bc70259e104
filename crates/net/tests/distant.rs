//! Queues whose ring, record and completions are memory that the adapter reaches by calls alone, as
//! that of a GPU is; and atomics with masks, whose entries are written out here.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, atomic::Ordering};

use outboard_net::{
    Access, Adapter, CompletionsSetup, Distant, Gone, Mapped, Network, PairSetup, Registered,
    Retries,
    cqe::{Completion, Kind},
};

const RING_BYTES: usize = 64 * 64;
const AT: u64 = 0x7000_0000_0000;

/// Memory of this process, as if it were not.
#[derive(Debug)]
struct Far(Mapped);

impl Distant for Far {
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Gone> {
        self.0.read(offset, into);
        Ok(())
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Gone> {
        self.0.write(offset, bytes);
        Ok(())
    }
}

fn far(memory: &Mapped) -> Registered {
    Registered::Distant {
        address: AT,
        bytes: memory.len(),
        at: Arc::new(Far(memory.clone())),
    }
}

struct End {
    qpn: u32,
    memory: Mapped,
    record: Mapped,
    completion: Mapped,
    page: Mapped,
    head: u16,
}

impl End {
    /// A queue pair in one piece of memory, of which the record is in the middle.
    fn new(adapter: &mut Adapter) -> End {
        End::with(adapter, Mapped::allocate(4096).unwrap())
    }

    /// One whose doorbell others may have, too.
    fn with(adapter: &mut Adapter, page: Mapped) -> End {
        let memory = |bytes| Mapped::allocate(bytes).unwrap();
        let (all, completion) = (memory(2 * RING_BYTES), memory(64));
        let completions = adapter
            .create_completions(CompletionsSetup {
                entries: far(&completion),
                log_entries: 0,
                collapsed: true,
                record: None,
            })
            .unwrap();
        let setup = PairSetup {
            domain: 1,
            send_completions: completions,
            receive_completions: completions,
            ring: far(&all).part(0, RING_BYTES).unwrap(),
            log_blocks: 6,
            receives: None,
            record: far(&all).part(RING_BYTES + 64, 8).unwrap(),
            page: page.clone(),
            retries: Retries::default(),
        };
        let qpn = adapter.create_pair(setup).unwrap();
        let record = all.part(RING_BYTES + 64, 8).unwrap();
        End {
            qpn,
            memory: all,
            record,
            completion,
            page,
            head: 0,
        }
    }

    /// Posts an entry of these words behind the first, which this writes.
    fn post(&mut self, opmod: u32, opcode: u32, words: &[u32]) {
        self.store(opmod, opcode, words);
        self.record();
        self.doorbell();
    }

    fn store(&mut self, opmod: u32, opcode: u32, words: &[u32]) {
        let segments = words.len() as u32 / 4 + 1;
        let first = opmod << 24 | u32::from(self.head) << 8 | opcode;
        let control = [first, self.qpn << 8 | segments, 8, 0];
        for (at, word) in control.iter().chain(words).enumerate() {
            let offset = (usize::from(self.head) * 64 + 4 * at) % RING_BYTES;
            self.memory.write(offset, &word.to_be_bytes());
        }
        self.head += (segments as u16).div_ceil(4);
    }

    fn record(&self) {
        self.record.write(4, &u32::from(self.head).to_be_bytes());
    }

    fn doorbell(&self) {
        let rung = u64::from(u32::from(self.head) << 8) << 32 | u64::from(self.qpn << 8);
        self.page.u64(0x800).store(rung.to_be(), Ordering::Release);
    }

    fn completed(&self) -> (Kind, u16) {
        let mut bytes = [0; 64];
        self.completion.read(0, &mut bytes);
        let (done, _) = Completion::parse(&bytes).unwrap();
        (done.kind, done.index)
    }
}

fn words(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

/// GPUNetIO's counters: two queue pairs of one doorbell, each rung before its record and after it.
#[test]
fn a_shared_doorbell_that_rings_again_with_the_same_word_is_heard() {
    const NOP: u32 = 0;
    let mut adapter = Adapter::new(Network::default());
    let page = Mapped::allocate(4096).unwrap();
    let mut ends = [(); 2].map(|()| End::with(&mut adapter, page.clone()));
    let [here, there] = [0, 1].map(|at: usize| adapter.end_of(ends[at].qpn).unwrap());
    adapter.connect(here.qpn, there).unwrap();
    adapter.connect(there.qpn, here).unwrap();
    for round in 0..100 {
        for end in &mut ends {
            end.store(0, NOP, &[]);
        }
        ends.iter().for_each(End::doorbell);
        adapter.poll(2 * round);
        for end in &ends {
            end.record();
            end.doorbell();
        }
        adapter.poll(2 * round + 1);
        for end in &ends {
            assert_eq!(end.completed(), (Kind::Requester, round as u16));
        }
    }
    // A doorbell before its record is remembered when the other rings, and the record looked at.
    ends[1].store(0, NOP, &[]);
    ends[1].doorbell();
    adapter.poll(200);
    ends[0].post(0, NOP, &[]);
    adapter.poll(201);
    assert_eq!(ends[0].completed(), (Kind::Requester, 100));
    ends[1].record();
    adapter.poll(202);
    assert_eq!(ends[1].completed(), (Kind::Requester, 100));
}

#[test]
fn masked_atomics_are_executed_from_a_ring_that_is_reached_by_calls() {
    let mut adapter = Adapter::new(Network::default());
    let (mut a, b) = (End::new(&mut adapter), End::new(&mut adapter));
    let (here, there) = (
        adapter.end_of(a.qpn).unwrap(),
        adapter.end_of(b.qpn).unwrap(),
    );
    adapter.connect(a.qpn, there).unwrap();
    adapter.connect(b.qpn, here).unwrap();
    let (data, result) = (Mapped::allocate(64).unwrap(), Mapped::allocate(64).unwrap());
    let key = adapter.register(1, data.clone(), Access::ALL).unwrap();
    let local = adapter.register(1, result.clone(), Access::ALL).unwrap();
    let ends = |at: usize, bytes: u32, change: &[u32]| {
        let [to, from] = [&data, &result].map(|memory| words(memory.address() + at as u64));
        let remote = [to[0], to[1], key, 0];
        let into = [bytes, local, from[0], from[1]];
        [&remote[..], change, &into[..]].concat()
    };
    data.u64(0).store(0x1111_2222_3333_4444, Ordering::Relaxed);
    data.u64(8).store(7, Ordering::Relaxed);
    data.u64(16).store(0x00ff_00ff_0000_0001, Ordering::Relaxed);
    // Words to swap of 8 bytes: swap, compare, and their masks; of 4 the same in one segment.
    let [high, low] = words(0xaaaa_bbbb_cccc_dddd);
    let swap = [high, low, 0, 0, 0, u32::MAX, 0, 0];
    a.post(0x09, 0x14, &ends(0, 8, &swap));
    // The first completes with the index of its first block, and takes two.
    adapter.poll(1);
    assert_eq!(a.completed(), (Kind::Requester, 0));
    assert_eq!(data.u64(0).load(Ordering::Relaxed), 0x1111_2222_cccc_dddd);
    assert_eq!(result.u64(0).load(Ordering::Relaxed), 0x1111_2222_3333_4444);
    let add = [0, 5, 0, 0];
    a.post(0x09, 0x15, &ends(8, 8, &add));
    adapter.poll(2);
    assert_eq!(a.completed(), (Kind::Requester, 2));
    assert_eq!(data.u64(8).load(Ordering::Relaxed), 12);
    // Every bit a field: exclusive or, of the upper half alone.
    let flip = [0x0ff0_0ff0, u32::MAX, 0, 0];
    a.post(0x08, 0x15, &ends(20, 4, &flip));
    adapter.poll(3);
    assert_eq!(a.completed(), (Kind::Requester, 3));
    assert_eq!(data.u64(16).load(Ordering::Relaxed), 0x0f0f_0f0f_0000_0001);
    assert_eq!(result.u32(20).load(Ordering::Relaxed), 0x00ff_00ff);
    // An entry that does nothing may have segments.
    a.post(0, 0, &[0; 4]);
    adapter.poll(4);
    assert_eq!(a.completed(), (Kind::Requester, 4));
    // A word of no size that is known.
    a.post(0x07, 0x15, &ends(8, 8, &add));
    adapter.poll(5);
    assert_eq!(a.completed(), (Kind::RequesterError, 5));
    assert_eq!(adapter.status(a.qpn).unwrap().failure, Some((5, 2)));
}
