//! Functions for frequent arithmetic, one per operation.
//!
//! A row is processed in chunks that fit vector registers, each read before it is written. So a
//! destination may also be a source, and nothing needs to be copied.

use std::marker::PhantomData;

use crate::interp::core::{Core, Stop};
use crate::interp::isa::{Isa, fma32};
use crate::interp::step::{Body, Step};
use crate::lanes::{CHUNK, CHUNKS, Chunk, Chunk64, blend, blend64, write_chunks, write_chunks64};
use crate::number::approx::ex2;
use crate::number::extremes::{max_f32, min_f32};
use crate::number::float::{flush, number, product_ftz};
use crate::number::half;
use crate::number::scalar::{sar, shl, shr};

/// An operation u32 -> u32 on each lane.
pub(in crate::interp) trait Lane1 {
    fn lane(x: u32) -> u32;
}

/// An operation (u32, u32) -> u32 on each lane.
pub(in crate::interp) trait Lane2 {
    fn lane(x: u32, y: u32) -> u32;
}

/// An operation (u32, u32, u32) -> u32 on each lane.
pub(in crate::interp) trait Lane3 {
    fn lane(x: u32, y: u32, z: u32) -> u32;
}

/// An operation (u64, u64) -> u64 on each lane.
pub(in crate::interp) trait Lane64 {
    fn lane(x: u64, y: u64) -> u64;
}

macro_rules! lanes1 {
    ($($name:ident: |$x:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name;
        impl Lane1 for $name {
            #[inline(always)]
            fn lane($x: u32) -> u32 {
                $e
            }
        }
    )*};
}

lanes1! {
    Not: |x| !x;
    Neg: |x| x.wrapping_neg();
    SignExtend8: |x| x as i8 as u32;
    SignExtend16: |x| x as i16 as u32;
    ZeroExtend8: |x| x & 0xff;
    ZeroExtend16: |x| x & 0xffff;
    UpperHalf: |x| x << 16;
    FlushF16: |x| half::packed(x, 0, |x, _| half::flush_f16(x));
    SaturateF16: |x| half::packed(x, 0, |x, _| half::saturate_f16(x));
}

macro_rules! lanes2 {
    ($($name:ident: |$x:ident, $y:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name;
        impl Lane2 for $name {
            #[inline(always)]
            fn lane($x: u32, $y: u32) -> u32 {
                $e
            }
        }
    )*};
}

lanes2! {
    Add: |x, y| x.wrapping_add(y);
    Sub: |x, y| x.wrapping_sub(y);
    MulLo: |x, y| x.wrapping_mul(y);
    MinS: |x, y| (x as i32).min(y as i32) as u32;
    MinU: |x, y| x.min(y);
    MaxS: |x, y| (x as i32).max(y as i32) as u32;
    MaxU: |x, y| x.max(y);
    And: |x, y| x & y;
    Or: |x, y| x | y;
    Xor: |x, y| x ^ y;
    Shl: |x, y| shl(x, y);
    ShrS: |x, y| sar(x, y);
    ShrU: |x, y| shr(x, y);
    Pack16: |x, y| x & 0xffff | y << 16;
    DivU: |x, y| if y == 0 { u32::MAX } else { quotient(x, y) };
    RemU: |x, y| if y == 0 { u32::MAX } else { x.wrapping_sub(quotient(x, y).wrapping_mul(y)) };
}

/// Divides in double precision, which has vector instructions. A quotient that is no integer is at
/// least 1 / `y` below the next one, far more than rounding adds to a number below 2^32 / `y`.
#[inline(always)]
fn quotient(x: u32, y: u32) -> u32 {
    /// A number whose addition leaves an integer in the lowest bits.
    const INTEGERS: f64 = 4_503_599_627_370_496.0;
    let quotient = (f64::from(x) / f64::from(y)).trunc();
    (quotient + INTEGERS).to_bits() as u32
}

#[inline(always)]
fn float<const FTZ: bool>(bits: u32) -> f32 {
    let x = f32::from_bits(bits);
    if FTZ { flush(x) } else { x }
}

#[inline(always)]
fn bits<const FTZ: bool>(x: f32) -> u32 {
    number(if FTZ { flush(x) } else { x })
}

macro_rules! float_lanes1 {
    ($($name:ident: |$x:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name<const FTZ: bool>;
        impl<const FTZ: bool> Lane1 for $name<FTZ> {
            #[inline(always)]
            fn lane(x: u32) -> u32 {
                let $x = float::<FTZ>(x);
                bits::<FTZ>($e)
            }
        }
    )*};
}

float_lanes1! {
    NegF: |x| -x;
    AbsF: |x| x.abs();
    RcpF: |x| 1.0 / x;
    SqrtF: |x| x.sqrt();
    RsqrtF: |x| (1.0 / f64::from(x).sqrt()) as f32;
    Ex2F: |x| ex2(x);
}

