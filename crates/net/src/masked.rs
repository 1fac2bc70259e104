//! Changes of words by atomics with masks, of 4 or 8 bytes (mlx5's extended atomics).

use crate::syndrome::Syndrome;

/// Sizes of the words, by the modifier of the operation in the control segment.
const WORDS: [(u8, u64); 2] = [(0x08, 4), (0x09, 8)];
const SEGMENT_BYTES: usize = 16;

/// The change of a word. Of a word of 4 bytes the lower half is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds to each field of the word; a bit of `boundary` is the highest of its field.
    Add { add: u64, boundary: u64 },
    /// Changes bits if others compare equal.
    Swap {
        compare: u64,
        swap: u64,
        compare_mask: u64,
        swap_mask: u64,
    },
}

impl Change {
    /// Returns the new word; `None` if it stays.
    #[must_use]
    pub fn of(&self, old: u64) -> Option<u64> {
        match *self {
            Change::Add { add, boundary } => {
                // No bit is carried out of a field: its highest bit is added alone.
                let below = (old & !boundary).wrapping_add(add & !boundary);
                Some(below ^ ((old ^ add) & boundary))
            }
            Change::Swap {
                compare,
                swap,
                compare_mask,
                swap_mask,
            } => {
                let is_equal = (old ^ compare) & compare_mask == 0;
                is_equal.then_some((old & !swap_mask) | (swap & swap_mask))
            }
        }
    }

    /// Operands in the order of an entry.
    pub(crate) fn operands(&self) -> [u64; 4] {
        match *self {
            Change::Add { add, boundary } => [add, boundary, 0, 0],
            Change::Swap {
                compare,
                swap,
                compare_mask,
                swap_mask,
            } => [swap, compare, swap_mask, compare_mask],
        }
    }

    /// The change that has these operands.
    pub(crate) fn with(is_add: bool, [first, second, third, fourth]: [u64; 4]) -> Change {
        match is_add {
            true => Change::Add {
                add: first,
                boundary: second,
            },
            false => Change::Swap {
                swap: first,
                compare: second,
                swap_mask: third,
                compare_mask: fourth,
            },
        }
    }

    /// Writes the operands of a word: to swap 8 bytes takes two segments.
    pub(crate) fn encode(&self, bytes: u64, to: &mut Vec<u8>) {
        let operands = self.operands();
        let count = match self {
            Change::Add { .. } => 2,
            Change::Swap { .. } => 4,
        };
        let from = to.len();
        for one in &operands[..count] {
            match bytes {
                4 => to.extend_from_slice(&(*one as u32).to_be_bytes()),
                _ => to.extend_from_slice(&one.to_be_bytes()),
            }
        }
        let whole = (to.len() - from).next_multiple_of(SEGMENT_BYTES);
        to.resize(from + whole, 0);
    }
}

/// Returns the modifier of operations on words of a size.
pub(crate) fn modifier(bytes: u64) -> u8 {
    let known = WORDS.iter().find(|(_, of)| *of == bytes);
    known.map_or(0, |(modifier, _)| *modifier)
}

/// Returns the size of the words that a modifier means.
pub(crate) fn word_bytes(modifier: u8) -> Result<u64, Syndrome> {
    let known = WORDS.iter().find(|(known, _)| *known == modifier);
    known.map_or(Err(Syndrome::LOCAL_OPERATION), |(_, bytes)| Ok(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_added_apart_and_bits_are_swapped_if_others_are_equal() {
        let add = |add, boundary| Change::Add { add, boundary };
        assert_eq!(add(3, 0).of(u64::MAX), Some(2));
        assert_eq!(add(0x00ff, u64::MAX).of(0x0f0f), Some(0x0ff0));
        assert_eq!(add(0x0101, 0x8080).of(0x00ff), Some(0x0100));
        let swap = |compare, compare_mask| Change::Swap {
            compare,
            swap: 0x1234,
            compare_mask,
            swap_mask: 0x0ff0,
        };
        assert_eq!(swap(0, 0).of(0xaaaa), Some(0xa23a));
        assert_eq!(swap(0x00a0, 0x00f0).of(0xaaaa), Some(0xa23a));
        assert_eq!(swap(0x00b0, 0x00f0).of(0xaaaa), None);
    }
}
