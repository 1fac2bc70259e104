//! Splits a stream of bytes into frames, in place, or into the caller's memory for long ones. Does
//! no I/O.

use std::ops::Range;

use outboard_wire::limits::{
    FRAME_BYTES_MAX, PLACED_BYTES_MIN, PLACED_HEAD_BYTES, TCP_RECEIVE_BUFFER_BYTES,
};

use crate::{
    Error,
    segment::{ChooseDestination, Destination, Segment},
};

/// Length of the field before each frame that holds the frame's length.
pub(crate) const PREFIX_BYTES: usize = 4;
/// Bytes received after a long frame: the start of the next frame, and no more of it, since it is
/// likely to be placed too.
const PEEK_BYTES: usize = 2 * PLACED_HEAD_BYTES;

/// Bytes that have arrived and are not yet handed out as frames.
pub(crate) struct Deframer {
    buffer: Vec<u8>,
    /// Bytes that have arrived and were not handed out.
    filled: Range<usize>,
    /// The frame that is being received into the caller's memory.
    placed: Option<Placed>,
    /// True if the placer was asked about the first frame, which stays in the buffer.
    is_asked: bool,
    /// True if the frame handed out last was a long one.
    was_long: bool,
    placed_min: usize,
    head_min: usize,
}

struct Placed {
    head: Range<usize>,
    memory: Box<dyn Segment>,
    filled: usize,
    want: usize,
}

/// Location of a complete frame.
pub(crate) struct Parts {
    pub(crate) head: Range<usize>,
    pub(crate) tail: Option<Box<dyn Segment>>,
}

impl Deframer {
    pub(crate) fn new() -> Self {
        Self::with_limits(PLACED_BYTES_MIN, PLACED_HEAD_BYTES)
    }

    fn with_limits(placed_min: usize, head_min: usize) -> Self {
        Self {
            buffer: vec![0; 2 * TCP_RECEIVE_BUFFER_BYTES],
            filled: 0..0,
            placed: None,
            is_asked: false,
            was_long: false,
            placed_min,
            head_min,
        }
    }

    /// Returns the location of the next frame, if it is complete.
    #[inline]
    pub(crate) fn next(
        &mut self,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Parts>, Error> {
        if self.placed.is_some() {
            return Ok(self.next_placed());
        }
        let Some(len) = self.frame_len()? else {
            return Ok(None);
        };
        if len >= self.placed_min && !self.is_asked {
            self.ask(len, place)?;
            if self.placed.is_some() {
                return Ok(self.next_placed());
            }
        }
        if self.filled.len() < PREFIX_BYTES + len {
            return Ok(None);
        }
        let start = self.filled.start + PREFIX_BYTES;
        self.filled.start = start + len;
        self.is_asked = false;
        self.was_long = len >= self.placed_min;
        Ok(Some(Parts {
            head: start..start + len,
            tail: None,
        }))
    }

    #[inline]
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Returns room for more bytes. Called when [`next`](Self::next) has no frame. The buffer grows
    /// for a long frame that was announced, and never beyond the longest frame allowed.
    pub(crate) fn room(&mut self) -> Result<&mut [u8], Error> {
        let frame = self.frame_len()?;
        if let Some(placed) = &mut self.placed {
            return Ok(&mut placed.memory.room()[placed.filled..]);
        }
        let need = match frame {
            // The placer decides by the frame's start.
            Some(len) if len >= self.placed_min && !self.is_asked => PEEK_BYTES,
            Some(len) if len >= self.placed_min => PREFIX_BYTES + len + PEEK_BYTES,
            _ if self.was_long => PEEK_BYTES,
            Some(len) => (PREFIX_BYTES + len).max(TCP_RECEIVE_BUFFER_BYTES),
            None => TCP_RECEIVE_BUFFER_BYTES,
        }
        .max(self.filled.len() + 1);
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.filled.start > 0 && self.buffer.len() - self.filled.start < need {
            // Less than one frame, and once per buffer.
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        let end = self.filled.start + need;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        Ok(&mut self.buffer[self.filled.end..end])
    }

    /// Counts the first `len` bytes of the room as received.
    pub(crate) fn filled(&mut self, len: usize) {
        match &mut self.placed {
            Some(placed) => placed.filled += len,
            None => self.filled.end = (self.filled.end + len).min(self.buffer.len()),
        }
    }

    /// Returns the error for the end of the stream at this point.
    pub(crate) fn end(&self) -> Error {
        if let Some(placed) = &self.placed {
            let head = PREFIX_BYTES + placed.head.len();
            return Error::Truncated {
                have: head + placed.filled,
                want: head + placed.want,
            };
        }
        let have = self.filled.len();
        match self.frame_len() {
            _ if have == 0 => Error::Closed,
            Ok(len) => Error::Truncated {
                have,
                want: PREFIX_BYTES + len.unwrap_or(0),
            },
            Err(error) => error,
        }
    }

    /// Drops memory that was being filled, since the stream has failed.
    pub(crate) fn fail(&mut self) {
        self.placed = None;
    }

    /// Asks the placer about the long frame at the front, once enough of it has arrived.
    fn ask(&mut self, len: usize, place: &mut ChooseDestination<'_>) -> Result<(), Error> {
        let start = self.filled.start + PREFIX_BYTES;
        let have = start..self.filled.end.min(start + len);
        if have.len() < self.head_min {
            return Ok(());
        }
        self.is_asked = true;
        let Some(Destination { skip, mut memory }) = place(&self.buffer[have.clone()], len) else {
            return Ok(());
        };
        let room = memory.room();
        if skip > have.len() || skip + room.len() != len {
            return Err(Error::Misuse("a place that does not fit the frame"));
        }
        let early = &self.buffer[start + skip..have.end];
        room[..early.len()].copy_from_slice(early);
        let filled = early.len();
        self.filled.start = have.end;
        self.placed = Some(Placed {
            head: start..start + skip,
            memory,
            filled,
            want: len - skip,
        });
        Ok(())
    }

    fn next_placed(&mut self) -> Option<Parts> {
        let Placed { head, memory, .. } =
            self.placed.take_if(|placed| placed.filled == placed.want)?;
        self.is_asked = false;
        self.was_long = true;
        Some(Parts {
            head,
            tail: Some(memory),
        })
    }

    fn frame_len(&self) -> Result<Option<usize>, Error> {
        let Some(prefix) = self.buffer[self.filled.clone()].first_chunk() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*prefix) as usize;
        if (1..=FRAME_BYTES_MAX).contains(&len) {
            return Ok(Some(len));
        }
        Err(Error::PeerMisbehaved {
            what: "a frame of that length",
            got: len as u64,
            allowed: FRAME_BYTES_MAX as u64,
        })
    }
}

/// Plain memory.
impl Segment for Vec<u8> {
    fn room(&mut self) -> &mut [u8] {
        self
    }

