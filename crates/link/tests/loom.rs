//! Every interleaving of the ring's two sides, and of the threads that send over tcp, up to a bound
//! of preemptions: no wake-up is lost (loom reports a deadlock), no byte is read before it is
//! written or overwritten before it is read (loom reports a race), and no frame is lost.
//!
//! `cargo test -p outboard-link --features loom --test loom`
#![cfg(loom)]

use loom::{
    cell::UnsafeCell,
    sync::{Arc, Mutex},
    thread,
};
use outboard_link::{
    shm::ring::{ALIGN, Consumer, Control, Interrupt, Producer},
    tcp::outgoing::{Batch, Outgoing, Write},
};

/// The bytes of a ring, in units of [`ALIGN`].
struct Slots(Vec<UnsafeCell<u64>>);

// SAFETY: this is what the tests check: loom panics when two threads touch a cell at once.
unsafe impl Sync for Slots {}
// SAFETY: numbers belong to no thread.
unsafe impl Send for Slots {}

impl Slots {
    fn new(capacity: u64) -> Arc<Self> {
        let count = capacity / ALIGN;
        Arc::new(Self((0..count).map(|_| UnsafeCell::new(0)).collect()))
    }

    fn at(&self, position: u64) -> &UnsafeCell<u64> {
        &self.0[(position / ALIGN) as usize % self.0.len()]
    }
}

fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

fn push(producer: &mut Producer<Arc<Control>>, slots: &Slots, value: u64) -> bool {
    let interrupt = Interrupt::new();
    while !producer.has_room(ALIGN).unwrap() {
        if producer.is_refused() {
            return false;
        }
        producer.sleep(&interrupt, None);
    }
    let slot = slots.at(producer.position());
    // SAFETY: the ring's positions give this slot to the producer alone; loom fails if they do not.
    slot.with_mut(|slot| unsafe { *slot = value });
    producer.publish(ALIGN);
    true
}

fn pop(consumer: &mut Consumer<Arc<Control>>, slots: &Slots) -> Option<u64> {
    let interrupt = Interrupt::new();
    while consumer.available().unwrap() == 0 {
        consumer.give_back();
        let is_finished = consumer.is_finished();
        if consumer.available().unwrap() > 0 {
            break;
        }
        if is_finished {
            return None;
        }
        consumer.sleep(&interrupt, None);
    }
    let slot = slots.at(consumer.position());
    // SAFETY: the ring's positions give this slot to the consumer alone; loom fails if they do not.
    let value = slot.with(|slot| unsafe { *slot });
    consumer.take(ALIGN);
    Some(value)
}

#[test]
fn frames_arrive_in_order_and_both_sides_sleep_and_wake() {
    const CAPACITY: u64 = 2 * ALIGN;
    explore(|| {
        let control = Arc::new(Control::new());
        let slots = Slots::new(CAPACITY);
        let mut consumer = Consumer::new(control.clone(), CAPACITY);
        let consumer_slots = slots.clone();
        let taker = thread::spawn(move || {
            for expected in 1..=3 {
                assert_eq!(pop(&mut consumer, &consumer_slots), Some(expected));
            }
            assert_eq!(pop(&mut consumer, &consumer_slots), None);
        });
        let mut producer = Producer::new(control, CAPACITY);
        for value in 1..=3 {
            assert!(push(&mut producer, &slots, value));
        }
        producer.close();
        taker.join().unwrap();
    });
}

#[test]
fn room_that_was_kept_back_is_given_before_sleeping() {
    const CAPACITY: u64 = 16 * ALIGN;
    explore(|| {
        let control = Arc::new(Control::new());
        let mut producer = Producer::new(control.clone(), CAPACITY);
        let mut consumer = Consumer::new(control, CAPACITY);
        producer.publish(CAPACITY);
        assert_eq!(consumer.available().unwrap(), CAPACITY);
        consumer.take(CAPACITY - ALIGN);
        let taker = thread::spawn(move || {
            consumer.take(ALIGN);
            let interrupt = Interrupt::new();
            while consumer.available().unwrap() == 0 {
                consumer.give_back();
                consumer.sleep(&interrupt, None);
            }
        });
        let interrupt = Interrupt::new();
        while !producer.has_room(CAPACITY).unwrap() {
            producer.sleep(&interrupt, None);
        }
        producer.publish(ALIGN);
        taker.join().unwrap();
    });
}

#[test]
fn a_producer_that_waits_learns_that_nobody_takes() {
    const CAPACITY: u64 = ALIGN;
    explore(|| {
        let control = Arc::new(Control::new());
        let slots = Slots::new(CAPACITY);
        let mut consumer = Consumer::new(control.clone(), CAPACITY);
        let consumer_slots = slots.clone();
        let taker = thread::spawn(move || {
            assert_eq!(pop(&mut consumer, &consumer_slots), Some(1));
            consumer.close();
        });
        let mut producer = Producer::new(control, CAPACITY);
        assert!(push(&mut producer, &slots, 1));
        let mut pushed = 1;
        while push(&mut producer, &slots, 2) {
            pushed += 1;
        }
        assert!(pushed <= 2);
        taker.join().unwrap();
    });
}

