//! `mma`, `wmma`, `ldmatrix`, `movmatrix`: fragments are gathered from the lanes, multiplied, and
//! scattered again.
//!
//! Products of floats are exact. They and the summand are added in double precision by ascending k,
//! and rounded once to nearest even. A GPU adds them in blocks, truncated to about single
//! precision, in an order that the manual leaves open. `f64` is a chain of fused multiply-adds by
//! ascending k, as the ISA's rounding modifiers imply.

use crate::code::{
    BitOp, Element, Fragment, Mem, Mma, MmaShape, Role, Rounding, Row, SINK, Sum, Tensor,
};
use crate::interp::core::{Core, Stop};
use crate::interp::matrix::fragment::{self, multiply};
use crate::interp::memory::access::Pointers;
use crate::lanes::{Files, lanes};
use crate::number::half::{F16, Half, single};
use crate::number::rounding::fma_r64;
use crate::words::{read8, read16, read32, read64, write8, write16, write32, write64};

/// Elements of the largest matrix (m32n8k16), and of the largest sum.
const ELEMENTS_MAX: usize = 512;
const SUMS_MAX: usize = 256;
/// Words of all rows of bits of the largest matrix (m16n8k256).
const BIT_WORDS_MAX: usize = 128;

impl Core<'_> {
    /// Executes one of the module's tensor instructions for the lanes of `mask`.
    #[inline(never)]
    pub(crate) fn tensor(&mut self, index: u32, mask: u32) -> Result<(), Stop> {
        match &self.program.tensors[index as usize] {
            Tensor::Mma(mma) => {
                self.mma(mma, mask);
                Ok(())
            }
            Tensor::LoadMatrix {
                transposed,
                mem,
                rows,
            } => self.load_matrix(*transposed, mem, rows, mask),
            Tensor::MoveMatrix { d, a } => {
                self.move_matrix(*d, *a, mask);
                Ok(())
            }
            Tensor::Transfer {
                store,
                fragment,
                columns,
                mem,
                stride,
                rows,
            } => self.transfer(*store, fragment, *columns, mem, *stride, rows, mask),
        }
    }

    fn mma(&self, mma: &Mma, mask: u32) {
        if let Some(sparse) = &mma.sparse {
            return self.sparse(mma, sparse, mask);
        }
        if let Some(columns) = mma.quarters {
            return self.quarters(mma, columns, mask);
        }
        if fragment::dense(self.env.steps.features, self.files, mma, mask) {
            return;
        }
        let a = Fragment {
            role: Role::A(mma.a),
            shape: mma.shape,
        };
        let b = Fragment {
            role: Role::B(mma.b),
            shape: mma.shape,
        };
        match mma.a {
            Element::B1 => self.multiply_bits(mma, mask),
            Element::F64 => self.multiply_doubles(mma, &a, &b, mask),
            _ => {
                let mut x = [0i32; ELEMENTS_MAX * 2];
                let mut y = [0i32; ELEMENTS_MAX];
                self.gather(&a, &mma.rows_a, &mut x, |bits| integer(mma.a, bits));
                self.gather(&b, &mma.rows_b, &mut y, |bits| integer(mma.b, bits));
                let mut sums = [0i32; SUMS_MAX];
                multiply(self.env.steps.features, mma.shape, &x, &y, &mut sums);
                self.add_integers(mma, &sums, mask);
            }
        }
    }

    /// Returns all elements of a fragment, by rows.
    #[inline(always)]
    pub(in crate::interp) fn gather<T: Copy>(
        &self,
        fragment: &Fragment,
        rows: &[Row],
        out: &mut [T],
        f: impl Fn(u32) -> T,
    ) {
        let packed = fragment.packed();
        let bits = 32 / packed;
        for (register, &row) in rows.iter().enumerate().take(fragment.registers()) {
            let values = self.files.row32(row);
            let walk = fragment.walk(register);
            for lane in 0..32 {
                let mut at = walk.first + lane / 4 * walk.row + lane % 4 * walk.place;
                let mut rest = values[lane];
                for _ in 0..packed {
                    out[at] = f(rest & (u32::MAX >> (32 - bits)));
                    rest = rest.checked_shr(bits as u32).unwrap_or(0);
                    at += walk.element;
                }
            }
        }
    }

    pub(in crate::interp) fn scatter_sums(&self, mma: &Mma, sums: &[f64; SUMS_MAX], mask: u32) {
        let fragment = Fragment {
            role: Role::C(mma.d),
            shape: mma.shape,
        };
        for (register, &row) in mma.rows_d.iter().enumerate() {
            let walk = fragment.walk(register);
            self.files.put32(row, mask, |lane| {
                let at = walk.first + lane / 4 * walk.row + lane % 4 * walk.place;
                round_sum(mma.d, sums[at], sums[(at + 1) % SUMS_MAX])
            });
        }
    }

    /// Computes c + sums, wrapped or clamped.
    pub(in crate::interp) fn add_integers(&self, mma: &Mma, sums: &[i32; SUMS_MAX], mask: u32) {
        let fragment = Fragment {
            role: Role::C(Sum::S32),
            shape: mma.shape,
        };
        // All summands are read before any result is written, because rows may be the same.
        let mut out = [[0u32; 32]; 8];
        for (register, &row) in mma.rows_c.iter().enumerate() {
            let values = self.files.row32(row);
            let walk = fragment.walk(register);
            for lane in 0..32 {
                let at = walk.first + lane / 4 * walk.row + lane % 4 * walk.place;
                let (x, y) = (values[lane] as i32, sums[at]);
                out[register][lane] = if mma.saturate {
                    x.saturating_add(y) as u32
                } else {
                    x.wrapping_add(y) as u32
                };
            }
        }
        for (value, &row) in out.iter().zip(&mma.rows_d) {
            self.files.set32(row, mask, value);
        }
    }

    fn multiply_bits(&self, mma: &Mma, mask: u32) {
        let MmaShape { m, n, k } = mma.shape;
        let words = k / 32;
        let (mut x, mut y) = ([0u32; BIT_WORDS_MAX], [0u32; BIT_WORDS_MAX]);
        // A register has 32 elements along k: tiles of words instead of elements.
        for (register, &row) in mma.rows_a.iter().enumerate() {
            let values = self.files.row32(row);
            for lane in 0..32 {
                let (tile, step) = (register % (m / 8), register / (m / 8));
                x[(tile * 8 + lane / 4) * words + step * 4 + lane % 4] = values[lane];
            }
        }
        for (register, &row) in mma.rows_b.iter().enumerate() {
            let values = self.files.row32(row);
            for lane in 0..32 {
                y[lane / 4 * words + register * 4 + lane % 4] = values[lane];
            }
        }
        let mut sums = [0i32; SUMS_MAX];
        for i in 0..m {
            for j in 0..n {
                let row = x[i * words..][..words].iter();
                let count = row
                    .zip(&y[j * words..][..words])
                    .map(|(a, b)| match mma.bits {
                        BitOp::Xor => (a ^ b).count_ones(),
                        BitOp::And => (a & b).count_ones(),
                    });
                sums[i * n + j] = count.sum::<u32>() as i32;
            }
        }
        self.add_integers(mma, &sums, mask);
    }

    fn multiply_doubles(&self, mma: &Mma, a: &Fragment, b: &Fragment, mask: u32) {
        let MmaShape { m, n, k } = mma.shape;
        let c = Fragment {
            role: Role::C(Sum::F64),
            shape: mma.shape,
        };
        let gather = |fragment: &Fragment, rows: &[Row]| {
            let mut out = [0.0; SUMS_MAX];
            let columns = fragment.extent()[1];
            for (register, &row) in rows.iter().enumerate() {
                let values = self.files.row64(row);
                for lane in 0..32 {
                    let [r, c] = fragment.place(lane, register);
                    out[r * columns + c] = f64::from_bits(values[lane]);
                }
            }
            out
        };
        let (x, y) = (gather(a, &mma.rows_a), gather(b, &mma.rows_b));
        let mut sums = gather(&c, &mma.rows_c);
        for i in 0..m {
            for j in 0..n {
                let chain = (0..k).fold(sums[i * n + j], |sum, l| {
                    let (p, q) = (x[i * k + l], y[l * n + j]);
                    match mma.rounding {
                        Rounding::Nearest => p.mul_add(q, sum),
                        rounding => fma_r64(p, q, sum, rounding),
                    }
                });
                sums[i * n + j] = chain;
            }
        }
        for (register, &row) in mma.rows_d.iter().enumerate() {
            self.files.put64(row, mask, |lane| {
                let [r, c] = c.place(lane, register);
                sums[r * n + c].to_bits()
            });
        }
    }

    /// Executes `mma.m8n8k4` on `f16`: lanes 4q to 4q+3, and those 16 higher, multiply matrices of
    /// their own.
    fn quarters(&self, mma: &Mma, [a_columns, b_columns]: [bool; 2], mask: u32) {
        let half = |rows: &[Row], lane: usize, i: usize| {
            f64::from(single(
                self.files.lane32(rows[i / 2], lane) >> (i % 2 * 16) & 0xffff,
            ))
        };
        let mut out = [[0u32; 32]; 8];
        for quarter in 0..4 {
            let lane_of = |i: usize| quarter * 4 + i % 4 + i / 4 * 16;
            let (mut x, mut y) = ([0.0; ELEMENTS_MAX], [0.0; ELEMENTS_MAX]);
            let mut sums = [0.0; SUMS_MAX];
            for owner in 0..8 {
                let lane = lane_of(owner);
                for i in 0..4 {
                    let [r, c] = if a_columns {
                        [i + owner / 4 * 4, owner % 4]
                    } else {
                        [owner, i]
                    };
                    x[r * 4 + c] = half(&mma.rows_a, lane, i);
                    let [r, c] = if b_columns {
                        [i, owner]
                    } else {
                        [owner % 4, i + owner / 4 * 4]
                    };
                    y[r * 8 + c] = half(&mma.rows_b, lane, i);
                }
                for i in 0..8 {
                    let [r, c] = quarter_place(mma.c, owner, i);
                    sums[r * 8 + c] = if mma.c == Sum::F16 {
                        half(&mma.rows_c, lane, i)
                    } else {
                        f32::from_bits(self.files.lane32(mma.rows_c[i], lane)).into()
                    };
                }
            }
            multiply(self.env.steps.features, mma.shape, &x, &y, &mut sums);
            for owner in 0..8 {
                let per_register = if mma.d == Sum::F16 { 2 } else { 1 };
                for (register, out) in out.iter_mut().enumerate().take(mma.rows_d.len()) {
                    let [r, c] = quarter_place(mma.d, owner, register * per_register);
                    let at = r * 8 + c;
                    out[lane_of(owner)] = round_sum(mma.d, sums[at], sums[at + 1]);
                }
            }
        }
        for (value, &row) in out.iter().zip(&mma.rows_d) {
            self.files.set32(row, mask, value);
        }
    }

    fn load_matrix(
        &mut self,
        transposed: bool,
        mem: &Mem,
        rows: &[Row],
        mask: u32,
    ) -> Result<(), Stop> {
        // The first lanes name the rows, eight for each matrix; the others are ignored.
        let named = (u64::MAX >> (64 - 8 * rows.len())) as u32;
        let mut at = Pointers::new();
        self.pointers(mem, 16, named, false, &mut at)?;
        let mut out = [[0u32; 32]; 4];
        for (matrix, out) in out.iter_mut().enumerate().take(rows.len()) {
            let first = matrix * 8;
            for (lane, out) in out.iter_mut().enumerate() {
                let (g, t) = (lane as u64 / 4, lane % 4);
                *out = if transposed {
                    let low = read16(at.0[first + t * 2] + g * 2);
                    let high = read16(at.0[first + t * 2 + 1] + g * 2);
                    u32::from(low) | u32::from(high) << 16
                } else {
                    read32(at.0[first + g as usize] + t as u64 * 4)
                };
            }
        }
        for (value, &row) in out.iter().zip(rows) {
            self.files.set32(row, mask, value);
        }
        Ok(())
    }

    fn move_matrix(&self, d: Row, a: Row, mask: u32) {
        let a = self.files.get32(a);
        let element =
            |row: usize, column: usize| a[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
        self.files.put32(d, mask, |lane| {
            let (g, t) = (lane / 4, lane % 4);
            element(t * 2, g) | element(t * 2 + 1, g) << 16
        });
    }

    fn transfer(
        &mut self,
        store: bool,
        fragment: &Fragment,
        columns: bool,
        mem: &Mem,
        stride: Row,
        rows: &[Row],
        mask: u32,
    ) -> Result<(), Stop> {
        let bits = match fragment.role {
            Role::A(element) | Role::B(element) => element.bits(),
            Role::C(Sum::F16) => 16,
            Role::C(Sum::F64) => 64,
            Role::C(_) => 32,
        };
        // Elements shorter than a byte are stored so that a register is one word of memory.
        let unit_bits = if bits < 8 { 32 } else { bits };
        let unit_bytes = (unit_bits / 8) as u64;
        let units = fragment.packed() * bits.min(32) / unit_bits.min(32);
        let [extent_rows, extent_columns] = fragment.extent();
        let whole = if columns { extent_rows } else { extent_columns };
        let mut base = [0; 32];
        self.addresses(mem, &mut base);
        // Read before any destination is written, because it may be the same row.
        let strides = match stride {
            SINK => [whole as u64; 32],
            row => self.files.get32(row).map(u64::from),
        };
        let along_row = !matches!(fragment.role, Role::B(_));
        let count = rows.len().min(fragment.registers());
        let files: Files = self.files;
        for (register, &row) in rows.iter().enumerate() {
            if store && register >= count {
                break;
            }
            for unit in 0..units {
                let mut at = Pointers(base);
                for (lane, at) in at.0.iter_mut().enumerate() {
                    let [mut r, mut c] = fragment.place(lane, register);
                    if along_row {
                        c += unit;
                    } else {
                        r += unit;
                    }
                    let [major, minor] = if columns { [c, r] } else { [r, c] };
                    let element = (major as u64)
                        .wrapping_mul(strides[lane])
                        .wrapping_add(minor as u64);
                    *at = at.wrapping_add(element.wrapping_mul(bits as u64) / 8);
                }
                self.translate(mem.space, unit_bytes as u32, mask, store, &mut at)?;
                let unit = Unit {
                    bits: unit_bits,
                    shift: unit as u32 * unit_bits as u32,
                };
                for lane in lanes(mask) {
                    match store {
                        true => unit.store(at.0[lane], &files, row, lane),
                        false => unit.load(at.0[lane], &files, row, lane),
                    }
                }
            }
        }
        Ok(())
    }
}

