//! The sum that protects headers of IP, TCP, UDP and ICMP.

/// A sum of 16-bit words in ones' complement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum(u64);

impl Sum {
    /// Sums bytes, an odd last one as if a zero followed.
    pub(super) fn of(bytes: &[u8]) -> Sum {
        let words = bytes.chunks(2).map(|pair| {
            let last = pair.get(1).copied().unwrap_or_default();
            u64::from(u16::from_be_bytes([pair[0], last]))
        });
        Sum(words.sum())
    }

    pub(super) fn and(self, other: Sum) -> Sum {
        Sum(self.0 + other.0)
    }

    pub(super) fn and_word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(word))
    }

    /// Difference that replacing `old` by `new` of the same length makes.
    pub(super) fn change(old: &[u8], new: &[u8]) -> Sum {
        let words = old.len().div_ceil(2) as u64;
        Sum(words * 0xffff - Sum::of(old).0 + Sum::of(new).0)
    }

    /// The sum of a length in 32 bits.
    pub(super) fn length(bytes: usize) -> Sum {
        Sum(bytes as u64)
    }

    pub(super) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }
}
