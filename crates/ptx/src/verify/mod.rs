//! Verification of a lowered program, once, when it is loaded.
//!
//! The interpreter indexes register rows, predicates, constants and frames without a check. What
//! makes that sound is a [`Verified`] program, which only [`verify`] makes: every index that an
//! instruction names is in range, wherever in its function the instruction is reached, and control
//! leaves a function only by a call, a return or an exit. Lowering never breaks these rules; a
//! program that does is a defect of this crate, and is refused.

mod forms;
pub(crate) mod operands;
#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::code::{
    CONST, Call, Callee, Function, Guard, Kernel, Op, ParamSlot, Pred, Program, Row, Runtime, SINK,
    SINK_PRED,
};
use crate::limits::{
    LOCAL_BYTES_MAX, PARAM_BYTES_MAX, PREDICATES_PER_FUNCTION_MAX, REGISTERS_PER_FUNCTION_MAX,
};
use operands::{Operand, Table, Use, operands};

/// A program that keeps the rules on which the interpreter relies, and its kernels.
#[derive(Debug)]
pub(crate) struct Verified {
    program: Program,
    kernels: Vec<Kernel>,
}

impl Verified {
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }
}

/// A lowered program breaks a rule: a defect of the lowering, not of the PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "PTX line {line}: `{function}`, lowered instruction {instruction}: {defect}; a defect of Outboard"
)]
pub struct VerifyError {
    pub function: String,
    /// Index in [`Program::code`].
    pub instruction: u32,
    /// 0 if no single instruction is at fault.
    pub line: u32,
    pub defect: Defect,
}

/// The rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Defect {
    #[error("row {row:#x} of {bits} bits, of which there are {count}")]
    Row { row: Row, bits: u8, count: u64 },
    #[error("predicate {pred}, of which there are {count}")]
    Predicate { pred: Pred, count: u32 },
    #[error("a jump to instruction {target}, outside of {first}..{end}")]
    Target { target: u32, first: u32, end: u32 },
    #[error("entries {first}+{count} of a table of {len}")]
    Table { first: u32, count: u32, len: u64 },
    #[error("bytes {offset}+{bytes} of a frame of {frame_bytes}")]
    Frame {
        offset: u32,
        bytes: u32,
        frame_bytes: u32,
    },
    #[error("{what} is {actual}, the limit is {limit}")]
    Limit {
        what: &'static str,
        actual: u64,
        limit: u64,
    },
    #[error("control runs past its end")]
    NoEnd,
    #[error("{0}")]
    Form(&'static str),
}

/// Checks a program, in time proportional to its length.
pub(crate) fn verify(program: Program, kernels: Vec<Kernel>) -> Result<Verified, VerifyError> {
    let fault = |defect| VerifyError {
        function: String::new(),
        instruction: 0,
        line: 0,
        defect,
    };
    if program.lines.len() != program.code.len() {
        return Err(fault(Defect::Form("instructions without lines")));
    }
    for kernel in &kernels {
        kernel_is_sound(&program, kernel).map_err(fault)?;
    }
    for (function, code) in bodies(&program).map_err(fault)? {
        Body {
            program: &program,
            function,
            code,
        }
        .verify()?;
    }
    Ok(Verified { program, kernels })
}

fn kernel_is_sound(program: &Program, kernel: &Kernel) -> Result<(), Defect> {
    let function = program.functions.get(kernel.function as usize);
    if function.is_none_or(|f| f.entry.is_none() || !f.kernel) {
        return Err(Defect::Form("a kernel without code"));
    }
    limit("parameters in bytes", kernel.param_bytes, PARAM_BYTES_MAX)
}

/// Returns each function that has code, and its range of instructions: to the next function's
/// entry. Together they are all instructions.
fn bodies(program: &Program) -> Result<Vec<(&Function, Range<u32>)>, Defect> {
    let end = program.code.len() as u32;
    let mut entries: Vec<_> = program
        .functions
        .iter()
        .filter_map(|f| Some((f.entry?, f)))
        .collect();
    entries.sort_by_key(|&(entry, _)| entry);
    if end > 0 && entries.first().is_none_or(|&(entry, _)| entry != 0) {
        return Err(Defect::Form("instructions before the first function"));
    }
    let mut bodies = Vec::with_capacity(entries.len());
    for (i, &(entry, function)) in entries.iter().enumerate() {
        let next = entries.get(i + 1).map_or(end, |&(next, _)| next);
        if entry >= next || next > end {
            return Err(Defect::Target {
                target: entry,
                first: 0,
                end,
            });
        }
        bodies.push((function, entry..next));
    }
    Ok(bodies)
}

