//! Ways for copies between two servers of one client, so that the bytes do not pass through it.
//!
//! ```text
//!  client            server of the source (outgoing)         server of the destination (incoming)
//!    ├── await ──────────────────────────────────────────────────► makes a secret
//!    │◄─────────────────────────────────────────────── secret ─────┤
//!    ├── connect: address, secret ──►│ connects, says its proof ──►│ welcomes it, once
//!    │◄───────────────────── reply ──┤                             │
//!    ├── send: piece 0, 1, ... ─────►│ copies them from the GPU ──►│ keeps them
//!    ├── come: 1 ────────────────────────────────────────────────► replies when piece 1 has come
//!    ├── write: piece 0, 1 ──────────────────────────────────────► copies them to the GPU
//! ```
//!
//! The other server is believed nothing: it can bring this session pieces in order, of bounded
//! length, and nothing else. A piece is written where the client says. If a way ends, whatever the
//! reason, messages that name it fail, and the client makes the copy itself.
//!
//! Nothing here blocks the session's thread. Each way has one thread.

pub(crate) mod incoming;
mod outgoing;

use std::{sync::Arc, thread::JoinHandle, time::Instant};

use outboard_api::CUresult;
use outboard_device::{Cx, Failure, Outcome, Pending};
use outboard_wire::{
    Data, DecodeError, Message as _, Op as _, Reader,
    frame::RequestHeader,
    handshake::Purpose,
    limits::{CHUNK_BYTES_MAX, PEER_PIECES_AHEAD_MAX, PEER_WAYS_MAX},
    messages::{self, CopyBoxIn, CopyBoxOut, CopyIn, CopyOut},
};

use self::{
    incoming::Incoming,
    outgoing::{Outgoing, Target},
};
use super::{
    End, Session,
    execute::{Executed, box_bytes, lay_out},
    sources::DataConnectionSource,
    waiting::ToPeer,
};

/// The ways of one session.
pub(super) struct Peers {
    source: Option<Arc<dyn DataConnectionSource>>,
    ways: [Option<Way>; PEER_WAYS_MAX],
    /// Threads of all ways that there were.
    threads: Vec<JoinHandle<()>>,
}

enum Way {
    In(Arc<Incoming>),
    Out(Arc<Outgoing>),
}

/// A message about a way, of which the session's thread keeps nothing borrowed.
pub(super) enum PeerMessage {
    Await(u32),
    Connect(u32, Result<Target, Failure>),
    Send(messages::PeerSend),
    SendBox(BoxPiece),
    Come(messages::PeerCome),
    Write(messages::PeerWrite),
    WriteBox(BoxPiece),
    Close(u32),
}

/// Rows of memory that are a piece of a way.
pub(super) struct BoxPiece {
    way: u32,
    number: u64,
    stream: u64,
    desc: Vec<u8>,
    /// Length of the rows without padding, in bytes.
    len: u64,
}

impl PeerMessage {
    /// Decodes one of these messages; None if it is another.
    pub(super) fn decode(op: u16, r: &mut Reader<'_>) -> Option<Result<PeerMessage, DecodeError>> {
        Some(match op {
            messages::PeerAwait::NUMBER => {
                messages::PeerAwait::decode(r).map(|m| PeerMessage::Await(m.way))
            }
            messages::PeerConnect::NUMBER => messages::PeerConnect::decode(r)
                .map(|m| PeerMessage::Connect(m.way, Target::read(m.address, m.secret))),
            messages::PeerSend::NUMBER => messages::PeerSend::decode(r).map(PeerMessage::Send),
            messages::PeerCome::NUMBER => messages::PeerCome::decode(r).map(PeerMessage::Come),
            messages::PeerWrite::NUMBER => messages::PeerWrite::decode(r).map(PeerMessage::Write),
            messages::PeerSendBox::NUMBER => messages::PeerSendBox::decode(r)
                .map(|m| PeerMessage::SendBox(BoxPiece::new(m.way, m.number, m.stream, m.desc))),
            messages::PeerWriteBox::NUMBER => messages::PeerWriteBox::decode(r)
                .map(|m| PeerMessage::WriteBox(BoxPiece::new(m.way, m.number, m.stream, m.desc))),
            messages::PeerClose::NUMBER => {
                messages::PeerClose::decode(r).map(|m| PeerMessage::Close(m.way))
            }
            _ => return None,
        })
    }
}

impl BoxPiece {
    fn new(way: u32, number: u64, stream: u64, desc: &[u8]) -> BoxPiece {
        BoxPiece {
            way,
            number,
            stream,
            desc: desc.to_vec(),
            len: box_bytes(desc),
        }
    }
}

