//! Geometry of copies of two and three dimensions: the extent, the layout of the ends in memory,
//! and the pieces that travel.

use outboard_wire::doc::BoxEnd;

use crate::session::Rows;

/// Size of a copy: bytes in a row, rows in a slice, slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) width: u64,
    pub(super) height: u64,
    pub(super) depth: u64,
}

/// Part of an extent: its first byte, row and slice, and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) at: [u64; 3],
    pub(super) extent: Extent,
}

/// One end of a copy, with its origin applied.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Memory(Memory),
    Array { array: u64, at: [u64; 3] },
}

/// Rows in memory. `address` is the first byte copied, rows are `pitch` bytes apart, a slice has
/// `slice_rows` rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memory {
    pub(super) address: u64,
    pub(super) pitch: u64,
    pub(super) slice_rows: u64,
    /// The caller declared this as device memory.
    pub(super) must_be_device: bool,
}

impl Memory {
    pub(super) fn offset(&self, [x, y, z]: [u64; 3]) -> u64 {
        (z * self.slice_rows + y) * self.pitch + x
    }

    /// Returns the bytes from the first one copied to the last.
    pub(super) fn span(&self, extent: Extent) -> Option<u64> {
        let slices = (extent.depth - 1)
            .checked_mul(self.slice_rows)?
            .checked_mul(self.pitch)?;
        slices
            .checked_add((extent.height - 1).checked_mul(self.pitch)?)?
            .checked_add(extent.width)
    }

    pub(super) fn is_contiguous(&self, extent: Extent) -> bool {
        let (plane, rows) = (
            self.slice_rows.checked_mul(self.pitch),
            extent.width.checked_mul(extent.height),
        );
        (extent.height == 1 || self.pitch == extent.width) && (extent.depth == 1 || plane == rows)
    }

    /// Returns the layout in memory of a piece's rows.
    pub(super) fn rows(&self, extent: Extent) -> Rows {
        Rows {
            width: extent.width as usize,
            height: extent.height as usize,
            depth: extent.depth as usize,
            pitch: self.pitch as usize,
            slice_pitch: (self.pitch * self.slice_rows) as usize,
        }
    }
}

impl End {
    /// Returns the end of the part of a copy that begins at this byte, row and slice.
    pub(super) fn part(&self, at: [u64; 3]) -> End {
        match *self {
            End::Memory(memory) => End::Memory(Memory {
                address: memory.address + memory.offset(at),
                ..memory
            }),
            End::Array { array, at: first } => End::Array {
                array,
                at: std::array::from_fn(|i| first[i] + at[i]),
            },
        }
    }

    /// Returns this end of a piece in the form of messages.
    pub(super) fn wire(&self, piece: Piece) -> (BoxEnd, [u64; 3]) {
        match self {
            End::Memory(m) => {
                let end = BoxEnd::Pitched {
                    address: m.address + m.offset(piece.at),
                    pitch_bytes: m.pitch,
                    height: m.slice_rows,
                };
                (end, [0; 3])
            }
            End::Array { array, at } => (
                BoxEnd::Array { array: *array },
                std::array::from_fn(|i| at[i] + piece.at[i]),
            ),
        }
    }
}

impl Extent {
    /// Returns whether this is one row.
    pub(super) fn is_line(&self) -> bool {
        self.height == 1 && self.depth == 1
    }

    pub(super) fn bytes(&self) -> u64 {
        self.width * self.height * self.depth
    }

    pub(super) fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// Divides an extent into pieces of at most `bytes_max` bytes: whole slices if they fit, rows,
    /// or parts of a row.
    pub(super) fn pieces(self, bytes_max: u64) -> Vec<Piece> {
        let width = self.width.min(bytes_max);
        let rows = if width < self.width {
            1
        } else {
            bytes_max / width
        };
        let height = rows.min(self.height);
        let depth = if height < self.height {
            1
        } else {
            (rows / height).min(self.depth)
        };
        let steps = |whole: u64, part: u64| {
            (0..whole.div_ceil(part)).map(move |i| (i * part, part.min(whole - i * part)))
        };
        let mut pieces = Vec::new();
        for (z, depth) in steps(self.depth, depth) {
            for (y, height) in steps(self.height, height) {
                for (x, width) in steps(self.width, width) {
                    pieces.push(Piece {
                        at: [x, y, z],
                        extent: Extent {
                            width,
                            height,
                            depth,
                        },
                    });
                }
            }
        }
        pieces
    }
}

impl Memory {
    pub(super) fn new(
        address: u64,
        [x, y, z]: [u64; 3],
        pitch: u64,
        slice_rows: u64,
        must_be_device: bool,
        extent: Extent,
    ) -> Option<Memory> {
        if address == 0 {
            return None;
        }
        let row_end = x.checked_add(extent.width)?;
        let slice_end = y.checked_add(extent.height)?;
        // A single row needs no pitch, a single slice no height. Without an offset, a pitch or a
        // height of 0 stands for rows or slices without gaps (recorded on an H200).
        let one_slice = z == 0 && extent.depth == 1;
        let pitch = match pitch {
            0 if x == 0 || slice_end == 1 && one_slice => row_end,
            pitch => pitch,
        };
        let slice_rows = match slice_rows {
            0 if y == 0 => slice_end,
            rows if one_slice => rows.max(slice_end),
            rows => rows,
        };
        if row_end > pitch || slice_end > slice_rows {
            return None;
        }
        let offset = z
            .checked_mul(slice_rows)?
            .checked_add(y)?
            .checked_mul(pitch)?
            .checked_add(x)?;
        let memory = Memory {
            address: address.checked_add(offset)?,
            pitch,
            slice_rows,
            must_be_device,
        };
        memory.address.checked_add(memory.span(extent)?)?;
        Some(memory)
    }
}

