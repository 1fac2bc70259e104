//! The protocol of `include/outboard/net.cuh`, step by step under its names, in every interleaving
//! up to a bound of preemptions: nothing that is filled stays without a doorbell, no entry is read
//! before it is filled or overwritten before it is read (loom reports a race), and no failure is
//! taken for a later one.
//!
//! `cargo test -p outboard-net --features loom --test loom`
#![cfg(loom)]

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
    thread,
};

/// A completion that was never written.
const FRESH: u64 = u64::MAX;
/// Bit of a completion or of the error counter that says that an entry failed.
const FAILED: u64 = 1 << 32;

/// A step that is left out, to show that the model notices.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// A thread that has rung does not look whether more were filled.
    LookingAgain,
    /// All that are reserved are rung for, filled or not.
    Filling,
    /// No check that the ring has room.
    Credits,
    /// A failure counts as consumed before it is noted.
    NotingFirst,
}

/// A queue's counters and memory.
struct Queue {
    without: Without,
    reserved: AtomicU64,
    used: AtomicU64,
    /// A bit for each entry of the ring.
    filled: AtomicU64,
    ringing: AtomicU64,
    rung: AtomicU64,
    done: AtomicU64,
    error: AtomicU64,
    consumed: AtomicU64,
    ring: Vec<UnsafeCell<u64>>,
    record: AtomicU64,
    doorbell: AtomicU64,
    /// One if they are collapsed, else a ring of them.
    completions: Vec<AtomicU64>,
}

// SAFETY: this is what the tests check: loom panics when two threads touch a cell at once.
unsafe impl Sync for Queue {}
// SAFETY: numbers belong to no thread.
unsafe impl Send for Queue {}

impl Queue {
    fn new(entries: usize, completions: usize, without: Without) -> Arc<Queue> {
        let zero = || AtomicU64::new(0);
        Arc::new(Queue {
            without,
            reserved: zero(),
            used: zero(),
            filled: zero(),
            ringing: zero(),
            rung: zero(),
            done: zero(),
            error: zero(),
            consumed: zero(),
            ring: (0..entries).map(|_| UnsafeCell::new(0)).collect(),
            record: zero(),
            doorbell: zero(),
            completions: (0..completions).map(|_| AtomicU64::new(FRESH)).collect(),
        })
    }

    fn slot(&self, entry: u64) -> &UnsafeCell<u64> {
        &self.ring[entry as usize % self.ring.len()]
    }

    fn raise(at: &AtomicU64, value: u64) -> u64 {
        let mut old = at.load(Acquire);
        while old < value {
            match at.compare_exchange(old, value, AcqRel, Acquire) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        old
    }

    fn complete(&self, done: u64) {
        let before = Queue::raise(&self.done, done);
        if before < done {
            self.used.fetch_sub(done - before, Release);
        }
    }

    fn poll_collapsed(&self) {
        let last = self.completions[0].load(Acquire);
        if last != FRESH {
            self.complete(last + 1);
        }
    }

    fn reserve(&self) -> u64 {
        loop {
            let has_room = self.used.fetch_add(1, Acquire) < self.ring.len() as u64;
            if has_room || self.without == Without::Credits {
                return self.reserved.fetch_add(1, Relaxed);
            }
            self.used.fetch_sub(1, Release);
            self.poll_collapsed();
            thread::yield_now();
        }
    }

    fn publish(&self, entry: u64) {
        self.filled
            .fetch_xor(1 << (entry % self.ring.len() as u64), Release);
        self.ring();
    }

    fn filled_until(&self, mut from: u64) -> u64 {
        if self.without == Without::Filling {
            return self.reserved.load(Acquire);
        }
        let size = self.ring.len() as u64;
        let filled = self.filled.load(Acquire);
        while filled >> (from % size) & 1 != from / size % 2 {
            from += 1;
        }
        from
    }

    fn ring(&self) {
        fence(SeqCst);
        while self.ringing.compare_exchange(0, 1, AcqRel, Acquire).is_ok() {
            let rung = self.rung.load(Relaxed);
            let ready = self.filled_until(rung);
            if ready != rung {
                fence(Release);
                self.record.store(ready, Relaxed);
                self.doorbell.store(ready, Relaxed);
                self.rung.store(ready, Relaxed);
            }
            self.ringing.store(0, Release);
            fence(SeqCst);
            if self.without == Without::LookingAgain || self.filled_until(ready) == ready {
                return;
            }
        }
    }

    fn post(&self) -> u64 {
        let entry = self.reserve();
        self.slot(entry).with_mut(|slot| {
            // SAFETY: loom panics if anybody reads or writes it now.
            unsafe { *slot = entry + 100 }
        });
        self.publish(entry);
        entry
    }

    fn wait(&self, ticket: u64) {
        loop {
            if self.done.load(Acquire) > ticket {
                return;
            }
            self.poll_collapsed();
            if self.done.load(Acquire) <= ticket {
                thread::yield_now();
            }
        }
    }

    /// Takes the next completion of a ring, as `poll_plain` does.
    fn poll_plain(&self) {
        let number = self.consumed.load(Acquire);
        let at = number as usize % self.completions.len();
        let last = self.completions[at].load(Acquire);
        if last == FRESH {
            return;
        }
        fence(SeqCst);
        if self.consumed.load(Acquire) != number {
            return;
        }
        let entry = last & !FAILED;
        let note = || {
            self.complete(entry);
            let _ = self
                .error
                .compare_exchange(0, entry | FAILED, AcqRel, Acquire);
        };
        let has_failed = last & FAILED != 0 && self.error.load(Acquire) == 0;
        if has_failed && self.without != Without::NotingFirst {
            note();
        }
        if self
            .consumed
            .compare_exchange(number, number + 1, AcqRel, Acquire)
            .is_err()
        {
            return;
        }
        if has_failed && self.without == Without::NotingFirst {
            note();
        }
        if last & FAILED == 0 {
            self.complete(entry + 1);
        }
    }
}

/// The adapter: reads the record after a doorbell, and the entries that it says are there.
struct Adapter {
    queue: Arc<Queue>,
    consumer: u64,
    seen: u64,
    /// The doorbell rang for more than the record had.
    rung: bool,
}

impl Adapter {
    fn new(queue: &Arc<Queue>) -> Adapter {
        Adapter {
            queue: queue.clone(),
            consumer: 0,
            seen: 0,
            rung: false,
        }
    }

