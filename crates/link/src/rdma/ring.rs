//! A ring in the consumer's memory, which the producer writes by RDMA.
//!
//! ```text
//!  producer                                             consumer
//!    mirror: frames are laid out here ── RDMA WRITE ──►  ring: the same bytes, at the same place
//!    told ◄── RDMA WRITE: how far, asleep, closed ────  own
//!    own  ── RDMA WRITE: asleep ─────────────────────►  told
//! ```
//!
//! A frame is a header of 16 bytes and its bytes, padded to 16. It does not wrap: if it does not
//! fit before the end of the ring, it starts at the ring's beginning, and a header in its old place
//! says so. The header is a word, with the length in its lower half and the position again in its
//! upper half, and the 64 bits of `check.rs`. These cover a short frame's bytes too: a short frame
//! is one write, in whatever order its bytes appear. The bytes of a long frame are a write of their
//! own before the header's: adapters execute the writes of one connection in order, and their
//! effects appear in that order.
//!
//! The data of a long frame may come from other memory, or go to it: `long.rs`.
//!
//! Credits cannot deadlock. The longest frame, the bytes skipped before it, the bytes that the
//! consumer holds, and those that it has taken without saying so fit into a ring together. So a
//! producer that waits for room always waits for frames that the consumer has not looked at, or for
//! a word that is coming.

use std::sync::{Arc, atomic::Ordering};

use outboard_verbs::{Memory, Piece};
use outboard_wire::limits::FRAME_BYTES_MAX;

use super::{
    check,
    control::{Block, Control},
    layout::{
        ALIGN, CHECKED_BYTES_MAX, END, HEADER_BYTES, SEPARATE, SEPARATE_BYTES, SKIP, SeparateData,
    },
    registry::RdmaTarget,
};
use crate::Error;

/// Bytes that wait to be posted, after which they are posted without a flush.
const POST_BYTES_MIN: usize = 64 << 10;
/// Writes that wait to be posted, at most; a frame adds up to three.
pub(super) const WRITES_MAX: usize = 12;

/// Smallest ring for which this file's reasoning holds.
pub(super) const RING_BYTES_MIN: usize = 4 << 20;

const _: () = {
    let longest = HEADER_BYTES + FRAME_BYTES_MAX.next_multiple_of(ALIGN) + SEPARATE_BYTES + ALIGN;
    // Skipped, wanted, held, an eighth that was not told, and the header that marks the end.
    assert!(3 * longest + RING_BYTES_MIN / 8 + HEADER_BYTES <= RING_BYTES_MIN);
    assert!(CHECKED_BYTES_MAX.is_multiple_of(ALIGN));
    assert!((FRAME_BYTES_MAX as u32) < SEPARATE);
};

/// An operation that one end has the device do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Writes these bytes of the mirror to the same offset of the ring.
    Ring { offset: usize, len: usize },
    /// Writes this end's block to the peer.
    Tell,
    /// Reads the peer's block.
    Look,
    /// Writes registered memory to an offset of the ring.
    Fill { from: Piece, offset: usize },
    /// Writes bytes of the mirror to memory of the peer.
    Place {
        offset: usize,
        len: usize,
        to: RdmaTarget,
    },
    /// Writes registered memory to memory of the peer.
    Carry { from: Piece, to: RdmaTarget },
    /// Writes this entry of our table of grants to the peer's.
    Grant { index: usize },
}

/// The device as a ring uses it: operations are carried out in the order in which they are posted.
pub(super) trait Port {
    /// Posts `ops` by one doorbell, once there is room. The last wakes the peer if `wakes`.
    /// [`done`](Self::done) becomes `mark` some time after it is complete, and certainly if
    /// `is_signalled`.
    fn post(&mut self, ops: &[Op], wakes: bool, is_signalled: bool, mark: u64)
    -> Result<(), Error>;
    /// The mark of the last posting that is known to be complete.
    fn done(&self) -> u64;
    /// True if everything posted is known to be complete.
    fn is_idle(&self) -> bool;
    /// Processes completions.
    fn poll(&mut self) -> Result<(), Error>;
}

