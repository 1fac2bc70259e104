//! Pinned memory between messages and the GPU: slots by size, reused when a mark after their copy
//! is reached.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::{Failure, Wait};
use outboard_link::{Granted, Lasting, Segment};
use rustc_hash::FxHashMap;

use super::{
    addresses::Span,
    board::WatchedMark,
    host_memory::{GrantedPart, Pinned, PinnedPart},
    owned::{ContextHold, Mark},
    printed::Due,
    table::real,
};

/// Shortest slot, in bytes; each class of slots is twice as long as the one before.
const SLOT_BYTES_MIN: usize = 4 << 10;
/// Longest slot, in bytes: the longest copy of one message.
pub(super) const SLOT_BYTES_MAX: usize = 16 << 20;
/// Bytes pinned at once for shorter slots, because pinning costs a system call.
const BLOCK_BYTES: usize = 4 << 20;
/// Pinned bytes above which a copy waits for free slots.
const STAGING_BYTES_SOFT_MAX: usize = 256 << 20;
/// How long a copy waits for them. The stream may itself wait for a later message, so the wait is
/// bounded.
const STAGING_WAIT_MS_MAX: u64 = 500;
/// Pinned bytes that the client's adapter may write, at most; beyond, its data comes through the
/// link's ring.
const GRANTED_BYTES_MAX: usize = STAGING_BYTES_SOFT_MAX / 2;
/// Pinned bytes of a session at most, beside those.
const STAGING_BYTES_MAX: usize = 4 << 30;
const CLASSES: usize = (SLOT_BYTES_MAX / SLOT_BYTES_MIN).trailing_zeros() as usize + 1;

