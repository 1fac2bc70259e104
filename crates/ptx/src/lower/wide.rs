//! Registers of 128 bits: moved, packed, unpacked, loaded and stored, which is all that sm_80 does with them. Each is two rows.

use super::function::{Lowering, Symbol};
use super::instruction::Insn;
use crate::code::{Mem, Op, Row, Un64, Width};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};
use crate::parse::lexer::clipped;

impl<'a> Lowering<'_, '_, 'a> {
    /// Low and high half of a register.
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

    /// `mov.b128`
    pub(super) fn mov_wide(&mut self, insn: &Insn<'_, 'a>) -> Result<(), Error> {
        let from = match &insn.ops[1] {
            Operand::Vector(parts) if parts.len() == 2 => [
                self.src64(&parts[0], Type::B64)?,
                self.src64(&parts[1], Type::B64)?,
            ],
            whole => self.halves(whole)?,
        };
        let to = match &insn.ops[0] {
            Operand::Vector(parts) if parts.len() == 2 => [
                self.dst(&parts[0], Type::B64)?,
                self.dst(&parts[1], Type::B64)?,
            ],
            whole => self.halves(whole)?,
        };
        // Both are read before one is written: they may be the same registers.
        let copies = [self.temp64()?, self.temp64()?];
        for (d, a) in copies
            .into_iter()
            .zip(from)
            .chain(to.into_iter().zip(copies))
        {
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
