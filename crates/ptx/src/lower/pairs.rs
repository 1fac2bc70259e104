//! Arithmetic on two 16-bit integers in a register: `add`, `min` and `max` of `.s16x2` and `.u16x2`
//! (PTX ISA 8.0, sm_90), and `.relu`, which makes negative results zero.

use super::function::Lowering;
use super::insn::Insn;
use crate::code::{Bin32, BitField, Op, Row, SINK, Video, VideoInstruction, VideoOp, VideoThen};
use crate::error::Error;
use crate::parse::ast::Type;

pub(super) const TYPES: [&str; 2] = ["s16x2", "u16x2"];

impl<'a> Lowering<'_, '_, 'a> {
    /// Lowers an instruction of one of [`TYPES`]; returns false if it has another type.
    pub(super) fn pairs(&mut self, insn: &mut Insn<'_, 'a>) -> Result<bool, Error> {
        let Some(ty) = insn.mods.take_any(&TYPES) else {
            return Ok(false);
        };
        let signed = ty == "s16x2";
        let op = match insn.name {
            "add" => VideoOp::Add,
            "min" => VideoOp::Min,
            "max" => VideoOp::Max,
            _ => return Err(self.unsupported("this type")),
        };
        let relu = signed && op != VideoOp::Add && insn.mods.take("relu");
        self.arity(insn, &[3])?;
        let a = self.src(&insn.ops[1], Type::B32)?;
        let b = self.src(&insn.ops[2], Type::B32)?;
        let d = self.dst(&insn.ops[0], Type::B32)?;
        self.pair(op, signed, [d, a, b])?;
        if relu {
            let zero = self.const32(0);
            self.pair(VideoOp::Max, true, [d, d, zero])?;
        }
        Ok(true)
    }

    fn pair(&mut self, op: VideoOp, signed: bool, [d, a, b]: [Row; 3]) -> Result<(), Error> {
        let half = |first| BitField { first, bits: 16 };
        let parts = |first| [half(first), half(first + 16), half(first), half(first + 16)];
        let videos = &mut self.context.program.videos;
        let index = videos.len() as u32;
        videos.push(VideoInstruction::Plain(Video {
            op,
            results: 2,
            signed: [signed; 3],
            saturate: false,
            then: VideoThen::Merge,
            a_parts: parts(0),
            b_parts: parts(32),
            d_parts: [Some(half(0)), Some(half(16)), None, None],
            d,
            a,
            b,
            c: SINK,
        }));
        self.emit(Op::Video { index })
    }

    /// Makes a negative result of 32 bits zero.
    pub(super) fn relu(&mut self, d: Row) -> Result<(), Error> {
        let b = self.const32(0);
        self.emit(Op::Bin32 {
            op: Bin32::MaxS,
            d,
            a: d,
            b,
        })
    }
}
