//! The table itself: lookups, insertion, removal.

use super::bucket::{Bucket, SLOTS, Slots};
use crate::prefetch::prefetch;
use crate::{FlowKey, FlowTable, NONE, OutOfMemory, Pages, Refused, Secret};

/// Keys that are looked up together. A longer slice is looked up in parts of this length.
pub const BATCH_MAX: usize = 64;
/// Keys of a batch that are in one stage together.
const GROUP: usize = 16;

/// A table of a fixed capacity that is fastest with many keys at a time.
pub struct Batched<K> {
    pub(super) buckets: Pages<Bucket<K>>,
    secret: Secret,
    len: usize,
}

/// A key's place, computed from its hash.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) first: usize,
    pub(super) second: usize,
    pub(super) tag: u8,
    pub(super) counter: u32,
}

/// Returns the tag in a hash; 0 means a free slot, so a hash that has it gets another.
#[inline(always)]
fn tag_of(hash: u64) -> u8 {
    (hash as u8).max(1)
}

#[inline(always)]
fn counter_of(hash: u64) -> u32 {
    (hash >> 8) as u32 & 3
}

impl<K: FlowKey> Batched<K> {
    /// Makes a table whose memory is there before the first packet.
    pub fn populated(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let mut table = Self::with_capacity(flows, secret)?;
        table.buckets.populate();
        Ok(table)
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &K) -> u64 {
        key.keyed_hash(&self.secret)
    }

    #[inline(always)]
    fn first(&self, hash: u64) -> usize {
        // The upper half of one product: a table has less than 2^32 buckets.
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }

