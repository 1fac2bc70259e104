//! The sixteen bytes in front of every message. A link carries whole frames; how it marks their ends is its own affair.

use crate::codec::{DecodeError, EncodeError, Op, Reader, Writer};

pub const HEADER_BYTES: usize = 16;

/// In front of every message from client to server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The message's number.
    pub op: u16,
    pub reserved: u16,
    /// Names the answer; 0 where none is wanted.
    pub token: u32,
    /// The context that is current for the calling thread; 0 where none is.
    pub context: u64,
}

/// In front of every answer and note from server to client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// 0: the answer to `token`; else a note of that number.
    pub note: u16,
    pub reserved: u16,
    pub token: u32,
    /// The `CUresult` of the call answered. Where it is not 0, no reply follows, but a byte field with the reason.
    pub status: u32,
    pub reserved2: u32,
}

const _: () = assert!(HEADER_BYTES == 2 + 2 + 4 + 8);
const _: () = assert!(HEADER_BYTES == 2 + 2 + 4 + 4 + 4);

impl RequestHeader {
    pub fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.put(&self.op.to_le_bytes())?;
        w.put(&self.reserved.to_le_bytes())?;
        w.put(&self.token.to_le_bytes())?;
        w.put(&self.context.to_le_bytes())
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const NAME: &str = "a request header";
        Ok(RequestHeader {
            op: u16::from_le_bytes(r.take(NAME)?),
            reserved: u16::from_le_bytes(r.take(NAME)?),
            token: u32::from_le_bytes(r.take(NAME)?),
            context: u64::from_le_bytes(r.take(NAME)?),
        })
    }
}

impl ReplyHeader {
    pub fn encode(&self, w: &mut Writer<'_>) -> Result<(), EncodeError> {
        w.put(&self.note.to_le_bytes())?;
        w.put(&self.reserved.to_le_bytes())?;
        w.put(&self.token.to_le_bytes())?;
        w.put(&self.status.to_le_bytes())?;
        w.put(&self.reserved2.to_le_bytes())
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const NAME: &str = "a reply header";
        Ok(ReplyHeader {
            note: u16::from_le_bytes(r.take(NAME)?),
            reserved: u16::from_le_bytes(r.take(NAME)?),
            token: u32::from_le_bytes(r.take(NAME)?),
            status: u32::from_le_bytes(r.take(NAME)?),
            reserved2: u32::from_le_bytes(r.take(NAME)?),
        })
    }
}

/// The length of the frame that carries this message.
#[inline]
pub fn request_len<'a, M: Op<'a>>(message: &M) -> usize {
    HEADER_BYTES + message.encoded_len()
}

/// Lays a whole frame out in `room`, which is `request_len` long.
#[inline]
pub fn encode_request<'a, M: Op<'a>>(
    room: &mut [u8],
    token: u32,
    context: u64,
    message: &M,
) -> Result<(), EncodeError> {
    let mut w = Writer::new(room);
    RequestHeader {
        op: M::NUMBER,
        reserved: 0,
        token,
        context,
    }
    .encode(&mut w)?;
    message.encode(&mut w)
}

/// A frame from the server: its header, and a reader over what follows.
pub fn decode_reply(frame: &[u8]) -> Result<(ReplyHeader, Reader<'_>), DecodeError> {
    let mut r = Reader::new(frame);
    Ok((ReplyHeader::decode(&mut r)?, r))
}
