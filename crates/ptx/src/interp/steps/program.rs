//! The steps of a program: one for each instruction, chosen when a module is loaded.

use super::{fuse, select};
use crate::code::{Guard, Op, Program};
use crate::interp::Features;
use crate::interp::step::{Any, Run, Step, StepKind, compiled, step};

/// A program's instructions in executable form.
pub(crate) struct Steps {
    pub(crate) list: Vec<Step>,
    /// One step for each instruction.
    pub(crate) singles: Vec<Step>,
    pub(crate) features: Features,
    pub(in crate::interp) any: Run,
}

impl Steps {
    pub(crate) fn new(program: &Program, features: Features) -> Self {
        let singles = singles(program, features, select::select);
        Steps {
            list: fuse::fused(program, &singles, features),
            singles,
            features,
            any: compiled::<Any>(features),
        }
    }

    /// Makes the steps of a watched launch, in which all accesses go through [`Core::pointers`].
    pub(crate) fn watched(program: &Program, features: Features) -> Self {
        let singles = singles(program, features, |_, _, any, _| any);
        Steps {
            list: singles.clone(),
            singles,
            features,
            any: compiled::<Any>(features),
        }
    }
}

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps")
            .field("count", &self.list.len())
            .finish_non_exhaustive()
    }
}

/// Makes a step for each instruction.
fn singles(
    program: &Program,
    features: Features,
    select: impl Fn(&Program, &Op, Step, Features) -> Step,
) -> Vec<Step> {
    let code = program.code.iter().enumerate();
    let mut singles: Vec<Step> = code
        .map(|(pc, code)| {
            let any = step(pc as u32, code, features);
            // A vector that another thread reads or writes meanwhile must be seen as a whole
            // ([`crate::interp::memory::vector`]).
            let vector = matches!(code.op, Op::LdVec { .. } | Op::StVec { .. });
            if vector && program.strong.binary_search(&(pc as u32)).is_ok() {
                return any;
            }
            select(program, &code.op, any, features)
        })
        .collect();
    let entered = entered(program);
    for pc in (0..singles.len()).rev() {
        let here = &singles[pc];
        if here.kind == StepKind::Plain && here.guard == Guard::ALWAYS {
            let next = pc + 1;
            singles[pc].end = match singles.get(next) {
                Some(step) if !entered[next] => step.end,
                _ => next as u32,
            };
        }
    }
    singles
}

/// Returns for each instruction whether a jump leads to it.
fn entered(program: &Program) -> Vec<bool> {
    let mut entered = vec![false; program.code.len()];
    let jumps = program.code.iter().filter_map(|code| match code.op {
        Op::Bra { target } => Some(target),
        _ => None,
    });
    for target in jumps.chain(program.targets.iter().copied()) {
        if let Some(at) = entered.get_mut(target as usize) {
            *at = true;
        }
    }
    entered
}
