//! Instructions of a long text that cannot run here. The text is loaded with them, and a kernel
//! that comes to one ends with the reason: a library of a thousand kernels has paths for later
//! GPUs, which it takes only there.

use super::function::Lowering;
use crate::code::Op;
use crate::error::Error;
use crate::limits::REFUSED_INSTRUCTIONS_MAX;

/// State of the function's tables before an instruction.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    code: usize,
    fixups: usize,
}

impl Lowering<'_, '_, '_> {
    pub(super) fn mark(&self) -> Mark {
        Mark {
            code: self.context.program.code.len(),
            fixups: self.fixups.len(),
        }
    }

    /// Returns true if the text may be loaded in spite of this error. A name that is defined
    /// nowhere is the linker's error, whatever the text's length.
    pub(super) fn may_refuse_later(&self, error: &Error) -> bool {
        let context = &self.context;
        context.is_long
            && !context.is_undefined
            && context.program.refused.len() < REFUSED_INSTRUCTIONS_MAX
            && matches!(error, Error::Unsupported { .. })
    }

    /// Replaces what was lowered since `mark` by an instruction that ends the kernel, for lanes
    /// whose guard is true.
    pub(super) fn refuse_when_reached(&mut self, mark: Mark, error: &Error) -> Result<(), Error> {
        let program = &mut self.context.program;
        program.code.truncate(mark.code);
        program.lines.truncate(mark.code);
        self.fixups.truncate(mark.fixups);
        program.refused.push((mark.code as u32, error.to_string()));
        self.emit(Op::Trap)
    }
}
