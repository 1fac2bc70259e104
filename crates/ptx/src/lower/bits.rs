//! Logic, shifts and bit fields (PTX ISA 9.7.1, 9.7.8).

use super::function::Lowering;
use super::insn::Insn;
use crate::code::{
    Bin32, Bin64, Cmp, CmpType, FloatFlags, Narrow, Op, Row, Shift64, Tern32, Un32, Un64,
};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};
use crate::parse::lexer::Number;

const NONE: FloatFlags = FloatFlags {
    ftz: false,
    sat: false,
};

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn bits(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        match insn.name {
            "and" | "or" | "xor" | "not" | "cnot" => self.logic(insn),
            "shl" | "shr" => self.shift(insn),
            "popc" | "clz" | "bfind" | "brev" => self.count(insn),
            "bfe" | "bfi" => self.bit_field(insn),
            "shf" => self.funnel(insn),
            "lop3" => self.lop3(insn),
            "prmt" => self.prmt(insn),
            "bmsk" => self.bmsk(insn),
            "fns" => self.fns(insn),
            _ => self.szext(insn),
        }
    }

    fn logic(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let unary = matches!(insn.name, "not" | "cnot");
        self.arity(insn, &[if unary { 2 } else { 3 }])?;
        let ty = self.need_type(insn)?;
        if ty == Type::Pred {
            return self.pred_logic(insn);
        }
        let (a, d) = (self.src(&insn.ops[1], ty)?, self.dst(&insn.ops[0], ty)?);
        let wide = ty.bytes() == 8;
        if unary {
            let not = insn.name == "not";
            if wide {
                return self.emit(Op::Un64 {
                    op: if not { Un64::Not } else { Un64::Cnot },
                    d,
                    a,
                });
            }
            self.emit(Op::Un32 {
                op: if not { Un32::Not } else { Un32::Cnot },
                flags: NONE,
                d,
                a,
            })?;
            return if ty.bytes() == 2 {
                self.truncate16(d, d)
            } else {
                Ok(())
            };
        }
        let b = self.src(&insn.ops[2], ty)?;
        let (narrow, long) = match insn.name {
            "and" => (Bin32::And, Bin64::And),
            "or" => (Bin32::Or, Bin64::Or),
            _ => (Bin32::Xor, Bin64::Xor),
        };
        self.emit(if wide {
            Op::Bin64 { op: long, d, a, b }
        } else {
            Op::Bin32 {
                op: narrow,
                d,
                a,
                b,
            }
        })
    }

    fn pred_logic(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let d = self.pred_dest(&insn.ops[0])?;
        let (a, negated_a) = self.pred(&insn.ops[1])?;
        if insn.name == "not" {
            return self.emit(Op::PredOp {
                lut: if negated_a { 0b1010 } else { 0b0101 },
                d,
                a,
                b: a,
            });
        }
        if insn.name == "cnot" {
            return Err(self.unsupported("this type"));
        }
        let (b, negated_b) = self.pred(&insn.ops[2])?;
        self.emit(Op::PredOp {
            lut: bool_lut(insn.name, negated_a, negated_b),
            d,
            a,
            b,
        })
    }

    fn shift(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[3])?;
        let ty = self.need_type(insn)?;
        if ty.is_float() || ty.bytes() == 1 {
            return Err(self.unsupported("this type"));
        }
        let (a, b, d) = (
            self.src(&insn.ops[1], ty)?,
            self.src32(&insn.ops[2], Type::U32)?,
            self.dst(&insn.ops[0], ty)?,
        );
        let left = insn.name == "shl";
        if ty.bytes() == 8 {
            let op = if left {
                Shift64::Shl
            } else if ty.is_signed() {
                Shift64::ShrS
            } else {
                Shift64::ShrU
            };
            return self.emit(Op::Shift64 { op, d, a, b });
        }
        let a = if left { a } else { self.extended(a, ty)? };
        let op = if left {
            Bin32::Shl
        } else if ty.is_signed() {
            Bin32::ShrS
        } else {
            Bin32::ShrU
        };
        self.emit(Op::Bin32 { op, d, a, b })?;
        if ty.bytes() == 2 {
            self.truncate16(d, d)
        } else {
            Ok(())
        }
    }

    fn count(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let shift = insn.mods.take("shiftamt");
        let ty = self.need_type(insn)?;
        let a = self.src(&insn.ops[1], ty)?;
        let result = if insn.name == "brev" { ty } else { Type::U32 };
        let d = self.dst(&insn.ops[0], result)?;
        let signed = ty.is_signed();
        if ty.bytes() == 8 {
            let op = match insn.name {
                "popc" => Narrow::Popc,
                "clz" => Narrow::Clz,
                "brev" => {
                    return self.emit(Op::Un64 {
                        op: Un64::Brev,
                        d,
                        a,
                    });
                }
                _ => match (signed, shift) {
                    (true, false) => Narrow::BfindS,
                    (false, false) => Narrow::BfindU,
                    (true, true) => Narrow::BfindShiftS,
                    (false, true) => Narrow::BfindShiftU,
                },
            };
            return self.emit(Op::Narrow { op, d, a });
        }
        if ty.bytes() != 4 {
            return Err(self.unsupported("this type"));
        }
        let op = match insn.name {
            "popc" => Un32::Popc,
            "clz" => Un32::Clz,
            "brev" => Un32::Brev,
            _ => match (signed, shift) {
                (true, false) => Un32::BfindS,
                (false, false) => Un32::BfindU,
                (true, true) => Un32::BfindShiftS,
                (false, true) => Un32::BfindShiftU,
            },
        };
        self.emit(Op::Un32 {
            op,
            flags: NONE,
            d,
            a,
        })
    }

    fn bit_field(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let insert = insn.name == "bfi";
        self.arity(insn, &[if insert { 5 } else { 4 }])?;
        let ty = self.need_type(insn)?;
        if !matches!(ty.bytes(), 4 | 8) {
            return Err(self.unsupported("this type"));
        }
        let a = self.src(&insn.ops[1], ty)?;
        let b = if insert {
            self.src(&insn.ops[2], ty)?
        } else {
            0
        };
        let rest = if insert { 3 } else { 2 };
        let (pos, len) = (
            self.src32(&insn.ops[rest], Type::U32)?,
            self.src32(&insn.ops[rest + 1], Type::U32)?,
        );
        let d = self.dst(&insn.ops[0], ty)?;
        let signed = ty.is_signed();
        self.emit(match (insert, ty.bytes()) {
            (true, 4) => Op::Bfi32 { d, a, b, pos, len },
            (true, _) => Op::Bfi64 { d, a, b, pos, len },
            (false, 4) => Op::Tern32 {
                op: if signed { Tern32::BfeS } else { Tern32::BfeU },
                d,
                a,
                b: pos,
                c: len,
            },
            (false, _) => Op::Bfe64 {
                signed,
                d,
                a,
                pos,
                len,
            },
        })
    }

    fn funnel(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[4])?;
        let left = insn.mods.take("l");
        if !left && !insn.mods.take("r") {
            return Err(self.unsupported("no .l or .r"));
        }
        let wrap = insn.mods.take("wrap");
        if !wrap && !insn.mods.take("clamp") {
            return Err(self.unsupported("no .wrap or .clamp"));
        }
        let ty = self.need_type(insn)?;
        let (a, b) = (self.src32(&insn.ops[1], ty)?, self.src32(&insn.ops[2], ty)?);
        let (c, d) = (
            self.src32(&insn.ops[3], Type::U32)?,
            self.dst(&insn.ops[0], ty)?,
        );
        let op = match (left, wrap) {
            (true, true) => Tern32::ShfLWrap,
            (true, false) => Tern32::ShfLClamp,
            (false, true) => Tern32::ShfRWrap,
            (false, false) => Tern32::ShfRClamp,
        };
        self.emit(Op::Tern32 { op, d, a, b, c })
    }

    /// Lowers `fns.b32 d, mask, base, offset`.
    fn fns(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[4])?;
        let ty = self.need_type(insn)?;
        if ty != Type::B32 {
            return Err(self.unsupported("this type"));
        }
        let (a, b) = (
            self.src32(&insn.ops[1], ty)?,
            self.src32(&insn.ops[2], Type::U32)?,
        );
        let (c, d) = (
            self.src32(&insn.ops[3], Type::S32)?,
            self.dst(&insn.ops[0], ty)?,
        );
        self.emit(Op::Tern32 {
            op: Tern32::Fns,
            d,
            a,
            b,
            c,
        })
    }

    /// Lowers `lop3.or.b32 d|p, a, b, c, table, q`: p receives whether the result has a set bit,
    /// combined with q.
    fn lop3_into_predicate(&mut self, insn: &mut Insn<'_, 'a>, boolean: &str) -> Result<(), Error> {
        self.arity(insn, &[6])?;
        let Operand::Pair(to, p) = insn.ops[0] else {
            return Err(self.invalid("expected a register and a predicate"));
        };
        let d = self.dst(&Operand::Name(to), Type::B32)?;
        let p = self.pred_dest(&Operand::Name(p))?;
        let (q, negated) = self.pred(&insn.ops[5])?;
        self.lop3_into(insn, d)?;
        let (zero, any) = (self.const32(0), self.temp_pred()?);
        self.emit(Op::Setp {
            ty: CmpType::U32,
            cmp: Cmp::Ne,
            ftz: false,
            d: any,
            a: d,
            b: zero,
        })?;
        self.emit(Op::PredOp {
            lut: bool_lut(boolean, false, negated),
            d: p,
            a: any,
            b: q,
        })
    }

    fn lop3(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let boolean = insn.mods.take_any(&["or", "and"]);
        let ty = self.need_type(insn)?;
        if ty != Type::B32 {
            return Err(self.unsupported("this type"));
        }
        if let Some(boolean) = boolean {
            return self.lop3_into_predicate(insn, boolean);
        }
        self.arity(insn, &[5])?;
        let d = self.dst(&insn.ops[0], ty)?;
        self.lop3_into(insn, d)
    }

    fn lop3_into(&mut self, insn: &mut Insn<'_, 'a>, d: Row) -> Result<(), Error> {
        let ty = Type::B32;
        let Operand::Number(Number::Integer(lut)) = insn.ops[4] else {
            return Err(self.invalid("expected a table of 8 bits"));
        };
        let (a, b) = (self.src32(&insn.ops[1], ty)?, self.src32(&insn.ops[2], ty)?);
        let c = self.src32(&insn.ops[3], ty)?;
        self.emit(Op::Lop3 {
            lut: lut as u8,
            d,
            a,
            b,
            c,
        })
    }

    fn prmt(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[4])?;
        let ty = self.need_type(insn)?;
        let op = match insn.mods.take_first() {
            None => Tern32::Prmt,
            Some("f4e") => Tern32::PrmtF4e,
            Some("b4e") => Tern32::PrmtB4e,
            Some("rc8") => Tern32::PrmtRc8,
            Some("ecl") => Tern32::PrmtEcl,
            Some("ecr") => Tern32::PrmtEcr,
            Some("rc16") => Tern32::PrmtRc16,
            Some(_) => return Err(self.unsupported("this mode")),
        };
        let (a, b) = (self.src32(&insn.ops[1], ty)?, self.src32(&insn.ops[2], ty)?);
        let (c, d) = (self.src32(&insn.ops[3], ty)?, self.dst(&insn.ops[0], ty)?);
        self.emit(Op::Tern32 { op, d, a, b, c })
    }

    fn bmsk(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[3])?;
        let wrap = insn.mods.take("wrap");
        insn.mods.take("clamp");
        let ty = self.need_type(insn)?;
        let (a, b, d) = (
            self.src32(&insn.ops[1], ty)?,
            self.src32(&insn.ops[2], ty)?,
            self.dst(&insn.ops[0], ty)?,
        );
        self.emit(Op::Bin32 {
            op: if wrap { Bin32::BmskWrap } else { Bin32::Bmsk },
            d,
            a,
            b,
        })
    }

    fn szext(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[3])?;
        let wrap = insn.mods.take("wrap");
        insn.mods.take("clamp");
        let ty = self.need_type(insn)?;
        let (a, b, d) = (
            self.src32(&insn.ops[1], ty)?,
            self.src32(&insn.ops[2], Type::U32)?,
            self.dst(&insn.ops[0], ty)?,
        );
        let op = match (ty.is_signed(), wrap) {
            (true, true) => Bin32::SzextSWrap,
            (true, false) => Bin32::SzextSClamp,
            (false, true) => Bin32::SzextUWrap,
            (false, false) => Bin32::SzextUClamp,
        };
        self.emit(Op::Bin32 { op, d, a, b })
    }
}

/// Returns the truth table of `a op b` over the index `a | b << 1`, with operands negated as given.
pub(super) fn bool_lut(op: &str, negated_a: bool, negated_b: bool) -> u8 {
    let mut lut = 0;
    for index in 0..4u8 {
        let (a, b) = ((index & 1 != 0) ^ negated_a, (index & 2 != 0) ^ negated_b);
        let bit = match op {
            "and" => a & b,
            "or" => a | b,
            _ => a ^ b,
        };
        lut |= u8::from(bit) << index;
    }
    lut
}
