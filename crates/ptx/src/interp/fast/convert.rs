//! Functions for conversions between numbers of up to 32 bits.
//!
//! Single precision holds every `f16`, and every integer that is not far beyond all `f16`; so a
//! value rounded to 16 bits, or to an integer, is rounded once.

use std::marker::PhantomData;

use crate::code::{Cvt, CvtType};
use crate::interp::core::{Core, Stop};
use crate::interp::fast::half::{F16, Format};
use crate::interp::isa::{DOWN, Isa, NEAREST, UP};
use crate::interp::step::{Body, Step};
use crate::lanes::{CHUNK, CHUNKS, Chunk, write_chunks};
use crate::number::float::{flush, number};

/// Modifiers applied to a value before it is rounded, as bits of a step's operand.
const FTZ: u32 = 1;
const SATURATE: u32 = 2;
const RELU: u32 = 4;

pub(in crate::interp) fn modifiers(cvt: &Cvt) -> u32 {
    let given = [(cvt.ftz, FTZ), (cvt.sat, SATURATE), (cvt.relu, RELU)];
    given
        .iter()
        .map(|&(is, bit)| if is { bit } else { 0 })
        .sum()
}

pub(in crate::interp) fn relu(given: bool) -> u32 {
    if given { RELU } else { 0 }
}

/// Applies modifiers to single precision. NaN becomes the one that arithmetic produces, and
/// saturates to zero.
#[inline(always)]
fn modified(x: Chunk, modifiers: u32) -> Chunk {
    let mut out = [0; CHUNK];
    for l in 0..CHUNK {
        let mut value = f32::from_bits(x[l]);
        if modifiers & FTZ != 0 {
            value = flush(value);
        }
        if modifiers & RELU != 0 {
            value = if value <= 0.0 { 0.0 } else { value };
        }
        if modifiers & SATURATE != 0 {
            let clamped = value.clamp(0.0, 1.0).abs();
            value = if value.is_nan() { 0.0 } else { clamped };
        }
        out[l] = number(value);
    }
    out
}

/// Converts single precision to a 16-bit format; `c` has the modifiers.
pub(in crate::interp) struct ToHalf<F, const ROUNDING: i32>(PhantomData<F>);

impl<F: Format, const ROUNDING: i32> Body for ToHalf<F, ROUNDING> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        for i in 0..CHUNKS {
            let x = files.chunk(step.a, i);
            let x = match step.c {
                0 => modified(x, 0),
                modifiers => modified(x, modifiers),
            };
            // SAFETY: the body is compiled for this instruction set.
            let out = unsafe { F::narrow::<I, ROUNDING>(x) };
            files.set_chunk(step.d, i, mask, out);
        }
        Ok(())
    }
}

/// Converts two singles to a pair, with `a` as the high half; `c` has the modifiers.
pub(in crate::interp) struct ToPair<F, const ROUNDING: i32>(PhantomData<F>);

impl<F: Format, const ROUNDING: i32> Body for ToPair<F, ROUNDING> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        for i in 0..CHUNKS {
            let (high, low) = (files.chunk(step.a, i), files.chunk(step.b, i));
            let (high, low) = match step.c {
                0 => (modified(high, 0), modified(low, 0)),
                modifiers => (modified(high, modifiers), modified(low, modifiers)),
            };
            // SAFETY: the body is compiled for this instruction set.
            let out = unsafe {
                let (high, low) = (
                    F::narrow::<I, ROUNDING>(high),
                    F::narrow::<I, ROUNDING>(low),
                );
                let mut out = low;
                for l in 0..CHUNK {
                    out[l] |= high[l] << 16;
                }
                out
            };
            files.set_chunk(step.d, i, mask, out);
        }
        Ok(())
    }
}

/// Converts `f16` to single precision; `c` has the modifiers.
pub(in crate::interp) struct FromF16;

