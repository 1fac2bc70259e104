//! The standard library's table (hashbrown), never allowed to grow.

use super::key_is_handle;
use crate::{FlowKey, FlowTable, OutOfMemory, Refused, Secret};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// `std::collections::HashMap` behind [`FlowTable`].
pub struct Standard<K> {
    map: HashMap<Hashed<K>, u32, BuildHasherDefault<Given>>,
    secret: Secret,
    capacity: usize,
}

/// A key with its hash, which is computed outside of the map.
#[derive(PartialEq, Eq)]
struct Hashed<K> {
    key: K,
    hash: u64,
}

impl<K> Hash for Hashed<K> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Returns the number that is written into it.
#[derive(Default)]
struct Given(u64);

impl Hasher for Given {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}

impl<K: FlowKey> Standard<K> {
    #[inline]
    fn hashed(&self, key: &K) -> Hashed<K> {
        Hashed {
            key: *key,
            hash: key.keyed_hash(&self.secret),
        }
    }
}

impl<K: FlowKey> FlowTable<K> for Standard<K> {
    key_is_handle!(K);

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let mut map = HashMap::default();
        let bytes = flows.saturating_mul(size_of::<(Hashed<K>, u32)>());
        let errno = rustix::io::Errno::NOMEM;
        map.try_reserve(flows)
            .map_err(|_| OutOfMemory { bytes, errno })?;
        Ok(Standard {
            map,
            secret,
            capacity: flows,
        })
    }

    #[inline]
    fn get(&self, key: &K) -> Option<u32> {
        self.map.get(&self.hashed(key)).copied()
    }

    #[inline]
    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused> {
        let full = self.map.len() == self.capacity;
        match self.map.entry(self.hashed(&key)) {
            Entry::Occupied(one) => Err(Refused::Present(*one.get())),
            Entry::Vacant(_) if full => Err(Refused::Full),
            Entry::Vacant(free) => {
                free.insert(value);
                Ok(())
            }
        }
    }

    #[inline]
    fn remove(&mut self, key: &K) -> Option<u32> {
        self.map.remove(&self.hashed(key))
    }

    fn len(&self) -> usize {
        self.map.len()
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn bytes(&self) -> usize {
        // A power of two of slots, at most seven eighths full, one byte each beside them.
        (self.map.capacity() / 7 * 8).next_power_of_two() * (size_of::<(Hashed<K>, u32)>() + 1)
    }
}
