//! Tables that several threads use at once.
//!
//! | table | how threads share it |
//! |---|---|
//! | [`Spinlocked`] | one lock for every operation; a thread that waits spins |
//! | [`ReadWriteLocked`] | one lock, many lookups or one change; a thread that waits sleeps |
//! | [`ReadWriteSpinlocked`] | the same kind of lock; a thread that waits spins |
//! | [`Hierarchical`] | locks of the table, of a bucket, and of an entry |
//! | [`LockFreeCuckoo`] | lookups without locks, one change at a time, one version of the table |
//! | [`Sharded`] | a table for each thread, and nothing shared |
//! | [`Concurrent`] | lookups without locks, changes of different buckets at a time |
//!
//! The first six are those of the literature (thesis 2024, section 6.3.3); a lock-based cuckoo
//! table is a [`ReadWriteSpinlocked`] `Cuckoo`.

mod bucket;
mod concurrent;
mod hierarchical;
mod lock_free;
mod locked;
mod sharded;
mod sync;

pub use bucket::SharedKey;
pub use concurrent::Concurrent;
pub use hierarchical::Hierarchical;
pub use lock_free::LockFreeCuckoo;
pub use locked::{ReadWriteLocked, ReadWriteSpinlocked, Spinlocked};
pub use sharded::Sharded;

use crate::{FlowKey, NONE, OutOfMemory, Refused, Secret};

/// A table that any number of threads use at once.
///
/// Each operation takes the number of the thread that calls it, below the number given to
/// [`SharedTable::with_capacity`]. Two threads must not use one number at a time: they would get
/// right answers from all tables but [`LockFreeCuckoo`], which may then answer with the number of
/// another key.
pub trait SharedTable<K: FlowKey>: Sync + Sized {
    fn with_capacity(flows: usize, threads: usize, secret: Secret) -> Result<Self, OutOfMemory>;

    fn get(&self, thread: usize, key: &K) -> Option<u32>;

    fn insert(&self, thread: usize, key: K, value: u32) -> Result<(), Refused>;

    fn remove(&self, thread: usize, key: &K) -> Option<u32>;

    /// Removes a key if it has this number.
    fn remove_entry(&self, thread: usize, key: &K, value: u32) -> bool;

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn capacity(&self) -> usize;

    /// Looks up keys. Those that are not found get [`NONE`].
    fn get_batch(&self, thread: usize, keys: &[K], values: &mut [u32]) {
        for (key, value) in keys.iter().zip(values) {
            *value = self.get(thread, key).unwrap_or(NONE);
        }
    }

    /// Inserts like [`crate::FlowTable::insert_over`]; a table that cannot replace inserts.
    fn insert_over(
        &self,
        thread: usize,
        key: K,
        value: u32,
        expired: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, Refused> {
        let _ = expired;
        self.insert(thread, key, value).map(|()| None)
    }

    /// Says that the thread is between two batches of packets and holds nothing of the table's.
    fn quiescent(&self, _thread: usize) {}
}

/// Buckets in mapped memory, or in loom's.
#[cfg(not(loom))]
type Storage<T> = crate::Pages<T>;

#[cfg(loom)]
struct Storage<T>(Vec<T>);

#[cfg(loom)]
impl<T: Default> Storage<T> {
    fn new(count: usize) -> Result<Self, OutOfMemory> {
        Ok(Storage((0..count).map(|_| T::default()).collect()))
    }
}

#[cfg(loom)]
impl<T> std::ops::Deref for Storage<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}
