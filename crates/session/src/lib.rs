//! One client's session: executes its messages strictly in order, replies when the device is done,
//! and sends the device's notes.
//!
//! One thread does all of it and never blocks on the GPU. Work that takes time is a
//! [`Pending`](outboard_device::Pending) in the [`waiting`] list, which is polled between messages.
//!
//! # Order of answers
//!
//! When a pending reply is ready, every earlier one is polled again and sent first if it is ready
//! too. So a client that receives a fence's reply has already received the data of all copies
//! before it. Faults are sent when they happen. Output of kernels and host memory that kernels
//! wrote are sent before the replies that became ready at the same poll.
//!
//! # Why sending cannot deadlock
//!
//! Sending blocks while the client does not read, and this thread does not receive while it sends.
//! Two such sides could wait for each other for ever. The client's duty prevents that: one of its
//! threads reads whenever a reply or a note can come, and that thread neither sends nor takes a
//! lock that a sender holds. The server's send then ends as soon as that thread has read enough;
//! after it the server receives, and the client's senders go on. A client that breaks this duty
//! blocks only its own worker process, which the supervisor ends with a signal like any other.
//!
//! # When too much is waiting
//!
//! Above [`WAITING_MAX`](limits::WAITING_MAX) pending replies or
//! [`WAITING_BYTES_MAX`](limits::WAITING_BYTES_MAX) of their data, no message is received until a
//! reply is sent. So a client that copies out faster than the link carries cannot fill the server's
//! memory. But the work may itself need a message that has yet to come: the end of a host function,
//! or a value that a stream waits for. So after [`STALL_MS_MAX`](limits::STALL_MS_MAX) without a
//! reply, messages are received again, up to hard limits above which a message fails.

mod answers;
mod blocked_service;
mod data_connections;
mod execute;
mod exposed;
mod grants;
pub mod handshake;
pub mod limits;
mod message_stats;
mod outbox;
mod poll_policy;
mod session_ops;
mod waiting;

#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    collections::VecDeque,
    num::NonZeroU64,
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::{Cx, Device, Failure, Outcome, Printed, images::ImageStore};
use outboard_link::{Destination, Link, Receiver, Segment, Wait, cores, data_connections_wanted};
use outboard_wire::{
    DecodeError, Message as _, Op as _, Reader,
    frame::{ON_DATA_CONNECTION, RequestHeader, context_and_call, copied_data_at},
    handshake::Purpose,
    limits::{CHUNK_BYTES_MAX, PLACED_BYTES_MIN},
    messages::{
        self, DataConnectionsOpen, HostCallNote, HostPagesNote, NetworkSet, Ping, PrintNote,
    },
};
use rustix::{fs::SealFlags, thread::set_current_timer_slack};
use thiserror::Error;
use tracing::{Level, debug, enabled, trace};

use answers::{restaged, send_answers};
use blocked_service::BlockedService;
pub use data_connections::DataConnectionSource;
use data_connections::DataConnections;
use exposed::Exposed;
use grants::Grants;
pub use message_stats::MessageStats;
use outbox::Outbox;
use poll_policy::PollPolicy;
use waiting::{Admission, Queue, Waiting, WaitingList};

/// Serves one client until it leaves or breaks the protocol. The caller owns the device and drops
/// it afterwards. `source` brings data connections, if the link can have them.
pub fn serve(
    device: &mut dyn Device,
    link: Link,
    purpose: Purpose,
    images: ImageStore,
    source: Option<Arc<dyn DataConnectionSource>>,
) -> (End, MessageStats) {
    let connections_max = data_connections_wanted();
    serve_with_data_connections(device, link, purpose, images, source, connections_max)
}