    /// Returns a part of the buckets.
    #[inline(always)]
    fn scaled(&self, part: u32) -> usize {
        ((u64::from(part) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline(always)]
    fn second(&self, hash: u64, first: usize) -> usize {
        let count = self.buckets.len();
        let second = self.scaled(hash as u32);
        let next = if first + 1 == count { 0 } else { first + 1 };
        if second == first { next } else { second }
    }

    #[inline(always)]
    pub(super) fn place(&self, hash: u64) -> Place {
        let first = self.first(hash);
        let second = self.second(hash, first);
        Place {
            first,
            second,
            tag: tag_of(hash),
            counter: counter_of(hash),
        }
    }

    /// Returns bucket and slot of a key.
    #[inline(always)]
    fn find(&self, key: &K, place: Place) -> Option<(usize, usize)> {
        let first = &self.buckets[place.first];
        if let Some(slot) = first.find(place.tag, key) {
            return Some((place.first, slot));
        }
        if !first.overflowed(place.counter) {
            return None;
        }
        let slot = self.buckets[place.second].find(place.tag, key)?;
        Some((place.second, slot))
    }

    #[inline]
    pub(super) fn get_hashed(&self, key: &K, hash: u64) -> Option<u32> {
        let bucket = &self.buckets[self.first(hash)];
        let slots = bucket.matching(tag_of(hash));
        if let Some(value) = bucket.first_value(slots, key) {
            return Some(value);
        }
        if slots.is_empty() && !bucket.overflowed(counter_of(hash)) {
            return None;
        }
        self.get_everywhere(key, hash)
    }

    /// Looks for a key in all its slots.
    #[inline(never)]
    fn get_everywhere(&self, key: &K, hash: u64) -> Option<u32> {
        let (bucket, slot) = self.find(key, self.place(hash))?;
        Some(self.buckets[bucket].value(slot))
    }

    /// Returns whether so many entries are in their second bucket that a single lookup should load
    /// both at once: a processor that expects a key in its first looks ahead in vain.
    #[inline(always)]
    fn is_dense(&self) -> bool {
        self.len * 8 >= self.buckets.len() * (SLOTS * 5)
    }

    /// Begins to load both lines of both buckets of a key.
    #[inline(always)]
    fn prefetch_all(&self, hash: u64) {
        self.buckets[self.first(hash)].prefetch_keys();
        // Not that of the few keys whose two places are one.
        if let Some(second) = self.buckets.get(self.scaled(hash as u32)) {
            prefetch(second);
            second.prefetch_keys();
        }
    }

    /// Looks up at most [`BATCH_MAX`] keys in stages: while the first lines of one group are on
    /// their way, the tags of the group before are matched, and the keys before those compared.
    #[inline]
    fn get_stages(&self, keys: &[K], values: &mut [u32]) {
        let count = keys.len().min(values.len()).min(BATCH_MAX);
        let (keys, values) = (&keys[..count], &mut values[..count]);
        let mut hashes = [0u64; BATCH_MAX];
        let mut buckets = [&self.buckets[0]; BATCH_MAX];
        let mut matches = [Slots(0); BATCH_MAX];
        let (mut hashed, mut matched, mut compared) = (0, 0, 0);
        let is_dense = self.is_dense();
        while compared < count {
            let next = count.min(hashed + GROUP);
            for i in hashed..next {
                hashes[i] = self.hash(&keys[i]);
                buckets[i] = &self.buckets[self.first(hashes[i])];
                prefetch(buckets[i]);
            }
            for i in matched..hashed {
                let (hash, bucket) = (hashes[i], buckets[i]);
                matches[i] = bucket.matching(tag_of(hash));
                if !matches[i].is_empty() {
                    prefetch(bucket.key(matches[i].first_or_last()));
                } else if bucket.overflowed(counter_of(hash)) {
                    let second = &self.buckets[self.second(hash, self.first(hash))];
                    prefetch(second);
                    if is_dense {
                        second.prefetch_keys();
                    }
                }
            }
            for i in compared..matched {
                let (hash, bucket, slots) = (hashes[i], buckets[i], matches[i]);
                let slot = slots.first_or_last();
                values[i] = if !slots.is_empty() && *bucket.key(slot) == keys[i] {
                    bucket.value(slot)
                } else if slots.is_empty() && !bucket.overflowed(counter_of(hash)) {
                    NONE
                } else {
                    self.get_hashed(&keys[i], hash).unwrap_or(NONE)
                };
            }
            (compared, matched, hashed) = (matched, hashed, next);
        }
    }

    /// Begins to load both lines of a key's first bucket.
    #[inline(always)]
    pub(super) fn prefetch_both(&self, hash: u64) {
        let bucket = &self.buckets[self.first(hash)];
        prefetch(bucket);
        bucket.prefetch_keys();
    }

    /// Adds an entry whose key is known to be absent.
    #[inline]
    fn add(&mut self, key: K, value: u32, place: Place) -> Result<(), Refused> {
        let (bucket, slot) = if let Some(slot) = self.buckets[place.first].free().first() {
            (place.first, slot)
        } else if let Some(slot) = self.buckets[place.second].free().first() {
            (place.second, slot)
        } else {
            self.make_room(place.first, place.second)
                .ok_or(Refused::Full)?
        };
        self.put(bucket, slot, key, value, place);
        self.len += 1;
        Ok(())
    }

    #[inline(always)]
    fn put(&mut self, bucket: usize, slot: usize, key: K, value: u32, place: Place) {
        self.buckets[bucket].put(slot, place.tag, key, value);
        if bucket != place.first {
            self.buckets[place.first].count_overflow(place.counter);
        }
    }

    #[inline]
    pub(super) fn insert_hashed(&mut self, key: K, value: u32, hash: u64) -> Result<(), Refused> {
        let place = self.place(hash);
        match self.find(&key, place) {
            Some((bucket, slot)) => Err(Refused::Present(self.buckets[bucket].value(slot))),
            None => self.add(key, value, place),
        }
    }

    /// Adds at most [`BATCH_MAX`] entries whose buckets are loaded together.
    pub(super) fn insert_stages(
        &mut self,
        keys: &[K],
        values: &[u32],
        answers: &mut [Result<(), Refused>],
    ) {
        let mut hashes = [0u64; BATCH_MAX];
        for (key, hash) in keys.iter().zip(&mut hashes) {
            *hash = self.hash(key);
            self.prefetch_both(*hash);
        }
        for hash in &hashes[..keys.len().min(BATCH_MAX)] {
            let first = self.first(*hash);
            if self.buckets[first].free().is_empty() {
                let second = &self.buckets[self.second(*hash, first)];
                prefetch(second);
                second.prefetch_keys();
            }
        }
        let entries = keys.iter().zip(values).zip(hashes);
        for (((key, value), hash), answer) in entries.zip(answers) {
            *answer = self.insert_hashed(*key, *value, hash);
        }
    }

    /// Frees a slot of an entry whose place this is.
    pub(super) fn clear(&mut self, bucket: usize, slot: usize, place: Place) {
        self.buckets[bucket].clear(slot);
        if bucket != place.first {
            self.buckets[place.first].uncount_overflow(place.counter);
        }
        self.len -= 1;
    }

    #[inline]
    pub(super) fn remove_hashed(&mut self, key: &K, hash: u64) -> Option<u32> {
        let place = self.place(hash);
        let (bucket, slot) = self.find(key, place)?;
        self.clear(bucket, slot, place);
        Some(self.buckets[bucket].value(slot))
    }

    /// Returns the slot among a key's two buckets whose entry is `expired`.
    fn find_expired(&self, place: Place, expired: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        [place.first, place.second].into_iter().find_map(|index| {
            let bucket = &self.buckets[index];
            let slot = (0..SLOTS).find(|s| bucket.tag(*s) != 0 && expired(bucket.value(*s)))?;
            Some((index, slot))
        })
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut seen = 0;
        let mut overflow = vec![[0u32; 4]; self.buckets.len()];
        for (index, bucket) in self.buckets.iter().enumerate() {
            for slot in (0..SLOTS).filter(|slot| bucket.tag(*slot) != 0) {
                let place = self.place(self.hash(bucket.key(slot)));
                assert_eq!(bucket.tag(slot), place.tag);
                assert!([place.first, place.second].contains(&index));
                if index != place.first {
                    overflow[place.first][place.counter as usize] += 1;
                }
                seen += 1;
            }
        }
        assert_eq!(seen, self.len);
        for (bucket, counts) in self.buckets.iter().zip(overflow) {
            for (counter, count) in counts.into_iter().enumerate() {
                assert_eq!(bucket.overflowed(counter as u32), count != 0);
            }
        }
    }
}

impl<K: FlowKey> FlowTable<K> for Batched<K> {
    /// The hash: with the number it names one entry.
    type Handle = u64;

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        // Two buckets at least, since a key's two are different; an index has 32 bits.
        let count = flows.div_ceil(SLOTS).max(2);
        let errno = rustix::io::Errno::OVERFLOW;
        let too_many = OutOfMemory {
            bytes: count.saturating_mul(size_of::<Bucket<K>>()),
            errno,
        };
        let count = u32::try_from(count).map_err(|_| too_many)?;
        Ok(Batched {
            buckets: Pages::new(count as usize)?,
            secret,
            len: 0,
        })
    }

    #[inline]
    fn get(&self, key: &K) -> Option<u32> {
        let hash = self.hash(key);
        if self.is_dense() {
            self.prefetch_all(hash);
        }
        self.get_hashed(key, hash)
    }

    #[inline]
    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused> {
        let hash = self.hash(&key);
        self.prefetch_both(hash);
        self.insert_hashed(key, value, hash)
    }

    #[inline]
    fn remove(&mut self, key: &K) -> Option<u32> {
        self.remove_hashed(key, self.hash(key))
    }

    #[inline]
    fn handle(&self, key: &K) -> u64 {
        self.hash(key)
    }

    #[inline]
    fn remove_by(&mut self, hash: u64, value: u32) -> bool {
        let place = self.place(hash);
        for index in [place.first, place.second] {
            let bucket = &self.buckets[index];
            let slot = bucket
                .matching(place.tag)
                .find(|slot| bucket.value(*slot) == value);
            if let Some(slot) = slot {
                self.clear(index, slot, place);
                return true;
            }
        }
        false
    }

    #[inline]
    fn prefetch_handle(&self, hash: u64) {
        prefetch(&self.buckets[self.first(hash)]);
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

    fn get_batch(&self, keys: &[K], values: &mut [u32]) {
        for (keys, values) in keys.chunks(BATCH_MAX).zip(values.chunks_mut(BATCH_MAX)) {
            self.get_stages(keys, values);
        }
    }

    fn insert_batch(&mut self, keys: &[K], values: &[u32], answers: &mut [Result<(), Refused>]) {
        let parts = keys.chunks(BATCH_MAX).zip(values.chunks(BATCH_MAX));
        for ((keys, values), answers) in parts.zip(answers.chunks_mut(BATCH_MAX)) {
            self.insert_stages(keys, values, answers);
        }
    }

    fn insert_over(
        &mut self,
        key: K,
        value: u32,
        expired: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, Refused> {
        let place = self.place(self.hash(&key));
        if let Some((bucket, slot)) = self.find(&key, place) {
            return Err(Refused::Present(self.buckets[bucket].value(slot)));
        }
        let has_room = !self.buckets[place.first].free().is_empty();
        match if has_room {
            None
        } else {
            self.find_expired(place, expired)
        } {
            None => self.add(key, value, place).map(|()| None),
            Some((index, slot)) => {
                let resident = *self.buckets[index].key(slot);
                let replaced = self.buckets[index].value(slot);
                self.clear(index, slot, self.place(self.hash(&resident)));
                self.put(index, slot, key, value, place);
                self.len += 1;
                Ok(Some(replaced))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::V4;
    use crate::random::Random;

    fn key(i: u64) -> V4 {
        let mut bytes = [0; 13];
        bytes[..8].copy_from_slice(&i.to_le_bytes());
        V4::from_bytes(bytes)
    }

    /// After each of many random operations at the border of capacity, every entry lies in one of
    /// its two buckets, and the counters are those of the entries.
    #[test]
    fn invariants_hold_while_full() {
        let mut table = Batched::<V4>::with_capacity(70, Secret::from_seed(3)).expect("memory");
        let mut random = Random::new(5);
        let mut refused = 0;
        for _ in 0..if cfg!(miri) { 300 } else { 20_000 } {
            let one = key(random.below(90));
            if random.below(3) == 0 {
                table.remove(&one);
            } else if table.insert(one, 1) == Err(Refused::Full) {
                refused += 1;
            }
            table.check();
        }
        assert!(cfg!(miri) || refused > 0, "never full");
    }

    /// Nothing remains of removed entries: a table that lived through many is as empty as a new
    /// one.
    #[test]
    fn removal_leaves_nothing() {
        let mut table = Batched::<V4>::with_capacity(700, Secret::from_seed(3)).expect("memory");
        let (rounds, flows) = if cfg!(miri) { (2, 640) } else { (50, 665) };
        for round in 0..rounds {
            let keys: Vec<_> = (0..flows).map(|i| key(round * 1000 + i)).collect();
            for (i, one) in keys.iter().enumerate() {
                table.insert(*one, i as u32).expect("room");
            }
            for (i, one) in keys.iter().enumerate() {
                assert!(table.remove_by(table.handle(one), i as u32));
            }
            assert!(table.is_empty());
            let clean = |bucket: &Bucket<V4>| {
                bucket.free().count() == SLOTS && (0..4).all(|i| !bucket.overflowed(i))
            };
            assert!(table.buckets.iter().all(clean));
        }
    }

    /// An expired entry gives its place to a new one; entries that live stay.
    #[test]
    fn insertion_replaces_the_expired() {
        let mut table = Batched::<V4>::with_capacity(700, Secret::from_seed(3)).expect("memory");
        let mut count = 0;
        while table.insert(key(count), count as u32).is_ok() {
            count += 1;
        }
        let mut replaced = 0;
        for i in 1000..1100 {
            match table.insert_over(key(i), i as u32, |value| value < 300) {
                Ok(Some(value)) => {
                    assert!(value < 300);
                    assert_eq!(table.get(&key(value.into())), None);
                    assert_eq!(table.get(&key(i)), Some(i as u32));
                    replaced += 1;
                }
                Ok(None) | Err(Refused::Full) => {}
                Err(refused) => unreachable!("{refused}"),
            }
            table.check();
        }
        assert!(replaced > 50);
        assert!((300..count).all(|i| table.get(&key(i)) == Some(i as u32)));
    }
}
