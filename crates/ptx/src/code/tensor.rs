//! Instructions that a warp carries out on matrices (PTX ISA 9.7.14, 9.7.15).
//!
//! A fragment is a matrix spread over the registers of a warp: row `g = lane / 4`, place `t = lane % 4` of 8x8 tiles.
//! Where the manual leaves a layout open (`wmma`), it is that of the `mma` of the same type.

use super::{Mem, Rounding, Row};

/// Type of a multiplicand's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    F16,
    Bf16,
    Tf32,
    F64,
    S8,
    U8,
    S4,
    U4,
    B1,
}

impl Element {
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Element::F16,
            "bf16" => Element::Bf16,
            "tf32" => Element::Tf32,
            "f64" => Element::F64,
            "s8" => Element::S8,
            "u8" => Element::U8,
            "s4" => Element::S4,
            "u4" => Element::U4,
            "b1" => Element::B1,
            _ => return None,
        })
    }

    /// Bits in a register and in memory.
    pub fn bits(self) -> usize {
        match self {
            Element::F64 => 64,
            Element::Tf32 => 32,
            Element::F16 | Element::Bf16 => 16,
            Element::S8 | Element::U8 => 8,
            Element::S4 | Element::U4 => 4,
            Element::B1 => 1,
        }
    }

    /// Elements of a register, which has 64 bits for `f64` and 32 otherwise.
    pub fn packed(self) -> usize {
        32usize.div_ceil(self.bits())
    }
}

/// Type of sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    F16,
    F32,
    F64,
    S32,
}

impl Sum {
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Sum::F16,
            "f32" => Sum::F32,
            "f64" => Sum::F64,
            "s32" => Sum::S32,
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Shape {
    /// `m16n8k16`
    pub fn from_name(name: &str) -> Option<Self> {
        let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some(Shape {
            m: m.parse().ok()?,
            n: n.parse().ok()?,
            k: k.parse().ok()?,
        })
    }
}

/// Which of the matrices a fragment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    A(Element),
    B(Element),
    /// Sums, before and after.
    C(Sum),
}

/// A fragment's matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    pub role: Role,
    pub shape: Shape,
}

impl Fragment {
    /// Elements of one register.
    pub fn packed(&self) -> usize {
        match self.role {
            Role::A(element) | Role::B(element) => element.packed(),
            Role::C(Sum::F16) => 2,
            Role::C(_) => 1,
        }
    }

    pub fn is_wide(&self) -> bool {
        matches!(
            self.role,
            Role::A(Element::F64) | Role::B(Element::F64) | Role::C(Sum::F64)
        )
    }

    /// Rows and columns.
    pub fn extent(&self) -> [usize; 2] {
        let Shape { m, n, k } = self.shape;
        match self.role {
            Role::A(_) => [m, k],
            Role::B(_) => [k, n],
            Role::C(_) => [m, n],
        }
    }

    /// Registers that hold each element once.
    pub fn registers(&self) -> usize {
        let [rows, columns] = self.extent();
        rows * columns / self.packed() / 32
    }

    /// Row and column of the first element in a lane's register; the others follow along `k`, sums along `n`.
    /// Registers beyond [`Fragment::registers`] repeat the first ones.
    pub fn place(&self, lane: usize, register: usize) -> [usize; 2] {
        let columns = self.extent()[1];
        let walk = self.walk(register);
        let at = walk.first + lane / 4 * walk.row + lane % 4 * walk.place;
        [at / columns, at % columns]
    }

    /// Where a register's elements lie in the matrix by rows: the lanes' parts add up, so that none is computed alone.
    pub fn walk(&self, register: usize) -> Walk {
        let register = register % self.registers();
        let Shape { m, k, .. } = self.shape;
        let packed = self.packed();
        let columns = self.extent()[1];
        match self.role {
            Role::A(_) => {
                let (tile, step) = (register % (m / 8), register / (m / 8));
                Walk {
                    first: tile * 8 * columns + step * 4 * packed,
                    row: columns,
                    place: packed,
                    element: 1,
                }
            }
            Role::B(_) => {
                let steps = k / (4 * packed);
                let (step, tile) = (register % steps, register / steps);
                Walk {
                    first: step * 4 * packed * columns + tile * 8,
                    row: 1,
                    place: packed * columns,
                    element: columns,
                }
            }
            Role::C(_) => {
                // A lane has two neighbours of each tile.
                let (pair, odd) = (register * packed / 2, register * packed % 2);
                Walk {
                    first: pair % (m / 8) * 8 * columns + pair / (m / 8) * 8 + odd,
                    row: columns,
                    place: 2,
                    element: 1,
                }
            }
        }
    }
}

/// Indices of a register's elements: `first + lane / 4 * row + lane % 4 * place + element number * element`.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    pub first: usize,
    pub row: usize,
    pub place: usize,
    pub element: usize,
}

/// How `b1` elements meet before they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitOp {
    Xor,
    And,
}

/// `d = a * b + c`
#[derive(Debug, Clone)]
pub struct Mma {
    pub shape: Shape,
    pub a: Element,
    pub b: Element,
    pub c: Sum,
    pub d: Sum,
    /// `mma.m8n8k4.f16`: each quarter of the warp has matrices of its own; whether a and b lie by columns.
    pub quarters: Option<[bool; 2]>,
    /// `mma.sp`
    pub sparse: Option<Sparse>,
    /// `.satfinite`
    pub saturate: bool,
    pub bits: BitOp,
    /// Of `f64`.
    pub rounding: Rounding,
    pub rows_a: Vec<Row>,
    pub rows_b: Vec<Row>,
    pub rows_c: Vec<Row>,
    pub rows_d: Vec<Row>,
}

/// Where the metadata of a sparse matrix is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sparse {
    pub metadata: Row,
    /// Which lanes of four have it.
    pub selector: u8,
}

/// One instruction that all lanes of a warp carry out together.
#[derive(Debug, Clone)]
pub enum Tensor {
    Mma(Mma),
    /// `ldmatrix`: 8x8 matrices of 16 bits, one a row; lane `8 * i + j` names row j of matrix i.
    LoadMatrix {
        transposed: bool,
        mem: Mem,
        rows: Vec<Row>,
    },
    /// `movmatrix`: one such matrix, transposed.
    MoveMatrix {
        d: Row,
        a: Row,
    },
    /// `wmma.load`, `wmma.store`
    Transfer {
        store: bool,
        fragment: Fragment,
        /// Whether the matrix lies by columns.
        columns: bool,
        mem: Mem,
        /// Elements from one row (or column) to the next; [`super::SINK`]: they follow each other.
        stride: Row,
        rows: Vec<Row>,
    },
}
