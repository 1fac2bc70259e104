//! `libcuda.so.1`: the library that an unmodified CUDA program loads in place of the driver.
//!
//! ```text
//!  entry.rs       every exported symbol, one line each, generated
//!    │
//!  calls/         one file per family; local answers, and messages
//!    │
//!  activity.rs    the table of functions for libcupti
//!  net.rs         the table of functions for liboutboard_net
//!  process.rs     the begin of the session, forks, the end of the process
//!  emulate.rs     a change of the emulated network
//!  nccl.rs        what NCCL is told where its kernels cannot use a network
//!    │
//!  state/         the client's own knowledge: contexts, streams, libraries, memory; and the server
//!    │
//!  session.rs     one ordered stream of messages; waiting; deferred errors
//!    │
//!  observe/       code around every call: guard, counts, times, recording, levels, profiling
//!    │
//!  call_table.rs, thread.rs, context.rs, log.rs, ...: leaves
//! ```
//!
//! Each imports only those below it, which `tools/imports.py` checks and prints. Two things go up
//! by functions that the upper layer hands in: what the server sends without a request
//! (`session::Handler`), and the round trips that a call owes (`observe::optimise::settle_by`).
//!
//! Lock order: a primary context's `holders`, then a `state/` table, then a context's `making`,
//! then the table of exposed memory, then the frames kept by a batch, then `session.sender`, then
//! `session.waiters`. No other lock is taken with the receiver's.
//!
//! Nothing here may panic, abort or hang: the process belongs to the program.

#![allow(clippy::missing_safety_doc)]

mod activity;
mod adapter;
mod backoff;
mod call_table;
mod callbacks;
mod calls;
#[cfg(not(test))]
mod cancellation;
mod context;
mod done;
mod emulate;
mod entry;
mod exports;
mod helpers;
mod integrity;
mod library_thread;
mod log;
mod nccl;
mod net;
mod observe;
mod process;
mod session;
mod state;
#[cfg(test)]
mod tests;
mod thread;

/// Marks this library as Outboard's, so that a server never takes it for a real driver.
#[unsafe(no_mangle)]
pub static outboard_client: u32 = 1;
