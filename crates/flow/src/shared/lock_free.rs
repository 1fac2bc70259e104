//! Cuckoo with lookups that take no lock: one version of the whole table, and keys whose memory is
//! used again only after every thread has been quiescent.
//!
//! One thread at a time changes the table. To move an entry it first writes it to its new slot,
//! then increases the version, then empties the old slot. A lookup that finds nothing compares the
//! version before and after, and starts over if it changed: the entry may have moved from the
//! bucket that the lookup had not read into the one that it had.

use super::sync::{AtomicU32, AtomicU64, Backoff, Ordering, fence};
use super::{SharedKey, SharedTable, Storage};
use crate::shared::bucket::Slots;
use crate::{NONE, OutOfMemory, Refused, Secret};
use Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SLOTS: usize = 8;
const QUEUE_MAX: usize = 1000;
/// Entries that share one block of keys; the blocks have the layout of a [`super::bucket::Bucket`].
const KEYS_A_BLOCK: usize = super::bucket::SLOTS;

/// The lock-free cuckoo table of packet processing libraries.
pub struct LockFreeCuckoo<K: SharedKey> {
    buckets: Storage<Bucket>,
    keys: Storage<Block<K>>,
    version: AtomicU64,
    /// Number of removals.
    epoch: AtomicU64,
    /// For each thread, the last epoch in which it was quiescent.
    threads: Vec<Epoch>,
    writer: Mutex<Writer>,
    capacity: usize,
    secret: Secret,
}

/// Each in a cache line of its own, so that threads do not disturb each other.
#[derive(Default)]
#[repr(align(128))]
struct Epoch(AtomicU64);

#[derive(Default)]
#[repr(C, align(64))]
struct Bucket {
    /// Number of an entry plus one in the low half, its signature above; 0 if the slot is free.
    slots: [AtomicU64; SLOTS],
}

/// Keys and numbers of several entries.
#[repr(C)]
struct Block<K: SharedKey> {
    keys: K::Slots,
    values: [AtomicU32; KEYS_A_BLOCK],
}

#[cfg(loom)]
impl<K: SharedKey> Default for Block<K> {
    fn default() -> Self {
        Block {
            keys: Default::default(),
            values: Default::default(),
        }
    }
}

// SAFETY: atomics of numbers, which may be zero.
#[cfg(not(loom))]
unsafe impl crate::Zeroable for Bucket {}
// SAFETY: atomics of numbers, which may be zero.
#[cfg(not(loom))]
unsafe impl<K: SharedKey> crate::Zeroable for Block<K> {}

/// State that only the changing thread uses.
#[derive(Default)]
struct Writer {
    free: Vec<u32>,
    used: u32,
    /// Entries that were removed, each with the epoch that every thread must reach before the
    /// entry is used again.
    retired: std::collections::VecDeque<(u64, u32)>,
    epoch: u64,
    len: usize,
    queue: Vec<Node>,
}

#[derive(Clone, Copy)]
struct Node {
    bucket: u32,
    parent: u16,
    slot: u8,
}

struct Place {
    first: usize,
    second: usize,
    signature: u16,
}

fn signature_of(slot: u64) -> u16 {
    (slot >> 32) as u16
}

impl<K: SharedKey> LockFreeCuckoo<K> {
    #[inline]
    fn place(&self, key: &K) -> Place {
        let hash = key.keyed_hash(&self.secret);
        let first = hash as usize & (self.buckets.len() - 1);
        let signature = (hash >> 48) as u16;
        Place {
            first,
            second: self.other(first, signature),
            signature,
        }
    }

