//! A doorbell that several queue pairs ring. A word is taken out when it is seen, so that the next
//! is noticed even if it is the same one, and all queue pairs hear of it.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use parking_lot::Mutex;

use crate::memory::Mapped;

const NO_INDEX: u32 = u32::MAX;

/// Queue pair and index of a doorbell's word.
pub(crate) fn rung_for(word: u64) -> (u32, u16) {
    let bytes = word.to_ne_bytes();
    let qpn = u32::from_be_bytes([0, bytes[4], bytes[5], bytes[6]]);
    (qpn, u16::from_be_bytes([bytes[1], bytes[2]]))
}

/// Common knowledge of the queue pairs of a doorbell. One thread at a time uses it.
#[derive(Debug, Default)]
struct Known {
    /// Count of words that were taken.
    taken: AtomicU64,
    /// The index that each queue pair has not heard yet.
    indices: Mutex<Vec<(u32, Weak<AtomicU32>)>>,
}

impl Known {
    fn note(&self, word: u64) {
        let (qpn, index) = rung_for(word);
        for (of, unheard) in self.indices.lock().iter() {
            if *of == qpn
                && let Some(unheard) = unheard.upgrade()
            {
                unheard.store(index.into(), Ordering::Relaxed);
            }
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
    }
}

/// One queue pair's part in such a doorbell.
#[derive(Debug)]
pub(crate) struct Sharer {
    known: Arc<Known>,
    /// Count of words at its last look.
    heard: u64,
    unheard: Arc<AtomicU32>,
}

impl Sharer {
    /// Begins to share a doorbell with `other`, or with those that come.
    pub(crate) fn new(qpn: u32, other: Option<&Sharer>) -> Sharer {
        let known = other.map_or_else(Arc::default, |other| other.known.clone());
        let unheard = Arc::new(AtomicU32::new(NO_INDEX));
        let mut indices = known.indices.lock();
        indices.retain(|(_, of)| of.strong_count() > 0);
        indices.push((qpn, Arc::downgrade(&unheard)));
        drop(indices);
        // Words that were seen before it came may have been for it.
        let heard = known.taken.load(Ordering::Relaxed).wrapping_sub(1);
        Sharer {
            known,
            heard,
            unheard,
        }
    }

    /// Takes the word that is in the doorbell, if there is one, and lets all know it.
    pub(crate) fn take(&self, doorbell: &Mapped) {
        let word = doorbell.u64(0);
        if word.load(Ordering::Relaxed) != 0 {
            let taken = word.swap(0, Ordering::AcqRel);
            if taken != 0 {
                self.known.note(taken);
            }
        }
    }

    /// Returns true if words were taken that this queue pair has not heard of.
    pub(crate) fn is_behind(&self) -> bool {
        self.known.taken.load(Ordering::Relaxed) != self.heard
    }

    /// Hears of all that was taken. Returns the last index for this queue pair, if there is one.
    pub(crate) fn hear(&mut self) -> Option<u16> {
        self.heard = self.known.taken.load(Ordering::Relaxed);
        let index = self.unheard.swap(NO_INDEX, Ordering::Relaxed);
        (index != NO_INDEX).then_some(index as u16)
    }
}
