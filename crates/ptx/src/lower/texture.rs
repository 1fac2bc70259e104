//! Textures and surfaces in unified mode, named by numbers in registers (PTX ISA 9.7.10, 9.7.11).

use super::function::Lowering;
use super::insn::Insn;
use super::operand::Fit;
use crate::code::{
    Access, AtomOp, DetailRows, Geometry, Op, Outside, Query, Results, Row, TextureInstruction,
    TextureOp,
};
use crate::error::Error;
use crate::limits::INSTRUCTIONS_MAX;
use crate::parse::ast::{Operand, Type};

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn texture(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let fetches = matches!(insn.name, "tex" | "tld4");
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
        self.emit(Op::Texture { index })?;
        match insn.ops[0] {
            // Whether all texels read are resident, which memory always is.
            Operand::VectorAnd(_, p) if fetches => {
                let d = self.pred_dest(&Operand::Name(p))?;
                self.emit(Op::PredConst { value: true, d })
            }
            _ => Ok(()),
        }
    }

    /// Lowers `tex`: results, object and coordinates, level or gradients, offsets.
    fn sample(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        let detail = insn.mods.take_any(&["base", "level", "grad"]);
        let first = match detail {
            None | Some("base") => 2,
            Some("level") => 3,
            _ => 4,
        };
        let (geometry, integers, results) = self.fetch_types(insn)?;
        let moved = self.has_offsets(insn, first, geometry)?;
        let mut out = self.fetch(insn, geometry, TextureOp::Sample { integers, results })?;
        if moved {
            out.offset = self.vector3(&insn.ops[first], geometry, Type::S32)?;
        }
        match detail {
            Some("level") if !integers => {
                out.detail = DetailRows::Level(self.src32(&insn.ops[2], Type::F32)?);
            }
            Some("level") => return Err(self.unsupported("a level with coordinates of texels")),
            Some("grad") if !integers => {
                let gradients = [
                    self.vector3(&insn.ops[2], geometry, Type::F32)?,
                    self.vector3(&insn.ops[3], geometry, Type::F32)?,
                ];
                out.detail = DetailRows::Gradients(gradients);
            }
            Some("grad") => return Err(self.unsupported("gradients of integers")),
            _ => {}
        }
        Ok(out)
    }

    fn gather(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        let channel = match insn.mods.take_any(&["r", "g", "b", "a"]) {
            Some("r") => 0,
            Some("g") => 1,
            Some("b") => 2,
            Some(_) => 3,
            None => return Err(self.unsupported("no channel")),
        };
        let (geometry, integers, results) = self.fetch_types(insn)?;
        let flat = geometry.dimensions == 2 || geometry.cube;
        if !flat || integers || results != Results::Words {
            return Err(self.unsupported("this form"));
        }
        let moved = self.has_offsets(insn, 2, geometry)?;
        let mut out = self.fetch(insn, geometry, TextureOp::Gather { channel })?;
        if moved {
            out.offset = self.vector3(&insn.ops[2], geometry, Type::S32)?;
        }
        Ok(out)
    }

    /// Parses `.geom.v4.dtype.ctype`: the geometry, whether coordinates are integers, and the form
    /// of the results.
    fn fetch_types(&self, insn: &mut Insn<'_, 'a>) -> Result<(Geometry, bool, Results), Error> {
        let geometry = self.geometry(insn)?;
        let vector = insn.mods.take_any(&["v4", "v2"]);
        let results = match (vector, insn.mods.ty()) {
            (Some("v4"), Some(Type::U32 | Type::S32 | Type::F32)) => Results::Words,
            (Some("v4"), Some(Type::F16)) => Results::Halves,
            (Some("v2"), Some(Type::F16x2)) => Results::Packed,
            _ => return Err(self.unsupported("this type of result")),
        };
        match insn.mods.ty() {
            Some(Type::S32) if !geometry.cube => Ok((geometry, true, results)),
            Some(Type::F32) => Ok((geometry, false, results)),
            _ => Err(self.unsupported("this type of coordinate")),
        }
    }

    fn fetch(
        &mut self,
        insn: &Insn<'_, 'a>,
        geometry: Geometry,
        op: TextureOp,
    ) -> Result<TextureInstruction, Error> {
        let (count, ty) = match op {
            TextureOp::Sample {
                results: Results::Packed,
                ..
            } => (2, Type::B32),
            TextureOp::Sample {
                results: Results::Halves,
                ..
            } => (4, Type::B16),
            _ => (4, Type::B32),
        };
        let parts = match &insn.ops[0] {
            Operand::Vector(parts) | Operand::VectorAnd(parts, _) if parts.len() == count => parts,
            _ => return Err(self.invalid(&format!("expected {count} results"))),
        };
        let values = parts
            .iter()
            .map(|part| Ok(self.dest(part, ty, Fit::Exact)?.0))
            .collect::<Result<Vec<_>, Error>>()?;
        self.at_coordinates(&insn.ops[1], geometry, op, values)
    }

    /// Whether `, {e0, e1}` follows the other operands.
    fn has_offsets(
        &self,
        insn: &Insn<'_, 'a>,
        others: usize,
        geometry: Geometry,
    ) -> Result<bool, Error> {
        let Some(operand) = insn.ops.get(others) else {
            self.arity(insn, &[others])?;
            return Ok(false);
        };
        let scalar = !matches!(operand, Operand::Vector(_)) && geometry.dimensions != 1;
        if insn.ops.len() > others + 1 || scalar {
            return Err(self.unsupported("a depth to compare with"));
        }
        if geometry.cube {
            return Err(self.invalid("a cube takes no offsets"));
        }
        Ok(true)
    }

    /// Lowers one number for each dimension of the geometry; there may be four where three are
    /// used.
    fn vector3(
        &mut self,
        operand: &Operand<'a>,
        geometry: Geometry,
        ty: Type,
    ) -> Result<[Row; 3], Error> {
        let parts = match operand {
            Operand::Vector(parts) => &parts[..],
            one => std::slice::from_ref(one),
        };
        let wanted = usize::from(geometry.dimensions);
        if parts.len() != wanted && (parts.len() != 4 || wanted != 3) {
            return Err(self.invalid("a vector of another length"));
        }
        let mut rows = [self.const32(0); 3];
        for (row, part) in rows.iter_mut().zip(&parts[..wanted]) {
            *row = self.src32(part, ty)?;
        }
        Ok(rows)
    }

    fn geometry(&self, insn: &mut Insn<'_, 'a>) -> Result<Geometry, Error> {
        insn.mods
            .take_map(Geometry::from_name)
            .ok_or_else(|| self.unsupported("this geometry"))
    }

    /// Lowers `[object, {layer, x, y, z}]`; the manual has four coordinates where three are used.
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
            TextureOp::Sample {
                integers: false,
                ..
            } | TextureOp::Gather { .. }
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
            offset: [none; 3],
            detail: DetailRows::Base,
            values,
        })
    }

    fn surface(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        let store = insn.name == "sust";
        self.arity(insn, &[2])?;
        let formatted = match insn.mods.take_any(&["b", "p"]) {
            Some("b") => false,
            Some(_) if store => true,
            _ => return Err(self.unsupported("formatted access")),
        };
        let geometry = self.surface_geometry(insn)?;
        // Cache operators have no effect, because the host's caches are coherent.
        insn.mods.take_any(&["ca", "cg", "cs", "cv", "wb", "wt"]);
        let count = match insn.mods.take_any(&["v2", "v4"]) {
            None => 1u8,
            Some("v2") => 2,
            Some(_) => 4,
        };
        let ty = match insn.mods.ty() {
            Some(ty @ Type::B32) => ty,
            Some(ty @ (Type::B8 | Type::B16 | Type::B64)) if !formatted => ty,
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
        let access = if store { Access::Store } else { Access::Load };
        let op = match formatted {
            true => TextureOp::Formatted { access, outside },
            false => TextureOp::Surface {
                access,
                bytes: ty.bytes() as u8,
                outside,
            },
        };
        self.at_coordinates(&insn.ops[place], geometry, op, values)
    }

    /// Lowers `sured`.
    fn reduce(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        self.arity(insn, &[2])?;
        let formatted = match insn.mods.take_any(&["b", "p"]) {
            Some("b") => false,
            Some(_) => true,
            None => return Err(self.unsupported("neither .b nor .p")),
        };
        let name = insn.mods.take_any(&["add", "min", "max", "and", "or"]);
        let geometry = self.surface_geometry(insn)?;
        insn.mods.take_any(&["ca", "cg", "cs", "cv", "wb", "wt"]);
        let ty = self.need_type(insn)?;
        let op = match (name, ty, formatted) {
            (Some("add"), Type::U32 | Type::S32 | Type::U64, false) => AtomOp::Add,
            (Some("min"), Type::U32 | Type::U64, false) => AtomOp::MinU,
            (Some("min"), Type::S32 | Type::S64, false) => AtomOp::MinS,
            (Some("max"), Type::U32 | Type::U64, false) => AtomOp::MaxU,
            (Some("max"), Type::S32 | Type::S64, false) => AtomOp::MaxS,
            (Some("and"), Type::B32, _) => AtomOp::And,
            (Some("or"), Type::B32, _) => AtomOp::Or,
            (Some("add"), Type::B32, true) => AtomOp::Add,
            // The surface decides whether the texel is signed.
            (Some("min"), Type::B32, true) => AtomOp::MinU,
            (Some("max"), Type::B32, true) => AtomOp::MaxU,
            _ => return Err(self.unsupported("this operation with this type")),
        };
        let outside = outside(insn);
        let data = match &insn.ops[1] {
            Operand::Vector(parts) if parts.len() == 1 => &parts[0],
            one => one,
        };
        let value = self.src(data, ty)?;
        let access = Access::Reduce(op);
        let op = match formatted {
            true => TextureOp::Formatted { access, outside },
            false => TextureOp::Surface {
                access,
                bytes: ty.bytes() as u8,
                outside,
            },
        };
        self.at_coordinates(&insn.ops[0], geometry, op, vec![value])
    }

    fn surface_geometry(&self, insn: &mut Insn<'_, 'a>) -> Result<Geometry, Error> {
        let geometry = self.geometry(insn)?;
        match geometry.cube {
            true => Err(self.unsupported("this geometry")),
            false => Ok(geometry),
        }
    }

    fn query(&mut self, insn: &mut Insn<'_, 'a>) -> Result<TextureInstruction, Error> {
        let surface = insn.name == "suq";
        // `txq.level.width` names a level after the object.
        let of_level = !surface && insn.mods.take("level");
        self.arity(insn, &[2 + usize::from(of_level)])?;
        let what = match insn.mods.take_first() {
            Some("width") => Query::Width,
            Some("height") => Query::Height,
            Some("depth") => Query::Depth,
            _ if of_level => return Err(self.unsupported("this question of a level")),
            Some("array_size") => Query::ArraySize,
            Some("channel_data_type") => Query::ChannelType,
            Some("channel_order") => Query::ChannelOrder,
            Some("normalized_coords") if !surface => Query::NormalisedCoordinates,
            Some("num_mipmap_levels") if !surface => Query::Levels,
            Some("num_samples") if !surface => Query::Samples,
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
        let detail = match of_level {
            true => DetailRows::Level(self.src32(&insn.ops[2], Type::S32)?),
            false => DetailRows::Base,
        };
        Ok(TextureInstruction {
            object: self.src64(&Operand::Name(base), Type::B64)?,
            op: TextureOp::Query { what, surface },
            geometry: Geometry {
                dimensions: 0,
                layered: false,
                cube: false,
            },
            at: [none; 3],
            layer: none,
            offset: [none; 3],
            detail,
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
