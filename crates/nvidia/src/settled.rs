//! Synchronous copies for which the client did not wait: work sent later, to any stream of any
//! context, runs after them.
//!
//! ```text
//!  default stream   kernel ── copy (sync) ── mark
//!                                             └────────┐ cuStreamWaitEvent, before its next work
//!  another stream   kernel of before ──────────────────┴─ kernel sent later
//! ```
//!
//! Each such copy has a number, and a mark after it. A stream remembers the number of the last copy
//! that it has waited for, so its work costs one comparison while there is no new copy. Order that
//! the driver keeps by itself needs no wait: that of one stream, and that between the default
//! stream and the blocking streams of one context.

use super::{
    Nvidia,
    owned::Mark,
    streams::{STREAM_LEGACY, STREAM_NULL},
    table::real,
};
use outboard_device::Failure;

/// Marks above which reached ones are removed whenever another stream gets one.
const MARKS_MAX: usize = 8;

#[derive(Default)]
pub(super) struct Settled {
    /// Number of the last synchronous copy; 0 before the first.
    pub(super) number: u64,
    /// The last copy of each stream, which covers those before it.
    copies: Vec<Copied>,
}

struct Copied {
    number: u64,
    place: StreamIdentity,
    mark: Mark,
}

/// A stream's identity as far as its order with other streams is concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StreamIdentity {
    context: real::Context,
    /// The session's number of the stream.
    stream: u64,
    is_blocking: bool,
}

impl StreamIdentity {
    fn is_default(self) -> bool {
        self.stream == STREAM_NULL
    }

    /// Whether the driver orders later work of this stream after earlier work of the other.
    fn follows(self, other: StreamIdentity) -> bool {
        let waits =
            self.is_default() && other.is_blocking || self.is_blocking && other.is_default();
        self == other || waits && self.context == other.context
    }
}

impl Settled {
    /// Removes the copies of a context that ends.
    pub(super) fn forget_context(&mut self, context: real::Context) {
        self.copies.retain(|copied| copied.place.context != context);
    }
}

impl Nvidia {
    /// Makes all later work wait for what was submitted to this stream, if `sync` is set.
    pub(super) fn settle_copy(&mut self, stream_id: u64, sync: u32) -> Result<(), Failure> {
        if sync == 0 {
            return Ok(());
        }
        let stream = self.peek_stream(stream_id)?;
        if self.capturing(stream)? {
            return Ok(());
        }
        let place = self.place(stream_id)?;
        let mark = self.stream_hold(stream_id)?.mark(stream)?;
        let copies = &mut self.settled.copies;
        copies.retain(|copied| copied.place != place);
        if copies.len() >= MARKS_MAX {
            copies.retain(|copied| !copied.mark.reached().unwrap_or(true));
        }
        self.settled.number += 1;
        let number = self.settled.number;
        self.settled.copies.push(Copied {
            number,
            place,
            mark,
        });
        Ok(())
    }

    /// Makes a stream wait for the copies that it has not waited for yet.
    #[cold]
    pub(super) fn follow(&mut self, stream_id: u64) -> Result<(), Failure> {
        let stream = self.peek_stream(stream_id)?;
        // Captured work runs later, when the graph is launched.
        if self.capturing(stream).unwrap_or(true) {
            return Ok(());
        }
        let place = self.place(stream_id)?;
        let seen = *self.seen(stream_id)?;
        let mut waited = Ok(());
        self.settled.copies.retain(|copied| {
            if copied.number <= seen || place.follows(copied.place) {
                return true;
            }
            // After a fault of the GPU nothing runs any more.
            let is_done = copied.mark.reached().unwrap_or(true);
            if !is_done && waited.is_ok() {
                waited = copied.mark.hold_up(stream);
            }
            !is_done
        });
        waited?;
        *self.seen(stream_id)? = self.settled.number;
        Ok(())
    }

    fn place(&self, stream_id: u64) -> Result<StreamIdentity, Failure> {
        let context = self.stream_hold(stream_id)?.handle;
        Ok(match stream_id {
            STREAM_NULL | STREAM_LEGACY => StreamIdentity {
                context,
                stream: STREAM_NULL,
                is_blocking: true,
            },
            id => StreamIdentity {
                context,
                stream: id,
                is_blocking: self.streams.get(id)?.is_blocking,
            },
        })
    }

    /// Returns the number of the last copy that a stream has waited for.
    fn seen(&mut self, stream_id: u64) -> Result<&mut u64, Failure> {
        match (stream_id, self.current) {
            (STREAM_NULL | STREAM_LEGACY, Some(context)) => {
                Ok(&mut self.contexts.get_mut(context)?.seen)
            }
            (id, _) => Ok(&mut self.streams.get_mut(id)?.seen),
        }
    }

    /// Makes the default stream of a context that has just become current wait too. Calls without a
    /// stream's number submit work there, which must follow copies of other contexts.
    pub(super) fn follow_entered(&mut self, context: u64) -> Result<(), Failure> {
        match self.context(context)?.seen == self.settled.number {
            true => Ok(()),
            false => self.follow(STREAM_NULL),
        }
    }
}