/// Appends rows, without the gaps between them.
///
/// # Safety
/// The rows must be readable memory.
pub(super) unsafe fn pack(address: u64, rows: Rows, out: &mut Vec<u8>) {
    out.reserve(rows.width * rows.height * rows.depth);
    for z in 0..rows.depth {
        for y in 0..rows.height {
            let row = address as usize + z * rows.slice_pitch + y * rows.pitch;
            out.reserve(rows.width);
            let len = out.len();
            // SAFETY: a row of the memory that this function's contract names, to room that is
            // reserved for it. The server may have the memory mapped and write to it, so no
            // reference leads into it.
            unsafe {
                let room = out.as_mut_ptr().add(len);
                std::ptr::copy_nonoverlapping(row as *const u8, room, rows.width);
                out.set_len(len + rows.width);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(width: u64, height: u64, depth: u64) -> Extent {
        Extent {
            width,
            height,
            depth,
        }
    }

    /// Checks that every byte of the extent is in exactly one piece, and that no piece is too long.
    fn check_pieces(whole: Extent, bytes_max: u64) -> usize {
        let mut seen = vec![0u8; whole.bytes() as usize];
        let pieces = whole.pieces(bytes_max);
        for piece in &pieces {
            assert!(
                piece.extent.bytes() <= bytes_max && piece.extent.bytes() > 0,
                "{piece:?}"
            );
            for z in 0..piece.extent.depth {
                for y in 0..piece.extent.height {
                    for x in 0..piece.extent.width {
                        let [x, y, z] = [piece.at[0] + x, piece.at[1] + y, piece.at[2] + z];
                        seen[((z * whole.height + y) * whole.width + x) as usize] += 1;
                    }
                }
            }
        }
        assert!(
            seen.iter().all(|n| *n == 1),
            "{whole:?} in pieces of {bytes_max}"
        );
        pieces.len()
    }

    #[test]
    fn pieces_cover_a_box_once() {
        assert_eq!(check_pieces(extent(10, 7, 5), 1000), 1);
        assert_eq!(check_pieces(extent(10, 7, 5), 140), 3);
        assert_eq!(check_pieces(extent(10, 7, 5), 70), 5);
        assert_eq!(check_pieces(extent(10, 7, 5), 30), 15);
        assert_eq!(check_pieces(extent(10, 7, 5), 9), 70);
        assert_eq!(check_pieces(extent(1, 1, 1), 1), 1);
        assert_eq!(check_pieces(extent(3, 1, 9), 7), 5);
    }

    #[test]
    fn rows_are_packed_without_gaps_and_land_where_they_were() {
        let (pitch, slice_rows) = (8u64, 4u64);
        let memory: Vec<u8> = (0..pitch * slice_rows * 3).map(|i| i as u8).collect();
        let whole = extent(3, 2, 2);
        let m = Memory::new(
            memory.as_ptr() as u64,
            [2, 1, 1],
            pitch,
            slice_rows,
            false,
            whole,
        )
        .expect("inside");
        let mut packed = Vec::new();
        // SAFETY: inside `memory`.
        unsafe { pack(m.address, m.rows(whole), &mut packed) };
        assert_eq!(packed, [42, 43, 44, 50, 51, 52, 74, 75, 76, 82, 83, 84]);
        assert_eq!(m.span(whole), Some(32 + 8 + 3));
        assert_eq!(m.offset([1, 1, 1]), 41);
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        let new = |at, pitch, rows, e| Memory::new(0x1000, at, pitch, rows, false, e);
        assert!(
            new([0; 3], 15, 4, extent(16, 4, 1)).is_none(),
            "pitch below the width"
        );
        assert!(
            new([4, 0, 0], 16, 4, extent(16, 4, 1)).is_none(),
            "pitch below x and the width"
        );
        assert!(
            new([0; 3], 16, 3, extent(16, 4, 2)).is_none(),
            "slices that overlap"
        );
        assert!(
            new([0; 3], 16, 0, extent(16, 4, 1)).is_some(),
            "one slice needs no height"
        );
        assert!(
            new([0; 3], 0, 0, extent(16, 1, 1)).is_some(),
            "one row needs no pitch"
        );
        assert!(
            new([0; 3], 0, 0, extent(16, 2, 2)).is_some(),
            "rows and slices without gaps"
        );
        assert!(new([1, 0, 0], 0, 0, extent(16, 2, 1)).is_none());
        assert!(new([0, 1, 0], 16, 0, extent(16, 2, 2)).is_none());
        assert!(
            new([0, 0, u64::MAX], 16, 4, extent(16, 4, 2)).is_none(),
            "past the end of all memory"
        );
        assert!(
            Memory::new(0, [0; 3], 16, 4, false, extent(16, 4, 1)).is_none(),
            "NULL"
        );
    }

    #[test]
    fn contiguous_memory_is_noticed() {
        let memory = |pitch, slice_rows| Memory {
            address: 0x1000,
            pitch,
            slice_rows,
            must_be_device: false,
        };
        assert!(memory(16, 4).is_contiguous(extent(16, 4, 3)));
        assert!(memory(16, 9).is_contiguous(extent(16, 4, 1)));
        assert!(memory(99, 9).is_contiguous(extent(16, 1, 1)));
        assert!(memory(16, 1).is_contiguous(extent(16, 1, 5)));
        assert!(!memory(16, 2).is_contiguous(extent(16, 1, 5)));
        assert!(!memory(99, 1).is_contiguous(extent(16, 1, 5)));
        assert!(!memory(16, 5).is_contiguous(extent(16, 4, 2)));
        assert!(!memory(32, 4).is_contiguous(extent(16, 4, 1)));
    }
}
