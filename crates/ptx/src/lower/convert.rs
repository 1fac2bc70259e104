//! Moves and conversions (PTX ISA 9.7.9: mov, cvt, cvta, isspacep), and `istypep`.

use super::function::{Lowering, Symbol};
use super::insn::Insn;
use super::operand::Fit;
use crate::code::{
    Bin32, Bin64, BinF32, Cmp, CmpType, Cvt, CvtType, FloatFlags, LOCAL_WINDOW, MemSpace, Op,
    PARAM_WINDOW, Pred, Rounding, Row, SHARED_WINDOW, SINK, Shift64, Un32, Un64,
};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

const NONE: FloatFlags = FloatFlags {
    ftz: false,
    sat: false,
};

/// The modifiers and types of a `cvt`.
struct CvtForm {
    /// Rounding to an integer.
    integral: Option<Rounding>,
    ties_away: bool,
    rounding: Option<Rounding>,
    ftz: bool,
    sat: bool,
    relu: bool,
    finite: bool,
    to: Type,
    from: Type,
}

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn mov(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let vector = insn.mods.take_any(&["v2", "v4"]);
        let ty = self.need_type(insn)?;
        if let Some(vector) = vector {
            return self.mov_vector(insn, if vector == "v2" { 2 } else { 4 }, ty);
        }
        if ty == Type::Pred {
            let d = self.pred_dest(&insn.ops[0])?;
            let (a, negated) = self.pred(&insn.ops[1])?;
            return self.emit(Op::PredOp {
                lut: if negated { 0b0101 } else { 0b1010 },
                d,
                a,
                b: a,
            });
        }
        if ty == Type::B128 {
            return self.mov_wide(insn);
        }
        if let Some(parts) = self.parts(&insn.ops[0]) {
            return self.unpack(&parts, &insn.ops[1], ty);
        }
        if let Some(parts) = self.parts(&insn.ops[1]) {
            return self.pack(&insn.ops[0], &parts, ty);
        }
        match (&insn.ops[0], &insn.ops[1]) {
            (to, from) if ty.bytes() == 8 => {
                let a = self.src64(from, ty)?;
                let d = self.dst(to, ty)?;
                self.emit(Op::Un64 {
                    op: Un64::Mov,
                    d,
                    a,
                })
            }
            (to, from) if ty.bytes() <= 4 => {
                let a = match *from {
                    // `mov.u32 %r, shared_variable`: addresses in small state spaces have 32 bits.
                    Operand::Name(name) if self.is_symbol(name) => self.narrow_address(name, 0)?,
                    _ => self.src32(from, ty)?,
                };
                let d = self.dst(to, ty)?;
                self.emit(Op::Un32 {
                    op: Un32::Mov,
                    flags: NONE,
                    d,
                    a,
                })
            }
            _ => Err(self.unsupported("this type")),
        }
    }

    pub(super) fn is_symbol(&self, name: &str) -> bool {
        matches!(
            self.find(name),
            Some(
                Symbol::Shared { .. }
                    | Symbol::DynamicShared
                    | Symbol::Frame { .. }
                    | Symbol::KernelParam { .. }
            )
        )
    }

    pub(super) fn cvt(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let names = super::float8::NAMES;
        if insn.mods.all().iter().any(|part| names.contains(part)) {
            return self.cvt_float8(insn);
        }
        let integral = insn.mods.take_map(|part| {
            Some(match part {
                "rni" => Rounding::Nearest,
                "rzi" => Rounding::Zero,
                "rmi" => Rounding::Down,
                "rpi" => Rounding::Up,
                _ => return None,
            })
        });
        if insn.mods.take("pack") {
            return self.cvt_pack(insn);
        }
        let form = CvtForm {
            integral,
            ties_away: insn.mods.take("rna"),
            rounding: insn.mods.rounding(),
            ftz: insn.mods.take("ftz"),
            sat: insn.mods.take("sat"),
            relu: insn.mods.take("relu"),
            finite: insn.mods.take("satfinite"),
            to: self.need_type(insn)?,
            from: self.need_type(insn)?,
        };
        let CvtForm { to, from, .. } = form;
        if form.finite && (from != Type::F32 || form.sat || form.ftz) {
            return Err(self.unsupported("`.satfinite` with these types"));
        }
        match to {
            Type::F16x2 | Type::Bf16x2 => self.cvt_pair(insn, &form),
            Type::Tf32 => self.cvt_tf32(insn, &form),
            _ => self.cvt_single(insn, &form),
        }
    }

    /// Lowers `cvt.rn.f16x2.f32 d, a, b`.
    fn cvt_pair(&mut self, insn: &Insn<'_, 'a>, form: &CvtForm) -> Result<(), Error> {
        let CvtForm { to, from, .. } = *form;
        self.arity(insn, &[3])?;
        if from != Type::F32 || form.sat || form.ftz {
            return Err(self.unsupported("this form"));
        }
        let (mut a, mut b) = (
            self.src32(&insn.ops[1], from)?,
            self.src32(&insn.ops[2], from)?,
        );
        if form.finite {
            (a, b) = (self.clamped(a, to)?, self.clamped(b, to)?);
        }
        let d = self.dst(&insn.ops[0], to)?;
        let to = if to == Type::F16x2 {
            CvtType::F16
        } else {
            CvtType::Bf16
        };
        self.emit(Op::CvtPack {
            to,
            rounding: form.rounding.unwrap_or_default(),
            relu: form.relu,
            d,
            a,
            b,
        })
    }

    fn cvt_tf32(&mut self, insn: &Insn<'_, 'a>, form: &CvtForm) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        if !form.ties_away || form.from != Type::F32 || form.relu || form.sat {
            return Err(self.unsupported("this form"));
        }
        let (mut a, d) = (
            self.src32(&insn.ops[1], form.from)?,
            self.dst(&insn.ops[0], Type::B32)?,
        );
        if form.finite {
            a = self.clamped(a, form.to)?;
        }
        self.emit(Op::CvtTf32 { d, a })
    }

    /// Lowers a conversion of one number to one.
    fn cvt_single(&mut self, insn: &Insn<'_, 'a>, form: &CvtForm) -> Result<(), Error> {
        let CvtForm { to, from, .. } = *form;
        self.arity(insn, &[2])?;
        let (Some(from_kind), Some(to_kind)) = (cvt_type(from), cvt_type(to)) else {
            return Err(self.unsupported("this pair of types"));
        };
        let mut a = if from.bytes() == 8 {
            self.src64(&insn.ops[1], from)?
        } else {
            self.src32_fit(&insn.ops[1], from, Fit::Wider)?
        };
        if form.finite {
            a = self.clamped(a, to)?;
        }
        let (d, declared) = self.dest(&insn.ops[0], to, Fit::Wider)?;
        if d == SINK {
            return Err(self.unsupported("`_` as destination"));
        }
        let cvt = Cvt {
            from: from_kind,
            to: to_kind,
            rounding: form.integral.or(form.rounding).unwrap_or_default(),
            integral: form.integral.is_some() && to.is_float(),
            ftz: form.ftz,
            sat: form.sat,
            relu: form.relu,
        };
        if from.is_float() && to.is_integer() && form.integral.is_none() {
            return Err(self.unsupported("no integer rounding"));
        }
        if form.ties_away {
            return Err(self.unsupported("`.rna` here"));
        }
        self.cvt_extended(cvt, to, (d, declared), a)
    }

    /// Converts to a register that may be wider than the type: it receives the sign- or
    /// zero-extended value.
    fn cvt_extended(
        &mut self,
        cvt: Cvt,
        to: Type,
        (d, declared): (Row, Type),
        a: Row,
    ) -> Result<(), Error> {
        if declared.bytes() == 8 && to.bytes() < 8 {
            let narrow = self.temp32()?;
            self.emit(Op::Cvt { cvt, d: narrow, a })?;
            let (from, wide) = match to.is_signed() {
                true => (CvtType::S32, CvtType::S64),
                false => (CvtType::U32, CvtType::U64),
            };
            let a = self.extended(narrow, to)?;
            let cvt = Cvt {
                from,
                to: wide,
                ..PLAIN
            };
            return self.emit(Op::Cvt { cvt, d, a });
        }
        self.emit(Op::Cvt { cvt, d, a })?;
        if declared.bytes() <= to.bytes() || !to.is_signed() {
            return Ok(());
        }
        let extended = self.extended(d, to)?;
        if declared.bytes() == 2 {
            return self.truncate16(d, extended);
        }
        self.emit(Op::Un32 {
            op: Un32::Mov,
            flags: NONE,
            d,
            a: extended,
        })
    }

    /// Lowers `cvt.pack.sat.s8.s32.b32 d, a, b, c`: a and b, saturated, next to each other in the
    /// low bits; c fills the rest.
    fn cvt_pack(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let part = insn.mods.take_map(|p| {
            let signed = p.starts_with('s');
            match p.strip_prefix(['s', 'u'])?.parse() {
                Ok(bits @ (2 | 4 | 8 | 16)) => Some((signed, bits)),
                _ => None,
            }
        });
        let Some((signed, bits)) = part else {
            return Err(self.unsupported("this type"));
        };
        let onto_c = bits < 16;
        let form = (
            insn.mods.take("sat"),
            self.need_type(insn)?,
            insn.mods.take("b32"),
        );
        if form != (true, Type::S32, onto_c) {
            return Err(self.unsupported("this form"));
        }
        self.arity(insn, &[if onto_c { 4 } else { 3 }])?;
        let sources = [
            self.src32(&insn.ops[2], Type::S32)?,
            self.src32(&insn.ops[1], Type::S32)?,
        ];
        let mut packed = self.const32(0);
        if onto_c {
            let (c, by) = (self.src32(&insn.ops[3], Type::B32)?, self.const32(2 * bits));
            packed = self.temp32()?;
            self.emit(Op::Bin32 {
                op: Bin32::Shl,
                d: packed,
                a: c,
                b: by,
            })?;
        }
        for (i, a) in (0..).zip(sources) {
            packed = self.packed_at(packed, i * bits, a, (signed, bits))?;
        }
        let d = self.dst(&insn.ops[0], Type::B32)?;
        self.emit(Op::Un32 {
            op: Un32::Mov,
            flags: NONE,
            d,
            a: packed,
        })
    }

    /// Returns `packed` with the integer `a` at the bit `bit`, clamped to a type of `bits` bits.
    fn packed_at(
        &mut self,
        packed: Row,
        bit: u32,
        a: Row,
        (signed, bits): (bool, u32),
    ) -> Result<Row, Error> {
        let (low, high) = if signed {
            (-(1i32 << (bits - 1)), (1i32 << (bits - 1)) - 1)
        } else {
            (0, (1i32 << bits) - 1)
        };
        let (low, high) = (self.const32(low as u32), self.const32(high as u32));
        let (clamped, d) = (self.temp32()?, self.temp32()?);
        for (op, a, b) in [(Bin32::MaxS, a, low), (Bin32::MinS, clamped, high)] {
            let d = clamped;
            self.emit(Op::Bin32 { op, d, a, b })?;
        }
        let (pos, len) = (self.const32(bit), self.const32(bits));
        self.emit(Op::Bfi32 {
            d,
            a: clamped,
            b: packed,
            pos,
            len,
        })?;
        Ok(d)
    }

    /// Clamps a single to the finite range of a shorter type; NaN stays NaN.
    fn clamped(&mut self, a: Row, to: Type) -> Result<Row, Error> {
        let largest: u32 = match to {
            Type::F16 | Type::F16x2 => 65504f32.to_bits(),
            Type::Bf16 | Type::Bf16x2 => 0x7f7f_0000,
            Type::Tf32 => 0x7f7f_e000,
            _ => return Err(self.unsupported("`.satfinite` with these types")),
        };
        let d = self.temp32()?;
        let bounds = [
            (BinF32::MinNan, largest),
            (BinF32::MaxNan, largest | 1 << 31),
        ];
        for ((op, bound), a) in bounds.into_iter().zip([a, d]) {
            let b = self.const32(bound);
            self.emit(Op::BinF32 {
                op,
                flags: NONE,
                d,
                a,
                b,
            })?;
        }
        Ok(d)
    }

    pub(super) fn cvta(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let to = insn.mods.take("to");
        let space = insn.mods.take_any(&[
            "global",
            "shared",
            "shared::cta",
            "local",
            "const",
            "param",
            "param::entry",
        ]);
        let ty = self.need_type(insn)?;
        if ty != Type::U64 {
            return Err(self.unsupported("addresses of 32 bits"));
        }
        let window = match space {
            Some("global" | "const") => 0,
            Some("shared" | "shared::cta") => SHARED_WINDOW,
            Some("local") => LOCAL_WINDOW,
            Some(_) => {
                if self.kernel {
                    PARAM_WINDOW
                } else {
                    LOCAL_WINDOW
                }
            }
            None => return Err(self.unsupported("no state space")),
        };
        let a = self.src64(&insn.ops[1], ty)?;
        let d = self.dst(&insn.ops[0], ty)?;
        if window == 0 {
            return self.emit(Op::Un64 {
                op: Un64::Mov,
                d,
                a,
            });
        }
        let b = self.const64(window);
        self.emit(Op::Bin64 {
            op: if to { Bin64::Sub } else { Bin64::Add },
            d,
            a,
            b,
        })
    }

    pub(super) fn isspacep(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let space = match insn.mods.take_first() {
            Some("global") => MemSpace::Global,
            Some("shared" | "shared::cta") => MemSpace::Shared,
            Some("local") => MemSpace::Local,
            Some("const") => return self.is_constant(insn),
            Some("param" | "param::entry") => MemSpace::Param,
            _ => return Err(self.unsupported("this state space")),
        };
        let d = self.pred_dest(&insn.ops[0])?;
        let a: Row = self.src64(&insn.ops[1], Type::U64)?;
        if space != MemSpace::Global || self.context.layout.const_end == 0 {
            return self.emit(Op::Isspacep { space, d, a });
        }
        // Constants here follow global variables in one area, so a range check separates them.
        let (plain, constant) = (self.temp_pred()?, self.temp_pred()?);
        self.emit(Op::Isspacep { space, d: plain, a })?;
        self.within_constants(constant, a)?;
        self.emit(Op::PredOp {
            lut: 0b0010,
            d,
            a: plain,
            b: constant,
        })
    }

    /// Lowers `istypep`, which tests a bit of the address: opaque objects have addresses that say
    /// their kind.
    pub(super) fn istypep(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let bit = match insn.mods.take_first() {
            Some("texref") => 61,
            Some("samplerref") => 62,
            Some("surfref") => 63,
            _ => return Err(self.unsupported("this kind of object")),
        };
        let d = self.pred_dest(&insn.ops[0])?;
        let a = self.src64(&insn.ops[1], Type::B64)?;
        let (distance, zero, of_kind) = (self.const32(63 - bit), self.const64(0), self.temp64()?);
        self.emit(Op::Shift64 {
            op: Shift64::Shl,
            d: of_kind,
            a,
            b: distance,
        })?;
        self.emit(Op::Setp {
            ty: CmpType::S64,
            cmp: Cmp::Lt,
            ftz: false,
            d,
            a: of_kind,
            b: zero,
        })
    }

    fn is_constant(&mut self, insn: &Insn<'_, 'a>) -> Result<(), Error> {
        let d = self.pred_dest(&insn.ops[0])?;
        let a = self.src64(&insn.ops[1], Type::U64)?;
        self.within_constants(d, a)
    }

    fn within_constants(&mut self, d: Pred, a: Row) -> Result<(), Error> {
        let start = self.const64(self.context.base);
        let end = self.const64(self.context.layout.const_end);
        let offset = self.temp64()?;
        self.emit(Op::Bin64 {
            op: Bin64::Sub,
            d: offset,
            a,
            b: start,
        })?;
        self.emit(Op::Setp {
            ty: CmpType::U64,
            cmp: Cmp::Lt,
            ftz: false,
            d,
            a: offset,
            b: end,
        })
    }
}

const PLAIN: Cvt = Cvt {
    from: CvtType::U32,
    to: CvtType::U32,
    rounding: Rounding::Nearest,
    integral: false,
    ftz: false,
    sat: false,
    relu: false,
};

fn cvt_type(ty: Type) -> Option<CvtType> {
    Some(match ty {
        Type::U8 => CvtType::U8,
        Type::S8 => CvtType::S8,
        Type::U16 => CvtType::U16,
        Type::S16 => CvtType::S16,
        Type::U32 => CvtType::U32,
        Type::S32 => CvtType::S32,
        Type::U64 => CvtType::U64,
        Type::S64 => CvtType::S64,
        Type::F16 => CvtType::F16,
        Type::Bf16 => CvtType::Bf16,
        Type::F32 => CvtType::F32,
        Type::F64 => CvtType::F64,
        _ => return None,
    })
}
