//! Chaining with a pool of entries, the newest of a bucket first.

use super::key_is_handle;
use crate::{FlowKey, FlowTable, NONE, OutOfMemory, Pages, Refused, Secret, Zeroable};

/// A list of entries for each bucket. There are as many buckets as entries, rounded up to a power
/// of two.
pub struct Chained<K> {
    /// Number of the first entry plus one; 0 ends a list.
    heads: Pages<u32>,
    entries: Pages<Entry<K>>,
    free: u32,
    used: usize,
    len: usize,
    secret: Secret,
}

#[repr(C)]
struct Entry<K> {
    next: u32,
    value: u32,
    key: K,
}

// SAFETY: numbers and a key, each of which may be zero.
unsafe impl<K: FlowKey> Zeroable for Entry<K> {}

/// A link of a list: that of a bucket's head, or of an entry.
#[derive(Clone, Copy)]
enum Link {
    Head(usize),
    Entry(usize),
}

impl<K: FlowKey> Chained<K> {
    #[inline]
    fn bucket(&self, key: &K) -> usize {
        key.keyed_hash(&self.secret) as usize & (self.heads.len() - 1)
    }

    /// Returns the link to a key's entry, and the entry's number.
    #[inline]
    fn find(&self, key: &K) -> Option<(Link, usize)> {
        let bucket = self.bucket(key);
        let (mut link, mut next) = (Link::Head(bucket), self.heads[bucket]);
        while let Some(index) = next.checked_sub(1) {
            let entry = &self.entries[index as usize];
            if entry.key == *key {
                return Some((link, index as usize));
            }
            (link, next) = (Link::Entry(index as usize), entry.next);
        }
        None
    }

    /// Takes an entry out of the list of those that were freed, or one that was never used.
    fn take(&mut self) -> Option<usize> {
        if let Some(index) = self.free.checked_sub(1) {
            self.free = self.entries[index as usize].next;
            return Some(index as usize);
        }
        let index = self.used;
        (index < self.entries.len()).then(|| {
            self.used += 1;
            index
        })
    }
}

impl<K: FlowKey> FlowTable<K> for Chained<K> {
    key_is_handle!(K);

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let flows = flows.min(NONE as usize - 1);
        let heads = Pages::new(flows.max(1).next_power_of_two())?;
        let entries = Pages::new(flows)?;
        Ok(Chained {
            heads,
            entries,
            free: 0,
            used: 0,
            len: 0,
            secret,
        })
    }

    #[inline]
    fn get(&self, key: &K) -> Option<u32> {
        self.find(key).map(|(_, index)| self.entries[index].value)
    }

    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused> {
        if let Some((_, index)) = self.find(&key) {
            return Err(Refused::Present(self.entries[index].value));
        }
        let index = self.take().ok_or(Refused::Full)?;
        let bucket = self.bucket(&key);
        self.entries[index] = Entry {
            next: self.heads[bucket],
            value,
            key,
        };
        self.heads[bucket] = index as u32 + 1;
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, key: &K) -> Option<u32> {
        let (link, index) = self.find(key)?;
        let next = self.entries[index].next;
        match link {
            Link::Head(bucket) => self.heads[bucket] = next,
            Link::Entry(before) => self.entries[before].next = next,
        }
        self.entries[index].next = self.free;
        self.free = index as u32 + 1;
        self.len -= 1;
        Some(self.entries[index].value)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn capacity(&self) -> usize {
        self.entries.len()
    }

    fn bytes(&self) -> usize {
        self.heads.bytes() + self.entries.bytes()
    }
}
