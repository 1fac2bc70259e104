//! The header of sixteen bytes at the start of every message. A link carries whole frames; how it
//! marks their ends is the link's own affair.

use crate::{
    codec::{DecodeError, EncodeError, Op, Reader, Room, Writer},
    limits::CHUNK_BYTES_MAX,
    messages::skip_to_data,
};

pub const HEADER_BYTES: usize = 16;

/// Header of every message from client to server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// The message's number.
    pub op: u16,
    /// 0, or [`ON_DATA_CONNECTION`]: the message's data, or the data of its reply, may come on a
    /// data connection.
    pub data_connection: u16,
    /// Names the reply; 0 if none is wanted.
    pub token: u32,
    /// The context that is current for the calling thread; 0 if there is none. While the client
    /// profiles, also the number of the program's call ([`of_call`]).
    pub context: u64,
}

/// Bits of [`RequestHeader::context`] that hold a call's number. Handles of contexts leave them 0.
const CALL_SHIFT: u32 = 24;
const CALL_BITS: u64 = (u32::MAX as u64) << CALL_SHIFT;

/// Adds the number of the program's call to a header's context. A context whose handle uses these
/// bits is returned unchanged.
#[inline]
pub fn of_call(context: u64, call: u32) -> u64 {
    match context & CALL_BITS {
        0 => context | u64::from(call) << CALL_SHIFT,
        _ => context,
    }
}

/// Splits a header's context into the context and the number of the call, 0 for none.
#[inline]
pub fn context_and_call(context: u64) -> (u64, u32) {
    (context & !CALL_BITS, (context >> CALL_SHIFT) as u32)
}

/// Header of every reply and note from server to client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// 0 for the reply to `token`, otherwise the note's number.
    pub note: u16,
    /// The bits [`WRITTEN`] and [`FROM_GPU`], for data that did not come in the ordinary way.
    pub placed: u16,
    pub token: u32,
    /// The `CUresult` of the call. Unless it is 0, the frame holds the reason as a byte field
    /// instead of a reply.
    pub status: u32,
    /// Number of replies that the server had handed to data connections before it sent this frame;
    /// for a reply on a data connection, before that reply. The client acts on the frame only after
    /// that many have arrived. Wraps to 0 at 2^32.
    pub replies_before: u32,
}

/// Bit: the data was written where its message asked for it, and is not in the reply.
pub const WRITTEN: u16 = 1;
/// Bit: the server's adapter took the data from the GPU's memory.
pub const FROM_GPU: u16 = 2;

/// The data comes on a data connection. For a message that ends in data, its own frame holds only
/// the data's length; the n-th such message of a session, counted from 0, finds its data in the
/// frame with the number n on one of the data connections, which is sent before the message. For a
/// message that asks for data, the reply comes whole either on any data connection or on the
/// session's own.
pub const ON_DATA_CONNECTION: u16 = 1;
/// Length of what comes before the data in a frame to the server on a data connection: the frame's
/// number, as u64.
pub const DATA_FRAME_HEAD_BYTES: usize = 8;

const _: () = assert!(HEADER_BYTES == 2 + 2 + 4 + 8);
const _: () = assert!(HEADER_BYTES == 2 + 2 + 4 + 4 + 4);

impl RequestHeader {
    #[inline]
    pub fn encode(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        let mut header = [0; HEADER_BYTES];
        header[0..2].copy_from_slice(&self.op.to_le_bytes());
        header[2..4].copy_from_slice(&self.data_connection.to_le_bytes());
        header[4..8].copy_from_slice(&self.token.to_le_bytes());
        header[8..16].copy_from_slice(&self.context.to_le_bytes());
        room.put(&header)
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const NAME: &str = "a request header";
        Ok(RequestHeader {
            op: u16::from_le_bytes(r.take(NAME)?),
            data_connection: u16::from_le_bytes(r.take(NAME)?),
            token: u32::from_le_bytes(r.take(NAME)?),
            context: u64::from_le_bytes(r.take(NAME)?),
        })
    }
}

impl ReplyHeader {
    pub fn encode(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        room.put(&self.note.to_le_bytes())?;
        room.put(&self.placed.to_le_bytes())?;
        room.put(&self.token.to_le_bytes())?;
        room.put(&self.status.to_le_bytes())?;
        room.put(&self.replies_before.to_le_bytes())
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        const NAME: &str = "a reply header";
        Ok(ReplyHeader {
            note: u16::from_le_bytes(r.take(NAME)?),
            placed: u16::from_le_bytes(r.take(NAME)?),
            token: u32::from_le_bytes(r.take(NAME)?),
            status: u32::from_le_bytes(r.take(NAME)?),
            replies_before: u32::from_le_bytes(r.take(NAME)?),
        })
    }
}

/// Length of the frame that carries this message.
#[inline]
pub fn request_len<'a, M: Op<'a>>(message: &M) -> usize {
    HEADER_BYTES + message.encoded_len()
}

