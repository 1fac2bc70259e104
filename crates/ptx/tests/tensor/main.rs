//! `mma`, `wmma`, `ldmatrix`, `movmatrix` against plain products of matrices. Where an element lies is written here as
//! the PTX manual has it, form by form; values are small enough that every sum is exact in any order.

#![allow(clippy::unwrap_used, clippy::panic, unreachable_pub)]
// Lanes are indexed as the manual's formulas index them.
#![allow(clippy::needless_range_loop)]

#[path = "../common/mod.rs"]
mod common;
mod forms;
mod mma;
mod sparse;
mod wmma;
