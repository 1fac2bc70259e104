//! `mma`, `wmma`, `ldmatrix`, `movmatrix` against plain products of matrices. Positions of elements
//! are written here as in the PTX manual, form by form; values are small enough that every sum is
//! exact in any order.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]
// Lanes are indexed as in the manual's formulas.
#![allow(clippy::needless_range_loop)]

mod forms;
mod mma;
mod sparse;
mod wmma;