impl Body for FromF16 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        for i in 0..CHUNKS {
            // SAFETY: the body is compiled for this instruction set.
            let x = unsafe { I::widen_f16(files.chunk(step.a, i)) };
            let out = match step.c {
                0 => modified(x, 0),
                modifiers => modified(x, modifiers),
            };
            files.set_chunk(step.d, i, mask, out);
        }
        Ok(())
    }
}

/// Rounds to an integral float, with `ROUNDING` as in [`Isa::narrow_f16`].
#[inline(always)]
fn integral<const ROUNDING: i32>(x: f32) -> f32 {
    match ROUNDING {
        NEAREST => x.round_ties_even(),
        DOWN => x.floor(),
        UP => x.ceil(),
        _ => x.trunc(),
    }
}

/// Rounds single precision to integers in single precision; `c` has the modifiers.
pub(in crate::interp) struct ToIntegral<const ROUNDING: i32>;

impl<const ROUNDING: i32> Body for ToIntegral<ROUNDING> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        for i in 0..CHUNKS {
            let x = files.chunk(step.a, i);
            let mut out = [0; CHUNK];
            for l in 0..CHUNK {
                let value = f32::from_bits(x[l]);
                let value = if step.c & FTZ != 0 {
                    flush(value)
                } else {
                    value
                };
                out[l] = integral::<ROUNDING>(value).to_bits();
            }
            let out = modified(out, step.c & !FTZ);
            files.set_chunk(step.d, i, mask, out);
        }
        Ok(())
    }
}

/// Applies the modifiers in `c` to single precision.
pub(in crate::interp) struct Modified;

impl Body for Modified {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| modified(
            files.chunk(step.a, i),
            step.c
        ));
        Ok(())
    }
}

/// Source formats of conversions to integers.
pub(in crate::interp) trait Source {
    /// # Safety
    /// The host must have this instruction set.
    unsafe fn single<I: Isa>(x: Chunk) -> Chunk;
}

pub(in crate::interp) struct F32;

impl Source for F32 {
    #[inline(always)]
    unsafe fn single<I: Isa>(x: Chunk) -> Chunk {
        x
    }
}

impl Source for F16 {
    #[inline(always)]
    unsafe fn single<I: Isa>(x: Chunk) -> Chunk {
        // SAFETY: the caller guarantees that the host has the instruction set.
        unsafe { I::widen_f16(x) }
    }
}

/// Integer types to which integral, finite or infinite, floats are converted.
pub(in crate::interp) trait Target {
    fn integer(x: f32) -> u32;
}

pub(in crate::interp) struct S32;
pub(in crate::interp) struct U32;
pub(in crate::interp) struct S16;
pub(in crate::interp) struct U16;
pub(in crate::interp) struct S8;
pub(in crate::interp) struct U8;

/// 2^31
const HALF_RANGE: f32 = 2_147_483_648.0;

impl Target for S32 {
    #[inline(always)]
    fn integer(x: f32) -> u32 {
        x as i32 as u32
    }
}

impl Target for U32 {
    #[inline(always)]
    fn integer(x: f32) -> u32 {
        // Vector instructions convert to signed integers only.
        let is_upper = x >= HALF_RANGE;
        let rest = if is_upper { x - HALF_RANGE } else { x.max(0.0) };
        let top = if is_upper { 1 << 31 } else { 0 };
        (rest as i32 as u32) ^ top
    }
}

macro_rules! small {
    ($($name:ident: $ty:ty, $unsigned:ty;)*) => {$(
        impl Target for $name {
            #[inline(always)]
            fn integer(x: f32) -> u32 {
                let clamped = x.clamp(<$ty>::MIN.into(), <$ty>::MAX.into());
                u32::from(clamped as i32 as $unsigned)
            }
        }
    )*};
}

small! {
    S16: i16, u16;
    U16: u16, u16;
    S8: i8, u8;
    U8: u8, u8;
}

