//! A bucket of six entries that one thread changes while others read it.

use super::sync::{AtomicU8, AtomicU32, AtomicU64, Backoff, Ordering, fence};
#[cfg(not(loom))]
use crate::Zeroable;
use crate::prefetch::prefetch;
use crate::{FlowKey, V4, V6};
use Ordering::{Acquire, Relaxed, Release};

pub(super) const SLOTS: usize = 6;
const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW << 7;
const TAGS: u64 = (1 << (8 * SLOTS)) - 1;

/// Keys that a [`super::Concurrent`] table can hold.
pub trait SharedKey: FlowKey + 'static {
    #[doc(hidden)]
    type Slots: Slots<Self>;
}

/// The keys of a bucket, in atomics.
#[doc(hidden)]
pub trait Slots<K>: Send + Sync + Default {
    fn load(&self, slot: usize) -> K;
    fn store(&self, slot: usize, key: &K);
    /// Begins to load a key that does not lie beside the tags.
    fn prefetch(&self, slot: usize);
}

/// Tags of six entries and, above them, the four counters of [`crate::Batched`]; the version is odd
/// during a change.
#[repr(C, align(64))]
pub(super) struct Bucket<K: SharedKey> {
    tags: AtomicU64,
    version: AtomicU32,
    values: [AtomicU32; SLOTS],
    keys: K::Slots,
}

#[cfg(loom)]
impl<K: SharedKey> Default for Bucket<K> {
    fn default() -> Self {
        let values = Default::default();
        let (tags, version, keys) = (AtomicU64::new(0), AtomicU32::new(0), Default::default());
        Bucket {
            tags,
            version,
            values,
            keys,
        }
    }
}

/// IPv4 keys, in one array for each size of atomic, so that 13 bytes occupy 13.
#[derive(Default)]
#[repr(C)]
pub struct SlotsV4 {
    first: [AtomicU64; SLOTS],
    middle: [AtomicU32; SLOTS],
    last: [AtomicU8; SLOTS],
}

/// IPv6 keys, as words of which the last two overlap.
#[derive(Default)]
#[repr(C)]
pub struct SlotsV6([[AtomicU64; 5]; SLOTS]);

// SAFETY: atomics of numbers, which may be zero.
#[cfg(not(loom))]
unsafe impl<K: SharedKey> Zeroable for Bucket<K> {}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket<V4>>() == 128);

impl SharedKey for V4 {
    type Slots = SlotsV4;
}

impl SharedKey for V6 {
    type Slots = SlotsV6;
}

impl Slots<V4> for SlotsV4 {
    #[inline]
    fn load(&self, slot: usize) -> V4 {
        let middle = u64::from(self.middle[slot].load(Relaxed));
        let last = u64::from(self.last[slot].load(Relaxed));
        let first = self.first[slot].load(Relaxed);
        V4::from_words([first, first >> 40 | middle << 24 | last << 56])
    }

    #[inline]
    fn store(&self, slot: usize, key: &V4) {
        let [first, rest] = key.words();
        self.first[slot].store(first, Relaxed);
        self.middle[slot].store((rest >> 24) as u32, Relaxed);
        self.last[slot].store((rest >> 56) as u8, Relaxed);
    }

    /// The bucket's second line, which has a part of each key.
    #[inline(always)]
    fn prefetch(&self, _slot: usize) {
        prefetch(&self.middle);
    }
}

impl Slots<V6> for SlotsV6 {
    #[inline]
    fn load(&self, slot: usize) -> V6 {
        V6::from_words(std::array::from_fn(|word| self.0[slot][word].load(Relaxed)))
    }

    #[inline]
    fn store(&self, slot: usize, key: &V6) {
        for (place, word) in self.0[slot].iter().zip(key.words()) {
            place.store(word, Relaxed);
        }
    }

    #[inline(always)]
    fn prefetch(&self, slot: usize) {
        prefetch(&self.0[slot]);
    }
}

impl<K: SharedKey> Bucket<K> {
    /// Returns the version, unless the bucket is being changed.
    #[inline(always)]
    pub(super) fn version(&self) -> Option<u32> {
        let version = self.version.load(Acquire);
        (version & 1 == 0).then_some(version)
    }

