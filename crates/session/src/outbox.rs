//! Replies and notes on their way to the client.

use std::time::{Duration, Instant};

use outboard_api::CUresult;
use outboard_device::Failure;
use outboard_link::{DeviceBulk, Error, LinkKind, Payload, RdmaTarget, RdmaUse, Registrar, Sender};
use outboard_wire::{
    EncodeError, Message, Writer,
    frame::{FROM_GPU, HEADER_BYTES, ReplyHeader, WRITTEN},
    limits::PLACED_BYTES_MIN,
    messages::FaultNote,
    network::Network,
};

use super::{
    End,
    aside::{Aside, Room},
    exposed::Source,
    limits, message_stats,
    waiting::{Origin, Waiting},
};

/// Whether a long reply was sent by the adapter.
pub(super) enum Placed {
    /// It was, with this many bytes of data.
    Yes(usize),
    /// It was not, and is to be sent as an ordinary reply.
    No(Waiting),
}

impl Payload for Waiting {
    fn bytes(&self) -> &[u8] {
        self.reply_data().ok().flatten().unwrap_or_default()
    }
}

/// The way to the client.
enum Way {
    Own(Sender),
    /// Over an emulated network, whose replies with data a thread sends if data comes the other
    /// way, too.
    Shared(Aside),
}

pub(super) struct Outbox {
    way: Way,
    /// Time until which such replies are left to that thread.
    aside_until: Option<Instant>,
    /// Replies handed to data connections. Each frame sent here carries the count, and takes effect
    /// after them.
    given: u32,
    faults: FaultBudget,
    /// Contexts that the client has ended.
    ended: u32,
    /// The adapter may still be reading device memory.
    is_reading: bool,
    /// The client was told why the session ends.
    has_said_end: bool,
}

impl Outbox {
    pub(super) fn new(sender: Sender) -> Outbox {
        Outbox {
            way: match sender.kind() {
                LinkKind::Emulated => Way::Shared(Aside::new(sender)),
                _ => Way::Own(sender),
            },
            aside_until: None,
            given: 0,
            faults: FaultBudget::default(),
            ended: 0,
            is_reading: false,
            has_said_end: false,
        }
    }

    /// Sends replies over another emulated network from now on. Returns false if no network is
    /// emulated.
    pub(super) fn change_network(&mut self, network: &Network) -> bool {
        let change = |sender: &mut Sender| match sender.emulation() {
            Some(emulation) => {
                emulation.change(network);
                true
            }
            None => false,
        };
        match &mut self.way {
            Way::Own(sender) => change(sender),
            Way::Shared(aside) => aside.with_sender(change),
        }
    }

    /// Notes that long data came from the client.
    pub(super) fn has_received(&mut self, now: Instant) {
        if matches!(self.way, Way::Shared(_)) {
            self.aside_until = Some(now + Duration::from_millis(limits::BOTH_WAYS_MS));
        }
    }

    /// Returns the room for replies with data, if it is known.
    pub(super) fn room(&self) -> Option<Room> {
        match &self.way {
            Way::Own(_) => None,
            Way::Shared(aside) => Some(aside.room()),
        }
    }

    /// Returns whether a reply with this much data, one of `pending`, is left to the thread.
    pub(super) fn leaves(&self, bytes: usize, pending: usize, now: Instant) -> bool {
        let Way::Shared(aside) = &self.way else {
            return false;
        };
        let is_both_ways = self.aside_until.is_some_and(|until| now < until);
        let is_stream = is_both_ways && pending >= limits::STREAM_REPLIES_MIN;
        bytes >= PLACED_BYTES_MIN && (is_stream || aside.is_busy())
    }

    /// Gives a reply with data to the thread.
    pub(super) fn leave(&mut self, entry: Waiting) -> Result<(), Error> {
        let header = self.header(entry.token, CUresult::CUDA_SUCCESS)?;
        match &mut self.way {
            Way::Shared(aside) => aside.give(header, entry),
            // Not reached: such a reply is not left.
            Way::Own(_) => Err(Error::Misuse("a reply for a thread that is none")),
        }
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<(), Error> {
        match &mut self.way {
            Way::Own(sender) => sender.send(parts),
            Way::Shared(aside) => aside.send(parts),
        }
    }

    /// Returns the half of an rdma link.
    fn remote_memory(&mut self) -> Option<&mut outboard_link::rdma::Sender> {
        match &mut self.way {
            Way::Own(sender) => sender.remote_memory(),
            Way::Shared(_) => None,
        }
    }

    /// Sends the reply to a message that succeeded.
    pub(super) fn reply(&mut self, op: u16, token: u32, parts: &[&[u8]]) -> Result<(), Error> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > limits::REPLY_BYTES_MAX {
            let what = format!("{}: an answer of {len} bytes", message_stats::name(op));
            return self.failure(token, &Failure::new(CUresult::CUDA_ERROR_UNKNOWN, what));
        }
        let header = self.header(token, CUresult::CUDA_SUCCESS)?;
        match *parts {
            [] => self.send(&[&header]),
            [one] => self.send(&[&header, one]),
            [one, two] => self.send(&[&header, one, two]),
            _ => Err(Error::Misuse("an answer of more than two parts")),
        }
    }

