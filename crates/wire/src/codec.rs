//! Encodes fields little-endian, in declared order; byte fields come last, each after its length as
//! `u32`.

use outboard_api::decl::Answer;
use thiserror::Error;

/// A message that can be encoded and decoded.
pub trait Message<'a>: Clone {
    /// The name in the declaration.
    const NAME: &'static str;
    fn encoded_len(&self) -> usize;
    fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError>;
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// A message from client to server, and the type of its reply.
pub trait Op<'a>: Message<'a> {
    const NUMBER: u16;
    const ANSWER: Answer;
    type Reply<'r>: Message<'r>;
    /// True if the message ends in `data`.
    const HAS_DATA: bool = false;

    /// For a message that ends in `data`: encodes everything before the data, of which the data's
    /// length is the last field. Returns the data, to be sent from where it is.
    #[inline]
    fn encode_head(&self, w: &mut Writer<'_>) -> Result<Option<&'a [u8]>, EncodeError> {
        let _ = w;
        Ok(None)
    }
}

/// The peer sent bytes that are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("the message ends inside {message}: {wanted} more bytes wanted, {left} left")]
    Truncated {
        message: &'static str,
        wanted: usize,
        left: usize,
    },
    #[error("no message has the number {number}")]
    UnknownMessage { number: u16 },
    #[error("{left} bytes follow the end of the message")]
    TrailingBytes { left: usize },
    #[error("its data is said to come on a data connection, and the session has none")]
    NoDataConnection,
}

/// The room given is not what `encoded_len` asked for: a defect of ours, which is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{wanted} bytes do not fit into the {left} left of a frame")]
pub struct EncodeError {
    pub wanted: usize,
    pub left: usize,
}

/// Fills a frame from its start.
pub struct Writer<'w> {
    left: &'w mut [u8],
}

impl<'w> Writer<'w> {
    pub fn new(room: &'w mut [u8]) -> Writer<'w> {
        Writer { left: room }
    }

    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let left = std::mem::take(&mut self.left);
        if bytes.len() > left.len() {
            let error = EncodeError {
                wanted: bytes.len(),
                left: left.len(),
            };
            self.left = left;
            return Err(error);
        }
        let (room, rest) = left.split_at_mut(bytes.len());
        room.copy_from_slice(bytes);
        self.left = rest;
        Ok(())
    }

    /// Returns room for the next `N` bytes, all of which the caller writes: one check for all
    /// fields of fixed size of a message.
    #[inline(always)]
    pub fn array<const N: usize>(&mut self) -> Result<&'w mut [u8; N], EncodeError> {
        let left = self.left.len();
        match std::mem::take(&mut self.left).split_first_chunk_mut() {
            Some((room, rest)) => {
                self.left = rest;
                Ok(room)
            }
            None => Err(EncodeError { wanted: N, left }),
        }
    }

    #[inline(always)]
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let len = u32::try_from(bytes.len()).map_err(|_| EncodeError {
            wanted: bytes.len(),
            left: self.left.len(),
        })?;
        *self.array()? = len.to_le_bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        self.put(bytes)
    }

    /// Bytes not yet written.
    pub fn left(&self) -> usize {
        self.left.len()
    }
}

/// Reads a frame from its start.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    left: &'a [u8],
    /// The content of the last byte field, if that was received into other memory.
    tail: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            left: bytes,
            tail: &[],
        }
    }

    /// Reads a frame in two parts, of which the second is the content of the last byte field.
    pub fn split(head: &'a [u8], tail: &'a [u8]) -> Reader<'a> {
        Reader { left: head, tail }
    }

    #[inline]
    pub fn take<const N: usize>(&mut self, message: &'static str) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self
            .left
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated {
                message,
                wanted: N,
                left: self.left.len(),
            })?;
        self.left = rest;
        Ok(*head)
    }

    #[inline]
    pub fn bytes(&mut self, message: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = u32::from_le_bytes(self.take(message)?) as usize;
        if self.left.is_empty() && len == self.tail.len() {
            return Ok(std::mem::take(&mut self.tail));
        }
        if len > self.left.len() {
            return Err(DecodeError::Truncated {
                message,
                wanted: len,
                left: self.left.len(),
            });
        }
        let (head, rest) = self.left.split_at(len);
        self.left = rest;
        Ok(head)
    }

    /// All bytes not yet read, of a frame in one part.
    pub fn rest(&self) -> &'a [u8] {
        self.left
    }

    /// Number of bytes not yet read.
    pub fn left(&self) -> usize {
        self.left.len() + self.tail.len()
    }

    /// Checks that everything was read.
    pub fn end(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::TrailingBytes { left }),
        }
    }
}

/// Reads a list of handles from a byte field.
pub fn ids(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> + '_ {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|chunk| u64::from_le_bytes(*chunk))
}

/// Encodes a list of handles as a byte field.
pub fn id_bytes(ids: &[u64]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}
