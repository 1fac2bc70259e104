//! A table that threads read without writing anything, and change under the locks of two buckets.
//!
//! Each key has two buckets of six entries; for IPv4 a bucket is two cache lines. Each bucket has a
//! version, which is odd while a thread changes the bucket, and grows at each change:
//!
//! - A lookup reads the versions of the buckets that it looks at, then entries, then the versions
//!   again. If one changed or was odd, it starts over. It writes nothing, so lookups of any number
//!   of threads do not disturb each other.
//! - A change makes the versions of its buckets odd, those of two in the order of their numbers.
//!   Only changes of the same bucket exclude each other.
//! - An entry moves to its other bucket under the locks of both, so no lookup misses it.
//!
//! Lookups do not wait for each other or for changes elsewhere, but a thread that is stopped within
//! a change, some dozen instructions, stops lookups of the same two buckets. Tables with one
//! counter of changes ([`super::LockFreeCuckoo`]) make each lookup that finds nothing start over
//! whenever an entry moves anywhere.

use super::bucket::{Bucket, SLOTS};
use super::sync::Backoff;
use super::{SharedKey, SharedTable, Storage};
use crate::prefetch::prefetch;
use crate::{BATCH_MAX, NONE, OutOfMemory, Refused, Secret};

/// Keys of a batch that are in one stage together.
const GROUP: usize = 16;
/// Buckets that one search for room looks at.
const SEARCHED_MAX: usize = 128;
/// Searches of one insertion, each spoilt by changes of other threads.
const SEARCHES_MAX: usize = 16;

/// A table of a fixed capacity for any number of threads.
pub struct Concurrent<K: SharedKey> {
    buckets: Storage<Bucket<K>>,
    secret: Secret,
}

#[derive(Clone, Copy)]
struct Place {
    first: usize,
    second: usize,
    tag: u8,
    counter: u32,
}

#[derive(Clone, Copy)]
struct Node {
    bucket: u32,
    parent: u16,
    slot: u8,
}

/// Two buckets whose versions this thread made odd.
struct Locked<'a, K: SharedKey> {
    pair: [&'a Bucket<K>; 2],
}

impl<'a, K: SharedKey> Locked<'a, K> {
    fn new(table: &'a Concurrent<K>, a: usize, b: usize) -> Self {
        let pair = [a.min(b), a.max(b)].map(|index| &table.buckets[index]);
        pair[0].lock();
        pair[1].lock();
        Locked { pair }
    }
}

impl<K: SharedKey> Drop for Locked<'_, K> {
    fn drop(&mut self) {
        self.pair[1].unlock();
        self.pair[0].unlock();
    }
}

impl<K: SharedKey> Concurrent<K> {
    #[inline(always)]
    fn place(&self, hash: u64) -> Place {
        let count = self.buckets.len();
        let first = (((hash >> 32) * count as u64) >> 32) as usize;
        let second = (((hash & 0xffff_ffff) * count as u64) >> 32) as usize;
        let next = if first + 1 == count { 0 } else { first + 1 };
        let second = if second == first { next } else { second };
        Place {
            first,
            second,
            tag: (hash as u8).max(1),
            counter: (hash >> 8) as u32 & 3,
        }
    }

    #[inline(always)]
    fn place_of(&self, key: &K) -> Place {
        self.place(key.keyed_hash(&self.secret))
    }

    /// Reads a key's number without a lock.
    #[inline]
    fn read(&self, key: &K, place: Place) -> Option<u32> {
        let mut backoff = Backoff::default();
        loop {
            match self.try_read(key, place) {
                Some(found) => return found,
                None => backoff.wait(),
            }
        }
    }

    /// Reads once. `None`: a bucket was changed meanwhile.
    #[inline(always)]
    fn try_read(&self, key: &K, place: Place) -> Option<Option<u32>> {
        let first = &self.buckets[place.first];
        let first_version = first.version()?;
        if let Some(slot) = first.find(place.tag, key) {
            let value = first.value(slot);
            return first.is_still(first_version).then_some(Some(value));
        }
        if !first.overflowed(place.counter) {
            return first.is_still(first_version).then_some(None);
        }
        let second = &self.buckets[place.second];
        let second_version = second.version()?;
        let found = second.find(place.tag, key).map(|slot| second.value(slot));
        // A number found is right if its own bucket did not change; none, if both did not.
        let right =
            second.is_still(second_version) && (found.is_some() || first.is_still(first_version));
        right.then_some(found)
    }

    /// Finds a key while both of its buckets are locked.
    fn find_locked(&self, key: &K, place: Place) -> Option<(usize, usize)> {
        [place.first, place.second]
            .into_iter()
            .find_map(|index| Some((index, self.buckets[index].find(place.tag, key)?)))
    }