    fn bytes(&self) -> &[u8] {
        self
    }
}

/// Fuzz target: a stream that arrives in pieces, whose sizes are the even bytes of `data`; of the
/// frames that count as long some are placed, depending on their bytes.
///
/// # Panics
///
/// If frames come out differently from what a straightforward reader makes of these bytes.
pub fn fuzz_deframer(data: &[u8]) {
    const PLACED_MIN: usize = 8;
    const HEAD_MIN: usize = 4;
    let mut deframer = Deframer::with_limits(PLACED_MIN, HEAD_MIN);
    let mut place = |head: &[u8], len: usize| {
        assert!(len >= PLACED_MIN && (HEAD_MIN..=len).contains(&head.len()));
        let skip = usize::from(head[0]).min(HEAD_MIN);
        head[1].is_multiple_of(2).then(|| Destination {
            skip,
            memory: Box::new(vec![0; len - skip]),
        })
    };
    let mut frames = Vec::new();
    let mut rest = data;
    let outcome = loop {
        match deframer.next(&mut place) {
            Ok(Some(parts)) => {
                let mut frame = deframer.bytes(parts.head).to_vec();
                frame.extend(parts.tail.iter().flat_map(|tail| tail.bytes()));
                frames.push(frame);
            }
            Ok(None) if rest.is_empty() => break deframer.end(),
            Ok(None) => match deframer.room() {
                Ok(room) => {
                    let step = (usize::from(rest[0]) + 1).min(rest.len()).min(room.len());
                    assert!(step > 0, "no room for the rest of a frame");
                    room[..step].copy_from_slice(&rest[..step]);
                    deframer.filled(step);
                    rest = &rest[step..];
                }
                Err(error) => break error,
            },
            Err(error) => break error,
        }
        assert!(deframer.buffer.len() <= 2 * (PREFIX_BYTES + FRAME_BYTES_MAX));
    };
    let mut expected = Vec::new();
    let mut rest = data;
    while let Some((prefix, after)) = rest.split_first_chunk() {
        let len = u32::from_le_bytes(*prefix) as usize;
        if len == 0 || len > FRAME_BYTES_MAX || len > after.len() {
            break;
        }
        expected.push(after[..len].to_vec());
        rest = &after[len..];
    }
    assert_eq!(frames, expected);
    assert_eq!(rest.is_empty(), matches!(outcome, Error::Closed));
}
