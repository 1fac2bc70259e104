//! Frames out of a stream of bytes, in place. Does no I/O.

use std::ops::Range;

use outboard_wire::limits::{FRAME_BYTES_MAX, TCP_RECEIVE_BUFFER_BYTES};

use crate::Error;

/// The length before each frame.
pub(crate) const PREFIX_BYTES: usize = 4;

/// Bytes that have come in and are not yet handed out as frames.
pub(crate) struct Deframer {
    buffer: Vec<u8>,
    /// What has come in and was not handed out.
    filled: Range<usize>,
}

impl Deframer {
    pub(crate) fn new() -> Self {
        Self {
            buffer: vec![0; TCP_RECEIVE_BUFFER_BYTES],
            filled: 0..0,
        }
    }

    /// Where the next frame lies, if it is complete.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<Range<usize>>, Error> {
        let Some(len) = self.frame_len()? else {
            return Ok(None);
        };
        if self.filled.len() < PREFIX_BYTES + len {
            return Ok(None);
        }
        let start = self.filled.start + PREFIX_BYTES;
        self.filled.start = start + len;
        Ok(Some(start..start + len))
    }

    #[inline]
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Room for more bytes, at least as many as the frame at the front lacks; to be called when [`next`](Self::next)
    /// has none. The buffer grows for a long frame that was announced, and never beyond the longest that is allowed.
    pub(crate) fn room(&mut self) -> Result<&mut [u8], Error> {
        let frame = self.frame_len()?.unwrap_or(0);
        let need = (PREFIX_BYTES + frame).max(TCP_RECEIVE_BUFFER_BYTES);
        if self.filled.is_empty() {
            self.filled = 0..0;
        } else if self.filled.start > 0 && self.buffer.len() - self.filled.start < need {
            // Less than one frame, and once a buffer.
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        if self.buffer.len() - self.filled.start < need {
            self.buffer.resize(self.filled.start + need, 0);
        }
        Ok(&mut self.buffer[self.filled.end..])
    }

    /// The first `len` bytes of the room were filled.
    pub(crate) fn filled(&mut self, len: usize) {
        self.filled.end = (self.filled.end + len).min(self.buffer.len());
    }

    /// What the end of the stream means here.
    pub(crate) fn end(&self) -> Error {
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

/// Fuzz target: a stream that arrives in pieces, whose sizes are the even bytes of `data`.
///
/// # Panics
///
/// When frames come out differently from how a straightforward reader sees the same bytes.
pub fn fuzz_deframer(data: &[u8]) {
    let mut deframer = Deframer::new();
    let mut frames = Vec::new();
    let mut rest = data;
    let outcome = loop {
        match deframer.next() {
            Ok(Some(range)) => frames.push(deframer.bytes(range).to_vec()),
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
