//! Shared memory: two rings in one memfd, set up over a unix socket, which afterwards shows the
//! peer's death and carries file descriptors.

#[cfg(not(loom))]
mod connection;
#[cfg(not(loom))]
mod file;
#[cfg(not(loom))]
mod hostile;
#[cfg(not(loom))]
mod map;
#[cfg(not(loom))]
mod peer;
// Public for the loom tests only.
#[doc(hidden)]
pub mod ring;

#[cfg(not(loom))]
pub use self::{file::check_file_limit, map::check_available};
#[cfg(not(loom))]
pub use connection::{Closer, Connection, Receiver, Sender, Waker};
#[cfg(not(loom))]
#[doc(hidden)]
pub use hostile::fuzz_ring;
