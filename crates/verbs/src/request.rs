//! Work requests: what the adapter is to move, from where to where.

use crate::Piece;

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Write,
    /// Writes, and wakes the peer if it sleeps.
    WriteAndWake,
    Read,
}

/// One request: bytes of ours to memory of the peer's, or the reverse for a read.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub verb: Verb,
    /// Part of a region that the queue was made with.
    pub piece: Piece,
    pub remote: u64,
    pub rkey: u32,
}
