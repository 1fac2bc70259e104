//! A table that only grows and is read without a lock, for lookups at every launch.

use std::sync::OnceLock;

/// Number of steps, each twice as long as the one before: 2^32 - 1 slots in all.
const STEPS: usize = 32;

/// Values by number, each set once. Numbers should be dense, since there is room for all below the
/// largest.
pub(crate) struct Slots<T> {
    /// Step `s` has the numbers from `2^s - 1` to `2^(s+1) - 2`.
    steps: [OnceLock<Box<[OnceLock<T>]>>; STEPS],
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots {
            steps: [const { OnceLock::new() }; STEPS],
        }
    }
}

impl<T> Slots<T> {
    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (step, at) = place(number)?;
        self.steps[step].get()?.get(at)?.get()
    }

    /// Sets a value. Returns false if the number has a value already, or is out of range.
    pub(crate) fn set(&self, number: u32, value: T) -> bool {
        let Some((step, at)) = place(number) else {
            return false;
        };
        let slots = self.steps[step].get_or_init(|| {
            std::iter::repeat_with(OnceLock::new)
                .take(1 << step)
                .collect()
        });
        slots[at].set(value).is_ok()
    }
}

#[inline]
fn place(number: u32) -> Option<(usize, usize)> {
    let counted = number.checked_add(1)?;
    let step = counted.ilog2();
    Some((step as usize, (counted - (1 << step)) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_place_of_its_own() {
        let slots = Slots::default();
        for number in 0..1000 {
            assert_eq!(slots.get(number), None);
            assert!(slots.set(number, number * 3));
        }
        for number in 0..1000 {
            assert_eq!(slots.get(number), Some(&(number * 3)));
            assert!(!slots.set(number, 0));
        }
        assert_eq!(slots.get(u32::MAX), None);
        assert!(!slots.set(u32::MAX, 0));
    }

    #[test]
    fn steps_fit_together() {
        assert_eq!([0, 1, 2, 3, 6, 7].map(place), {
            [(0, 0), (1, 0), (1, 1), (2, 0), (2, 3), (3, 0)].map(Some)
        });
        assert_eq!(place(u32::MAX - 1), Some((31, (1 << 31) - 1)));
        assert_eq!(place(u32::MAX), None);
    }
}