    /// Inserts with the lock of the first bucket alone, which suffices if the second holds no key
    /// of its counter. `None`: it does not suffice.
    #[inline]
    fn insert_first(&self, key: &K, value: u32, place: Place) -> Option<Result<(), Refused>> {
        let first = &self.buckets[place.first];
        first.lock();
        let result = if let Some(slot) = first.find(place.tag, key) {
            Some(Err(Refused::Present(first.value(slot))))
        } else if first.overflowed(place.counter) {
            None
        } else {
            first.free().map(|slot| {
                first.put(slot, place.tag, key, value);
                Ok(())
            })
        };
        first.unlock();
        result
    }

    /// Inserts with both locks. `None`: both buckets are full.
    fn insert_either(&self, key: &K, value: u32, place: Place) -> Option<Result<(), Refused>> {
        let _locked = Locked::new(self, place.first, place.second);
        if let Some((index, slot)) = self.find_locked(key, place) {
            return Some(Err(Refused::Present(self.buckets[index].value(slot))));
        }
        let first = &self.buckets[place.first];
        if let Some(slot) = first.free() {
            first.put(slot, place.tag, key, value);
            return Some(Ok(()));
        }
        let second = &self.buckets[place.second];
        let slot = second.free()?;
        second.put(slot, place.tag, key, value);
        first.count_overflow(place.counter);
        Some(Ok(()))
    }

    /// Moves entries until one of two buckets has a free slot. Other threads may take it first, or
    /// spoil the search: the caller tries again. Returns false if nothing can move.
    #[cold]
    fn make_room(&self, roots: [usize; 2]) -> bool {
        let root = |bucket: usize| Node {
            bucket: bucket as u32,
            parent: u16::MAX,
            slot: 0,
        };
        let mut nodes = [root(roots[0]); SEARCHED_MAX];
        nodes[1] = root(roots[1]);
        let (mut count, mut next) = (2, 0);
        while next < count {
            let from = nodes[next].bucket as usize;
            for slot in 0..SLOTS {
                // Without a lock the key may be torn; the move checks it again under locks.
                let place = self.place_of(&self.buckets[from].key(slot));
                let to = if place.first == from {
                    place.second
                } else {
                    place.first
                };
                let node = Node {
                    bucket: to as u32,
                    parent: next as u16,
                    slot: slot as u8,
                };
                if self.buckets[to].free().is_some() {
                    return self.shift(&nodes, node);
                }
                if count < SEARCHED_MAX {
                    nodes[count] = node;
                    count += 1;
                }
            }
            next += 1;
        }
        false
    }

    /// Moves entries along the way from a root to `node`, the last first; stops early if another
    /// thread has changed the way, in which case every entry is in one of its buckets all the same.
    fn shift(&self, nodes: &[Node], mut node: Node) -> bool {
        while let Some(parent) = nodes.get(usize::from(node.parent)) {
            let (from, to) = (parent.bucket as usize, node.bucket as usize);
            if !self.relocate(from, usize::from(node.slot), to) {
                break;
            }
            node = *parent;
        }
        true
    }

    fn relocate(&self, from: usize, slot: usize, to: usize) -> bool {
        if from == to {
            return false;
        }
        let _locked = Locked::new(self, from, to);
        let (source, target) = (&self.buckets[from], &self.buckets[to]);
        let tag = source.tag(slot);
        let (key, value) = (source.key(slot), source.value(slot));
        let place = self.place_of(&key);
        let belongs = [(place.first, place.second), (place.second, place.first)];
        let Some(free) = target
            .free()
            .filter(|_| tag != 0 && belongs.contains(&(from, to)))
        else {
            return false;
        };
        target.put(free, tag, &key, value);
        source.clear(slot);
        if to == place.first {
            target.uncount_overflow(place.counter);
        } else {
            source.count_overflow(place.counter);
        }
        true
    }

    /// Removes a key, if `agree` says so of its number, under the locks of both buckets.
    fn remove_if(&self, key: &K, agree: impl Fn(u32) -> bool) -> Option<u32> {
        let place = self.place_of(key);
        let _locked = Locked::new(self, place.first, place.second);
        let (index, slot) = self.find_locked(key, place)?;
        let value = Some(self.buckets[index].value(slot)).filter(|value| agree(*value))?;
        self.buckets[index].clear(slot);
        if index != place.first {
            self.buckets[place.first].uncount_overflow(place.counter);
        }
        Some(value)
    }

