//! Tables of network connections: given the five fields that name a connection (addresses, ports,
//! protocol), they find the number of its state.
//!
//! This crate does no I/O: packets, keys and the time are arguments. It does not decide about
//! packets either; [`path`] is the shortest balancer that the measurements need.
//!
//! ```text
//!  packets ──► path: parse ──► keys ──► a table ──► number ──► states[number] ──► rewrite
//!                                         │ not found                │
//!                                         └► Maglev chooses, insert  └► aging: wheel, scan, lazy
//! ```
//!
//! - [`FlowTable`] is what all tables do: the six that the literature compares ([`tables`]), and
//!   [`Batched`], which is made for many keys at a time. [`Growing`] is a `Batched` that
//!   becomes larger in small steps.
//! - [`shared`] has the tables that several threads use at once.
//! - [`aging`] deletes connections that nobody uses any more.
//! - [`traffic`] makes packets from a seed, and reads and writes pcap files.
//!
//! A table stores numbers ([`NONE`] is none), because a number can be moved while the state that it
//! names stays where it is. Tables never grow unasked: a full one refuses an insertion, and all
//! that it holds stays.

pub mod aging;
mod batched;
mod checksum;
mod hash;
mod key;
pub mod maglev;
mod memory;
pub mod path;
mod prefetch;
pub mod random;
pub mod shared;
pub mod tables;
pub mod traffic;

pub use batched::{BATCH_MAX, Batched, Growing};
pub use hash::Secret;
pub use key::{FlowKey, V4, V6};
pub use memory::{OutOfMemory, Pages, Zeroable};

/// A number that no table stores; in the results of a batch, a key that was not found.
pub const NONE: u32 = u32::MAX;

/// A table from keys to numbers, of a fixed capacity.
pub trait FlowTable<K: FlowKey>: Sized {
    /// Finds an entry again, together with its number, for its removal: the key, or less.
    type Handle: Copy + Zeroable + Send;

    /// Makes a table that holds `flows` entries, or a few more.
    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory>;

    fn get(&self, key: &K) -> Option<u32>;

    /// Adds an entry. A key that is there keeps its number, which the refusal contains.
    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused>;

    fn remove(&mut self, key: &K) -> Option<u32>;

    fn handle(&self, key: &K) -> Self::Handle;

    /// Removes the entry with this handle and number. Returns whether there was one.
    fn remove_by(&mut self, handle: Self::Handle, value: u32) -> bool;

    /// Begins to load what [`FlowTable::remove_by`] will need.
    fn prefetch_handle(&self, handle: Self::Handle) {
        let _ = handle;
    }

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries for which there is room. A table may refuse an insertion earlier.
    fn capacity(&self) -> usize;

    /// Bytes of memory that the table occupies, used or not.
    fn bytes(&self) -> usize;

    /// Looks up keys one by one. A key that is not found gets [`NONE`]. Keys beyond the length of
    /// `values` are not looked up.
    fn get_each(&self, keys: &[K], values: &mut [u32]) {
        for (key, value) in keys.iter().zip(values) {
            *value = self.get(key).unwrap_or(NONE);
        }
    }

    /// Looks up keys like [`FlowTable::get_each`], together if the table can.
    fn get_batch(&self, keys: &[K], values: &mut [u32]) {
        self.get_each(keys, values);
    }

    /// Adds entries like [`FlowTable::insert`], one after the other, together if the table can, and
    /// answers for each. Entries beyond the length of the shortest slice are not added.
    fn insert_batch(&mut self, keys: &[K], values: &[u32], answers: &mut [Result<(), Refused>]) {
        for ((key, value), answer) in keys.iter().zip(values).zip(answers) {
            *answer = self.insert(*key, *value);
        }
    }

    /// Adds an entry, in place of one whose number is `expired` if the new one's place is occupied
    /// by such an entry. Returns the number that was replaced.
    fn insert_over(
        &mut self,
        key: K,
        value: u32,
        expired: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, Refused> {
        let _ = expired;
        self.insert(key, value).map(|()| None)
    }
}

/// The reason why an insertion changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the key is there, with number {0}")]
    Present(u32),
    #[error("the table is full")]
    Full,
}