/// Serves one client, with a bound on its data connections.
fn serve_with_data_connections(
    device: &mut dyn Device,
    link: Link,
    purpose: Purpose,
    images: ImageStore,
    source: Option<Arc<dyn DataConnectionSource>>,
    connections_max: usize,
) -> (End, MessageStats) {
    // By default the kernel may end a sleep 50 us late, as long as some kernels run.
    if let Err(error) = set_current_timer_slack(NonZeroU64::new(limits::TIMER_SLACK_NS)) {
        debug!(%error, "timers stay coarse");
    }
    // A program's own threads may keep every core busy while it waits for this one.
    if let Err(error) = cores::wake_promptly() {
        debug!(%error, "the session's threads keep the default slice");
    }
    let source = source.filter(|_| link.data_connections().is_some());
    let (sender, mut receiver) = link.split();
    let grants = Grants::over(&mut receiver);
    let mut outbox = Outbox::new(sender);
    let registrar = outbox.registrar().filter(|_| purpose == Purpose::Session);
    let exposed = Exposed::new(registrar, device);
    let mut session = Session {
        device,
        purpose,
        images,
        receiver,
        outbox,
        waiting: WaitingList::default(),
        data_connections: DataConnections::new(source, connections_max),
        poll_policy: PollPolicy::new(),
        stats: MessageStats::default(),
        looked_at: None,
        grants,
        exposed,
        frame: Vec::new(),
        reply: Vec::new(),
        printed: Printed::default(),
        host_calls: Vec::new(),
        early: VecDeque::new(),
        call: 0,
    };
    let end = loop {
        if let Err(end) = session.turn() {
            break end;
        }
    };
    if let End::Malformed { op, .. } = end {
        // If the client cannot be told any more, the log still has the reason.
        let _ = session.outbox.farewell(op, &end.to_string());
    }
    if !session.waiting.is_empty() {
        let count = session.waiting.len();
        debug!(count, "answers that nobody waits for any more");
    }
    (end, session.stats)
}

/// Why a session ended.
#[derive(Debug, Error)]
pub enum End {
    #[error("the client left")]
    ClientLeft,
    /// The client broke the protocol; it is told so.
    #[error("the client sent a malformed message: {} (number {op}): {why}", message_stats::name(*op))]
    Malformed { op: u16, why: DecodeError },
    #[error(transparent)]
    Link(outboard_link::Error),
}

impl From<outboard_link::Error> for End {
    fn from(error: outboard_link::Error) -> End {
        if error.is_disconnect() {
            End::ClientLeft
        } else {
            End::Link(error)
        }
    }
}

struct Session<'d> {
    device: &'d mut dyn Device,
    purpose: Purpose,
    images: ImageStore,
    receiver: Receiver,
    outbox: Outbox,
    waiting: WaitingList,
    data_connections: DataConnections,
    poll_policy: PollPolicy,
    stats: MessageStats,
    /// When the last message was done, if the session has not waited since. Spares a look at the
    /// clock.
    looked_at: Option<Instant>,
    grants: Grants,
    exposed: Exposed,
    /// Copy of the message in execution, unless it is bulk data.
    frame: Vec<u8>,
    reply: Vec<u8>,
    printed: Printed,
    host_calls: Vec<(u64, CUresult)>,
    /// Messages received while another was executed.
    early: VecDeque<Vec<u8>>,
    /// The program's call that the device was last told of (a profile's call number).
    call: u32,
}

