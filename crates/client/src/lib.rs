//! `libcuda.so.1`: the library that an unmodified CUDA program loads in place of the driver.
//!
//! ```text
//!  entry points (generated)  every exported symbol, one line each          entry.rs, guard.rs
//!    │
//!  calls/                    one file per family; local answers, and messages
//!    │
//!  state/                    the client's own knowledge: contexts, streams, libraries, memory
//!    │
//!  session.rs                one ordered stream of messages; waiting; deferred errors; notes
//!    │
//!  outboard-link
//! ```
//!
//! Lock order: a `state/` table, then the frames kept by a batch, then `session.sender`, then
//! `session.waiters`. No other lock is taken with the receiver's.
//!
//! Nothing here may panic, abort or hang: the process belongs to the program.

#![allow(clippy::missing_safety_doc)]

mod activity;
mod backoff;
mod callbacks;
mod calls;
mod emulate;
mod entry;
mod exit;
mod guard;
mod helpers;
mod integrity;
mod log;
mod notes;
mod optimise;
mod receive;
mod record;
mod session;
mod state;
mod stats;
mod tables;
mod thread;
mod times;

/// Marks this library as Outboard's, so that a server never takes it for a real driver.
#[unsafe(no_mangle)]
pub static outboard_client: u32 = 1;