pub(super) fn is_peer_message(op: u16) -> bool {
    matches!(
        op,
        messages::PeerAwait::NUMBER
            | messages::PeerConnect::NUMBER
            | messages::PeerSend::NUMBER
            | messages::PeerCome::NUMBER
            | messages::PeerWrite::NUMBER
            | messages::PeerSendBox::NUMBER
            | messages::PeerWriteBox::NUMBER
            | messages::PeerClose::NUMBER
    )
}

impl Session<'_> {
    /// Executes a message about a way.
    pub(super) fn execute_peer(
        &mut self,
        header: RequestHeader,
        message: &PeerMessage,
        start: Instant,
    ) -> Result<(), End> {
        let is_session = self.executor.purpose == Purpose::Session;
        self.executor.reply.clear();
        let mut executed = Executed::of(Ok(Outcome::Done));
        let sent = match message {
            PeerMessage::Send(m) => Some((m.way, m.number, m.stream, m.len)),
            PeerMessage::SendBox(m) => Some((m.way, m.number, m.stream, m.len)),
            _ => None,
        };
        if let Some((_, _, stream, len)) = sent {
            executed.stream = Some(stream);
            executed.reply_bytes = Some(len);
        }
        executed.outcome = match is_session {
            true => self.on_way(&header, message),
            false => Err(Failure::unsupported(
                "a way between servers, for a question",
            )),
        };
        if let Some(end) = self.ended_aside.take() {
            return Err(end);
        }
        let to = match (sent, &executed.outcome) {
            (Some((way, number, ..)), Ok(_)) => {
                let way = self.peers.outgoing(way);
                way.ok()
                    .map(|way| -> ToPeer { (Arc::clone(way) as _, number) })
            }
            _ => None,
        };
        self.settle_to(header, executed, start, to)
    }

    fn on_way(
        &mut self,
        header: &RequestHeader,
        message: &PeerMessage,
    ) -> Result<Outcome, Failure> {
        match message {
            PeerMessage::Await(way) => {
                let secret = self.peers.await_one(*way)?;
                let reply = messages::PeerAwaitReply {
                    secret: secret.into(),
                };
                lay_out(&reply, &mut self.executor.reply)
            }
            PeerMessage::Connect(way, target) => {
                let connecting = self.peers.connect(*way, target.clone()?);
                connecting.map(Outcome::Wait)
            }
            PeerMessage::Send(m) => {
                self.may_send(m.way, m.len)?;
                let message = CopyOut {
                    src: m.src,
                    len: m.len,
                    stream: m.stream,
                };
                let pending = self.with_device(header, |device, cx| device.copy_out(cx, &message));
                pending.map(Outcome::Wait)
            }
            PeerMessage::SendBox(m) => {
                self.may_send(m.way, m.len)?;
                let message = CopyBoxOut {
                    stream: m.stream,
                    desc: &m.desc,
                };
                let pending =
                    self.with_device(header, |device, cx| device.copy_box_out(cx, &message));
                pending.map(Outcome::Wait)
            }
            PeerMessage::Come(m) => {
                let way = Arc::clone(self.peers.incoming(m.way)?);
                Ok(Outcome::Wait(way.awaits(m.number)))
            }
            PeerMessage::Write(m) => {
                let piece = self.take(m.way, m.number, m.len)?;
                let message = CopyIn {
                    dst: m.dst,
                    stream: m.stream,
                    sync: 0,
                    data: Data::Here(&piece),
                };
                let copied = self.with_device(header, |device, cx| device.copy_in(cx, &message));
                copied.map(|()| Outcome::Done)
            }
            PeerMessage::WriteBox(m) => {
                let piece = self.take(m.way, m.number, m.len)?;
                let message = CopyBoxIn {
                    stream: m.stream,
                    sync: 0,
                    desc: &m.desc,
                    data: Data::Here(&piece),
                };
                let copied =
                    self.with_device(header, |device, cx| device.copy_box_in(cx, &message));
                copied.map(|()| Outcome::Done)
            }
            PeerMessage::Close(way) => {
                self.peers.close(*way);
                Ok(Outcome::Done)
            }
        }
    }

    /// Refuses a piece to be sent that is too long, or has no way.
    fn may_send(&self, way: u32, len: u64) -> Result<(), Failure> {
        self.peers.outgoing(way)?;
        check_len(len)?;
        Ok(outboard_budget::check()?)
    }

    /// Takes a piece that has come and is of this length.
    fn take(&self, way: u32, number: u64, len: u64) -> Result<Vec<u8>, Failure> {
        let piece = self.peers.incoming(way)?.take(number)?;
        if piece.len() as u64 != len {
            let what = format!("a piece of {} bytes, {len} were expected", piece.len());
            return Err(Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, what));
        }
        Ok(piece)
    }

    fn with_device<R>(
        &mut self,
        header: &RequestHeader,
        work: impl FnOnce(&mut dyn outboard_device::Device, &mut Cx<'_>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        self.serving(|executor, aids| {
            let mut cx = Cx {
                context: header.context,
                images: &mut executor.images,
                placed: None,
                fds: aids.fds,
                service: aids.service,
                unserved: aids.unserved,
            };
            work(&mut *executor.device, &mut cx)
        })
    }
}

