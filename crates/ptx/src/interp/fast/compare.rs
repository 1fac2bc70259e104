//! Functions for frequent comparisons, one per relation.

use std::marker::PhantomData;

use crate::interp::core::{Core, Stop};
use crate::interp::isa::Isa;
use crate::interp::step::{Body, Step};
use crate::lanes::{CHUNK, CHUNKS, Chunk};

/// A comparison.
pub(in crate::interp) trait Relation<W> {
    fn holds(x: W, y: W) -> bool;
}

macro_rules! relations {
    ($word:ty, $read:expr; $($name:ident: |$x:ident, $y:ident| $e:expr;)*) => {$(
        pub(in crate::interp) struct $name;
        impl crate::interp::fast::compare::Relation<$word> for $name {
            #[inline(always)]
            fn holds(x: $word, y: $word) -> bool {
                let ($x, $y) = ($read(x), $read(y));
                $e
            }
        }
    )*};
}

/// Defines one module per type, with the names of `Cmp`. Unordered relations are written for
/// floats.
macro_rules! typed_relations {
    ($($module:ident: $word:ty, $read:expr;)*) => {$(
        #[allow(clippy::double_comparisons)]
        pub(in crate::interp) mod $module {
            relations! { $word, $read;
                Eq: |x, y| x == y;
                Ne: |x, y| x < y || x > y;
                Lt: |x, y| x < y;
                Le: |x, y| x <= y;
                Gt: |x, y| x > y;
                Ge: |x, y| x >= y;
                EqU: |x, y| !(x < y || x > y);
                NeU: |x, y| x != y;
                LtU: |x, y| !(x >= y);
                LeU: |x, y| !(x > y);
                GtU: |x, y| !(x <= y);
                GeU: |x, y| !(x < y);
            }
        }
    )*};
}

typed_relations! {
    unsigned: u32, |x: u32| x;
    signed: u32, |x: u32| x as i32;
    single: u32, f32::from_bits;
    unsigned64: u64, |x: u64| x;
    signed64: u64, |x: u64| x as i64;
    double: u64, f64::from_bits;
}

/// Returns the step of a comparison, whose relation `$step` names; `None` if it has no function of
/// its own.
macro_rules! compare_by {
    ($with:expr, $cmp:expr, $module:ident, |$relation:ident| $step:expr) => {{
        use $crate::code::Cmp;
        use $crate::interp::fast::compare::$module as of;
        match $cmp {
            Cmp::Eq => {
                type $relation = of::Eq;
                $step
            }
            Cmp::Ne => {
                type $relation = of::Ne;
                $step
            }
            Cmp::Lt => {
                type $relation = of::Lt;
                $step
            }
            Cmp::Le => {
                type $relation = of::Le;
                $step
            }
            Cmp::Gt => {
                type $relation = of::Gt;
                $step
            }
            Cmp::Ge => {
                type $relation = of::Ge;
                $step
            }
            Cmp::EqU => {
                type $relation = of::EqU;
                $step
            }
            Cmp::NeU => {
                type $relation = of::NeU;
                $step
            }
            Cmp::LtU => {
                type $relation = of::LtU;
                $step
            }
            Cmp::LeU => {
                type $relation = of::LeU;
                $step
            }
            Cmp::GtU => {
                type $relation = of::GtU;
                $step
            }
            Cmp::GeU => {
                type $relation = of::GeU;
                $step
            }
            Cmp::Num | Cmp::Nan => $with.any,
        }
    }};
}
pub(in crate::interp) use compare_by;

macro_rules! setp {
    ($($name:ident: $word:ty, $chunk:ident;)*) => {$(
        pub(in crate::interp) struct $name<R>(PhantomData<R>);

        impl<R: Relation<$word>> Body for $name<R> {
            #[inline(always)]
            unsafe fn run<I: Isa>(core: &mut Core<'_>, step: &Step, mask: u32) -> Result<(), Stop> {
                let files = core.files;
                let mut value = 0;
                for i in 0..CHUNKS {
                    let (x, y) = (files.$chunk(step.a, i), files.$chunk(step.b, i));
                    let mut holding: Chunk = [0; CHUNK];
                    for l in 0..CHUNK {
                        holding[l] = if R::holds(x[l], y[l]) { u32::MAX } else { 0 };
                    }
                    // SAFETY: the body is compiled for this instruction set.
                    value |= unsafe { I::bits32(holding) } << (i * CHUNK);
                }
                files.set_pred(step.d as u16, mask, value);
                Ok(())
            }
        }
    )*};
}

setp! {
    Setp: u32, chunk;
    Setp64: u64, chunk64;
}
