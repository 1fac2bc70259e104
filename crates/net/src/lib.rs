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
//!   thread and reads no clock. [`Nic`] runs one in a thread.
//! - [`Queue`] is a queue pair with its memory, to which `include/outboard/net.cuh` posts; kernels
//!   take it by value ([`Export`]). [`capi`] is the C interface, `include/outboard/net.h`.
//!
//! - [`Provider`] is how an endpoint of a program executes operations: by the adapter, or by
//!   loads and stores of the threads that post, which need only to know what they may reach.
//! - `mlx5` has queues of real adapters, `proxy` a thread that posts to any RDMA device what it
//!   reads in queues; `device` opens one, and registers memory with it.
//! - [`remote`] is an endpoint where the GPU is: calls of a program under `outboard run`, which its
//!   session's server executes.
//! - [`Link`] joins queues of two processes: entries travel by memory of both, over tcp, or by
//!   verbs of a real device ([`Way`]), to which `poster` posts them, as it does for `proxy`.
//!
//! It is no adapter: queue pairs are connected among themselves, or to those of another process.

mod adapter;
mod bell;
mod block;
pub mod capi;
mod claim;
mod command;
mod completions;
mod counts;
pub mod cqe;
mod device;
mod distant;
mod doorbell;
mod driver;
mod endpoint;
mod engine;
mod error;
mod faults;
mod field;
mod here;
mod kept;
mod kernel;
mod keys;
mod layout;
mod link;
mod looker;
mod mapping;
mod masked;
mod meet;
mod memory;
mod mlx5;
mod nic;
mod nvlink;
mod open;
mod own;
mod placed;
mod poster;
mod provider;
mod proxy;
mod queue;
mod reach;
pub mod remote;
mod rest;
mod ring;
mod rings;
mod room;
mod shared;
mod stream;
mod syndrome;
mod threads;
mod way;
pub mod wqe;

pub use adapter::{
    Adapter, PairSetup, Peer, RECEIVE_BYTES, REMOTE_BYTES_MAX, Retries, SharedReceives, State,
    Status,
};
pub use bell::rouse;
pub use block::{EXCLUSIVE, Export, Options as QueueOptions, PATIENT, PLAIN, UNRELIABLE};
pub use completions::{CQN_FIRST, CompletionsSetup, Watch};
pub use distant::{Distant, Gone, Registered};
pub use endpoint::{Counts, Endpoint};
pub use engine::{ENGINE_VARIABLE, Engine};
pub use error::Error;
pub use faults::Network;
pub use field::Field;
pub use kernel::KernelAdapter;
pub use keys::{Access, REGIONS_MAX};
pub use layout::Layout;
pub use link::{Common, Link};
pub use mapping::is_mapped;
pub use masked::Change;
pub use meet::{Meeting, Window};
pub use memory::{Keeper, Mapped};
pub use nic::Nic;
pub use open::{open, open_by};
pub use provider::{PROVIDER_VARIABLE, Provider};
pub use queue::Queue;
pub use rest::SLEEP_VARIABLE;
pub use stream::Stream;
pub use syndrome::{STATUSES, Syndrome};
pub use threads::spawn;
pub use way::{WAY_VARIABLE, Way};