#[test]
fn an_interrupt_wakes_a_consumer_whatever_the_producer_does() {
    const CAPACITY: u64 = 2 * ALIGN;
    explore(|| {
        let control = Arc::new(Control::new());
        let slots = Slots::new(CAPACITY);
        let interrupt = Arc::new(Interrupt::new());
        let waker = thread::spawn({
            let (control, interrupt) = (control.clone(), interrupt.clone());
            move || {
                interrupt.raise();
                control.wake_consumer();
            }
        });
        let sender = thread::spawn({
            let (control, slots) = (control.clone(), slots.clone());
            move || assert!(push(&mut Producer::new(control, CAPACITY), &slots, 7))
        });
        let mut consumer = Consumer::new(control, CAPACITY);
        let (mut is_woken, mut has_frame) = (false, false);
        while !(is_woken && has_frame) {
            is_woken |= interrupt.take();
            if consumer.available().unwrap() > 0 {
                consumer.take(ALIGN);
                has_frame = true;
            }
            if !(is_woken && has_frame) {
                consumer.sleep(&interrupt, None);
            }
        }
        waker.join().unwrap();
        sender.join().unwrap();
    });
}

#[test]
fn an_interrupt_wakes_a_producer_that_waits_for_room() {
    const CAPACITY: u64 = ALIGN;
    explore(|| {
        let control = Arc::new(Control::new());
        let interrupt = Arc::new(Interrupt::new());
        let closer = thread::spawn({
            let (control, interrupt) = (control.clone(), interrupt.clone());
            move || {
                interrupt.raise();
                control.wake_producer();
            }
        });
        let mut producer = Producer::new(control, CAPACITY);
        producer.publish(ALIGN);
        while !interrupt.is_raised() {
            assert!(!producer.has_room(ALIGN).unwrap());
            producer.sleep(&interrupt, None);
        }
        closer.join().unwrap();
    });
}

/// The socket: all bytes written.
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> Result<(), outboard_link::Error> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn wants_help(&mut self) -> bool {
        true
    }
}

fn outgoing() -> (Arc<Outgoing<Written>>, Arc<Mutex<Vec<u8>>>) {
    let written = Arc::new(Mutex::new(Vec::new()));
    (Arc::new(Outgoing::new(Written(written.clone()))), written)
}

fn post(outgoing: &Outgoing<Written>, byte: u8) {
    let mut batch = Batch::default();
    batch.push(&[byte]);
    outgoing.post(&mut batch).unwrap();
}

fn post_and_flush(outgoing: &Outgoing<Written>, byte: u8) {
    post(outgoing, byte);
    outgoing.flush().unwrap();
}

/// Sends like a call of the program; never waits for the turn.
fn send(outgoing: &Outgoing<Written>, byte: u8) {
    send_within(outgoing, byte, usize::MAX);
}

/// Waits for the turn if anything is posted.
fn send_or_wait(outgoing: &Outgoing<Written>, byte: u8) {
    send_within(outgoing, byte, 0);
}

fn send_within(outgoing: &Outgoing<Written>, byte: u8, posted_bytes_max: usize) {
    let mut batch = Batch::default();
    batch.push(&[byte]);
    if let Some(leaving) = outgoing.begin(&mut batch, posted_bytes_max).unwrap() {
        leaving.send().unwrap();
    }
    assert!(batch.is_empty());
}

type Sends = fn(&Outgoing<Written>, u8);

fn whoever_finds_nobody_sending_sends_for_all(one: Sends, two: Sends) {
    explore(move || {
        let (outgoing, written) = outgoing();
        let other = thread::spawn({
            let outgoing = outgoing.clone();
            move || [1, 2].iter().for_each(|byte| one(&outgoing, *byte))
        });
        [11, 12].iter().for_each(|byte| two(&outgoing, *byte));
        other.join().unwrap();
        // Nothing remains unsent, and each thread's bytes keep their order.
        let written = written.lock().unwrap();
        assert_eq!(written.len(), 4);
        for [first, second] in [[1, 2], [11, 12]] {
            let place = |byte| written.iter().position(|other| *other == byte);
            assert!(place(first) < place(second));
        }
    });
}

#[test]
fn of_two_that_send_each_sends_what_the_other_left() {
    whoever_finds_nobody_sending_sends_for_all(send, send);
}

#[test]
fn of_one_that_sends_and_one_that_posts_each_sends_what_the_other_left() {
    whoever_finds_nobody_sending_sends_for_all(send, post_and_flush);
}

#[test]
fn a_sender_that_waits_for_the_turn_gets_it() {
    whoever_finds_nobody_sending_sends_for_all(send_or_wait, send);
}

#[test]
fn a_helper_leaves_nothing_behind_and_sleeps_and_ends() {
    explore(|| {
        let (outgoing, written) = outgoing();
        let helper = thread::spawn({
            let outgoing = outgoing.clone();
            move || {
                let mut looks = 0;
                outgoing.help(|_| {
                    looks += 1;
                    looks % 2 == 1
                })
            }
        });
        for byte in [1, 2] {
            send(&outgoing, byte);
            outgoing.call();
        }
        outgoing
            .send_with(|writer, posted| writer.write(posted).and_then(|()| writer.write(&[3])))
            .unwrap();
        // By now everything is sent, whether the helper looks again or not.
        assert_eq!(*written.lock().unwrap(), [1, 2, 3]);
        outgoing.end();
        helper.join().unwrap();
    });
}

#[test]
fn what_is_left_to_a_helper_is_out_when_it_has_ended() {
    explore(|| {
        let (outgoing, written) = outgoing();
        let helper = thread::spawn({
            let outgoing = outgoing.clone();
            move || {
                let mut looks = 0;
                outgoing.help(|_| {
                    looks += 1;
                    looks < 2
                })
            }
        });
        outgoing.call();
        send(&outgoing, 1);
        outgoing.end();
        helper.join().unwrap();
        assert_eq!(*written.lock().unwrap(), [1]);
    });
}
