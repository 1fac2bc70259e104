//! Encodes fields little-endian, in declared order; byte fields come last, each after its length as
//! `u32`.

use std::borrow::Cow;

use outboard_api::decl::Answer;
use thiserror::Error;

/// A message that can be encoded.
pub trait Encode: Clone {
    /// The name in the declaration.
    const NAME: &'static str;
    fn encoded_len(&self) -> usize;
    fn encode(&self, room: &mut impl Room) -> Result<(), EncodeError>;
}

/// A message that can be encoded and decoded.
pub trait Message<'a>: Encode {
    fn decode(r: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

/// A message from client to server, and the type of its reply.
pub trait Op<'a>: Encode {
    const NUMBER: u16;
    const ANSWER: Answer;
    type Reply<'r>: Message<'r>;
    /// True if the message ends in `data`.
    const HAS_DATA: bool = false;

    /// For a message that ends in `data`: encodes everything before the data, of which the data's
    /// length is the last field. Returns the data, to be sent from where it is.
    #[inline]
    fn encode_head(&self, room: &mut impl Room) -> Result<Option<&'a [u8]>, EncodeError> {
        let _ = room;
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
    #[error("{message}: its data was written to granted memory, which it cannot use")]
    Granted { message: &'static str },
    #[error("its data is said to come on a data connection, and the session has none")]
    NoDataConnection,
    #[error("runs of changed bytes that do not fit their data or the address space")]
    WrongRuns,
}

/// A message cannot be laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// The room is not what `encoded_len` asked for: a defect of ours.
    #[error("{wanted} bytes do not fit into the {left} left of a frame")]
    NoRoom { wanted: usize, left: usize },
    /// A part of the content has no address: the program gave none, or the content is in memory of
    /// the receiver.
    #[error("a part of the content has no address")]
    NoContent,
}

/// Room for a frame, which is filled from its start. It is only ever written, since a link's room
/// may be memory that the peer can change at any time.
pub trait Room {
    /// Writes `bytes` after those written before, or nothing if they do not fit.
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError>;

    /// Counts the next `len` bytes as written, and returns where they begin: the caller writes all
    /// of them before it uses the room again.
    fn take(&mut self, len: usize) -> Result<*mut u8, EncodeError>;

    /// Number of bytes not yet written.
    fn left(&self) -> usize;

    /// Writes a byte field: its length, then its content.
    #[inline(always)]
    fn put_field(&mut self, content: &impl Content) -> Result<(), EncodeError>
    where
        Self: Sized,
    {
        let len = u32::try_from(content.len()).map_err(|_| EncodeError::NoRoom {
            wanted: content.len(),
            left: self.left(),
        })?;
        self.put(&len.to_le_bytes())?;
        match len {
            0 => Ok(()),
            _ => content.put(self),
        }
    }
}

/// The content of a byte field.
#[allow(clippy::len_without_is_empty)]
pub trait Content: Clone {
    fn len(&self) -> usize;
    /// Writes all of it.
    fn put(&self, room: &mut impl Room) -> Result<(), EncodeError>;
}

impl Content for &[u8] {
    #[inline(always)]
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline(always)]
    fn put(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        room.put(self)
    }
}

/// The data of a message that is used where it was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data<'a> {
    Here(&'a [u8]),
    /// So many bytes in memory of the receiver that the sender's adapter wrote, and may write again
    /// at any time.
    Granted(usize),
}

impl<'a> From<&'a [u8]> for Data<'a> {
    #[inline(always)]
    fn from(bytes: &'a [u8]) -> Data<'a> {
        Data::Here(bytes)
    }
}

impl<'a> Data<'a> {
    /// Returns the bytes, if this process can refer to them.
    #[inline(always)]
    pub fn here(self) -> Option<&'a [u8]> {
        match self {
            Data::Here(bytes) => Some(bytes),
            Data::Granted(_) => None,
        }
    }
}

impl Content for Data<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        match self {
            Data::Here(bytes) => bytes.len(),
            Data::Granted(len) => *len,
        }
    }

    #[inline(always)]
    fn put(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        room.put(self.here().ok_or(EncodeError::NoContent)?)
    }
}

impl Content for Cow<'_, [u8]> {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn put(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        room.put(self)
    }
}

/// Fills memory of this process.
pub struct Writer<'w> {
    left: &'w mut [u8],
}

impl<'w> Writer<'w> {
    pub fn new(room: &'w mut [u8]) -> Writer<'w> {
        Writer { left: room }
    }

    #[inline(always)]
    fn next(&mut self, len: usize) -> Result<&'w mut [u8], EncodeError> {
        let left = self.left.len();
        let next = self.left.split_off_mut(..len);
        next.ok_or(EncodeError::NoRoom { wanted: len, left })
    }
}

impl Room for Writer<'_> {
    #[inline(always)]
    fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.next(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    #[inline(always)]
    fn take(&mut self, len: usize) -> Result<*mut u8, EncodeError> {
        Ok(self.next(len)?.as_mut_ptr())
    }

    #[inline(always)]
    fn left(&self) -> usize {
        self.left.len()
    }
}

/// Reads a frame from its start.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    left: &'a [u8],
    /// The content of the last byte field, if that was received into other memory.
    tail: Data<'a>,
}

/// No content.
const NOTHING: Data<'static> = Data::Here(&[]);

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            left: bytes,
            tail: NOTHING,
        }
    }

    /// Reads a frame in two parts, of which the second is the content of the last byte field.
    pub fn split(head: &'a [u8], tail: Data<'a>) -> Reader<'a> {
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

    /// Reads a byte field. Data in granted memory is none: see [`data`](Self::data).
    #[inline]
    pub fn bytes(&mut self, message: &'static str) -> Result<&'a [u8], DecodeError> {
        match self.data(message)? {
            Data::Here(bytes) => Ok(bytes),
            Data::Granted(_) => Err(DecodeError::Granted { message }),
        }
    }

    /// Reads a byte field whose content is used where it was received.
    #[inline]
    pub fn data(&mut self, message: &'static str) -> Result<Data<'a>, DecodeError> {
        let len = u32::from_le_bytes(self.take(message)?) as usize;
        if self.left.is_empty() && len == self.tail.len() {
            return Ok(std::mem::replace(&mut self.tail, NOTHING));
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
        Ok(Data::Here(head))
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
