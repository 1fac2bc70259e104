//! Fragments of matrices, processed one register at a time. A register's lanes hold rows of an 8x8
//! tile, one after the other; the tile has more or fewer columns if elements are shorter or longer
//! than 16 bits. The second factor's tiles are held by columns.

use crate::code::{Element, Mma, MmaShape, Row, Sum};
use crate::interp::Features;
use crate::interp::isa::{self, Isa, NEAREST};
use crate::lanes::{CHUNK, Chunk, Files};
use crate::number::float::number;
use crate::number::half::single;

/// Rows of a tile.
const TILE: usize = 8;

/// A matrix stored by rows, in memory for the largest one, with its number of columns.
pub(in crate::interp) struct Matrix<T, const MAX: usize> {
    pub(in crate::interp) elements: [T; MAX],
    pub(in crate::interp) columns: usize,
}

impl<T: Copy + Default, const MAX: usize> Matrix<T, MAX> {
    fn new(columns: usize) -> Self {
        let elements = [T::default(); MAX];
        Matrix { elements, columns }
    }
}

/// The register form of an element, of `32 / PACKED` bits.
trait Raw: Copy {
    const PACKED: usize;
}

impl Raw for u32 {
    const PACKED: usize = 1;
}
impl Raw for u16 {
    const PACKED: usize = 2;
}
impl Raw for u8 {
    const PACKED: usize = 4;
}

/// Returns the elements of a row of registers in memory order, which is the same on the host and a
/// GPU.
#[inline(always)]
fn elements<R: Raw>(row: &[u32; 32]) -> &[R] {
    const { assert!(size_of::<R>() * R::PACKED == 4 && cfg!(target_endian = "little")) }
    // SAFETY: words consist of that many shorter unsigned integers, which need no greater
    // alignment.
    unsafe { std::slice::from_raw_parts(row.as_ptr().cast(), 32 * R::PACKED) }
}

/// Reads a matrix whose registers are tiles by rows, those of the first columns first, from top to
/// bottom.
#[inline(always)]
fn by_rows<R: Raw, T: Copy + Default, const MAX: usize>(
    files: Files,
    rows: &[Row],
    [extent, columns]: [usize; 2],
    value: impl Fn(R) -> T,
) -> Matrix<T, MAX> {
    let mut matrix = Matrix::new(columns);
    let width = 4 * R::PACKED;
    let mut registers = rows.iter();
    for left in (0..columns).step_by(width) {
        for top in (0..extent).step_by(TILE) {
            let Some(&row) = registers.next() else {
                return matrix;
            };
            let lines = elements::<R>(files.row32(row)).chunks_exact(width);
            for (line, at) in lines.zip((top..).map(|r| r * columns + left)) {
                for (out, &raw) in matrix.elements[at..][..width].iter_mut().zip(line) {
                    *out = value(raw);
                }
            }
        }
    }
    matrix
}

/// Reads a matrix whose registers are tiles by columns, those of the first columns first.
#[inline(always)]
fn by_columns<R: Raw, T: Copy + Default, const MAX: usize>(
    files: Files,
    rows: &[Row],
    [extent, columns]: [usize; 2],
    value: impl Fn(R) -> T,
) -> Matrix<T, MAX> {
    let mut matrix = Matrix::new(columns);
    let height = 4 * R::PACKED;
    let mut registers = rows.iter();
    for left in (0..columns).step_by(TILE) {
        for top in (0..extent).step_by(height) {
            let Some(&row) = registers.next() else {
                return matrix;
            };
            let tile = elements::<R>(files.row32(row));
            for r in 0..height {
                let at = (top + r) * columns + left;
                for (c, out) in matrix.elements[at..][..TILE].iter_mut().enumerate() {
                    *out = value(tile[c * height + r]);
                }
            }
        }
    }
    matrix
}

