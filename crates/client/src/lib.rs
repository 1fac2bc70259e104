//! `libcuda.so.1`: what an unmodified CUDA program loads in place of the driver.
//!
//! ```text
//!  entry points (generated)     every exported symbol, one line each           entry.rs, guard.rs
//!    │
//!  calls/                       one file a family; says what is local, what is sent
//!    │
//!  state/                       what the client knows by itself: contexts, streams, events, libraries, memory
//!    │
//!  session.rs                   one ordered submission stream; waiting; faults; what the server says unasked
//!    │
//!  outboard-link
//! ```
//!
//! Lock order: a `state/` table, then what a batch keeps, then `session.sender`, then `session.waiters`. The receiver is
//! taken alone.
//!
//! Nothing here may panic, abort or hang: the process belongs to somebody else's program.

#![allow(clippy::missing_safety_doc)]

mod activity;
mod calls;
mod emulate;
mod entry;
mod exit;
mod guard;
mod helpers;
mod integrity;
mod landing;
mod log;
mod naps;
mod notes;
mod optimise;
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
