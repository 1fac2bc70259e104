//! Video instructions (PTX ISA 9.7.16): arithmetic on bytes and halves of registers.

use super::{Cmp, Row};

/// The operation on the selected parts of a and b.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VideoOp {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    /// The mean, with halves rounded away from zero.
    Average,
    /// Shifts. Counts are clamped to 32, or wrap.
    Shl {
        wrap: bool,
    },
    Shr {
        wrap: bool,
    },
    Set(Cmp),
}

/// A second operation on the results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VideoThen {
    /// None; parts not written keep those of c.
    Merge,
    Add,
    Min,
    Max,
}

/// A part of a register: its first bit and its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitField {
    pub first: u8,
    pub bits: u8,
}

impl BitField {
    pub const WORD: BitField = BitField { first: 0, bits: 32 };
}

/// A video instruction other than `vmad`.
#[derive(Debug, Clone, Copy)]
pub struct Video {
    pub op: VideoOp,
    /// Number of results: one, two halves or four bytes.
    pub results: u8,
    /// Signedness of the result, a and b.
    pub signed: [bool; 3],
    pub saturate: bool,
    pub then: VideoThen,
    /// For each result, the part of `b:a` (64 bits) that is each operand.
    pub a_parts: [BitField; 4],
    pub b_parts: [BitField; 4],
    /// For each result, its part of d; `None` for parts that keep the value of c.
    pub d_parts: [Option<BitField>; 4],
    pub d: Row,
    pub a: Row,
    pub b: Row,
    pub c: Row,
}

/// `vmad`: multiplies parts, adds, and scales.
#[derive(Debug, Clone, Copy)]
pub struct VideoMad {
    pub signed: [bool; 2],
    pub saturate: bool,
    /// `.po`: adds one more.
    pub plus_one: bool,
    pub negate_product: bool,
    pub negate_c: bool,
    pub shift: u8,
    pub a_part: BitField,
    pub b_part: BitField,
    pub d: Row,
    pub a: Row,
    pub b: Row,
    pub c: Row,
}

#[derive(Debug, Clone, Copy)]
pub enum VideoInstruction {
    Plain(Video),
    Mad(VideoMad),
}
