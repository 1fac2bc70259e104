//! A ring of records between one thread of the program, which fills it, and the thread that writes,
//! which empties it; without a lock.

use std::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::{limits::RING_RECORDS, record::Record};

const _: () = assert!(size_of::<Record>() == 64 && RING_RECORDS.is_power_of_two());

/// Keeps a value in cache lines of its own: two neighbouring counters would move between the
/// processors at every write.
#[repr(align(128))]
struct CachePadded<T>(T);

pub(crate) struct Ring {
    slots: Box<[UnsafeCell<MaybeUninit<Record>>]>,
    /// Records ever put in, and ever taken out; both only grow.
    put: CachePadded<AtomicUsize>,
    taken: CachePadded<AtomicUsize>,
    /// True while a thread has claimed the ring.
    is_used: AtomicBool,
}

// SAFETY: the one thread that holds the ring (`claim`) writes a slot while it is outside
// `taken..put`, and the one that empties the ring reads it while it is inside; `put` and `taken`
// are released and acquired in between.
unsafe impl Sync for Ring {}
// SAFETY: no field belongs to the thread that made it, and records are plain numbers.
unsafe impl Send for Ring {}

/// Result of adding a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    In,
    /// The record is in, and the ring is now half full.
    Half,
    /// There was no room.
    Lost,
}

impl Ring {
    /// Makes a ring. Its memory is touched only as it fills.
    pub(crate) fn new() -> Ring {
        Ring {
            slots: (0..RING_RECORDS)
                .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
                .collect(),
            put: CachePadded(AtomicUsize::new(0)),
            taken: CachePadded(AtomicUsize::new(0)),
            is_used: AtomicBool::new(false),
        }
    }

    /// Takes the ring for the calling thread, if no other has it.
    pub(crate) fn claim(&self) -> bool {
        !self.is_used.swap(true, Ordering::AcqRel)
    }

    /// Gives the ring up: the thread that had it adds no more.
    pub(crate) fn release(&self) {
        self.is_used.store(false, Ordering::Release);
    }

    /// Adds a record.
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
        // SAFETY: outside the range that the other thread may read; no other thread writes.
        unsafe { (*slot).write(record) };
        self.put.0.store(put.wrapping_add(1), Ordering::Release);
        match inside + 1 == RING_RECORDS / 2 {
            true => Pushed::Half,
            false => Pushed::In,
        }
    }

    /// Appends up to `max` records to `out`, the oldest first.
    ///
    /// # Safety
    /// Called by one thread at a time.
    pub(crate) unsafe fn drain(&self, max: usize, out: &mut Vec<Record>) {
        let taken = self.taken.0.load(Ordering::Relaxed);
        let put = self.put.0.load(Ordering::Acquire);
        let count = put.wrapping_sub(taken).min(max);
        for at in 0..count {
            let slot = self.slots[taken.wrapping_add(at) % RING_RECORDS].get();
            // SAFETY: written and released by the other thread, which does not touch it until it is
            // taken.
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
            // SAFETY: this thread claimed the ring above, and no other thread has it.
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
                // SAFETY: only this thread takes records out of the ring.
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
        const RECORDS: u64 = if cfg!(miri) { 2_000 } else { 2_000_000 };
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
