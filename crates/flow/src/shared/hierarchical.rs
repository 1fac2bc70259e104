//! Chaining with a lock of the table, one of each bucket, and one of each entry.

use super::SharedTable;
use crate::{FlowKey, OutOfMemory, Refused, Secret};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// A chained table as packet processing frameworks share it: an operation holds the table's lock
/// for reading, so that nobody replaces the buckets; its bucket's lock while it walks the list or
/// changes it; and the entry's lock while it reads the number.
pub struct Hierarchical<K> {
    buckets: RwLock<Vec<Mutex<Vec<Entry<K>>>>>,
    len: AtomicUsize,
    capacity: usize,
    secret: Secret,
}

struct Entry<K> {
    key: K,
    value: Mutex<u32>,
}

type Buckets<'a, K> = RwLockReadGuard<'a, Vec<Mutex<Vec<Entry<K>>>>>;

/// A panic within a lock leaves the list whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: FlowKey> Hierarchical<K> {
    fn buckets(&self) -> Buckets<'_, K> {
        self.buckets.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn bucket_of<'a>(&self, buckets: &'a Buckets<'_, K>, key: &K) -> &'a Mutex<Vec<Entry<K>>> {
        &buckets[key.keyed_hash(&self.secret) as usize & (buckets.len() - 1)]
    }

    fn remove_if(&self, key: &K, agree: impl Fn(u32) -> bool) -> Option<u32> {
        let buckets = self.buckets();
        let mut list = lock(self.bucket_of(&buckets, key));
        let at = list.iter().position(|entry| entry.key == *key)?;
        let value = *lock(&list[at].value);
        agree(value).then(|| {
            list.remove(at);
            self.len.fetch_sub(1, Relaxed);
            value
        })
    }
}

impl<K: FlowKey> SharedTable<K> for Hierarchical<K> {
    fn with_capacity(flows: usize, _threads: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let count = flows.max(1).next_power_of_two();
        let mut buckets = Vec::new();
        let bytes = count.saturating_mul(size_of::<Mutex<Vec<Entry<K>>>>());
        let errno = rustix::io::Errno::NOMEM;
        buckets
            .try_reserve_exact(count)
            .map_err(|_| OutOfMemory { bytes, errno })?;
        buckets.resize_with(count, Mutex::default);
        let buckets = RwLock::new(buckets);
        Ok(Hierarchical {
            buckets,
            len: AtomicUsize::new(0),
            capacity: flows,
            secret,
        })
    }

    fn get(&self, _thread: usize, key: &K) -> Option<u32> {
        let buckets = self.buckets();
        let list = lock(self.bucket_of(&buckets, key));
        let entry = list.iter().find(|entry| entry.key == *key)?;
        Some(*lock(&entry.value))
    }

    fn insert(&self, _thread: usize, key: K, value: u32) -> Result<(), Refused> {
        let buckets = self.buckets();
        let mut list = lock(self.bucket_of(&buckets, &key));
        if let Some(entry) = list.iter().find(|entry| entry.key == key) {
            return Err(Refused::Present(*lock(&entry.value)));
        }
        if self.len.fetch_add(1, Relaxed) >= self.capacity {
            self.len.fetch_sub(1, Relaxed);
            return Err(Refused::Full);
        }
        list.insert(
            0,
            Entry {
                key,
                value: Mutex::new(value),
            },
        );
        Ok(())
    }

    fn remove(&self, _thread: usize, key: &K) -> Option<u32> {
        self.remove_if(key, |_| true)
    }

    fn remove_entry(&self, _thread: usize, key: &K, value: u32) -> bool {
        self.remove_if(key, |found| found == value).is_some()
    }

    fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    fn capacity(&self) -> usize {
        self.capacity
    }
}
