//! Control flow and calls (PTX ISA 9.7.12).

use super::Context;
use super::function::{Fixup, Lowering, Symbol};
use super::insn::Insn;
use crate::code::{Base, Call, Callee, Guard, Mem, MemSpace, Op, ParamSlot, Row, Runtime};
use crate::error::Error;
use crate::limits::INSTRUCTIONS_MAX;
use crate::parse::ast::{Operand, Type};
use crate::parse::lexer::{Number, clipped};

impl<'a> Lowering<'_, '_, 'a> {
    pub(super) fn branch(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        insn.mods.take("uni");
        if insn.name == "bra" {
            self.arity(insn, &[1])?;
            let Operand::Name(label) = insn.ops[0] else {
                return Err(self.invalid("expected a label"));
            };
            let code = self.context.program.code.len() as u32;
            self.fixup(Fixup::Branch(code), label)?;
            return self.emit(Op::Bra { target: 0 });
        }
        if !insn.mods.take("idx") {
            return Err(self.unsupported("this form"));
        }
        self.arity(insn, &[2])?;
        let index = self.src32(&insn.ops[0], Type::U32)?;
        let Operand::Name(table) = insn.ops[1] else {
            return Err(self.invalid("expected a list of targets"));
        };
        let labels = self
            .scopes
            .iter()
            .rev()
            .find_map(|s| s.targets.get(table))
            .cloned();
        let Some(labels) = labels else {
            return Err(self.invalid("unknown list of targets"));
        };
        let first = self.context.program.targets.len() as u32;
        let count = labels.len() as u32;
        // Many branches may name one line of targets, so the copies count against the limit too.
        Context::limit(
            self.at,
            "branch targets",
            u64::from(first) + u64::from(count),
            INSTRUCTIONS_MAX as u64,
        )?;
        for (i, label) in labels.into_iter().enumerate() {
            self.context.program.targets.push(0);
            self.fixup(Fixup::Target(first + i as u32), label)?;
        }
        self.emit(Op::BrxIdx {
            index,
            first,
            count,
        })
    }

    pub(super) fn simple_control(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        insn.mods.take("uni");
        match insn.name {
            "ret" => self.emit_return(),
            "exit" => self.emit(Op::Exit),
            "trap" | "brkpt" => self.emit(Op::Trap),
            "nanosleep" => {
                self.need_type(insn)?;
                self.emit(Op::Yield)
            }
            _ => {
                insn.mods.take("mask");
                self.emit(Op::Nop)
            }
        }
    }

    /// Lowers `griddepcontrol` to nothing. A grid here begins after all grids before it in its
    /// stream have ended, whatever its launch allows; so there is nothing to wait for, and the hint
    /// to start dependents can be ignored.
    pub(super) fn grid_dependency(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        self.arity(insn, &[0])?;
        match insn.mods.take_any(&["launch_dependents", "wait"]) {
            Some(_) => self.emit(Op::Nop),
            None => Err(self.invalid("expected .launch_dependents or .wait")),
        }
    }