    #[inline]
    fn other(&self, bucket: usize, signature: u16) -> usize {
        (bucket ^ usize::from(signature)) & (self.buckets.len() - 1)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn entry(&self, entry: usize) -> (&Block<K>, usize) {
        (&self.keys[entry / KEYS_A_BLOCK], entry % KEYS_A_BLOCK)
    }

    fn value(&self, entry: usize) -> u32 {
        let (block, at) = self.entry(entry);
        block.values[at].load(Relaxed)
    }

    #[inline]
    fn find_in(&self, bucket: usize, key: &K, signature: u16) -> Option<(usize, usize, usize)> {
        self.buckets[bucket]
            .slots
            .iter()
            .enumerate()
            .find_map(|(at, slot)| {
                // Pairs with the store that published the key.
                let slot = slot.load(Acquire);
                let entry = (slot as u32).checked_sub(1)? as usize;
                let (block, place) = self.entry(entry);
                let found = signature_of(slot) == signature && block.keys.load(place) == *key;
                found.then_some((bucket, at, entry))
            })
    }

    #[inline]
    fn find(&self, key: &K) -> Option<(usize, usize, usize)> {
        let place = self.place(key);
        let found = self.find_in(place.first, key, place.signature);
        found.or_else(|| self.find_in(place.second, key, place.signature))
    }

    fn free_in(&self, bucket: usize) -> Option<usize> {
        self.buckets[bucket]
            .slots
            .iter()
            .position(|slot| slot.load(Relaxed) == 0)
    }

    fn make_room(&self, writer: &mut Writer, roots: [usize; 2]) -> Option<(usize, usize)> {
        let queue = &mut writer.queue;
        queue.clear();
        queue.extend(roots.map(|root| Node {
            bucket: root as u32,
            parent: u16::MAX,
            slot: 0,
        }));
        let mut next = 0;
        while next < queue.len() {
            let from = queue[next].bucket as usize;
            for slot in 0..SLOTS {
                let resident = self.buckets[from].slots[slot].load(Relaxed);
                let to = self.other(from, signature_of(resident));
                let node = Node {
                    bucket: to as u32,
                    parent: next as u16,
                    slot: slot as u8,
                };
                if let Some(free) = self.free_in(to) {
                    return Some(self.shift(queue, node, free));
                }
                if queue.len() < QUEUE_MAX {
                    queue.push(node);
                }
            }
            next += 1;
        }
        None
    }

    fn shift(&self, nodes: &[Node], mut node: Node, mut free: usize) -> (usize, usize) {
        while let Some(parent) = nodes.get(usize::from(node.parent)) {
            let from = &self.buckets[parent.bucket as usize].slots[usize::from(node.slot)];
            let to = &self.buckets[node.bucket as usize].slots[free];
            to.store(from.load(Relaxed), Release);
            self.version.fetch_add(1, Release);
            // A lookup that reads this zero also reads the version above.
            from.store(0, Release);
            (node, free) = (*parent, usize::from(node.slot));
        }
        (node.bucket as usize, free)
    }

    /// Takes an entry that no thread can still be reading.
    fn take(&self, writer: &mut Writer) -> Option<u32> {
        if let Some(entry) = writer.free.pop() {
            return Some(entry);
        }
        if (writer.used as usize) < self.capacity {
            writer.used += 1;
            return Some(writer.used - 1);
        }
        let reached = self
            .threads
            .iter()
            .map(|thread| thread.0.load(Acquire))
            .min();
        while let Some((epoch, entry)) = writer.retired.front().copied()
            && Some(epoch) <= reached
        {
            writer.free.push(entry);
            writer.retired.pop_front();
        }
        writer.free.pop()
    }

    fn remove_if(&self, key: &K, agree: impl Fn(u32) -> bool) -> Option<u32> {
        let mut writer = self.writer();
        let (bucket, slot, entry) = self.find(key)?;
        let value = Some(self.value(entry)).filter(|value| agree(*value))?;
        self.buckets[bucket].slots[slot].store(0, Release);
        writer.len -= 1;
        writer.epoch += 1;
        self.epoch.store(writer.epoch, Release);
        let epoch = writer.epoch;
        writer.retired.push_back((epoch, entry as u32));
        Some(value)
    }
}

impl<K: SharedKey> SharedTable<K> for LockFreeCuckoo<K> {
    fn with_capacity(flows: usize, threads: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let capacity = flows.min(NONE as usize - 1);
        Ok(LockFreeCuckoo {
            buckets: Storage::new(capacity.div_ceil(SLOTS).next_power_of_two().max(2))?,
            keys: Storage::new(capacity.div_ceil(KEYS_A_BLOCK))?,
            version: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            threads: (0..threads).map(|_| Epoch::default()).collect(),
            writer: Mutex::default(),
            capacity,
            secret,
        })
    }

    fn get(&self, _thread: usize, key: &K) -> Option<u32> {
        let mut backoff = Backoff::default();
        loop {
            let version = self.version.load(Acquire);
            if let Some((_, _, entry)) = self.find(key) {
                return Some(self.value(entry));
            }
            // Orders the reads of slots before this one of the version.
            fence(Acquire);
            if self.version.load(Relaxed) == version {
                return None;
            }
            backoff.wait();
        }
    }

    fn insert(&self, _thread: usize, key: K, value: u32) -> Result<(), Refused> {
        let mut writer = self.writer();
        if let Some((_, _, entry)) = self.find(&key) {
            return Err(Refused::Present(self.value(entry)));
        }
        let entry = self.take(&mut writer).ok_or(Refused::Full)?;
        let place = self.place(&key);
        let pair = [place.first, place.second];
        let free = pair
            .into_iter()
            .find_map(|bucket| Some((bucket, self.free_in(bucket)?)));
        let Some((bucket, slot)) = free.or_else(|| self.make_room(&mut writer, pair)) else {
            writer.free.push(entry);
            return Err(Refused::Full);
        };
        let (block, at) = self.entry(entry as usize);
        block.keys.store(at, &key);
        block.values[at].store(value, Relaxed);
        let published = u64::from(place.signature) << 32 | u64::from(entry + 1);
        self.buckets[bucket].slots[slot].store(published, Release);
        writer.len += 1;
        Ok(())
    }

    fn remove(&self, _thread: usize, key: &K) -> Option<u32> {
        self.remove_if(key, |_| true)
    }

    fn remove_entry(&self, _thread: usize, key: &K, value: u32) -> bool {
        self.remove_if(key, |found| found == value).is_some()
    }

    fn len(&self) -> usize {
        self.writer().len
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    /// Memory of removed keys is used again only after each thread has called this.
    fn quiescent(&self, thread: usize) {
        if let Some(reached) = self.threads.get(thread) {
            // What the thread read before lies before this store.
            reached.0.store(self.epoch.load(Acquire), Release);
        }
    }
}