    /// Puts an entry in place of one that is `expired`. `None`: the first bucket has room, or
    /// neither has such an entry.
    fn replace(
        &self,
        key: &K,
        value: u32,
        place: Place,
        expired: impl Fn(u32) -> bool,
    ) -> Option<Result<Option<u32>, Refused>> {
        let _locked = Locked::new(self, place.first, place.second);
        if let Some((index, slot)) = self.find_locked(key, place) {
            return Some(Err(Refused::Present(self.buckets[index].value(slot))));
        }
        if self.buckets[place.first].free().is_some() {
            return None;
        }
        let (index, slot) = [place.first, place.second].into_iter().find_map(|index| {
            let bucket = &self.buckets[index];
            let over = |slot: &usize| bucket.tag(*slot) != 0 && expired(bucket.value(*slot));
            Some((index, (0..SLOTS).find(over)?))
        })?;
        let bucket = &self.buckets[index];
        let (resident, replaced) = (self.place_of(&bucket.key(slot)), bucket.value(slot));
        // The counter of an entry in its second bucket lies in its first, which may be a third
        // bucket: such an entry stays.
        if index != resident.first && resident.first != place.first {
            return None;
        }
        bucket.clear(slot);
        if index != resident.first {
            self.buckets[resident.first].uncount_overflow(resident.counter);
        }
        bucket.put(slot, place.tag, key, value);
        if index != place.first {
            self.buckets[place.first].count_overflow(place.counter);
        }
        Some(Ok(Some(replaced)))
    }

    fn get_stages(&self, keys: &[K], values: &mut [u32]) {
        let count = keys.len().min(values.len()).min(BATCH_MAX);
        let (keys, values) = (&keys[..count], &mut values[..count]);
        let mut places = [Place {
            first: 0,
            second: 0,
            tag: 1,
            counter: 0,
        }; BATCH_MAX];
        // While lines of one group are on their way, the groups before are matched and read.
        let (mut hashed, mut matched, mut read) = (0, 0, 0);
        while read < count {
            let next = count.min(hashed + GROUP);
            for (key, place) in keys[hashed..next].iter().zip(&mut places[hashed..next]) {
                *place = self.place_of(key);
                prefetch(&self.buckets[place.first]);
            }
            for place in &places[matched..hashed] {
                let bucket = &self.buckets[place.first];
                if !bucket.prefetch_match(place.tag) && bucket.overflowed(place.counter) {
                    prefetch(&self.buckets[place.second]);
                }
            }
            for i in read..matched {
                values[i] = self.read(&keys[i], places[i]).unwrap_or(NONE);
            }
            (read, matched, hashed) = (matched, hashed, next);
        }
    }
}

impl<K: SharedKey> SharedTable<K> for Concurrent<K> {
    fn with_capacity(flows: usize, _threads: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let count = flows.div_ceil(SLOTS).max(2);
        let errno = rustix::io::Errno::OVERFLOW;
        let too_many = OutOfMemory {
            bytes: count.saturating_mul(size_of::<Bucket<K>>()),
            errno,
        };
        let count = u32::try_from(count).map_err(|_| too_many)?;
        Ok(Concurrent {
            buckets: Storage::new(count as usize)?,
            secret,
        })
    }

    #[inline]
    fn get(&self, _thread: usize, key: &K) -> Option<u32> {
        self.read(key, self.place_of(key))
    }

    fn get_batch(&self, _thread: usize, keys: &[K], values: &mut [u32]) {
        for (keys, values) in keys.chunks(BATCH_MAX).zip(values.chunks_mut(BATCH_MAX)) {
            self.get_stages(keys, values);
        }
    }

    #[inline]
    fn insert(&self, _thread: usize, key: K, value: u32) -> Result<(), Refused> {
        let place = self.place_of(&key);
        if let Some(result) = self.insert_first(&key, value, place) {
            return result;
        }
        for _ in 0..SEARCHES_MAX {
            if let Some(result) = self.insert_either(&key, value, place) {
                return result;
            }
            if !self.make_room([place.first, place.second]) {
                break;
            }
        }
        Err(Refused::Full)
    }

    fn insert_over(
        &self,
        thread: usize,
        key: K,
        value: u32,
        expired: impl Fn(u32) -> bool,
    ) -> Result<Option<u32>, Refused> {
        let replaced = self.replace(&key, value, self.place_of(&key), expired);
        replaced.unwrap_or_else(|| self.insert(thread, key, value).map(|()| None))
    }

    fn remove(&self, _thread: usize, key: &K) -> Option<u32> {
        self.remove_if(key, |_| true)
    }

    fn remove_entry(&self, _thread: usize, key: &K, value: u32) -> bool {
        self.remove_if(key, |found| found == value).is_some()
    }

    /// Counts the entries, which takes as long as the table is large.
    fn len(&self) -> usize {
        (0..self.buckets.len())
            .map(|index| self.buckets[index].count())
            .sum()
    }

