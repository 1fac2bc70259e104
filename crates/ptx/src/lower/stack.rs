//! Memory of a thread allocated at run time: `alloca`, `stacksave`, `stackrestore` (PTX ISA
//! 9.7.17).

use super::function::Lowering;
use super::insn::Insn;
use crate::code::{Narrow, Op, Row, StackOp};
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

const ALIGN_DEFAULT: u32 = 8;

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn stack(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        let ty = match insn.mods.ty() {
            Some(ty @ (Type::U32 | Type::U64)) => ty,
            _ => return Err(self.unsupported("this type")),
        };
        let none = self.const64(0);
        match insn.name {
            "alloca" => {
                self.arity(insn, &[2, 3])?;
                let a = self.wide_source(&insn.ops[1], ty)?;
                let align = match insn.ops.get(2) {
                    None => ALIGN_DEFAULT,
                    Some(Operand::Number(number)) => u32::try_from(number.double_bits())
                        .ok()
                        .filter(|align| align.is_power_of_two() && *align <= 1 << 16)
                        .ok_or_else(|| self.unsupported("this alignment"))?,
                    Some(_) => return Err(self.invalid("expected an alignment")),
                };
                self.stack_result(StackOp::Take { align }, &insn.ops[0], ty, a)
            }
            "stacksave" => {
                self.arity(insn, &[1])?;
                self.stack_result(StackOp::Save, &insn.ops[0], ty, none)
            }
            _ => {
                self.arity(insn, &[1])?;
                let a = self.wide_source(&insn.ops[0], ty)?;
                let d = self.temp64()?;
                self.emit(Op::Stack {
                    op: StackOp::Restore,
                    d,
                    a,
                })
            }
        }
    }

    fn wide_source(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Row, Error> {
        if ty == Type::U64 {
            return self.src64(operand, ty);
        }
        let (lo, hi) = (self.src32(operand, ty)?, self.const32(0));
        let d = self.temp64()?;
        self.emit(Op::Pack64 { d, lo, hi })?;
        Ok(d)
    }

    fn stack_result(
        &mut self,
        op: StackOp,
        to: &Operand<'a>,
        ty: Type,
        a: Row,
    ) -> Result<(), Error> {
        let d = self.dst(to, ty)?;
        if ty == Type::U64 {
            return self.emit(Op::Stack { op, d, a });
        }
        let wide = self.temp64()?;
        self.emit(Op::Stack { op, d: wide, a })?;
        self.emit(Op::Narrow {
            op: Narrow::Low,
            d,
            a: wide,
        })
    }
}
