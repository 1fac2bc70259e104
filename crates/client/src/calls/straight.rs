//! Copies that go straight from one server to another. The server's `session/peers` has the
//! picture. Where there is no way between the two, or it ends, the caller makes the copy.
//!
//! A way is made at the first long copy from one server to another, and serves all later ones. One
//! that could not be made, or has ended, is not tried again.

use std::{ops::Range, sync::Arc};

use outboard_api::CUresult;
use outboard_wire::{
    Op,
    limits::{CHUNK_BYTES_MAX, PEER_PIECES_AT_ONCE, SERVERS_MAX},
    messages::{
        PeerAwait, PeerClose, PeerCome, PeerConnect, PeerSend, PeerSendBox, PeerWrite, PeerWriteBox,
    },
};
use parking_lot::Mutex;

use crate::{
    done::Done,
    observe::{crossings, crossings::Through, optimise},
    session::{Group, Numbered, Sink},
    state::{Driver, StreamRef},
};

/// Shortest copy that goes straight. A shorter one is done sooner through here: it needs fewer
/// round trips.
const STRAIGHT_BYTES_MIN: u64 = 256 << 10;

/// One end of a copy: its server, and the context and stream of its work.
pub(super) struct End {
    pub(super) driver: &'static Driver,
    pub(super) context: u64,
    pub(super) stream: StreamRef,
}

/// The bytes of a copy, in pieces of at most `CHUNK_BYTES_MAX` bytes each.
#[derive(Clone, Copy)]
pub(super) enum Bytes<'b> {
    Line { dst: u64, src: u64, bytes: u64 },
    Rows(&'b dyn Rows),
}

/// Rows of memory at both ends, in pieces, as descriptions for messages.
pub(super) trait Rows {
    fn bytes(&self) -> u64;
    fn pieces(&self) -> u64;
    /// Describes where a piece comes from.
    fn from(&self, piece: u64) -> Result<Vec<u8>, CUresult>;
    /// Describes where a piece goes to.
    fn to(&self, piece: u64) -> Result<Vec<u8>, CUresult>;
}

impl Bytes<'_> {
    fn len(&self) -> u64 {
        match self {
            Bytes::Line { bytes, .. } => *bytes,
            Bytes::Rows(rows) => rows.bytes(),
        }
    }

    fn pieces(&self) -> u64 {
        match self {
            Bytes::Line { bytes, .. } => bytes.div_ceil(CHUNK_BYTES_MAX as u64),
            Bytes::Rows(rows) => rows.pieces(),
        }
    }
}

/// The way from one server to another.
enum Way {
    None,
    /// Number of the piece that is next.
    Open(u64),
    Closed(Through),
}

/// Ways by the numbers of both servers, the source's first. Its lock is held during a copy.
static WAYS: [[Mutex<Way>; SERVERS_MAX]; SERVERS_MAX] =
    [const { [const { Mutex::new(Way::None) }; SERVERS_MAX] }; SERVERS_MAX];

/// Makes a copy straight from one server to the other. Returns false if the caller has to make it:
/// nothing or a part of it is copied then.
pub(super) fn copy(dst: &End, src: &End, bytes: Bytes<'_>) -> bool {
    match try_copy(dst, src, bytes) {
        Ok(()) => {
            crossings::went_straight(bytes.len());
            true
        }
        Err(why) => {
            crossings::went_through(why);
            false
        }
    }
}

fn try_copy(dst: &End, src: &End, bytes: Bytes<'_>) -> Result<(), Through> {
    if optimise::is_lowered() || dst.driver.is_emulated || src.driver.is_emulated {
        return Err(Through::Asked);
    }
    let address = dst.driver.peer_address.as_deref();
    let address = address.ok_or(Through::Address)?;
    if bytes.len() < STRAIGHT_BYTES_MIN {
        return Err(Through::Short);
    }
    let (from, to) = (src.driver.number, dst.driver.number);
    let row = WAYS.get(usize::from(from)).ok_or(Through::Address)?;
    let mut way = row.get(usize::from(to)).ok_or(Through::Address)?.lock();
    let first = match *way {
        Way::Open(next) => next,
        Way::Closed(why) => return Err(why),
        Way::None => {
            if let Err(why) = open(dst, src, address) {
                close(dst, src);
                *way = Way::Closed(why);
                return Err(why);
            }
            0
        }
    };
    let pieces = bytes.pieces();
    match (Run {
        dst,
        src,
        bytes,
        first,
    })
    .copy(pieces)
    {
        Ok(()) => {
            *way = Way::Open(first + pieces);
            Ok(())
        }
        Err(_) => {
            close(dst, src);
            *way = Way::Closed(Through::Broken);
            Err(Through::Broken)
        }
    }
}

/// Number by which the source's server knows the way, and the destination's.
fn outgoing(dst: &End) -> u32 {
    2 * u32::from(dst.driver.number)
}

fn incoming(src: &End) -> u32 {
    2 * u32::from(src.driver.number) + 1
}