/// The only one that adds frames to a ring.
pub(super) struct Producer<P> {
    pub(super) port: P,
    control: Control,
    mirror: Arc<Memory>,
    capacity: u64,
    /// Position after the last committed frame.
    pub(super) position: u64,
    consumed: u64,
    /// Start of the reservation's frame, and the bytes that it may have.
    pub(super) reserved: (u64, usize),
    pub(super) writes: [Op; WRITES_MAX],
    pub(super) waiting: usize,
    pub(super) waiting_bytes: usize,
    unsignalled_bytes: usize,
}

impl<P: Port> Producer<P> {
    pub(super) fn new(port: P, control: Control, mirror: Arc<Memory>) -> Self {
        Self {
            port,
            control,
            capacity: mirror.len() as u64,
            mirror,
            position: 0,
            consumed: 0,
            reserved: (0, 0),
            writes: [Op::Tell; WRITES_MAX],
            waiting: 0,
            waiting_bytes: 0,
            unsignalled_bytes: 0,
        }
    }

    /// Start of a frame of `len` bytes, if there is room for it.
    #[inline]
    pub(super) fn place(&mut self, len: usize) -> Result<Option<u64>, Error> {
        let (at, end) = self.fit(len);
        if end - self.free_from() <= self.capacity {
            return Ok(Some(at));
        }
        self.look_at_credit()?;
        Ok((end - self.free_from() <= self.capacity).then_some(at))
    }

    /// Returns room for the frame at `at`, a result of [`place`](Self::place).
    #[inline]
    pub(super) fn reserve(&mut self, at: u64, len: usize) -> &mut [u8] {
        self.reserved = (at, len);
        let offset = self.offset(at) + HEADER_BYTES;
        // SAFETY: the range is between the last committed frame and what the consumer has yet to
        // take, and no other slice of it exists: there is one producer, it is borrowed mutably, and
        // its device has finished reading from here.
        unsafe { self.mirror.room(offset, len) }
    }

    /// Makes the first `len` bytes of the reservation a frame, which [`flush`](Self::flush) sends.
    #[inline]
    pub(super) fn commit(&mut self, len: usize) -> Result<(), Error> {
        let (at, reserved) = self.reserved;
        if len == 0 || len > reserved {
            return Err(Error::Misuse("commit of more than was reserved"));
        }
        self.reserved = (0, 0);
        if at != self.position {
            self.put_header(self.position, SKIP, 0);
            self.add(self.offset(self.position), HEADER_BYTES);
        }
        let padded = len.next_multiple_of(ALIGN);
        let offset = self.offset(at);
        if len <= CHECKED_BYTES_MAX {
            self.put_header(at, len as u32, padded);
            self.add(offset, HEADER_BYTES + padded);
        } else {
            self.put_header(at, len as u32, 0);
            self.add(offset + HEADER_BYTES, padded);
            self.add(offset, HEADER_BYTES);
        }
        self.position = at + (HEADER_BYTES + padded) as u64;
        if self.waiting_bytes >= POST_BYTES_MIN || self.waiting + 3 > WRITES_MAX {
            return self.flush();
        }
        Ok(())
    }

