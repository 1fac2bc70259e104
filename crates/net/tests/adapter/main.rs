//! The engine: what it executes, what it refuses, and with which syndrome. Entries are written into
//! the ring, and completions are read from theirs, as a program does.
#![allow(clippy::unwrap_used)]

mod ends;
mod network;
mod order;
mod refused;
mod silent;

use outboard_net::Adapter;
