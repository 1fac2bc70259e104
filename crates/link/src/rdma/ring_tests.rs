//! The ring over the worst device that the standard permits: the bytes of a write appear one by one
//! in any order, the time at which they are read from their source is arbitrary, and everything
//! takes its time.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
};

use outboard_verbs::{Memory, Piece};

use super::{
    check,
    control::{BLOCK_BYTES, CONTROL_BYTES, Control, OWN, READ_BUFFER, TOLD},
    layout::{ALIGN, CHECKED_BYTES_MAX, HEADER_BYTES, SEPARATE, SeparateData},
    long::{Long, To},
    registry::RdmaTarget,
    ring::{Consumer, Found, Op, Port, Producer},
};
use crate::{Error, conformance::random_numbers};

const RING_BYTES: usize = 64 << 10;
const FRAME_BYTES: usize = 12 << 10;

/// One direction of one connection, simulated.
#[derive(Default)]
struct Wire {
    posted: VecDeque<Job>,
    done: u64,
    wakes: u64,
}

struct Job {
    from: (Arc<Memory>, usize),
    to: (Arc<Memory>, usize),
    /// Bytes that have not appeared yet.
    left: VecDeque<usize>,
    wakes: bool,
    mark: u64,
}

struct SimPort {
    wire: Rc<RefCell<Wire>>,
    /// The mirror and the ring, if this end has one; our control words and the peer's.
    ring: Option<(Arc<Memory>, Arc<Memory>)>,
    control: (Arc<Memory>, Arc<Memory>),
    /// Registered memory of both sides.
    elsewhere: Vec<Arc<Memory>>,
}

impl SimPort {
    fn find(&self, address: u64) -> (&Arc<Memory>, usize) {
        let holds = |memory: &&Arc<Memory>| {
            (memory.address()..memory.address() + memory.len() as u64).contains(&address)
        };
        let memory = self.elsewhere.iter().find(holds).unwrap();
        (memory, (address - memory.address()) as usize)
    }
}

impl Port for SimPort {
    fn post(&mut self, ops: &[Op], wakes: bool, _: bool, mark: u64) -> Result<(), Error> {
        let (ours, theirs) = &self.control;
        for (at, op) in ops.iter().enumerate() {
            let (from, to, len) = match *op {
                Op::Ring { offset, len } => {
                    let (mirror, ring) = self.ring.as_ref().unwrap();
                    ((mirror, offset), (ring, offset), len)
                }
                Op::Tell => ((ours, OWN), (theirs, TOLD), BLOCK_BYTES),
                Op::Look => ((theirs, OWN), (ours, READ_BUFFER), BLOCK_BYTES),
                Op::Fill { from, offset } => (
                    self.find(from.address),
                    (&self.ring.as_ref().unwrap().1, offset),
                    from.len as usize,
                ),
                Op::Place { offset, len, to } => (
                    (&self.ring.as_ref().unwrap().0, offset),
                    self.find(to.address),
                    len,
                ),
                Op::Carry { from, to } => (
                    self.find(from.address),
                    self.find(to.address),
                    from.len as usize,
                ),
                Op::Grant { .. } => unreachable!("no grants here"),
            };
            self.wire.borrow_mut().posted.push_back(Job {
                from: (Arc::clone(from.0), from.1),
                to: (Arc::clone(to.0), to.1),
                left: (0..len).collect(),
                wakes: wakes && at + 1 == ops.len(),
                mark,
            });
        }
        Ok(())
    }

    fn done(&self) -> u64 {
        self.wire.borrow().done
    }

    fn is_idle(&self) -> bool {
        self.wire.borrow().posted.is_empty()
    }

