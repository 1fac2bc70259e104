//! Matrix instructions `mma`, `wmma`, `ldmatrix` and `movmatrix` (PTX ISA 9.7.14, 9.7.15), in the
//! forms of sm_80.

use super::function::Lowering;
use super::insn::Insn;
use crate::code::{
    BitOp, Element, Fragment, MemSpace, Mma, MmaShape, Op, Role, Row, SINK, Sparse, Sum, Tensor,
};
use crate::error::Error;
use crate::limits::INSTRUCTIONS_MAX;
use crate::parse::ast::{Operand, Type};

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn tensor(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let sparse = insn
            .mods
            .take_any(&["sp", "sp::ordered_metadata"])
            .is_some();
        // `wmma.mma.sync.aligned`, `ldmatrix.sync.aligned`: the kind of `wmma` comes first.
        let kind = match insn.name {
            "wmma" => insn.mods.take_any(&["load", "store", "mma"]),
            _ => None,
        };
        if !insn.mods.take("sync") || !insn.mods.take("aligned") {
            return Err(self.unsupported("no .sync.aligned"));
        }
        let tensor = match (insn.name, kind) {
            ("mma", _) if sparse => self.sparse_mma(insn)?,
            (_, _) if sparse => return Err(self.unsupported("sparse matrices")),
            ("mma", _) => self.mma(insn)?,
            ("ldmatrix", _) => self.load_matrix(insn)?,
            ("movmatrix", _) => self.move_matrix(insn)?,
            (_, Some("mma")) => self.wmma(insn)?,
            (_, Some(kind)) => self.transfer(insn, kind == "store")?,
            _ => return Err(self.unsupported("this form")),
        };
        let tensors = &mut self.context.program.tensors;
        let index = tensors.len() as u32;
        super::Context::limit(
            self.at,
            "tensor instructions of a module",
            u64::from(index) + 1,
            INSTRUCTIONS_MAX as u64 / 16,
        )?;
        tensors.push(tensor);
        self.emit(Op::Tensor { index })
    }

    fn shape(&self, insn: &mut Insn<'_, 'a>) -> Result<MmaShape, Error> {
        insn.mods
            .take_map(MmaShape::from_name)
            .ok_or_else(|| self.unsupported("no shape"))
    }

    /// Whether the matrix is stored by columns.
    fn columns(&self, insn: &mut Insn<'_, 'a>) -> Result<bool, Error> {
        match insn.mods.take_any(&["row", "col"]) {
            Some(layout) => Ok(layout == "col"),
            None => Err(self.unsupported("no layout")),
        }
    }

    fn factor_type(&self, insn: &mut Insn<'_, 'a>) -> Result<Element, Error> {
        insn.mods
            .take_map(Element::from_name)
            .ok_or_else(|| self.unsupported("this type"))
    }

    fn sum_type(&self, insn: &mut Insn<'_, 'a>) -> Result<Sum, Error> {
        insn.mods
            .take_map(Sum::from_name)
            .ok_or_else(|| self.unsupported("this type of sum"))
    }

    fn mma(&mut self, insn: &mut Insn<'_, 'a>) -> Result<Tensor, Error> {
        let shape = self.shape(insn)?;
        let columns = [self.columns(insn)?, self.columns(insn)?];
        let saturate = insn.mods.take("satfinite");
        let rounding = insn.mods.rounding();
        let bits = self.bit_operation(insn)?;
        let d = self.sum_type(insn)?;
        let (a, b) = (self.factor_type(insn)?, self.factor_type(insn)?);
        let c = self.sum_type(insn)?;
        let quarters = shape.is_of_quarters(a);
        let known = match quarters {
            true => (d, c) != (Sum::F16, Sum::F32),
            false => shape.is_of_mma(a) && (a != Element::F16 || c == d),
        };
        let by_rows_and_columns = columns == [false, true];
        if !known || !(quarters || by_rows_and_columns) {
            return Err(self.unsupported("this shape with this type"));
        }
        self.product(insn, shape, (a, b), (c, d), saturate, rounding, bits, {
            quarters.then_some(columns)
        })
    }

    /// Lowers `mma.sp`, whose first matrix has half its elements.
    fn sparse_mma(&mut self, insn: &mut Insn<'_, 'a>) -> Result<Tensor, Error> {
        let shape = self.shape(insn)?;
        let columns = [self.columns(insn)?, self.columns(insn)?];
        let saturate = insn.mods.take("satfinite");
        let d = self.sum_type(insn)?;
        let (a, b) = (self.factor_type(insn)?, self.factor_type(insn)?);
        let c = self.sum_type(insn)?;
        // Number of lanes among which a selector chooses one part.
        let selectors = shape.selectors(a);
        let sums_fit = a.has_sums(c, d) && c == d;
        let factors_fit = a.is_multiplied_by(b);
        let integers = c == Sum::S32;
        if columns != [false, true]
            || selectors == 0
            || !sums_fit
            || !factors_fit
            || (saturate && !integers)
        {
            return Err(self.unsupported("this shape with these types"));
        }
        self.arity(insn, &[6])?;
        let metadata = self.src32(&insn.ops[4], Type::B32)?;
        let selector = match insn.ops[5] {
            Operand::Number(number) if number.double_bits() < selectors.into() => {
                number.double_bits() as u8
            }
            _ => return Err(self.invalid(&format!("expected a selector below {selectors}"))),
        };
        let stored = MmaShape {
            k: shape.k / 2,
            ..shape
        };
        let fragment = |role, shape| Fragment { role, shape };
        let (fa, fb) = (fragment(Role::A(a), stored), fragment(Role::B(b), shape));
        let (fc, fd) = (fragment(Role::C(c), shape), fragment(Role::C(d), shape));
        Ok(Tensor::Mma(Mma {
            shape,
            a,
            b,
            c,
            d,
            quarters: None,
            sparse: Some(Sparse { metadata, selector }),
            saturate,
            bits: BitOp::Xor,
            rounding: Default::default(),
            rows_a: self.fragment(&insn.ops[1], false, fa.registers(), false)?,
            rows_b: self.fragment(&insn.ops[2], false, fb.registers(), false)?,
            rows_c: self.fragment(&insn.ops[3], false, fc.registers(), false)?,
            rows_d: self.fragment(&insn.ops[0], false, fd.registers(), true)?,
        }))
    }

    fn wmma(&mut self, insn: &mut Insn<'_, 'a>) -> Result<Tensor, Error> {
        let bits = self.bit_operation(insn)?;
        // The layout of the matrices in memory no longer matters here.
        let columns = [self.columns(insn)?, self.columns(insn)?];
        let shape = self.shape(insn)?;
        let saturate = insn.mods.take("satfinite");
        let rounding = insn.mods.rounding();
        let d = self.sum_type(insn)?;
        // Forms for products of halves name only the types of the sums.
        let mut probe = insn.mods;
        let types = [(); 3].map(|()| probe.take_first());
        let ((a, b), c) = if types[1].is_none() {
            ((Element::F16, Element::F16), self.sum_type(insn)?)
        } else {
            let factors = (self.factor_type(insn)?, self.factor_type(insn)?);
            if factors.0 == Element::F16 {
                return Err(self.unsupported("this type"));
            }
            (factors, self.sum_type(insn)?)
        };
        let below_a_byte = matches!(a, Element::S4 | Element::U4 | Element::B1);
        if !shape.is_of_wmma(a) || a != b || below_a_byte && columns != [false, true] {
            return Err(self.unsupported("this shape with this type"));
        }
        self.product(insn, shape, (a, b), (c, d), saturate, rounding, bits, None)
    }

    fn bit_operation(&self, insn: &mut Insn<'_, 'a>) -> Result<Option<BitOp>, Error> {
        let bits = match insn.mods.take_any(&["xor", "and"]) {
            None => return Ok(None),
            Some("xor") => BitOp::Xor,
            Some(_) => BitOp::And,
        };
        if !insn.mods.take("popc") {
            return Err(self.unsupported("no .popc"));
        }
        Ok(Some(bits))
    }

    #[allow(clippy::too_many_arguments)]
    fn product(
        &mut self,
        insn: &mut Insn<'_, 'a>,
        shape: MmaShape,
        (a, b): (Element, Element),
        (c, d): (Sum, Sum),
        saturate: bool,
        rounding: Option<crate::code::Rounding>,
        bits: Option<BitOp>,
        quarters: Option<[bool; 2]>,
    ) -> Result<Tensor, Error> {
        self.arity(insn, &[4])?;
        let sums_fit = a.has_sums(c, d);
        let factors_fit = a.is_multiplied_by(b);
        let integers = matches!(a, Element::S8 | Element::U8 | Element::S4 | Element::U4);
        if !sums_fit
            || !factors_fit
            || (saturate && !integers)
            || bits.is_some() != (a == Element::B1)
            || (rounding.is_some() && a != Element::F64)
        {
            return Err(self.unsupported("these types together"));
        }
        let fragment = |role| Fragment { role, shape };
        let registers = |f: Fragment| match (quarters, f.role) {
            (None, Role::A(Element::F16) | Role::B(Element::F16)) if insn.name == "wmma" => 8,
            (None, _) => f.registers(),
            (Some(_), Role::C(Sum::F32)) => 8,
            (Some(_), Role::C(_)) => 4,
            (Some(_), _) => 2,
        };
        let (fa, fb) = (fragment(Role::A(a)), fragment(Role::B(b)));
        let (fc, fd) = (fragment(Role::C(c)), fragment(Role::C(d)));
        let rows_a = self.fragment(&insn.ops[1], fa.is_wide(), registers(fa), false)?;
        let rows_b = self.fragment(&insn.ops[2], fb.is_wide(), registers(fb), false)?;
        let rows_c = self.fragment(&insn.ops[3], fc.is_wide(), registers(fc), false)?;
        let rows_d = self.fragment(&insn.ops[0], fd.is_wide(), registers(fd), true)?;
        Ok(Tensor::Mma(Mma {
            shape,
            a,
            b,
            c,
            d,
            quarters,
            sparse: None,
            saturate,
            bits: bits.unwrap_or(BitOp::Xor),
            rounding: rounding.unwrap_or_default(),
            rows_a,
            rows_b,
            rows_c,
            rows_d,
        }))
    }

    /// Returns the registers of a fragment.
    fn fragment(
        &mut self,
        operand: &Operand<'a>,
        wide: bool,
        count: usize,
        written: bool,
    ) -> Result<Vec<Row>, Error> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            other => std::slice::from_ref(other),
        };
        if parts.len() != count {
            return Err(self.invalid(&format!(
                "{} registers where the fragment has {count}",
                parts.len()
            )));
        }
        let ty = if wide { Type::B64 } else { Type::B32 };
        let mut rows = Vec::with_capacity(count);
        for part in parts {
            rows.push(match (part, written) {
                (_, true) => self.dst(part, ty)?,
                // Constants are used as bits; a float constant is known by its notation.
                (Operand::Number(_), false) if wide => self.src64(part, Type::F64)?,
                (_, false) => self.src(part, ty)?,
            });
        }
        Ok(rows)
    }

    fn load_matrix(&mut self, insn: &mut Insn<'_, 'a>) -> Result<Tensor, Error> {
        self.arity(insn, &[2])?;
        let count = match insn.mods.take_any(&["x1", "x2", "x4"]) {
            Some("x1") => 1,
            Some("x2") => 2,
            Some(_) => 4,
            None => return Err(self.unsupported("this number of matrices")),
        };
        if !insn.mods.take("m8n8") {
            return Err(self.unsupported("this shape"));
        }
        let transposed = insn.mods.take("trans");
        let space = self.matrix_space(insn, &["shared", "shared::cta"])?;
        if !insn.mods.take("b16") {
            return Err(self.unsupported("this type"));
        }
        let mem = self.mem(&insn.ops[1], space)?;
        let rows = self.fragment(&insn.ops[0], false, count, true)?;
        Ok(Tensor::LoadMatrix {
            transposed,
            mem,
            rows,
        })
    }

    fn move_matrix(&mut self, insn: &mut Insn<'_, 'a>) -> Result<Tensor, Error> {
        self.arity(insn, &[2])?;
        let form = ["m8n8", "trans", "b16"].map(|part| insn.mods.take(part));
        if form != [true; 3] {
            return Err(self.unsupported("this form"));
        }
        let a = self.src32(&insn.ops[1], Type::B32)?;
        let d = self.dst(&insn.ops[0], Type::B32)?;
        Ok(Tensor::MoveMatrix { d, a })
    }

    fn matrix_space(
        &self,
        insn: &mut Insn<'_, 'a>,
        spaces: &[&str],
    ) -> Result<Option<MemSpace>, Error> {
        Ok(match insn.mods.take_any(spaces) {
            None => None,
            Some("global") => Some(MemSpace::Global),
            Some(_) => Some(MemSpace::Shared),
        })
    }

    /// Lowers `wmma.load` and `wmma.store`.
    fn transfer(&mut self, insn: &mut Insn<'_, 'a>, store: bool) -> Result<Tensor, Error> {
        self.arity(insn, &[2, 3])?;
        let role = insn
            .mods
            .take_any(if store { &["d"] } else { &["a", "b", "c"] });
        let columns = self.columns(insn)?;
        let shape = self.shape(insn)?;
        let space = self.matrix_space(insn, &["global", "shared", "shared::cta"])?;
        let role = match role {
            Some("a") => Role::A(self.factor_type(insn)?),
            Some("b") => Role::B(self.factor_type(insn)?),
            Some(_) => Role::C(self.sum_type(insn)?),
            None => return Err(self.unsupported("this form")),
        };
        let fragment = Fragment { role, shape };
        let elements: &[Element] = match role {
            Role::A(element) | Role::B(element) => &[element],
            Role::C(Sum::F16) => &[Element::F16],
            Role::C(Sum::F32) => &[Element::F16, Element::Bf16, Element::Tf32],
            Role::C(Sum::F64) => &[Element::F64],
            Role::C(Sum::S32) => &[Element::S8, Element::S4, Element::B1],
        };
        let below_a_byte = matches!(elements, [Element::S4 | Element::U4 | Element::B1]);
        let one_way = match role {
            Role::A(_) => below_a_byte && columns,
            Role::B(_) => below_a_byte && !columns,
            Role::C(_) => false,
        };
        if one_way || !elements.iter().any(|&e| shape.is_of_wmma(e)) {
            return Err(self.unsupported("this shape with this type"));
        }
        let (address, registers) = if store { (0, 1) } else { (1, 0) };
        let mem = self.mem(&insn.ops[address], space)?;
        if store && mem.space == MemSpace::Param {
            return Err(self.invalid("kernel parameters are read only"));
        }
        let stride = match insn.ops.get(2) {
            None => SINK,
            Some(operand) => self.src32(operand, Type::U32)?,
        };
        let count = match role {
            Role::A(Element::F16) | Role::B(Element::F16) => 8,
            _ => fragment.registers(),
        };
        let wide = fragment.is_wide();
        let rows = self.fragment(&insn.ops[registers], wide, count, !store)?;
        Ok(Tensor::Transfer {
            store,
            fragment,
            columns,
            mem,
            stride,
            rows,
        })
    }
}
