//! rdma: frames written into the peer's ring by its network adapter.

mod abi;
mod check;
mod connection;
mod control;
mod device;
mod domain;
mod endpoint;
mod error;
mod library;
mod memory;
mod options;
mod queue;
mod ring;
#[cfg(test)]
mod ring_tests;
mod setup;
mod shared;
#[cfg(test)]
mod verbs_tests;

pub use connection::{Closer, Connection, Receiver, Sender, Waker};
pub(crate) use device::check;
pub use device::{RdmaDevice, RdmaPort, rdma_devices};
pub use error::RdmaError;
pub use options::RdmaOptions;
pub use queue::RdmaCounts;