    fn look(&mut self) {
        let doorbell = self.queue.doorbell.load(Acquire);
        self.rung |= doorbell != self.seen;
        self.seen = doorbell;
        if !self.rung {
            return;
        }
        let target = self.queue.record.load(Acquire);
        self.rung = target < doorbell;
        assert!(target >= self.consumer, "a record that goes back");
        while self.consumer < target {
            let found = self.queue.slot(self.consumer).with(|slot| {
                // SAFETY: loom panics if anybody writes it now.
                unsafe { *slot }
            });
            assert_eq!(found, self.consumer + 100, "an entry that is not filled");
            self.queue.completions[0].store(self.consumer, Release);
            self.consumer += 1;
        }
    }
}

fn explore(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

/// Two threads post an entry each, while the adapter looks, and once more after both.
fn two_posters(without: Without) {
    explore(2, move || {
        let queue = Queue::new(2, 1, without);
        let mut adapter = Adapter::new(&queue);
        let posters = [queue.clone(), queue].map(|queue| thread::spawn(move || queue.post()));
        adapter.look();
        adapter.look();
        for poster in posters {
            poster.join().expect("a poster");
        }
        adapter.look();
        assert_eq!(adapter.consumer, 2, "a doorbell is lost");
    });
}

#[test]
fn all_that_are_filled_are_rung_for() {
    two_posters(Without::Nothing);
}

#[test]
#[should_panic(expected = "a doorbell is lost")]
fn a_doorbell_is_lost_without_looking_again() {
    two_posters(Without::LookingAgain);
}

#[test]
#[should_panic]
fn entries_are_read_unfilled_if_all_reserved_are_rung_for() {
    two_posters(Without::Filling);
}

/// One thread posts three entries to a ring of one, and waits for the last.
fn full_ring(without: Without) {
    explore(3, move || {
        let queue = Queue::new(1, 1, without);
        let mut adapter = Adapter::new(&queue);
        let adapter = thread::spawn(move || {
            while adapter.consumer < 3 {
                adapter.look();
                thread::yield_now();
            }
        });
        let last = (0..3).map(|_| queue.post()).last();
        queue.wait(last.expect("three entries"));
        adapter.join().expect("the adapter");
    });
}

#[test]
fn a_full_ring_waits_for_credits() {
    full_ring(Without::Nothing);
}

#[test]
#[should_panic]
fn entries_are_overwritten_without_credits() {
    full_ring(Without::Credits);
}

/// Two threads take a success, a failure, and one that was flushed behind it.
fn three_completions(without: Without) {
    explore(3, move || {
        let queue = Queue::new(4, 4, without);
        let (other, adapter) = (queue.clone(), queue.clone());
        let adapter = thread::spawn(move || {
            for (at, completion) in [0, 1 | FAILED, 2 | FAILED].into_iter().enumerate() {
                adapter.completions[at].store(completion, Release);
            }
        });
        let other = thread::spawn(move || (0..2).for_each(|_| other.poll_plain()));
        (0..2).for_each(|_| queue.poll_plain());
        let (error, done) = (queue.error.load(Acquire), queue.done.load(Acquire));
        assert!(error == 0 || error == 1 | FAILED, "another failure");
        assert!(done <= 1, "a failed entry is done");
        other.join().expect("the other thread");
        adapter.join().expect("the adapter");
        (0..3).for_each(|_| queue.poll_plain());
        let counters = [&queue.error, &queue.done, &queue.consumed];
        assert_eq!(counters.map(|one| one.load(Acquire)), [1 | FAILED, 1, 3]);
    });
}

#[test]
fn the_first_failure_of_a_ring_of_completions_is_noted() {
    three_completions(Without::Nothing);
}

#[test]
#[should_panic]
fn a_later_failure_is_noted_if_it_is_consumed_first() {
    three_completions(Without::NotingFirst);
}
