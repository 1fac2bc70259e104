//! Numbers the program's objects by handle, in the order of their first use.
//!
//! A handle that was destroyed may come again, for another object. Threads remember what they
//! looked up last; what they remember is valid for the epoch in which they learnt it.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Handles of each kind that a thread remembers.
const REMEMBERED: usize = 8;
/// Epochs of all recordings of this process; none is 0.
static NEXT_EPOCH: AtomicU64 = AtomicU64::new(1);

/// Handles that a thread remembers: each with epoch, handle and number.
pub(crate) struct Remembered([Cell<(u64, u64, u32)>; REMEMBERED]);

impl Remembered {
    pub(crate) const fn nothing() -> Remembered {
        Remembered([const { Cell::new((0, 0, 0)) }; REMEMBERED])
    }
}

/// Numbers of all objects of one kind, from 1.
pub(crate) struct Numbers {
    epoch: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Numbers by handle and owner.
    numbers: FxHashMap<(u64, u32), u32>,
    last: u32,
}

impl Numbers {
    pub(crate) fn new() -> Numbers {
        Numbers {
            epoch: AtomicU64::new(next_epoch()),
            known: Mutex::default(),
        }
    }

    /// Returns the number of a handle. `owner` is called if threads use one handle for different
    /// objects; `remembered` belongs to the calling thread.
    #[inline]
    pub(crate) fn of(
        &self,
        remembered: &Remembered,
        handle: u64,
        owner: impl FnOnce() -> u32,
    ) -> u32 {
        // Loaded before the look: a handle that is forgotten after it is not remembered for the
        // next epoch.
        let epoch = self.epoch.load(Ordering::Acquire);
        let place = &remembered.0[place(handle)];
        match place.get() {
            (of, last, number) if (of, last) == (epoch, handle) => number,
            _ => {
                let number = self.look_up(handle, owner());
                place.set((epoch, handle, number));
                number
            }
        }
    }

    #[cold]
    fn look_up(&self, handle: u64, owner: u32) -> u32 {
        let mut known = self.known.lock();
        let Known { numbers, last } = &mut *known;
        *numbers.entry((handle, owner)).or_insert_with(|| {
            *last = last.saturating_add(1);
            *last
        })
    }

    /// Forgets an object that is about to be destroyed.
    pub(crate) fn forget(&self, handle: u64) {
        if self.known.lock().numbers.remove(&(handle, 0)).is_some() {
            self.epoch.store(next_epoch(), Ordering::Release);
        }
    }
}

fn next_epoch() -> u64 {
    NEXT_EPOCH.fetch_add(1, Ordering::Relaxed)
}

/// Spreads handles, which are addresses or count upwards.
fn place(handle: u64) -> usize {
    (handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as usize % REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static REMEMBERED_HERE: Remembered = const { Remembered::nothing() };
    }

    fn with(numbers: &Numbers, handle: u64, owner: u32) -> u32 {
        REMEMBERED_HERE.with(|remembered| numbers.of(remembered, handle, || owner))
    }

    fn of(numbers: &Numbers, handle: u64) -> u32 {
        with(numbers, handle, 0)
    }

    #[test]
    fn they_count_in_the_order_of_first_use() {
        let (streams, events) = (Numbers::new(), Numbers::new());
        for _round in 0..3 {
            for handle in 0..100u64 {
                // More than a thread remembers, and equal handles of another kind.
                assert_eq!(of(&events, 0x1000 + 64 * handle), handle as u32 + 1);
                assert_eq!(of(&streams, 0x1000 + 64 * (99 - handle)), handle as u32 + 1);
            }
        }
        assert_eq!(of(&Numbers::new(), 0x1000), 1, "another recording");
    }

    #[test]
    fn a_handle_that_comes_again_is_another_object_for_every_thread() {
        let events = Numbers::new();
        let steps = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let before = of(&events, 7);
                steps.wait();
                steps.wait();
                (before, of(&events, 7), of(&events, 8))
            });
            assert_eq!(of(&events, 7), 1);
            steps.wait();
            events.forget(7);
            assert_eq!((of(&events, 7), of(&events, 8)), (2, 3));
            steps.wait();
            assert_eq!(other.join().unwrap(), (1, 2, 3));
        });
    }

    #[test]
    fn a_handle_may_mean_something_else_to_each_thread() {
        let streams = Numbers::new();
        let mine = with(&streams, 2, 1);
        let other = std::thread::scope(|scope| scope.spawn(|| with(&streams, 2, 2)).join());
        assert_eq!((mine, other.unwrap()), (1, 2));
        assert_eq!(with(&streams, 2, 1), 1);
    }
}
