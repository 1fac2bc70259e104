//! Both engines, given the same entries, right and spoilt, write the same memory and completions.

use outboard_net::{
    Adapter as Thread, CQN_FIRST, Change, Mapped, Network,
    wqe::{Data, Flags, Masked, Operation, Remote, Segment},
};
use smallvec::SmallVec;

use super::{Adapter as Kernel, ends::*};

const ROUNDS: u64 = 400;
/// Entries of a round. They fit a ring.
const ENTRIES: u64 = 12;
const WRONG_KEY: u32 = 0x777;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }

    fn is_rare(&mut self) -> bool {
        self.below(40) == 0
    }
}

/// An engine with two ends. Those of both engines have the same numbers, keys and bytes.
struct Side<E> {
    engine: E,
    ends: [End; 2],
}

impl<E: Engine> Side<E> {
    fn new(mut engine: E, seed: u64) -> Side<E> {
        let collapsed = seed.is_multiple_of(3);
        let ends = [(); 2].map(|()| End::new(&mut engine, collapsed, 1));
        if seed.is_multiple_of(4) {
            ends.iter().for_each(|end| engine.make_unreliable(end.qpn));
        }
        connect(&mut engine, &ends[0], &ends[1]);
        for (number, end) in ends.iter().enumerate() {
            let bytes: Vec<u8> = (0..DATA_BYTES).map(|at| (at * 7 + number) as u8).collect();
            end.data.write(0, &bytes);
        }
        Side { engine, ends }
    }
}

/// Memory of an end, by its offset.
fn segment(random: &mut Random, end: &End, length: u64) -> Segment {
    let beyond = DATA_BYTES as u64 - random.below(length.max(1));
    // A source and a place of one copy do not overlap: this side's is the upper half.
    let offset = match random.is_rare() {
        true => beyond,
        false => DATA_BYTES as u64 / 2 + random.below(2000) * 8 + random.below(3) * 4,
    };
    let one = end.segment(offset as usize, length as u32);
    match random.is_rare() {
        true => Segment {
            lkey: WRONG_KEY,
            ..one
        },
        false => one,
    }
}

/// Memory of an end for the result of an atomic, which a thread writes after it has executed what
/// it has fetched beside it: no operation of these reads it.
fn result(random: &mut Random, end: &End, length: u64) -> Segment {
    let quarter = DATA_BYTES as u64 / 4;
    let mut one = segment(random, end, length);
    if one.address < end.data.address() + 3 * quarter {
        one.address += quarter;
    }
    one
}

fn remote(random: &mut Random, end: &End) -> Remote {
    let offset = match random.is_rare() {
        true => DATA_BYTES as u64 - random.below(200),
        false => random.below(2000) * 8 + random.below(6) / 5 * 4,
    };
    let one = end.remote(offset as usize);
    match random.is_rare() {
        true => Remote {
            rkey: WRONG_KEY,
            ..one
        },
        false => one,
    }
}

fn data(random: &mut Random, from: &End) -> Data {
    if random.below(3) == 0 {
        let bytes: Vec<u8> = (0..random.below(70))
            .map(|_| random.below(256) as u8)
            .collect();
        return Data::Inline(bytes.as_slice().into());
    }
    Data::Gather(segments(random, from))
}

fn segments(random: &mut Random, from: &End) -> SmallVec<[Segment; 2]> {
    let count = [1, 1, 1, 2, 5][random.below(5) as usize];
    (0..count)
        .map(|_| {
            let length = 1 + random.below(200);
            segment(random, from, length)
        })
        .collect()
}

/// Makes an operation from one end to the other. Its choices are the random numbers' alone.
fn operation(random: &mut Random, from: &End, to: &End) -> Operation {
    let imm = Some(random.below(1 << 32) as u32);
    let there = remote(random, to);
    let word = if random.is_rare() { 4 } else { 8 };
    let (first, second) = (random.below(300), random.below(300));
    match random.below(12) {
        0 => Operation::Nop,
        1 => Operation::Write {
            remote: there,
            imm,
            data: data(random, from),
        },
        2 | 3 => Operation::Write {
            remote: there,
            imm: None,
            data: data(random, from),
        },
        4 => Operation::Send {
            imm,
            data: data(random, from),
        },
        5 => Operation::Send {
            imm: None,
            data: data(random, from),
        },
        6 => Operation::Read {
            remote: there,
            into: segments(random, from),
        },
        7 => Operation::FetchAdd {
            remote: there,
            add: first,
            into: result(random, from, word),
        },
        8 => Operation::CompareSwap {
            remote: there,
            compare: first,
            swap: second,
            into: result(random, from, word),
        },
        9 => masked(random, from, there),
        10 => Operation::Dump {
            from: segments(random, from),
        },
        // The queue's own completions before this one, or those of no queue.
        _ => Operation::Wait {
            completions: CQN_FIRST
                + if random.is_rare() {
                    99
                } else {
                    from.setup.send_completions
                },
            number: u32::MAX,
        },
    }
}

