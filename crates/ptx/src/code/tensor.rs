//! Matrix instructions, which a warp executes as a whole (PTX ISA 9.7.14, 9.7.15).
//!
//! A fragment is a matrix spread over the registers of a warp: lane `l` holds row `l / 4` and place
//! `l % 4` of 8x8 tiles. If the manual leaves a layout open (`wmma`), it is that of the `mma` of
//! the same type.

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

    /// Returns the bits of an element in a register and in memory.
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

    /// Returns the elements of a register, which has 64 bits for `f64` and 32 otherwise.
    pub fn packed(self) -> usize {
        32usize.div_ceil(self.bits())
    }
}

/// Type of the sums.
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
pub struct MmaShape {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl MmaShape {
    /// Parses a shape such as `m16n8k16`.
    pub fn from_name(name: &str) -> Option<Self> {
        let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some(MmaShape {
            m: m.parse().ok()?,
            n: n.parse().ok()?,
            k: k.parse().ok()?,
        })
    }
}

/// The shapes and types that matrix instructions have, in the forms of sm_80.
impl MmaShape {
    /// Whether `mma` multiplies quarters of a warp with this shape.
    pub fn is_of_quarters(self, a: Element) -> bool {
        (self.m, self.n, self.k, a) == (8, 8, 4, Element::F16)
    }

    /// Whether `mma` has the shape for factors of this type.
    pub fn is_of_mma(self, a: Element) -> bool {
        let MmaShape { m, n, k } = self;
        match a {
            Element::F16 | Element::Bf16 => (m, n) == (16, 8) && matches!(k, 8 | 16),
            Element::Tf32 => (m, n) == (16, 8) && matches!(k, 4 | 8),
            Element::F64 => (m, n, k) == (8, 8, 4),
            Element::S8 | Element::U8 => matches!((m, n, k), (8, 8, 16) | (16, 8, 16 | 32)),
            Element::S4 | Element::U4 => matches!((m, n, k), (8, 8, 32) | (16, 8, 32 | 64)),
            Element::B1 => matches!((m, n, k), (8, 8, 128) | (16, 8, 128 | 256)),
        }
    }

    /// Whether `wmma` has the shape for factors of this type.
    pub fn is_of_wmma(self, a: Element) -> bool {
        let shape = (self.m, self.n, self.k);
        match a {
            Element::F16 | Element::Bf16 | Element::S8 | Element::U8 => {
                matches!(shape, (16, 16, 16) | (8, 32, 16) | (32, 8, 16))
            }
            Element::Tf32 => shape == (16, 16, 8),
            Element::F64 => shape == (8, 8, 4),
            Element::S4 | Element::U4 => shape == (8, 8, 32),
            Element::B1 => shape == (8, 8, 128),
        }
    }

    /// Returns the number of lanes among which a selector of `mma.sp` chooses one part; 0 if it
    /// does not have the shape for factors of this type.
    pub fn selectors(self, a: Element) -> u8 {
        match (a, self.k) {
            _ if (self.m, self.n) != (16, 8) => 0,
            (Element::F16 | Element::Bf16, 16) | (Element::Tf32, 8) => 4,
            (Element::F16 | Element::Bf16 | Element::S8 | Element::U8, 32)
            | (Element::Tf32, 16)
            | (Element::S4 | Element::U4, 64) => 2,
            (Element::S8 | Element::U8, 64) | (Element::S4 | Element::U4, 128) => 1,
            _ => 0,
        }
    }
}

impl Element {
    /// Whether a matrix of this type can be multiplied by one of type `b`.
    pub fn is_multiplied_by(self, b: Element) -> bool {
        match self {
            Element::S8 | Element::U8 => matches!(b, Element::S8 | Element::U8),
            Element::S4 | Element::U4 => matches!(b, Element::S4 | Element::U4),
            _ => self == b,
        }
    }

