//! Hopscotch: each key lies within 30 slots of its home, or in a list of those that found no place.

use super::key_is_handle;
use crate::{FlowKey, FlowTable, OutOfMemory, Pages, Refused, Secret, Zeroable};

/// Slots in which a key may lie.
const NEIGHBOURHOOD: usize = 30;
/// Slots that an insertion looks at for a free one.
const PROBES_MAX: usize = 12 * NEIGHBOURHOOD;
/// Bit of a home of which a key is in the list.
const OVERFLOW: u32 = 1 << 30;

/// A power of two of slots, and a list for the keys of a full neighbourhood.
pub struct Hopscotch<K> {
    slots: Pages<Slot<K>>,
    homes: usize,
    list: Vec<(K, u32)>,
    len: usize,
    secret: Secret,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Slot<K> {
    /// Bit i: the slot i places on holds a key whose home this is.
    neighbours: u32,
    hash: u32,
    value: u32,
    used: u32,
    key: K,
}

// SAFETY: numbers and a key, each of which may be zero.
unsafe impl<K: FlowKey> Zeroable for Slot<K> {}

impl<K: FlowKey> Hopscotch<K> {
    #[inline]
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.homes - 1)
    }

    #[inline]
    fn find(&self, key: &K, hash: u32) -> Option<usize> {
        let home = self.home(hash);
        let mut neighbours = self.slots[home].neighbours & !OVERFLOW;
        while neighbours != 0 {
            let at = home + neighbours.trailing_zeros() as usize;
            if self.slots[at].hash == hash && self.slots[at].key == *key {
                return Some(at);
            }
            neighbours &= neighbours - 1;
        }
        None
    }

    fn find_in_list(&self, key: &K, hash: u32) -> Option<usize> {
        let overflowed = self.slots[self.home(hash)].neighbours & OVERFLOW != 0;
        overflowed
            .then(|| self.list.iter().position(|(one, _)| one == key))
            .flatten()
    }

    /// Moves a free slot towards `home` until it is in the neighbourhood.
    fn free_near(&mut self, home: usize) -> Option<usize> {
        let end = (home + PROBES_MAX).min(self.slots.len());
        let mut free = (home..end).find(|at| self.slots[*at].used == 0)?;
        while free - home >= NEIGHBOURHOOD {
            free = self.hop(free)?;
        }
        Some(free)
    }

    /// Moves an entry from before `free` into it. Returns the slot that becomes free.
    fn hop(&mut self, free: usize) -> Option<usize> {
        for home in free + 1 - NEIGHBOURHOOD..free {
            let neighbours = self.slots[home].neighbours & !OVERFLOW;
            let from = home + neighbours.trailing_zeros() as usize;
            if neighbours != 0 && from < free {
                let neighbours = self.slots[free].neighbours;
                self.slots[free] = Slot {
                    neighbours,
                    ..self.slots[from]
                };
                self.slots[from].used = 0;
                self.slots[home].neighbours ^= 1 << (from - home) | 1 << (free - home);
                return Some(from);
            }
        }
        None
    }
}

impl<K: FlowKey> FlowTable<K> for Hopscotch<K> {
    key_is_handle!(K);

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let homes = flows.clamp(1, 1 << 31).next_power_of_two();
        let slots = Pages::new(homes + NEIGHBOURHOOD - 1)?;
        Ok(Hopscotch {
            slots,
            homes,
            list: Vec::new(),
            len: 0,
            secret,
        })
    }

    #[inline]
    fn get(&self, key: &K) -> Option<u32> {
        let hash = key.keyed_hash(&self.secret) as u32;
        if let Some(at) = self.find(key, hash) {
            return Some(self.slots[at].value);
        }
        self.find_in_list(key, hash).map(|at| self.list[at].1)
    }

    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused> {
        if let Some(present) = self.get(&key) {
            return Err(Refused::Present(present));
        }
        if self.len == self.capacity() {
            return Err(Refused::Full);
        }
        let hash = key.keyed_hash(&self.secret) as u32;
        let home = self.home(hash);
        match self.free_near(home) {
            Some(at) => {
                let neighbours = self.slots[at].neighbours;
                self.slots[at] = Slot {
                    neighbours,
                    hash,
                    value,
                    used: 1,
                    key,
                };
                self.slots[home].neighbours |= 1 << (at - home);
            }
            None => {
                self.list.push((key, value));
                self.slots[home].neighbours |= OVERFLOW;
            }
        }
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, key: &K) -> Option<u32> {
        let hash = key.keyed_hash(&self.secret) as u32;
        let home = self.home(hash);
        let value = if let Some(at) = self.find(key, hash) {
            self.slots[at].used = 0;
            self.slots[home].neighbours ^= 1 << (at - home);
            self.slots[at].value
        } else {
            let at = self.find_in_list(key, hash)?;
            let (_, value) = self.list.swap_remove(at);
            let secret = &self.secret;
            let home_of = |one: &K| one.keyed_hash(secret) as u32 as usize & (self.homes - 1);
            if !self.list.iter().any(|(one, _)| home_of(one) == home) {
                self.slots[home].neighbours &= !OVERFLOW;
            }
            value
        };
        self.len -= 1;
        Some(value)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn capacity(&self) -> usize {
        self.homes
    }

    fn bytes(&self) -> usize {
        self.slots.bytes() + self.list.capacity() * size_of::<(K, u32)>()
    }
}
