//! Functions for arithmetic and comparisons of 16-bit floats.
//!
//! Halves are widened to single precision, computed, and rounded to 16 bits. That rounds twice, but
//! the result always equals a single rounding:
//!
//! - Sums of two are rounded to the 24 bits of single precision, at least twice the bits of a half
//!   plus two; then a second rounding changes nothing (S. A. Figueroa, "When is double rounding
//!   innocuous?", 1995). Subnormal sums are exact.
//! - Products of two `f16` are exact, with 22 bits from 2^-48 to 2^32. So are those of two `bf16`,
//!   with 16 bits, unless they are below 2^-134; there none is so close to half of the smallest
//!   `bf16`, 2^-134, that it is rounded to it.
//! - Fused products and sums need more care: [`fma_f16`], [`fma_bf16`].

use std::marker::PhantomData;

use crate::interp::core::{Core, Stop};
use crate::interp::fast::compare::Relation;
use crate::interp::isa::{Isa, NEAREST};
use crate::interp::step::{Body, Step};
use crate::lanes::{CHUNK, CHUNKS, Chunk, write_chunks};
use crate::number::extremes::{max_f32, min_f32};
use crate::number::float::number;

/// A 16-bit format, one or two per word, and its conversions from and to single precision.
pub(in crate::interp) trait Format {
    /// # Safety
    /// The host must have the instruction set `I`; this holds for all functions of the trait.
    unsafe fn widen<I: Isa>(x: Chunk) -> Chunk;
    /// Widens both halves, in an order of its own that `narrow2` reverses.
    unsafe fn widen2<I: Isa>(x: Chunk) -> [Chunk; 2];
    /// Narrows numbers, or the NaN `0x7fffffff`, which becomes `0x7fff`.
    unsafe fn narrow<I: Isa, const ROUNDING: i32>(x: Chunk) -> Chunk;
    unsafe fn narrow2<I: Isa, const ROUNDING: i32>(x: [Chunk; 2]) -> Chunk;
    /// Computes `a * b + c` such that rounding it to this format equals a single rounding.
    fn fma(x: Chunk, y: Chunk, z: Chunk) -> Chunk;
}

pub(in crate::interp) struct F16;
pub(in crate::interp) struct Bf16;

impl Format for F16 {
    #[inline(always)]
    unsafe fn widen<I: Isa>(x: Chunk) -> Chunk {
        // SAFETY: the caller guarantees that the host has the instruction set.
        unsafe { I::widen_f16(x) }
    }

    #[inline(always)]
    unsafe fn widen2<I: Isa>(x: Chunk) -> [Chunk; 2] {
        // SAFETY: the caller guarantees that the host has the instruction set.
        unsafe { I::widen_f16x2(x) }
    }

    #[inline(always)]
    unsafe fn narrow<I: Isa, const ROUNDING: i32>(x: Chunk) -> Chunk {
        // SAFETY: the caller guarantees that the host has the instruction set.
        unsafe { I::narrow_f16::<ROUNDING>(x) }
    }

    #[inline(always)]
    unsafe fn narrow2<I: Isa, const ROUNDING: i32>(x: [Chunk; 2]) -> Chunk {
        // SAFETY: the caller guarantees that the host has the instruction set.
        unsafe { I::narrow_f16x2::<ROUNDING>(x) }
    }

    #[inline(always)]
    fn fma(x: Chunk, y: Chunk, z: Chunk) -> Chunk {
        let mut out = [0; CHUNK];
        for l in 0..CHUNK {
            out[l] = fma_f16(x[l], y[l], z[l]);
        }
        out
    }
}

impl Format for Bf16 {
    #[inline(always)]
    unsafe fn widen<I: Isa>(x: Chunk) -> Chunk {
        let mut out = [0; CHUNK];
        for l in 0..CHUNK {
            out[l] = x[l] << 16;
        }
        out
    }

    #[inline(always)]
    unsafe fn widen2<I: Isa>(x: Chunk) -> [Chunk; 2] {
        let mut out = [[0; CHUNK]; 2];
        for l in 0..CHUNK {
            out[0][l] = x[l] << 16;
            out[1][l] = x[l] & 0xffff_0000;
        }
        out
    }

    #[inline(always)]
    unsafe fn narrow<I: Isa, const ROUNDING: i32>(x: Chunk) -> Chunk {
        let mut out = [0; CHUNK];
        for l in 0..CHUNK {
            out[l] = narrow_bf16::<ROUNDING>(x[l]);
        }
        out
    }

    #[inline(always)]
    unsafe fn narrow2<I: Isa, const ROUNDING: i32>(x: [Chunk; 2]) -> Chunk {
        let mut out = [0; CHUNK];
        for l in 0..CHUNK {
            out[l] = narrow_bf16::<ROUNDING>(x[0][l]) | narrow_bf16::<ROUNDING>(x[1][l]) << 16;
        }
        out
    }

