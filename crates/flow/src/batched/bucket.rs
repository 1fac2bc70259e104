//! Seven entries, their tags, and the counters of entries that went to their second bucket.

use crate::prefetch::prefetch;
use crate::{FlowKey, memory::Zeroable};
use std::mem::offset_of;

pub(super) const SLOTS: usize = 7;
/// Keys in the first line, beside the tags. A bucket fills from its first slot, so that the tags'
/// line holds most keys of a bucket that is not full.
const NEAR: usize = 3;
const NEAR_VALUES: usize = NEAR + 1;

/// Largest count of a counter.
const COUNT_MAX: u16 = 7;
/// Bits of the tags in [`Bucket::tags`]; the byte above belongs to the counters.
const TAGS: u64 = (1 << (8 * SLOTS)) - 1;

#[repr(C, align(64))]
pub(super) struct Bucket<K> {
    tags: u64,
    near_values: [u32; NEAR_VALUES],
    near_keys: [K; NEAR],
    counters: u8,
    far_values: [u32; SLOTS - NEAR_VALUES],
    far_keys: [K; SLOTS - NEAR],
}

// SAFETY: numbers and keys, each of which may be zero.
unsafe impl<K: FlowKey> Zeroable for Bucket<K> {}

const _: () = assert!(size_of::<Bucket<crate::V4>>() == 128);
const _: () = assert!(size_of::<Bucket<crate::V6>>() == 320);

/// Slots of a bucket, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots(pub(super) u8);

impl Slots {
    const ALL: u8 = (1 << SLOTS) - 1;

    #[inline(always)]
    pub(super) fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.first_or_last())
    }

    /// Returns the first slot, or the last slot of a bucket if there is none.
    #[inline(always)]
    pub(super) fn first_or_last(self) -> usize {
        (u32::from(self.0) | 1 << (SLOTS - 1)).trailing_zeros() as usize
    }

    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Compares eight tags with one, in a vector register.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn equal_tags(tags: u64, tag: u8) -> u8 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_cvtsi64_si128, _mm_movemask_epi8};
    // One multiplication instead of three shuffles.
    let repeated = u64::from(tag) * 0x0101_0101_0101_0101;
    // SAFETY: every x86-64 has SSE2.
    unsafe {
        let repeated = _mm_cvtsi64_si128(repeated as i64);
        let equal = _mm_cmpeq_epi8(_mm_cvtsi64_si128(tags as i64), repeated);
        _mm_movemask_epi8(equal) as u8
    }
}

#[cfg(not(target_arch = "x86_64"))]
use equal_tags_in_a_word as equal_tags;

