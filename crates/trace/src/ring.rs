//! Records on their way from one thread of the program to the thread that writes: a ring that the one fills and the other
//! empties, without a lock.

use std::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::{limits::RING_RECORDS, record::Record};

const _: () = assert!(size_of::<Record>() == 64 && RING_RECORDS.is_power_of_two());

/// Beside each other they would be taken away from one thread whenever the other writes.
#[repr(align(128))]
struct Alone<T>(T);

pub(crate) struct Ring {
    slots: Box<[UnsafeCell<MaybeUninit<Record>>]>,
    /// How many were ever put in, and taken out; both only grow.
    put: Alone<AtomicUsize>,
    taken: Alone<AtomicUsize>,
    /// A thread fills it.
    is_used: AtomicBool,
}

// SAFETY: a slot is written by the one thread that holds the ring (`claim`) while it lies outside `taken..put`, and read by
// the one that empties it while it lies inside; `put` and `taken` are released and acquired in between.
unsafe impl Sync for Ring {}
// SAFETY: as above; records are plain numbers.
unsafe impl Send for Ring {}

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    In,
    /// It is in, and the ring is half full now.
    Half,
    /// There was no room.
    Lost,
}

impl Ring {
    /// Its memory is touched as it fills.
    pub(crate) fn new() -> Ring {
        Ring {
            slots: (0..RING_RECORDS)
                .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
                .collect(),
            put: Alone(AtomicUsize::new(0)),
            taken: Alone(AtomicUsize::new(0)),
            is_used: AtomicBool::new(false),
        }
    }

    /// Takes the ring for the calling thread, if no other has it.
    pub(crate) fn claim(&self) -> bool {
        !self.is_used.swap(true, Ordering::AcqRel)
    }

    /// The thread that had it puts nothing in any more.
    pub(crate) fn release(&self) {
        self.is_used.store(false, Ordering::Release);
    }

    /// Puts a record in.
    ///
    /// # Safety
    /// The calling thread has claimed the ring.
    #[inline]
    pub(crate) unsafe fn push(&self, record: Record) -> Pushed {
        let put = self.put.0.load(Ordering::Relaxed);
        let inside = put.wrapping_sub(self.taken.0.load(Ordering::Acquire));
        if inside >= RING_RECORDS {
            return Pushed::Lost;
        }
        let slot = self.slots[put % RING_RECORDS].get();
        // SAFETY: outside what the other thread may read; nobody else writes.
        unsafe { (*slot).write(record) };
        self.put.0.store(put.wrapping_add(1), Ordering::Release);
        match inside + 1 == RING_RECORDS / 2 {
            true => Pushed::Half,
            false => Pushed::In,
        }
    }

    /// Takes records out, the oldest first, at most `max`, and puts them behind the others.
    ///
    /// # Safety
    /// One thread at a time.
    pub(crate) unsafe fn drain(&self, max: usize, out: &mut Vec<Record>) {
        let taken = self.taken.0.load(Ordering::Relaxed);
        let put = self.put.0.load(Ordering::Acquire);
        let count = put.wrapping_sub(taken).min(max);
        for at in 0..count {
            let slot = self.slots[taken.wrapping_add(at) % RING_RECORDS].get();
            // SAFETY: written and released by the other thread, which does not touch it until it is taken.
            out.push(unsafe { (*slot).assume_init() });
        }
        self.taken
            .0
            .store(taken.wrapping_add(count), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Mark;

    fn mark(at_ns: u64) -> Record {
        Record::Mark(Mark {
            name: 0,
            thread: 0,
            at_ns,
            is_end: false,
        })
    }

    #[test]
    fn what_does_not_fit_is_said_and_half_full_once() {
        let ring = Ring::new();
        assert!(ring.claim() && !ring.claim());
        for round in 0..3 {
            // SAFETY: claimed above, one thread.
            let pushed: Vec<Pushed> = (0..RING_RECORDS as u64 + 5)
                .map(|n| unsafe { ring.push(mark(n)) })
                .collect();
            let count = |what| pushed.iter().filter(|pushed| **pushed == what).count();
            assert_eq!(
                (count(Pushed::Half), count(Pushed::Lost)),
                (1, 5),
                "round {round}"
            );
            let mut out = Vec::new();
            for _ in 0..RING_RECORDS.div_ceil(1000) {
                // SAFETY: one thread.
                unsafe { ring.drain(1000, &mut out) };
            }
            let expected: Vec<Record> = (0..RING_RECORDS as u64).map(mark).collect();
            assert!(out == expected, "round {round}");
        }
        ring.release();
        assert!(ring.claim());
    }

    #[test]
    fn a_thread_fills_it_while_another_empties_it() {
        const RECORDS: u64 = 2_000_000;
        let ring = Ring::new();
        assert!(ring.claim());
        let (mut lost, mut seen) = (0, Vec::new());
        std::thread::scope(|scope| {
            let fills = scope.spawn(|| {
                // SAFETY: the one thread that puts records in.
                (0..RECORDS)
                    .filter(|n| unsafe { ring.push(mark(*n)) } == Pushed::Lost)
                    .count()
            });
            let mut is_over = false;
            loop {
                let (is_last, before) = (is_over, seen.len());
                // SAFETY: the one thread that takes records out.
                unsafe { ring.drain(5_000, &mut seen) };
                if is_last && seen.len() == before {
                    break;
                }
                is_over = fills.is_finished();
            }
            lost = fills.join().unwrap();
        });
        assert_eq!(seen.len() + lost, RECORDS as usize);
        assert!(seen.is_sorted_by_key(Record::start_ns));
        let mut last = None;
        for record in &seen {
            assert!(last < Some(record.start_ns()), "each comes once");
            last = Some(record.start_ns());
        }
    }
}
