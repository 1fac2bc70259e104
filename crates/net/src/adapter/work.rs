//! An entry that was fetched, and the answer of its peer.

use crate::{
    keys::Access,
    syndrome::Syndrome,
    wqe::{Data, Masked, Operation, Segment},
};

pub(super) const ATOMIC_BYTES: u64 = 8;

/// An entry that was fetched.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) index: u16,
    pub(super) opcode: u8,
    pub(super) signalled: bool,
    pub(super) is_solicited: bool,
    /// `None` if the entry is wrong: its answer says how.
    pub(super) operation: Option<Operation>,
    pub(super) answer: Option<Answer>,
}

impl Work {
    pub(super) fn reads(&self) -> bool {
        self.operation.as_ref().is_some_and(Operation::reads)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.operation.as_ref().map_or(0, Operation::bytes)
    }
}

/// The peer's answer to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Done,
    /// The value before an atomic.
    Value(u64),
    /// No receive is posted.
    NotReady,
    Failed(Syndrome),
}

/// Fate of an entry that was to be posted to a device.
pub(super) enum Posted {
    AtDevice,
    /// It is to be tried again.
    NotYet,
    Answered(Answer),
}

impl Operation {
    /// Bytes of the message.
    pub(crate) fn bytes(&self) -> u64 {
        let sum = |segments: &[Segment]| segments.iter().map(Segment::bytes).sum();
        match self {
            Operation::Nop | Operation::Wait { .. } => 0,
            Operation::Dump { from } => sum(from),
            Operation::Write { data, .. } | Operation::Send { data, .. } => match data {
                Data::Gather(segments) => sum(segments),
                Data::Inline(bytes) => bytes.len() as u64,
            },
            Operation::Read { into, .. } => sum(into),
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => ATOMIC_BYTES,
            Operation::Masked(masked) => masked.bytes,
        }
    }

    /// Access that the operation needs at the peer.
    pub(super) fn remote_access(&self) -> Access {
        match self {
            Operation::Nop
            | Operation::Dump { .. }
            | Operation::Wait { .. }
            | Operation::Send { .. } => Access::LOCAL_READ,
            Operation::Write { .. } => Access::REMOTE_WRITE,
            Operation::Read { .. } => Access::REMOTE_READ,
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } | Operation::Masked(_) => {
                Access::REMOTE_ATOMIC
            }
        }
    }

    /// Local memory of the operation, and how it is used.
    pub(crate) fn local(&self) -> (&[Segment], Access) {
        match self {
            Operation::Write {
                data: Data::Gather(segments),
                ..
            }
            | Operation::Send {
                data: Data::Gather(segments),
                ..
            } => (segments, Access::LOCAL_READ),
            Operation::Dump { from } => (from, Access::LOCAL_READ),
            Operation::Read { into, .. } => (into, Access::LOCAL_WRITE),
            Operation::FetchAdd { into, .. }
            | Operation::CompareSwap { into, .. }
            | Operation::Masked(Masked { into, .. }) => {
                (std::slice::from_ref(into), Access::LOCAL_WRITE)
            }
            _ => (&[], Access::LOCAL_READ),
        }
    }
}
