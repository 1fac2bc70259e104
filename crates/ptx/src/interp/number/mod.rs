//! Arithmetic, comparisons and conversions, by type.

pub(crate) mod approx;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod float;
pub(crate) mod float8;
pub(crate) mod half;
pub(crate) mod integer;
pub(crate) mod rounding;
pub(crate) mod scalar;
pub(crate) mod video;