macro_rules! float_lanes2 {
    ($($name:ident: |$x:ident, $y:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name<const FTZ: bool>;
        impl<const FTZ: bool> Lane2 for $name<FTZ> {
            #[inline(always)]
            fn lane(x: u32, y: u32) -> u32 {
                let ($x, $y) = (float::<FTZ>(x), float::<FTZ>(y));
                bits::<FTZ>($e)
            }
        }
    )*};
}

float_lanes2! {
    AddF: |x, y| x + y;
    SubF: |x, y| x - y;
    MulF: |x, y| if FTZ { product_ftz(x, y) } else { x * y };
    DivF: |x, y| x / y;
    MinF: |x, y| min_f32(x, y);
    MaxF: |x, y| max_f32(x, y);
}

macro_rules! lanes3 {
    ($($name:ident: |$x:ident, $y:ident, $z:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name;
        impl Lane3 for $name {
            #[inline(always)]
            fn lane($x: u32, $y: u32, $z: u32) -> u32 {
                $e
            }
        }
    )*};
}

lanes3! {
    MadLo: |x, y, z| x.wrapping_mul(y).wrapping_add(z);
    Fma: |x, y, z| fma32(x, y, z);
    FmaFtz: |x, y, z| bits::<true>(float::<true>(x).mul_add(float::<true>(y), float::<true>(z)));
}

macro_rules! lanes64 {
    ($($name:ident: |$x:ident, $y:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name;
        impl Lane64 for $name {
            #[inline(always)]
            fn lane($x: u64, $y: u64) -> u64 {
                $e
            }
        }
    )*};
}

lanes64! {
    Add64: |x, y| x.wrapping_add(y);
    Sub64: |x, y| x.wrapping_sub(y);
    And64: |x, y| x & y;
    Or64: |x, y| x | y;
    MulLo64: |x, y| x.wrapping_mul(y);
}

pub(in crate::interp) struct Map1<L>(PhantomData<L>);

impl<L: Lane1> Body for Map1<L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| {
            let x = files.chunk(step.a, i);
            let mut out: Chunk = [0; CHUNK];
            for l in 0..CHUNK {
                out[l] = L::lane(x[l]);
            }
            out
        });
        Ok(())
    }
}

pub(in crate::interp) struct Map2<L>(PhantomData<L>);

impl<L: Lane2> Body for Map2<L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| {
            let (x, y) = (files.chunk(step.a, i), files.chunk(step.b, i));
            let mut out: Chunk = [0; CHUNK];
            for l in 0..CHUNK {
                out[l] = L::lane(x[l], y[l]);
            }
            out
        });
        Ok(())
    }
}

pub(in crate::interp) struct Map3<L>(PhantomData<L>);

impl<L: Lane3> Body for Map3<L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| {
            let (x, y, z) = (
                files.chunk(step.a, i),
                files.chunk(step.b, i),
                files.chunk(step.c, i),
            );
            let mut out: Chunk = [0; CHUNK];
            for l in 0..CHUNK {
                out[l] = L::lane(x[l], y[l], z[l]);
            }
            out
        });
        Ok(())
    }
}

pub(in crate::interp) struct Mov32;

impl Body for Mov32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks!(files, step.d, mask, |i| files.chunk(step.a, i));
        Ok(())
    }
}

pub(in crate::interp) struct Mov64;

impl Body for Mov64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks64!(files, step.d, mask, |i| files.chunk64(step.a, i));
        Ok(())
    }
}

pub(in crate::interp) struct Map64<L>(PhantomData<L>);

impl<L: Lane64> Body for Map64<L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks64!(files, step.d, mask, |i| {
            let (x, y) = (files.chunk64(step.a, i), files.chunk64(step.b, i));
            let mut out: Chunk64 = [0; CHUNK];
            for l in 0..CHUNK {
                out[l] = L::lane(x[l], y[l]);
            }
            out
        });
        Ok(())
    }
}

macro_rules! shifts64 {
    ($($name:ident: |$x:ident, $n:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name;
        impl Body for $name {
            #[inline(always)]
            unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
                let files = core.files;
                write_chunks64!(files, step.d, mask, |i| {
                    let (x, n) = (files.chunk64(step.a, i), files.chunk(step.b, i));
                    let mut out: Chunk64 = [0; CHUNK];
                    for l in 0..CHUNK {
                        let ($x, $n) = (x[l], n[l]);
                        out[l] = $e;
                    }
                    out
                });
                Ok(())
            }
        }
    )*};
}

shifts64! {
    Shl64: |x, n| if n > 63 { 0 } else { x << (n & 63) };
    ShrU64: |x, n| if n > 63 { 0 } else { x >> (n & 63) };
}

