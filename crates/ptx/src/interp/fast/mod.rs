//! Functions for frequent instructions, compiled for each instruction set of the host.

pub(crate) mod arithmetic;
pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod half;
pub(crate) mod memory;
pub(crate) mod scatter;
pub(crate) mod shuffle;
