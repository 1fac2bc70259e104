//! The executable form of a program: for each instruction a function, chosen once.

pub(crate) mod fuse;
pub(crate) mod program;
pub(crate) mod select;
pub(crate) mod select_half;
