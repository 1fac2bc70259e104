//! Arithmetic, comparisons and conversions, by type.

// Formulas read as in the ISA, and one index runs through several rows in loops that must
// vectorise.
#![allow(
    clippy::needless_range_loop,
    clippy::too_many_arguments,
    clippy::precedence,
    clippy::if_same_then_else,
    clippy::manual_clamp,
    clippy::neg_cmp_op_on_partial_ord
)]

pub(crate) mod approx;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod extremes;
pub(crate) mod float;
pub(crate) mod float8;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod rounding;
pub(crate) mod scalar;
pub(crate) mod video;
