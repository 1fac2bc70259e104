//! Addresses that a session may name: only memory mapped for it.

use std::collections::BTreeMap;

use outboard_api::CUresult;
use outboard_device::Failure;

/// A range of memory that was checked to be the session's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    address: u64,
    len: u64,
}

impl Span {
    pub(super) fn address(self) -> u64 {
        self.address
    }

    pub(super) fn len(self) -> u64 {
        self.len
    }

    /// # Safety
    /// The memory must stay mapped until the last call that uses the span has done its work.
    pub(super) unsafe fn new_unchecked(address: u64, len: u64) -> Span {
        Span { address, len }
    }
}

/// Disjoint ranges by their start. Kernels may use any address, at the GPU's risk. The driver's
/// copies could read this process's memory, so their addresses are checked here first.
#[derive(Debug, Default)]
pub(super) struct AddressBook {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
}

impl AddressBook {
    /// Adds a range; returns `false` if part of it is taken.
    #[must_use]
    pub(super) fn insert(&mut self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len).filter(|_| len > 0) else {
            return false;
        };
        if self.overlaps(address, end) {
            return false;
        }
        self.ranges.insert(address, end);
        true
    }

    /// Removes the range that starts at `address`, and returns its length.
    pub(super) fn remove(&mut self, address: u64) -> Option<u64> {
        self.ranges.remove(&address).map(|end| end - address)
    }

    /// Adds what is not taken of a range; returns the starts of the ranges added.
    pub(super) fn insert_rest(&mut self, address: u64, len: u64) -> Vec<u64> {
        let end = address.saturating_add(len);
        let before = self.ranges.range(..=address).next_back();
        let mut at = before.map_or(address, |(_, last)| (*last).max(address));
        if at >= end {
            return Vec::new();
        }
        let inside: Vec<_> = self.ranges.range(at..end).map(|(s, e)| (*s, *e)).collect();
        let mut added = Vec::new();
        for (start, last) in inside.into_iter().chain([(end, end)]) {
            if self.insert(at, start.saturating_sub(at)) {
                added.push(at);
            }
            at = last;
        }
        added
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.ranges
            .range(..end)
            .next_back()
            .is_some_and(|(_, last)| *last > start)
    }

    /// Returns the span if every byte is in some range.
    pub(super) fn check(&self, address: u64, len: u64) -> Result<Span, Failure> {
        let span = Span { address, len };
        let end = address.checked_add(len);
        let mut covered = address;
        if let Some(end) = end {
            while covered < end {
                match self.ranges.range(..=covered).next_back() {
                    Some((_, last)) if *last > covered => covered = *last,
                    _ => break,
                }
            }
            if covered >= end {
                return Ok(span);
            }
        }
        Err(Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            format!("{address:#x} and {len:#x} bytes: {covered:#x} is no memory of this session"),
        ))
    }
}

/// Returns the bytes that rows of a pitch span.
pub(super) fn rows(pitch: u64, width: u64, height: u64) -> u64 {
    match height {
        0 => 0,
        _ => (height - 1).saturating_mul(pitch).saturating_add(width),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_memory() {
        let mut book = AddressBook::default();
        assert!(book.insert(0x1000, 0x1000));
        assert!(book.insert(0x2000, 0x1000));
        assert_eq!(book.check(0x1800, 0x1000).expect("both").len(), 0x1000);
        assert!(book.check(0x2800, 0x801).is_err());
        assert!(book.check(0xfff, 1).is_err());
        assert!(book.check(0x1000, 0).is_ok());
        assert!(book.check(u64::MAX, 2).is_err());
        assert_eq!(book.remove(0x2000), Some(0x1000));
        assert!(book.check(0x1800, 0x1000).is_err());
    }

    #[test]
    fn ranges_do_not_overlap() {
        let mut book = AddressBook::default();
        assert!(book.insert(0x1000, 0x1000));
        for (address, len) in [
            (0x1000, 1),
            (0xfff, 2),
            (0x1fff, 1),
            (0, 0x10000),
            (0x5000, 0),
        ] {
            assert!(!book.insert(address, len), "{address:#x} {len:#x}");
        }
        assert!(!book.insert(u64::MAX, 2));
    }

    #[test]
    fn the_rest_of_a_range_is_what_no_other_takes() {
        let mut book = AddressBook::default();
        for (address, len) in [
            (0x0800, 0x900),
            (0x1200, 0x100),
            (0x1300, 0x100),
            (0x1f00, 0x200),
        ] {
            assert!(book.insert(address, len));
        }
        assert_eq!(book.insert_rest(0x1000, 0x1000), [0x1100, 0x1400]);
        assert!(book.check(0x0800, 0x1900).is_ok());
        assert_eq!(book.insert_rest(0x1000, 0x1000), [0_u64; 0]);
        for added in [0x1100, 0x1400] {
            assert!(book.remove(added).is_some());
        }
        assert!(book.check(0x1200, 0x200).is_ok());
        assert!(book.check(0x1100, 1).is_err());
        assert_eq!(book.insert_rest(0x5000, 0x1000), [0x5000]);
    }

    #[test]
    fn rows_end_with_the_last_row() {
        assert_eq!(rows(512, 100, 3), 1124);
        assert_eq!(rows(512, 100, 0), 0);
        assert_eq!(rows(u64::MAX, 2, u64::MAX), u64::MAX);
    }
}
