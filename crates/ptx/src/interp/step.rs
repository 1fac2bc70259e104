//! A step, which the dispatch loop runs: the function of one instruction, and its operands.
//!
//! Frequent instructions have functions of their own ([`crate::interp::fast`]); all others share
//! [`Any`], which reads the operation when it runs. Each function exists once for every instruction
//! set in [`Features`].

use crate::code::{Code, Guard, Op, Row};
use crate::interp::Features;
use crate::interp::core::{Core, Stop};
use crate::interp::isa::{self, Isa};

/// Executes an instruction for the lanes of a mask, of which there is at least one.
///
/// # Safety
/// The step must belong to the program that the core runs, and the host must have the instruction
/// sets that it was chosen for.
pub(crate) type Run = unsafe fn(&mut Core<'_>, &Step, u32) -> Result<(), Stop>;

/// How the dispatch loop treats an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    /// Computes, loads or stores; the next instruction follows.
    Plain,
    /// `Op::Bra`, to `d`.
    Branch,
    /// Plain if all lanes of a warp execute it together, otherwise as `Control`.
    Together,
    /// May affect the group of lanes, so it is handled by itself.
    Control,
}

#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) run: Run,
    pub(crate) guard: Guard,
    pub(crate) kind: StepKind,
    /// Distance to the next step, in bytes: the size of a step times the instructions that this one
    /// executes. A program has a step for each instruction.
    pub(crate) skip: u16,
    /// The instruction's index in the program.
    pub(crate) pc: u32,
    /// End of the straight code that contains this instruction, or its own index if it is in none.
    /// Straight code has only plain instructions without guards, and is jumped to only at its first
    /// instruction.
    pub(crate) end: u32,
    /// Operands, whose meaning depends on the function.
    pub(crate) d: Row,
    pub(crate) a: Row,
    pub(crate) b: Row,
    pub(crate) c: Row,
    pub(crate) offset: i64,
}

impl Step {
    pub(crate) const BYTES: u16 = size_of::<Step>() as u16;

    /// Returns how many instructions it executes.
    pub(crate) fn span(&self) -> usize {
        usize::from(self.skip / Step::BYTES)
    }
}

/// An instruction's function before it is compiled for an instruction set.
pub(crate) trait Body {
    /// # Safety
    /// As for [`Run`].
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop>;
}

/// SAFETY: the caller must ensure the same as for [`Run`].
unsafe fn baseline<B: Body>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
    // SAFETY: the caller fulfils the same contract.
    unsafe { B::run::<isa::Baseline>(core, step, mask) }
}

/// SAFETY: the caller must ensure the same as for [`Run`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn avx2<B: Body>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
    // SAFETY: the caller fulfils the same contract.
    unsafe { B::run::<isa::Avx2>(core, step, mask) }
}

/// Returns a body compiled for the host's instruction set.
pub(crate) fn compiled<B: Body>(features: Features) -> Run {
    match features {
        Features::Baseline => baseline::<B>,
        #[cfg(target_arch = "x86_64")]
        Features::Avx2 => avx2::<B>,
    }
}

/// Executes any instruction that only computes, loads and stores.
pub(crate) struct Any;

impl Body for Any {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        core.pc = step.pc;
        let program = core.program;
        core.execute(&program.code[core.pc as usize].op, mask)
    }
}

impl Core<'_> {
    /// Executes the current instruction by [`Any`], for functions that cannot handle it. A call,
    /// not inlined, because its frame is large.
    #[inline(always)]
    pub(in crate::interp) fn any(&mut self, step: &Step, mask: u32) -> Result<(), Stop> {
        // SAFETY: `any` was chosen for the same features as the step (`Steps`).
        unsafe { (self.env.steps.any)(self, step, mask) }
    }
}

/// Makes the general step of an instruction.
pub(super) fn step(pc: u32, code: &Code, features: Features) -> Step {
    let (kind, d) = match code.op {
        Op::Bra { target } => (StepKind::Branch, target),
        ref op if op.is_control() => (StepKind::Control, 0),
        _ => (StepKind::Plain, 0),
    };
    Step {
        run: compiled::<Any>(features),
        guard: code.guard,
        kind,
        skip: Step::BYTES,
        pc,
        end: pc,
        d,
        a: 0,
        b: 0,
        c: 0,
        offset: 0,
    }
}
