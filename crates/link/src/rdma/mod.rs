//! rdma: frames written into the peer's memory by the network adapters, over RoCE v2 or InfiniBand.
//!
//! ```text
//!  abi ─► library ─► device ─► domain, queue      verbs: libibverbs, loaded at run time, and safe types over it
//!                                   │
//!  check ─► control ─► ring ─► endpoint           a ring written from afar; all but the endpoint knows no device
//!             long ─────┘           │              frames whose data is elsewhere
//!  registry, grants ─► bulk ────────┤              data registered where it lies, and memory given for it
//!                                   │
//!  options, setup, prepared ─► connection         two of them, one a direction, arranged over tcp
//! ```
//!
//! * Whoever wants no rdma link needs no library: it is loaded by the first.
//! * A frame is laid out in registered memory, and one request writes it to where the receiver looks. Short ones travel in the
//!   request.
//! * Nothing that the peer's adapter wrote is believed before its check agrees (`check.rs`), and then as little as over shm.
//! * Who waits looks at memory, then sleeps, having told the peer so (`control.rs`), and is woken by its next write.
//! * The tcp connection stays, silent: its end is the peer's.

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
