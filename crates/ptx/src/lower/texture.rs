//! Textures and surfaces in the unified mode, by numbers in registers (PTX ISA 9.7.10, 9.7.11).

use super::function::Lowering;
use super::instruction::Insn;
use super::operand::Fit;
use crate::code::{
    Access, AtomOp, Geometry, Op, Outside, Query, Row, TextureInstruction, TextureOp,
};
use crate::error::Error;
use crate::limits::INSTRUCTIONS_MAX;
use crate::parse::ast::{Operand, Type};

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn texture(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let instruction = match insn.name {
            "tex" => self.sample(insn)?,
            "tld4" => self.gather(insn)?,
            "suld" | "sust" => self.surface(insn)?,
            "sured" => self.reduce(insn)?,
            _ => self.query(insn)?,
        };
        let textures = &mut self.context.program.textures;
        let index = textures.len() as u32;
        super::Context::limit(
            self.at,
            "texture instructions of a module",
            u64::from(index) + 1,
            INSTRUCTIONS_MAX as u64 / 16,
        )?;
        textures.push(instruction);
        self.emit(Op::Texture { index })
    }

    /// `tex`: textures here have one level, which is what any level of detail comes to.
    fn sample(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        let detail = match insn.mods.take_any(&["base", "level", "grad"]) {
            None | Some("base") => 0,
            Some("level") => 1,
            _ => 2,
        };
        self.arity(insn, &[2 + detail])?;
        let (geometry, integers) = self.fetch_types(insn)?;
        self.fetch(insn, geometry, TextureOp::Sample { integers })
    }

    fn gather(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        self.arity(insn, &[2])?;
        let channel = match insn.mods.take_any(&["r", "g", "b", "a"]) {
            Some("r") => 0,
            Some("g") => 1,
            Some("b") => 2,
            Some(_) => 3,
            None => return Err(self.unsupported("no channel")),
        };
        let (geometry, integers) = self.fetch_types(insn)?;
        if geometry.dimensions != 2 || integers {
            return Err(self.unsupported("this form"));
        }
        self.fetch(insn, geometry, TextureOp::Gather { channel })
    }

    /// `.geom.v4.dtype.ctype`: where, and whether coordinates are integers.
    fn fetch_types(&self, insn: &mut Insn<'_, 'a>) -> Result<(Geometry, bool), Error> {
        let geometry = self.geometry(insn)?;
        if !insn.mods.take("v4") {
            return Err(self.unsupported("other results than .v4"));
        }
        match insn.mods.ty() {
            Some(Type::U32 | Type::S32 | Type::F32) => {}
            _ => return Err(self.unsupported("this type of result")),
        }
        match insn.mods.ty() {
            Some(Type::S32) => Ok((geometry, true)),
            Some(Type::F32) => Ok((geometry, false)),
            _ => Err(self.unsupported("this type of coordinate")),
        }
    }

    fn fetch(
        &mut self,
        insn: &Insn<'_, 'a>,
        geometry: Geometry,
        op: TextureOp,
    ) -> Result<TextureInstruction, Error> {
        let Operand::Vector(parts) = &insn.ops[0] else {
            return Err(self.invalid("expected four results"));
        };
        if parts.len() != 4 {
            return Err(self.invalid("expected four results"));
        }
        let values = parts
            .iter()
            .map(|part| Ok(self.dest(part, Type::B32, Fit::Exact)?.0))
            .collect::<Result<Vec<_>, Error>>()?;
        self.at_coordinates(&insn.ops[1], geometry, op, values)
    }

    fn geometry(&self, insn: &mut Insn<'_, 'a>) -> Result<Geometry, Error> {
        insn.mods
            .take_map(Geometry::from_name)
            .ok_or_else(|| self.unsupported("this geometry"))
    }

    /// `[object, {layer, x, y, z}]`; the manual has four coordinates where three are meant.
    fn at_coordinates(
        &mut self,
        operand: &Operand<'a>,
        geometry: Geometry,
        op: TextureOp,
        values: Vec<Row>,
    ) -> Result<TextureInstruction, Error> {
        let Operand::Coordinates { base, parts } = operand else {
            return Err(self.invalid("expected an object and coordinates"));
        };
        let parts = match &parts[..] {
            [Operand::Vector(parts)] => &parts[..],
            [one @ (Operand::Name(_) | Operand::Number(_))] => std::slice::from_ref(one),
            _ => return Err(self.unsupported("a texture and a sampler")),
        };
        let first = usize::from(geometry.layered);
        let wanted = first + usize::from(geometry.dimensions);
        if parts.len() != wanted && (parts.len() != 4 || wanted > 4) {
            return Err(self.invalid("coordinates of another number"));
        }
        let none = self.const32(0);
        let (mut at, mut layer) = ([none; 3], none);
        if geometry.layered {
            layer = self.src32(&parts[0], Type::U32)?;
        }
        let floats = matches!(
            op,
            TextureOp::Sample { integers: false } | TextureOp::Gather { .. }
        );
        let ty = if floats { Type::F32 } else { Type::S32 };
        for (row, part) in at.iter_mut().zip(&parts[first..wanted]) {
            *row = self.src32(part, ty)?;
        }
        Ok(TextureInstruction {
            object: self.src64(&Operand::Name(base), Type::B64)?,
            op,
            geometry,
            at,
            layer,
            values,
        })
    }

    fn surface(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        let store = insn.name == "sust";
        self.arity(insn, &[2])?;
        if !insn.mods.take("b") {
            return Err(self.unsupported("formatted access"));
        }
        let geometry = self.geometry(insn)?;
        // Caches of the host are coherent.
        insn.mods.take_any(&["ca", "cg", "cs", "cv", "wb", "wt"]);
        let count = match insn.mods.take_any(&["v2", "v4"]) {
            None => 1u8,
            Some("v2") => 2,
            Some(_) => 4,
        };
        let ty = match insn.mods.ty() {
            Some(ty @ (Type::B8 | Type::B16 | Type::B32 | Type::B64)) => ty,
            _ => return Err(self.unsupported("this type")),
        };
        if u32::from(count) * ty.bytes() > 16 {
            return Err(self.unsupported("more than 16 bytes"));
        }
        let outside = outside(insn);
        let (place, data) = if store { (0, 1) } else { (1, 0) };
        let parts = match &insn.ops[data] {
            Operand::Vector(parts) => &parts[..],
            one => std::slice::from_ref(one),
        };
        if parts.len() != usize::from(count) {
            return Err(self.invalid("a vector of another length"));
        }
        let mut values = Vec::with_capacity(parts.len());
        for part in parts {
            values.push(match (store, ty) {
                (false, Type::B64) => self.dest(part, ty, Fit::Exact)?.0,
                (false, _) => {
                    let (row, declared) = self.dest(part, ty, Fit::Wider)?;
                    if declared.bytes() == 8 {
                        return Err(self.unsupported("a register of 64 bits for fewer"));
                    }
                    row
                }
                (true, Type::B64) => self.src64(part, ty)?,
                (true, _) => self.src32_fit(part, ty, Fit::Wider)?,
            });
        }
        let op = TextureOp::Surface {
            access: if store { Access::Store } else { Access::Load },
            bytes: ty.bytes() as u8,
            outside,
        };
        self.at_coordinates(&insn.ops[place], geometry, op, values)
    }

    /// `sured.b`, by bytes as the others; formatted ones are refused.
    fn reduce(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        self.arity(insn, &[2])?;
        if !insn.mods.take("b") {
            return Err(self.unsupported("formatted access"));
        }
        let name = insn.mods.take_any(&["add", "min", "max", "and", "or"]);
        let geometry = self.geometry(insn)?;
        insn.mods.take_any(&["ca", "cg", "cs", "cv", "wb", "wt"]);
        let ty = self.need_type(insn)?;
        let op = match (name, ty) {
            (Some("add"), Type::U32 | Type::S32 | Type::U64) => AtomOp::Add,
            (Some("min"), Type::U32 | Type::U64) => AtomOp::MinU,
            (Some("min"), Type::S32 | Type::S64) => AtomOp::MinS,
            (Some("max"), Type::U32 | Type::U64) => AtomOp::MaxU,
            (Some("max"), Type::S32 | Type::S64) => AtomOp::MaxS,
            (Some("and"), Type::B32) => AtomOp::And,
            (Some("or"), Type::B32) => AtomOp::Or,
            _ => return Err(self.unsupported("this operation with this type")),
        };
        let outside = outside(insn);
        let data = match &insn.ops[1] {
            Operand::Vector(parts) if parts.len() == 1 => &parts[0],
            one => one,
        };
        let value = self.src(data, ty)?;
        let op = TextureOp::Surface {
            access: Access::Reduce(op),
            bytes: ty.bytes() as u8,
            outside,
        };
        self.at_coordinates(&insn.ops[0], geometry, op, vec![value])
    }

    fn query(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        let surface = insn.name == "suq";
        self.arity(insn, &[2])?;
        let what = match insn.mods.take_first() {
            Some("width") => Query::Width,
            Some("height") => Query::Height,
            Some("depth") => Query::Depth,
            Some("array_size") => Query::ArraySize,
            Some("normalized_coords") if !surface => Query::NormalisedCoordinates,
            Some("num_mipmap_levels" | "num_samples") if !surface => Query::One,
            _ => return Err(self.unsupported("this question")),
        };
        if !insn.mods.take("b32") {
            return Err(self.unsupported("this type"));
        }
        let value = self.dest(&insn.ops[0], Type::B32, Fit::Exact)?.0;
        let Operand::Address {
            base: Some(base),
            offset: 0,
        } = insn.ops[1]
        else {
            return Err(self.invalid("expected an object"));
        };
        let none = self.const32(0);
        Ok(TextureInstruction {
            object: self.src64(&Operand::Name(base), Type::B64)?,
            op: TextureOp::Query { what, surface },
            geometry: Geometry {
                dimensions: 0,
                layered: false,
            },
            at: [none; 3],
            layer: none,
            values: vec![value],
        })
    }
}

fn outside(insn: &mut Insn<'_, '_>) -> Outside {
    match insn.mods.take_any(&["trap", "clamp", "zero"]) {
        None | Some("trap") => Outside::Trap,
        Some("clamp") => Outside::Clamp,
        Some(_) => Outside::Zero,
    }
}
