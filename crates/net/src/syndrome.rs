//! Reasons of failed completions, as mlx5 adapters number them.

/// The syndrome of an error completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Syndrome(pub u8);

impl Syndrome {
    pub const LOCAL_LENGTH: Syndrome = Syndrome(0x01);
    pub const LOCAL_OPERATION: Syndrome = Syndrome(0x02);
    pub const LOCAL_PROTECTION: Syndrome = Syndrome(0x04);
    /// The queue had failed before.
    pub const FLUSHED: Syndrome = Syndrome(0x05);
    /// The peer has answered what was not asked.
    pub const BAD_RESPONSE: Syndrome = Syndrome(0x10);
    pub const REMOTE_INVALID_REQUEST: Syndrome = Syndrome(0x12);
    pub const REMOTE_ACCESS: Syndrome = Syndrome(0x13);
    pub const REMOTE_OPERATION: Syndrome = Syndrome(0x14);
    /// The peer did not answer, after all retries.
    pub const RETRIES_EXCEEDED: Syndrome = Syndrome(0x15);
    /// The peer had no receive posted, after all retries.
    pub const RECEIVER_NOT_READY: Syndrome = Syndrome(0x16);
}
