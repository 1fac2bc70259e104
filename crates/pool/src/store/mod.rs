//! Where a manager keeps its records.

mod file;
#[cfg(test)]
mod simulated;
#[cfg(any(test, feature = "conformance"))]
pub mod suite;

use std::io;

use thiserror::Error;

pub use file::FileStore;
#[cfg(test)]
pub(crate) use simulated::{Fault, SimulatedStore};

/// Number of a transaction, higher than that of each one before.
pub type Revision = u64;

/// A record, and the transaction that wrote it last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Vec<u8>,
    pub revision: Revision,
}

/// Writes that happen all or not at all, if the compared records are those of these revisions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// None: there is no such record.
    pub compare: Vec<(String, Option<Revision>)>,
    /// None removes the record.
    pub write: Vec<(String, Option<Vec<u8>>)>,
}

/// A record that was written, or removed, by a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub revision: Revision,
    pub key: String,
}

/// Reason why a store cannot be read or written.
#[derive(Debug, Error)]
pub enum StoreError {
    #[error("another manager has written to the store")]
    Conflict,
    #[error("the store {what}: {source}")]
    Io {
        what: &'static str,
        source: io::Error,
    },
    #[error("the store is damaged: {0}")]
    Damaged(String),
    #[error("the store is of a later release: its format is {theirs}, and {ours} is known here")]
    Future { ours: u32, theirs: u32 },
    #[error(
        "the store is missing or empty, but this manager's key is there: its leases may still run, so put the store back, or remove both once no box serves any"
    )]
    Missing,
    #[error("another process uses the store")]
    InUse,
    #[error("grants of the pool are signed with another key: all its managers need one key file")]
    OtherKey,
    #[error("changes since revision {0} are no longer known: read all records again")]
    Compacted(Revision),
}

/// Records with transactions that compare and set, and the changes since a revision.
pub trait Store {
    /// Returns all records, by key.
    fn load(&mut self) -> Result<Vec<Entry>, StoreError>;

    /// Does a transaction. It is durable when this returns its revision. After
    /// [`StoreError::Conflict`] nothing was written; after another error it is not known. Without
    /// writes it only compares, and has no revision of its own.
    fn commit(&mut self, transaction: &Transaction) -> Result<Revision, StoreError>;

    /// Returns the number of writes that are done in one step; a larger transaction takes several.
    fn writes_max(&self) -> usize {
        usize::MAX
    }

    /// Returns the changes of the transactions after `after`, oldest first.
    fn changes(&mut self, after: Revision) -> Result<Vec<Change>, StoreError>;
}
