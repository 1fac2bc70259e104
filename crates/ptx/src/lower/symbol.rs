//! What names stand for inside functions.

use crate::code::Special;
use crate::parse::ast::Type;

/// What a name stands for inside a function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Symbol {
    /// Type as declared; the index is a row of the file of its width, or a predicate.
    Register {
        ty: Type,
        index: u32,
    },
    /// A vector register `.reg .v4 .f32 v`: first of `count` consecutive registers.
    VectorRegister {
        ty: Type,
        index: u32,
        count: u32,
    },
    /// In kernel parameter space.
    KernelParam {
        offset: u32,
        bytes: u32,
    },
    /// In the frame: locals, parameters of functions, parameters of calls.
    Frame {
        offset: u32,
        bytes: u32,
    },
    Shared {
        offset: u32,
    },
    DynamicShared,
    /// Absolute address.
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
    /// The n-th register after this one, of a range.
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

    /// `x` of a vector register.
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