#[inline(always)]
fn wide<const SIGNED: bool>(x: u32) -> u64 {
    if SIGNED { x as i32 as u64 } else { x.into() }
}

pub(in crate::interp) struct Widen<const SIGNED: bool>;

impl<const SIGNED: bool> Body for Widen<SIGNED> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks64!(files, step.d, mask, |i| {
            let x = files.chunk(step.a, i);
            let mut out: Chunk64 = [0; CHUNK];
            for l in 0..CHUNK {
                out[l] = wide::<SIGNED>(x[l]);
            }
            out
        });
        Ok(())
    }
}

pub(in crate::interp) struct MulWide<const SIGNED: bool>;

impl<const SIGNED: bool> Body for MulWide<SIGNED> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks64!(files, step.d, mask, |i| {
            let (x, y) = (files.chunk(step.a, i), files.chunk(step.b, i));
            let mut out: Chunk64 = [0; CHUNK];
            for l in 0..CHUNK {
                out[l] = wide::<SIGNED>(x[l]).wrapping_mul(wide::<SIGNED>(y[l]));
            }
            out
        });
        Ok(())
    }
}

pub(in crate::interp) struct MadWide<const SIGNED: bool>;

impl<const SIGNED: bool> Body for MadWide<SIGNED> {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks64!(files, step.d, mask, |i| {
            let (x, y) = (files.chunk(step.a, i), files.chunk(step.b, i));
            let z = files.chunk64(step.c, i);
            let mut out: Chunk64 = [0; CHUNK];
            for l in 0..CHUNK {
                let product = wide::<SIGNED>(x[l]).wrapping_mul(wide::<SIGNED>(y[l]));
                out[l] = product.wrapping_add(z[l]);
            }
            out
        });
        Ok(())
    }
}

/// A predicate operation; `c` is its table.
pub(in crate::interp) struct PredOp;

impl Body for PredOp {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        let (a, b) = (
            files.pred(step.a as u16, false),
            files.pred(step.b as u16, false),
        );
        let products = [!a & !b, a & !b, !a & b, a & b];
        let mut value = 0;
        for i in 0..4 {
            value |= if step.c >> i & 1 != 0 { products[i] } else { 0 };
        }
        files.set_pred(step.d as u16, mask, value);
        Ok(())
    }
}

/// A selection; `c` is the predicate and, in its lowest bit, whether it is negated.
pub(in crate::interp) struct Sel32;

impl Body for Sel32 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        let chosen = files.pred((step.c >> 1) as u16, step.c & 1 != 0);
        write_chunks!(files, step.d, mask, |i| {
            let (x, y) = (files.chunk(step.a, i), files.chunk(step.b, i));
            blend(chosen, i, x, y)
        });
        Ok(())
    }
}

/// A selection of 64 bits, with operands as `Sel32`.
pub(in crate::interp) struct Sel64;

impl Body for Sel64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        let chosen = files.pred((step.c >> 1) as u16, step.c & 1 != 0);
        write_chunks64!(files, step.d, mask, |i| {
            let (x, y) = (files.chunk64(step.a, i), files.chunk64(step.b, i));
            blend64(chosen, i, x, y)
        });
        Ok(())
    }
}

pub(in crate::interp) struct MadLo64;

impl Body for MadLo64 {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let files = core.files;
        write_chunks64!(files, step.d, mask, |i| {
            let (x, y) = (files.chunk64(step.a, i), files.chunk64(step.b, i));
            let z = files.chunk64(step.c, i);
            let mut out: Chunk64 = [0; CHUNK];
            for l in 0..CHUNK {
                out[l] = x[l].wrapping_mul(y[l]).wrapping_add(z[l]);
            }
            out
        });
        Ok(())
    }
}

/// `%tid`; `a` is the axis.
pub(in crate::interp) struct Tid;

impl Body for Tid {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let tid = &core.storage.tid[(step.a & 3) as usize].0;
        for (i, value) in tid.as_chunks::<CHUNK>().0.iter().enumerate() {
            core.files.set_chunk(step.d, i, mask, *value);
        }
        Ok(())
    }
}

/// `%ntid`, `%ctaid` or `%nctaid`, selected by `b`; `a` is the axis.
pub(in crate::interp) struct BlockConstant;

impl Body for BlockConstant {
    #[inline(always)]
    unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
        let shape = match step.b {
            0 => &core.env.block,
            1 => &core.block,
            _ => &core.env.grid,
        };
        let value = [shape[step.a as usize % 3]; CHUNK];
        for i in 0..CHUNKS {
            core.files.set_chunk(step.d, i, mask, value);
        }
        Ok(())
    }
}

pub(in crate::interp) struct Nop;

impl Body for Nop {
    #[inline(always)]
    unsafe fn run<I: Isa>(_: &mut Core<'_>, _: &Step, _: u32) -> Result<(), Stop> {
        Ok(())
    }
}
