//! Long frames, whose data need not be in the mirror and need not go to the ring.
//!
//! ```text
//!  from   the mirror, into which it is copied     to   the ring
//!         registered memory that holds it              memory granted before (`grants.rs`)
//!                                                      memory that the peer's message named
//! ```
//!
//! If the data does not go to the ring, the frame is 16 bytes and the head. The 16 bytes hold the
//! length of the data, and the part of the ring that corresponds to the data's copy in the mirror.

use std::sync::atomic::Ordering;

use outboard_verbs::Piece;
use outboard_wire::limits::FRAME_BYTES_MAX;

use super::{
    layout::{ALIGN, HEADER_BYTES, SEPARATE, SEPARATE_BYTES, SKIP, SeparateData},
    registry::RdmaTarget,
    ring::{Consumer, Found, Op, Port, Producer, WRITES_MAX},
};
use crate::Error;

/// Destination of a long frame's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Ring,
    /// Memory that the consumer granted for the next frame that can use it.
    Granted(RdmaTarget),
    /// Memory that the consumer named for this frame.
    Named(RdmaTarget),
}

/// A long frame to be sent: its lengths, and where its data comes from and goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Long {
    pub(super) head: usize,
    pub(super) data: usize,
    /// The registered memory that holds the data; `None` if it is to be copied into the mirror.
    pub(super) from: Option<Piece>,
    pub(super) to: To,
}

impl Long {
    /// Bytes that the frame takes after its header.
    pub(super) fn footprint(&self) -> usize {
        match (self.to, self.from) {
            (To::Ring, _) => self.head + self.data,
            (_, Some(_)) => SEPARATE_BYTES + self.head,
            (_, None) => self.data_at() + self.data,
        }
    }

    /// Offset after the header at which its data, or the copy of it, begins.
    fn data_at(&self) -> usize {
        match self.to {
            To::Ring => self.head,
            _ => (SEPARATE_BYTES + self.head).next_multiple_of(ALIGN),
        }
    }
}

impl<P: Port> Producer<P> {
    /// Returns room in the mirror for the head of a long frame at `at`, and for its data if that is
    /// to be copied there. `at` is the result of [`place`](Self::place) for the frame's footprint.
    pub(super) fn reserve_long(&mut self, at: u64, long: &Long) -> (&mut [u8], &mut [u8]) {
        let is_separate = long.to != To::Ring;
        let copied = if long.from.is_none() { long.data } else { 0 };
        let data_at = long.data_at();
        let room = self.reserve(at, data_at + copied);
        let (head, data) = room.split_at_mut(data_at);
        let head = match is_separate {
            true => {
                let (about, head) = head.split_at_mut(SEPARATE_BYTES);
                let replaced = copied.next_multiple_of(ALIGN) as u32;
                let kind = u32::from(matches!(long.to, To::Granted(_)));
                let words = [long.data as u32, replaced, kind, 0];
                for (room, word) in about.chunks_exact_mut(4).zip(words) {
                    room.copy_from_slice(&word.to_le_bytes());
                }
                head
            }
            false => head,
        };
        (&mut head[..long.head], data)
    }

    /// Makes the reservation a frame and posts it at once, since its data may belong to the caller.
    /// The last request is signalled if the data's owner must learn when the adapter has read it.
    pub(super) fn commit_long(&mut self, long: &Long) -> Result<(), Error> {
        let (at, _) = std::mem::take(&mut self.reserved);
        // Three for this frame, and one for skipped bytes.
        if self.waiting + 4 > WRITES_MAX {
            self.flush()?;
        }
        if at != self.position {
            self.put_header(self.position, SKIP, 0);
            self.add(self.offset(self.position), HEADER_BYTES);
        }
        let offset = self.offset(at);
        let body = offset + HEADER_BYTES;
        let footprint = HEADER_BYTES + long.footprint().next_multiple_of(ALIGN);
        if let To::Granted(to) | To::Named(to) = long.to {
            self.wait_with(match long.from {
                Some(from) => Op::Carry { from, to },
                None => Op::Place {
                    offset: body + long.data_at(),
                    len: long.data,
                    to,
                },
            });
            let len = SEPARATE_BYTES + long.head;
            let covered = len.next_multiple_of(ALIGN);
            self.put_header(at, len as u32 | SEPARATE, covered);
            self.add(offset, HEADER_BYTES + covered);
        } else {
            let len = long.head + long.data;
            match long.from {
                Some(from) => {
                    self.wait_with(Op::Fill {
                        from,
                        offset: body + long.head,
                    });
                    self.add(body, long.head);
                }
                None => self.add(body, len.next_multiple_of(ALIGN)),
            }
            self.put_header(at, len as u32, 0);
            self.add(offset, HEADER_BYTES);
        }
        self.position = at + footprint as u64;
        self.post_waiting(long.from.is_some())
    }

    fn wait_with(&mut self, op: Op) {
        // Bytes of the mirror, or of what is written in place of them.
        self.waiting_bytes += match op {
            Op::Place { len, .. } => len,
            Op::Fill { from, .. } => from.len as usize,
            _ => 0,
        };
        self.writes[self.waiting] = op;
        self.waiting += 1;
    }
}

impl<P: Port> Consumer<P> {
    /// A frame with separate data.
    pub(super) fn frame_with_separate_data(
        &self,
        offset: usize,
        len: usize,
        footprint: usize,
    ) -> Result<Found, Error> {
        let body = offset + HEADER_BYTES;
        // Copies are checked and used: the peer can write the words at any time.
        let [lens, kind] = [0, 8].map(|at| self.ring.word(body + at).load(Ordering::Relaxed));
        let (data, replaced) = (lens as u32 as usize, (lens >> 32) as usize);
        let left = (self.capacity as usize - offset).saturating_sub(footprint);
        let is_possible = len > SEPARATE_BYTES
            && (1..=FRAME_BYTES_MAX).contains(&data)
            && replaced <= left.min(FRAME_BYTES_MAX.next_multiple_of(ALIGN))
            && replaced.is_multiple_of(ALIGN)
            && kind <= 1;
        if !is_possible {
            return Err(Error::PeerMisbehaved {
                what: "data beside a frame that cannot be",
                got: lens,
                allowed: left as u64,
            });
        }
        Ok(Found::Frame {
            offset: body + SEPARATE_BYTES,
            len: len - SEPARATE_BYTES,
            footprint: (footprint + replaced) as u64,
            separate: Some(SeparateData {
                len: data,
                is_granted: kind == 1,
            }),
        })
    }
}
