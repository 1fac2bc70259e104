//! Integer arithmetic (PTX ISA 9.7.1, 9.7.2).

use super::function::Lowering;
use super::insn::Insn;
use crate::code::{Bin32, Bin64, Carry, FloatFlags, Op, Row, Tern32, Tern64, Un32, Un64};
use crate::error::Error;
use crate::parse::ast::Type;

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn integer(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        if self.pairs(insn)? {
            return Ok(());
        }
        match insn.name {
            "add" | "sub" | "addc" | "subc" => self.add_sub(insn),
            "mul" | "mad" | "madc" => self.multiply(insn),
            "mul24" | "mad24" => self.multiply24(insn),
            "dp4a" | "dp2a" => self.dot_product(insn),
            "sad" => self.sad(insn),
            "abs" | "neg" => self.abs_neg(insn),
            _ => self.divide_min_max(insn),
        }
    }

    fn add_sub(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[3])?;
        let (sat, write) = (insn.mods.take("sat"), insn.mods.take("cc"));
        let read = insn.name.ends_with('c');
        let ty = self.integer_type(insn)?;
        let add = insn.name.starts_with("add");
        let (a, b, d) = (
            self.src(&insn.ops[1], ty)?,
            self.src(&insn.ops[2], ty)?,
            self.dst(&insn.ops[0], ty)?,
        );
        if sat && (ty != Type::S32 || read || write) {
            return Err(self.unsupported("saturation of this type"));
        }
        if read || write {
            let op = if add { Carry::Add } else { Carry::Sub };
            return match ty.bytes() {
                4 => self.emit(Op::Carry32 {
                    op,
                    read,
                    write,
                    d,
                    a,
                    b,
                    c: 0,
                }),
                8 => self.emit(Op::Carry64 {
                    op,
                    read,
                    write,
                    d,
                    a,
                    b,
                    c: 0,
                }),
                _ => Err(self.unsupported("carry of this type")),
            };
        }
        match ty.bytes() {
            2 => {
                let op = if add { Bin32::Add } else { Bin32::Sub };
                self.emit(Op::Bin32 { op, d, a, b })?;
                self.truncate16(d, d)
            }
            4 => {
                let op = match (add, sat) {
                    (true, false) => Bin32::Add,
                    (false, false) => Bin32::Sub,
                    (true, true) => Bin32::AddSatS,
                    (false, true) => Bin32::SubSatS,
                };
                self.emit(Op::Bin32 { op, d, a, b })
            }
            _ => self.emit(Op::Bin64 {
                op: if add { Bin64::Add } else { Bin64::Sub },
                d,
                a,
                b,
            }),
        }
    }

    fn integer_type(&self, insn: &mut Insn<'_, 'a>) -> Result<Type, Error> {
        let ty = self.need_type(insn)?;
        if ty.is_integer() && ty.bytes() > 1 {
            Ok(ty)
        } else {
            Err(self.unsupported("this type"))
        }
    }

    fn multiply(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let mad = insn.name != "mul";
        self.arity(insn, &[if mad { 4 } else { 3 }])?;
        let Some(part) = insn.mods.take_any(&["lo", "hi", "wide"]) else {
            return Err(self.unsupported("no .lo, .hi or .wide"));
        };
        let (sat, write) = (insn.mods.take("sat"), insn.mods.take("cc"));
        let read = insn.name == "madc";
        let ty = self.integer_type(insn)?;
        let signed = ty.is_signed();
        let wide_ty = match (part, ty.bytes(), signed) {
            ("wide", 2, true) => Type::S32,
            ("wide", 2, false) => Type::U32,
            ("wide", 4, true) => Type::S64,
            ("wide", 4, false) => Type::U64,
            ("wide", ..) => return Err(self.unsupported("this type")),
            _ => ty,
        };
        let (a, b) = (self.src(&insn.ops[1], ty)?, self.src(&insn.ops[2], ty)?);
        let c = insn.ops.get(3).map(|c| self.src(c, wide_ty)).transpose()?;
        let d = self.dst(&insn.ops[0], wide_ty)?;
        if sat && !(mad && part == "hi" && ty == Type::S32 && !read && !write) {
            return Err(self.unsupported("saturation of this form"));
        }
        if read || write {
            return self.multiply_carry(part, ty, (read, write), [d, a, b, c.unwrap_or(0)]);
        }
        match (ty.bytes(), c) {
            (2, _) => self.multiply16(part, ty, d, a, b, c),
            (4, _) if part == "wide" => self.emit(match c {
                Some(c) => Op::MadWide { signed, d, a, b, c },
                None => Op::MulWide { signed, d, a, b },
            }),
            (4, Some(c)) => {
                let op = match (part, signed, sat) {
                    ("lo", ..) => Tern32::MadLo,
                    (_, true, false) => Tern32::MadHiS,
                    (_, true, true) => Tern32::MadHiSatS,
                    (_, false, _) => Tern32::MadHiU,
                };
                self.emit(Op::Tern32 { op, d, a, b, c })
            }
            (4, None) => {
                let op = match (part, signed) {
                    ("lo", _) => Bin32::MulLo,
                    (_, true) => Bin32::MulHiS,
                    (_, false) => Bin32::MulHiU,
                };
                self.emit(Op::Bin32 { op, d, a, b })
            }
            (_, Some(c)) => {
                let op = match (part, signed) {
                    ("lo", _) => Tern64::MadLo,
                    (_, true) => Tern64::MadHiS,
                    (_, false) => Tern64::MadHiU,
                };
                self.emit(Op::Tern64 { op, d, a, b, c })
            }
            (_, None) => {
                let op = match (part, signed) {
                    ("lo", _) => Bin64::MulLo,
                    (_, true) => Bin64::MulHiS,
                    (_, false) => Bin64::MulHiU,
                };
                self.emit(Op::Bin64 { op, d, a, b })
            }
        }
    }

    /// Lowers a multiplication that reads or writes the carry flag.
    fn multiply_carry(
        &mut self,
        part: &str,
        ty: Type,
        (read, write): (bool, bool),
        [d, a, b, c]: [Row; 4],
    ) -> Result<(), Error> {
        let op = match (part, ty.is_signed()) {
            ("lo", _) => Carry::MadLo,
            ("hi", true) => Carry::MadHiS,
            ("hi", false) => Carry::MadHiU,
            _ => return Err(self.unsupported("carry of this form")),
        };
        match ty.bytes() {
            4 => self.emit(Op::Carry32 {
                op,
                read,
                write,
                d,
                a,
                b,
                c,
            }),
            8 => self.emit(Op::Carry64 {
                op,
                read,
                write,
                d,
                a,
                b,
                c,
            }),
            _ => Err(self.unsupported("carry of this type")),
        }
    }

    /// Lowers a 16-bit multiplication, whose products are exact in 32 bits.
    fn multiply16(
        &mut self,
        part: &str,
        ty: Type,
        d: Row,
        a: Row,
        b: Row,
        c: Option<Row>,
    ) -> Result<(), Error> {
        let (a, b) = (self.extended(a, ty)?, self.extended(b, ty)?);
        let t = self.temp32()?;
        self.emit(Op::Bin32 {
            op: Bin32::MulLo,
            d: t,
            a,
            b,
        })?;
        if part == "hi" {
            let sixteen = self.const32(16);
            self.emit(Op::Bin32 {
                op: Bin32::ShrU,
                d: t,
                a: t,
                b: sixteen,
            })?;
        }
        if let Some(c) = c {
            self.emit(Op::Bin32 {
                op: Bin32::Add,
                d: t,
                a: t,
                b: c,
            })?;
        }
        if part == "wide" {
            self.emit(Op::Un32 {
                op: Un32::Mov,
                flags: FloatFlags::default(),
                d,
                a: t,
            })
        } else {
            self.truncate16(d, t)
        }
    }

    fn multiply24(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let mad = insn.name == "mad24";
        self.arity(insn, &[if mad { 4 } else { 3 }])?;
        let Some(part) = insn.mods.take_any(&["lo", "hi"]) else {
            return Err(self.unsupported("no .lo or .hi"));
        };
        let saturate = insn.mods.take("sat");
        let ty = self.integer_type(insn)?;
        if ty.bytes() != 4 || saturate && !(mad && part == "hi" && ty.is_signed()) {
            return Err(self.unsupported("this type"));
        }
        let (a, b, d) = (
            self.src32(&insn.ops[1], ty)?,
            self.src32(&insn.ops[2], ty)?,
            self.dst(&insn.ops[0], ty)?,
        );
        if mad {
            let c = self.src32(&insn.ops[3], ty)?;
            let op = match (part, ty.is_signed()) {
                _ if saturate => Tern32::Mad24HiSatS,
                ("lo", true) => Tern32::Mad24LoS,
                ("lo", false) => Tern32::Mad24LoU,
                (_, true) => Tern32::Mad24HiS,
                (_, false) => Tern32::Mad24HiU,
            };
            return self.emit(Op::Tern32 { op, d, a, b, c });
        }
        let op = match (part, ty.is_signed()) {
            ("lo", true) => Bin32::Mul24LoS,
            ("lo", false) => Bin32::Mul24LoU,
            (_, true) => Bin32::Mul24HiS,
            (_, false) => Bin32::Mul24HiU,
        };
        self.emit(Op::Bin32 { op, d, a, b })
    }

    fn dot_product(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[4])?;
        let half = insn.mods.take_any(&["lo", "hi"]);
        let (at, bt) = (self.integer_type(insn)?, self.integer_type(insn)?);
        let (sa, sb) = (at.is_signed(), bt.is_signed());
        let ct = if sa || sb { Type::S32 } else { Type::U32 };
        let (a, b) = (self.src32(&insn.ops[1], at)?, self.src32(&insn.ops[2], bt)?);
        let (c, d) = (self.src32(&insn.ops[3], ct)?, self.dst(&insn.ops[0], ct)?);
        let op = match (insn.name, half) {
            ("dp4a", None) => Tern32::Dp4a(sa, sb),
            ("dp2a", Some("lo")) => Tern32::Dp2aLo(sa, sb),
            ("dp2a", Some(_)) => Tern32::Dp2aHi(sa, sb),
            _ => return Err(self.unsupported("this form")),
        };
        self.emit(Op::Tern32 { op, d, a, b, c })
    }

    fn sad(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[4])?;
        let ty = self.integer_type(insn)?;
        let (a, b) = (self.src(&insn.ops[1], ty)?, self.src(&insn.ops[2], ty)?);
        let (c, d) = (self.src(&insn.ops[3], ty)?, self.dst(&insn.ops[0], ty)?);
        match ty.bytes() {
            8 => self.emit(Op::Tern64 {
                op: if ty.is_signed() {
                    Tern64::SadS
                } else {
                    Tern64::SadU
                },
                d,
                a,
                b,
                c,
            }),
            bytes => {
                let (a, b) = (self.extended(a, ty)?, self.extended(b, ty)?);
                let op = if ty.is_signed() {
                    Tern32::SadS
                } else {
                    Tern32::SadU
                };
                self.emit(Op::Tern32 { op, d, a, b, c })?;
                if bytes == 2 {
                    self.truncate16(d, d)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn abs_neg(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let ty = self.integer_type(insn)?;
        if !ty.is_signed() {
            return Err(self.unsupported("an unsigned type"));
        }
        let (a, d) = (self.src(&insn.ops[1], ty)?, self.dst(&insn.ops[0], ty)?);
        let abs = insn.name == "abs";
        if ty.bytes() == 8 {
            return self.emit(Op::Un64 {
                op: if abs { Un64::Abs } else { Un64::Neg },
                d,
                a,
            });
        }
        let a = self.extended(a, ty)?;
        let op = if abs { Un32::Abs } else { Un32::Neg };
        self.emit(Op::Un32 {
            op,
            flags: FloatFlags::default(),
            d,
            a,
        })?;
        if ty.bytes() == 2 {
            self.truncate16(d, d)
        } else {
            Ok(())
        }
    }

    fn divide_min_max(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[3])?;
        let ty = self.integer_type(insn)?;
        let signed = ty.is_signed();
        let extreme = ty == Type::S32 && matches!(insn.name, "min" | "max");
        let relu = extreme && insn.mods.take("relu");
        let (a, b, d) = (
            self.src(&insn.ops[1], ty)?,
            self.src(&insn.ops[2], ty)?,
            self.dst(&insn.ops[0], ty)?,
        );
        if ty.bytes() == 8 {
            let op = match (insn.name, signed) {
                ("div", true) => Bin64::DivS,
                ("div", false) => Bin64::DivU,
                ("rem", true) => Bin64::RemS,
                ("rem", false) => Bin64::RemU,
                ("min", true) => Bin64::MinS,
                ("min", false) => Bin64::MinU,
                ("max", true) => Bin64::MaxS,
                ("max", false) => Bin64::MaxU,
                _ => return Err(self.unsupported("this form")),
            };
            return self.emit(Op::Bin64 { op, d, a, b });
        }
        let op = match (insn.name, signed) {
            ("div", true) => Bin32::DivS,
            ("div", false) => Bin32::DivU,
            ("rem", true) => Bin32::RemS,
            ("rem", false) => Bin32::RemU,
            ("min", true) => Bin32::MinS,
            ("min", false) => Bin32::MinU,
            ("max", true) => Bin32::MaxS,
            ("max", false) => Bin32::MaxU,
            _ => return Err(self.unsupported("this form")),
        };
        let (a, b) = (self.extended(a, ty)?, self.extended(b, ty)?);
        self.emit(Op::Bin32 { op, d, a, b })?;
        match ty.bytes() {
            2 => self.truncate16(d, d),
            _ if relu => self.relu(d),
            _ => Ok(()),
        }
    }
}
