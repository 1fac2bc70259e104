//! Dispatch of opcode names to the files that lower them.

use super::function::Lowering;
use super::insn::Insn;
use super::modifiers::Modifiers;
use crate::error::Error;
use crate::parse::ast::{Operand, Type};

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn instruction(
        &mut self,
        name: &'a str,
        mods: Modifiers<'a>,
        ops: &[Operand<'a>],
    ) -> Result<(), Error> {
        if let Some(sm) = super::newer::needs(name, &mods)
            && sm > self.target
        {
            return Err(self.unsupported(&format!(
                "this form, which needs sm_{sm} in a text for sm_{}",
                self.target
            )));
        }
        let mut insn = Insn { name, mods, ops };
        let i = &mut insn;
        match name {
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "min" | "max" | "abs" | "neg" => {
                self.arithmetic(i)?
            }
            "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "ex2" | "lg2" | "tanh" | "copysign" => {
                self.float(i)?
            }
            "mul24" | "mad24" | "sad" | "rem" | "addc" | "subc" | "madc" | "dp4a" | "dp2a" => {
                self.integer(i)?
            }
            "popc" | "clz" | "bfind" | "brev" | "bfe" | "bfi" | "shf" | "lop3" | "prmt" | "and"
            | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "bmsk" | "szext" | "fns" => {
                self.bits(i)?
            }
            "setp" | "set" | "selp" | "slct" | "testp" => self.compare(i)?,
            "mov" => self.mov(i)?,
            "cvt" => self.cvt(i)?,
            "cvta" => self.cvta(i)?,
            "isspacep" => self.isspacep(i)?,
            "istypep" => self.istypep(i)?,
            "ld" | "ldu" => self.load(i)?,
            "st" => self.store(i)?,
            "atom" | "red" => self.atomic(i)?,
            "prefetch" | "prefetchu" | "applypriority" | "discard" => self.hint(i)?,
            "cp" => self.cp_async(i)?,
            "mbarrier" => self.mbarrier(i)?,
            "createpolicy" => self.create_policy(i)?,
            "membar" | "fence" => self.fence(i)?,
            "bra" | "brx" => self.branch(i)?,
            "call" => self.call(i)?,
            "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "pmevent" => {
                self.simple_control(i)?
            }
            "griddepcontrol" => self.grid_dependency(i)?,
            "bar" | "barrier" => self.barrier(i)?,
            "shfl" => self.shfl(i)?,
            "vote" => self.vote(i)?,
            "match" => self.match_sync(i)?,
            "redux" => self.redux(i)?,
            "activemask" => self.activemask(i)?,
            "mma" | "wmma" | "ldmatrix" | "movmatrix" => self.tensor(i)?,
            "alloca" | "stacksave" | "stackrestore" => self.stack(i)?,
            "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" => self.texture(i)?,
            _ if super::video::is_video(name) => self.video(i)?,
            _ => return Err(self.unsupported(&format!("instruction `{name}`"))),
        }
        match insn.mods.rest() {
            None => Ok(()),
            Some(rest) => Err(self.unsupported(&format!("modifier `.{rest}`"))),
        }
    }

    /// Lowers instructions of all types of numbers.
    fn arithmetic(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        // The last type decides: `mul.wide.u32`, `fma.rn.f32`.
        let mut probe = insn.mods;
        match std::iter::from_fn(|| probe.ty()).last() {
            Some(Type::F32 | Type::F64) => self.float(insn),
            Some(ty) if ty.is_float() => self.half(insn),
            _ => self.integer(insn),
        }
    }

    /// Fails unless the instruction has one of these numbers of operands.
    pub(super) fn arity(&self, insn: &Insn<'_, 'a>, allowed: &[usize]) -> Result<(), Error> {
        if allowed.contains(&insn.ops.len()) {
            return Ok(());
        }
        Err(self.invalid(&format!("`{}` with {} operands", insn.name, insn.ops.len())))
    }

    pub(super) fn need_type(&self, insn: &mut Insn<'_, 'a>) -> Result<Type, Error> {
        insn.mods.ty().ok_or_else(|| self.unsupported("no type"))
    }
}
