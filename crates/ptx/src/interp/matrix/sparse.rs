//! `mma.sp`: the first matrix is stored without its zeros, and expanded before it is multiplied
//! (PTX ISA, "Sparse matrix storage").
//!
//! Half of each chunk of a row is stored; a chunk has 4 elements, or 8 of 4 bits, or 2 of tf32.
//! Four bits of metadata give the positions: two numbers of positions, of pairs for 4-bit elements;
//! for tf32 one of two patterns. One, two or four of the four lanes that share two rows, eight
//! apart, hold the metadata ([`metadata_place`]).

use crate::code::{Element, Fragment, Mma, MmaShape, Role, Sparse, Sum};
use crate::interp::core::Core;
use crate::interp::matrix::fragment::{Number, multiply};
use crate::interp::matrix::instructions::integer;
use crate::number::half::single;

/// Elements of the largest first matrix (m16n8k128), and of the largest second one.
const A_ELEMENTS_MAX: usize = 16 * 128;
const B_ELEMENTS_MAX: usize = 128 * 8;
const SUMS_MAX: usize = 16 * 8;

impl Core<'_> {
    pub(in crate::interp) fn sparse(&self, mma: &Mma, sparse: &Sparse, mask: u32) {
        match mma.a {
            Element::F16 => self.sparse_floats(mma, sparse, mask, |bits| f64::from(single(bits))),
            Element::Bf16 => self.sparse_floats(mma, sparse, mask, |bits| {
                f64::from(f32::from_bits(bits << 16))
            }),
            Element::Tf32 => self.sparse_floats(mma, sparse, mask, |bits| {
                f64::from(f32::from_bits(bits & 0xffff_e000))
            }),
            _ => {
                let mut sums = [0i32; 2 * SUMS_MAX];
                let (a, b) = (mma.a, mma.b);
                self.sparse_product(
                    mma,
                    sparse,
                    0,
                    |bits| integer(a, bits),
                    |bits| integer(b, bits),
                    &mut sums,
                );
                self.add_integers(mma, &sums, mask);
            }
        }
    }

    fn sparse_floats(
        &self,
        mma: &Mma,
        sparse: &Sparse,
        mask: u32,
        value: impl Fn(u32) -> f64 + Copy,
    ) {
        let mut sums = [0.0; 2 * SUMS_MAX];
        let c = Fragment {
            role: Role::C(mma.c),
            shape: mma.shape,
        };
        if mma.c == Sum::F16 {
            self.gather(&c, &mma.rows_c, &mut sums, |bits| single(bits).into());
        } else {
            self.gather(&c, &mma.rows_c, &mut sums, |bits| {
                f32::from_bits(bits).into()
            });
        }
        self.sparse_product(mma, sparse, 0.0, value, value, &mut sums);
        self.scatter_sums(mma, &sums, mask);
    }

    fn sparse_product<T: Number>(
        &self,
        mma: &Mma,
        sparse: &Sparse,
        zero: T,
        value_a: impl Fn(u32) -> T,
        value_b: impl Fn(u32) -> T,
        sums: &mut [T],
    ) {
        let shape = mma.shape;
        let stored = Fragment {
            role: Role::A(mma.a),
            shape: MmaShape {
                k: shape.k / 2,
                ..shape
            },
        };
        let b = Fragment {
            role: Role::B(mma.b),
            shape,
        };
        let mut packed = [zero; A_ELEMENTS_MAX / 2];
        let mut y = [zero; B_ELEMENTS_MAX];
        self.gather(&stored, &mma.rows_a, &mut packed, value_a);
        self.gather(&b, &mma.rows_b, &mut y, value_b);
        let metadata = self.files.row32(sparse.metadata);
        let mut x = [zero; A_ELEMENTS_MAX];
        let chunk = chunk(mma.a);
        let chunks = shape.k / chunk;
        let first_lane = sparse.selector as usize * (chunks / 4);
        for row in 0..shape.m {
            for i in 0..chunks {
                let (lane, shift) = metadata_place(mma.a, row / 8, i);
                let word = metadata[row % 8 * 4 + first_lane + lane];
                let nibble = word >> shift & 0xf;
                let from = &packed[row * shape.k / 2 + i * chunk / 2..][..chunk / 2];
                let to = &mut x[row * shape.k + i * chunk..][..chunk];
                for (j, &value) in from.iter().enumerate() {
                    to[place(mma.a, nibble, j)] = value;
                }
            }
        }
        multiply(self.env.steps.features, shape, &x, &y, sums);
    }
}

/// Returns the elements of a row that share a piece of metadata.
fn chunk(element: Element) -> usize {
    match element {
        Element::Tf32 => 2,
        Element::S4 | Element::U4 => 8,
        _ => 4,
    }
}

/// Returns the lane, of those that share a row, that holds the metadata of chunk `i`, and the first
/// bit. `half` selects one of the two rows.
fn metadata_place(element: Element, half: usize, i: usize) -> (usize, usize) {
    match element {
        // A lane's word has one half for each of the two rows.
        Element::F16 | Element::Bf16 | Element::Tf32 => (i / 4, half * 16 + i % 4 * 4),
        // A lane's word belongs to one of the two rows.
        _ => (i / 8 * 2 + half, i % 8 * 4),
    }
}

/// Returns the position of stored element `j` in its chunk.
fn place(element: Element, nibble: u32, j: usize) -> usize {
    let number = |i: usize| (nibble >> (2 * i) & 3) as usize;
    match element {
        // 0b0100 selects the first, 0b1110 the second; the manual defines no others.
        Element::Tf32 => usize::from(nibble & 2 != 0),
        Element::S4 | Element::U4 => 2 * number(j / 2) + j % 2,
        _ => number(j),
    }
}
