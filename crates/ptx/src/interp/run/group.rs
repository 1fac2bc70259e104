//! A group: lanes with one program counter and one frame.

use crate::code::BarKind;
use crate::interp::storage::Frame;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupState {
    Ready,
    /// At an instruction that these lanes, which all lived then, must reach.
    Members(u32),
    /// At a barrier of the block, with the destination of a reduction's result.
    Barrier {
        id: u32,
        kind: BarKind,
        dest: u32,
    },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) frame: Frame,
    pub(crate) state: GroupState,
    /// When it last ran, by the warp's own clock.
    pub(crate) last_run: u64,
}

impl Group {
    /// Keeps the lanes of `keep` at `pc`; the rest becomes a group at `other_pc`.
    pub(crate) fn split(&mut self, others: &mut Vec<Group>, keep: u32, pc: u32, other_pc: u32) {
        others.push(Group {
            pc: other_pc,
            mask: self.mask & !keep,
            ..*self
        });
        (self.mask, self.pc) = (keep, pc);
    }

    /// Lets lanes outside `keep` skip the current instruction.
    pub(crate) fn peel(&mut self, others: &mut Vec<Group>, keep: u32) {
        if keep != self.mask {
            self.split(others, keep, self.pc, self.pc + 1);
        }
    }
}