impl Session<'_> {
    /// Receives messages and sends ready replies; waits if there was neither.
    fn turn(&mut self) -> Result<(), End> {
        let mut is_idle = true;
        let admission = self.waiting.admission(Instant::now());
        if admission != Admission::Stalled {
            for _ in 0..limits::MESSAGES_PER_TURN_MAX {
                if self.waiting.has_sources(None) {
                    // A copy whose mark is reached can be read by the adapter now, before the next
                    // message would make it an ordinary copy.
                    self.answer_ready()?;
                }
                if !self.take_message(Wait::Poll)? {
                    self.looked_at = None;
                    break;
                }
                is_idle = false;
            }
        }
        if self.answer_ready()? {
            self.looked_at = None;
            is_idle = false;
        }
        is_idle &= !self.forward_host_calls()?;
        self.outbox.send_held_faults_if_due()?;
        if !is_idle {
            self.poll_policy.worked();
            return Ok(());
        }
        let is_expecting = !self.waiting.is_empty()
            || self.device.awaits_host_calls()
            || self.outbox.holds_faults();
        let wait = if is_expecting {
            self.poll_policy.next_wait()
        } else {
            Wait::Forever
        };
        match (admission, wait) {
            (_, Wait::Poll) => {}
            (Admission::Open, wait) => {
                self.looked_at = None;
                if self.take_message(wait)? {
                    self.poll_policy.worked();
                }
            }
            (Admission::Stalled, Wait::Until(until)) => {
                thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            // Not reached: a stalled session has pending replies, and so a bounded wait.
            (Admission::Stalled, Wait::Forever) => {}
        }
        Ok(())
    }

    /// Executes the next message, if there is one.
    fn take_message(&mut self, wait: Wait) -> Result<bool, End> {
        // Messages that came while another was executed go first.
        let early = self.early.pop_front();
        let (frame, placed): (&[u8], Option<Arc<dyn Segment>>) = match &early {
            Some(frame) => (frame, None),
            None => {
                let (device, purpose) = (&mut *self.device, self.purpose);
                let mut place = |head: &[u8], len| place(device, purpose, head, len);
                match self.receiver.recv_placed(wait, &mut place)? {
                    Some(frame) => (frame.head, frame.tail.map(Arc::from)),
                    None => return Ok(false),
                }
            }
        };
        let data = placed.as_ref().map_or(&[][..], |placed| placed.bytes());
        // Messages that follow each other at once share one look at the clock.
        let start = self.looked_at.take().unwrap_or_else(Instant::now);
        let mut r = Reader::split(frame, data);
        let header = RequestHeader::decode(&mut r).map_err(|why| End::Malformed { op: 0, why })?;
        let (context, call) = context_and_call(header.context);
        let header = RequestHeader { context, ..header };
        if call != self.call {
            self.call = call;
            self.device.of_call(call);
        }
        if messages::is_fence(header.op) {
            // The client may see the fence's value before its reply, and must have all faults by
            // then.
            self.outbox.send_held_faults()?;
        }
        let is_change = !messages::leaves_memory(header.op);
        if self.waiting.has_sources(None) {
            let fence = execute::fence_queue(header.op, header.context, &r);
            if is_change || fence.is_some() && self.waiting.has_sources(fence) {
                let (device, images) = (&mut *self.device, &mut self.images);
                self.waiting
                    .restage(|source| restaged(device, images, source));
            }
        }
        if is_change {
            self.outbox.wait_until_device_read()?;
        }
        if header.op == Ping::NUMBER {
            r.end()
                .map_err(|why| End::Malformed { op: header.op, why })?;
            return self.answer_ping(header, start).map(|()| true);
        }
        if header.op == NetworkSet::NUMBER {
            let asked = NetworkSet::decode(&mut r)
                .and_then(|asked| r.end().map(|()| asked.network.to_vec()))
                .map_err(|why| End::Malformed { op: header.op, why })?;
            return self.change_network(header, &asked).map(|()| true);
        }
        if header.op == DataConnectionsOpen::NUMBER {
            let asked = DataConnectionsOpen::decode(&mut r)
                .and_then(|asked| r.end().map(|()| asked))
                .map_err(|why| End::Malformed { op: header.op, why })?;
            return self.open_data_connections(header, &asked).map(|()| true);
        }
        // Takes the data of this message, if it comes on a data connection.
        let (head, brought);
        let (frame, placed, r) = if header.data_connection == ON_DATA_CONNECTION
            && messages::takes_data(header.op)
        {
            head = frame.to_vec();
            brought = self.data_from_connection(header.op)?;
            let mut r = Reader::split(&head, brought.bytes());
            RequestHeader::decode(&mut r).map_err(|why| End::Malformed { op: header.op, why })?;
            (&head[..], Some(brought.clone()), r)
        } else {
            (frame, placed.clone(), r)
        };
        let data = placed.as_ref().map_or(&[][..], |placed| placed.bytes());
        let frame_len = frame.len() + data.len();
        let is_long = frame.len() >= PLACED_BYTES_MIN;
        self.reply.clear();
        let result = if messages::is_bulk(header.op) {
            // Bulk data is used where it was received.
            let mut no_fds = |_| Err(Failure::unsupported("a file descriptor with bulk data"));
            let mut cx = Cx {
                context: header.context,
                images: &mut self.images,
                placed: placed.as_ref(),
                fds: &mut no_fds,
                service: &mut |_, _| true,
            };
            execute::execute(
                &mut *self.device,
                self.purpose,
                &mut cx,
                &mut self.exposed,
                header.op,
                r,
                &mut self.reply,
            )
        } else {
            // Copied, because while the message is executed more frames may be received.
            self.frame.clear();
            self.frame.extend_from_slice(frame);
            let body = self.frame.get(outboard_wire::frame::HEADER_BYTES..);
            let receiver = RefCell::new(&mut self.receiver);
            let mut blocked = BlockedService {
                receiver: &receiver,
                outbox: &mut self.outbox,
                waiting: &mut self.waiting,
                data_connections: &self.data_connections,
                stats: &mut self.stats,
                early: &mut self.early,
            };
            let mut service = |reached: &[(u64, CUresult)], done: &mut Vec<u64>| {
                let turned = blocked.turn(reached, done);
                if let Err(error) = &turned {
                    debug!(%error, "while a message was executed");
                }
                turned.is_ok()
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
            let mut cx = Cx {
                context: header.context,
                images: &mut self.images,
                placed: None,
                fds: &mut fds,
                service: &mut service,
            };
            execute::execute(
                &mut *self.device,
                self.purpose,
                &mut cx,
                &mut self.exposed,
                header.op,
                Reader::new(body.unwrap_or_default()),
                &mut self.reply,
            )
        };
        let executed = result.map_err(|why| End::Malformed { op: header.op, why })?;
        let end = Instant::now();
        let spent = end - start;
        self.looked_at = Some(end);
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
        self.settle(header, executed, end)?;
        self.grant(is_long && messages::takes_data(header.op))?;
        Ok(true)
    }

    /// Sends a message's reply, or adds it to the pending ones.
    fn settle(
        &mut self,
        header: RequestHeader,
        executed: execute::Executed,
        start: Instant,
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
                let mut entry = Waiting::new(op, token, queue, has_data, bytes, start, pending);
                entry.on_data_connection = header.data_connection == ON_DATA_CONNECTION;
                entry.to = executed.to;
                entry.source = executed.source;
                match self.waiting.push(entry) {
                    Ok(()) => return Ok(()),
                    Err(failure) => failure,
                }
            }
            Ok(Outcome::Done) if token == 0 => return Ok(()),
            Ok(Outcome::Done) => {
                self.stats.answered(op, self.reply.len());
                self.outbox.reply(op, token, &[&self.reply])?;
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
            self.outbox.fault(op, &failure)?;
        } else {
            self.outbox.failure(token, &failure)?;
        }
        Ok(self.outbox.flush()?)
    }

    /// Sends the replies that the device has finished.
    fn answer_ready(&mut self) -> Result<bool, End> {
        self.outbox.drop_read_owners();
        if !self.waiting.poll() {
            return Ok(false);
        }
        self.outbox.send_held_faults()?;
        self.send_printed(self.waiting.any_lost())?;
        self.send_host_pages()?;
        send_answers(
            &mut self.waiting,
            &mut self.outbox,
            &self.data_connections,
            &mut self.stats,
        )?;
        self.outbox.flush()?;
        Ok(true)
    }

    fn send_printed(&mut self, lost: bool) -> Result<(), End> {
        self.device.take_printed(&mut self.printed, lost);
        let Printed { stdout, stderr } = &mut self.printed;
        for (fd, text) in [
            (libc::STDOUT_FILENO as u8, stdout),
            (libc::STDERR_FILENO as u8, stderr),
        ] {
            for text in text.chunks(CHUNK_BYTES_MAX) {
                self.outbox
                    .note(PrintNote::NUMBER, &PrintNote { fd, text })?;
            }
            text.clear();
        }
        Ok(())
    }

    fn send_host_pages(&mut self) -> Result<(), End> {
        let outbox = &mut self.outbox;
        let mut sent = Ok(());
        self.device.take_host_pages(&mut |va, pages| {
            let mut va = va;
            for data in pages.chunks(CHUNK_BYTES_MAX) {
                if sent.is_ok() {
                    sent = outbox.note(HostPagesNote::NUMBER, &HostPagesNote { va, data });
                }
                va = va.wrapping_add(data.len() as u64);
            }
        });
        Ok(sent?)
    }

    fn forward_host_calls(&mut self) -> Result<bool, End> {
        if !self.device.awaits_host_calls() {
            return Ok(false);
        }
        self.device.take_host_calls(&mut self.host_calls);
        if self.host_calls.is_empty() {
            return Ok(false);
        }
        // A host function may read what was copied out, printed or written before it. Copies may
        // have become ready since the last poll; those after the function cannot be, because the
        // function is not done.
        self.answer_ready()?;
        self.send_printed(false)?;
        self.send_host_pages()?;
        for (call, status) in self.host_calls.drain(..) {
            let status = status.0;
            self.outbox
                .note(HostCallNote::NUMBER, &HostCallNote { call, status })?;
        }
        self.outbox.flush()?;
        Ok(true)
    }
}

/// Chooses memory for a long frame: data of a copy to the device goes into memory that the device
/// copies from.
fn place(
    device: &mut dyn Device,
    purpose: Purpose,
    head: &[u8],
    len: usize,
) -> Option<Destination> {
    if purpose != Purpose::Session {
        return None;
    }
    let skip = copied_data_at(head, len)?;
    let memory = device.room(len - skip)?;
    Some(Destination { skip, memory })
}

/// Accepts the client's shared memory only if it is sealed against shrinking. Otherwise the client
/// could end this process with SIGBUS by removing pages that are mapped here. Only memory files
/// have seals.
fn unshrinkable(file: OwnedFd) -> Result<OwnedFd, Failure> {
    let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    match seals.contains(SealFlags::SHRINK) {
        true => Ok(file),
        false => Err(Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            "shared memory that is not sealed against shrinking",
        )),
    }
}
