//! Where host memory lies that servers do not see.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// First address and length of what contains all host memory that the server does not map.
#[derive(Clone, Copy)]
pub(crate) struct PrivateBounds {
    start: u64,
    bytes: u64,
}

impl PrivateBounds {
    pub(crate) const NONE: PrivateBounds = PrivateBounds { start: 0, bytes: 0 };

    #[cfg(test)]
    pub(crate) fn of(start: u64, bytes: u64) -> PrivateBounds {
        PrivateBounds { start, bytes }
    }

    #[inline(always)]
    pub(crate) fn may_contain(self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.bytes
    }

    pub(super) fn overlap(self, address: u64, bytes: u64) -> bool {
        let end = self.start.saturating_add(self.bytes);
        address < end && self.start < address.saturating_add(bytes)
    }
}

/// First address and end of all ranges that servers do not see. Every launch compares its arguments
/// with them, which must not cost a lock.
pub(super) struct PrivatePlaces {
    start: AtomicU64,
    /// 0 if there are none.
    end: AtomicU64,
    /// Held while they change.
    changing: Mutex<()>,
}

pub(super) static PRIVATE: PrivatePlaces = PrivatePlaces::none();

impl PrivatePlaces {
    const fn none() -> PrivatePlaces {
        PrivatePlaces {
            start: AtomicU64::new(u64::MAX),
            end: AtomicU64::new(0),
            changing: Mutex::new(()),
        }
    }

    /// Notes where a driver's ranges begin and end; `u64::MAX` and 0 if it has none. While both
    /// change, more addresses are looked up, never fewer.
    pub(super) fn change(&self, start: u64, end: u64, are_several: impl FnOnce() -> bool) {
        let _one_at_a_time = self.changing.lock();
        self.start.fetch_min(start, Ordering::AcqRel);
        if are_several() {
            // Other drivers have ranges too: what is looked up never becomes less.
            self.end.fetch_max(end, Ordering::AcqRel);
            return;
        }
        self.end.store(end, Ordering::Release);
        self.start.store(start, Ordering::Release);
    }

    #[inline]
    pub(super) fn any(&self) -> bool {
        self.end.load(Ordering::Acquire) > 0
    }

    #[inline]
    pub(super) fn bounds(&self) -> PrivateBounds {
        let end = self.end.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Acquire);
        PrivateBounds {
            start,
            bytes: end.saturating_sub(start),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn the_ranges_of_drivers_that_begin_at_once_are_all_in_the_bounds() {
        const ROUNDS: usize = 5_000;
        let places: Vec<_> = (0..ROUNDS).map(|_| PrivatePlaces::none()).collect();
        let begun: Vec<_> = (0..ROUNDS).map(|_| AtomicU64::new(0)).collect();
        thread::scope(|scope| {
            for start in [0x1000, 0x9000] {
                let (places, begun) = (&places, &begun);
                scope.spawn(move || {
                    for (places, begun) in places.iter().zip(begun) {
                        begun.fetch_add(1, Ordering::AcqRel);
                        // The other thread may have to be given this one's core.
                        for spins in 0.. {
                            match begun.load(Ordering::Acquire) {
                                2 => break,
                                _ if spins > 100 => thread::yield_now(),
                                _ => std::hint::spin_loop(),
                            }
                        }
                        places.change(start, start + 0x1000, || true);
                    }
                });
            }
        });
        for places in &places {
            let bounds = places.bounds();
            assert!(bounds.may_contain(0x1000) && bounds.may_contain(0x9fff));
        }
    }

    #[test]
    fn the_bounds_of_one_driver_follow_its_ranges() {
        let places = PrivatePlaces::none();
        let change = |start, end| places.change(start, end, || false);
        assert!(!places.any() && !places.bounds().may_contain(0));
        change(0x1000, 0x4000);
        change(0x2000, 0x3000);
        let holds = |address| places.bounds().may_contain(address);
        assert_eq!(
            [0x1fff, 0x2000, 0x2fff, 0x3000].map(holds),
            [false, true, true, false]
        );
        change(u64::MAX, 0);
        assert!(!places.any() && !holds(0x2000));
    }
}