/// Reads sums of 32 bits: a lane holds two neighbours of a tile's row, in two registers.
#[inline(always)]
fn by_pairs<T: Copy + Default, const MAX: usize>(
    files: Files,
    rows: &[Row],
    [extent, columns]: [usize; 2],
    value: impl Fn(u32) -> T,
) -> Matrix<T, MAX> {
    let mut matrix = Matrix::new(columns);
    let mut registers = rows.as_chunks::<2>().0.iter();
    for left in (0..columns).step_by(TILE) {
        for top in (0..extent).step_by(TILE) {
            let Some(&[even, odd]) = registers.next() else {
                return matrix;
            };
            let (even, odd) = (files.row32(even), files.row32(odd));
            for r in 0..TILE {
                let at = (top + r) * columns + left;
                let line = &mut matrix.elements[at..][..TILE];
                for t in 0..TILE / 2 {
                    line[2 * t] = value(even[r * 4 + t]);
                    line[2 * t + 1] = value(odd[r * 4 + t]);
                }
            }
        }
    }
    matrix
}

/// Returns the positions of a result's tiles, in the order of registers.
#[inline(always)]
fn tiles([extent, columns]: [usize; 2]) -> impl Iterator<Item = usize> {
    (0..columns).step_by(TILE).flat_map(move |left| {
        (0..extent)
            .step_by(TILE)
            .map(move |top| top * columns + left)
    })
}

/// Writes words in the layout that [`by_pairs`] reads.
#[inline(always)]
fn write_pairs<T: Copy, const MAX: usize>(
    files: Files,
    mask: u32,
    rows: &[Row],
    extent: usize,
    matrix: &Matrix<T, MAX>,
    word: impl Fn(T) -> u32,
) {
    let columns = matrix.columns;
    for (at, &[even, odd]) in tiles([extent, columns]).zip(rows.as_chunks::<2>().0) {
        let mut out = [[0; 32]; 2];
        for r in 0..TILE {
            let line = &matrix.elements[at + r * columns..][..TILE];
            for t in 0..TILE / 2 {
                out[0][r * 4 + t] = word(line[2 * t]);
                out[1][r * 4 + t] = word(line[2 * t + 1]);
            }
        }
        files.set32(even, mask, &out[0]);
        files.set32(odd, mask, &out[1]);
    }
}

/// Writes sums as `f16`, rounded once.
///
/// # Safety
/// The host must have this instruction set.
#[inline(always)]
unsafe fn write_halves<I: Isa, const MAX: usize>(
    files: Files,
    mask: u32,
    rows: &[Row],
    extent: usize,
    matrix: &Matrix<f64, MAX>,
) {
    let columns = matrix.columns;
    for (at, &row) in tiles([extent, columns]).zip(rows) {
        let mut out = [0; 32];
        for r in 0..TILE {
            let line = &matrix.elements[at + r * columns..][..TILE];
            let mut singles: Chunk = [0; CHUNK];
            for c in 0..TILE {
                singles[c] = odd_single(line[c]);
            }
            // SAFETY: the caller guarantees that the host has the instruction set.
            let halves = unsafe { I::narrow_f16::<NEAREST>(singles) };
            for t in 0..4 {
                out[r * 4 + t] = halves[2 * t] | halves[2 * t + 1] << 16;
            }
        }
        files.set32(row, mask, &out);
    }
}

/// Rounds to single precision, to odd if inexact: rounding it to 16 bits then equals a single
/// rounding.
#[inline(always)]
fn odd_single(x: f64) -> u32 {
    let nearest = x as f32;
    let lost = x - f64::from(nearest);
    let bits = number(nearest);
    let away = match (lost > 0.0) == (x > 0.0) {
        true => 1,
        false => u32::MAX,
    };
    match lost.abs() > 0.0 && bits & 1 == 0 {
        true => bits.wrapping_add(away),
        false => bits,
    }
}

/// A type in which matrices are multiplied.
pub(in crate::interp) trait Number: Copy + Default {
    /// Adds a product; `FMA` says whether the host has an instruction for it. Products are exact,
    /// so the result is the same.
    fn add_product<const FMA: bool>(self, x: Self, y: Self) -> Self;
}

