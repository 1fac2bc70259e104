//! Queue pairs whose peer is an adapter in another process: messages as bytes.
//!
//! ```text
//!  0 kind 8 | syndrome 8 | solicited 8 | 0 8 | bytes of data 32 | 8 sequence 64 | 16 address 64
//!  24 rkey 32 | immediate, or bytes to read 32 | 32 add, swap, or value 64 | 40 compare 64 | data
//! ```
//!
//! Little-endian. Nothing of the peer is trusted: kinds, lengths and syndromes that no request of
//! this side permits end the connection or the entry, and memory is reached by keys alone.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, Thread},
};

use smallvec::{SmallVec, smallvec};

use crate::{
    error::Error,
    keys::Access,
    masked::Change,
    room,
    syndrome::Syndrome,
    wqe::{Data, Masked, Operation, Remote, Segment},
};

use super::{
    Adapter, Pair, Peer, State,
    work::{Answer, Work},
};

pub(crate) const HEADER_BYTES: usize = 48;
/// Most bytes of a message to another process.
pub const REMOTE_BYTES_MAX: usize = 16 << 20;
/// Bytes that wait for the connection before no more entries are sent.
const OUTGOING_BYTES_MAX: usize = 8 << 20;
/// Bytes of answers that wait before no more is taken of the peer, who asks for less at a time
/// ([`READING_BYTES_MAX`], or one message): two that wait for each other so would wait for ever.
const ANSWERS_BYTES_MAX: usize = 32 << 20;
/// Bytes that are read at a time, unless one entry reads more.
pub(super) const READING_BYTES_MAX: u64 = 8 << 20;
/// Patience with a peer of another process: its connection says when it is gone.
pub(super) const TIMEOUT_NS: u64 = 1_000_000_000;

mod kind {
    pub(super) const WRITE: u8 = 1;
    pub(super) const WRITE_IMM: u8 = 2;
    pub(super) const SEND: u8 = 3;
    pub(super) const SEND_IMM: u8 = 4;
    pub(super) const READ: u8 = 5;
    pub(super) const FETCH_ADD: u8 = 6;
    pub(super) const COMPARE_SWAP: u8 = 7;
    pub(super) const NOP: u8 = 8;
    pub(super) const MASKED_ADD: u8 = 9;
    pub(super) const MASKED_SWAP: u8 = 10;
    pub(super) const DONE: u8 = 16;
    pub(super) const VALUE: u8 = 17;
    pub(super) const NOT_READY: u8 = 18;
    pub(super) const FAILED: u8 = 19;
}

