//! The responding half of a queue pair.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use crate::{completions::check, distant::Registered, error::Error, memory::Mapped, wqe::Segment};

/// Entries of a ring: indices of 16 bits must tell a full one from an empty one.
pub(super) const LOG_MAX: u32 = 15;
/// Bytes of a receive: one data segment.
pub const RECEIVE_BYTES: usize = 16;
/// The local key of a receive without memory, as rdma-core writes it: of length 0, not of 2 GiB.
const NO_MEMORY: u32 = 0x100;
/// Results of atomics that are kept, for requests that arrive twice. A requester has fewer pending.
const RESULTS_MAX: usize = 64;

/// Receives that several queue pairs take from, in the order in which they were posted.
#[derive(Debug)]
pub struct SharedReceives {
    ring: Mapped,
    log: u32,
    posted: AtomicU16,
    consumer: AtomicU16,
}

impl SharedReceives {
    /// Takes a ring of 2^`log` receives.
    pub fn new(ring: Mapped, log: u32) -> Result<SharedReceives, Error> {
        check_receives(&ring, log)?;
        Ok(SharedReceives {
            ring,
            log,
            posted: AtomicU16::new(0),
            consumer: AtomicU16::new(0),
        })
    }

    /// Gives the receives before this index to the adapter, whose bytes are written.
    pub fn post(&self, next: u16) {
        self.posted.store(next, Ordering::Release);
    }
}

#[derive(Debug)]
pub(crate) struct Receiver {
    ring: Option<(Mapped, u32)>,
    record: Registered,
    consumer: u16,
    /// Replaces the ring.
    pub(super) shared: Option<Arc<SharedReceives>>,
    /// Sequence number of the next request.
    pub(super) expected: u64,
    results: VecDeque<(u64, u64)>,
}

impl Receiver {
    pub(crate) fn new(ring: Option<(Mapped, u32)>, record: Registered) -> Receiver {
        Receiver {
            ring,
            record,
            consumer: 0,
            shared: None,
            expected: 0,
            results: VecDeque::new(),
        }
    }

    /// Returns the index of the next receive that is posted, and its memory, if it has any.
    pub(crate) fn next(&self) -> Option<(u16, Option<Segment>)> {
        let (ring, log, posted, consumer) = match &self.shared {
            Some(shared) => {
                let posted = shared.posted.load(Ordering::Acquire);
                let consumer = shared.consumer.load(Ordering::Relaxed);
                (&shared.ring, &shared.log, posted, consumer)
            }
            None => {
                let (ring, log) = self.ring.as_ref()?;
                let posted = self.record.announced(0).ok()? as u16;
                (ring, log, posted, self.consumer)
            }
        };
        let count = posted.wrapping_sub(consumer);
        if count == 0 || u32::from(count) > 1 << log {
            return None;
        }
        let mut bytes = [0; RECEIVE_BYTES];
        let slot = usize::from(consumer) & ((1 << log) - 1);
        ring.read(slot * RECEIVE_BYTES, &mut bytes);
        let word = |at: usize| {
            bytes[at..at + 4]
                .iter()
                .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
        };
        let segment = Segment {
            length: word(0),
            lkey: word(4),
            address: u64::from(word(8)) << 32 | u64::from(word(12)),
        };
        let is_empty = (segment.length, segment.lkey) == (0, NO_MEMORY);
        Some((consumer, (!is_empty).then_some(segment)))
    }

    pub(crate) fn take(&mut self) {
        match &self.shared {
            // Wraps around. The adapter alone changes it, and is locked.
            Some(shared) => drop(shared.consumer.fetch_add(1, Ordering::Relaxed)),
            None => self.consumer = self.consumer.wrapping_add(1),
        }
    }

    /// Takes back the last receives that were taken: nothing of theirs has completed.
    pub(crate) fn give_back(&mut self, count: usize) {
        match &self.shared {
            Some(shared) => drop(shared.consumer.fetch_sub(count as u16, Ordering::Relaxed)),
            None => self.consumer = self.consumer.wrapping_sub(count as u16),
        }
    }

    pub(super) fn keep(&mut self, sequence: u64, result: u64) {
        if self.results.len() == RESULTS_MAX {
            self.results.pop_front();
        }
        self.results.push_back((sequence, result));
    }

    pub(super) fn kept(&self, sequence: u64) -> Option<u64> {
        self.results
            .iter()
            .find(|(of, _)| *of == sequence)
            .map(|(_, result)| *result)
    }
}

/// Checks the memory of a ring of receives.
pub(super) fn check_receives(ring: &Mapped, log: u32) -> Result<(), Error> {
    if log > LOG_MAX {
        return Err(Error::Size {
            what: "receive queue",
            log_min: 0,
            log_max: LOG_MAX,
            given: log,
        });
    }
    let (what, bytes) = ("a receive queue", RECEIVE_BYTES << log);
    check(ring, what, bytes, RECEIVE_BYTES)
}
