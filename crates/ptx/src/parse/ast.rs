//! The syntax tree of PTX text: names and types, nothing resolved. It borrows from the text.

use super::lexer::Number;
use crate::error::Position;

/// One unit, or several linked ones: each `.version` begins a unit, numbered from 0.
#[derive(Debug, Default)]
pub struct Module<'a> {
    /// `.version`: major, minor.
    pub version: (u32, u32),
    /// For each unit the number in `.target`, such as 80 of `sm_80`.
    pub targets: Vec<u32>,
    /// `.global`, `.const` and module-wide `.shared` variables.
    pub variables: Vec<Variable<'a>>,
    /// `.global` and `.const` variables declared inside functions; they are also in the functions'
    /// bodies.
    pub inner: Vec<Variable<'a>>,
    pub functions: Vec<Function<'a>>,
    /// `.alias new, old`, and its unit.
    pub aliases: Vec<(&'a str, &'a str, u32, Position)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Reg,
    Param,
    Shared,
    Local,
    Const,
    Global,
}

/// Fundamental types (PTX ISA 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
}

impl Type {
    /// Parses the name `s32` of `.s32`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Type::Pred,
            "b8" => Type::B8,
            "b16" => Type::B16,
            "b32" => Type::B32,
            "b64" => Type::B64,
            "b128" => Type::B128,
            "u8" => Type::U8,
            "u16" => Type::U16,
            "u32" => Type::U32,
            "u64" => Type::U64,
            "s8" => Type::S8,
            "s16" => Type::S16,
            "s32" => Type::S32,
            "s64" => Type::S64,
            "f16" => Type::F16,
            "f16x2" => Type::F16x2,
            "bf16" => Type::Bf16,
            "bf16x2" => Type::Bf16x2,
            "tf32" => Type::Tf32,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    /// Returns the size in memory, in bytes. A predicate has none and counts as 1.
    pub fn bytes(self) -> u32 {
        match self {
            Type::Pred | Type::B8 | Type::U8 | Type::S8 => 1,
            Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => 2,
            Type::B32
            | Type::U32
            | Type::S32
            | Type::F32
            | Type::F16x2
            | Type::Bf16x2
            | Type::Tf32 => 4,
            Type::B64 | Type::U64 | Type::S64 | Type::F64 => 8,
            Type::B128 => 16,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub fn is_float(self) -> bool {
        matches!(
            self,
            Type::F16
                | Type::F16x2
                | Type::Bf16
                | Type::Bf16x2
                | Type::Tf32
                | Type::F32
                | Type::F64
        )
    }

    pub fn is_integer(self) -> bool {
        matches!(
            self,
            Type::U8
                | Type::U16
                | Type::U32
                | Type::U64
                | Type::S8
                | Type::S16
                | Type::S32
                | Type::S64
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Linkage {
    #[default]
    Local,
    Visible,
    Weak,
    Common,
    Extern,
}

#[derive(Clone, Debug)]
pub struct Variable<'a> {
    pub unit: u32,
    pub space: Space,
    pub linkage: Linkage,
    pub ty: Type,
    pub name: &'a str,
    /// Explicit `.align`, or the natural alignment.
    pub align: u32,
    /// Bytes of the whole variable; 0 for `name[]`.
    pub bytes: u64,
    /// Registers that `%r<N>` declares: N, otherwise 1.
    pub count: u32,
    pub ranged: bool,
    /// `.attribute(.managed)`
    pub managed: bool,
    pub init: Vec<Init<'a>>,
    pub at: Position,
}

/// One element of an initialiser.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init<'a> {
    Number(Number),
    /// Address of a variable or function plus an offset in bytes. `mask` selects one byte:
    /// `0xFF00(sym)`.
    Symbol {
        name: &'a str,
        offset: i64,
        mask: Option<u64>,
    },
}

#[derive(Debug)]
pub struct Function<'a> {
    pub unit: u32,
    pub name: &'a str,
    pub kernel: bool,
    pub linkage: Linkage,
    pub returns: Vec<Variable<'a>>,
    pub params: Vec<Variable<'a>>,
    /// `None` for a declaration.
    pub body: Option<Vec<Statement<'a>>>,
    pub maxntid: Option<[u32; 3]>,
    pub reqntid: Option<[u32; 3]>,
    pub minnctapersm: Option<u32>,
    pub maxnreg: Option<u32>,
    pub at: Position,
}

#[derive(Debug)]
pub enum Statement<'a> {
    Variable(Variable<'a>),
    Label(&'a str, Position),
    Instruction(Instruction<'a>),
    Block(Vec<Statement<'a>>),
    /// `name: .callprototype (ret) _ (params)`
    Prototype {
        name: &'a str,
        returns: Vec<Variable<'a>>,
        params: Vec<Variable<'a>>,
    },
    /// `name: .branchtargets a, b;` and `.calltargets`
    Targets {
        name: &'a str,
        labels: Vec<&'a str>,
        at: Position,
    },
}

#[derive(Debug)]
pub struct Instruction<'a> {
    /// Predicate and whether it is negated.
    pub guard: Option<(&'a str, bool)>,
    /// The opcode with all modifiers.
    pub opcode: &'a str,
    pub operands: Vec<Operand<'a>>,
    pub at: Position,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'a> {
    /// A register, variable, label, function or `_`.
    Name(&'a str),
    /// `!p`
    Negated(&'a str),
    /// `-r`, as in `vmad`.
    Minus(&'a str),
    Number(Number),
    /// `variable+8`
    Offset(&'a str, i64),
    /// `array[3]`, `array[%r1]`, `array[%r1+1]`: an address; index and offset count elements.
    Element {
        array: &'a str,
        index: Option<&'a str>,
        offset: i64,
    },
    /// `[name+8]`, `[16]`
    Address {
        base: Option<&'a str>,
        offset: i64,
    },
    /// `[texture, {x, y}]`
    Coordinates {
        base: &'a str,
        parts: Vec<Operand<'a>>,
    },
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `{a, b}|p`
    VectorAnd(Vec<Operand<'a>>, &'a str),
    /// `(a, b)` of a call
    List(Vec<Operand<'a>>),
    /// `p|q`
    Pair(&'a str, &'a str),
}