/// Compares eight tags with one, in a word.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(always)]
fn equal_tags_in_a_word(tags: u64, tag: u8) -> u8 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = LOW << 7;
    let different = tags ^ (LOW * u64::from(tag));
    // Bit 7 of a byte is set if the byte is not zero: no carry leaves a byte.
    let nonzero = ((different & !HIGH) + !HIGH) | different;
    // The product collects bit 0 of each byte in the uppermost byte.
    (((!nonzero & HIGH) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

impl Iterator for Slots {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        let first = self.first()?;
        self.0 &= self.0 - 1;
        Some(first)
    }
}

impl<K: FlowKey> Bucket<K> {
    /// Returns the slots whose tag is `tag`; tag 0 finds those that are free.
    #[inline(always)]
    pub(super) fn matching(&self, tag: u8) -> Slots {
        Slots(equal_tags(self.tags, tag) & Slots::ALL)
    }

    #[inline(always)]
    pub(super) fn free(&self) -> Slots {
        self.matching(0)
    }

    #[inline(always)]
    pub(super) fn used(&self) -> Slots {
        Slots(!self.free().0 & Slots::ALL)
    }

    /// Returns the number of the first of the slots, those of a key's tag, if it has this key, as
    /// for nearly every key that is here. `None`: another slot or bucket may have it.
    #[inline(always)]
    pub(super) fn first_value(&self, slots: Slots, key: &K) -> Option<u32> {
        let slot = std::num::NonZero::new(u32::from(slots.0))?.trailing_zeros() as usize;
        (*self.key(slot) == *key).then(|| self.value(slot))
    }

    #[inline(always)]
    pub(super) fn find(&self, tag: u8, key: &K) -> Option<usize> {
        self.matching(tag).find(|slot| *self.key(*slot) == *key)
    }

    /// Returns whether a key with this counter may be in its second bucket.
    #[inline(always)]
    pub(super) fn overflowed(&self, counter: u32) -> bool {
        self.tags >> (56 + counter) & 1 != 0
    }

    /// The four counters, three bits each, which lie above the flags and in a byte of their own.
    fn overflow(&self) -> u16 {
        (self.tags >> 60) as u16 | u16::from(self.counters) << 4
    }

    /// Stores the counters, and for each a flag whether it is 0, which lookups read.
    fn set_overflow(&mut self, overflow: u16) {
        let flags = (0..4)
            .filter(|i| overflow >> (3 * i) & COUNT_MAX != 0)
            .map(|i| 1u64 << i);
        let low = flags.sum::<u64>() | u64::from(overflow & 15) << 4;
        self.tags = self.tags & TAGS | low << 56;
        self.counters = (overflow >> 4) as u8;
    }

    /// Counts a key that went to its second bucket. A counter at its end stays there: it then
    /// costs a look at a second bucket, and never hides a key.
    pub(super) fn count_overflow(&mut self, counter: u32) {
        let overflow = self.overflow();
        if overflow >> (3 * counter) & COUNT_MAX != COUNT_MAX {
            self.set_overflow(overflow + (1 << (3 * counter)));
        }
    }

    pub(super) fn uncount_overflow(&mut self, counter: u32) {
        let overflow = self.overflow();
        if !matches!(overflow >> (3 * counter) & COUNT_MAX, 0 | COUNT_MAX) {
            self.set_overflow(overflow - (1 << (3 * counter)));
        }
    }

    /// Places of the slots' keys and numbers in a bucket. Slot 7 is none and has those of slot 6.
    const KEYS_AT: [u16; SLOTS + 1] = places(
        offset_of!(Self, near_keys),
        NEAR,
        offset_of!(Self, far_keys),
        size_of::<K>(),
    );
    const VALUES_AT: [u16; SLOTS + 1] = places(
        offset_of!(Self, near_values),
        NEAR_VALUES,
        offset_of!(Self, far_values),
        size_of::<u32>(),
    );

    /// Returns the key of a slot. Which line it lies in is no branch: that of a hit is at random.
    #[inline(always)]
    pub(super) fn key(&self, slot: usize) -> &K {
        let at = usize::from(Self::KEYS_AT[slot & SLOTS]);
        // SAFETY: each place in the table is that of a key in this bucket.
        unsafe { &*std::ptr::from_ref(self).byte_add(at).cast::<K>() }
    }

    /// Returns the number of a slot.
    #[inline(always)]
    pub(super) fn value(&self, slot: usize) -> u32 {
        let at = usize::from(Self::VALUES_AT[slot & SLOTS]);
        // SAFETY: each place in the table is that of a number in this bucket, which is aligned.
        unsafe { *std::ptr::from_ref(self).byte_add(at).cast::<u32>() }
    }

    /// Begins to load the line with the last keys.
    #[inline(always)]
    pub(super) fn prefetch_keys(&self) {
        prefetch(&self.far_keys[SLOTS - NEAR - 1]);
    }

    #[inline(always)]
    pub(super) fn put(&mut self, slot: usize, tag: u8, key: K, value: u32) {
        *if slot < NEAR {
            &mut self.near_keys[slot]
        } else {
            &mut self.far_keys[slot - NEAR]
        } = key;
        *if slot < NEAR_VALUES {
            &mut self.near_values[slot]
        } else {
            &mut self.far_values[slot - NEAR_VALUES]
        } = value;
        self.tags |= u64::from(tag) << (8 * slot);
    }

    #[inline(always)]
    pub(super) fn clear(&mut self, slot: usize) {
        self.tags &= !(255 << (8 * slot));
    }

    #[inline(always)]
    pub(super) fn tag(&self, slot: usize) -> u8 {
        (self.tags >> (8 * slot)) as u8
    }
}

/// Places of elements of which `near` lie one after the other from one place on, and the others
/// from another.
const fn places(from: usize, near: usize, far_from: usize, bytes: usize) -> [u16; SLOTS + 1] {
    let mut places = [0; SLOTS + 1];
    let mut slot = 0;
    while slot <= SLOTS {
        let last = if slot < SLOTS { slot } else { SLOTS - 1 };
        let place = if last < near {
            from + last * bytes
        } else {
            far_from + (last - near) * bytes
        };
        places[slot] = place as u16;
        slot += 1;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pages, V4, V6};

    fn zeroed() -> Bucket<V4> {
        let key = V4::from_bytes([0; 13]);
        Bucket {
            tags: 0,
            near_values: [0; NEAR_VALUES],
            near_keys: [key; NEAR],
            counters: 0,
            far_values: [0; SLOTS - NEAR_VALUES],
            far_keys: [key; SLOTS - NEAR],
        }
    }

    #[test]
    fn exactly_the_equal_tags_match() {
        for tag in 1..=255u8 {
            let mut bucket = zeroed();
            let tags = [
                tag,
                tag ^ 1,
                tag,
                tag ^ 0x80,
                255 - tag,
                tag,
                tag.wrapping_add(1),
            ];
            for (slot, tag) in tags.into_iter().enumerate() {
                bucket.put(slot, tag, V4::from_bytes([slot as u8; 13]), slot as u32);
            }
            for counter in 0..4 {
                bucket.count_overflow(counter);
            }
            assert_eq!(
                equal_tags(bucket.tags, tag),
                equal_tags_in_a_word(bucket.tags, tag)
            );
            let expected: Vec<_> = (0..SLOTS).filter(|slot| tags[*slot] == tag).collect();
            assert_eq!(bucket.matching(tag).collect::<Vec<_>>(), expected);
            let free: Vec<_> = (0..SLOTS).filter(|slot| tags[*slot] == 0).collect();
            assert_eq!(bucket.free().collect::<Vec<_>>(), free);
        }
    }

    /// Places in a bucket of both kinds of keys.
    #[test]
    fn each_slot_has_its_key_and_number() {
        let mut bucket = zeroed();
        let mut wide = Pages::<Bucket<V6>>::new(1).expect("memory");
        for slot in 0..SLOTS {
            let byte = slot as u8 + 1;
            bucket.put(slot, byte, V4::from_bytes([byte; 13]), slot as u32);
            let address = std::net::Ipv6Addr::from([byte; 16]);
            let key = V6::new((address, 1), (address, 2), byte);
            wide[0].put(slot, byte, key, slot as u32);
        }
        for slot in 0..SLOTS {
            let byte = slot as u8 + 1;
            assert_eq!(*bucket.key(slot), V4::from_bytes([byte; 13]));
            assert_eq!(wide[0].key(slot).bytes()[36], byte);
            let values = [bucket.value(slot), wide[0].value(slot)];
            assert_eq!(values, [slot as u32; 2]);
            let slots = bucket.matching(byte);
            let found = bucket.first_value(slots, &V4::from_bytes([byte; 13]));
            assert_eq!(found, Some(slot as u32));
        }
    }

    #[test]
    fn counters_count_apart_and_stop_at_their_end() {
        let mut bucket = zeroed();
        bucket.put(6, 255, V4::from_bytes([1; 13]), 1);
        for counter in 0..4 {
            for _ in 0..=counter {
                bucket.count_overflow(counter);
            }
        }
        for counter in 0..4 {
            for _ in 0..=counter {
                assert!(bucket.overflowed(counter));
                bucket.uncount_overflow(counter);
            }
            assert!(!bucket.overflowed(counter));
        }
        for _ in 0..20 {
            bucket.count_overflow(2);
        }
        bucket.uncount_overflow(2);
        assert!(bucket.overflowed(2) && !bucket.overflowed(3) && !bucket.overflowed(1));
        assert_eq!(bucket.tag(6), 255);
    }
}
