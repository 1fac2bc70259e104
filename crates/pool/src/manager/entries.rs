//! The entries of a host's table that leases have: a set from which the lowest free ones are taken.

use crate::limits;

const BITS: usize = u64::BITS as usize;
const WORDS: usize = (limits::HOST_ENTRIES as usize).div_ceil(BITS);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Entries {
    used: [u64; WORDS],
}

impl Entries {
    /// Takes the lowest free ones of the first `entries`; none if there are fewer.
    pub(super) fn take(&mut self, count: usize, entries: u16) -> Option<Vec<u16>> {
        let mut used = self.used;
        let mut taken = Vec::with_capacity(count);
        for (word, number) in used.iter_mut().zip(0..) {
            while taken.len() < count && *word != u64::MAX {
                let bit = word.trailing_ones();
                let entry = u16::try_from(number * BITS + bit as usize).ok()?;
                if entry >= entries {
                    return None;
                }
                *word |= 1 << bit;
                taken.push(entry);
            }
        }
        if taken.len() < count {
            return None;
        }
        self.used = used;
        Some(taken)
    }

    /// Notes that a lease has an entry.
    pub(super) fn insert(&mut self, entry: u16) {
        let (at, bit) = place(entry);
        if let Some(word) = self.used.get_mut(at) {
            *word |= bit;
        }
    }

    pub(super) fn remove(&mut self, entry: u16) {
        let (at, bit) = place(entry);
        if let Some(word) = self.used.get_mut(at) {
            *word &= !bit;
        }
    }
}

fn place(entry: u16) -> (usize, u64) {
    let entry = usize::from(entry);
    (entry / BITS, 1 << (entry % BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_entries_are_taken() {
        let mut entries = Entries::default();
        assert_eq!(entries.take(3, 512), Some(vec![0, 1, 2]));
        entries.remove(1);
        for entry in [2, 3, 512] {
            entries.insert(entry);
        }
        assert_eq!(entries.take(2, 512), Some(vec![1, 4]));
        assert_eq!(
            entries.take(60, 512).and_then(|it| it.last().copied()),
            Some(64)
        );
        // All or none.
        assert_eq!(entries.take(448, 512), None);
        assert_eq!(entries.take(2, 66), None);
        assert_eq!(entries.take(1, 66), Some(vec![65]));
        assert_eq!(entries.take(446, 512).map(|it| it.len()), Some(446));
        assert_eq!(entries.take(1, 512), None);
    }
}
