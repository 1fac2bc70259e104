//! tcp: frames behind a 4-byte little-endian length.

mod connection;
pub(crate) mod deframer;
mod liveness;

pub use connection::{Closer, Connection, Receiver, Sender, Waker};