    fn poll(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

fn put_byte(memory: &Memory, at: usize, byte: u8) {
    let word = memory.word(at & !7);
    let shift = 8 * (at & 7);
    let old = word.load(Ordering::Relaxed) & !(0xff << shift);
    word.store(old | u64::from(byte) << shift, Ordering::Relaxed);
}

impl Wire {
    /// Makes some bytes of the oldest write appear, or all of them.
    fn step(&mut self, random: &mut impl FnMut() -> u64) {
        let Some(job) = self.posted.front_mut() else {
            return;
        };
        let some = match random() % 4 {
            0 => job.left.len(),
            _ => 1 + random() as usize % job.left.len(),
        };
        for _ in 0..some {
            // Mostly in one order or the other, sometimes in random order.
            let at = match random() % 8 {
                0 => job
                    .left
                    .swap_remove_back(random() as usize % job.left.len()),
                1..=4 => job.left.pop_back(),
                _ => job.left.pop_front(),
            };
            let at = at.unwrap();
            let word = job
                .from
                .0
                .word((job.from.1 + at) & !7)
                .load(Ordering::Relaxed);
            let byte = (word >> (8 * ((job.from.1 + at) & 7))) as u8;
            put_byte(&job.to.0, job.to.1 + at, byte);
        }
        if job.left.is_empty() {
            self.done = job.mark;
            self.wakes += u64::from(job.wakes);
            self.posted.pop_front();
        }
    }
}

struct World {
    producer: Producer<SimPort>,
    consumer: Consumer<SimPort>,
    to_consumer: Rc<RefCell<Wire>>,
    to_producer: Rc<RefCell<Wire>>,
    ring: Arc<Memory>,
    producer_words: Arc<Memory>,
    source: Arc<Memory>,
    target: Arc<Memory>,
}

impl World {
    fn new() -> Self {
        let memory = |bytes| Arc::new(Memory::new(bytes).unwrap());
        let (mirror, ring) = (memory(RING_BYTES), memory(RING_BYTES));
        let (p, c) = (memory(CONTROL_BYTES), memory(CONTROL_BYTES));
        let (source, target) = (memory(RING_BYTES), memory(RING_BYTES));
        let to_consumer = Rc::<RefCell<Wire>>::default();
        let to_producer = Rc::<RefCell<Wire>>::default();
        let producer = Producer::new(
            SimPort {
                wire: Rc::clone(&to_consumer),
                ring: Some((Arc::clone(&mirror), Arc::clone(&ring))),
                control: (Arc::clone(&p), Arc::clone(&c)),
                elsewhere: vec![Arc::clone(&source), Arc::clone(&target)],
            },
            Control::new(Arc::clone(&p), 0),
            mirror,
        );
        let consumer = Consumer::new(
            SimPort {
                wire: Rc::clone(&to_producer),
                ring: None,
                control: (Arc::clone(&c), Arc::clone(&p)),
                elsewhere: Vec::new(),
            },
            Control::new(c, 0),
            Arc::clone(&ring),
        );
        Self {
            producer,
            consumer,
            to_consumer,
            to_producer,
            ring,
            producer_words: p,
            source,
            target,
        }
    }

    fn step(&mut self, random: &mut impl FnMut() -> u64) {
        match random() % 2 {
            0 => self.to_consumer.borrow_mut().step(random),
            _ => self.to_producer.borrow_mut().step(random),
        }
    }

    fn send(&mut self, number: u64, len: usize) -> bool {
        let Some(at) = self.producer.place(len).unwrap() else {
            return false;
        };
        fill(self.producer.reserve(at, len), number);
        self.producer.commit(len).unwrap();
        true
    }

    /// Takes the frame with this number, if it has arrived.
    fn receive(&mut self, number: u64, len: usize) -> bool {
        let Found::Frame {
            offset,
            len: got,
            footprint,
            separate: None,
        } = self.consumer.look().unwrap()
        else {
            return false;
        };
        assert_eq!(got, len, "length of frame {number}");
        let mut expected = vec![0; len];
        fill(&mut expected, number);
        let mut frame = Vec::new();
        self.consumer.copy(offset, len, &mut frame);
        assert!(frame == expected, "frame {number}");
        self.consumer.take(footprint).unwrap();
        true
    }
}

fn fill(frame: &mut [u8], number: u64) {
    let mut random = random_numbers(number);
    // Sometimes the content looks like a header, or hardly differs from what was there before.
    match number % 3 {
        0 => frame.fill(number as u8),
        _ => frame.iter_mut().for_each(|byte| *byte = random() as u8),
    }
}

#[test]
fn frames_arrive_whole_and_in_order_however_their_bytes_do() {
    for seed in 0..30 {
        let mut random = random_numbers(seed);
        let mut world = World::new();
        let mut lens: VecDeque<usize> = VecDeque::new();
        let (mut sent, mut received, mut laps) = (0u64, 0u64, 0usize);
        let mut next = 0;
        while received < 250 {
            if next == 0 {
                next = match random() % 4 {
                    0 => 1 + random() as usize % FRAME_BYTES,
                    1 => CHECKED_BYTES_MAX - 1 + random() as usize % 3,
                    _ => 1 + random() as usize % 200,
                };
            }
            match random() % 4 {
                0 if sent < 250 && world.send(sent, next) => {
                    lens.push_back(next);
                    sent += 1;
                    laps += next;
                    next = 0;
                    if sent == 250 || !random().is_multiple_of(3) {
                        world.producer.flush().unwrap();
                    }
                }
                0 => world.producer.flush().unwrap(),
                1 => {
                    if let Some(&len) = lens.front()
                        && world.receive(received, len)
                    {
                        received += 1;
                        lens.pop_front();
                    }
                }
                _ => world.step(&mut random),
            }
        }
        assert!(laps > 3 * RING_BYTES, "the ring was used again");
        world.producer.end().unwrap();
        for _ in 0..10_000 {
            world.step(&mut random);
        }
        assert_eq!(world.consumer.look().unwrap(), Found::End);
    }
}

/// Bytes before the data of a long frame.
const HEAD: usize = 36;
/// Long frames that may be on their way at once: each place is used again.
const PLACES: u64 = 4;

fn place_of(number: u64) -> usize {
    (number % PLACES) as usize * FRAME_BYTES
}

impl World {
    /// A long frame with this number. An even `kind` takes its data from registered memory; each
    /// pair of kinds puts it somewhere else.
    fn long(&self, number: u64, kind: usize, data: usize) -> Long {
        let to = RdmaTarget {
            address: self.target.address() + place_of(number) as u64,
            key: 0,
        };
        Long {
            head: HEAD,
            data,
            from: kind.is_multiple_of(2).then(|| Piece {
                address: self.source.address() + place_of(number) as u64,
                len: data as u32,
                lkey: 0,
            }),
            to: [To::Ring, To::Granted(to), To::Named(to)][kind / 2],
        }
    }

    fn send_long(&mut self, number: u64, long: &Long) -> bool {
        let Some(at) = self.producer.place(long.footprint()).unwrap() else {
            return false;
        };
        let (head, room) = self.producer.reserve_long(at, long);
        head.fill(number as u8);
        let data = match long.from {
            // SAFETY: no other slice of it exists, and the simulated device reads it later.
            Some(_) => unsafe { self.source.room(place_of(number), long.data) },
            None => room,
        };
        fill(data, number);
        self.producer.commit_long(long).unwrap();
        true
    }

    /// Takes the long frame with this number, if it has arrived, and checks its data.
    fn receive_long(&mut self, number: u64, long: &Long) -> bool {
        let Found::Frame {
            offset,
            len,
            footprint,
            separate,
        } = self.consumer.look().unwrap()
        else {
            return false;
        };
        let mut expected = vec![0; long.data];
        fill(&mut expected, number);
        let said = (long.to != To::Ring).then_some(SeparateData {
            len: long.data,
            is_granted: matches!(long.to, To::Granted(_)),
        });
        assert_eq!(separate, said, "frame {number}");
        let (mut frame, mut placed) = (Vec::new(), Vec::new());
        self.consumer.copy(offset, len, &mut frame);
        let (head, data) = frame.split_at(HEAD);
        let data = match separate {
            None => data,
            Some(_) => {
                self.target.copy(place_of(number), long.data, &mut placed);
                &placed
            }
        };
        assert!(head.iter().all(|&byte| byte == number as u8));
        assert!(data == expected, "data of frame {number}");
        self.consumer.take(footprint).unwrap();
        true
    }
}

/// Separate data is complete when its frame is, and appears nowhere else.
#[test]
fn separate_data_is_there_when_its_frame_is() {
    for seed in 4_000..4_060 {
        let mut random = random_numbers(seed);
        let mut world = World::new();
        let mut longs: VecDeque<Long> = VecDeque::new();
        let (mut sent, mut received, mut kinds) = (0u64, 0u64, [0; 6]);
        while received < 120 {
            match random() % 4 {
                0 if sent < 120 && sent - received < PLACES => {
                    let data = CHECKED_BYTES_MAX + 1 + random() as usize % (FRAME_BYTES - 2_000);
                    let kind = random() as usize % 6;
                    let long = world.long(sent, kind, data);
                    if world.send_long(sent, &long) {
                        kinds[kind] += 1;
                        longs.push_back(long);
                        sent += 1;
                    }
                }
                1 => {
                    if let Some(long) = longs.front()
                        && world.receive_long(received, long)
                    {
                        received += 1;
                        longs.pop_front();
                    }
                }
                _ => world.step(&mut random),
            }
        }
        assert!(kinds.iter().all(|&count| count > 0), "{seed}: {kinds:?}");
    }
}

/// A sleeper is woken by what it waits for, whatever comes first.
#[test]
fn nobody_sleeps_through_what_he_waits_for() {
    let (mut slept, mut refrained) = (0, 0);
    for seed in 0..300 {
        let mut random = random_numbers(1_000 + seed);
        let mut world = World::new();
        let (mut sent, mut received, mut wakes) = (0, 0, 0);
        let (mut is_asking, mut is_asleep) = (false, false);
        let mut idle = 0;
        while received < 40 {
            let woken = world.to_consumer.borrow().wakes;
            if woken != wakes {
                wakes = woken;
                is_asleep = false;
            }
            match random() % 3 {
                0 if sent < 40 && random().is_multiple_of(8) => {
                    assert!(world.send(sent, 100));
                    world.producer.flush().unwrap();
                    sent += 1;
                }
                1 if !is_asleep => {
                    if world.receive(received, 100) {
                        received += 1;
                        is_asking = false;
                    } else if !is_asking {
                        world.consumer.begin_sleep().unwrap();
                        is_asking = true;
                    } else if world.consumer.port.is_idle() {
                        is_asking = false;
                        is_asleep = world.consumer.may_sleep()
                            && world.consumer.look().unwrap() == Found::Nothing;
                        match is_asleep {
                            true => slept += 1,
                            false => refrained += 1,
                        }
                    }
                }
                _ => world.step(&mut random),
            }
            // Everything was sent and delivered, and the consumer still sleeps.
            let is_still = sent == 40
                && world.to_consumer.borrow().posted.is_empty()
                && world.to_producer.borrow().posted.is_empty();
            idle = if is_still && is_asleep { idle + 1 } else { 0 };
            assert!(
                idle < 10,
                "seed {seed}: frame {received} of {sent} was slept through"
            );
        }
    }
    assert!(slept > 1_000 && refrained > 100, "{slept} {refrained}");
}

/// A producer that sleeps because the ring is full is woken by the word that there is room.
#[test]
fn a_producer_is_woken_by_room() {
    for seed in 0..100 {
        let mut random = random_numbers(2_000 + seed);
        let mut world = World::new();
        let (mut sent, mut received, mut wakes) = (0, 0, 0);
        let (mut is_asking, mut is_asleep) = (false, false);
        let mut idle = 0;
        while received < 60 {
            let woken = world.to_producer.borrow().wakes;
            if woken != wakes {
                wakes = woken;
                is_asleep = false;
            }
            match random() % 3 {
                0 if sent < 60 && !is_asleep => {
                    if world.send(sent, FRAME_BYTES) {
                        world.producer.flush().unwrap();
                        sent += 1;
                        is_asking = false;
                    } else if !is_asking {
                        world.producer.flush().unwrap();
                        world.producer.begin_sleep().unwrap();
                        is_asking = true;
                    } else if world.producer.port.is_idle() {
                        is_asking = false;
                        is_asleep = world.producer.may_sleep()
                            && world.producer.place(FRAME_BYTES).unwrap().is_none();
                    }
                }
                1 if random().is_multiple_of(4) => {
                    received += u64::from(world.receive(received, FRAME_BYTES))
                }
                _ => world.step(&mut random),
            }
            let is_still = is_asleep
                && sent == received
                && world.to_consumer.borrow().posted.is_empty()
                && world.to_producer.borrow().posted.is_empty();
            idle = if is_still { idle + 1 } else { 0 };
            assert!(
                idle < 10,
                "seed {seed}: room was slept through after {sent}"
            );
        }
    }
}

impl World {
    /// Writes a header as a peer would: a length, its tag, and the check that covers both.
    fn put_header(&self, at: u64, len: u32) {
        let header = u64::from(len) | u64::from(check::tag(at)) << 32;
        let offset = at as usize & (RING_BYTES - 1);
        let words = [header, check::of_header(at, header)];
        put_words(&self.ring, offset, &words);
    }
}

fn put_words(memory: &Memory, at: usize, words: &[u64]) {
    for (n, &word) in words.iter().enumerate() {
        memory.word(at + 8 * n).store(word, Ordering::Relaxed);
    }
}

#[test]
fn a_length_that_cannot_be_is_refused() {
    for len in [0, RING_BYTES as u32, u32::MAX - 1, 1 << 31, (2 << 20) + 1] {
        let mut world = World::new();
        world.put_header(0, len);
        let error = world.consumer.look().unwrap_err();
        assert!(
            matches!(error, Error::PeerMisbehaved { .. }),
            "{len}: {error}"
        );
    }
}

/// Separate data of invalid length, or an invalid part of the ring that it would replace.
#[test]
fn separate_data_that_cannot_be_is_refused() {
    for (lens, kind) in [
        (0, 0),
        (u64::from(u32::MAX), 0),
        (1_000 | 16 << 32, 2),
        (1_000 | 8 << 32, 0),
        (1_000 | (RING_BYTES as u64) << 32, 1),
    ] {
        let mut world = World::new();
        let header = 48 | u64::from(SEPARATE) | u64::from(check::tag(0)) << 32;
        put_words(&world.ring, HEADER_BYTES, &[lens, kind]);
        let sum = check::of_frame(0, header, &world.ring, HEADER_BYTES, 48);
        put_words(&world.ring, 0, &[header, sum]);
        let error = world.consumer.look().unwrap_err();
        assert!(error.to_string().contains("data beside a frame"), "{error}");
    }
}

/// A long frame within its bounds is valid, whatever it holds; a short one must agree with its
/// bytes.
#[test]
fn a_long_frame_is_believed_and_a_short_one_is_checked() {
    let mut world = World::new();
    world.put_header(0, CHECKED_BYTES_MAX as u32 + 1);
    assert!(matches!(
        world.consumer.look().unwrap(),
        Found::Frame { .. }
    ));
    let mut world = World::new();
    world.put_header(0, 100);
    assert_eq!(world.consumer.look().unwrap(), Found::Nothing);
}

#[test]
fn a_consumer_that_took_what_was_not_sent_is_refused() {
    for (position, is_refused) in [
        (16u64, false),
        (8, true),
        (1 << 40, true),
        (u64::MAX - 15, true),
    ] {
        let mut world = World::new();
        for number in 0..5 {
            assert!(world.send(number, FRAME_BYTES - HEADER_BYTES));
        }
        let words = [position, 0, check::of_block(position, 0)];
        put_words(&world.producer_words, TOLD, &words);
        let placed = world.producer.place(FRAME_BYTES);
        assert_eq!(placed.is_err(), is_refused, "{position}");
        // Words that do not agree with their check count as not written.
        put_words(&world.producer_words, TOLD, &[position ^ ALIGN as u64]);
    }
}

/// Noise in the ring and in a side's words: nothing outside the ring is handed out.
#[test]
fn noise_is_never_a_frame_that_is_not_there() {
    for seed in 0..200 {
        let mut random = random_numbers(3_000 + seed);
        let mut world = World::new();
        for at in (0..RING_BYTES).step_by(8) {
            world.ring.word(at).store(random(), Ordering::Relaxed);
        }
        for at in (0..CONTROL_BYTES).step_by(8) {
            world
                .producer_words
                .word(at)
                .store(random(), Ordering::Relaxed);
        }
        assert_eq!(world.consumer.look().unwrap(), Found::Nothing);
        while world.send(1, 500) {}
        assert!(!world.producer.is_refused());
    }
}
