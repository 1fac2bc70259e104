//! Float arithmetic of 32 and 64 bits (PTX ISA 9.7.3) and of 16 bits (9.7.4).

use super::function::Lowering;
use super::insn::Insn;
use crate::code::{
    Bin32, BinF32, BinF64, FloatFlags, HalfOp, Op, Rounding, Row, Tern32, Un32, Un64,
};
use crate::error::Error;
use crate::parse::ast::Type;

/// The modifiers and type of an instruction of single or double floats.
struct FloatForm {
    ty: Type,
    rounding: Rounding,
    flags: FloatFlags,
    nan: bool,
    xorsign: bool,
    approx: bool,
}

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn float(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let name = insn.name;
        let nan = insn.mods.take("NaN");
        let xorsign = insn.mods.take("xorsign");
        if xorsign {
            insn.mods.take("abs");
        }
        let flags = FloatFlags {
            ftz: insn.mods.take("ftz"),
            sat: insn.mods.take("sat"),
        };
        let approx = insn.mods.take("approx");
        insn.mods.take("full");
        let rounding = insn.mods.rounding().unwrap_or_default();
        let ty = self.need_type(insn)?;
        if ty.is_float() && ty.bytes() == 2 || matches!(ty, Type::F16x2 | Type::Bf16x2) {
            // Only ex2 of bf16 has `.ftz`, which it always has.
            if flags.sat || flags.ftz != (name == "ex2" && matches!(ty, Type::Bf16 | Type::Bf16x2))
            {
                return Err(self.unsupported("these modifiers with a 16-bit float"));
            }
            return self.half_unary(insn, ty, name);
        }
        if !matches!(ty, Type::F32 | Type::F64) {
            return Err(self.unsupported("this type"));
        }
        let wide = ty == Type::F64;
        if wide && (flags.sat || nan || xorsign || (flags.ftz && !approx)) {
            return Err(self.unsupported("these modifiers with .f64"));
        }
        let form = FloatForm {
            ty,
            rounding,
            flags,
            nan,
            xorsign,
            approx,
        };
        match name {
            "fma" | "mad" => self.float_fma(insn, &form),
            "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => {
                self.float_binary(insn, &form)
            }
            _ => self.float_unary(insn, &form),
        }
    }

    fn float_fma(&mut self, insn: &Insn<'_, 'a>, form: &FloatForm) -> Result<(), Error> {
        let FloatForm {
            ty,
            rounding,
            flags,
            ..
        } = *form;
        self.arity(insn, &[4])?;
        let (a, b) = (self.src(&insn.ops[1], ty)?, self.src(&insn.ops[2], ty)?);
        let (c, d) = (self.src(&insn.ops[3], ty)?, self.dst(&insn.ops[0], ty)?);
        self.emit(match ty {
            Type::F64 => Op::FmaF64 {
                rounding,
                d,
                a,
                b,
                c,
            },
            _ => Op::FmaF32 {
                rounding,
                flags,
                d,
                a,
                b,
                c,
            },
        })
    }

    fn float_binary(&mut self, insn: &Insn<'_, 'a>, form: &FloatForm) -> Result<(), Error> {
        let (name, ty, wide) = (insn.name, form.ty, form.ty == Type::F64);
        self.arity(insn, &[3])?;
        let (a, b, d) = (
            self.src(&insn.ops[1], ty)?,
            self.src(&insn.ops[2], ty)?,
            self.dst(&insn.ops[0], ty)?,
        );
        // copysign d, a, b: the sign of a, the magnitude of b.
        if name == "copysign" && !wide {
            let op = Bin32::CopySign;
            return self.emit(Op::Bin32 { op, d, a, b });
        }
        if wide {
            let op = match name {
                "copysign" => BinF64::CopySign,
                _ => self.binary64(name, form.rounding)?,
            };
            return self.emit(Op::BinF64 { op, d, a, b });
        }
        let op = match (form.approx, name) {
            (true, "div") => BinF32::DivApprox,
            _ => self.binary32(name, form.rounding, form.nan, form.xorsign)?,
        };
        let flags = form.flags;
        self.emit(Op::BinF32 { op, flags, d, a, b })
    }

    fn float_unary(&mut self, insn: &Insn<'_, 'a>, form: &FloatForm) -> Result<(), Error> {
        let FloatForm {
            ty,
            rounding,
            flags,
            approx,
            ..
        } = *form;
        self.arity(insn, &[2])?;
        let (a, d) = (self.src(&insn.ops[1], ty)?, self.dst(&insn.ops[0], ty)?);
        if ty == Type::F64 {
            let op = match (insn.name, approx) {
                ("abs", _) => Un64::AbsF,
                ("neg", _) => Un64::NegF,
                ("rcp", false) => Un64::RcpF(rounding),
                ("rcp", true) => Un64::RcpApproxF,
                ("sqrt", false) => Un64::SqrtF(rounding),
                ("rsqrt", true) if flags.ftz => Un64::RsqrtApproxFtzF,
                ("rsqrt", true) => Un64::RsqrtApproxF,
                _ => return Err(self.unsupported("this form with .f64")),
            };
            return self.emit(Op::Un64 { op, d, a });
        }
        let op = match insn.name {
            "abs" => Un32::AbsF,
            "neg" => Un32::NegF,
            "rcp" => Un32::RcpF(rounding),
            "sqrt" => Un32::SqrtF(rounding),
            "rsqrt" => Un32::RsqrtF,
            "sin" => Un32::SinF,
            "cos" => Un32::CosF,
            "ex2" => Un32::Ex2F,
            "lg2" => Un32::Lg2F,
            "tanh" => Un32::TanhF,
            _ => return Err(self.unsupported("this form with .f32")),
        };
        self.emit(Op::Un32 { op, flags, d, a })
    }

    fn binary32(
        &self,
        name: &str,
        rounding: Rounding,
        nan: bool,
        xorsign: bool,
    ) -> Result<BinF32, Error> {
        let nearest = rounding == Rounding::Nearest;
        Ok(match (name, nearest) {
            ("add", true) => BinF32::Add,
            ("sub", true) => BinF32::Sub,
            ("mul", true) => BinF32::Mul,
            ("div", true) => BinF32::Div,
            ("add", false) => BinF32::AddR(rounding),
            ("sub", false) => BinF32::SubR(rounding),
            ("mul", false) => BinF32::MulR(rounding),
            ("div", false) => BinF32::DivR(rounding),
            (_, false) => return Err(self.unsupported("a rounding here")),
            _ if nan && xorsign => return Err(self.unsupported("`.NaN.xorsign`")),
            ("min", _) if xorsign => BinF32::MinXorsign,
            (_, _) if xorsign => BinF32::MaxXorsign,
            ("min", _) if nan => BinF32::MinNan,
            (_, _) if nan => BinF32::MaxNan,
            ("min", _) => BinF32::Min,
            _ => BinF32::Max,
        })
    }

    fn binary64(&self, name: &str, rounding: Rounding) -> Result<BinF64, Error> {
        Ok(match (name, rounding == Rounding::Nearest) {
            ("add", true) => BinF64::Add,
            ("sub", true) => BinF64::Sub,
            ("mul", true) => BinF64::Mul,
            ("div", true) => BinF64::Div,
            ("min", true) => BinF64::Min,
            ("max", true) => BinF64::Max,
            ("add", false) => BinF64::AddR(rounding),
            ("sub", false) => BinF64::SubR(rounding),
            ("mul", false) => BinF64::MulR(rounding),
            ("div", false) => BinF64::DivR(rounding),
            _ => return Err(self.unsupported("a rounding here")),
        })
    }

    /// Lowers add, sub, mul, fma, min, max, abs and neg of f16, f16x2, bf16 and bf16x2.
    pub(super) fn half(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let name = insn.name;
        let (nan, relu) = (insn.mods.take("NaN"), insn.mods.take("relu"));
        let flags = FloatFlags {
            ftz: insn.mods.take("ftz"),
            sat: insn.mods.take("sat"),
        };
        if insn.mods.rounding().unwrap_or_default() != Rounding::Nearest {
            return Err(self.unsupported("this rounding of a 16-bit float"));
        }
        let ty = self.need_type(insn)?;
        let brain = matches!(ty, Type::Bf16 | Type::Bf16x2);
        let can_saturate = matches!(name, "add" | "sub" | "mul" | "fma") && !relu;
        if brain && flags != FloatFlags::default() || flags.sat && !can_saturate {
            return Err(self.unsupported("these modifiers with a 16-bit float"));
        }
        match name {
            "abs" | "neg" => {
                self.half_unary(insn, ty, name)?;
                let d = self.dst(&insn.ops[0], ty)?;
                self.half_result(flags, d)
            }
            "fma" => self.half_fma(insn, ty, flags, relu),
            _ if relu => Err(self.unsupported("`.relu` here")),
            _ => {
                self.arity(insn, &[3])?;
                let op = match (name, nan) {
                    ("add", false) => HalfOp::Add,
                    ("sub", false) => HalfOp::Sub,
                    ("mul", false) if flags.ftz => HalfOp::MulFtz,
                    ("mul", false) => HalfOp::Mul,
                    ("min", false) => HalfOp::Min,
                    ("max", false) => HalfOp::Max,
                    ("min", true) => HalfOp::MinNan,
                    ("max", true) => HalfOp::MaxNan,
                    _ => return Err(self.unsupported("this operation on a 16-bit float")),
                };
                let (a, b, d) = (
                    self.half_source(insn, 1, ty, flags)?,
                    self.half_source(insn, 2, ty, flags)?,
                    self.dst(&insn.ops[0], ty)?,
                );
                let op = half_op(op, ty).ok_or_else(|| self.unsupported("this type"))?;
                self.emit(Op::Bin32 { op, d, a, b })?;
                self.half_result(flags, d)
            }
        }
    }

    fn half_fma(
        &mut self,
        insn: &Insn<'_, 'a>,
        ty: Type,
        flags: FloatFlags,
        relu: bool,
    ) -> Result<(), Error> {
        self.arity(insn, &[4])?;
        let (a, b) = (
            self.half_source(insn, 1, ty, flags)?,
            self.half_source(insn, 2, ty, flags)?,
        );
        let (c, d) = (
            self.half_source(insn, 3, ty, flags)?,
            self.dst(&insn.ops[0], ty)?,
        );
        let op = match (ty, relu) {
            (Type::F16, false) => Tern32::FmaF16,
            (Type::F16x2, false) => Tern32::FmaF16x2,
            (Type::Bf16, false) => Tern32::FmaBf16,
            (Type::Bf16x2, false) => Tern32::FmaBf16x2,
            (Type::F16, true) => Tern32::FmaReluF16,
            (Type::F16x2, true) => Tern32::FmaReluF16x2,
            (Type::Bf16, true) => Tern32::FmaReluBf16,
            (Type::Bf16x2, true) => Tern32::FmaReluBf16x2,
            _ => return Err(self.unsupported("this type")),
        };
        self.emit(Op::Tern32 { op, d, a, b, c })?;
        self.half_result(flags, d)
    }

    /// Returns an operand of one or two halves, flushing subnormals if the instruction does.
    fn half_source(
        &mut self,
        insn: &Insn<'_, 'a>,
        operand: usize,
        ty: Type,
        flags: FloatFlags,
    ) -> Result<Row, Error> {
        let a = self.src32(&insn.ops[operand], ty)?;
        if flags.ftz { self.flushed(a) } else { Ok(a) }
    }

    pub(super) fn flushed(&mut self, a: Row) -> Result<Row, Error> {
        let d = self.temp32()?;
        self.emit(Op::Un32 {
            op: Un32::FlushF16,
            flags: FloatFlags::default(),
            d,
            a,
        })?;
        Ok(d)
    }

    /// Applies the flags to a result of one or two halves.
    fn half_result(&mut self, flags: FloatFlags, d: Row) -> Result<(), Error> {
        for (wanted, op) in [(flags.ftz, Un32::FlushF16), (flags.sat, Un32::SaturateF16)] {
            if wanted {
                let flags = FloatFlags::default();
                self.emit(Op::Un32 { op, flags, d, a: d })?;
            }
        }
        Ok(())
    }

    fn half_unary(&mut self, insn: &mut Insn<'_, 'a>, ty: Type, name: &str) -> Result<(), Error> {
        self.arity(insn, &[2])?;
        let (a, d) = (self.src32(&insn.ops[1], ty)?, self.dst(&insn.ops[0], ty)?);
        if matches!(name, "abs" | "neg") {
            let op = if name == "abs" {
                HalfOp::Abs
            } else {
                HalfOp::Neg
            };
            let op = half_op(op, ty).ok_or_else(|| self.unsupported("this type"))?;
            return self.emit(Op::Bin32 { op, d, a, b: a });
        }
        let op = match (name, ty) {
            ("ex2", Type::F16) => Un32::Ex2F16,
            ("ex2", Type::F16x2) => Un32::Ex2F16x2,
            ("tanh", Type::F16) => Un32::TanhF16,
            ("tanh", Type::F16x2) => Un32::TanhF16x2,
            ("ex2", Type::Bf16) => Un32::Ex2Bf16,
            ("ex2", Type::Bf16x2) => Un32::Ex2Bf16x2,
            ("tanh", Type::Bf16) => Un32::TanhBf16,
            ("tanh", Type::Bf16x2) => Un32::TanhBf16x2,
            _ => return Err(self.unsupported("this operation on a 16-bit float")),
        };
        self.emit(Op::Un32 {
            op,
            flags: FloatFlags::default(),
            d,
            a,
        })
    }
}

fn half_op(op: HalfOp, ty: Type) -> Option<Bin32> {
    Some(match ty {
        Type::F16 => Bin32::F16(op),
        Type::F16x2 => Bin32::F16x2(op),
        Type::Bf16 => Bin32::Bf16(op),
        Type::Bf16x2 => Bin32::Bf16x2(op),
        _ => return None,
    })
}
