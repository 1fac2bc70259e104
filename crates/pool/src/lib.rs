//! The pool: GPUs of many machines, given out and taken back. State machines that get the time and
//! messages handed in; only [`FileStore`] does I/O. The design is in `docs/design/pool.md`.
//!
//! - `manager`: what the manager does.
//! - `fence`: what a box admits, and for how long.
//! - `grant`: the signed statements between them.
//! - `placement`: the choice of GPUs.
//! - `link`: networks of boxes, and those that claims need.
//! - `near`: what is near a GPU in its box.
//! - `record`: what is kept, and `store`: where.
//! - `xid`: errors of NVIDIA's driver, and what they mean for a GPU.
//! - `api`: the documents that go over the network.

pub mod api;
mod fence;
mod grant;
pub mod limits;
mod link;
mod manager;
pub mod near;
mod placement;
pub mod record;
mod store;
#[cfg(test)]
mod tests;
mod uuid;
pub mod xid;

pub use fence::{Admitted, Answered, Fence, FenceError, Floors};
pub use grant::{Grant, GrantError};
pub use link::{LinkFacts, LinkNeed, LinkSource, meets, show_link, show_needs};
pub use manager::{AuditFilter, Manager, check_name};
#[cfg(any(test, feature = "conformance"))]
pub use store::suite;
pub use store::{Change, Entry, FileStore, Revision, Store, StoreError, Transaction};
pub use uuid::{Uuid, UuidError};
