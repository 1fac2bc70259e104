//! Copies from the device that wait until fewer of them are pending, and the messages that may go
//! before them meanwhile.
//!
//! A program asks for a long copy from the device in one go, a message for each piece. Once the
//! pending ones have reached their limit, no further message could be executed before a reply is
//! sent; a copy to the device in another stream would stand still until most of the copy from the
//! device has crossed the network. CUDA gives two streams no order but by events, by the legacy
//! stream or by the host. So while the limit is reached:
//!
//! - A copy from the device is held, and a fence of its stream after it.
//! - A copy to the device, or between what the server has, goes before those that are held, and a
//!   fence, if its stream is none of theirs.
//! - What the program changed in a mirror goes before them: it has no place in any stream's order,
//!   and the bytes of a copy from the mirror come in this way.
//! - Any other message, and every message after that, waits until none is held any more.
//!
//! Neither side of that can see an order: the legacy stream, which other streams wait for, is never
//! passed nor passes, nor is a synchronous copy, which all later work waits for.

use std::collections::VecDeque;

use outboard_wire::{
    Encode as _, Message as _, Op as _, Reader,
    frame::RequestHeader,
    messages::{Copy, CopyIn, CopyOut, FenceStream, HostWrite},
};

use super::limits;

/// The highest number of a legacy stream: that of `CU_STREAM_LEGACY`. The other is 0.
const STREAM_LEGACY: u64 = 1;

/// The messages that are held, the oldest first.
pub(super) struct Held {
    frames: VecDeque<Vec<u8>>,
    /// Numbers of their streams, each once.
    streams: Vec<u64>,
    /// A message that came after them waits until none is held.
    is_barred: bool,
    /// No message passes another.
    is_off: bool,
}

/// Whether a message may be executed while others are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Before those that are held.
    Now,
    /// After those, in this stream: it is to be held itself.
    Held(u64),
    /// After those, and before any other message.
    Barred,
}

impl Held {
    /// Holds nothing and lets nothing pass if `is_off`.
    pub(super) fn new(is_off: bool) -> Held {
        Held {
            frames: VecDeque::new(),
            streams: Vec::new(),
            is_barred: false,
            is_off,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns whether messages may be received although the pending replies have reached their
    /// limit.
    pub(super) fn may_receive(&self) -> bool {
        !self.is_off && !self.is_barred
    }

    /// Says when a message is executed that was received although the pending replies, of which
    /// there are `waiting`, have reached a limit. `body` is what follows its header.
    pub(super) fn turn_of(
        &mut self,
        header: &RequestHeader,
        body: &Reader<'_>,
        waiting: usize,
    ) -> Turn {
        let has_room = self.frames.len() < limits::HELD_MAX;
        let is_held = |stream| self.streams.contains(&stream);
        let turn = match (header.op, own_stream(header.op, body)) {
            (CopyOut::NUMBER, Some(stream)) if has_room => Turn::Held(stream),
            (FenceStream::NUMBER, Some(stream)) if has_room && is_held(stream) => {
                Turn::Held(stream)
            }
            // One more is pending then.
            (FenceStream::NUMBER, _) if waiting >= limits::WAITING_MAX => Turn::Barred,
            (FenceStream::NUMBER | CopyIn::NUMBER | Copy::NUMBER, Some(stream))
                if !is_held(stream) =>
            {
                Turn::Now
            }
            (HostWrite::NUMBER, _) => Turn::Now,
            _ => Turn::Barred,
        };
        // Without any that are held, the message itself waits for pending replies.
        self.is_barred = turn == Turn::Barred;
        turn
    }

    /// Holds a message in this stream.
    pub(super) fn push(&mut self, frame: &[u8], stream: u64) {
        if !self.streams.contains(&stream) {
            self.streams.push(stream);
        }
        self.frames.push_back(frame.to_vec());
    }

    /// Takes the next message out, to be executed.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        self.is_barred &= !self.frames.is_empty();
        let frame = self.frames.pop_front()?;
        if self.frames.is_empty() {
            self.streams.clear();
        }
        Some(frame)
    }
}

/// Returns the stream of a copy or a fence, if no other stream waits for it by itself and it waits
/// for none.
fn own_stream(op: u16, body: &Reader<'_>) -> Option<u64> {
    let mut body = body.clone();
    let stream = match op {
        CopyOut::NUMBER | FenceStream::NUMBER => {
            let stream = match op == CopyOut::NUMBER {
                true => CopyOut::decode(&mut body).ok()?.stream,
                false => FenceStream::decode(&mut body).ok()?.stream,
            };
            // A longer message is no such one, and must not be held as if it were short.
            body.end().ok().map(|()| stream)?
        }
        Copy::NUMBER => {
            let copy = Copy::decode(&mut body).ok()?;
            body.end().ok().filter(|()| copy.sync == 0)?;
            copy.stream
        }
        CopyIn::NUMBER => {
            // The data may be elsewhere.
            let _dst: [u8; 8] = body.take(CopyIn::NAME).ok()?;
            let stream = u64::from_le_bytes(body.take(CopyIn::NAME).ok()?);
            let sync = u32::from_le_bytes(body.take(CopyIn::NAME).ok()?);
            Some(stream).filter(|_| sync == 0)?
        }
        _ => return None,
    };
    (stream > STREAM_LEGACY).then_some(stream)
}

#[cfg(test)]
mod tests {
    use outboard_wire::{Data, messages};