/// Converts a float to an integer; `c` has the modifiers, of which only `.ftz` matters.
pub(in crate::interp) struct ToInteger<S, T, const ROUNDING: i32>(PhantomData<(S, T)>);

impl<S: Source, T: Target, const ROUNDING: i32> Body for ToInteger<S, T, ROUNDING> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        for i in 0..CHUNKS {
            // SAFETY: the body is compiled for this instruction set.
            let x = unsafe { S::single::<I>(files.chunk(step.a, i)) };
            let mut out = [0; CHUNK];
            for l in 0..CHUNK {
                let value = f32::from_bits(x[l]);
                let value = if step.c & FTZ != 0 {
                    flush(value)
                } else {
                    value
                };
                let value = if value.is_nan() { 0.0 } else { value };
                out[l] = T::integer(integral::<ROUNDING>(value));
            }
            files.set_chunk(step.d, i, mask, out);
        }
        Ok(())
    }
}

/// Sign- or zero-extends a register as an integer of a type.
#[inline(always)]
fn extended(ty: CvtType, x: u32) -> u32 {
    match ty {
        CvtType::U8 => u32::from(x as u8),
        CvtType::S8 => x as i8 as u32,
        CvtType::U16 => u32::from(x as u16),
        CvtType::S16 => x as i16 as u32,
        _ => x,
    }
}

/// Converts to the nearest single; integers of fewer than 32 bits are exact.
#[inline(always)]
fn single(ty: CvtType, x: Chunk) -> Chunk {
    let mut out = [0; CHUNK];
    for l in 0..CHUNK {
        let value = match ty {
            CvtType::U32 => x[l] as f32,
            _ => extended(ty, x[l]) as i32 as f32,
        };
        out[l] = value.to_bits();
    }
    out
}

/// Integer types of 32-bit registers; indexes into this are parameters of functions.
pub(in crate::interp) const INTEGERS: [CvtType; 6] = [
    CvtType::S32,
    CvtType::U32,
    CvtType::S16,
    CvtType::U16,
    CvtType::S8,
    CvtType::U8,
];

/// Converts an integer, one of [`INTEGERS`], to the nearest single.
pub(in crate::interp) struct IntegerToF32<const FROM: usize>;

impl<const FROM: usize> Body for IntegerToF32<FROM> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| single(
            INTEGERS[FROM],
            files.chunk(step.a, i)
        ));
        Ok(())
    }
}

/// Converts an integer, one of [`INTEGERS`], to `f16`. If single precision does not hold the
/// integer, both are far beyond all `f16`.
pub(in crate::interp) struct IntegerToF16<const FROM: usize, const ROUNDING: i32>;

impl<const FROM: usize, const ROUNDING: i32> Body for IntegerToF16<FROM, ROUNDING> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        for i in 0..CHUNKS {
            let x = single(INTEGERS[FROM], files.chunk(step.a, i));
            // SAFETY: the body is compiled for this instruction set.
            let out = unsafe { I::narrow_f16::<ROUNDING>(x) };
            files.set_chunk(step.d, i, mask, out);
        }
        Ok(())
    }
}

/// Converts between integers of 32-bit registers without saturation: keeps the bits `KEPT` of the
/// target type, zero-extended.
pub(in crate::interp) struct Resize<const FROM: usize, const KEPT: u32>;

impl<const FROM: usize, const KEPT: u32> Body for Resize<FROM, KEPT> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| {
            let mut x = files.chunk(step.a, i);
            for lane in &mut x {
                *lane = extended(INTEGERS[FROM], *lane) & KEPT;
            }
            x
        });
        Ok(())
    }
}

/// Returns the low words of 64-bit values.
pub(in crate::interp) struct LowWord;

impl Body for LowWord {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| {
            let x = files.chunk64(step.a, i);
            let mut out = [0; CHUNK];
            for l in 0..CHUNK {
                out[l] = x[l] as u32;
            }
            out
        });
        Ok(())
    }
}