/// Length of all frames that take `bytes` to the device over a network.
pub fn copy_in_len(bytes: u64) -> u64 {
    const EACH: u64 = (HEADER_BYTES + 8 + 8 + 4 + 4) as u64;
    bytes + EACH * bytes.div_ceil(CHUNK_BYTES_MAX as u64)
}

/// Lengths of all frames that ask for `bytes` of the device over a network, and of all replies.
pub fn copy_out_len(bytes: u64) -> (u64, u64) {
    const EACH: u64 = (HEADER_BYTES + 8 + 8 + 8) as u64;
    let pieces = bytes.div_ceil(CHUNK_BYTES_MAX as u64);
    (EACH * pieces, bytes + REPLY_DATA_AT as u64 * pieces)
}

/// Lays out a whole frame of [`request_len`] bytes.
#[inline(always)]
pub fn encode_request<'a, M: Op<'a>>(
    room: &mut impl Room,
    token: u32,
    context: u64,
    message: &M,
) -> Result<(), EncodeError> {
    request_header::<M>(token, context).encode(room)?;
    message.encode(room)
}

/// Like [`encode_request`], for a message whose reply may come on a data connection.
pub fn encode_request_for_data_connection<'a, M: Op<'a>>(
    room: &mut impl Room,
    token: u32,
    context: u64,
    message: &M,
) -> Result<(), EncodeError> {
    RequestHeader {
        data_connection: ON_DATA_CONNECTION,
        ..request_header::<M>(token, context)
    }
    .encode(room)?;
    message.encode(room)
}

#[inline(always)]
fn request_header<'a, M: Op<'a>>(token: u32, context: u64) -> RequestHeader {
    RequestHeader {
        op: M::NUMBER,
        data_connection: 0,
        token,
        context,
    }
}

/// Lays out all but the data of a message that ends in data. Returns the length before the data,
/// and the data. `None` for all other messages, and if `room` is too short.
#[inline]
pub fn encode_request_head<'a, M: Op<'a>>(
    room: &mut [u8],
    token: u32,
    context: u64,
    message: &M,
) -> Option<(usize, &'a [u8])> {
    encode_head(room, request_header::<M>(token, context), message)
}

/// Like [`encode_request_head`], for a message whose data comes on a data connection.
pub fn encode_request_head_for_data_connection<'a, M: Op<'a>>(
    room: &mut [u8],
    context: u64,
    message: &M,
) -> Option<usize> {
    let header = RequestHeader {
        data_connection: ON_DATA_CONNECTION,
        ..request_header::<M>(0, context)
    };
    encode_head(room, header, message).map(|(len, _)| len)
}

#[inline]
fn encode_head<'a, M: Op<'a>>(
    room: &mut [u8],
    header: RequestHeader,
    message: &M,
) -> Option<(usize, &'a [u8])> {
    let len = room.len();
    let mut w = Writer::new(room);
    header.encode(&mut w).ok()?;
    let data = message.encode_head(&mut w).ok()??;
    Some((len - w.left(), data))
}

/// Offset of the data of a copy to the device in its frame of `len` bytes, which starts with
/// `head`. `None` for all other messages, and if the data does not end with the frame.
pub fn copied_data_at(head: &[u8], len: usize) -> Option<usize> {
    let mut r = Reader::new(head);
    let op = RequestHeader::decode(&mut r).ok()?.op;
    skip_to_data(op, &mut r)?;
    let data_len = u32::from_le_bytes(r.take("data").ok()?) as usize;
    let at = head.len() - r.left();
    (at + data_len == len).then_some(at)
}

/// Offset of the data in the frame of a successful reply that consists of data.
pub const REPLY_DATA_AT: usize = HEADER_BYTES + 4;

/// Token of the reply in a frame of `len` bytes that starts with `head`, if the reply is successful
/// and consists of data. `None` for all other frames.
pub fn copied_to(head: &[u8], len: usize) -> Option<u32> {
    let (header, mut r) = decode_reply(head).ok()?;
    let data_len = u32::from_le_bytes(r.take("an answer").ok()?) as usize;
    let is_data = header.note == 0 && header.status == 0 && REPLY_DATA_AT + data_len == len;
    is_data.then_some(header.token)
}

