//! Meanings of names inside functions.

use crate::code::Special;
use crate::parse::ast::Type;

/// The meaning of a name inside a function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Symbol {
    /// A register: its declared type, and its row in the file of that width, or its predicate.
    Register {
        ty: Type,
        index: u32,
    },
    /// A vector register `.reg .v4 .f32 v`: the first of `count` consecutive registers.
    VectorRegister {
        ty: Type,
        index: u32,
        count: u32,
    },
    /// A variable in kernel parameter space.
    KernelParam {
        offset: u32,
        bytes: u32,
    },
    /// A variable in the frame: a local, a function's parameter, or a call's parameter.
    Frame {
        offset: u32,
        bytes: u32,
    },
    Shared {
        offset: u32,
    },
    DynamicShared,
    /// A variable with an absolute address.
    Global {
        address: u64,
    },
    Function {
        index: u32,
    },
    Label {
        id: u32,
    },
    Special(Special),
}

impl Symbol {
    /// Returns the n-th register after this one, in a range.
    pub(super) fn following(self, n: u32) -> Symbol {
        match self {
            Symbol::Register { ty, index } => {
                let rows = if ty == Type::B128 { 2 } else { 1 };
                let index = index + n * rows;
                Symbol::Register { ty, index }
            }
            Symbol::VectorRegister { ty, index, count } => {
                let index = index + n * count;
                Symbol::VectorRegister { ty, index, count }
            }
            other => other,
        }
    }

    /// Returns an element of a vector register by its name, such as `x`.
    pub(super) fn element(self, name: &str) -> Option<Symbol> {
        let Symbol::VectorRegister { ty, index, count } = self else {
            return None;
        };
        let n = match name {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            _ => return None,
        };
        let index = index + n;
        (n < count).then_some(Symbol::Register { ty, index })
    }
}
