//! Comparison and selection (PTX ISA 9.7.6, 9.7.7).

use super::bits::bool_lut;
use super::function::Lowering;
use super::insn::Insn;
use crate::code::{
    Bin32, BinF32, Cmp, CmpType, FloatFlags, Guard, Op, Pred, Row, SINK_PRED, Tern32, Test,
};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

/// A boolean operand: its predicate, and whether it is negated.
type Bool = (Pred, bool);

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn compare(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        match insn.name {
            "setp" => self.setp(insn),
            "set" => self.set(insn),
            "selp" => self.selp(insn),
            "slct" => self.slct(insn),
            _ => self.testp(insn),
        }
    }

    fn cmp(&self, insn: &mut Insn<'_, 'a>) -> Result<(Cmp, Option<&'a str>), Error> {
        let cmp = insn.mods.take_map(|part| {
            Some(match part {
                "eq" => Cmp::Eq,
                "ne" => Cmp::Ne,
                "lt" | "lo" => Cmp::Lt,
                "le" | "ls" => Cmp::Le,
                "gt" | "hi" => Cmp::Gt,
                "ge" | "hs" => Cmp::Ge,
                "equ" => Cmp::EqU,
                "neu" => Cmp::NeU,
                "ltu" => Cmp::LtU,
                "leu" => Cmp::LeU,
                "gtu" => Cmp::GtU,
                "geu" => Cmp::GeU,
                "num" => Cmp::Num,
                "nan" => Cmp::Nan,
                _ => return None,
            })
        });
        let Some(cmp) = cmp else {
            return Err(self.unsupported("no comparison"));
        };
        Ok((cmp, insn.mods.take_any(&["and", "or", "xor"])))
    }

    /// Compares `a` and `b` as values of the type, into predicate `d`.
    fn compare_rows(
        &mut self,
        cmp: Cmp,
        ty: Type,
        ftz: bool,
        d: Pred,
        a: Row,
        b: Row,
    ) -> Result<(), Error> {
        let unordered = !matches!(
            cmp,
            Cmp::Eq | Cmp::Ne | Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge
        );
        if unordered && !ty.is_float() {
            return Err(self.unsupported("an unordered comparison of integers"));
        }
        let (a, b) = self.flushed_if(ftz, ty, a, b)?;
        let (kind, a, b) = match ty {
            Type::U16 | Type::B16 | Type::U32 | Type::B32 => (CmpType::U32, a, b),
            Type::S16 => (CmpType::S32, self.extended(a, ty)?, self.extended(b, ty)?),
            Type::S32 => (CmpType::S32, a, b),
            Type::U64 | Type::B64 => (CmpType::U64, a, b),
            Type::S64 => (CmpType::S64, a, b),
            Type::F16 => (CmpType::F16, a, b),
            Type::Bf16 => (CmpType::Bf16, a, b),
            Type::F32 => (CmpType::F32, a, b),
            Type::F64 => (CmpType::F64, a, b),
            _ => return Err(self.unsupported("this type")),
        };
        self.emit(Op::Setp {
            ty: kind,
            cmp,
            ftz,
            d,
            a,
            b,
        })
    }

    fn setp(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let (cmp, boolean) = self.cmp(insn)?;
        self.arity(insn, &[if boolean.is_some() { 4 } else { 3 }])?;
        let ftz = insn.mods.take("ftz");
        let ty = self.need_type(insn)?;
        let (p, q) = match insn.ops[0] {
            Operand::Pair(p, q) => (
                self.pred_dest(&Operand::Name(p))?,
                self.pred_dest(&Operand::Name(q))?,
            ),
            ref other => (self.pred_dest(other)?, SINK_PRED),
        };
        let (a, b) = (self.src(&insn.ops[1], ty)?, self.src(&insn.ops[2], ty)?);
        if matches!(ty, Type::F16x2 | Type::Bf16x2) {
            return self.setp_halves(insn, (cmp, boolean, ftz), ty, [p, q], [a, b]);
        }
        if boolean.is_none() && q == SINK_PRED {
            return self.compare_rows(cmp, ty, ftz, p, a, b);
        }
        let third = match boolean {
            Some(_) => Some(self.pred(&insn.ops[3])?),
            None => None,
        };
        let result = self.temp_pred()?;
        self.compare_rows(cmp, ty, ftz, result, a, b)?;
        // The first destination may be the guard itself, or the boolean operand.
        self.keep_guard()?;
        let third = match third {
            Some((pred, negated)) if pred == p => {
                let copy = self.temp_pred()?;
                self.emit(Op::PredOp {
                    lut: 0b1010,
                    d: copy,
                    a: pred,
                    b: pred,
                })?;
                Some((copy, negated))
            }
            other => other,
        };
        self.combine(p, (result, false), boolean, third)?;
        self.combine(q, (result, true), boolean, third)
    }

    /// Compares packed halves: p receives the lower result, q the upper one.
    fn setp_halves(
        &mut self,
        insn: &Insn<'_, 'a>,
        (cmp, boolean, ftz): (Cmp, Option<&str>, bool),
        ty: Type,
        [p, q]: [Pred; 2],
        [a, b]: [Row; 2],
    ) -> Result<(), Error> {
        let (a, b) = self.flushed_if(ftz, ty, a, b)?;
        let compared = |d, q| Op::SetpX2 {
            bf16: ty == Type::Bf16x2,
            cmp,
            ftz: false,
            d,
            q,
            a,
            b,
        };
        if boolean.is_none() {
            return self.emit(compared(p, q));
        }
        let third = self.pred(&insn.ops[3])?;
        let (low, high, copy) = (self.temp_pred()?, self.temp_pred()?, self.temp_pred()?);
        self.emit(compared(low, high))?;
        // The instruction must not change its own guard or operand.
        self.keep_guard()?;
        self.emit(Op::PredOp {
            lut: if third.1 { 0b0101 } else { 0b1010 },
            d: copy,
            a: third.0,
            b: third.0,
        })?;
        self.combine(p, (low, false), boolean, Some((copy, false)))?;
        self.combine(q, (high, false), boolean, Some((copy, false)))
    }

    /// Returns both operands, flushing subnormals of f16 if asked to.
    fn flushed_if(&mut self, ftz: bool, ty: Type, a: Row, b: Row) -> Result<(Row, Row), Error> {
        match ty {
            Type::F16 | Type::F16x2 if ftz => Ok((self.flushed(a)?, self.flushed(b)?)),
            Type::Bf16 | Type::Bf16x2 if ftz => Err(self.unsupported("`.ftz` with this type")),
            _ => Ok((a, b)),
        }
    }

    /// Copies the guard to a scratch predicate, so that the instruction's own results cannot change
    /// it.
    pub(super) fn keep_guard(&mut self) -> Result<(), Error> {
        if self.guard == Guard::ALWAYS {
            return Ok(());
        }
        let copy = self.temp_pred()?;
        let pred = self.guard.pred;
        self.emit_guarded(
            Guard::ALWAYS,
            Op::PredOp {
                lut: 0b1010,
                d: copy,
                a: pred,
                b: pred,
            },
        )?;
        self.guard.pred = copy;
        Ok(())
    }

    fn combine(
        &mut self,
        d: Pred,
        result: Bool,
        boolean: Option<&str>,
        third: Option<Bool>,
    ) -> Result<(), Error> {
        if d == SINK_PRED {
            return Ok(());
        }
        match (boolean, third) {
            (Some(op), Some((c, negated))) => self.emit(Op::PredOp {
                lut: bool_lut(op, result.1, negated),
                d,
                a: result.0,
                b: c,
            }),
            _ => self.emit(Op::PredOp {
                lut: if result.1 { 0b0101 } else { 0b1010 },
                d,
                a: result.0,
                b: result.0,
            }),
        }
    }

    fn set(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let (cmp, boolean) = self.cmp(insn)?;
        self.arity(insn, &[if boolean.is_some() { 4 } else { 3 }])?;
        let ftz = insn.mods.take("ftz");
        let (to, ty) = (self.need_type(insn)?, self.need_type(insn)?);
        let (a, b) = (self.src(&insn.ops[1], ty)?, self.src(&insn.ops[2], ty)?);
        let d = self.dst(&insn.ops[0], to)?;
        let one = match to {
            Type::U32 | Type::S32 => u32::MAX,
            Type::U16 | Type::S16 => 0xffff,
            Type::F32 => 1f32.to_bits(),
            Type::F16 | Type::F16x2 => 0x3c00,
            Type::Bf16 | Type::Bf16x2 => 0x3f80,
            _ => return Err(self.unsupported("this result type")),
        };
        let (one, zero) = (self.const32(one), self.const32(0));
        let result = self.temp_pred()?;
        if matches!(ty, Type::F16x2 | Type::Bf16x2) {
            if to.bytes() != 4 || to == Type::F32 {
                return Err(self.unsupported("this form with packed halves"));
            }
            let high = self.temp_pred()?;
            self.setp_halves(insn, (cmp, boolean, ftz), ty, [result, high], [a, b])?;
            let one = if to.is_float() {
                one
            } else {
                self.const32(0xffff)
            };
            let (lo, hi) = (self.temp32()?, self.temp32()?);
            self.emit(Op::Sel32 {
                d: lo,
                a: one,
                b: zero,
                p: result,
                negated: false,
            })?;
            self.emit(Op::Sel32 {
                d: hi,
                a: one,
                b: zero,
                p: high,
                negated: false,
            })?;
            return self.emit(Op::Bin32 {
                op: Bin32::Pack16,
                d,
                a: lo,
                b: hi,
            });
        }
        self.compare_rows(cmp, ty, ftz, result, a, b)?;
        if boolean.is_some() {
            let third = self.pred(&insn.ops[3])?;
            self.combine(result, (result, false), boolean, Some(third))?;
        }
        self.emit(Op::Sel32 {
            d,
            a: one,
            b: zero,
            p: result,
            negated: false,
        })
    }

    fn selp(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[4])?;
        let ty = self.need_type(insn)?;
        let (a, b) = (self.src(&insn.ops[1], ty)?, self.src(&insn.ops[2], ty)?);
        let (p, negated) = self.pred(&insn.ops[3])?;
        let d = self.dst(&insn.ops[0], ty)?;
        self.emit(match ty.bytes() {
            _ if ty == Type::Pred => return Err(self.unsupported("this type")),
            8 => Op::Sel64 {
                d,
                a,
                b,
                p,
                negated,
            },
            _ => Op::Sel32 {
                d,
                a,
                b,
                p,
                negated,
            },
        })
    }

    fn slct(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[4])?;
        let ftz = insn.mods.take("ftz");
        let (ty, by) = (self.need_type(insn)?, self.need_type(insn)?);
        if !matches!(by, Type::S32 | Type::F32) || !matches!(ty.bytes(), 2 | 4 | 8) {
            return Err(self.unsupported("this type"));
        }
        let float = by == Type::F32;
        if ftz && !float {
            return Err(self.unsupported("`.ftz`"));
        }
        let (a, b) = (self.src(&insn.ops[1], ty)?, self.src(&insn.ops[2], ty)?);
        let (mut c, d) = (self.src32(&insn.ops[3], by)?, self.dst(&insn.ops[0], ty)?);
        if ftz {
            // Negative subnormals become -0, which is >= 0: multiplying by one flushes them.
            let (t, one) = (self.temp32()?, self.const32(1f32.to_bits()));
            self.emit(Op::BinF32 {
                op: BinF32::Mul,
                flags: FloatFlags {
                    ftz: true,
                    sat: false,
                },
                d: t,
                a: c,
                b: one,
            })?;
            c = t;
        }
        self.emit(match ty.bytes() {
            8 => Op::Slct64 { float, d, a, b, c },
            _ => Op::Tern32 {
                op: if float { Tern32::SlctF } else { Tern32::SlctS },
                d,
                a,
                b,
                c,
            },
        })
    }

    fn testp(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let test = match insn.mods.take_first() {
            Some("finite") => Test::Finite,
            Some("infinite") => Test::Infinite,
            Some("number") => Test::Number,
            Some("notanumber") => Test::NotANumber,
            Some("normal") => Test::Normal,
            Some("subnormal") => Test::Subnormal,
            _ => return Err(self.unsupported("this test")),
        };
        let ty = self.need_type(insn)?;
        if !matches!(ty, Type::F32 | Type::F64) {
            return Err(self.unsupported("this type"));
        }
        let a = self.src(&insn.ops[1], ty)?;
        let d = self.pred_dest(&insn.ops[0])?;
        self.emit(Op::Testp {
            wide: ty == Type::F64,
            test,
            d,
            a,
        })
    }
}
