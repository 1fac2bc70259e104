//! The free addresses of the window.

use std::collections::BTreeMap;

/// Free ranges of addresses, coalesced. Freed addresses are reused last, so that a stale pointer
/// stays invalid for as long as there is room.
pub(super) struct Ranges {
    free: BTreeMap<u64, u64>,
    cursor: u64,
}

impl Ranges {
    pub(super) fn new(base: u64, bytes: u64) -> Ranges {
        Ranges {
            free: BTreeMap::from([(base, bytes)]),
            cursor: base,
        }
    }

    pub(super) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let fits = |(&start, &len): (&u64, &u64)| {
            let base = start.checked_next_multiple_of(align)?;
            (base - start < len && len - (base - start) >= bytes).then_some(base)
        };
        // The rest of the range that contains the cursor comes first.
        let rest = self
            .free
            .range(..self.cursor)
            .next_back()
            .and_then(|(&start, &len)| {
                let left = (start + len)
                    .checked_sub(self.cursor)
                    .filter(|left| *left > 0)?;
                fits((&self.cursor, &left))
            });
        let base = rest
            .or_else(|| self.free.range(self.cursor..).find_map(fits))
            .or_else(|| self.free.iter().find_map(fits))?;
        let base = self.take_at(base, bytes)?;
        self.cursor = base + bytes;
        Some(base)
    }

    pub(super) fn take_at(&mut self, base: u64, bytes: u64) -> Option<u64> {
        let (&start, &len) = self.free.range(..=base).next_back()?;
        let end = start + len;
        if base.checked_add(bytes)? > end {
            return None;
        }
        self.free.remove(&start);
        if base > start {
            self.free.insert(start, base - start);
        }
        if base + bytes < end {
            self.free.insert(base + bytes, end - base - bytes);
        }
        Some(base)
    }

    pub(super) fn give(&mut self, mut base: u64, mut bytes: u64) {
        if let Some((&before, &len)) = self.free.range(..base).next_back()
            && before + len == base
        {
            self.free.remove(&before);
            (base, bytes) = (before, len + bytes);
        }
        if let Some(len) = self.free.remove(&(base + bytes)) {
            bytes += len;
        }
        self.free.insert(base, bytes);
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_coalesce() {
        let mut r = Ranges::new(0, 100);
        assert_eq!(
            (r.take(30, 1), r.take(30, 1), r.take(40, 1), r.take(1, 1)),
            (Some(0), Some(30), Some(60), None)
        );
        r.give(0, 30);
        r.give(60, 40);
        r.give(30, 30);
        assert_eq!(r.free, BTreeMap::from([(0, 100)]));
    }
}