    /// Sends a long reply over rdma. The adapter reads the data in place if its memory can be
    /// registered, and writes it to the client's memory if the client named some.
    pub(super) fn place(&mut self, entry: Waiting) -> Result<Placed, Error> {
        let given = self.given;
        let (Some(remote), Ok(Some(data))) = (self.remote_memory(), entry.reply_data()) else {
            return Ok(Placed::No(entry));
        };
        if data.len() < PLACED_BYTES_MIN {
            return Ok(Placed::No(entry));
        }
        let (to, len) = (entry.to, data.len());
        let source = entry
            .lasting()
            .and_then(|memory| remote.registrar().register(memory, RdmaUse::Source));
        let header = encoded(ReplyHeader {
            token: entry.token,
            placed: if to.is_some() { WRITTEN } else { 0 },
            ..note_header(0, given)
        })?;
        let length = (len as u32).to_le_bytes();
        let head: &[&[u8]] = match to {
            Some(_) => &[&header],
            None if source.is_some() => &[&header, &length],
            None => return Ok(Placed::No(entry)),
        };
        remote.send_owned(head, Box::new(entry), source.as_ref(), to)?;
        Ok(Placed::Yes(len))
    }

    /// Sends a copy's reply whose data the adapter reads from device memory, and returns its length
    /// in bytes. That memory must not change before
    /// [`wait_until_device_read`](Self::wait_until_device_read) returns.
    pub(super) fn take_from_device(
        &mut self,
        token: u32,
        source: &Source,
        to: Option<RdmaTarget>,
    ) -> Result<usize, Error> {
        let written = if to.is_some() { WRITTEN } else { 0 };
        let header = encoded(ReplyHeader {
            token,
            placed: FROM_GPU | written,
            ..note_header(0, self.given)
        })?;
        let length = (source.len as u32).to_le_bytes();
        let whole: [&[u8]; 2] = [&header, &length];
        let head = if to.is_some() { &whole[..1] } else { &whole };
        let bulk = DeviceBulk {
            address: source.src,
            len: source.len as usize,
            source: &source.registered,
            target: to,
        };
        let kind = match &self.way {
            Way::Own(sender) => sender.kind(),
            Way::Shared(_) => LinkKind::Emulated,
        };
        self.is_reading = true;
        let Some(remote) = self.remote_memory() else {
            let what = "memory of a GPU that is read where it lies";
            return Err(Error::lacks(what, kind));
        };
        remote.send_device(head, bulk)?;
        Ok(source.len as usize)
    }

    /// Waits until the adapter has read device memory. Called before that memory changes.
    #[inline]
    pub(super) fn wait_until_device_read(&mut self) -> Result<(), Error> {
        match std::mem::take(&mut self.is_reading) {
            true => self
                .remote_memory()
                .map_or(Ok(()), |remote| remote.wait_until_device_read()),
            false => Ok(()),
        }
    }

    /// Returns the registrar of memory, if the link is rdma.
    pub(super) fn registrar(&mut self) -> Option<Registrar> {
        let remote = self.remote_memory();
        remote.map(|remote| remote.registrar())
    }

    /// Releases memory that the adapter has finished reading.
    pub(super) fn drop_read_owners(&mut self) {
        if let Some(remote) = self.remote_memory() {
            remote.drop_read_owners();
        }
    }

    /// Sends the reply to a message that failed.
    pub(super) fn failure(&mut self, token: u32, failure: &Failure) -> Result<(), Error> {
        let reason = cut(&failure.message);
        let header = self.header(token, failure.status)?;
        let len = (reason.len() as u32).to_le_bytes();
        self.send(&[&header, &len, reason])
    }

    /// Makes the header of a reply that goes over a data connection. The caller calls
    /// [`gave`](Self::gave) once the reply is handed over.
    pub(super) fn data_connection_header(&self, token: u32) -> Result<[u8; HEADER_BYTES], Error> {
        self.header(token, CUresult::CUDA_SUCCESS)
    }

    /// Counts a reply that was handed to a data connection.
    pub(super) fn gave(&mut self) {
        self.given = self.given.wrapping_add(1);
    }