/// The fixed part of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    kind: u8,
    syndrome: u8,
    is_solicited: bool,
    pub(crate) data_bytes: u32,
    sequence: u64,
    address: u64,
    rkey: u32,
    number: u32,
    first: u64,
    second: u64,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        (bytes[0], bytes[1], bytes[2]) = (self.kind, self.syndrome, self.is_solicited.into());
        bytes[4..8].copy_from_slice(&self.data_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.rkey.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.second.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` if it announces more data than a message has.
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let little = |at: usize, count: usize| {
            let value = bytes[at..at + count].iter().rev();
            value.fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let header = Header {
            kind: bytes[0],
            syndrome: bytes[1],
            is_solicited: bytes[2] != 0,
            data_bytes: little(4, 4) as u32,
            sequence: little(8, 8),
            address: little(16, 8),
            rkey: little(24, 4) as u32,
            number: little(28, 4) as u32,
            first: little(32, 8),
            second: little(40, 8),
        };
        (header.data_bytes as usize <= REMOTE_BYTES_MAX).then_some(header)
    }

    /// Returns true if it announces an answer.
    pub(crate) fn is_answer(&self) -> bool {
        self.kind >= kind::DONE
    }

    /// Returns the request, its data inline; `None` if it is none, or data does not belong to it.
    fn request(&self, data: &[u8]) -> Option<Operation> {
        let remote = Remote {
            address: self.address,
            rkey: self.rkey,
        };
        let into = Segment {
            length: self.number,
            lkey: 0,
            address: 0,
        };
        let inline = || Data::Inline(SmallVec::from_slice(data));
        let operation = match self.kind {
            kind::MASKED_ADD | kind::MASKED_SWAP => return self.masked(remote, into, data),
            kind::WRITE | kind::WRITE_IMM => {
                return Some(Operation::Write {
                    remote,
                    imm: (self.kind == kind::WRITE_IMM).then_some(self.number),
                    data: inline(),
                });
            }
            kind::SEND | kind::SEND_IMM => {
                return Some(Operation::Send {
                    imm: (self.kind == kind::SEND_IMM).then_some(self.number),
                    data: inline(),
                });
            }
            kind::READ if self.number as usize <= REMOTE_BYTES_MAX => Operation::Read {
                remote,
                into: match self.number {
                    0 => SmallVec::new(),
                    _ => smallvec![into],
                },
            },
            kind::FETCH_ADD => Operation::FetchAdd {
                remote,
                add: self.first,
                into,
            },
            kind::COMPARE_SWAP => Operation::CompareSwap {
                remote,
                compare: self.second,
                swap: self.first,
                into,
            },
            kind::NOP => Operation::Nop,
            _ => return None,
        };
        data.is_empty().then_some(operation)
    }

    /// Announces an atomic; returns the word that it changes. Masks are data.
    fn change<'a>(&mut self, operation: &'a Operation, data: &mut Vec<u8>) -> Option<&'a Remote> {
        match operation {
            Operation::FetchAdd { remote, add, .. } => {
                (self.kind, self.first) = (kind::FETCH_ADD, *add);
                Some(remote)
            }
            Operation::CompareSwap {
                remote,
                compare,
                swap,
                ..
            } => {
                self.kind = kind::COMPARE_SWAP;
                (self.first, self.second) = (*swap, *compare);
                Some(remote)
            }
            Operation::Masked(masked) => {
                self.kind = match masked.change {
                    Change::Add { .. } => kind::MASKED_ADD,
                    Change::Swap { .. } => kind::MASKED_SWAP,
                };
                let [first, second, third, fourth] = masked.change.operands();
                (self.first, self.second) = (first, second);
                self.number = masked.bytes as u32;
                for mask in [third, fourth] {
                    data.extend_from_slice(&mask.to_le_bytes());
                }
                Some(&masked.remote)
            }
            _ => None,
        }
    }

    /// Returns a masked atomic, whose masks are its data.
    fn masked(&self, remote: Remote, into: Segment, data: &[u8]) -> Option<Operation> {
        let (masks, rest) = data.as_chunks::<8>();
        let [third, fourth] = masks else {
            return None;
        };
        let [third, fourth] = [third, fourth].map(|mask| u64::from_le_bytes(*mask));
        let operands = [self.first, self.second, third, fourth];
        let is_word = matches!(self.number, 4 | 8) && rest.is_empty();
        is_word.then(|| {
            Operation::Masked(Masked {
                remote,
                bytes: self.number.into(),
                change: Change::with(self.kind == kind::MASKED_ADD, operands),
                into,
            })
        })
    }

    /// Returns the answer; `None` if it is none. Syndromes are those that a peer finds.
    fn answer(&self) -> Option<Answer> {
        match (self.kind, Syndrome(self.syndrome)) {
            (kind::DONE, _) => Some(Answer::Done),
            (kind::VALUE, _) => Some(Answer::Value(self.first)),
            (kind::NOT_READY, _) => Some(Answer::NotReady),
            (
                kind::FAILED,
                syndrome @ (Syndrome::REMOTE_INVALID_REQUEST
                | Syndrome::REMOTE_ACCESS
                | Syndrome::REMOTE_OPERATION),
            ) => Some(Answer::Failed(syndrome)),
            _ => None,
        }
    }
}

/// The connection's stream, beside the thread that writes to it.
pub(crate) struct Sink {
    /// Writes as many bytes as the connection takes at once. Returns how many.
    pub(crate) write: Write,
    /// Returns how many bytes were written and not yet taken.
    pub(crate) untaken: Untaken,
    /// Count of bytes that threads have moved: written, or read of answers.
    pub(crate) moved: Arc<AtomicU64>,
}

type Write = Box<dyn Fn(&[u8]) -> usize + Send>;
type Untaken = Box<dyn Fn() -> usize + Send>;

impl std::fmt::Debug for Sink {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.debug_struct("Sink").finish_non_exhaustive()
    }
}

/// A message on its way.
#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    is_answer: bool,
}

/// A connection to another process, as its queue pair sees it.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Frames that wait for the thread that writes them; of the first, what is not yet written.
    frames: VecDeque<Frame>,
    bytes: usize,
    /// Bytes of answers among them.
    answers_bytes: usize,
    sink: Option<Sink>,
    /// Count of bytes that were moved by the adapter itself.
    moved: u64,
    /// Bytes of the first frame that rings have taken.
    begun: usize,
    /// The thread that waits for a frame. It is writing none.
    waiting: Option<Thread>,
    /// Nothing is written any more: frames are dropped, so that nobody waits for their room.
    is_over: bool,
}

impl Drop for Outgoing {
    /// Tells the thread that nothing comes any more.
    fn drop(&mut self) {
        if let Some(thread) = self.waiting.take() {
            thread.unpark();
        }
    }
}

impl Outgoing {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Gives frames to what takes as many bytes as it has room for. Returns how many it took.
    pub(super) fn write<E>(
        &mut self,
        mut take: impl FnMut(&[u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let mut given = 0;
        while let Some(frame) = self.frames.front() {
            let count = take(&frame.bytes[self.begun..])?;
            (given, self.begun) = (given + count, self.begun + count);
            self.moved += count as u64;
            if self.begun < frame.bytes.len() {
                break;
            }
            self.begun = 0;
            self.pop();
        }
        Ok(given)
    }

    /// Notes bytes of an answer that have come in.
    pub(super) fn note_answer(&mut self, bytes: usize) {
        self.moved += bytes as u64;
    }

    /// Returns what changes while bytes move, either way. It is looked at seldom.
    pub(super) fn movement(&self) -> (u64, usize) {
        let sink = self.sink.as_ref();
        let by_threads = sink.map_or(0, |sink| sink.moved.load(Ordering::Relaxed));
        let untaken = sink.map_or(0, |sink| (sink.untaken)());
        (self.moved + by_threads, untaken)
    }

    fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.bytes.len();
        if frame.is_answer {
            self.answers_bytes -= frame.bytes.len();
        }
        Some(frame.bytes)
    }

    /// Makes room for one more frame in the list of those that wait, which short ones make long.
    fn make_room(&mut self) -> Result<(), Error> {
        let count = self.frames.capacity();
        if self.frames.len() < count {
            return Ok(());
        }
        let bytes = 2 * count * size_of::<Frame>();
        room::within(bytes, || self.frames.reserve(1))
    }

    /// Sends a frame, which has room for its header before its data.
    fn push(&mut self, mut header: Header, mut frame: Vec<u8>) {
        if self.is_over {
            return;
        }
        header.data_bytes = frame.len().saturating_sub(HEADER_BYTES) as u32;
        frame[..HEADER_BYTES].copy_from_slice(&header.encode());
        let is_first = self.waiting.is_some() && self.frames.is_empty();
        if let Some(sink) = self.sink.as_ref().filter(|_| is_first) {
            let written = (sink.write)(&frame).min(frame.len());
            self.moved += written as u64;
            frame.drain(..written);
        }
        if frame.is_empty() {
            return;
        }
        let is_answer = header.is_answer();
        self.bytes += frame.len();
        if is_answer {
            self.answers_bytes += frame.len();
        }
        let bytes = frame;
        self.frames.push_back(Frame { bytes, is_answer });
        if let Some(thread) = self.waiting.take() {
            thread.unpark();
        }
    }
}

/// Returns the room for a header.
fn blank() -> Vec<u8> {
    vec![0; HEADER_BYTES]
}

impl Adapter {
    /// Connects a queue pair to one of another process, with which the caller exchanges frames.
    pub fn connect_remote(&mut self, qpn: u32, peer: Peer) -> Result<(), Error> {
        let number = self.pair(qpn)?.0;
        if let (Some(pair), Some(sender)) = (&mut self.pairs[number], &mut self.senders[number]) {
            (pair.peer, pair.state) = (Some(peer), State::Ready);
            (pair.is_remote, pair.is_by_verbs) = (true, false);
            sender.wait_longer(TIMEOUT_NS);
        }
        self.outgoing.insert(number, Outgoing::default());
        Ok(())
    }

    /// Takes a frame for the peer of a queue pair; an error if the connection is over. If there is
    /// none, the calling thread is unparked at the next.
    pub fn outgoing(&mut self, qpn: u32, epoch: u32) -> Result<Option<Vec<u8>>, Error> {
        let (number, _) = self.remote_pair(qpn, epoch)?;
        let outgoing = self.outgoing.get_mut(&number);
        let outgoing = outgoing.ok_or(Error::Peer("no more"))?;
        let frame = outgoing.pop();
        if frame.is_none() {
            outgoing.waiting = Some(thread::current());
        }
        Ok(frame)
    }

    /// Gives the connection what writes to it without waiting.
    pub(crate) fn set_sink(&mut self, qpn: u32, epoch: u32, sink: Sink) -> Result<(), Error> {
        let (number, _) = self.remote_pair(qpn, epoch)?;
        if let Some(outgoing) = self.outgoing.get_mut(&number) {
            outgoing.sink = Some(sink);
        }
        Ok(())
    }

    /// Notes that nothing is written to a connection any more. What the peer has sent before is
    /// still taken, until [`Adapter::link_down`].
    pub(crate) fn end_outgoing(&mut self, qpn: u32, epoch: u32) {
        if let Ok((number, _)) = self.remote_pair(qpn, epoch)
            && let Some(outgoing) = self.outgoing.get_mut(&number)
        {
            *outgoing = Outgoing::default();
            outgoing.is_over = true;
        }
    }

    /// Returns true if nothing waits to be sent to the peer, or the connection is over.
    pub(crate) fn is_sent(&self, qpn: u32, epoch: u32) -> bool {
        let found = self.remote_pair(qpn, epoch).ok();
        let outgoing = found.and_then(|(number, _)| self.outgoing.get(&number));
        outgoing.is_none_or(Outgoing::is_empty)
    }

    /// Returns true if a frame of the peer may be taken: its answer has room. An error if the
    /// connection is over.
    pub fn has_room(&self, qpn: u32, epoch: u32) -> Result<bool, Error> {
        let (number, _) = self.remote_pair(qpn, epoch)?;
        match self.outgoing.contains_key(&number) {
            true => Ok(self.may_answer(number)),
            false => Err(Error::Peer("no more")),
        }
    }

    pub(super) fn may_answer(&self, number: usize) -> bool {
        let outgoing = self.outgoing.get(&number);
        outgoing.is_some_and(|outgoing| outgoing.answers_bytes < ANSWERS_BYTES_MAX)
    }

    /// Takes a frame of the peer. An error ends the connection.
    pub(crate) fn incoming(
        &mut self,
        qpn: u32,
        epoch: u32,
        header: &Header,
        data: &[u8],
    ) -> Result<(), Error> {
        let (number, pair) = self.remote_pair(qpn, epoch)?;
        // Of a request's data a copy is made.
        let request = match header.is_answer() {
            true => None,
            false => room::within(data.len(), || header.request(data))?,
        };
        if let Some(operation) = request {
            self.is_solicited = header.is_solicited;
            return self.respond(number, &pair, header.sequence, &operation);
        }
        let answer = header.answer().ok_or(Error::Peer("an unknown message"))?;
        let mut sender = self.senders[number].take().ok_or(Error::NoPair(qpn))?;
        let answer = match sender.pending(header.sequence) {
            Some(work) if work.answer.is_none() => match &work.operation {
                Some(operation) => self.accept(&pair, operation, answer, data),
                None => answer,
            },
            _ => answer,
        };
        self.take_answer(&mut sender, number, header.sequence, answer);
        self.senders[number] = Some(sender);
        Ok(())
    }

    /// Notes that the connection is over: what is not answered fails.
    pub fn link_down(&mut self, qpn: u32, epoch: u32) {
        if let Ok((number, pair)) = self.remote_pair(qpn, epoch) {
            if pair.is_by_verbs {
                return self.verbs_down(number, false);
            }
            self.forget_link(number);
            if let Some(pair) = &mut self.pairs[number] {
                pair.unreachable = true;
            }
            if let Some(sender) = &mut self.senders[number] {
                sender.send_again();
            }
        }
    }

    /// Drops what carries a queue pair's frames, which ends the connection.
    pub(super) fn forget_link(&mut self, number: usize) {
        self.outgoing.remove(&number);
        self.by_verbs.remove(&number);
        self.carried.retain(|one| one.number != number);
    }

    pub(super) fn remote_pair(&self, qpn: u32, epoch: u32) -> Result<(usize, Pair), Error> {
        let (number, pair) = self.pair(qpn)?;
        if pair.epoch != epoch || !pair.is_remote {
            return Err(Error::NoPair(qpn));
        }
        Ok((number, pair))
    }

    pub(super) fn is_roomy(&self, number: usize) -> bool {
        let outgoing = self.outgoing.get(&number);
        outgoing.is_some_and(|outgoing| outgoing.bytes < OUTGOING_BYTES_MAX)
    }

    /// Sends a request to another process. Returns an answer if nothing has to be sent.
    pub(super) fn request(
        &mut self,
        number: usize,
        pair: &Pair,
        sequence: u64,
        work: &Work,
    ) -> Option<Answer> {
        let operation = work.operation.as_ref()?;
        // What a dump reads does not travel.
        let is_dump = matches!(operation, Operation::Dump { .. });
        if !is_dump && operation.bytes() > REMOTE_BYTES_MAX as u64 {
            return Some(Answer::Failed(Syndrome::LOCAL_LENGTH));
        }
        let mut header = Header {
            sequence,
            is_solicited: work.is_solicited,
            ..Header::default()
        };
        let mut frame = blank();
        let (to, with) = match operation {
            // The peer counts those that concern this side alone, too.
            Operation::Nop | Operation::Dump { .. } | Operation::Wait { .. } => {
                header.kind = kind::NOP;
                (None, None)
            }
            Operation::Write {
                remote,
                imm,
                data: from,
            } => {
                header.kind = [kind::WRITE, kind::WRITE_IMM][usize::from(imm.is_some())];
                header.number = imm.unwrap_or(0);
                (Some(remote), Some(from))
            }
            Operation::Send { imm, data: from } => {
                header.kind = [kind::SEND, kind::SEND_IMM][usize::from(imm.is_some())];
                header.number = imm.unwrap_or(0);
                (None, Some(from))
            }
            Operation::Read { remote, .. } => {
                (header.kind, header.number) = (kind::READ, operation.bytes() as u32);
                (Some(remote), None)
            }
            atomic => (header.change(atomic, &mut frame), None),
        };
        if let Some(remote) = to {
            (header.address, header.rkey) = (remote.address, remote.rkey);
        }
        if let Some(with) = with {
            if room::make(&mut frame, operation.bytes() as usize).is_err() {
                return Some(Answer::Failed(Syndrome::RETRIES_EXCEEDED));
            }
            if self.gather(pair.domain, with, &mut frame).is_none() {
                return Some(Answer::Failed(Syndrome::LOCAL_PROTECTION));
            }
        }
        self.outgoing.entry(number).or_default().push(header, frame);
        None
    }

    /// Appends the data of a message to a frame.
    fn gather(&self, domain: u32, data: &Data, frame: &mut Vec<u8>) -> Option<()> {
        match data {
            Data::Inline(bytes) => frame.extend_from_slice(bytes),
            Data::Gather(segments) => {
                for one in segments {
                    let (bytes, at) = (one.bytes(), frame.len());
                    let access = Access::LOCAL_READ;
                    let place = self
                        .keys
                        .find(domain, one.lkey, one.address, bytes, access)?;
                    frame.resize(at + bytes as usize, 0);
                    let read = place.memory.read(place.offset, &mut frame[at..]);
                    read.ok()?;
                }
            }
        }
        Some(())
    }

    /// Executes a request of another process, and answers it.
    fn respond(
        &mut self,
        number: usize,
        pair: &Pair,
        sequence: u64,
        operation: &Operation,
    ) -> Result<(), Error> {
        if pair.state != State::Ready || pair.unreachable {
            return Ok(());
        }
        self.outgoing.entry(number).or_default().make_room()?;
        let mut frame = blank();
        let answer = if let Operation::Read { remote, .. } = operation {
            let (bytes, access) = (operation.bytes(), Access::REMOTE_READ);
            let Remote { address, rkey } = *remote;
            let is_permitted = pair.access.permits(access);
            let place = self.keys.find(pair.domain, rkey, address, bytes, access);
            let place = place.filter(|_| is_permitted);
            if place.is_some() {
                room::make(&mut frame, bytes as usize)?;
            }
            let read = place.and_then(|place| {
                frame.resize(HEADER_BYTES + bytes as usize, 0);
                let into = &mut frame[HEADER_BYTES..];
                place.memory.read(place.offset, into).ok()
            });
            if read.is_none() {
                frame.truncate(HEADER_BYTES);
            }
            let is_found = read.is_some() || (bytes == 0 && is_permitted);
            let Some(receiver) = &mut self.receivers[number] else {
                return Ok(());
            };
            if sequence > receiver.expected {
                return Ok(());
            }
            if is_found {
                receiver.expected += u64::from(sequence == receiver.expected);
                Some(Answer::Done)
            } else {
                self.set_error(number);
                Some(Answer::Failed(match is_permitted {
                    true => Syndrome::REMOTE_ACCESS,
                    false => Syndrome::REMOTE_INVALID_REQUEST,
                }))
            }
        } else {
            self.execute_at(pair, number, pair, sequence, operation)
        };
        let mut header = Header {
            sequence,
            ..Header::default()
        };
        match answer {
            None => return Ok(()),
            Some(Answer::Done) => header.kind = kind::DONE,
            Some(Answer::Value(value)) => (header.kind, header.first) = (kind::VALUE, value),
            Some(Answer::NotReady) => header.kind = kind::NOT_READY,
            Some(Answer::Failed(syndrome)) => {
                (header.kind, header.syndrome) = (kind::FAILED, syndrome.0);
            }
        }
        self.outgoing.entry(number).or_default().push(header, frame);
        Ok(())
    }

    /// Checks that an answer is one to this request, and stores what was read.
    fn accept(&self, pair: &Pair, operation: &Operation, answer: Answer, data: &[u8]) -> Answer {
        let expected = match operation {
            Operation::Read { .. } if answer == Answer::Done => operation.bytes(),
            _ => 0,
        };
        let is_atomic = operation.is_atomic();
        let fits = match answer {
            Answer::Done => !is_atomic,
            Answer::Value(_) => is_atomic,
            Answer::NotReady => matches!(
                operation,
                Operation::Send { .. } | Operation::Write { imm: Some(_), .. }
            ),
            Answer::Failed(_) => true,
        };
        if !fits || data.len() as u64 != expected {
            return Answer::Failed(Syndrome::BAD_RESPONSE);
        }
        if let Operation::Read { into, .. } = operation {
            let mut rest = data;
            for one in into.iter().filter(|_| answer == Answer::Done) {
                let (bytes, access) = (one.bytes(), Access::LOCAL_WRITE);
                let place = self
                    .keys
                    .find(pair.domain, one.lkey, one.address, bytes, access);
                let (Some(place), Some((here, behind))) =
                    (place, rest.split_at_checked(bytes as usize))
                else {
                    return Answer::Failed(Syndrome::LOCAL_PROTECTION);
                };
                if place.memory.write(place.offset, here).is_err() {
                    return Answer::Failed(Syndrome::LOCAL_PROTECTION);
                }
                rest = behind;
            }
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{
        CompletionsSetup, Mapped, Network, PairSetup, Retries,
        cqe::{CQE_BYTES, Completion, Kind},
        wqe::{Entry, Flags},
    };

    fn pair(adapter: &mut Adapter) -> u32 {
        let memory = |bytes| Mapped::allocate(bytes).unwrap();
        let completions = adapter.create_completions(CompletionsSetup {
            entries: memory(64).into(),
            log_entries: 0,
            collapsed: true,
            record: None,
        });
        let completions = completions.unwrap();
        let setup = PairSetup {
            domain: 1,
            send_completions: completions,
            receive_completions: completions,
            ring: memory(4096).into(),
            log_blocks: 6,
            receives: None,
            record: memory(8).into(),
            page: memory(4096),
            retries: Retries::default(),
        };
        adapter.create_pair(setup).unwrap()
    }

    /// An answer and the reply of the peer's program, one frame after the other: completions are
    /// in this order, without a look of the adapter between the two.
    #[test]
    fn what_is_answered_completes_before_the_reply_to_it() {
        let mut adapter = Adapter::new(Network::default());
        let memory = |bytes| Mapped::allocate(bytes).unwrap();
        let entries = memory(4 * CQE_BYTES);
        let completions = adapter.create_completions(CompletionsSetup {
            entries: entries.clone().into(),
            log_entries: 2,
            collapsed: false,
            record: None,
        });
        let completions = completions.unwrap();
        let (ring, record, page) = (memory(4096), memory(8), memory(4096));
        let setup = PairSetup {
            domain: 1,
            send_completions: completions,
            receive_completions: completions,
            ring: ring.clone().into(),
            log_blocks: 6,
            receives: Some((memory(64), 2)),
            record: record.clone().into(),
            page: page.clone(),
            retries: Retries::default(),
        };
        let qpn = adapter.create_pair(setup).unwrap();
        let peer = Peer { qpn: 1, epoch: 2 };
        adapter.connect_remote(qpn, peer).unwrap();
        let epoch = adapter.end_of(qpn).unwrap().epoch;
        let send = Operation::Send {
            imm: None,
            data: Data::Inline(smallvec![7; 4]),
        };
        let (index, flags) = (0, Flags::SIGNALLED);
        let entry = Entry {
            index,
            qpn,
            flags,
            operation: send,
        };
        ring.write(0, &entry.encode());
        record.u32(0).store(1_u32.to_be(), Ordering::Release);
        record.u32(4).store(1_u32.to_be(), Ordering::Release);
        let word = (1_u64 << 8) << 32 | u64::from(qpn << 8);
        page.u64(0x800).store(word.to_be(), Ordering::Release);
        adapter.poll(1);
        assert!(adapter.outgoing(qpn, epoch).unwrap().is_some());
        for kind in [kind::DONE, kind::SEND] {
            let header = Header {
                kind,
                ..Header::default()
            };
            adapter.incoming(qpn, epoch, &header, &[]).unwrap();
        }
        let kinds = [0, 1].map(|at| {
            let mut bytes = [0; CQE_BYTES];
            entries.read(at * CQE_BYTES, &mut bytes);
            Completion::parse(&bytes).unwrap().0.kind
        });
        assert_eq!(kinds, [Kind::Requester, Kind::Received]);
    }

    /// Messages of every kind with random fields: each is an answer, a refusal or the end of the
    /// connection, and touches the memory of its key alone.
    #[test]
    fn a_peer_that_sends_anything_reaches_its_window_alone() {
        let (mut state, mut done, mut refused) = (7_u64, 0, 0);
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            state >> 24
        };
        for _ in 0..20_000 {
            let mut adapter = Adapter::new(Network::default());
            let qpn = pair(&mut adapter);
            let whole = Mapped::allocate(192).unwrap();
            let window = whole.part(64, 64).unwrap();
            let key = adapter.register(1, window.clone(), Access::ALL).unwrap();
            let peer = Peer { qpn: 1, epoch: 2 };
            adapter.connect_remote(qpn, peer).unwrap();
            let epoch = adapter.end_of(qpn).unwrap().epoch;
            let length = (random() % 3 * 32) as usize;
            let mut bytes = Header {
                kind: (random() % 21) as u8,
                syndrome: random() as u8 % 24,
                is_solicited: false,
                data_bytes: length as u32,
                sequence: random() % 2,
                address: window.address() - 32 + random() % 128,
                rkey: key + u32::from(random() % 8 == 0),
                number: (random() % 96) as u32,
                first: u64::MAX,
                second: 0,
            }
            .encode();
            if random() % 4 == 0 {
                bytes[(random() % 48) as usize] = random() as u8;
            }
            let Some(header) = Header::parse(&bytes) else {
                refused += 1;
                continue;
            };
            let data = vec![0xff; header.data_bytes as usize];
            match adapter.incoming(qpn, epoch, &header, &data) {
                Ok(()) => done += 1,
                Err(_) => refused += 1,
            }
            adapter.poll(1);
            let mut around = [0; 192];
            whole.read(0, &mut around);
            around[64..128].fill(0);
            assert_eq!(around, [0; 192], "{header:?}");
            let answer = adapter.outgoing(qpn, epoch).unwrap();
            assert!(answer.is_none_or(|answer| answer.len() <= HEADER_BYTES + 96));
        }
        assert!(done > 5000 && refused > 1000, "{done} and {refused}");
    }
}
