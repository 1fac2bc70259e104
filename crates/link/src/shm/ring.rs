//! A ring between one producer and one consumer: positions, and sleeping until the other side
//! moves.
//!
//! This file does not know the bytes, nor where the control words are, so that `tests/loom.rs` runs
//! exactly this code. Positions count bytes since the start and never wrap in practice (2^64
//! bytes); they are multiples of [`ALIGN`]. Each side keeps its own position and only publishes it,
//! so that nothing the peer writes into shared memory can move it; positions read from the peer are
//! checked before use.
//!
//! No wake-up is lost: the sleeper writes `parked`, then reads the other's position; the other
//! writes its position, then reads `parked`; a sequentially consistent fence between the two steps
//! on both sides means that at least one of them sees the other's write.

use std::{ops::Deref, time::Duration};

use crate::{
    Error,
    sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, Word, fence},
};

/// Positions are multiples of this, so that every frame starts at a multiple of it.
pub const ALIGN: u64 = 8;

/// The control words of one ring, in memory that both processes map. The words of the two sides are
/// two cache lines apart, since processors prefetch them in pairs.
#[cfg_attr(not(loom), repr(C))]
pub struct Control {
    produced: Side,
    consumed: Side,
}

/// Words that one side publishes, and the word that it sleeps on.
#[cfg_attr(not(loom), repr(C, align(128)))]
struct Side {
    /// Bytes produced, or consumed, so far.
    position: AtomicU64,
    /// Not 0 once this side is finished: it adds, or takes, no more frames.
    closed: AtomicU32,
    /// 1 while this side sleeps or is about to.
    parked: Word,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Control>() == 256);
    assert!(std::mem::offset_of!(Control, consumed) == 128);
    assert!(std::mem::offset_of!(Side, position) == 0);
    assert!(std::mem::offset_of!(Side, closed) == 8);
    assert!(std::mem::offset_of!(Side, parked) == 12);
};

impl Side {
    #[inline(always)]
    fn wake(&self) {
        fence(Ordering::SeqCst);
        // The load keeps the common case free of a write to the sleeper's cache line.
        if self.parked.0.load(Ordering::Relaxed) != 0
            && self.parked.0.swap(0, Ordering::Relaxed) != 0
        {
            self.parked.wake();
        }
    }

    /// Sleeps unless `ready`, until woken or until `timeout`.
    fn park(&self, ready: impl FnOnce() -> bool, timeout: Option<Duration>) {
        // Swaps, not stores: all threads agree on one order of read-modify-writes, in loom too.
        self.parked.0.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            self.parked.sleep(1, timeout);
        }
        self.parked.0.swap(0, Ordering::Relaxed);
    }
}

impl Control {
    /// Wakes a sleeping consumer, to look at its interrupt flag. For any thread of the consumer's
    /// process.
    pub fn wake_consumer(&self) {
        self.consumed.wake();
    }

    /// Wakes a sleeping producer, to look at its interrupt flag. For any thread of the producer's
    /// process.
    pub fn wake_producer(&self) {
        self.produced.wake();
    }

    /// Marks the ring as finished by the producer. For any thread of the producer's process.
    pub fn close_producer(&self) {
        self.produced.closed.store(1, Ordering::Release);
        self.consumed.wake();
    }

    /// Marks the ring as finished by the consumer. For any thread of the consumer's process.
    pub fn close_consumer(&self) {
        self.consumed.closed.store(1, Ordering::Release);
        self.produced.wake();
    }
}

#[cfg(loom)]
impl Control {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let side = || Side {
            position: AtomicU64::new(0),
            closed: AtomicU32::new(0),
            parked: Word::new(0),
        };
        Self {
            produced: side(),
            consumed: side(),
        }
    }
}

/// A request, from another thread of this process, that a blocked producer or consumer return.
pub struct Interrupt(AtomicBool);

impl Interrupt {
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Raises the request. The caller then wakes the sleeping side.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub fn take(&self) -> bool {
        // The load keeps the common case cheap.
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Acquire)
    }
}

/// The only one that adds frames to a ring.
pub struct Producer<C> {
    control: C,
    capacity: u64,
    position: u64,
    consumed_seen: u64,
}

impl<C: Deref<Target = Control>> Producer<C> {
    /// Makes a producer. `capacity` is in bytes, a multiple of [`ALIGN`]; the control words must be
    /// fresh.
    pub fn new(control: C, capacity: u64) -> Self {
        Self {
            control,
            capacity,
            position: 0,
            consumed_seen: 0,
        }
    }

