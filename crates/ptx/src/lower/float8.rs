//! `cvt` with a pair of 8-bit floats on one side (PTX ISA 9.7.9.21).

use super::function::Lowering;
use super::insn::Insn;
use crate::code::{Cvt, CvtType, Float8, Op, Rounding, Row};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

/// The types as modifiers name them.
pub(super) const NAMES: [&str; 2] = ["e4m3x2", "e5m2x2"];

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn cvt_float8(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        // The destination's type is written first.
        let types: Vec<&str> = insn.mods.all().iter().copied().filter(is_type).collect();
        let format = match insn.mods.take_any(&NAMES) {
            Some("e4m3x2") => Float8::E4M3,
            _ => Float8::E5M2,
        };
        let packs = types.first().is_some_and(|first| NAMES.contains(first));
        let other = self.need_type(insn)?;
        let (nearest, finite, relu) = (
            insn.mods.rounding() == Some(Rounding::Nearest),
            insn.mods.take("satfinite"),
            insn.mods.take("relu"),
        );
        if !nearest || finite != packs {
            return Err(self.unsupported("this form"));
        }
        match (packs, other) {
            (true, Type::F32) => {
                self.arity(insn, &[3])?;
                let a = self.src32(&insn.ops[1], other)?;
                let b = self.src32(&insn.ops[2], other)?;
                self.pack_float8(format, relu, &insn.ops[0], [a, b])
            }
            (true, Type::F16x2) => {
                self.arity(insn, &[2])?;
                let pair = self.src32(&insn.ops[1], other)?;
                let halves = self.singles(pair)?;
                self.pack_float8(format, relu, &insn.ops[0], halves)
            }
            (false, Type::F16x2) => {
                self.arity(insn, &[2])?;
                let a = self.src32(&insn.ops[1], Type::B16)?;
                let d = self.dst(&insn.ops[0], other)?;
                self.emit(Op::UnpackFloat8 { format, relu, d, a })
            }
            _ => Err(self.unsupported("this pair of types")),
        }
    }

    fn pack_float8(
        &mut self,
        format: Float8,
        relu: bool,
        to: &Operand<'a>,
        [a, b]: [Row; 2],
    ) -> Result<(), Error> {
        let d = self.dst(to, Type::B16)?;
        self.emit(Op::PackFloat8 {
            format,
            relu,
            d,
            a,
            b,
        })
    }

    /// Splits a pair of f16 into singles: high half, low half.
    fn singles(&mut self, pair: Row) -> Result<[Row; 2], Error> {
        let [high, low] = [self.temp32()?, self.temp32()?];
        let (shift, ones) = (self.const32(16), self.const32(0xffff));
        self.emit(Op::Bin32 {
            op: crate::code::Bin32::ShrU,
            d: high,
            a: pair,
            b: shift,
        })?;
        self.emit(Op::Bin32 {
            op: crate::code::Bin32::And,
            d: low,
            a: pair,
            b: ones,
        })?;
        for row in [high, low] {
            let cvt = Cvt {
                from: CvtType::F16,
                to: CvtType::F32,
                rounding: Rounding::Nearest,
                integral: false,
                ftz: false,
                sat: false,
                relu: false,
            };
            self.emit(Op::Cvt {
                cvt,
                d: row,
                a: row,
            })?;
        }
        Ok([high, low])
    }
}

fn is_type(part: &&str) -> bool {
    NAMES.contains(part) || Type::from_name(part).is_some()
}
