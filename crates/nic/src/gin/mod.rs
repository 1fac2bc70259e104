//! A plugin for NCCL's GIN (`NCCL_RMA_PLUGIN`, and
//! `NCCL_GIN_PLUGIN` before NCCL 2.30.5): its thread puts, gets and signals by the adapter,
//! without verbs.
//!
//! ```text
//!  NCCL ─► calls ─► registry: objects by the numbers that NCCL has for them
//!                      ├─► group: sockets by which the ranks of a communicator tell each other
//!                      ├─► window: memory of each rank, by its key
//!                      └─► queue: a queue pair for each context and rank
//! ```
//!
//! NCCL hands numbers back, not addresses: a number that is not there, or of another kind, is an
//! error. `abi` has the interface's structures, versions 11 to 13.

pub mod abi;
mod calls;
mod group;
mod queue;
mod registry;
mod window;

pub use calls::{ncclGinPlugin_v11, ncclGinPlugin_v12, ncclGinPlugin_v13};

use std::ffi::c_int;

use crate::host::Refusal;

/// Why a call fails: a number of NCCL's results, and what of it.
#[derive(Debug)]
struct Failure {
    result: c_int,
    why: String,
}

type Outcome<T> = Result<T, Failure>;

/// An argument of NCCL's makes no sense.
fn wrong<T>(why: impl Into<String>) -> Outcome<T> {
    let (result, why) = (abi::INVALID_ARGUMENT, why.into());
    Err(Failure { result, why })
}

/// The system, or another rank, does not do its part.
fn broken(why: impl ToString) -> Failure {
    let (result, why) = (abi::SYSTEM_ERROR, why.to_string());
    Failure { result, why }
}

fn refused((_, why): Refusal) -> Failure {
    broken(why)
}
