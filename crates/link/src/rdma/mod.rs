//! rdma: network adapters write frames into the peer's memory, over RoCE v2 or InfiniBand.
//!
//! ```text
//!  window, layout, check, shared            what everything here builds on
//!
//!  check ─► control ─► ring ─► endpoint     a ring written by RDMA; endpoint posts its operations
//!                       │          │
//!                      long        │        frames with separate data
//!                       │   sender, receiver          the halves of a link
//!                       │          │
//!  registry, grants ────┴─────► bulk        registered data, and memory granted for it
//!
//!  options, setup ─► prepared ─► connection two rings, one per direction
//! ```
//!
//! * The adapter is used through the crate `outboard-verbs`.
//! * A frame is laid out in registered memory, and one request writes it to where the receiver
//!   looks. Short frames travel in the request itself.
//! * No byte that the peer's adapter wrote is believed before its check agrees (`check.rs`), and
//!   then no more than over shm.
//! * A side that waits looks at memory, then tells the peer that it sleeps (`control.rs`), and is
//!   woken by the peer's next write.
//! * The tcp connection stays open and silent: when it ends, the peer is gone.

mod bulk;
#[cfg(test)]
mod bulk_tests;
mod check;
mod connection;
mod control;
mod counts;
mod endpoint;
#[cfg(test)]
mod gpu_tests;
mod grants;
mod hostile;
mod layout;
#[cfg(test)]
mod link_tests;
mod long;
mod options;
mod prepared;
mod receiver;
mod registry;
mod ring;
#[cfg(test)]
mod ring_tests;
mod sender;
mod setup;
mod shared;
mod window;

pub(crate) use bulk::BULK_HEAD_BYTES_MAX;
pub use bulk::{Bulk, DeviceBulk};
pub use connection::Connection;
pub use counts::RdmaCounts;
#[doc(hidden)]
pub use hostile::{fuzz_ring, fuzz_setup, setup_seed};
pub(crate) use options::check;
pub use options::{GpuMemory, RdmaOptions};
pub use receiver::{Receiver, Waker};
pub use registry::{RdmaTarget, RdmaUse, Registered, Registrar};
pub use sender::{Closer, Sender};