    /// Posts everything that was committed.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.post_waiting(false)
    }

    #[inline]
    pub(super) fn post_waiting(&mut self, is_signalled: bool) -> Result<(), Error> {
        if self.waiting == 0 {
            return Ok(());
        }
        let count = std::mem::take(&mut self.waiting);
        self.unsignalled_bytes += std::mem::take(&mut self.waiting_bytes);
        // Signalled, so that free parts of the mirror are known before all of it is in use.
        let is_signalled = is_signalled || self.unsignalled_bytes as u64 >= self.capacity / 8;
        if is_signalled {
            self.unsignalled_bytes = 0;
        }
        self.control.publish(self.position);
        let wakes = self.control.must_wake();
        self.port
            .post(&self.writes[..count], wakes, is_signalled, self.position)
    }

    /// Posts the word after which no frame follows, signalled: once the port is idle, the consumer
    /// has everything.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        self.flush()?;
        self.put_header(self.position, END, 0);
        let offset = self.offset(self.position);
        let len = HEADER_BYTES;
        self.control.close();
        let wakes = self.control.must_wake();
        self.port
            .post(&[Op::Ring { offset, len }], wakes, true, self.position)
    }

    /// Returns true if the consumer takes no more.
    pub(super) fn is_refused(&mut self) -> bool {
        self.control.told().is_closed
    }

    /// Returns true if the consumer has given room back since the last look.
    pub(super) fn has_news(&mut self) -> bool {
        let told = self.control.told();
        told.position != self.consumed || told.is_closed
    }

    /// Tells the consumer that this end will sleep until there is room, and reads the consumer's
    /// position. Once the port is idle, [`may_sleep`](Self::may_sleep) says whether that has not
    /// moved.
    pub(super) fn begin_sleep(&mut self) -> Result<(), Error> {
        self.control.begin_sleep();
        self.unsignalled_bytes = 0;
        self.port
            .post(&[Op::Tell, Op::Look], false, true, self.position)
    }

    pub(super) fn may_sleep(&mut self) -> bool {
        let expected = self.consumed;
        let looked = self.control.looked();
        looked.is_some_and(|block| block.position == expected && !block.is_closed)
    }

    /// The least position whose bytes are in use.
    #[inline]
    fn free_from(&self) -> u64 {
        // The device may read a frame of the mirror again until the peer's device has acknowledged
        // it, even if it was consumed.
        self.consumed.min(self.port.done())
    }

    /// Start of a frame of `len` bytes, and end of that frame together with the word for the end.
    #[inline]
    fn fit(&self, len: usize) -> (u64, u64) {
        let footprint = (HEADER_BYTES + len.next_multiple_of(ALIGN)) as u64;
        let offset = self.position & (self.capacity - 1);
        let at = match offset + footprint <= self.capacity {
            true => self.position,
            false => self.position + self.capacity - offset,
        };
        (at, at + footprint + HEADER_BYTES as u64)
    }

    #[cold]
    fn look_at_credit(&mut self) -> Result<(), Error> {
        let told = self.control.told().position;
        check_position(told, self.consumed, self.position)?;
        self.consumed = told;
        self.port.poll()
    }

    #[inline]
    pub(super) fn put_header(&mut self, position: u64, len: u32, covered: usize) {
        let header = u64::from(len) | u64::from(check::tag(position)) << 32;
        let offset = self.offset(position);
        let body = offset + HEADER_BYTES;
        let sum = check::of_frame(position, header, &self.mirror, body, covered);
        self.mirror.word(offset).store(header, Ordering::Relaxed);
        self.mirror.word(offset + 8).store(sum, Ordering::Release);
    }

    #[inline]
    pub(super) fn add(&mut self, offset: usize, len: usize) {
        self.waiting_bytes += len;
        if let Some(Op::Ring { offset: last, len: last_len }) =
            self.waiting.checked_sub(1).map(|at| &mut self.writes[at])
            && *last + *last_len == offset
            // Bytes of a long frame are sent before its header, and so are not merged with later
            // ones.
            && *last_len + len <= POST_BYTES_MIN
        {
            *last_len += len;
            return;
        }
        self.writes[self.waiting] = Op::Ring { offset, len };
        self.waiting += 1;
    }

    #[inline]
    pub(super) fn offset(&self, position: u64) -> usize {
        (position & (self.capacity - 1)) as usize
    }
}

/// Result of a look at the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No frame, or an incomplete one.
    Nothing,
    /// A frame's bytes, its footprint, and its separate data.
    Frame {
        offset: usize,
        len: usize,
        footprint: u64,
        separate: Option<SeparateData>,
    },
    /// No frame will come.
    End,
}

/// The only one that takes frames from a ring.
pub(super) struct Consumer<P> {
    pub(super) port: P,
    control: Control,
    pub(super) ring: Arc<Memory>,
    pub(super) capacity: u64,
    position: u64,
    position_told: u64,
    is_finished: bool,
}

impl<P: Port> Consumer<P> {
    pub(super) fn new(port: P, control: Control, ring: Arc<Memory>) -> Self {
        Self {
            port,
            control,
            capacity: ring.len() as u64,
            ring,
            position: 0,
            position_told: 0,
            is_finished: false,
        }
    }