    /// Returns whether all that was read since [`Bucket::version`] belongs together.
    #[inline(always)]
    pub(super) fn is_still(&self, version: u32) -> bool {
        // Orders the reads of entries before this one of the version.
        fence(Acquire);
        self.version.load(Relaxed) == version
    }

    #[inline]
    pub(super) fn lock(&self) {
        let mut backoff = Backoff::default();
        loop {
            let version = self.version.load(Relaxed);
            let odd = version.wrapping_add(1);
            if version & 1 == 0
                && self
                    .version
                    .compare_exchange_weak(version, odd, Acquire, Relaxed)
                    .is_ok()
            {
                break;
            }
            backoff.wait();
        }
        // Orders the odd version before the changes of entries: whoever reads one of these and
        // then the version sees that it changed.
        fence(Release);
    }

    #[inline]
    pub(super) fn unlock(&self) {
        let even = self.version.load(Relaxed).wrapping_add(1);
        self.version.store(even, Release);
    }

    #[inline(always)]
    fn matching(&self, tag: u8) -> u64 {
        let different = self.tags.load(Relaxed) ^ (LOW * u64::from(tag));
        let nonzero = ((different & !HIGH) + !HIGH) | different;
        !nonzero & HIGH & TAGS
    }

    /// Begins to load the first key with this tag. Returns whether there is one.
    #[inline(always)]
    pub(super) fn prefetch_match(&self, tag: u8) -> bool {
        let matches = self.matching(tag);
        if matches != 0 {
            self.keys.prefetch(matches.trailing_zeros() as usize / 8);
        }
        matches != 0
    }

    #[inline(always)]
    pub(super) fn find(&self, tag: u8, key: &K) -> Option<usize> {
        let mut matches = self.matching(tag);
        while matches != 0 {
            let slot = matches.trailing_zeros() as usize / 8;
            if self.keys.load(slot) == *key {
                return Some(slot);
            }
            matches &= matches - 1;
        }
        None
    }

    #[inline(always)]
    pub(super) fn free(&self) -> Option<usize> {
        let free = self.matching(0);
        (free != 0).then(|| free.trailing_zeros() as usize / 8)
    }

    #[inline(always)]
    pub(super) fn value(&self, slot: usize) -> u32 {
        self.values[slot].load(Relaxed)
    }

    pub(super) fn key(&self, slot: usize) -> K {
        self.keys.load(slot)
    }

    pub(super) fn tag(&self, slot: usize) -> u8 {
        (self.tags.load(Relaxed) >> (8 * slot)) as u8
    }

    pub(super) fn count(&self) -> usize {
        SLOTS - self.matching(0).count_ones() as usize
    }

    #[inline(always)]
    pub(super) fn overflowed(&self, counter: u32) -> bool {
        self.tags.load(Relaxed) >> (48 + 4 * counter) & 15 != 0
    }

    /// Adds an entry. The bucket must be locked, as for all changes below.
    pub(super) fn put(&self, slot: usize, tag: u8, key: &K, value: u32) {
        self.keys.store(slot, key);
        self.values[slot].store(value, Relaxed);
        self.tags.store(
            self.tags.load(Relaxed) | u64::from(tag) << (8 * slot),
            Relaxed,
        );
    }

    pub(super) fn clear(&self, slot: usize) {
        self.tags
            .store(self.tags.load(Relaxed) & !(255 << (8 * slot)), Relaxed);
    }

    /// Counts an entry that went to its second bucket; a counter at its end stays there.
    pub(super) fn count_overflow(&self, counter: u32) {
        let (tags, one) = (self.tags.load(Relaxed), 1 << (48 + 4 * counter));
        if tags >> (48 + 4 * counter) & 15 != 15 {
            self.tags.store(tags + one, Relaxed);
        }
    }

    pub(super) fn uncount_overflow(&self, counter: u32) {
        let (tags, one) = (self.tags.load(Relaxed), 1 << (48 + 4 * counter));
        if !matches!(tags >> (48 + 4 * counter) & 15, 0 | 15) {
            self.tags.store(tags - one, Relaxed);
        }
    }
}