impl Peers {
    pub(super) fn new(source: Option<Arc<dyn DataConnectionSource>>) -> Peers {
        Peers {
            source,
            ways: Default::default(),
            threads: Vec::new(),
        }
    }

    /// Begins to wait for another server. Returns the secret that it is to show; empty if none is
    /// awaited here.
    fn await_one(&mut self, way: u32) -> Result<Vec<u8>, Failure> {
        let index = self.free(way)?;
        let Some(source) = self.peer_source() else {
            return Ok(Vec::new());
        };
        let (incoming, secret, thread) = incoming::begin(source)?;
        self.threads.push(thread);
        self.ways[index] = Some(Way::In(incoming));
        Ok(secret.bytes().to_vec())
    }

    /// Begins to connect to another server.
    fn connect(&mut self, way: u32, target: Target) -> Result<Pending, Failure> {
        let index = self.free(way)?;
        let source = self.peer_source();
        let source = source.ok_or_else(|| failure("this server makes no copies to others"))?;
        let (outgoing, thread) = outgoing::begin(source, target)?;
        self.threads.push(thread);
        let pending = outgoing.connects();
        self.ways[index] = Some(Way::Out(outgoing));
        Ok(pending)
    }

    fn peer_source(&self) -> Option<Arc<dyn DataConnectionSource>> {
        let source = self.source.as_ref()?;
        source.peers().is_some().then(|| Arc::clone(source))
    }

    /// Returns the place of a way that there is not yet.
    fn free(&mut self, way: u32) -> Result<usize, Failure> {
        self.threads.retain(|thread| !thread.is_finished());
        let index = way as usize;
        let is_free = self.ways.get(index).is_some_and(Option::is_none);
        // Threads of closed ways may still be about to end.
        match is_free && self.threads.len() < 2 * PEER_WAYS_MAX {
            true => Ok(index),
            false => Err(Failure::wild("way between servers", way.into())),
        }
    }

    fn get(&self, way: u32) -> Option<&Way> {
        self.ways.get(way as usize)?.as_ref()
    }

    fn incoming(&self, way: u32) -> Result<&Arc<Incoming>, Failure> {
        match self.get(way) {
            Some(Way::In(incoming)) => Ok(incoming),
            _ => Err(Failure::wild("way between servers", way.into())),
        }
    }

    fn outgoing(&self, way: u32) -> Result<&Arc<Outgoing>, Failure> {
        match self.get(way) {
            Some(Way::Out(outgoing)) => Ok(outgoing),
            _ => Err(Failure::wild("way between servers", way.into())),
        }
    }

    fn close(&mut self, way: u32) {
        let known = self.ways.get_mut(way as usize);
        if let Some(way) = known.and_then(Option::take) {
            way.end();
        }
    }
}

impl Way {
    fn end(&self) {
        match self {
            Way::In(incoming) => incoming.end("the client has closed it"),
            Way::Out(outgoing) => outgoing.end("the client has closed it"),
        }
    }
}

/// Ends all threads before the device is dropped, whose memory they use.
impl Drop for Peers {
    fn drop(&mut self) {
        if let Some(peers) = self.source.as_ref().and_then(|source| source.peers()) {
            peers.end();
        }
        self.ways.iter().flatten().for_each(Way::end);
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

fn check_len(len: u64) -> Result<(), Failure> {
    match (1..=CHUNK_BYTES_MAX as u64).contains(&len) {
        true => Ok(()),
        false => Err(Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            format!(
                "a piece of {len} bytes for another server, at most {CHUNK_BYTES_MAX} are sent"
            ),
        )),
    }
}

fn failure(why: impl Into<String>) -> Failure {
    Failure::new(CUresult::CUDA_ERROR_NOT_READY, why.into())
}

/// Memory of one way, in bytes.
const _: () = assert!(PEER_PIECES_AHEAD_MAX * CHUNK_BYTES_MAX <= 16 << 20);