    /// Position of the next look.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Looks for a frame at the position. A frame stays there until it is [taken](Self::take).
    #[inline]
    pub(super) fn look(&mut self) -> Result<Found, Error> {
        loop {
            if self.is_finished {
                return Ok(Found::End);
            }
            let offset = (self.position & (self.capacity - 1)) as usize;
            let header = self.ring.word(offset).load(Ordering::Acquire);
            if (header >> 32) as u32 != check::tag(self.position) {
                return Ok(Found::Nothing);
            }
            let sum = self.ring.word(offset + 8).load(Ordering::Acquire);
            let said = header as u32;
            let is_separate = said & SEPARATE != 0 && said != END;
            let len = if is_separate { said & !SEPARATE } else { said } as usize;
            let footprint = HEADER_BYTES + len.next_multiple_of(ALIGN);
            let fits = len <= FRAME_BYTES_MAX && offset + footprint <= self.capacity as usize;
            if (1..=CHECKED_BYTES_MAX).contains(&len) && fits {
                let body = offset + HEADER_BYTES;
                let covered = footprint - HEADER_BYTES;
                let whole = check::of_frame(self.position, header, &self.ring, body, covered);
                return match sum == whole {
                    true if is_separate => self.frame_with_separate_data(offset, len, footprint),
                    true => Ok(self.frame(offset, len, footprint)),
                    false => Ok(Found::Nothing),
                };
            }
            if sum != check::of_header(self.position, header) {
                return Ok(Found::Nothing);
            }
            match said {
                SKIP if offset > 0 => self.take(self.capacity - offset as u64)?,
                END => self.is_finished = true,
                _ if fits && len > CHECKED_BYTES_MAX && !is_separate => {
                    return Ok(self.frame(offset, len, footprint));
                }
                got => {
                    return Err(Error::PeerMisbehaved {
                        what: "a frame of that length there",
                        got: got.into(),
                        allowed: FRAME_BYTES_MAX.min(self.capacity as usize - offset) as u64,
                    });
                }
            }
        }
    }

    #[inline]
    fn frame(&self, offset: usize, len: usize, footprint: usize) -> Found {
        Found::Frame {
            offset: offset + HEADER_BYTES,
            len,
            footprint: footprint as u64,
            separate: None,
        }
    }

    /// Copies a found frame's bytes out of the ring.
    pub(super) fn copy(&self, offset: usize, len: usize, out: &mut Vec<u8>) {
        out.clear();
        self.ring.copy(offset, len, out);
    }

    /// Takes `bytes`. The producer is told once per eighth of the ring.
    #[inline]
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Error> {
        self.position += bytes;
        if self.position - self.position_told >= self.capacity / 8 {
            return self.tell();
        }
        Ok(())
    }

    #[cold]
    fn tell(&mut self) -> Result<(), Error> {
        self.position_told = self.position;
        self.control.publish(self.position);
        let wakes = self.control.must_wake();
        self.port.post(&[Op::Tell], wakes, false, self.position)
    }

    /// Sends the producer the grant in this entry.
    pub(super) fn grant(&mut self, index: usize) -> Result<(), Error> {
        self.port
            .post(&[Op::Grant { index }], false, false, self.position)
    }

    /// Tells the producer that no more will be taken.
    pub(super) fn close(&mut self) -> Result<(), Error> {
        self.control.close();
        let wakes = self.control.must_wake();
        self.port.post(&[Op::Tell], wakes, true, self.position)
    }

    /// Tells the producer that this end will sleep until a frame comes, and reads the producer's
    /// position; see [`Producer::begin_sleep`].
    pub(super) fn begin_sleep(&mut self) -> Result<(), Error> {
        self.control.begin_sleep();
        self.port
            .post(&[Op::Tell, Op::Look], false, true, self.position)
    }

    pub(super) fn may_sleep(&mut self) -> bool {
        let Some(Block {
            position,
            is_closed,
            ..
        }) = self.control.looked()
        else {
            return false;
        };
        // After a skip the frame is further on; the producer counts skipped bytes.
        position == self.position && !is_closed
    }
}

/// Checks that a position sent by the peer is between the last one and the furthest that the rules
/// allow.
fn check_position(position: u64, seen: u64, furthest: u64) -> Result<(), Error> {
    let moved = position.wrapping_sub(seen);
    if moved > furthest.wrapping_sub(seen) || !moved.is_multiple_of(ALIGN as u64) {
        return Err(Error::PeerMisbehaved {
            what: "a position in the ring that cannot be",
            got: position,
            allowed: furthest,
        });
    }
    Ok(())
}
