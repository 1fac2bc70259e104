//! Counts of a queue's entries.

/// Counts of a queue since its last reset, as far as anybody counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) succeeded: u64,
    pub(crate) flushed: u64,
    pub(crate) retries: u64,
    /// Index and syndrome of the entry that failed first.
    pub(crate) failure: Option<(u16, u8)>,
}
