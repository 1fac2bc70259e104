//! Vector operands: `{a, b}` and vector registers, moved element by element, packed and unpacked.

use super::function::{Lowering, Symbol};
use super::insn::Insn;
use super::operand::Fit;
use super::special::special_vector;
use crate::code::{Bin32, FloatFlags, Narrow, Op, Row, SINK, Special, Tern32, Un32, Un64};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

const NONE: FloatFlags = FloatFlags {
    ftz: false,
    sat: false,
};

/// An element of a vector operand.
pub(super) enum VectorElement<'o, 'a> {
    Operand(&'o Operand<'a>),
    /// An element of a vector register, with its declared type.
    Register(Row, Type),
    /// An element of `%tid` and the like.
    Special(Special),
}

impl<'a> Lowering<'_, '_, 'a> {
    /// Returns the elements of `{a, b}` or of a vector register; `None` if the operand is neither.
    pub(super) fn parts<'o>(&self, operand: &'o Operand<'a>) -> Option<Vec<VectorElement<'o, 'a>>> {
        match operand {
            Operand::Vector(parts) => Some(parts.iter().map(VectorElement::Operand).collect()),
            Operand::Name(name) => match self.find(name) {
                Some(Symbol::VectorRegister { ty, index, count }) => {
                    let rows = index..index + count;
                    Some(rows.map(|row| VectorElement::Register(row, ty)).collect())
                }
                _ => {
                    let vector = special_vector(name)?;
                    Some(vector.map(VectorElement::Special).into())
                }
            },
            _ => None,
        }
    }

    /// Returns the elements of a vector operand, which must have this length.
    pub(super) fn vector_parts<'o>(
        &self,
        operand: &'o Operand<'a>,
        n: usize,
    ) -> Result<Vec<VectorElement<'o, 'a>>, Error> {
        match self.parts(operand) {
            Some(parts) if parts.len() == n => Ok(parts),
            Some(_) => Err(self.invalid("vector of another length")),
            None => Err(self.invalid("expected a vector")),
        }
    }

    /// Returns the destination row of an element, with its declared type.
    pub(super) fn part_dest(
        &self,
        part: &VectorElement<'_, 'a>,
        ty: Type,
        fit: Fit,
    ) -> Result<(Row, Type), Error> {
        match *part {
            VectorElement::Operand(operand) => self.dest(operand, ty, fit),
            VectorElement::Register(row, of)
                if of.bytes() == ty.bytes() || of.bytes() > ty.bytes() && fit == Fit::Wider =>
            {
                Ok((row, of))
            }
            VectorElement::Register(..) => Err(self.invalid("a vector of another type")),
            VectorElement::Special(_) => Err(self.invalid("this vector cannot be written")),
        }
    }

    /// Returns the source row of an element.
    pub(super) fn part_src(
        &mut self,
        part: &VectorElement<'_, 'a>,
        ty: Type,
        fit: Fit,
    ) -> Result<Row, Error> {
        match *part {
            VectorElement::Operand(operand) if ty.bytes() == 8 => self.src64(operand, ty),
            VectorElement::Operand(operand) => self.src32_fit(operand, ty, fit),
            VectorElement::Register(row, of) if of.bytes() == ty.bytes() => Ok(row),
            VectorElement::Special(which) if ty.bytes() == 4 => {
                let d = self.temp32()?;
                self.special32(which, d)?;
                Ok(d)
            }
            VectorElement::Register(..) | VectorElement::Special(_) => {
                Err(self.invalid("a vector of another type"))
            }
        }
    }

    /// Lowers `mov.v2.u32 {a, b}, v`: all elements are read before one is written.
    pub(super) fn mov_vector(
        &mut self,
        insn: &Insn<'_, 'a>,
        n: usize,
        ty: Type,
    ) -> Result<(), Error> {
        if !matches!(ty.bytes(), 2 | 4 | 8) || n * ty.bytes() as usize > 16 {
            return Err(self.unsupported("a vector of this type"));
        }
        let mut copies = Vec::with_capacity(n);
        for part in self.vector_parts(&insn.ops[1], n)? {
            let a = self.part_src(&part, ty, Fit::Exact)?;
            let d = if ty.bytes() == 8 {
                self.temp64()?
            } else {
                self.temp32()?
            };
            self.mov_row(ty, d, a)?;
            copies.push(d);
        }
        for (part, a) in self.vector_parts(&insn.ops[0], n)?.iter().zip(copies) {
            let (d, _) = self.part_dest(part, ty, Fit::Exact)?;
            if d != SINK {
                self.mov_row(ty, d, a)?;
            }
        }
        Ok(())
    }

    fn mov_row(&mut self, ty: Type, d: Row, a: Row) -> Result<(), Error> {
        match ty.bytes() {
            8 => self.emit(Op::Un64 {
                op: Un64::Mov,
                d,
                a,
            }),
            _ => self.emit(Op::Un32 {
                op: Un32::Mov,
                flags: NONE,
                d,
                a,
            }),
        }
    }

    /// Lowers `mov.b64 {lo, hi}, x`.
    pub(super) fn unpack(
        &mut self,
        parts: &[VectorElement<'_, 'a>],
        whole: &Operand<'a>,
        ty: Type,
    ) -> Result<(), Error> {
        let part = self.part_type(parts.len(), ty)?;
        let words = if ty.bytes() == 8 {
            let a = self.src64(whole, ty)?;
            let (lo, hi) = (self.temp32()?, self.temp32()?);
            self.emit(Op::Narrow {
                op: Narrow::Low,
                d: lo,
                a,
            })?;
            self.emit(Op::Narrow {
                op: Narrow::High,
                d: hi,
                a,
            })?;
            [lo, hi]
        } else {
            // A copy, because the first part may overwrite the whole.
            let (a, copy) = (self.src32(whole, ty)?, self.temp32()?);
            self.emit(Op::Un32 {
                op: Un32::Mov,
                flags: NONE,
                d: copy,
                a,
            })?;
            [copy, copy]
        };
        for (i, to) in parts.iter().enumerate() {
            let (d, _) = self.part_dest(to, part, Fit::Exact)?;
            if d == SINK {
                continue;
            }
            let bit = i as u32 * part.bytes() * 8;
            let (word, bit) = (words[(bit / 32) as usize], bit % 32);
            match part.bytes() {
                4 => self.emit(Op::Un32 {
                    op: Un32::Mov,
                    flags: NONE,
                    d,
                    a: word,
                })?,
                bytes => {
                    let (pos, len) = (self.const32(bit), self.const32(bytes * 8));
                    self.emit(Op::Tern32 {
                        op: Tern32::BfeU,
                        d,
                        a: word,
                        b: pos,
                        c: len,
                    })?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn pack(
        &mut self,
        whole: &Operand<'a>,
        parts: &[VectorElement<'_, 'a>],
        ty: Type,
    ) -> Result<(), Error> {
        let part = self.part_type(parts.len(), ty)?;
        let mut words = Vec::with_capacity(parts.len());
        for from in parts {
            words.push(self.part_src(from, part, Fit::Exact)?);
        }
        let mut bytes = part.bytes();
        while words.len() > 1 && bytes < 4 {
            let mut merged = Vec::with_capacity(words.len() / 2);
            for pair in words.chunks(2) {
                let d = self.temp32()?;
                if bytes == 2 {
                    self.emit(Op::Bin32 {
                        op: Bin32::Pack16,
                        d,
                        a: pair[0],
                        b: pair[1],
                    })?;
                } else {
                    let (pos, len) = (self.const32(8), self.const32(8));
                    self.emit(Op::Bfi32 {
                        d,
                        a: pair[1],
                        b: pair[0],
                        pos,
                        len,
                    })?;
                }
                merged.push(d);
            }
            words = merged;
            bytes *= 2;
        }
        let d = self.dst(whole, ty)?;
        match *words.as_slice() {
            [lo, hi] => self.emit(Op::Pack64 { d, lo, hi }),
            [a] => self.emit(Op::Un32 {
                op: Un32::Mov,
                flags: NONE,
                d,
                a,
            }),
            _ => Err(self.unsupported("this vector")),
        }
    }

    fn part_type(&self, parts: usize, ty: Type) -> Result<Type, Error> {
        match (ty.bytes(), parts) {
            (2, 2) | (4, 4) | (8, 8) => Ok(Type::B8),
            (4, 2) | (8, 4) => Ok(Type::B16),
            (8, 2) => Ok(Type::B32),
            _ => Err(self.unsupported("this vector")),
        }
    }
}