/// Splits a frame from the server into its header and a reader of the rest.
pub fn decode_reply(frame: &[u8]) -> Result<(ReplyHeader, Reader<'_>), DecodeError> {
    let mut r = Reader::new(frame);
    Ok((ReplyHeader::decode(&mut r)?, r))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_and_a_call_come_apart_again() {
        for context in [0, 1, 0x4300_0000_0000_0001, 0x43ff_ffff] {
            let alone = context & !CALL_BITS;
            for call in [1, 77, u32::MAX] {
                assert_eq!(context_and_call(of_call(alone, call)), (alone, call));
                // Adding a number twice is adding it once.
                assert_eq!(
                    of_call(of_call(alone, call), call + u32::from(call == 1)),
                    of_call(alone, call)
                );
            }
            assert_eq!(context_and_call(alone), (alone, 0));
        }
    }
    use crate::{
        Data, DecodeError, Message as _,
        messages::{CopyBoxIn, CopyIn, HostWrite, Request},
    };

    fn framed<'a, M: Op<'a>>(message: &M) -> Vec<u8> {
        let mut frame = vec![0; request_len(message)];
        encode_request(&mut Writer::new(&mut frame), 3, 5, message).unwrap();
        frame
    }

    #[test]
    fn the_lengths_of_copies_are_those_of_their_messages() {
        let data = vec![9; 300];
        let copy = CopyIn {
            dst: 1,
            stream: 2,
            sync: 0,
            data: data[..].into(),
        };
        assert_eq!(copy_in_len(300), request_len(&copy) as u64);
        let ask = crate::messages::CopyOut {
            src: 1,
            len: 300,
            stream: 2,
        };
        let answer = REPLY_DATA_AT + data.len();
        assert_eq!(copy_out_len(300), (request_len(&ask) as u64, answer as u64));
        let large = 2 * CHUNK_BYTES_MAX as u64 + 1;
        assert_eq!(copy_in_len(large) - large, 3 * (copy_in_len(1) - 1));
        assert_eq!((copy_in_len(0), copy_out_len(0)), (0, (0, 0)));
    }

    #[test]
    fn a_request_in_two_parts_is_the_one_in_one_part() {
        let data = &[9; 300][..];
        let copy = CopyIn {
            dst: 1,
            stream: 2,
            sync: 0,
            data: data.into(),
        };
        let copy_box = CopyBoxIn {
            stream: 2,
            sync: 1,
            desc: b"a box",
            data: data.into(),
        };
        let (mut room, mut box_room) = ([0; 100], [0; 100]);
        let head = encode_request_head(&mut room, 3, 5, &copy).unwrap();
        let box_head = encode_request_head(&mut box_room, 3, 5, &copy_box).unwrap();
        for (whole, room, (at, tail)) in [
            (framed(&copy), room, head),
            (framed(&copy_box), box_room, box_head),
        ] {
            assert_eq!(tail, data);
            assert_eq!(copied_data_at(&whole[..100], whole.len()), Some(at));
            assert_eq!(copied_data_at(&whole[..100], whole.len() + 1), None);
            assert_eq!(copied_data_at(&whole[..at - 1], whole.len()), None);
            let decode = |mut r: Reader<'_>| {
                let header = RequestHeader::decode(&mut r).unwrap();
                let request = Request::decode(header.op, &mut r).map(|r| format!("{r:?}"));
                r.end().and(request)
            };
            let expected = decode(Reader::new(&whole));
            assert!(expected.is_ok());
            assert_eq!(decode(Reader::split(&room[..at], tail.into())), expected);
            // Data of another length than was announced, or none.
            assert!(decode(Reader::split(&room[..at], tail[1..].into())).is_err());
            assert!(decode(Reader::new(&room[..at])).is_err());
            assert!(decode(Reader::split(&whole, tail.into())).is_err());
        }
        assert_eq!(encode_request_head(&mut [0; 35], 3, 5, &copy), None);
        let fence = crate::messages::Ping {};
        assert_eq!(encode_request_head(&mut [0; 100], 3, 5, &fence), None);
        // Data in granted memory has no bytes to refer to or to send.
        let mut r = Reader::split(&room[HEADER_BYTES..head.0], Data::Granted(data.len()));
        let received = CopyIn::decode(&mut r).unwrap();
        assert_eq!(received.data, Data::Granted(data.len()));
        assert!(r.end().is_ok());
        assert_eq!(encode_request_head(&mut [0; 100], 3, 5, &received), None);
        let write = framed(&HostWrite { va: 1, data });
        let head = &write[HEADER_BYTES..write.len() - data.len()];
        let mut r = Reader::split(head, Data::Granted(data.len()));
        assert!(matches!(
            HostWrite::decode(&mut r),
            Err(DecodeError::Granted { .. })
        ));
        // The server alone decides where such data lies.
        let write = framed(&HostWrite { va: 1, data });
        assert_eq!(copied_data_at(&write, write.len()), None);
    }

    #[test]
    fn an_answer_of_data_is_told_from_all_others() {
        let frame = |note: u16, status: u32, data_len: u32| {
            let header = ReplyHeader {
                note,
                placed: 0,
                token: 7,
                status,
                replies_before: 0,
            };
            let mut frame = vec![0; REPLY_DATA_AT];
            header.encode(&mut Writer::new(&mut frame)).unwrap();
            frame[HEADER_BYTES..].copy_from_slice(&data_len.to_le_bytes());
            frame
        };
        let len = REPLY_DATA_AT + 100;
        assert_eq!(copied_to(&frame(0, 0, 100), len), Some(7));
        assert_eq!(copied_to(&frame(1, 0, 100), len), None);
        assert_eq!(copied_to(&frame(0, 700, 100), len), None);
        assert_eq!(copied_to(&frame(0, 0, 99), len), None);
        assert_eq!(copied_to(&frame(0, 0, u32::MAX), len), None);
        assert_eq!(copied_to(&frame(0, 0, 100)[..REPLY_DATA_AT - 1], len), None);
    }
}
