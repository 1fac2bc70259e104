//! Counts of what a link has posted.

/// Counts since the connection was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdmaCounts {
    /// Work requests posted.
    pub requests: u64,
    /// Calls that posted them.
    pub doorbells: u64,
    /// Requests whose bytes travelled in the request itself.
    pub inline: u64,
    /// Requests that wake the peer.
    pub wakes: u64,
    /// Bytes of long frames' data that the processor copied into registered memory.
    pub copied_bytes: u64,
    /// Bytes that the adapter read in place.
    pub direct_bytes: u64,
    /// Bytes of either kind that the adapter wrote outside the peer's ring, into memory that the
    /// peer gave for them.
    pub placed_bytes: u64,
}
