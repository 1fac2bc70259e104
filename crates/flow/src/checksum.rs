//! The sum that protects headers of IP, TCP and UDP.

/// The Internet checksum: a sum of 16-bit words with the carries added again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Checksum(pub(crate) u64);

impl Checksum {
    /// Sums bytes, an odd last one as if a zero followed.
    pub(crate) fn of(bytes: &[u8]) -> Checksum {
        Checksum(0).and_bytes(bytes)
    }

    pub(crate) fn and(self, word: u16) -> Checksum {
        Checksum(self.0 + u64::from(word))
    }

    pub(crate) fn and_bytes(self, bytes: &[u8]) -> Checksum {
        let words = bytes.chunks(2).map(|pair| {
            u64::from(u16::from_be_bytes([
                pair[0],
                pair.get(1).copied().unwrap_or_default(),
            ]))
        });
        Checksum(self.0 + words.sum::<u64>())
    }

    /// Returns the checksum for a header's field.
    pub(crate) fn finish(self) -> [u8; 2] {
        (!self.folded()).to_be_bytes()
    }

    #[inline]
    pub(crate) fn folded(self) -> u16 {
        // Twice suffices for the words of 64 KiB, whose sum has at most 31 bits.
        let sum = (self.0 & 0xffff) + (self.0 >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }
}
