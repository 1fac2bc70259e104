//! Registers of 128 bits: moved, packed, unpacked, loaded and stored, which is all that sm_80 does
//! with them. Each is two rows.

use super::function::{Lowering, Symbol};
use super::insn::Insn;
use super::operand::Fit;
use super::vectors::VectorElement;
use crate::code::{Mem, Narrow, Op, Row, SINK, Un64, Width};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};
use crate::parse::lexer::clipped;

impl<'a> Lowering<'_, '_, 'a> {
    /// Returns the low and the high half of a register.
    fn halves(&self, operand: &Operand<'a>) -> Result<[Row; 2], Error> {
        match *operand {
            Operand::Name(name) => match self.find(name) {
                Some(Symbol::Register {
                    ty: Type::B128,
                    index,
                }) => Ok([index, index + 1]),
                _ => Err(self.invalid(&format!("`{}` is no register of 128 bits", clipped(name)))),
            },
            _ => Err(self.invalid("expected a register of 128 bits")),
        }
    }

    /// Returns the halves made of a vector of two double words or four words.
    fn joined(&mut self, parts: &[VectorElement<'_, 'a>]) -> Result<[Row; 2], Error> {
        match parts {
            [lo, hi] => Ok([
                self.part_src(lo, Type::B64, Fit::Exact)?,
                self.part_src(hi, Type::B64, Fit::Exact)?,
            ]),
            [_, _, _, _] => {
                let mut halves = [self.temp64()?, self.temp64()?];
                for (d, words) in halves.iter_mut().zip(parts.chunks(2)) {
                    let lo = self.part_src(&words[0], Type::B32, Fit::Exact)?;
                    let hi = self.part_src(&words[1], Type::B32, Fit::Exact)?;
                    self.emit(Op::Pack64 { d: *d, lo, hi })?;
                }
                Ok(halves)
            }
            _ => Err(self.invalid("expected a vector of 128 bits")),
        }
    }

    /// Writes two halves to a vector of two double words or four words.
    fn part_wide(
        &mut self,
        parts: &[VectorElement<'_, 'a>],
        halves: [Row; 2],
    ) -> Result<(), Error> {
        let words = parts.len() == 4;
        if !words && parts.len() != 2 {
            return Err(self.invalid("expected a vector of 128 bits"));
        }
        for (i, part) in parts.iter().enumerate() {
            let ty = if words { Type::B32 } else { Type::B64 };
            let (d, _) = self.part_dest(part, ty, Fit::Exact)?;
            if d == SINK {
                continue;
            }
            self.emit(match (words, i % 2) {
                (false, _) => Op::Un64 {
                    op: Un64::Mov,
                    d,
                    a: halves[i],
                },
                (true, low) => Op::Narrow {
                    op: if low == 0 { Narrow::Low } else { Narrow::High },
                    d,
                    a: halves[i / 2],
                },
            })?;
        }
        Ok(())
    }

    /// Lowers `mov.b128`.
    pub(super) fn mov_wide(&mut self, insn: &Insn<'_, 'a>) -> Result<(), Error> {
        let from = match self.parts(&insn.ops[1]) {
            Some(parts) => self.joined(&parts)?,
            None => self.halves(&insn.ops[1])?,
        };
        // Both halves are read before one is written, because source and destination may overlap.
        let copies = [self.temp64()?, self.temp64()?];
        self.copy_halves(copies, from)?;
        match self.parts(&insn.ops[0]) {
            Some(parts) => self.part_wide(&parts, copies),
            None => {
                let to = self.halves(&insn.ops[0])?;
                self.copy_halves(to, copies)
            }
        }
    }

    fn copy_halves(&mut self, to: [Row; 2], from: [Row; 2]) -> Result<(), Error> {
        for (d, a) in to.into_iter().zip(from) {
            self.emit(Op::Un64 {
                op: Un64::Mov,
                d,
                a,
            })?;
        }
        Ok(())
    }

    pub(super) fn load_wide(&mut self, to: &Operand<'a>, mem: Mem) -> Result<(), Error> {
        let rows = self.halves(to)?;
        let list = self.rows(&rows);
        self.emit(Op::LdVec {
            width: Width::B64,
            n: 2,
            list,
            mem,
        })
    }

    pub(super) fn store_wide(&mut self, from: &Operand<'a>, mem: Mem) -> Result<(), Error> {
        let rows = self.halves(from)?;
        let list = self.rows(&rows);
        self.emit(Op::StVec {
            width: Width::B64,
            n: 2,
            list,
            mem,
        })
    }
}
