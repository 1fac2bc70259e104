//! Robin hood: linear probing in which the entry that is farther from its home stays.

use super::key_is_handle;
use crate::{FlowKey, FlowTable, OutOfMemory, Pages, Refused, Secret, Zeroable};

/// A power of two of slots, all of which may be used. The hash is stored beside the key; removal
/// shifts the entries behind it back.
pub struct Robin<K> {
    slots: Pages<Slot<K>>,
    len: usize,
    secret: Secret,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Slot<K> {
    /// Distance from the entry's home plus one; 0 if the slot is free.
    distance: u32,
    hash: u32,
    value: u32,
    key: K,
}

// SAFETY: numbers and a key, each of which may be zero.
unsafe impl<K: FlowKey> Zeroable for Slot<K> {}

impl<K: FlowKey> Robin<K> {
    #[inline]
    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// Returns the key's slot, or the slot and the distance at which it would be inserted; no slot
    /// if all are taken by entries at least as far from home.
    #[inline]
    fn find(&self, key: &K, hash: u32) -> Result<usize, Option<(usize, u32)>> {
        let mut at = hash as usize & self.mask();
        for distance in 1..=self.slots.len() as u32 {
            let slot = &self.slots[at];
            if slot.distance < distance {
                return Err(Some((at, distance)));
            }
            if slot.hash == hash && slot.key == *key {
                return Ok(at);
            }
            at = (at + 1) & self.mask();
        }
        Err(None)
    }
}

impl<K: FlowKey> FlowTable<K> for Robin<K> {
    key_is_handle!(K);

    fn with_capacity(flows: usize, secret: Secret) -> Result<Self, OutOfMemory> {
        let count = flows.clamp(1, 1 << 31).next_power_of_two();
        Ok(Robin {
            slots: Pages::new(count)?,
            len: 0,
            secret,
        })
    }

    #[inline]
    fn get(&self, key: &K) -> Option<u32> {
        let at = self.find(key, key.keyed_hash(&self.secret) as u32).ok()?;
        Some(self.slots[at].value)
    }

    fn insert(&mut self, key: K, value: u32) -> Result<(), Refused> {
        let hash = key.keyed_hash(&self.secret) as u32;
        let place = match self.find(&key, hash) {
            Ok(at) => return Err(Refused::Present(self.slots[at].value)),
            Err(place) => place.ok_or(Refused::Full)?,
        };
        if self.len == self.slots.len() {
            return Err(Refused::Full);
        }
        let (mut at, distance) = place;
        let mut moving = Slot {
            distance,
            hash,
            value,
            key,
        };
        while moving.distance != 0 {
            if self.slots[at].distance < moving.distance {
                std::mem::swap(&mut self.slots[at], &mut moving);
            }
            if moving.distance != 0 {
                moving.distance += 1;
                at = (at + 1) & self.mask();
            }
        }
        self.len += 1;
        Ok(())
    }

    fn remove(&mut self, key: &K) -> Option<u32> {
        let mut at = self.find(key, key.keyed_hash(&self.secret) as u32).ok()?;
        let value = self.slots[at].value;
        loop {
            let next = (at + 1) & self.mask();
            if self.slots[next].distance <= 1 {
                break;
            }
            self.slots[at] = self.slots[next];
            self.slots[at].distance -= 1;
            at = next;
        }
        self.slots[at].distance = 0;
        self.len -= 1;
        Some(value)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}
