//! Memory of one side that the other's adapter may write.

/// A range of the peer's memory, with the key for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) key: u32,
}
