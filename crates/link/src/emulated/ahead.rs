//! Frames that have been received before their time.

use std::{any::Any, collections::VecDeque, mem};

use outboard_wire::limits::PLACED_BYTES_MIN;

use super::Attachment;
use crate::segment::{Destination, Segment, Tail};

/// Bytes that a frame counts beside its own, so that many short ones are bounded too.
const FRAME_BYTES: usize = 128;
/// Length of a frame's memory from which it is kept apart from that of short ones.
const LONG_BYTES_MIN: usize = 4 << 10;
/// Pieces of memory kept for later frames: short ones, and long ones.
const SHORT_KEPT_MAX: usize = 1_024;
const LONG_KEPT_MAX: usize = 16;

/// The frames of one link whose time has not come, the oldest first. All links of an attachment
/// share its bound.
pub(super) struct Ahead {
    frames: VecDeque<Early>,
    /// Sum of what the frames count.
    bytes: usize,
    short_kept: Vec<Vec<u8>>,
    long_kept: Vec<Vec<u8>>,
    attachment: Attachment,
}

/// A frame and the time at which it arrives.
pub(super) struct Early {
    pub(super) due_ns: u64,
    pub(super) head: Vec<u8>,
    pub(super) tail: Option<Tail>,
}

/// Memory for a whole frame, for which the caller has no place.
struct Whole(Vec<u8>);

impl Segment for Whole {
    fn room(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Early {
    fn counts(&self) -> usize {
        FRAME_BYTES + self.head.len() + self.tail.as_ref().map_or(0, Tail::len)
    }
}

impl Ahead {
    pub(super) fn new(attachment: Attachment) -> Self {
        Self {
            frames: VecDeque::new(),
            bytes: 0,
            short_kept: Vec::new(),
            long_kept: Vec::new(),
            attachment,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the time of the next frame.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.frames.front().map(|frame| frame.due_ns)
    }

    /// Returns whether the next frame is a long one.
    pub(super) fn is_long(&self) -> bool {
        let front = self.frames.front();
        front.is_some_and(|frame| frame.counts() >= PLACED_BYTES_MIN)
    }

    /// Returns whether another frame may be received before its time. The first one always may: it
    /// is no more than the link itself would hold.
    pub(super) fn has_room(&self) -> bool {
        self.is_empty() || self.attachment.has_room_ahead()
    }

    /// Adds a frame after all others. Returns its length.
    pub(super) fn push(&mut self, due_ns: u64, head: &[u8], tail: Option<Tail>) -> usize {
        let (head, tail) = match unwrap_whole(tail) {
            Ok(whole) => (whole, None),
            Err(tail) => (self.copy_of(head), tail),
        };
        let frame = Early { due_ns, head, tail };
        let counts = frame.counts();
        self.bytes += counts;
        self.attachment.hold_ahead(counts);
        self.frames.push_back(frame);
        counts - FRAME_BYTES
    }

    /// Takes the next frame out. Its memory is given back by [`keep`](Self::keep).
    pub(super) fn pop(&mut self) -> Option<Early> {
        let frame = self.frames.pop_front()?;
        self.count_out(frame.counts());
        Some(frame)
    }

    /// Drops all frames.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.count_out(self.bytes);
    }

    /// Keeps the memory of a frame that has been handed over, for a later one.
    pub(super) fn keep(&mut self, memory: Vec<u8>) {
        let (kept, max) = match memory.capacity() {
            0 => return,
            1..LONG_BYTES_MIN => (&mut self.short_kept, SHORT_KEPT_MAX),
            _ => (&mut self.long_kept, LONG_KEPT_MAX),
        };
        if kept.len() < max {
            kept.push(memory);
        }
    }

    /// Returns a place for a whole long frame.
    pub(super) fn place_whole(&mut self, len: usize) -> Destination {
        let mut memory = self.long_kept.pop().unwrap_or_default();
        memory.resize(len, 0);
        let memory = Box::new(Whole(memory));
        Destination { skip: 0, memory }
    }

    fn copy_of(&mut self, bytes: &[u8]) -> Vec<u8> {
        let kept = match bytes.len() {
            ..LONG_BYTES_MIN => self.short_kept.pop(),
            _ => self.long_kept.pop(),
        };
        let mut copy = kept.unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        copy
    }

    fn count_out(&mut self, counts: usize) {
        self.bytes -= counts;
        self.attachment.release_ahead(counts);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the frame if all of it is in memory of [`Ahead::place_whole`], else its end as it was.
fn unwrap_whole(tail: Option<Tail>) -> Result<Vec<u8>, Option<Tail>> {
    match tail {
        Some(Tail::Own(memory)) if (&*memory as &dyn Any).is::<Whole>() => {
            let memory: Box<dyn Any> = memory;
            match memory.downcast::<Whole>() {
                Ok(mut whole) => Ok(mem::take(&mut whole.0)),
                Err(_) => Err(None),
            }
        }
        tail => Err(tail),
    }
}