    /// Lowers `call (ret), f, (a, b);` and `call (ret), %rd1, (a), prototype;`.
    pub(super) fn call(&mut self, insn: &mut Insn<'_, 'a>) -> Result<(), Error> {
        insn.mods.take("uni");
        let mut ops = insn.ops.iter();
        let mut next = ops.next();
        let mut returns: &[Operand<'a>] = &[];
        if let Some(Operand::List(list)) = next {
            returns = list;
            next = ops.next();
        }
        let Some(&Operand::Name(target)) = next else {
            return Err(self.invalid("expected a function"));
        };
        let mut params: &[Operand<'a>] = &[];
        let mut extra = ops.next();
        if let Some(Operand::List(list)) = extra {
            params = list;
            extra = ops.next();
        }
        let (callee, return_bytes, param_bytes) = match self.find(target) {
            Some(Symbol::Function { index }) => self.direct(index)?,
            Some(Symbol::Register { ty, index }) if ty.bytes() == 8 => {
                let Some(&Operand::Name(prototype)) = extra else {
                    return Err(self.invalid("expected a prototype"));
                };
                let sizes = self
                    .scopes
                    .iter()
                    .rev()
                    .find_map(|s| s.prototypes.get(prototype))
                    .cloned();
                let Some((returns, params)) = sizes else {
                    return Err(self.unsupported("a call without a prototype"));
                };
                (Callee::Indirect(index), returns, params)
            }
            _ => return Err(self.invalid(&format!("`{}` is no function", clipped(target)))),
        };
        if returns.len() != return_bytes.len() || params.len() != param_bytes.len() {
            return Err(self.invalid("another number of parameters than declared"));
        }
        let mut call = Call {
            callee,
            returns: Vec::new(),
            params: Vec::new(),
        };
        for (operand, &bytes) in params.iter().zip(&param_bytes) {
            let slot = self.actual(operand, bytes, true)?;
            call.params.push(slot);
        }
        let mut results = Vec::new();
        for (operand, &bytes) in returns.iter().zip(&return_bytes) {
            let slot = self.actual(operand, bytes, false)?;
            call.returns.push(slot);
            if let Operand::Name(name) = *operand
                && let Some(Symbol::Register { ty, index }) = self.find(name)
            {
                results.push((slot, ty, index));
            }
        }
        let index = self.context.program.calls.len() as u32;
        self.context.program.calls.push(call);
        self.emit(Op::Call { call: index })?;
        results
            .into_iter()
            .try_for_each(|(slot, ty, d)| self.load_result(slot, ty, d))
    }

    /// Loads a result of a call from the frame into a register.
    fn load_result(&mut self, slot: ParamSlot, ty: Type, d: Row) -> Result<(), Error> {
        let mem = Mem {
            space: MemSpace::Frame,
            base: Base::None,
            offset: slot.offset.into(),
        };
        let width = self.whole_width(ty)?;
        self.emit(Op::Ld { width, mem, d })
    }

    fn direct(&mut self, index: u32) -> Result<(Callee, Vec<u32>, Vec<u32>), Error> {
        let function = &self.context.program.functions[index as usize];
        let sizes = |slots: &[ParamSlot]| slots.iter().map(|s| s.bytes).collect::<Vec<_>>();
        let (returns, params) = (sizes(&function.returns), sizes(&function.params));
        let name = function.name.clone();
        if function.kernel {
            return Err(self.unsupported("a call of a kernel"));
        }
        if self.context.defined[index as usize] {
            self.context.callees[self.index as usize].push(index);
            return Ok((Callee::Function(index), returns, params));
        }
        let (runtime, expected): (_, (&[u32], usize)) = match name.as_str() {
            "vprintf" => (Runtime::Vprintf, (&[4], 2)),
            "malloc" => (Runtime::Malloc, (&[8], 1)),
            "free" => (Runtime::Free, (&[], 1)),
            "__assertfail" => (Runtime::AssertFail, (&[], 5)),
            "cudaGraphSetConditional" => (Runtime::SetConditional, (&[], 2)),
            "cudaGraphLaunch" if params == [8, 8] => (Runtime::GraphLaunch, (&[4], 2)),
            "__cudaCDP2GetParameterBufferV2" if params == [8, 12, 12, 4] => {
                (Runtime::ChildBuffer, (&[8], 4))
            }
            "__cudaCDP2LaunchDeviceV2" => (Runtime::ChildLaunch, (&[4], 2)),
            "__cudaCDP2MemcpyAsync" => (Runtime::ChildCopy, (&[4], 5)),
            "__cudaCDP2StreamCreateWithFlags" | "__cudaCDP2EventCreateWithFlags" => {
                (Runtime::ChildStream, (&[4], 2))
            }
            "__cudaCDP2Malloc" => (Runtime::ChildMalloc, (&[4], 2)),
            "__cudaCDP2Free" => (Runtime::ChildFree, (&[4], 1)),
            "__cudaCDP2StreamDestroy" | "__cudaCDP2EventDestroy" => {
                (Runtime::ChildNothing, (&[4], 1))
            }
            "__cudaCDP2EventRecord" => (Runtime::ChildNothing, (&[4], 2)),
            "__cudaCDP2StreamWaitEvent" => (Runtime::ChildNothing, (&[4], 3)),
            "__cudaCDP2GetLastError" | "__cudaCDP2PeekAtLastError" => {
                (Runtime::ChildNothing, (&[4], 0))
            }
            // The texts of errors are not kept.
            "__cudaCDP2GetErrorString" | "__cudaCDP2GetErrorName" => {
                (Runtime::ChildNothing, (&[8], 1))
            }
            _ => {
                self.context.is_undefined = true;
                return Err(self.unsupported(&external(&name)));
            }
        };
        // A declaration may leave the result out, which is then dropped.
        let is_known = returns.is_empty() || returns == expected.0;
        if !is_known || params.len() != expected.1 {
            return Err(self.invalid("another declaration than the device runtime's"));
        }
        let without = matches!(
            runtime,
            Runtime::Vprintf
                | Runtime::AssertFail
                | Runtime::ChildNothing
                | Runtime::SetConditional
                | Runtime::GraphLaunch
        );
        self.context.program.uses_heap |= !without;
        Ok((Callee::Runtime(runtime), returns, params))
    }

    /// Returns the position of an actual parameter in the frame: its `.param` variable, or a new
    /// one for a register's value.
    fn actual(
        &mut self,
        operand: &Operand<'a>,
        bytes: u32,
        store: bool,
    ) -> Result<ParamSlot, Error> {
        if let Operand::Name(name) = *operand
            && let Some(Symbol::Frame {
                offset,
                bytes: have,
            }) = self.find(name)
        {
            if have < bytes {
                return Err(self.invalid(&format!(
                    "`{}` is smaller than the parameter",
                    clipped(name)
                )));
            }
            return Ok(ParamSlot { offset, bytes });
        }
        let ty = match *operand {
            Operand::Name(name) => match self.find(name) {
                Some(Symbol::Register { ty, .. }) if ty != Type::Pred => ty,
                _ => return Err(self.invalid("expected a parameter")),
            },
            Operand::Number(Number::Double(_)) => Type::F64,
            _ => match bytes {
                8 => Type::B64,
                _ => Type::B32,
            },
        };
        if ty.bytes() != bytes {
            return Err(self.invalid("a parameter of another size"));
        }
        let offset = self.frame(bytes.into(), bytes)?;
        if store {
            let a: Row = self.src(operand, ty)?;
            let mem = Mem {
                space: MemSpace::Frame,
                base: Base::None,
                offset: offset.into(),
            };
            let guard: Guard = self.guard;
            self.emit_guarded(
                guard,
                Op::St {
                    width: self.whole_width(ty)?,
                    mem,
                    a,
                },
            )?;
        }
        Ok(ParamSlot { offset, bytes })
    }
}

/// Describes a function that is defined nowhere, as far as its name tells its purpose.
fn external(name: &str) -> String {
    let why = match name {
        _ if name.starts_with("__cudaCDP2") => {
            ": the software GPU does not serve this function of dynamic parallelism"
        }
        _ if name.starts_with("cudaGraph") => {
            ": the software GPU does not serve this function of graphs"
        }
        _ => ", which is defined nowhere",
    };
    format!("external function `{}`{why}", clipped(name))
}