/// A piece of a register that `wmma.load` and `wmma.store` move.
struct Unit {
    bits: usize,
    /// Its lowest bit in the register.
    shift: u32,
}

impl Unit {
    #[inline(always)]
    fn store(&self, at: u64, files: &Files, row: Row, lane: usize) {
        match self.bits {
            64 => write64(at, files.lane64(row, lane)),
            8 => write8(at, (files.lane32(row, lane) >> self.shift) as u8),
            16 => write16(at, (files.lane32(row, lane) >> self.shift) as u16),
            _ => write32(at, files.lane32(row, lane)),
        }
    }

    /// Loads the unit; the first one of a register clears the others.
    #[inline(always)]
    fn load(&self, at: u64, files: &Files, row: Row, lane: usize) {
        let value = match self.bits {
            64 => return files.set_lane64(row, lane, read64(at)),
            8 => read8(at).into(),
            16 => read16(at).into(),
            _ => read32(at),
        };
        let kept = match self.shift {
            0 => 0,
            _ => files.lane32(row, lane),
        };
        files.set_lane32(row, lane, kept | value << self.shift);
    }
}

/// Returns the position of a sum's element in the quarters of `m8n8k4`.
fn quarter_place(ty: Sum, owner: usize, i: usize) -> [usize; 2] {
    let (low, high) = (owner % 4, owner / 4);
    if ty == Sum::F16 {
        [owner, i]
    } else {
        [
            (low & 1) + (i & 2) + high * 4,
            (i & 4) + (low & 2) + (i & 1),
        ]
    }
}

/// Makes one register of a sum: its value, or two neighbours as halves.
fn round_sum(ty: Sum, value: f64, next: f64) -> u32 {
    if ty == Sum::F16 {
        let half = |v| F16::from_f64(v, Rounding::Nearest);
        return half(value) | half(next) << 16;
    }
    if value.is_nan() {
        0x7fff_ffff
    } else {
        (value as f32).to_bits()
    }
}

#[inline(always)]
pub(in crate::interp) fn integer(ty: Element, bits: u32) -> i32 {
    match ty {
        Element::S8 => (bits as i8).into(),
        Element::S4 => (bits << 28) as i32 >> 28,
        _ => bits as i32,
    }
}