    fn capacity(&self) -> usize {
        self.buckets.len() * SLOTS
    }
}

/// Every order in which two threads can run, up to a bound of preemptions:
/// `cargo test -p outboard-flow --features loom --lib interleavings`.
#[cfg(all(test, loom))]
mod interleavings {
    use super::*;
    use crate::{FlowKey, V4};
    use loom::{sync::Arc, thread};

    fn explore(test: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(test);
    }

    fn secret() -> Secret {
        Secret::from_seed(1)
    }

    fn table(buckets: usize) -> Concurrent<V4> {
        Concurrent::with_capacity(buckets * SLOTS, 2, secret()).expect("memory")
    }

    /// Returns keys whose buckets, of three, are these.
    fn keys(first: usize, second: usize) -> impl Iterator<Item = V4> {
        let count = 3u64;
        (0u8..=255)
            .flat_map(|a| (0u8..=255).map(move |b| (a, b)))
            .map(|(a, b)| V4::from_bytes([a, b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 6]))
            .filter(move |key| {
                let hash = key.keyed_hash(&secret());
                let one = ((hash >> 32) * count >> 32) as usize;
                let other = ((hash & 0xffff_ffff) * count >> 32) as usize;
                let other = if other == one { (one + 1) % 3 } else { other };
                (one, other) == (first, second)
            })
    }

    /// An entry that an insertion moves is found by a lookup at the same time.
    #[test]
    fn a_moving_entry_is_found() {
        explore(|| {
            let table = table(3);
            // Bucket 0 is full; its first entry can move to bucket 2.
            let mover = keys(0, 2).next().expect("a key");
            table.insert(0, mover, 7).expect("room");
            for key in keys(0, 1).take(5).chain(keys(1, 0).take(6)) {
                table.insert(0, key, 1).expect("room");
            }
            let table = Arc::new(table);
            let other = table.clone();
            let reader = thread::spawn(move || assert_eq!(other.get(1, &mover), Some(7)));
            let new = keys(0, 1).nth(5).expect("a key");
            table.insert(0, new, 9).expect("room");
            reader.join().expect("the reader");
            assert_eq!(
                (table.get(0, &mover), table.get(0, &new)),
                (Some(7), Some(9))
            );
        });
    }

    /// An entry moves back from its second bucket into its first, against the order in which a
    /// lookup reads.
    #[test]
    fn an_entry_that_moves_back_is_found() {
        explore(|| {
            let table = table(3);
            let filler: Vec<_> = keys(2, 1).take(6).collect();
            filler
                .iter()
                .for_each(|key| table.insert(0, *key, 1).expect("room"));
            // Its first bucket is full, so it goes to the second, whose others cannot move.
            let mover = keys(2, 0).next().expect("a key");
            table.insert(0, mover, 7).expect("room");
            table.remove(0, &filler[0]);
            for key in keys(0, 1).take(5).chain(keys(1, 0).take(6)) {
                table.insert(0, key, 1).expect("room");
            }
            let table = Arc::new(table);
            let other = table.clone();
            let reader = thread::spawn(move || assert_eq!(other.get(1, &mover), Some(7)));
            table
                .insert(0, keys(0, 1).nth(5).expect("a key"), 9)
                .expect("room");
            reader.join().expect("the reader");
        });
    }

    /// A slot that is used again never gives a lookup one key with the number of another.
    #[test]
    fn a_slot_used_again_is_not_mixed_up() {
        explore(|| {
            let table = table(2);
            let [old, new] = [4, 5].map(|i| V4::from_bytes([i; 13]));
            table.insert(0, old, 1).expect("room");
            let table = Arc::new(table);
            let other = table.clone();
            let reader = thread::spawn(move || {
                assert!(matches!(other.get(1, &old), None | Some(1)));
                assert!(matches!(other.get(1, &new), None | Some(2)));
            });
            assert_eq!(table.remove(0, &old), Some(1));
            table.insert(0, new, 2).expect("room");
            reader.join().expect("the reader");
        });
    }

    /// Of two threads that insert one key, one is told that it is there.
    #[test]
    fn one_of_two_insertions_wins() {
        explore(|| {
            let table = Arc::new(table(2));
            let key = V4::from_bytes([9; 13]);
            let other = table.clone();
            let rival = thread::spawn(move || other.insert(1, key, 1));
            let mine = table.insert(0, key, 2);
            let theirs = rival.join().expect("the rival");
            match (mine, theirs) {
                (Ok(()), Err(Refused::Present(2))) => assert_eq!(table.get(0, &key), Some(2)),
                (Err(Refused::Present(1)), Ok(())) => assert_eq!(table.get(0, &key), Some(1)),
                both => unreachable!("{both:?}"),
            }
        });
    }
}
