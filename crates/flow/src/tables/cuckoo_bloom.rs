//! Cuckoo++: keys and values in the buckets, and in each bucket a Bloom filter of the keys that
//! went to their second bucket.

use super::key_is_handle;
use crate::{FlowKey, FlowTable, OutOfMemory, Pages, Refused, Secret, Zeroable};

const SLOTS: usize = 8;
/// Entries that one insertion moves at most.
const MOVES_MAX: usize = 512;

/// Buckets of eight entries with 16 bytes of value each, of which this crate uses four.
pub struct CuckooBloom<K> {
    buckets: Pages<Bucket<K>>,
    len: usize,
    secret: Secret,
}

#[repr(C, align(64))]
struct Bucket<K> {
    signatures: [u16; SLOTS],
    used: u32,
    /// Keys in the filter; at 0 it is emptied.
    filtered: u32,
    filter: u64,
    entries: [Entry<K>; SLOTS],
}

// SAFETY: numbers and entries, each of which may be zero.
unsafe impl<K: FlowKey> Zeroable for Bucket<K> {}

#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Entry<K> {
    value: [u32; 4],
    key: K,
}

/// First and second bucket, signature, and bits of the filter.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    second: usize,
    signature: u16,
    bits: u64,
}

impl<K: FlowKey> CuckooBloom<K> {
    #[inline]
    fn place(&self, key: &K) -> Place {
        let hash = key.keyed_hash(&self.secret);
        let mask = self.buckets.len() - 1;
        let (first, signature) = (hash as usize & mask, (hash >> 48) as u16);
        // Odd, so that the buckets differ.
        let second = (first ^ (usize::from(signature) << 1 | 1)) & mask;
        let bits = 1 << (hash >> 32 & 63) | 1 << (hash >> 38 & 63);
        Place {
            first,
            second,
            signature,
            bits,
        }
    }

    #[inline]
    fn find_in(&self, bucket: usize, key: &K, signature: u16) -> Option<usize> {
        let one = &self.buckets[bucket];
        (0..SLOTS).find(|slot| {
            one.signatures[*slot] == signature
                && one.used >> slot & 1 != 0
                && one.entries[*slot].key == *key
        })
    }

    #[inline]
    fn find(&self, key: &K) -> Option<(usize, usize)> {
        let place = self.place(key);
        if let Some(slot) = self.find_in(place.first, key, place.signature) {
            return Some((place.first, slot));
        }
        if self.buckets[place.first].filter & place.bits != place.bits {
            return None;
        }
        let slot = self.find_in(place.second, key, place.signature)?;
        Some((place.second, slot))
    }

    fn put(&mut self, bucket: usize, slot: usize, key: K, value: u32) {
        let place = self.place(&key);
        let one = &mut self.buckets[bucket];
        one.signatures[slot] = place.signature;
        one.entries[slot] = Entry {
            value: [value, 0, 0, 0],
            key,
        };
        one.used |= 1 << slot;
        if bucket != place.first {
            let first = &mut self.buckets[place.first];
            first.filter |= place.bits;
            first.filtered += 1;
        }
    }

    /// Empties a slot. Returns its entry and the entry's other bucket.
    fn take(&mut self, bucket: usize, slot: usize) -> (Entry<K>, usize) {
        let entry = self.buckets[bucket].entries[slot];
        self.buckets[bucket].used &= !(1 << slot);
        let place = self.place(&entry.key);
        if bucket == place.first {
            return (entry, place.second);
        }
        let first = &mut self.buckets[place.first];
        first.filtered -= 1;
        if first.filtered == 0 {
            first.filter = 0;
        }
        (entry, place.first)
    }

    fn free_in(&self, bucket: usize) -> Option<usize> {
        let slot = (!self.buckets[bucket].used).trailing_zeros() as usize;
        (slot < SLOTS).then_some(slot)
    }

    /// Moves entries, each to its other bucket, until one finds a free slot. If none does, all move
    /// back.
    fn make_room(&mut self, first: usize) -> Option<(usize, usize)> {
        let mut moved = Vec::new();
        let (mut bucket, mut slot) = (first, 0);
        let (mut entry, mut to) = self.take(bucket, slot);
        // Nothing may move into the slot that is being freed.
        self.buckets[first].used |= 1;
        loop {
            moved.push((bucket, slot));
            if let Some(free) = self.free_in(to) {
                self.put(to, free, entry.key, entry.value[0]);
                self.buckets[first].used &= !1;
                return Some((first, 0));
            }
            if moved.len() == MOVES_MAX {
                break;
            }
            let next = moved.len() % SLOTS;
            let next = if to == first { next.max(1) } else { next };
            let (resident, other) = self.take(to, next);
            self.put(to, next, entry.key, entry.value[0]);
            (bucket, slot, entry, to) = (to, next, resident, other);
        }
        // `entry` is without a slot: each goes back to where it was, the last first.
        while let Some((bucket, slot)) = moved.pop() {
            let before = if moved.is_empty() {
                None
            } else {
                Some(self.take(bucket, slot).0)
            };
            self.put(bucket, slot, entry.key, entry.value[0]);
            match before {
                Some(before) => entry = before,
                None => break,
            }
        }
        None
    }
}

impl<K: FlowKey> FlowTable<K> for CuckooBloom<K> {
    key_is_handle!(K);

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let count = flows.div_ceil(SLOTS).clamp(2, 1 << 31).next_power_of_two();
        Ok(CuckooBloom {
            buckets: Pages::new(count)?,
            len: 0,
            secret,
        })
    }

    #[inline]
    fn get(&self, key: &K) -> Option<u32> {
        let (bucket, slot) = self.find(key)?;
        Some(self.buckets[bucket].entries[slot].value[0])
    }

    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused> {
        if let Some(present) = self.get(&key) {
            return Err(Refused::Present(present));
        }
        let place = self.place(&key);
        let pair = [place.first, place.second];
        let free = pair.into_iter().find_map(|b| Some((b, self.free_in(b)?)));
        let (bucket, slot) = free
            .or_else(|| self.make_room(place.first))
            .ok_or(Refused::Full)?;
        self.put(bucket, slot, key, value);
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, key: &K) -> Option<u32> {
        let (bucket, slot) = self.find(key)?;
        let (entry, _) = self.take(bucket, slot);
        self.len -= 1;
        Some(entry.value[0])
    }

    fn len(&self) -> usize {
        self.len
    }

    fn capacity(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    fn bytes(&self) -> usize {
        self.buckets.bytes()
    }
}
