//! Texts of PTX through the parser, the verifier and the interpreter, by their public interface.

#![allow(clippy::unwrap_used, clippy::panic)]

mod basics;
mod carry;
mod check;
mod children;
mod common;
mod features;
mod float8;
mod functions;
mod graph_launch;
mod hostile;
mod instructions;
mod limits;
mod link;
mod long;
mod math;
mod operands;
mod rare;
mod shared;
mod small;
mod straight;
mod sync;
mod tensor;
mod texture;
mod texture_levels;
mod verify;
mod warp;
