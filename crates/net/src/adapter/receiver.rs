//! The responding half of a queue pair.

use std::{collections::VecDeque, sync::atomic::Ordering};

use crate::{memory::Mapped, wqe::Segment};

/// Bytes of a receive: one data segment.
pub const RECEIVE_BYTES: usize = 16;
/// The local key of a receive without memory, as rdma-core writes it: of length 0, not of 2 GiB.
const NO_MEMORY: u32 = 0x100;
/// Results of atomics that are kept, for requests that arrive twice. A requester has fewer pending.
const RESULTS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Receiver {
    ring: Option<(Mapped, u32)>,
    record: Mapped,
    consumer: u16,
    /// Sequence number of the next request.
    pub(super) expected: u64,
    results: VecDeque<(u64, u64)>,
}

impl Receiver {
    pub(super) fn new(ring: Option<(Mapped, u32)>, record: Mapped) -> Receiver {
        Receiver {
            ring,
            record,
            consumer: 0,
            expected: 0,
            results: VecDeque::new(),
        }
    }

    /// Returns the index of the next receive that is posted, and its memory, if it has any.
    pub(super) fn next(&self) -> Option<(u16, Option<Segment>)> {
        let (ring, log) = self.ring.as_ref()?;
        let posted = u32::from_be(self.record.u32(0).load(Ordering::Acquire)) as u16;
        let count = posted.wrapping_sub(self.consumer);
        if count == 0 || u32::from(count) > 1 << log {
            return None;
        }
        let mut bytes = [0; RECEIVE_BYTES];
        let slot = usize::from(self.consumer) & ((1 << log) - 1);
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
        Some((self.consumer, (!is_empty).then_some(segment)))
    }

    pub(super) fn take(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
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
