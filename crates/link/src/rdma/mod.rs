//! rdma: network adapters write frames into the peer's memory, over RoCE v2 or InfiniBand.
//!
//! ```text
//!  abi ─► library ─► device ─► domain, queue      verbs: libibverbs and safe types over it
//!                                   │
//!  check ─► control ─► ring ─► endpoint           a ring written by RDMA; endpoint knows devices
//!             long ─────┘           │              frames with separate data
//!  registry, grants ─► bulk ────────┤              registered data, and memory granted for it
//!                                   │
//!  options, setup, prepared ─► connection         two of them, one per direction
//! ```
//!
//! * The library is loaded by the first rdma link, so that a program without one does not need it.
//! * A frame is laid out in registered memory, and one request writes it to where the receiver
//!   looks. Short frames travel in the request itself.
//! * No byte that the peer's adapter wrote is believed before its check agrees (`check.rs`), and
//!   then no more than over shm.
//! * A side that waits looks at memory, then tells the peer that it sleeps (`control.rs`), and is
//!   woken by the peer's next write.
//! * The tcp connection stays open and silent: when it ends, the peer is gone.

mod abi;
mod bulk;
#[cfg(test)]
mod bulk_tests;
mod check;
mod connection;
mod control;
mod counts;
mod device;
mod domain;
mod endpoint;
mod error;
#[cfg(test)]
mod gpu_tests;
mod grants;
mod hostile;
mod layout;
mod library;
#[cfg(test)]
mod link_tests;
mod long;
mod memory;
mod options;
mod prepared;
mod queue;
mod registry;
mod ring;
#[cfg(test)]
mod ring_tests;
mod setup;
mod shared;
#[cfg(test)]
mod verbs_tests;

pub(crate) use bulk::BULK_HEAD_BYTES_MAX;
pub use bulk::{Bulk, DeviceBulk};
pub use connection::{Closer, Connection, Receiver, Sender, Waker};
pub use counts::RdmaCounts;
pub(crate) use device::check;
pub use device::{RdmaDevice, RdmaPort, rdma_devices};
pub use error::RdmaError;
#[doc(hidden)]
pub use hostile::{fuzz_ring, fuzz_setup, setup_seed};
pub use options::{GpuMemory, RdmaOptions};
pub use registry::{RdmaTarget, RdmaUse, Registered, Registrar};
