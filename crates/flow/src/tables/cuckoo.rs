//! Cuckoo with buckets of eight: signatures and indices in the buckets, keys in an array of their
//! own, displacement breadth first.

use super::key_is_handle;
use crate::{FlowKey, FlowTable, NONE, OutOfMemory, Pages, Refused, Secret, Zeroable};

const SLOTS: usize = 8;
/// Buckets that a displacement looks at.
const QUEUE_MAX: usize = 1000;

/// Two buckets a key; the second is the first, changed by the signature, and the other way round.
pub struct Cuckoo<K> {
    buckets: Pages<Bucket>,
    entries: Pages<Entry<K>>,
    /// Entries that were freed, and the first that was never used.
    free: Vec<u32>,
    used: usize,
    len: usize,
    secret: Secret,
    queue: Vec<Node>,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Bucket {
    signatures: [u16; SLOTS],
    /// Number of an entry plus one; 0 if the slot is free.
    entries: [u32; SLOTS],
}

// SAFETY: numbers, which may be zero.
unsafe impl Zeroable for Bucket {}

#[repr(C, align(4))]
struct Entry<K> {
    value: u32,
    key: K,
}

// SAFETY: a number and a key, each of which may be zero.
unsafe impl<K: FlowKey> Zeroable for Entry<K> {}

#[derive(Clone, Copy)]
struct Node {
    bucket: u32,
    parent: u16,
    slot: u8,
}

impl<K: FlowKey> Cuckoo<K> {
    #[inline]
    fn place(&self, key: &K) -> (usize, usize, u16) {
        let hash = key.keyed_hash(&self.secret);
        let first = hash as usize & (self.buckets.len() - 1);
        let signature = (hash >> 48) as u16;
        (first, self.other(first, signature), signature)
    }

    #[inline]
    fn other(&self, bucket: usize, signature: u16) -> usize {
        (bucket ^ usize::from(signature)) & (self.buckets.len() - 1)
    }

    #[inline]
    fn find_in(&self, bucket: usize, key: &K, signature: u16) -> Option<(usize, usize, usize)> {
        let one = &self.buckets[bucket];
        (0..SLOTS)
            .filter(|slot| one.signatures[*slot] == signature)
            .find_map(|slot| {
                let entry = one.entries[slot].checked_sub(1)? as usize;
                (self.entries[entry].key == *key).then_some((bucket, slot, entry))
            })
    }

    /// Returns bucket, slot and entry of a key.
    #[inline]
    fn find(&self, key: &K) -> Option<(usize, usize, usize)> {
        let (first, second, signature) = self.place(key);
        let found = self.find_in(first, key, signature);
        found.or_else(|| self.find_in(second, key, signature))
    }

    fn free_in(&self, bucket: usize) -> Option<usize> {
        self.buckets[bucket]
            .entries
            .iter()
            .position(|entry| *entry == 0)
    }

    fn make_room(&mut self, roots: [usize; 2]) -> Option<(usize, usize)> {
        let mut queue = std::mem::take(&mut self.queue);
        queue.clear();
        queue.extend(roots.map(|root| Node {
            bucket: root as u32,
            parent: u16::MAX,
            slot: 0,
        }));
        let mut next = 0;
        let mut found = None;
        'search: while next < queue.len() {
            let from = queue[next].bucket as usize;
            for slot in 0..SLOTS {
                let to = self.other(from, self.buckets[from].signatures[slot]);
                let node = Node {
                    bucket: to as u32,
                    parent: next as u16,
                    slot: slot as u8,
                };
                if let Some(free) = self.free_in(to) {
                    found = Some(self.shift(&queue, node, free));
                    break 'search;
                }
                if queue.len() < QUEUE_MAX {
                    queue.push(node);
                }
            }
            next += 1;
        }
        self.queue = queue;
        found
    }

    fn shift(&mut self, nodes: &[Node], mut node: Node, mut free: usize) -> (usize, usize) {
        while let Some(parent) = nodes.get(usize::from(node.parent)) {
            let (from, slot, to) = (
                parent.bucket as usize,
                usize::from(node.slot),
                node.bucket as usize,
            );
            self.buckets[to].signatures[free] = self.buckets[from].signatures[slot];
            self.buckets[to].entries[free] = self.buckets[from].entries[slot];
            self.buckets[from].entries[slot] = 0;
            (node, free) = (*parent, slot);
        }
        (node.bucket as usize, free)
    }
}

impl<K: FlowKey> FlowTable<K> for Cuckoo<K> {
    key_is_handle!(K);

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let flows = flows.min(NONE as usize - 1);
        let buckets = Pages::new(flows.div_ceil(SLOTS).next_power_of_two().max(2))?;
        let (free, queue) = (Vec::new(), Vec::with_capacity(QUEUE_MAX));
        Ok(Cuckoo {
            buckets,
            entries: Pages::new(flows)?,
            free,
            used: 0,
            len: 0,
            secret,
            queue,
        })
    }

    #[inline]
    fn get(&self, key: &K) -> Option<u32> {
        self.find(key)
            .map(|(_, _, entry)| self.entries[entry].value)
    }

    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused> {
        if let Some((_, _, entry)) = self.find(&key) {
            return Err(Refused::Present(self.entries[entry].value));
        }
        if self.len == self.entries.len() {
            return Err(Refused::Full);
        }
        let (first, second, signature) = self.place(&key);
        let free = [first, second]
            .into_iter()
            .find_map(|b| Some((b, self.free_in(b)?)));
        let (bucket, slot) = free
            .or_else(|| self.make_room([first, second]))
            .ok_or(Refused::Full)?;
        let entry = self.free.pop().unwrap_or(self.used as u32);
        self.used = self.used.max(entry as usize + 1);
        self.entries[entry as usize] = Entry { value, key };
        self.buckets[bucket].signatures[slot] = signature;
        self.buckets[bucket].entries[slot] = entry + 1;
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, key: &K) -> Option<u32> {
        let (bucket, slot, entry) = self.find(key)?;
        self.buckets[bucket].entries[slot] = 0;
        self.free.push(entry as u32);
        self.len -= 1;
        Some(self.entries[entry].value)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn capacity(&self) -> usize {
        self.entries.len()
    }

    fn bytes(&self) -> usize {
        self.buckets.bytes() + self.entries.bytes() + self.free.capacity() * size_of::<u32>()
    }

    fn insert_over(
        &mut self,
        key: K,
        value: u32,
        expired: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, Refused> {
        let (first, second, signature) = self.place(&key);
        if let Some((_, _, entry)) = self.find(&key) {
            return Err(Refused::Present(self.entries[entry].value));
        }
        let slots = [first, second]
            .into_iter()
            .flat_map(|b| (0..SLOTS).map(move |s| (b, s)));
        for (bucket, slot) in slots {
            let Some(entry) = self.buckets[bucket].entries[slot].checked_sub(1) else {
                return self.insert(key, value).map(|()| None);
            };
            let replaced = self.entries[entry as usize].value;
            if expired(replaced) {
                self.entries[entry as usize] = Entry { value, key };
                self.buckets[bucket].signatures[slot] = signature;
                return Ok(Some(replaced));
            }
        }
        self.insert(key, value).map(|()| None)
    }
}