/// A function and its instructions.
struct Body<'p> {
    program: &'p Program,
    function: &'p Function,
    code: Range<u32>,
}

impl Body<'_> {
    fn verify(&self) -> Result<(), VerifyError> {
        self.function_is_sound()
            .and_then(|()| self.ends())
            .map_err(|defect| self.error(self.code.start, defect))?;
        for pc in self.code.clone() {
            self.instruction(pc)
                .map_err(|defect| self.error(pc, defect))?;
        }
        Ok(())
    }

    fn error(&self, instruction: u32, defect: Defect) -> VerifyError {
        VerifyError {
            function: self.function.name.clone(),
            instruction,
            line: self.program.lines[instruction as usize],
            defect,
        }
    }

    fn function_is_sound(&self) -> Result<(), Defect> {
        let f = self.function;
        limit(
            "registers",
            f.rows32.max(f.rows64),
            REGISTERS_PER_FUNCTION_MAX,
        )?;
        limit("predicates", f.preds, PREDICATES_PER_FUNCTION_MAX)?;
        limit("local memory in bytes", f.frame_bytes, LOCAL_BYTES_MAX)?;
        if f.kernel {
            // Its parameters are in memory of their own, and are read with a check.
            return Ok(());
        }
        f.params
            .iter()
            .chain(&f.returns)
            .try_for_each(|slot| self.slot(slot))
    }

    /// Checks that the last instruction does not let control run into the next function.
    fn ends(&self) -> Result<(), Defect> {
        let last = &self.program.code[self.code.end as usize - 1];
        match last.op {
            Op::Ret | Op::Exit | Op::Trap | Op::Bra { .. } | Op::BrxIdx { .. }
                if last.guard == Guard::ALWAYS =>
            {
                Ok(())
            }
            _ => Err(Defect::NoEnd),
        }
    }

    fn instruction(&self, pc: u32) -> Result<(), Defect> {
        let code = self.program.code[pc as usize];
        if code.guard != Guard::ALWAYS {
            self.pred(code.guard.pred)?;
        }
        forms::of_op(&code.op)?;
        let mut op = code.op;
        self.all(|see| operands(&mut op, &mut |o| see(o)))?;
        if let Op::CpAsync { list, .. } = code.op {
            self.copy_source(list)?;
        }
        Ok(())
    }

    /// Checks every operand that `visit` reports; returns the first defect.
    fn all(&self, visit: impl FnOnce(&mut dyn FnMut(Operand<'_>))) -> Result<(), Defect> {
        let mut result = Ok(());
        visit(&mut |operand| {
            if result.is_ok() {
                result = self.operand(operand);
            }
        });
        result
    }

    fn operand(&self, operand: Operand<'_>) -> Result<(), Defect> {
        match operand {
            Operand::Row(used, row) => self.row(used, *row),
            Operand::ReadPred(pred) => self.pred(*pred),
            Operand::WritePred(&mut SINK_PRED) => Ok(()),
            Operand::WritePred(pred) => self.pred(*pred),
            Operand::Target(target) => self.target(*target),
            Operand::Targets(first, count) => {
                let targets = entries(&self.program.targets, *first, count)?;
                targets.iter().try_for_each(|&target| self.target(target))
            }
            Operand::List(first, count, uses) => {
                let rows = entries(&self.program.rows, *first, count)?;
                let uses = uses.into_iter().chain(std::iter::repeat(uses[3]));
                rows.iter()
                    .zip(uses)
                    .try_for_each(|(&row, used)| self.row(used, row))
            }
            Operand::Item(table, index) => self.item(table, *index),
        }
    }

    fn row(&self, used: Use, row: Row) -> Result<(), Defect> {
        let program = self.program;
        let may_sink = matches!(used, Use::MayRead32 | Use::MayWrite32 | Use::MayWrite64);
        if may_sink && row == SINK {
            return Ok(());
        }
        let f = self.function;
        let (bits, rows, constants) = match used {
            Use::Word => return Ok(()),
            Use::MayWritePred if row == u32::from(SINK_PRED) => return Ok(()),
            Use::MayWritePred => {
                let pred = Pred::try_from(row).unwrap_or(SINK_PRED);
                return self.pred(pred);
            }
            Use::Read32 | Use::MayRead32 => (32, f.rows32, Some(program.consts32.len())),
            Use::Read64 => (64, f.rows64, Some(program.consts64.len())),
            Use::Write32 | Use::MayWrite32 => (32, f.rows32, None),
            Use::Write64 | Use::MayWrite64 => (64, f.rows64, None),
        };
        let count = match (row & CONST != 0, constants) {
            (false, _) => u64::from(rows),
            (true, Some(constants)) => constants as u64,
            (true, None) => 0,
        };
        match u64::from(row & !CONST) < count {
            true => Ok(()),
            false => Err(Defect::Row { row, bits, count }),
        }
    }

    fn pred(&self, pred: Pred) -> Result<(), Defect> {
        let count = self.function.preds;
        match u32::from(pred) < count {
            true => Ok(()),
            false => Err(Defect::Predicate { pred, count }),
        }
    }

    fn target(&self, target: u32) -> Result<(), Defect> {
        let Range { start, end } = self.code;
        match self.code.contains(&target) {
            true => Ok(()),
            false => Err(Defect::Target {
                target,
                first: start,
                end,
            }),
        }
    }

    fn slot(&self, &ParamSlot { offset, bytes }: &ParamSlot) -> Result<(), Defect> {
        let frame_bytes = self.function.frame_bytes;
        match offset.checked_add(bytes) {
            Some(end) if end <= frame_bytes => Ok(()),
            _ => Err(Defect::Frame {
                offset,
                bytes,
                frame_bytes,
            }),
        }
    }

    fn item(&self, table: Table, index: u32) -> Result<(), Defect> {
        let program = self.program;
        match table {
            Table::Calls => self.call(&entries(&program.calls, index, 1)?[0]),
            Table::Tensors => {
                let tensor = &entries(&program.tensors, index, 1)?[0];
                forms::of_tensor(tensor)?;
                self.all(|see| operands::of_tensor(&mut tensor.clone(), &mut |o| see(o)))
            }
            Table::Textures => {
                let texture = &entries(&program.textures, index, 1)?[0];
                forms::of_texture(texture)?;
                self.all(|see| operands::of_texture(&mut texture.clone(), &mut |o| see(o)))
            }
            Table::Videos => {
                let video = &entries(&program.videos, index, 1)?[0];
                forms::of_video(video)?;
                self.all(|see| operands::of_video(&mut { *video }, &mut |o| see(o)))
            }
        }
    }

    fn call(&self, call: &Call) -> Result<(), Defect> {
        let slots = call.params.iter().chain(&call.returns);
        slots.into_iter().try_for_each(|slot| self.slot(slot))?;
        match call.callee {
            Callee::Function(index) => {
                let callee = &entries(&self.program.functions, index, 1)?[0];
                match callee.kernel {
                    true => Err(Defect::Form("a call of a kernel")),
                    false => Ok(()),
                }
            }
            Callee::Indirect(row) => self.row(Use::Read64, row),
            Callee::Runtime(runtime) => runtime_call(runtime, call),
        }
    }

    /// Checks the source of an asynchronous copy: a row or [`SINK`], and whether it is wide.
    fn copy_source(&self, list: u32) -> Result<(), Defect> {
        match *entries(&self.program.rows, list, 2)? {
            [SINK, _] => Ok(()),
            [row, 0] => self.row(Use::Read32, row),
            [row, _] => self.row(Use::Read64, row),
            _ => Ok(()),
        }
    }
}

/// Checks that a call of the device runtime passes the parameters that the runtime reads.
fn runtime_call(runtime: Runtime, call: &Call) -> Result<(), Defect> {
    let count = match runtime {
        Runtime::Malloc | Runtime::Free | Runtime::ChildFree => 1,
        Runtime::Vprintf
        | Runtime::SetConditional
        | Runtime::GraphLaunch
        | Runtime::ChildLaunch
        | Runtime::ChildMalloc => 2,
        Runtime::ChildStream => 1,
        Runtime::AssertFail | Runtime::ChildBuffer => 4,
        Runtime::ChildCopy => 5,
        Runtime::ChildNothing => 0,
    };
    if call.params.len() < count {
        return Err(Defect::Form(
            "a call of the device runtime with too few parameters",
        ));
    }
    // The extents of a grid and of a block are read by their three words.
    let is_short = |i: usize| call.params[i].bytes < 12;
    match runtime == Runtime::ChildBuffer && (is_short(1) || is_short(2)) {
        true => Err(Defect::Form("extents of fewer than 12 bytes")),
        false => Ok(()),
    }
}

/// Returns `count` entries of a table from `first`.
fn entries<T>(table: &[T], first: u32, count: u32) -> Result<&[T], Defect> {
    let range = first as usize..first as usize + count as usize;
    table.get(range).ok_or(Defect::Table {
        first,
        count,
        len: table.len() as u64,
    })
}

fn limit(what: &'static str, actual: u32, limit: u32) -> Result<(), Defect> {
    match actual <= limit {
        true => Ok(()),
        false => Err(Defect::Limit {
            what,
            actual: actual.into(),
            limit: limit.into(),
        }),
    }
}
