//! One message: received, ordered after the copies that it could change, executed, answered.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::{Failure, HeldUp, Outcome, Placed};
use outboard_link::{Receiver, Wait};
use outboard_wire::{
    Data, DecodeError, Message as _, Op as _, Reader,
    frame::{HEADER_BYTES, ON_DATA_CONNECTION, RequestHeader, context_and_call},
    heartbeat::Activity,
    limits::PLACED_BYTES_MIN,
    messages::{self, DataConnectionsOpen, NetworkSet, Ping},
};
use tracing::{Level, debug, enabled, trace};

use super::{
    End, Pulse, Session,
    blocked_service::{BlockedService, Early},
    execute::{self, Executed},
    executor::{Aids, Executor, unshrinkable},
    foresight::Awaited,
    held::{Held, Turn},
    limits, message_stats,
    net::{self, NetMessage},
    peers::{self, PeerMessage},
    waiting::{Admission, Queue, ToPeer, Waiting, WaitingList},
};

/// A message that the session itself executes, without the device.
enum OwnMessage {
    Ping,
    Network(Vec<u8>),
    DataConnections(DataConnectionsOpen),
    Peer(PeerMessage),
    Net(NetMessage),
}

impl Session<'_> {
    /// Executes the next message, if there is one, or holds it back if too much is waiting.
    pub(super) fn take_message(&mut self, wait: Wait, admission: Admission) -> Result<bool, End> {
        let early = self.received_before(admission);
        let next = (early.as_deref(), &mut self.receiver);
        let Some((frame, placed)) = received(next, &mut self.executor, self.pulse, wait)? else {
            return Ok(false);
        };
        self.pulse.takes_message();
        // Messages that follow each other at once share one look at the clock.
        let start = self.looked_at.take().unwrap_or_else(Instant::now);
        let mut r = Reader::split(frame, data_of(placed.as_ref()));
        let (header, call) = header_and_call(&mut r)?;
        if admission == Admission::Stalled {
            let kept = (&mut self.held, &mut self.early, self.waiting.len());
            if let Some(is_next) = kept_back(&header, &r, (frame, placed.as_ref()), kept) {
                return Ok(is_next);
            }
        }
        self.executor.of_call(call);
        if messages::is_fence(header.op) {
            // The client may see its value before its reply, and must have all faults by then.
            self.outbox.send_held_faults()?;
        }
        let is_change = !messages::memory_unchanged(header.op);
        let (waiting, executor) = (&mut self.waiting, &mut self.executor);
        keep_sources(waiting, executor, &header, is_change, &r);
        if is_change {
            self.outbox.wait_until_device_read()?;
            self.net.forget(header.op, &r);
        }
        if is_own(header.op) {
            let own = own_message(header.op, &mut r).map_err(malformed(&header))?;
            return self.execute_own(header, &own, start).map(|()| true);
        }
        // Takes the data of this message, if it comes on a data connection.
        let (head, brought, copied);
        let takes_data = messages::takes_data(header.op);
        let (frame, placed, r) = match &placed {
            _ if header.data_connection == ON_DATA_CONNECTION && takes_data => {
                head = frame.to_vec();
                brought = self.data_from_connection(header.op)?;
                let r = after_header(&header, &head, brought.bytes())?;
                (&head[..], Some(Placed::Own(brought.clone())), r)
            }
            // Such data may change under all but a device's copy.
            Some(Placed::Granted(memory)) if !takes_data => {
                copied = memory.copied();
                (frame, None, after_header(&header, frame, &copied)?)
            }
            _ => (frame, placed.clone(), r),
        };
        let (frame_len, is_long) = (HEADER_BYTES + r.left(), frame.len() >= PLACED_BYTES_MIN);
        self.executor.reply.clear();
        let awaited = Awaited::of(header.op, header.context, &r);
        let foreseen = self.foresight.next(awaited);
        let executed = if let Some(pending) = foreseen {
            Executed::foreseen(pending, awaited)
        } else {
            let in_place = self.executor.in_place(&header, placed.as_ref(), r);
            if let Some(executed) = in_place.map_err(malformed(&header))? {
                executed
            } else {
                // Copied, because while the message is executed more frames may be received.
                frame.clone_into(&mut self.frame);
                self.execute_copied(&header, placed.as_ref())?
            }
        };
        let end = self.note_done(&header, &executed, frame_len, start);
        self.settle(header, executed, end)?;
        self.grant(is_long && takes_data).map(|()| true)
    }

    /// Returns the next message of those that were received earlier: ones that were held, if they
    /// may be executed now, then ones that came while another was executed.
    fn received_before(&mut self, admission: Admission) -> Option<Vec<u8>> {
        let held = match admission {
            Admission::Open => self.held.pop(),
            Admission::Stalled => None,
        };
        held.or_else(|| self.early.pop())
    }

    /// Executes one of the session's own messages.
    fn execute_own(
        &mut self,
        header: RequestHeader,
        message: &OwnMessage,
        start: Instant,
    ) -> Result<(), End> {
        if !matches!(message, OwnMessage::Ping) {
            // It may be work for the device.
            self.foresight.next(None);
        }
        match message {
            OwnMessage::Ping => self.answer_ping(header, start),
            OwnMessage::Network(asked) => self.change_network(header, asked),
            OwnMessage::DataConnections(asked) => self.open_data_connections(header, asked),
            OwnMessage::Peer(message) => self.execute_peer(header, message, start),
            OwnMessage::Net(message) => self.execute_net(header, message, start),
        }
    }

    /// Executes the message in `frame`. While it waits for the client, other messages are received
    /// and ready replies sent.
    #[inline(always)]
    fn execute_copied(
        &mut self,
        header: &RequestHeader,
        placed: Option<&Placed>,
    ) -> Result<Executed, End> {
        let frame = std::mem::take(&mut self.frame);
        let executed = match after_frame_header(header, &frame, data_of(placed)) {
            Ok(body) => self.serving(|executor, aids| executor.execute(header, placed, aids, body)),
            Err(end) => return Err(end),
        };
        self.frame = frame;
        match self.ended_aside.take() {
            Some(end) => Err(end),
            None => executed.map_err(malformed(header)),
        }
    }

    /// Executes something during which the client is served. If the session ends meanwhile, the
    /// reason is in `ended_aside`.
    #[inline(always)]
    pub(super) fn serving<R>(&mut self, work: impl FnOnce(&mut Executor<'_>, Aids<'_>) -> R) -> R {
        let receiver = RefCell::new(&mut self.receiver);
        let (ended, pulse) = (&mut self.ended_aside, self.pulse);
        let mut blocked = BlockedService {
            receiver: &receiver,
            outbox: &mut self.outbox,
            waiting: &mut self.waiting,
            data_connections: &self.data_connections,
            stats: self.stats,
            net: &mut self.net,
            printed: &mut self.printed,
            host_calls: &mut self.host_calls,
            early: &mut self.early,
        };
        let mut service = |held_up: &mut dyn HeldUp, done: &mut Vec<u64>| {
            let turned = blocked.turn(held_up, done);
            match turned {
                Ok(()) => ended.is_none(),
                Err(end) => {
                    if ended.is_none() {
                        pulse.ends(&end);
                        blocked.outbox.say_end(&end);
                    }
                    ended.get_or_insert(end);
                    false
                }
            }
        };
        let mut fds = |tag| {
            let mut receiver = receiver.borrow_mut();
            let kind = receiver.kind();
            receiver
                .fds()
                .ok_or(outboard_link::Error::lacks(
                    "passing a file descriptor",
                    kind,
                ))
                .and_then(|fds| fds.recv_fd(tag, Duration::from_millis(limits::FD_MS_MAX)))
                .map_err(|e| Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, e.to_string()))
                .and_then(unshrinkable)
        };
        let aids = Aids {
            fds: &mut fds,
            service: &mut service,
            unserved: None,
        };
        work(&mut self.executor, aids)
    }

    /// Counts and logs an executed message. Returns the time.
    #[inline(always)]
    fn note_done(
        &mut self,
        header: &RequestHeader,
        executed: &Executed,
        frame_len: usize,
        start: Instant,
    ) -> Instant {
        let end = Instant::now();
        let spent = end - start;
        self.looked_at = Some(end);
        if frame_len >= PLACED_BYTES_MIN {
            self.outbox.has_received(end);
        }
        self.stats.count(header.op, frame_len, spent);
        if enabled!(Level::TRACE) {
            let failure = executed.outcome.as_ref().err();
            trace!(
                op = message_stats::name(header.op),
                token = header.token,
                context = header.context,
                bytes = frame_len,
                ns = spent.as_nanos() as u64,
                ?failure,
                "message"
            );
        }
        end
    }

    /// Sends a message's reply, or adds it to the pending ones.
    fn settle(
        &mut self,
        header: RequestHeader,
        executed: execute::Executed,
        start: Instant,
    ) -> Result<(), End> {
        self.settle_to(header, executed, start, None)?;
        if header.op == messages::ContextDestroy::NUMBER {
            self.outbox.ends_context(header.context);
        }
        Ok(())
    }

    /// Like [`settle`](Self::settle). The data of a reply may be a piece for another server.
    pub(super) fn settle_to(
        &mut self,
        header: RequestHeader,
        executed: execute::Executed,
        start: Instant,
        to_peer: Option<ToPeer>,
    ) -> Result<(), End> {
        let RequestHeader { op, token, .. } = header;
        let failure = match executed.outcome {
            Ok(Outcome::Wait(pending)) => {
                let queue = match executed.stream {
                    Some(stream) => Queue::Stream {
                        context: header.context,
                        stream,
                    },
                    None => Queue::Own,
                };
                let has_data = executed.reply_bytes.is_some();
                let bytes = executed.reply_bytes.unwrap_or(0);
                let of = self.outbox.origin(op, header.context);
                let mut entry = Waiting::new(of, token, queue, has_data, bytes, start, pending);
                entry.on_data_connection = header.data_connection == ON_DATA_CONNECTION;
                entry.to = executed.to;
                entry.source = executed.source;
                entry.to_peer = to_peer;
                match self.waiting.push(entry) {
                    Ok(()) => return Ok(()),
                    Err(failure) => failure,
                }
            }
            Ok(Outcome::Done) if token == 0 => return Ok(()),
            Ok(Outcome::Done) => {
                self.stats.answered(op, self.executor.reply.len());
                self.outbox.reply(op, token, &[&self.executor.reply])?;
                return Ok(self.outbox.flush()?);
            }
            Err(failure) => failure,
        };
        self.stats.failed(op);
        debug!(op = message_stats::name(op), token, %failure, "failed");
        // The client asks nothing after a sticky fault, so what its kernels printed is sent now or
        // never.
        self.send_printed(failure.status.is_sticky())?;
        if token == 0 {
            let of = self.outbox.origin(op, header.context);
            self.outbox.fault(of, &failure)?;
        } else {
            self.outbox.failure(token, &failure)?;
        }
        Ok(self.outbox.flush()?)
    }
}

