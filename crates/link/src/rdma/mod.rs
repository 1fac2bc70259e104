//! rdma: frames written into the peer's ring by its network adapter.

mod abi;
mod device;
mod domain;
mod error;
mod library;
mod memory;
mod options;
mod queue;
#[cfg(test)]
mod verbs_tests;

pub use device::{RdmaDevice, RdmaPort, rdma_devices};
pub use error::RdmaError;
pub use options::RdmaOptions;
pub use queue::RdmaCounts;