    /// Position of the next bytes; their offset is the position modulo the capacity.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns true if `bytes` more fit.
    #[inline(always)]
    pub fn has_room(&mut self, bytes: u64) -> Result<bool, Error> {
        if self.capacity - (self.position - self.consumed_seen) >= bytes {
            return Ok(true);
        }
        let consumed = self.control.consumed.position.load(Ordering::Acquire);
        check_position(consumed, self.consumed_seen, self.position)?;
        self.consumed_seen = consumed;
        Ok(self.capacity - (self.position - consumed) >= bytes)
    }

    /// Makes the next `bytes`, a multiple of [`ALIGN`] for which there is room, visible to the
    /// consumer.
    #[inline(always)]
    pub fn publish(&mut self, bytes: u64) {
        self.position += bytes;
        let produced = &self.control.produced.position;
        produced.store(self.position, Ordering::Release);
        self.control.consumed.wake();
    }

    /// Returns true if the consumer has given room back since the last look; for busy waiting.
    pub fn has_news(&self) -> bool {
        self.control.consumed.position.load(Ordering::Relaxed) != self.consumed_seen
    }

    /// Returns true if the consumer takes no more.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.control.consumed.closed.load(Ordering::Acquire) != 0
    }

    /// Sleeps until the consumer makes progress, closes, or `interrupt` is raised; may wake without
    /// a reason.
    pub fn sleep(&self, interrupt: &Interrupt, timeout: Option<Duration>) {
        let ready = || self.has_news() || self.is_refused() || interrupt.is_raised();
        self.control.produced.park(ready, timeout);
    }

    /// Adds no more.
    pub fn close(&self) {
        self.control.close_producer();
    }
}

/// The only one that takes frames from a ring.
pub struct Consumer<C> {
    control: C,
    capacity: u64,
    position: u64,
    position_told: u64,
    produced_seen: u64,
}

impl<C: Deref<Target = Control>> Consumer<C> {
    /// Makes a consumer. `capacity` is in bytes, a multiple of [`ALIGN`]; only the producer may
    /// have changed the control words.
    pub fn new(control: C, capacity: u64) -> Self {
        Self {
            control,
            capacity,
            position: 0,
            position_told: 0,
            produced_seen: 0,
        }
    }

    /// Position of the next bytes; their offset is the position modulo the capacity.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Number of bytes that can be taken; looks for new ones only if there are none.
    #[inline]
    pub fn available(&mut self) -> Result<u64, Error> {
        if self.produced_seen == self.position {
            let produced = self.control.produced.position.load(Ordering::Acquire);
            let newest_possible = self.position_told.wrapping_add(self.capacity);
            check_position(produced, self.produced_seen, newest_possible)?;
            self.produced_seen = produced;
        }
        Ok(self.produced_seen - self.position)
    }

    /// Takes `bytes` of those available. The producer gets the room back once per eighth of the
    /// ring, or when the ring is found empty, so that the two do not contend for a cache line at
    /// every frame.
    #[inline]
    pub fn take(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.produced_seen - self.position);
        self.position += bytes;
        if self.position - self.position_told >= self.capacity / 8 {
            self.give_back();
        }
    }

    /// Gives all free room back to the producer. Called before waiting.
    pub fn give_back(&mut self) {
        if self.position_told != self.position {
            self.position_told = self.position;
            let consumed = &self.control.consumed.position;
            consumed.store(self.position, Ordering::Release);
            self.control.produced.wake();
        }
    }

    /// Returns true if the producer has added something since the last look; for busy waiting.
    pub fn has_news(&self) -> bool {
        self.control.produced.position.load(Ordering::Relaxed) != self.produced_seen
    }

    /// Returns true if the producer closed the ring. Bytes that it added before can still be taken:
    /// look for them after this call.
    pub fn is_finished(&self) -> bool {
        self.control.produced.closed.load(Ordering::Acquire) != 0
    }

    /// Sleeps until there is something to take, the producer closes, or `interrupt` is raised; may
    /// wake without a reason.
    pub fn sleep(&self, interrupt: &Interrupt, timeout: Option<Duration>) {
        let ready = || self.has_news() || self.is_finished() || interrupt.is_raised();
        self.control.consumed.park(ready, timeout);
    }

    /// Takes no more.
    pub fn close(&self) {
        self.control.close_consumer();
    }
}

/// Checks that a position read from shared memory is between the last one seen and the furthest
/// that the rules allow.
#[inline]
fn check_position(position: u64, seen: u64, furthest: u64) -> Result<(), Error> {
    let moved = position.wrapping_sub(seen);
    let allowed = furthest.wrapping_sub(seen);
    if moved > allowed {
        return Err(Error::PeerMisbehaved {
            what: "a ring position that cannot be",
            got: position,
            allowed: furthest,
        });
    }
    if !moved.is_multiple_of(ALIGN) {
        return Err(Error::PeerMisbehaved {
            what: "a ring position that is not aligned",
            got: position,
            allowed: position & !(ALIGN - 1),
        });
    }
    Ok(())
}
