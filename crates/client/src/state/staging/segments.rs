//! The segments of staging memory and their owners. No lock is waited for: a thread that looks for
//! a segment would otherwise block threads that give theirs back.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering},
};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};

use crate::session::Group;

pub(super) const SEGMENTS: usize = 16;

const FREE: u8 = 0;
const TAKEN: u8 = 1;
/// Given back with fences, and free once they are reached.
const BUSY: u8 = 2;

#[derive(Default)]
pub(super) struct Segments {
    slots: [CachePadded<Slot>; SEGMENTS],
    /// Number of mapped segments; the others do not exist yet.
    mapped: AtomicUsize,
    /// There is no such memory, and will not be.
    refused: AtomicBool,
    growing: Mutex<()>,
}

#[derive(Default)]
struct Slot {
    state: AtomicU8,
    address: AtomicU64,
    /// The fences after which the GPU has finished with it.
    fences: Mutex<Vec<Arc<Group>>>,
}

/// A segment owned by a thread until it is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    index: usize,
    pub(super) address: u64,
}

/// The right to map more segments.
pub(super) struct Growing<'s> {
    segments: &'s Segments,
    _alone: MutexGuard<'s, ()>,
}

impl Segments {
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Takes the first free segment: recently used memory is still in the caches.
    pub(super) fn take(&self) -> Option<Segment> {
        let mapped = &self.slots[..self.mapped.load(Ordering::Acquire)];
        let found = mapped
            .iter()
            .position(|slot| slot.swap(FREE, TAKEN))
            .or_else(|| mapped.iter().position(|slot| slot.take_reached()))?;
        Some(Segment {
            index: found,
            address: mapped[found].address.load(Ordering::Relaxed),
        })
    }

    /// Gives back a segment that the GPU has finished with.
    pub(super) fn give(&self, segment: Segment) {
        self.slots[segment.index]
            .state
            .store(FREE, Ordering::Release);
    }

    /// Gives back a segment that the GPU has finished with when all of these fences are reached.
    pub(super) fn give_after(&self, segment: Segment, fences: Vec<Arc<Group>>) {
        let slot = &self.slots[segment.index];
        *slot.fences.lock() = fences;
        slot.state.store(BUSY, Ordering::Release);
    }

    /// Returns the right to map more segments, for one thread at a time; `None` if all are mapped
    /// or none can be.
    pub(super) fn grow(&self) -> Option<Growing<'_>> {
        if self.is_refused() || self.mapped.load(Ordering::Acquire) == SEGMENTS {
            return None;
        }
        let before = self.mapped.load(Ordering::Acquire);
        let alone = self.growing.lock();
        // Another thread has mapped them meanwhile, or found that it is impossible.
        let is_done = self.mapped.load(Ordering::Acquire) > before || self.is_refused();
        (!is_done).then_some(Growing {
            segments: self,
            _alone: alone,
        })
    }
}

impl Growing<'_> {
    pub(super) fn mapped(&self) -> usize {
        self.segments.mapped.load(Ordering::Acquire)
    }

    pub(super) fn refuse(self) {
        self.segments.refused.store(true, Ordering::Relaxed);
    }

    pub(super) fn add(self, addresses: impl IntoIterator<Item = u64>) {
        let have = self.mapped();
        let more = self.segments.slots[have..].iter().zip(addresses);
        let count = more
            .map(|(slot, address)| slot.address.store(address, Ordering::Relaxed))
            .count();
        self.segments.mapped.store(have + count, Ordering::Release);
    }
}

impl Slot {
    fn swap(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    fn take_reached(&self) -> bool {
        if self.state.load(Ordering::Acquire) != BUSY {
            return false;
        }
        // A thread that holds the lock is already testing this segment.
        let Some(mut fences) = self.fences.try_lock() else {
            return false;
        };
        // A fence that was refused tells nothing of the copies before it.
        let is_over = |fence: &Arc<Group>| fence.is_reached() && !fence.is_refused_in_capture();
        let is_reached = fences.iter().all(is_over);
        // If it is not busy any more, another thread took it before this lock.
        let is_ours = is_reached && self.swap(BUSY, TAKEN);
        if is_ours {
            fences.clear();
        }
        is_ours
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn mapped(count: u64) -> Segments {
        let segments = Segments::default();
        segments.grow().unwrap().add(0..count);
        segments
    }

    #[test]
    fn busy_segments_come_back_when_all_their_fences_are_reached() {
        let segments = mapped(2);
        let [one, two] = [(); 2].map(|()| segments.take().unwrap());
        assert_eq!((one.address, two.address, segments.take()), (0, 1, None));
        let fences = [(); 2].map(|()| Group::new(1));
        segments.give_after(two, fences.to_vec());
        assert_eq!(segments.take(), None);
        fences[0].complete(Ok(Vec::new()));
        assert_eq!(segments.take(), None);
        fences[1].complete(Ok(Vec::new()));
        assert_eq!(segments.take(), Some(two));
        segments.give(one);
        assert_eq!(segments.take(), Some(one));
    }

    #[test]
    fn more_are_mapped_until_all_are_or_none_can_be() {
        let segments = mapped(2);
        let growing = segments.grow().unwrap();
        assert_eq!(growing.mapped(), 2);
        growing.add(2..100);
        assert!(segments.grow().is_none());
        assert_eq!((0..).map_while(|_| segments.take()).count(), SEGMENTS);
        let refusing = Segments::default();
        refusing.grow().unwrap().refuse();
        assert!(refusing.grow().is_none() && refusing.is_refused() && refusing.take().is_none());
    }

    /// No segment is ever used by two threads at once, and none is lost.
    #[test]
    fn many_threads() {
        let segments = mapped(3);
        let inside: [AtomicU64; 3] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (segments, inside) = (&segments, &inside);
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let Some(segment) = segments.take() else {
                            std::thread::yield_now();
                            continue;
                        };
                        let here = &inside[segment.address as usize];
                        assert_eq!(here.fetch_add(1, Ordering::SeqCst), 0);
                        here.fetch_sub(1, Ordering::SeqCst);
                        if (round + thread) % 2 == 0 {
                            segments.give(segment);
                        } else {
                            let fence = Group::new(1);
                            segments.give_after(segment, vec![fence.clone()]);
                            fence.complete(Ok(Vec::new()));
                        }
                    }
                });
            }
        });
        assert_eq!((0..).map_while(|_| segments.take()).count(), 3);
    }
}
