//! An instruction of the text, before it is lowered.

use super::modifiers::Modifiers;
use crate::parse::ast::Operand;

/// One instruction: its modifiers not yet taken, and its operands.
pub(super) struct Insn<'i, 'a> {
    pub(super) name: &'a str,
    pub(super) mods: Modifiers<'a>,
    pub(super) ops: &'i [Operand<'a>],
}