    #[inline(always)]
    fn fma(x: Chunk, y: Chunk, z: Chunk) -> Chunk {
        fma_bf16(x, y, z)
    }
}

/// Narrows to `bf16`, with `ROUNDING` as in [`Isa::narrow_f16`].
#[inline(always)]
fn narrow_bf16<const ROUNDING: i32>(bits: u32) -> u32 {
    const LOST: u32 = 0xffff;
    let negative = (bits as i32 >> 31) as u32;
    // Infinity has no bits below that would carry into it.
    let up = match ROUNDING {
        NEAREST => 0x7fff + (bits >> 16 & 1),
        crate::interp::isa::DOWN => LOST & negative,
        crate::interp::isa::UP => LOST & !negative,
        _ => 0,
    };
    match f32::from_bits(bits).is_nan() {
        true => 0x7fff,
        false => bits.wrapping_add(up) >> 16,
    }
}

/// Returns `sum`, or the next float towards the exact result, whichever is odd. The exact result
/// lies at `error` from `sum`. Rounding it to a shorter format then equals a single rounding (S.
/// Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
#[inline(always)]
fn to_odd(sum: u32, error: f32) -> u32 {
    let is_inexact = error.abs() > 0.0;
    let away = 1 | ((error.to_bits() ^ sum) as i32 >> 31) as u32;
    match is_inexact && sum & 1 == 0 {
        true => sum.wrapping_add(away),
        false => sum,
    }
}

/// The product is exact in single precision, and the sum's error is known (Knuth's two-sum), far
/// from the ends of the range.
#[inline(always)]
fn fma_f16(a: u32, b: u32, c: u32) -> u32 {
    let [a, b, c] = [a, b, c].map(f32::from_bits);
    let product = a * b;
    let sum = product + c;
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    // If the sum is not finite, the error is NaN.
    to_odd(sum.to_bits(), error)
}

/// Rounds once to single precision. A second rounding is wrong only if the first ended halfway
/// between two `bf16` and was inexact, which double precision shows.
#[inline(always)]
fn fma_bf16(a: Chunk, b: Chunk, c: Chunk) -> Chunk {
    let mut out = [0; CHUNK];
    let mut half_way = 0;
    for l in 0..CHUNK {
        let [a, b, c] = [a[l], b[l], c[l]].map(f32::from_bits);
        out[l] = a.mul_add(b, c).to_bits();
        half_way |= u32::from(out[l] & 0xffff == 0x8000);
    }
    if half_way == 0 {
        return out;
    }
    for l in 0..CHUNK {
        let rounded = f32::from_bits(out[l]);
        let [a, b, c, nearest] =
            [a[l], b[l], c[l], out[l]].map(|bits| f64::from(f32::from_bits(bits)));
        // The product is exact, and so is the error of the sum.
        let product = a * b;
        let sum = product + c;
        let part = sum - product;
        let lost = (product - (sum - part)) + (c - part);
        let error = if sum == nearest { lost } else { sum - nearest };
        let away = match (error > 0.0) == (rounded > 0.0) {
            true => 1,
            false => u32::MAX,
        };
        let is_inexact = error.abs() > 0.0;
        let step = if is_inexact && out[l] & 0xffff == 0x8000 {
            away
        } else {
            0
        };
        out[l] = out[l].wrapping_add(step);
    }
    out
}

/// An operation (f32, f32) -> f32 on each half of each lane.
pub(in crate::interp) trait HalfLane {
    fn lane(x: f32, y: f32) -> f32;
}

macro_rules! half_lanes {
    ($($name:ident: |$x:ident, $y:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name;
        impl HalfLane for $name {
            #[inline(always)]
            fn lane($x: f32, $y: f32) -> f32 {
                $e
            }
        }
    )*};
}

/// 2^-14
const F16_NORMAL_MIN: f32 = 1.0 / 16384.0;

half_lanes! {
    AddH: |x, y| x + y;
    SubH: |x, y| x - y;
    MulH: |x, y| x * y;
    // Zero also if only rounding makes it a normal number, as on an H200.
    MulFtzH: |x, y| {
        let product = x * y;
        if product.abs() < F16_NORMAL_MIN { 0f32.copysign(product) } else { product }
    };
    AbsH: |x, _y| x.abs();
    NegH: |x, _y| -x;
    MinH: |x, y| min_f32(x, y);
    MaxH: |x, y| max_f32(x, y);
    MinNanH: |x, y| if x.is_nan() || y.is_nan() { f32::NAN } else { min_f32(x, y) };
    MaxNanH: |x, y| if x.is_nan() || y.is_nan() { f32::NAN } else { max_f32(x, y) };
}

#[inline(always)]
fn lanes2<L: HalfLane>(x: Chunk, y: Chunk) -> Chunk {
    let mut out = [0; CHUNK];
    for l in 0..CHUNK {
        out[l] = number(L::lane(f32::from_bits(x[l]), f32::from_bits(y[l])));
    }
    out
}