fn masked(random: &mut Random, from: &End, remote: Remote) -> Operation {
    let bytes = [4, 8][random.below(2) as usize];
    let [first, second, third, fourth] = [(); 4].map(|()| random.below(1 << 32));
    let change = match random.below(2) {
        0 => Change::Add {
            add: first,
            boundary: second,
        },
        _ => Change::Swap {
            compare: first,
            swap: second,
            compare_mask: third & 3,
            swap_mask: fourth,
        },
    };
    let into = result(random, from, bytes);
    Operation::Masked(Masked {
        remote,
        bytes,
        change,
        into,
    })
}

/// Posts what the random numbers say, and spoils some of it.
fn post<E>(random: &mut Random, side: &mut Side<E>) {
    let [a, b] = &mut side.ends;
    for _ in 0..random.below(4) {
        let length = 1 + random.below(300);
        let receive = segment(random, b, length);
        b.post_receive(receive);
    }
    for _ in 0..1 + random.below(ENTRIES) {
        let mut entry = a.entry(operation(random, a, b));
        entry.flags = Flags(random.below(256) as u8);
        let mut bytes = entry.encode();
        if random.below(60) == 0 {
            let at = [0, 1, 2, 3, 5, 7, 24, 32, 35][random.below(9) as usize];
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        a.store(&bytes);
    }
    a.record();
    a.doorbell();
}

/// Completions without their times: a thread waits a poll longer before some entries.
fn completions(memory: &Mapped) -> Vec<String> {
    let all = bytes(memory);
    let timeless = all.chunks(64).map(|one| {
        let mut one = one.to_vec();
        if one[63] >> 4 < 13 {
            one[48..56].fill(0);
        }
        one.iter().map(|byte| format!("{byte:02x}")).collect()
    });
    timeless.collect()
}

fn first_difference(one: &[String], other: &[String]) -> Option<(usize, String, String)> {
    let both = one.iter().zip(other).enumerate();
    let mut differing = both.filter(|(_, (one, other))| one != other);
    differing
        .next()
        .map(|(at, (one, other))| (at, one.clone(), other.clone()))
}

fn bytes(memory: &Mapped) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

#[test]
fn what_a_kernel_writes_is_what_the_adapter_writes() {
    let (mut failures, mut successes) = (0, 0);
    for seed in 0..ROUNDS {
        let mut thread = Side::new(Thread::new(Network::default()), seed);
        let mut kernel = Side::new(Kernel::new(Network::default()), seed);
        for turn in 0..3 {
            post(&mut Random(seed << 8 | turn), &mut thread);
            post(&mut Random(seed << 8 | turn), &mut kernel);
            for step in 1..40 {
                let now_ns = turn * 1_000_000 + step * 600;
                thread.engine.poll(now_ns);
                kernel.engine.poll(now_ns);
            }
        }
        for (one, other) in thread.ends.iter().zip(&kernel.ends) {
            let what = format!("seed {seed}");
            for (mine, theirs) in [(&one.sends, &other.sends), (&one.receives, &other.receives)] {
                let differs = first_difference(&completions(mine), &completions(theirs));
                assert_eq!(differs, None, "{what}: completions");
            }
            assert!(bytes(&one.data) == bytes(&other.data), "{what}: memory");
            let [mine, theirs] = [
                thread.engine.status(one.qpn).unwrap(),
                kernel.engine.status(other.qpn).unwrap(),
            ];
            assert_eq!(
                (mine.state, mine.failure),
                (theirs.state, theirs.failure),
                "{what}"
            );
            assert_eq!(
                (mine.succeeded, mine.flushed),
                (theirs.succeeded, theirs.flushed),
                "{what}"
            );
            failures += u64::from(mine.failure.is_some());
            successes += mine.succeeded;
        }
    }
    assert!(
        failures > ROUNDS / 2 && successes > 2 * ROUNDS,
        "{failures}, {successes}"
    );
}
