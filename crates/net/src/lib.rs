//! Networking that kernels start by themselves: the formats of mlx5 adapters, and an adapter in
//! software that serves real send queues in memory.
//!
//! ```text
//!  kernel or thread                                   this crate
//!    fill an entry ──► send ring ─────────────────►  adapter: checks every byte, executes
//!    doorbell record, doorbell ───────────────────►    │         │ between registered memory
//!    wait ◄── completion queue ◄───────────────────────┘         ▼
//! ```
//!
//! - [`wqe`] and [`cqe`] declare the formats, once.
//! - [`Adapter`] is the engine: memory and the time go in, completions come out; it starts no
//!   thread and reads no clock.
//!
//! It is no adapter: all queue pairs of an [`Adapter`] are connected among themselves.

mod adapter;
mod completions;
pub mod cqe;
mod error;
mod faults;
mod keys;
mod memory;
mod syndrome;
pub mod wqe;

pub use adapter::{Adapter, PairSetup, Peer, RECEIVE_BYTES, Retries, State, Status};
pub use completions::CompletionsSetup;
pub use error::Error;
pub use faults::Network;
pub use keys::{Access, REGIONS_MAX};
pub use memory::Mapped;
pub use syndrome::Syndrome;