/// A received frame, and the memory of its data, if that is another.
type Received<'a> = (&'a [u8], Option<Placed>);

/// Keeps a message that came, as its frame and the memory of its data, while too much is waiting.
/// Returns whether the next one may be looked at, and `None` for a message that is executed now.
#[cold]
fn kept_back(
    header: &RequestHeader,
    body: &Reader<'_>,
    (frame, placed): (&[u8], Option<&Placed>),
    (held, early, waiting): (&mut Held, &mut Early, usize),
) -> Option<bool> {
    match held.turn_of(header, body, waiting) {
        Turn::Now => None,
        Turn::Held(stream) => {
            held.push(frame, stream);
            Some(true)
        }
        Turn::Barred => {
            early.push_first(frame, data_of(placed).here().unwrap_or_default());
            Some(false)
        }
    }
}

/// Returns the next frame: the one that came early, or one that is received. Data of a copy to the
/// device goes where the device copies from.
#[inline(always)]
fn received<'a>(
    (early, receiver): (Option<&'a [u8]>, &'a mut Receiver),
    executor: &mut Executor<'_>,
    pulse: &Pulse,
    wait: Wait,
) -> Result<Option<Received<'a>>, End> {
    if let Some(frame) = early {
        return Ok(Some((frame, None)));
    }
    let mut place = |head: &[u8], len| executor.place(head, len);
    let frame = match wait {
        // The client is owed nothing.
        Wait::Forever => pulse.during(Activity::Idle, || receiver.recv_placed(wait, &mut place)),
        _ => receiver.recv_placed(wait, &mut place),
    }?;
    Ok(frame.map(|frame| (frame.head, frame.tail.map(Placed::from))))
}