    /// Whether products of this type can be added to sums of type `c`, with results of type `d`.
    pub fn has_sums(self, c: Sum, d: Sum) -> bool {
        match self {
            Element::F16 => [c, d].iter().all(|s| matches!(s, Sum::F16 | Sum::F32)),
            Element::Bf16 | Element::Tf32 => (c, d) == (Sum::F32, Sum::F32),
            Element::F64 => (c, d) == (Sum::F64, Sum::F64),
            _ => (c, d) == (Sum::S32, Sum::S32),
        }
    }
}

/// The matrix that a fragment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    A(Element),
    B(Element),
    /// The summand, or the result.
    C(Sum),
}

/// A fragment's matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    pub role: Role,
    pub shape: MmaShape,
}

impl Fragment {
    /// Returns the elements of one register.
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

    /// Returns the numbers of rows and columns.
    pub fn extent(&self) -> [usize; 2] {
        let MmaShape { m, n, k } = self.shape;
        match self.role {
            Role::A(_) => [m, k],
            Role::B(_) => [k, n],
            Role::C(_) => [m, n],
        }
    }

    /// Returns the registers that hold each element once.
    pub fn registers(&self) -> usize {
        let [rows, columns] = self.extent();
        rows * columns / self.packed() / 32
    }

    /// Returns row and column of the first element in a lane's register. The others follow along
    /// `k`, those of sums along `n`. Registers from [`Fragment::registers`] on repeat the first
    /// ones.
    pub fn place(&self, lane: usize, register: usize) -> [usize; 2] {
        let columns = self.extent()[1];
        let walk = self.walk(register);
        let at = walk.first + lane / 4 * walk.row + lane % 4 * walk.place;
        [at / columns, at % columns]
    }

    /// Returns the positions of a register's elements in the matrix stored by rows. The lanes'
    /// parts are summands, so no position is computed by itself.
    pub fn walk(&self, register: usize) -> Walk {
        let register = register % self.registers();
        let MmaShape { m, k, .. } = self.shape;
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

/// Indices of a register's elements:
/// `first + lane / 4 * row + lane % 4 * place + element number * element`.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    pub first: usize,
    pub row: usize,
    pub place: usize,
    pub element: usize,
}

/// The operation that combines `b1` elements before they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitOp {
    Xor,
    And,
}

/// `d = a * b + c`
#[derive(Debug, Clone)]
pub struct Mma {
    pub shape: MmaShape,
    pub a: Element,
    pub b: Element,
    pub c: Sum,
    pub d: Sum,
    /// `mma.m8n8k4.f16`: each quarter of the warp has its own matrices; tells whether a and b are
    /// stored by columns.
    pub quarters: Option<[bool; 2]>,
    /// `mma.sp`
    pub sparse: Option<Sparse>,
    /// `.satfinite`
    pub saturate: bool,
    pub bits: BitOp,
    /// Rounding of `f64`.
    pub rounding: Rounding,
    pub rows_a: Vec<Row>,
    pub rows_b: Vec<Row>,
    pub rows_c: Vec<Row>,
    pub rows_d: Vec<Row>,
}

/// The metadata of a sparse matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sparse {
    pub metadata: Row,
    /// Selects the lanes, of each four, that hold it.
    pub selector: u8,
}

/// An instruction that all lanes of a warp execute together.
#[derive(Debug, Clone)]
pub enum Tensor {
    Mma(Mma),
    /// `ldmatrix`: 8x8 matrices of 16-bit elements, one per row of registers; lane `8 * i + j`
    /// names row j of matrix i.
    LoadMatrix {
        transposed: bool,
        mem: Mem,
        rows: Vec<Row>,
    },
    /// `movmatrix`: transposes such a matrix.
    MoveMatrix {
        d: Row,
        a: Row,
    },
    /// `wmma.load`, `wmma.store`
    Transfer {
        store: bool,
        fragment: Fragment,
        /// Whether the matrix is stored by columns.
        columns: bool,
        mem: Mem,
        /// Distance between two rows (or columns) in elements; [`super::SINK`] if they are
        /// contiguous.
        stride: Row,
        rows: Vec<Row>,
    },
}
