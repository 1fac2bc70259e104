//! Verbs: the safe layer over libibverbs, for reliable connections by which a network adapter reads
//! and writes memory of both sides, over RoCE v2 or InfiniBand.
//!
//! ```text
//!  abi ─► library ─► device ─► choose              which device and port, with which settings
//!                      │
//!                      ├─► domain ─► region        memory that adapters read and write:
//!                      │              memory       this process's own,
//!                      │              promised     or another owner's
//!                      │
//!                      └─► completions ─► pair ─► queue      a connection, to which requests
//!                                        request ──┘         are posted
//!
//!  completions ─► connection   a connection to which any operation is posted
//!  abi ─► mlx5           queues in a program's memory, to which others than this process post,
//!         described      and those of adapters that take no commands
//! ```
//!
//! * The library is loaded at the first use, so that a program without RDMA does not need it.
//! * Objects are dropped in the order that the library asks for: each holds those that it was made
//!   with. A forked child drops its copies without a call, and so does a program that has closed
//!   the device's descriptor.
//! * No function relies on bytes that an adapter may write: this process's own memory is read as
//!   atomic words, or copied, and all else needs a promise in `unsafe`.

pub mod abi;
mod choose;
mod completions;
mod connection;
mod described;
mod device;
mod domain;
mod error;
mod library;
mod memory;
mod mlx5;
mod options;
mod pair;
mod promised;
mod queue;
mod region;
mod request;

pub use choose::{AckTimeout, Chosen, Device, Port, check, choose, devices, is_v4, mtu_code};
pub use connection::{Connection, Data, Done, NotReady, SEGMENTS_MAX, Target, Work};
pub use described::{OwnCompletions, OwnPair, Parent, Patience, Place, Sizes};
pub use device::Context;
pub use domain::Domain;
pub use error::Error;
pub use memory::Memory;
pub use mlx5::{Mlx5, Object, Page, Pages};
pub use options::Options;
pub use pair::{HOP_LIMIT, PSN_MASK, RETRIES, Remote, SEND_DEPTH};
pub use promised::{DeviceMemory, Lasting, Reach};
pub use queue::{Counts, POSTED_MAX, Queue, STALLED_MS_MAX};
pub use region::{Access, OwnRegion, Piece, Region};
pub use request::{Request, Verb};