    fn header(&self, token: u32, status: CUresult) -> Result<[u8; HEADER_BYTES], Error> {
        encoded(ReplyHeader {
            token,
            status: status.0,
            ..note_header(0, self.given)
        })
    }

    pub(super) fn note<'a, M: Message<'a>>(&mut self, number: u16, note: &M) -> Result<(), Error> {
        let len = HEADER_BYTES + note.encoded_len();
        let header = note_header(number, self.given);
        match &mut self.way {
            Way::Own(sender) => {
                let mut frame = sender.reserve(len)?;
                header
                    .encode(&mut frame)
                    .and_then(|()| note.encode(&mut frame))
                    .map_err(defect)?;
                frame.commit()
            }
            Way::Shared(aside) => {
                let mut frame = vec![0; len];
                let mut room = Writer::new(&mut frame);
                header
                    .encode(&mut room)
                    .and_then(|()| note.encode(&mut room))
                    .map_err(defect)?;
                aside.send(&[&frame])
            }
        }
    }

    /// Returns the origin of the failures of a message that is executed now.
    pub(super) fn origin(&self, op: u16, context: u64) -> Origin {
        let ended = self.ended;
        Origin { op, context, ended }
    }

    /// Reports the failure of a message that has no reply.
    pub(super) fn fault(&mut self, of: Origin, failure: &Failure) -> Result<(), Error> {
        if self.faults.is_full_for(of) {
            self.send_held_faults()?;
        }
        match self.faults.admit(of, failure, Instant::now()) {
            true => self.send_fault(of, failure, 0),
            false => Ok(()),
        }
    }

    pub(super) fn holds_faults(&self) -> bool {
        !self.faults.held.is_empty()
    }

    /// Sends faults that the budget held back. Called before a wait is answered, when the client
    /// must know all faults.
    pub(super) fn send_held_faults(&mut self) -> Result<(), Error> {
        if self.faults.held.is_empty() {
            return Ok(());
        }
        for held in std::mem::take(&mut self.faults.held) {
            self.send_fault(held.of, &held.failure, held.more)?;
        }
        self.flush()
    }

    /// Counts the end of a context, whose failures concern nobody any more.
    pub(super) fn ends_context(&mut self, context: u64) {
        self.faults.forget(context);
        self.ended = self.ended.wrapping_add(1);
    }

    pub(super) fn send_held_faults_if_due(&mut self) -> Result<(), Error> {
        if self.holds_faults() && self.faults.is_window_over(Instant::now()) {
            self.send_held_faults()?;
            self.flush()?;
        }
        Ok(())
    }

    /// Sends the last note to a client that broke the protocol.
    /// Tells the client, once, why the session ends, if it is to know.
    pub(super) fn say_end(&mut self, end: &End) {
        if let Some(op) = end.told()
            && !self.has_said_end
        {
            self.has_said_end = true;
            // If the client cannot be told any more, the log still has the reason.
            let _ = self.farewell(op, &end.to_string());
        }
    }

    fn farewell(&mut self, op: u16, why: &str) -> Result<(), Error> {
        let why = format!("the server ends this session: {why}");
        let note = FaultNote {
            op,
            status: CUresult::CUDA_ERROR_UNKNOWN.0,
            sticky: 1,
            context: 0,
            ended: self.ended,
            message: cut(&why),
        };
        self.note(FaultNote::NUMBER, &note)?;
        self.flush()
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        match &mut self.way {
            Way::Own(sender) => sender.flush(),
            Way::Shared(aside) => aside.flush(),
        }
    }

    fn send_fault(&mut self, of: Origin, failure: &Failure, more: u64) -> Result<(), Error> {
        let Origin { op, context, ended } = of;
        let mut message = failure.message.clone();
        if more > 0 {
            message.push_str(&format!(" (and {more} more failures shortly after)"));
        }
        let note = FaultNote {
            op,
            status: failure.status.0,
            sticky: u8::from(failure.status.is_sticky()),
            context,
            ended,
            message: cut(&message),
        };
        self.note(FaultNote::NUMBER, &note)
    }
}

/// Limits fault notes, for a client that makes the same mistake in a loop: up to
/// FAULTS_PER_SECOND_MAX are sent at once.
#[derive(Default)]
struct FaultBudget {
    window_start: Option<Instant>,
    sent: u32,
    /// The first of each context.
    held: Vec<HeldFault>,
}

/// Contexts whose first error above the limit is kept. If more have one, all are sent at once.
const HELD_MAX: usize = 64;

/// The first fault above the limit, sent later.
struct HeldFault {
    of: Origin,
    failure: Failure,
    more: u64,
}

