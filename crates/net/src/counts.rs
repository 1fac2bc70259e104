//! Counts of a queue's entries.

/// Counts of a queue since its last reset, as far as anybody counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub succeeded: u64,
    pub flushed: u64,
    pub retries: u64,
    /// Index and syndrome of the entry that failed first.
    pub failure: Option<(u16, u8)>,
}
