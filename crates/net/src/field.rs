//! Fields of commands to the firmware of mlx5 adapters: by the bit at which they begin, as Nvidia's
//! programmer's reference numbers them. Bit 0 is the highest of the first byte.

/// A field of a command or of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    at: usize,
    bits: usize,
}

impl Field {
    #[must_use]
    pub const fn new(at: usize, bits: usize) -> Field {
        Field { at, bits }
    }

    /// Reads the field; 0 if the text is shorter.
    #[must_use]
    pub fn of(self, text: &[u8]) -> u64 {
        (self.at..self.at + self.bits).fold(0, |value, bit| {
            let byte = text.get(bit / 8).copied().unwrap_or(0);
            value << 1 | u64::from(byte >> (7 - bit % 8) & 1)
        })
    }

    /// Writes the field, as far as the text has room.
    pub fn set(self, text: &mut [u8], value: u64) {
        for (place, bit) in (self.at..self.at + self.bits).enumerate() {
            if let Some(byte) = text.get_mut(bit / 8) {
                let mask = 1 << (7 - bit % 8);
                let is_set = value >> (self.bits - 1 - place) & 1 != 0;
                *byte = if is_set { *byte | mask } else { *byte & !mask };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_as_it_was_written_and_its_neighbours_stay() {
        for (at, bits) in [(0, 0x10), (0x48, 0x18), (0x89, 3), (0x40, 0x40), (0x51, 4)] {
            let mut bytes = [0xa5; 32];
            Field::new(at, bits).set(&mut bytes, 0);
            let cleared = bytes;
            let value = 0x0123_4567_89ab_cdef & (u64::MAX >> (64 - bits));
            Field::new(at, bits).set(&mut bytes, value);
            assert_eq!(Field::new(at, bits).of(&bytes), value);
            Field::new(at, bits).set(&mut bytes, 0);
            assert_eq!(bytes, cleared);
        }
        assert_eq!(Field::new(0x800, 0x40).of(&[1; 8]), 0);
    }
}