/// Makes the way: one server awaits the other, which connects.
fn open(dst: &End, src: &End, address: &str) -> Result<(), Through> {
    let awaits = PeerAwait { way: incoming(src) };
    let asked = dst.driver.session.call(dst.context, &awaits, |reply| {
        let secret: &[u8] = &reply.secret;
        secret.to_vec()
    });
    let secret = asked.ok().filter(|secret| !secret.is_empty());
    let connect = PeerConnect {
        way: outgoing(dst),
        address: address.as_bytes(),
        secret: &secret.ok_or(Through::NotAwaited)?,
    };
    let connected = src.driver.session.call(src.context, &connect, |_| ());
    connected.map_err(|_| Through::NotReached)
}

/// Has both servers forget the way. A server that is gone has.
fn close(dst: &End, src: &End) {
    let ends = [(src, outgoing(dst)), (dst, incoming(src))];
    for (end, way) in ends {
        let _ = end.driver.submit_in(end.context, &PeerClose { way });
    }
}

/// One copy by an open way.
struct Run<'e> {
    dst: &'e End,
    src: &'e End,
    bytes: Bytes<'e>,
    /// Number of its first piece.
    first: u64,
}

impl Run<'_> {
    /// Copies all pieces, some at a time: while those of one turn are written, the next ones come.
    fn copy(&self, pieces: u64) -> Done {
        let turn = PEER_PIECES_AT_ONCE as u64;
        let end_of = |start: u64| pieces.min(start + turn);
        let mut sent = self.send(0, end_of(0))?;
        let mut start = 0;
        while start < pieces {
            let end = end_of(start);
            let next = match end < pieces {
                true => Some(self.send(end, end_of(end))?),
                false => None,
            };
            let come = PeerCome {
                way: incoming(self.src),
                number: self.first + end - 1,
            };
            self.src.driver.session.wait(&sent)?;
            let session = self.dst.driver.session;
            session.call(self.dst.context, &come, |_| ())?;
            session.wait(&self.write(start, end)?)?;
            start = end;
            match next {
                Some(group) => sent = group,
                None => break,
            }
        }
        Ok(())
    }

    /// Asks for pieces to be sent. Their replies say that they have been copied from the GPU.
    fn send(&self, start: u64, end: u64) -> Result<Arc<Group>, CUresult> {
        let (way, stream) = (outgoing(self.dst), self.src.stream.wire());
        let group = Group::new((end - start) as usize);
        for (index, number) in self.numbered(start..end) {
            match self.bytes {
                Bytes::Line { src, bytes, .. } => {
                    let (offset, len) = part(bytes, index);
                    let src = src + offset;
                    let message = PeerSend {
                        way,
                        number,
                        src,
                        len,
                        stream,
                    };
                    ask(self.src, Numbered::No, &message, &group)?;
                }
                Bytes::Rows(rows) => {
                    let desc = &rows.from(index)?;
                    let message = PeerSendBox {
                        way,
                        number,
                        stream,
                        desc,
                    };
                    ask(self.src, Numbered::No, &message, &group)?;
                }
            }
        }
        Ok(group)
    }

    /// Asks for pieces that have come to be written: work that a wait for the stream covers.
    fn write(&self, start: u64, end: u64) -> Result<Arc<Group>, CUresult> {
        let (way, stream) = (incoming(self.src), self.dst.stream.wire());
        let group = Group::new((end - start) as usize);
        for (index, number) in self.numbered(start..end) {
            let work = self.dst.stream.work();
            match self.bytes {
                Bytes::Line { dst, bytes, .. } => {
                    let (offset, len) = part(bytes, index);
                    let dst = dst + offset;
                    let message = PeerWrite {
                        way,
                        number,
                        dst,
                        len,
                        stream,
                    };
                    ask(self.dst, work, &message, &group)?;
                }
                Bytes::Rows(rows) => {
                    let desc = &rows.to(index)?;
                    let message = PeerWriteBox {
                        way,
                        number,
                        stream,
                        desc,
                    };
                    ask(self.dst, work, &message, &group)?;
                }
            }
        }
        Ok(group)
    }

    /// Returns each of these pieces by its place in the copy and its number on the way.
    fn numbered(&self, pieces: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let first = self.first;
        pieces.map(move |piece| (piece, first + piece))
    }
}

/// Returns the offset and the length of a piece of a line.
fn part(bytes: u64, index: u64) -> (u64, u64) {
    let offset = index * CHUNK_BYTES_MAX as u64;
    (offset, (bytes - offset).min(CHUNK_BYTES_MAX as u64))
}

/// Asks a server for something, as one of a group.
fn ask<'m, M: Op<'m>>(end: &End, numbered: Numbered<'_>, message: &M, group: &Arc<Group>) -> Done {
    let session = end.driver.session;
    let asked = session.ask_numbered(numbered, end.context, message, group, Sink::Group);
    asked.map(drop)
}