/// Reads a message's header, and the program's call that the message is of.
#[inline]
fn header_and_call(r: &mut Reader<'_>) -> Result<(RequestHeader, u32), End> {
    let header = RequestHeader::decode(r).map_err(|why| End::Malformed { op: 0, why })?;
    let (context, call) = context_and_call(header.context);
    Ok((RequestHeader { context, ..header }, call))
}

/// Returns the reader of a frame and its data, after the frame's header.
fn after_header<'a>(
    header: &RequestHeader,
    frame: &'a [u8],
    data: &'a [u8],
) -> Result<Reader<'a>, End> {
    after_frame_header(header, frame, Data::Here(data))
}

/// Like [`after_header`], for data that may be in granted memory.
fn after_frame_header<'a>(
    header: &RequestHeader,
    frame: &'a [u8],
    data: Data<'a>,
) -> Result<Reader<'a>, End> {
    let mut r = Reader::split(frame, data);
    RequestHeader::decode(&mut r).map_err(malformed(header))?;
    Ok(r)
}

fn data_of(placed: Option<&Placed>) -> Data<'_> {
    placed.map_or(Data::Here(&[]), Placed::data)
}

/// Makes ordinary copies of those that an adapter would read too late: after this message has
/// changed their memory, or after the fence that this message is.
#[inline(always)]
fn keep_sources(
    waiting: &mut WaitingList,
    executor: &mut Executor<'_>,
    header: &RequestHeader,
    is_change: bool,
    body: &Reader<'_>,
) {
    if waiting.has_sources(None) {
        let fence = execute::fence_queue(header.op, header.context, body);
        if is_change || fence.is_some() && waiting.has_sources(fence) {
            executor.restage(waiting);
        }
    }
}

/// Returns whether the session itself executes the message, without the device.
#[inline(always)]
fn is_own(op: u16) -> bool {
    matches!(
        op,
        Ping::NUMBER | NetworkSet::NUMBER | DataConnectionsOpen::NUMBER
    ) || peers::is_peer_message(op)
        || net::is_net_message(op)
}

/// Decodes a message for which [`is_own`] is true.
fn own_message(op: u16, body: &mut Reader<'_>) -> Result<OwnMessage, DecodeError> {
    let message = match op {
        NetworkSet::NUMBER => OwnMessage::Network(NetworkSet::decode(body)?.network.to_vec()),
        DataConnectionsOpen::NUMBER => {
            OwnMessage::DataConnections(DataConnectionsOpen::decode(body)?)
        }
        _ => match PeerMessage::decode(op, body) {
            Some(message) => OwnMessage::Peer(message?),
            None => match NetMessage::decode(op, body) {
                Some(message) => OwnMessage::Net(message?),
                None => OwnMessage::Ping,
            },
        },
    };
    body.end()?;
    Ok(message)
}

fn malformed(header: &RequestHeader) -> impl FnOnce(DecodeError) -> End + use<> {
    let op = header.op;
    move |why| End::Malformed { op, why }
}