/// Applies an operation to one half of each lane, or to two if `PACKED`.
pub(in crate::interp) struct Half2<L, F, const PACKED: bool>(PhantomData<(L, F)>);

impl<L: HalfLane, F: Format, const PACKED: bool> Body for Half2<L, F, PACKED> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| {
            let (x, y) = (files.chunk(step.a, i), files.chunk(step.b, i));
            // SAFETY: the body is compiled for this instruction set.
            unsafe {
                if PACKED {
                    let ([x, p], [y, q]) = (F::widen2::<I>(x), F::widen2::<I>(y));
                    F::narrow2::<I, NEAREST>([lanes2::<L>(x, y), lanes2::<L>(p, q)])
                } else {
                    let (x, y) = (F::widen::<I>(x), F::widen::<I>(y));
                    F::narrow::<I, NEAREST>(lanes2::<L>(x, y))
                }
            }
        });
        Ok(())
    }
}

/// `fma` of one half of each lane, or of two.
pub(in crate::interp) struct HalfFma<F, const PACKED: bool, const RELU: bool>(PhantomData<F>);

#[inline(always)]
fn fma<F: Format, const RELU: bool>(x: Chunk, y: Chunk, z: Chunk) -> Chunk {
    let mut out = F::fma(x, y, z);
    for l in 0..CHUNK {
        let value = f32::from_bits(out[l]);
        out[l] = number(if RELU && value <= 0.0 { 0.0 } else { value });
    }
    out
}

impl<F: Format, const PACKED: bool, const RELU: bool> Body for HalfFma<F, PACKED, RELU> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        for i in 0..CHUNKS {
            let x = files.chunk(step.a, i);
            let y = files.chunk(step.b, i);
            let z = files.chunk(step.c, i);
            // SAFETY: the body is compiled for this instruction set.
            let out = unsafe {
                if PACKED {
                    let ([x, p], [y, q]) = (F::widen2::<I>(x), F::widen2::<I>(y));
                    let [z, r] = F::widen2::<I>(z);
                    F::narrow2::<I, NEAREST>([fma::<F, RELU>(x, y, z), fma::<F, RELU>(p, q, r)])
                } else {
                    let (x, y) = (F::widen::<I>(x), F::widen::<I>(y));
                    let z = F::widen::<I>(z);
                    F::narrow::<I, NEAREST>(fma::<F, RELU>(x, y, z))
                }
            };
            files.set_chunk(step.d, i, mask, out);
        }
        Ok(())
    }
}

/// Returns the lanes in which a comparison is true.
///
/// # Safety
/// The host must have this instruction set.
#[inline(always)]
unsafe fn holding<I: Isa, R: Relation<u32>>(x: Chunk, y: Chunk) -> u32 {
    let mut holding: Chunk = [0; CHUNK];
    for l in 0..CHUNK {
        holding[l] = if R::holds(x[l], y[l]) { u32::MAX } else { 0 };
    }
    // SAFETY: the caller guarantees that the host has the instruction set.
    unsafe { I::bits32(holding) }
}

/// Compares halves; `R` compares in single precision.
pub(in crate::interp) struct SetpHalf<F, R>(PhantomData<(F, R)>);

impl<F: Format, R: Relation<u32>> Body for SetpHalf<F, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        let mut value = 0;
        for i in 0..CHUNKS {
            // SAFETY: the body is compiled for this instruction set.
            unsafe {
                let x = F::widen::<I>(files.chunk(step.a, i));
                let y = F::widen::<I>(files.chunk(step.b, i));
                value |= holding::<I, R>(x, y) << (i * CHUNK);
            }
        }
        files.set_pred(step.d as u16, mask, value);
        Ok(())
    }
}

/// Splits words into low and high halves.
#[inline(always)]
fn halves(x: Chunk) -> [Chunk; 2] {
    let mut out = [x; 2];
    for l in 0..CHUNK {
        out[0][l] &= 0xffff;
        out[1][l] >>= 16;
    }
    out
}

/// Compares packed halves; `c` is the predicate of the high ones.
pub(in crate::interp) struct SetpHalf2<F, R>(PhantomData<(F, R)>);

impl<F: Format, R: Relation<u32>> Body for SetpHalf2<F, R> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        let mut values = [0; 2];
        for i in 0..CHUNKS {
            // SAFETY: the body is compiled for this instruction set.
            unsafe {
                let (x, y) = (files.chunk(step.a, i), files.chunk(step.b, i));
                let ([x, p], [y, q]) = (halves(x), halves(y));
                let (x, y) = (F::widen::<I>(x), F::widen::<I>(y));
                let (p, q) = (F::widen::<I>(p), F::widen::<I>(q));
                values[0] |= holding::<I, R>(x, y) << (i * CHUNK);
                values[1] |= holding::<I, R>(p, q) << (i * CHUNK);
            }
        }
        for (d, value) in [step.d, step.c].into_iter().zip(values) {
            files.set_pred(d as u16, mask, value);
        }
        Ok(())
    }
}
