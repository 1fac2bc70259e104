//! Video instructions (PTX ISA 9.7.16): arithmetic on bytes and halves of registers.

use super::{Cmp, Row};

/// The operation between the selected parts of a and b.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VideoOp {
    Add,
    Sub,
    AbsDiff,
    Min,
    Max,
    /// Rounded away from zero from one half up.
    Average,
    /// Shift counts are clamped to 32, or wrap.
    Shl {
        wrap: bool,
    },
    Shr {
        wrap: bool,
    },
    Set(Cmp),
}

/// What happens to results besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VideoThen {
    /// Nothing, or parts that are not written keep those of c.
    Merge,
    Add,
    Min,
    Max,
}

/// A part of a register: its first bit and its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub first: u8,
    pub bits: u8,
}

impl Part {
    pub const WORD: Part = Part { first: 0, bits: 32 };
}

/// A video instruction but `vmad`.
#[derive(Debug, Clone, Copy)]
pub struct Video {
    pub op: VideoOp,
    /// Results: one, two halves or four bytes.
    pub lanes: u8,
    /// Signedness of the result, a and b.
    pub signed: [bool; 3],
    pub saturate: bool,
    pub then: VideoThen,
    /// By result: the part of `b:a`, as 64 bits, that is each operand.
    pub a_parts: [Part; 4],
    pub b_parts: [Part; 4],
    /// By result: where it goes, none for those that keep what c has there.
    pub d_parts: [Option<Part>; 4],
    pub d: Row,
    pub a: Row,
    pub b: Row,
    pub c: Row,
}

/// `vmad`: parts multiplied, added, scaled.
#[derive(Debug, Clone, Copy)]
pub struct VideoMad {
    pub signed: [bool; 2],
    pub saturate: bool,
    /// `.po`: one more.
    pub plus_one: bool,
    pub negate_product: bool,
    pub negate_c: bool,
    pub shift: u8,
    pub a_part: Part,
    pub b_part: Part,
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