impl HeldFault {
    /// Returns whether a failure is of the same context, with the same end.
    fn is_with(&self, of: Origin) -> bool {
        (self.of.context, self.of.ended) == (of.context, of.ended)
    }
}

impl FaultBudget {
    /// Returns whether to send the fault now; otherwise it is held, or counted.
    fn admit(&mut self, of: Origin, failure: &Failure, now: Instant) -> bool {
        let same = self.held.iter_mut().find(|held| held.is_with(of));
        if let Some(held) = same {
            // A sticky error, the loss of the context, replaces a lesser one.
            if failure.status.is_sticky() && !held.failure.status.is_sticky() {
                held.of = of;
                held.failure = failure.clone();
            }
            held.more += 1;
            return false;
        }
        if !self.held.is_empty() {
            self.hold(of, failure);
            return false;
        }
        if self.is_window_over(now) {
            self.window_start = Some(now);
            self.sent = 0;
        }
        if self.sent < limits::FAULTS_PER_SECOND_MAX {
            self.sent += 1;
            return true;
        }
        self.hold(of, failure);
        false
    }

    /// Returns whether the failure is of a context for which there is no room.
    fn is_full_for(&self, of: Origin) -> bool {
        self.held.len() >= HELD_MAX && !self.held.iter().any(|held| held.is_with(of))
    }

    /// Drops what is held of a context that ends.
    fn forget(&mut self, context: u64) {
        self.held.retain(|held| held.of.context != context);
    }

    fn hold(&mut self, of: Origin, failure: &Failure) {
        self.held.push(HeldFault {
            of,
            failure: failure.clone(),
            more: 0,
        });
    }

    fn is_window_over(&self, now: Instant) -> bool {
        self.window_start
            .is_none_or(|start| now - start >= Duration::from_secs(1))
    }
}

fn encoded(header: ReplyHeader) -> Result<[u8; HEADER_BYTES], Error> {
    let mut bytes = [0; HEADER_BYTES];
    header
        .encode(&mut Writer::new(&mut bytes))
        .map_err(defect)?;
    Ok(bytes)
}

fn note_header(note: u16, given: u32) -> ReplyHeader {
    ReplyHeader {
        note,
        placed: 0,
        token: 0,
        status: 0,
        replies_before: given,
    }
}

/// Never called: the frame is reserved by the length that the message itself gives.
fn defect(_: EncodeError) -> Error {
    Error::Misuse("a message that is longer than it says")
}

fn cut(reason: &str) -> &[u8] {
    let mut len = reason.len().min(limits::REASON_BYTES_MAX);
    while !reason.is_char_boundary(len) {
        len -= 1;
    }
    &reason.as_bytes()[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_beyond_the_budget_are_held_and_counted() {
        let wild = Failure::wild("stream", 7);
        let lost = Failure::new(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, "lost");
        let now = Instant::now();
        let mut budget = FaultBudget::default();
        let of = |op, context| Origin {
            op,
            context,
            ended: 0,
        };
        for _ in 0..limits::FAULTS_PER_SECOND_MAX {
            assert!(budget.admit(of(1, 7), &wild, now));
        }
        assert!(!budget.admit(of(1, 7), &wild, now));
        assert!(!budget.admit(of(2, 7), &lost, now));
        assert!(!budget.admit(of(1, 7), &wild, now));
        assert!(!budget.admit(of(3, 8), &wild, now));
        let other = budget.held.pop().unwrap();
        assert_eq!((other.of, other.more), (of(3, 8), 0));
        let held = budget.held.pop().unwrap();
        assert_eq!((held.of, held.more), (of(2, 7), 2));
        assert_eq!(held.failure, lost);
        assert!(!budget.admit(of(1, 7), &wild, now));
        for context in 0..HELD_MAX as u64 {
            assert!(!budget.is_full_for(of(3, context)));
            assert!(!budget.admit(of(3, context), &wild, now));
        }
        assert_eq!(budget.held.len(), HELD_MAX);
        assert!(!budget.is_full_for(of(1, 7)) && budget.is_full_for(of(3, 1_000)));
        budget.forget(7);
        assert!(!budget.is_full_for(of(3, 1_000)));
        assert!(budget.held.iter().all(|held| held.of.context != 7));
        budget.held.clear();
        assert!(budget.admit(of(1, 7), &wild, now + Duration::from_secs(1)));
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let long = "ä".repeat(limits::REASON_BYTES_MAX);
        assert_eq!(cut(&long).len(), limits::REASON_BYTES_MAX);
        let odd = format!("x{long}");
        assert_eq!(cut(&odd).len(), limits::REASON_BYTES_MAX - 1);
        assert!(std::str::from_utf8(cut(&odd)).is_ok());
    }
}