    use super::*;

    fn turn_of<'a, M: outboard_wire::Op<'a>>(held: &mut Held, message: &M) -> Turn {
        let mut frame = vec![0; outboard_wire::frame::request_len(message)];
        let mut room = outboard_wire::Writer::new(&mut frame);
        outboard_wire::frame::encode_request(&mut room, 1, 9, message).unwrap();
        let mut body = Reader::new(&frame);
        let header = RequestHeader::decode(&mut body).unwrap();
        let turn = held.turn_of(&header, &body, 70);
        if let Turn::Held(stream) = turn {
            held.push(&frame, stream);
        }
        turn
    }

    fn copy_out(stream: u64) -> CopyOut {
        let (src, len) = (1, 1 << 20);
        CopyOut { src, len, stream }
    }

    fn copy_in(stream: u64, sync: u32) -> CopyIn<'static> {
        let data = Data::Here(&[7; 100]);
        CopyIn {
            dst: 1,
            stream,
            sync,
            data,
        }
    }

    fn copy_there(stream: u64, sync: u32) -> Copy {
        let [dst, src, len] = [1, 2, 100];
        Copy {
            dst,
            src,
            len,
            stream,
            sync,
        }
    }

    fn fence(stream: u64) -> FenceStream {
        let (slot, value) = (0, 0);
        FenceStream {
            stream,
            slot,
            value,
        }
    }

    #[test]
    fn only_what_no_stream_orders_passes_copies_from_the_device() {
        let mut held = Held::new(false);
        assert_eq!(turn_of(&mut held, &copy_in(5, 0)), Turn::Now);
        assert_eq!(turn_of(&mut held, &copy_out(3)), Turn::Held(3));
        assert_eq!(turn_of(&mut held, &fence(3)), Turn::Held(3));
        assert_eq!(turn_of(&mut held, &fence(5)), Turn::Now);
        assert_eq!(turn_of(&mut held, &copy_in(5, 0)), Turn::Now);
        let (va, data) = (1 << 20, [7; 8].as_slice());
        let change = messages::HostWrite { va, data };
        assert_eq!(turn_of(&mut held, &change), Turn::Now);
        assert_eq!(turn_of(&mut held, &copy_there(5, 0)), Turn::Now);
        assert_eq!(turn_of(&mut held, &copy_out(5)), Turn::Held(5));
        assert!(held.may_receive());
        for (what, turn) in [
            (
                "the stream of one that is held",
                turn_of(&mut held, &copy_in(5, 0)),
            ),
            ("a copy there in it", turn_of(&mut held, &copy_there(3, 0))),
            ("synchronous there", turn_of(&mut held, &copy_there(6, 1))),
            (
                "the null stream there",
                turn_of(&mut held, &copy_there(0, 0)),
            ),
            ("synchronous", turn_of(&mut held, &copy_in(6, 1))),
            ("the null stream", turn_of(&mut held, &copy_in(0, 0))),
            (
                "the legacy stream",
                turn_of(&mut held, &copy_in(STREAM_LEGACY, 0)),
            ),
            ("a copy out in it", turn_of(&mut held, &copy_out(0))),
            ("a fence of it", turn_of(&mut held, &fence(0))),
            (
                "other work",
                turn_of(&mut held, &messages::EventDestroy { event: 4 }),
            ),
        ] {
            assert_eq!(turn, Turn::Barred, "{what}");
            assert!(!held.may_receive(), "{what}");
        }
        // What waits for those that are held goes after the last of them.
        for left in (0..3).rev() {
            assert!(held.pop().is_some() && !held.may_receive(), "{left}");
        }
        assert!(held.pop().is_none() && held.may_receive() && held.is_empty());
        assert_eq!(turn_of(&mut held, &copy_in(3, 0)), Turn::Now);
    }

    #[test]
    fn as_many_are_held_as_the_limit_allows_and_none_if_they_are_not_to_be() {
        let mut held = Held::new(false);
        for _ in 0..limits::HELD_MAX {
            assert_eq!(turn_of(&mut held, &copy_out(3)), Turn::Held(3));
        }
        assert_eq!(turn_of(&mut held, &copy_out(3)), Turn::Barred);
        assert!(!Held::new(true).may_receive());
    }
}