impl Number for f64 {
    #[inline(always)]
    fn add_product<const FMA: bool>(self, x: f64, y: f64) -> f64 {
        if FMA {
            x.mul_add(y, self)
        } else {
            self + x * y
        }
    }
}

impl Number for i32 {
    #[inline(always)]
    fn add_product<const FMA: bool>(self, x: i32, y: i32) -> i32 {
        self.wrapping_add(x.wrapping_mul(y))
    }
}

/// Computes sums += x * y, by ascending k.
pub(in crate::interp) fn multiply<T: Number>(
    features: Features,
    shape: MmaShape,
    x: &[T],
    y: &[T],
    sums: &mut [T],
) {
    match features {
        Features::Baseline => multiply_tiles::<T, false>(shape, x, y, sums),
        // SAFETY: `Features::detect` found these instruction sets on the host.
        #[cfg(target_arch = "x86_64")]
        Features::Avx2 => unsafe { multiply_avx2(shape, x, y, sums) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
fn multiply_avx2<T: Number>(shape: MmaShape, x: &[T], y: &[T], sums: &mut [T]) {
    multiply_tiles::<T, true>(shape, x, y, sums);
}

#[inline(always)]
fn multiply_tiles<T: Number, const FMA: bool>(
    MmaShape { m, n, k }: MmaShape,
    x: &[T],
    y: &[T],
    sums: &mut [T],
) {
    /// Rows processed together, whose sums are in vector registers.
    const ROWS: usize = 4;
    for top in (0..m).step_by(ROWS) {
        let lines: [&[T]; ROWS] = std::array::from_fn(|r| &x[(top + r) * k..][..k]);
        for left in (0..n).step_by(TILE) {
            let mut tile = [[T::default(); TILE]; ROWS];
            for r in 0..ROWS {
                tile[r].copy_from_slice(&sums[(top + r) * n + left..][..TILE]);
            }
            for (l, row) in y.chunks_exact(n).take(k).enumerate() {
                let row = &row[left..][..TILE];
                for r in 0..ROWS {
                    let factor = lines[r][l];
                    for c in 0..TILE {
                        tile[r][c] = tile[r][c].add_product::<FMA>(factor, row[c]);
                    }
                }
            }
            for r in 0..ROWS {
                sums[(top + r) * n + left..][..TILE].copy_from_slice(&tile[r]);
            }
        }
    }
}

/// Executes an `mma` of floats of up to 32 bits whose matrices have at most `MAX` elements.
///
/// # Safety
/// The host must have this instruction set.
#[inline(always)]
unsafe fn floats<I: Isa, const MAX: usize>(files: Files, mma: &Mma, mask: u32) {
    let MmaShape { m, n, k } = mma.shape;
    let half = |bits: u16| f64::from(single(bits.into()));
    let brain = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
    // The lower bits of the mantissa are ignored.
    let tf32 = |bits: u32| f64::from(f32::from_bits(bits & 0xffff_e000));
    let (x, y): (Matrix<f64, MAX>, Matrix<f64, MAX>) = match mma.a {
        Element::F16 => (
            by_rows(files, &mma.rows_a, [m, k], half),
            by_columns(files, &mma.rows_b, [k, n], half),
        ),
        Element::Bf16 => (
            by_rows(files, &mma.rows_a, [m, k], brain),
            by_columns(files, &mma.rows_b, [k, n], brain),
        ),
        _ => (
            by_rows(files, &mma.rows_a, [m, k], tf32),
            by_columns(files, &mma.rows_b, [k, n], tf32),
        ),
    };
    let mut sums: Matrix<f64, MAX> = match mma.c {
        Sum::F16 => by_rows(files, &mma.rows_c, [m, n], half),
        _ => by_pairs(files, &mma.rows_c, [m, n], |bits| {
            f32::from_bits(bits).into()
        }),
    };
    match I::HAS_FMA {
        true => {
            multiply_tiles::<f64, true>(mma.shape, &x.elements, &y.elements, &mut sums.elements)
        }
        false => {
            multiply_tiles::<f64, false>(mma.shape, &x.elements, &y.elements, &mut sums.elements)
        }
    }
    match mma.d {
        // SAFETY: the caller guarantees that the host has the instruction set.
        Sum::F16 => unsafe { write_halves::<I, MAX>(files, mask, &mma.rows_d, m, &sums) },
        _ => write_pairs(files, mask, &mma.rows_d, m, &sums, |sum| number(sum as f32)),
    }
}

/// Executes an `mma` of bytes whose matrices have at most `MAX` elements.
#[inline(always)]
fn bytes<const MAX: usize>(files: Files, mma: &Mma, mask: u32) {
    let MmaShape { m, n, k } = mma.shape;
    let signed = |bits: u8| i32::from(bits as i8);
    let x: Matrix<i32, MAX> = match mma.a {
        Element::S8 => by_rows(files, &mma.rows_a, [m, k], signed),
        _ => by_rows(files, &mma.rows_a, [m, k], |bits: u8| i32::from(bits)),
    };
    let y: Matrix<i32, MAX> = match mma.b {
        Element::S8 => by_columns(files, &mma.rows_b, [k, n], signed),
        _ => by_columns(files, &mma.rows_b, [k, n], |bits: u8| i32::from(bits)),
    };
    let before: Matrix<i32, MAX> = by_pairs(files, &mma.rows_c, [m, n], |bits| bits as i32);
    let mut sums: Matrix<i32, MAX> = Matrix::new(n);
    multiply_tiles::<i32, false>(mma.shape, &x.elements, &y.elements, &mut sums.elements);
    for (sum, &before) in sums.elements.iter_mut().zip(&before.elements).take(m * n) {
        *sum = match mma.saturate {
            true => before.saturating_add(*sum),
            false => before.wrapping_add(*sum),
        };
    }
    write_pairs(files, mask, &mma.rows_d, m, &sums, |sum| sum as u32);
}

/// Executes a dense `mma` of floats of up to 32 bits or of bytes; returns false for any other.
pub(in crate::interp) fn dense(features: Features, files: Files, mma: &Mma, mask: u32) -> bool {
    // SAFETY: `Features::detect` found these instruction sets on the host.
    unsafe {
        match features {
            Features::Baseline => dense_by::<isa::Baseline>(files, mma, mask),
            #[cfg(target_arch = "x86_64")]
            Features::Avx2 => dense_avx2(files, mma, mask),
        }
    }
}

/// SAFETY: the caller must ensure the same as for `dense_by`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn dense_avx2(files: Files, mma: &Mma, mask: u32) -> bool {
    // SAFETY: the caller guarantees that the host has these instruction sets.
    unsafe { dense_by::<isa::Avx2>(files, mma, mask) }
}

/// # Safety
/// The host must have this instruction set.
#[inline(always)]
unsafe fn dense_by<I: Isa>(files: Files, mma: &Mma, mask: u32) -> bool {
    /// Elements of m16n8k16 of halves, and of the largest matrices: m32n8k16, m16n8k32 of bytes.
    const FEW: usize = 256;
    const MOST: usize = 512;
    let MmaShape { m, n, k } = mma.shape;
    let most = (m * k).max(k * n).max(m * n);
    let is_byte = |element| matches!(element, Element::S8 | Element::U8);
    match mma.a {
        // SAFETY: the caller guarantees that the host has the instruction set.
        Element::F16 | Element::Bf16 | Element::Tf32 if most <= FEW => unsafe {
            floats::<I, FEW>(files, mma, mask);
        },
        // SAFETY: the caller guarantees that the host has the instruction set.
        Element::F16 | Element::Bf16 | Element::Tf32 if most <= MOST => unsafe {
            floats::<I, MOST>(files, mma, mask);
        },
        a if is_byte(a) && is_byte(mma.b) && most <= MOST => bytes::<MOST>(files, mma, mask),
        _ => return false,
    }
    true
}
