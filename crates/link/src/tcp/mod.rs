//! tcp: frames, each after its length in 4 little-endian bytes.

#[cfg(not(loom))]
mod connection;
#[cfg(not(loom))]
pub(crate) mod deframer;
#[cfg(not(loom))]
mod kernel;
#[cfg(not(loom))]
pub(crate) mod liveness;
#[cfg(not(loom))]
mod receiving;
#[cfg(not(loom))]
mod sealing;
#[cfg(not(loom))]
mod shared;
// Public for the loom tests only.
#[doc(hidden)]
pub mod outgoing;

#[cfg(not(loom))]
pub use connection::{Closer, Connection, Flusher, Helper, Sender};
#[cfg(not(loom))]
pub use receiving::{Receiver, Waker};
