//! Tracks which bytes of device memory the host or a kernel has written.

use rustc_hash::FxHashMap;

const PAGE_BYTES: u64 = 4096;
const WORDS: usize = PAGE_BYTES as usize / 64;

/// A bit for each byte, by pages.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pages: FxHashMap<u64, Box<[u64; WORDS]>>,
}

impl Written {
    /// Calls `f` with each 64 bytes of the range: their page, their word in it, and the range's
    /// bits.
    fn words(start: u64, bytes: u64, mut f: impl FnMut(u64, usize, u64)) {
        let end = start.saturating_add(bytes);
        let mut at = start;
        while at < end {
            let next = (at / 64 + 1).saturating_mul(64).min(end);
            let bits = u64::MAX >> (64 - (next - at)) << (at % 64);
            f(at / PAGE_BYTES, (at % PAGE_BYTES / 64) as usize, bits);
            at = next;
        }
    }

    pub(crate) fn set(&mut self, start: u64, bytes: u64) {
        Self::words(start, bytes, |page, word, bits| {
            self.pages
                .entry(page)
                .or_insert_with(|| Box::new([0; WORDS]))[word] |= bits;
        });
    }

    pub(crate) fn clear(&mut self, start: u64, bytes: u64) {
        Self::words(start, bytes, |page, word, bits| {
            if let Some(page) = self.pages.get_mut(&page) {
                page[word] &= !bits;
            }
        });
    }

    pub(crate) fn holds(&self, start: u64, bytes: u64) -> bool {
        let mut all = true;
        Self::words(start, bytes, |page, word, bits| {
            let known = self.pages.get(&page).map_or(0, |page| page[word]);
            all &= known & bits == bits;
        });
        all
    }

    /// Copies the state of bytes: a copy of bytes never written counts as never written.
    pub(crate) fn copy(&mut self, to: u64, from: u64, bytes: u64) {
        let known: Vec<bool> = (0..bytes).map(|i| self.holds(from + i, 1)).collect();
        for (i, known) in (to..).zip(known) {
            if known {
                self.set(i, 1);
            } else {
                self.clear(i, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Written;

    #[test]
    fn bytes_are_told_apart_across_words_and_pages() {
        let mut written = Written::default();
        written.set(4090, 70);
        assert!(written.holds(4090, 70) && written.holds(4100, 1));
        assert!(!written.holds(4089, 2) && !written.holds(4159, 2));
        written.copy(10_000, 4089, 3);
        assert!(!written.holds(10_000, 1) && written.holds(10_001, 2));
        written.clear(4100, 1);
        assert!(!written.holds(4090, 70) && written.holds(4101, 59));
    }
}
