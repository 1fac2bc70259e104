//! Matrix instructions.

pub(crate) mod fragment;
pub(crate) mod instructions;
pub(crate) mod sparse;