/// Returns the class of slots that hold `len` bytes.
fn class(len: usize) -> Option<usize> {
    let size = len.max(SLOT_BYTES_MIN).checked_next_power_of_two()?;
    let class = (size / SLOT_BYTES_MIN).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn class_bytes(class: usize) -> usize {
    SLOT_BYTES_MIN << class
}

pub(super) struct Staging {
    this: Weak<Staging>,
    hold: Arc<ContextHold>,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    free: [Vec<PinnedPart>; CLASSES],
    /// Slots with the marks after their copies, by stream, in the stream's order.
    busy: FxHashMap<real::Stream, VecDeque<(Mark, Filled)>>,
    bytes: usize,
    /// Memory of one length that the client's adapter may write. It is used for nothing else.
    granted: Vec<GrantedPart>,
    granted_bytes: usize,
}

impl Slots {
    fn put(&mut self, part: PinnedPart) {
        if let Some(class) = class(part.len()) {
            self.free[class].push(part);
        }
    }

    /// Takes back slots that the GPU no longer uses.
    fn reap(&mut self) {
        let (free, granted) = (&mut self.free, &mut self.granted);
        self.busy.retain(|_, queue| {
            // After a fault of the GPU nothing runs any more.
            while queue
                .front()
                .is_some_and(|(mark, _)| mark.reached().unwrap_or(true))
            {
                // If someone else still holds the slot, dropping it there returns it.
                match queue.pop_front() {
                    Some((_, Filled::Slot(slot))) => {
                        if let Some(mut slot) = Arc::into_inner(slot)
                            && let Some(part) = slot.part.take()
                            && let Some(class) = class(part.len())
                        {
                            free[class].push(part);
                        }
                    }
                    Some((_, Filled::Granted(slot))) => {
                        let part = Arc::into_inner(slot).and_then(|mut slot| slot.part.take());
                        granted.extend(part);
                    }
                    None => {}
                }
            }
            !queue.is_empty()
        });
    }
}

impl Staging {
    pub(super) fn new(base: &Arc<ContextHold>) -> Arc<Staging> {
        Arc::new_cyclic(|this| Staging {
            this: this.clone(),
            hold: base.clone(),
            slots: Mutex::new(Slots::default()),
        })
    }

    /// Returns a slot of `len` bytes; `patient` says whether the call may wait for one.
    ///
    /// Returns `None` if memory must be pinned first, which [`Staging::grow`] does in the base
    /// context.
    pub(super) fn take(&self, len: usize, patient: bool) -> Result<Option<Slot>, Failure> {
        let class = class(len).ok_or_else(|| too_long(len))?;
        let start = Instant::now();
        loop {
            let mut slots = self.slots();
            if slots.free[class].is_empty() {
                slots.reap();
            }
            if let Some(part) = slots.free[class].pop() {
                return Ok(Some(self.slot(part, len)));
            }
            let waited = start.elapsed() > Duration::from_millis(STAGING_WAIT_MS_MAX);
            if slots.bytes < STAGING_BYTES_SOFT_MAX || !patient || waited || slots.busy.is_empty() {
                return Ok(None);
            }
            drop(slots);
            std::hint::spin_loop();
        }
    }

    /// Whether more may be pinned for data that could also be received elsewhere.
    pub(super) fn may_grow(&self) -> bool {
        self.slots().bytes < STAGING_BYTES_SOFT_MAX
    }

    /// Pins more memory, and returns a slot of it. The base context must be current.
    pub(super) fn grow(&self, len: usize) -> Result<Slot, Failure> {
        let class = class(len).ok_or_else(|| too_long(len))?;
        let bytes = class_bytes(class).max(BLOCK_BYTES);
        if self.slots().bytes + bytes > STAGING_BYTES_MAX {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_OUT_OF_MEMORY,
                format!("more than {STAGING_BYTES_MAX} bytes of copies under way"),
            ));
        }
        let mut parts = Pinned::new(&self.hold, bytes)?.split(class_bytes(class));
        let mut slots = self.slots();
        slots.bytes += bytes;
        let part = parts.pop().ok_or_else(|| too_long(len))?;
        parts.into_iter().for_each(|part| slots.put(part));
        Ok(self.slot(part, len))
    }

    /// Returns memory that the client's adapter may write, if some is free.
    pub(super) fn take_granted(&self, len: usize) -> Option<GrantedSlot> {
        let mut slots = self.slots();
        if slots.granted.is_empty() {
            slots.reap();
        }
        let part = slots.granted.pop_if(|part| part.len() >= len)?;
        Some(self.granted_slot(part, len))
    }

    /// True if more memory may be pinned for the client's adapter.
    pub(super) fn may_grow_granted(&self) -> bool {
        self.slots().granted_bytes < GRANTED_BYTES_MAX
    }

    /// Pins more memory that the client's adapter may write, and returns some of it. The base
    /// context must be current.
    pub(super) fn grow_granted(&self, len: usize) -> Result<GrantedSlot, Failure> {
        let len_each = class_bytes(class(len).ok_or_else(|| too_long(len))?);
        let bytes = len_each.max(BLOCK_BYTES);
        let mut parts = Pinned::new(&self.hold, bytes)?.split_for_grants(len_each);
        let part = parts.pop().ok_or_else(|| too_long(len))?;
        let mut slots = self.slots();
        slots.granted_bytes += bytes;
        slots.granted.extend(parts);
        Ok(self.granted_slot(part, len))
    }

    /// Keeps a slot until the mark after its copy is reached.
    pub(super) fn put_busy(&self, stream: real::Stream, mark: Mark, slot: Filled) {
        self.slots()
            .busy
            .entry(stream)
            .or_default()
            .push_back((mark, slot));
    }

    fn slot(&self, part: PinnedPart, len: usize) -> Slot {
        Slot {
            staging: self.this.clone(),
            part: Some(part),
            len,
        }
    }

    fn granted_slot(&self, part: GrantedPart, len: usize) -> GrantedSlot {
        GrantedSlot {
            staging: self.this.clone(),
            part: Some(part),
            len,
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pinned memory for one copy; returns to its pool when dropped.
pub(super) struct Slot {
    staging: Weak<Staging>,
    /// Present until dropped.
    part: Option<PinnedPart>,
    len: usize,
}

/// Pinned memory that the client's adapter may write; returns to its pool when dropped.
pub(super) struct GrantedSlot {
    staging: Weak<Staging>,
    /// Present until dropped.
    part: Option<GrantedPart>,
    len: usize,
}

/// Pinned memory with the data of a copy.
pub(super) enum Filled {
    Slot(Arc<Slot>),
    Granted(Arc<GrantedSlot>),
}

impl Filled {
    /// Returns a span for the driver's copies. Never fails, because a slot has its memory until it
    /// is dropped.
    pub(super) fn span(&self) -> Result<Span, Failure> {
        let span = match self {
            Filled::Slot(slot) => slot.part.as_ref().map(|part| part.span(slot.len)),
            Filled::Granted(slot) => slot.part.as_ref().map(|part| part.span(slot.len)),
        };
        span.ok_or_else(|| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, "a slot without memory"))
    }
}

impl Slot {
    /// Returns the memory for adapters.
    fn lasting(&self) -> Option<Lasting> {
        self.part.as_ref().map(PinnedPart::lasting)
    }
}

/// A slot receives data directly, which then needs no other copy.
impl Segment for Slot {
    fn room(&mut self) -> &mut [u8] {
        let len = self.len;
        self.part
            .as_mut()
            .map_or(&mut [], |part| part.bytes_mut(len))
    }

    fn bytes(&self) -> &[u8] {
        self.part.as_ref().map_or(&[], |part| part.bytes(self.len))
    }
}

impl Granted for GrantedSlot {
    fn lasting(&self) -> Option<Lasting> {
        self.part.as_ref().map(GrantedPart::lasting)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    fn copied(&self) -> Vec<u8> {
        let part = self.part.as_ref();
        part.map_or_else(Vec::new, |part| part.copied(self.len))
    }
}

impl Drop for GrantedSlot {
    fn drop(&mut self) {
        if let Some(part) = self.part.take()
            && let Some(staging) = self.staging.upgrade()
        {
            staging.slots().granted.push(part);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(part) = self.part.take()
            && let Some(staging) = self.staging.upgrade()
        {
            staging.slots().put(part);
        }
    }
}

fn too_long(len: usize) -> Failure {
    Failure::new(
        CUresult::CUDA_ERROR_INVALID_VALUE,
        format!("a copy of {len} bytes in one message; at most {SLOT_BYTES_MAX} are taken"),
    )
}

/// Waits for a copy to the client. Ready when the slot is filled; the slot is freed after the reply
/// was sent.
pub(super) struct SlotWait {
    pub(super) staging: Arc<Staging>,
    pub(super) stream: real::Stream,
    /// Text that kernels may have printed before.
    pub(super) printed: Option<Due>,
    /// Present until dropped.
    pub(super) copy: Option<(WatchedMark, Arc<Slot>)>,
}

impl Wait for SlotWait {
    fn ready(&mut self) -> Result<bool, Failure> {
        match &self.copy {
            Some((mark, _)) if !mark.reached()? => Ok(false),
            Some((mark, _)) => {
                if let Some(due) = self.printed.take() {
                    mark.mark().synchronize()?;
                    due.done();
                }
                Ok(true)
            }
            None => Ok(true),
        }
    }

    fn data(&self) -> Option<&[u8]> {
        self.copy.as_ref().map(|(_, slot)| slot.bytes())
    }

    fn lasting(&self) -> Option<Lasting> {
        self.copy.as_ref().and_then(|(_, slot)| slot.lasting())
    }
}

impl Drop for SlotWait {
    fn drop(&mut self) {
        if let Some((mark, slot)) = self.copy.take() {
            // A client that has left may drop the wait before its copy is done.
            self.staging
                .put_busy(self.stream, mark.into_mark(), Filled::Slot(slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_are_asked_for() {
        for len in [0, 1, 4096, 4097, 1 << 20, (1 << 20) + 1, SLOT_BYTES_MAX] {
            let class = class(len).expect("fits");
            assert!(class_bytes(class) >= len, "{len}");
            assert!(class_bytes(class) < 2 * len.max(SLOT_BYTES_MIN), "{len}");
        }
        assert_eq!(class(SLOT_BYTES_MAX), Some(CLASSES - 1));
        assert_eq!(class(SLOT_BYTES_MAX + 1), None);
        assert_eq!(class(usize::MAX), None);
    }
}
