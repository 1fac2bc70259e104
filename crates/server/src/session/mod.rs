//! One client: its messages executed strictly in order, answers when the device is done, and whatever the device has to
//! say unasked.
//!
//! One thread does it all and never blocks on the GPU: what takes time is a [`Pending`](crate::device::Pending) in the
//! [`waiting`] list, polled between messages.
//!
//! # Order of answers
//!
//! When a pending is ready, every earlier one is polled again and answered first, if it is ready too. A client that sees
//! a fence answered has therefore received the data of all copies in front of it. Faults are sent when they happen, and
//! what kernels printed or wrote to host memory is sent in front of the answers of a round.
//!
//! # Why sending cannot deadlock
//!
//! Sending blocks while the client does not read, and this thread does not receive while it sends. Two such sides could
//! wait for each other for ever, were it not for the client's duty: a thread of its reads whenever an answer or a note
//! can come, and that thread neither sends nor takes a lock that a sender holds. Our sends then end as soon as that
//! thread has caught up; after them we receive, and the client's senders go on. A client that breaks the duty blocks
//! its own worker process and nobody else's; the supervisor ends that one with a signal, as it ends all workers.
//!
//! # When too much is waiting
//!
//! Past [`WAITING_MAX`](limits::WAITING_MAX) answers or [`WAITING_BYTES_MAX`](limits::WAITING_BYTES_MAX) of their data
//! no message is received until one is answered, so that a client that copies out faster than the link carries cannot
//! fill the server's memory. But work may also wait for a message that is still to come (a host function's end, a value
//! that a stream waits for), so after [`STALL_MS_MAX`](limits::STALL_MS_MAX) without an answer messages are received
//! again, up to limits at which the message fails.

mod answers;
mod execute;
mod exposed;
mod grants;
pub mod handshake;
mod itself;
mod lanes;
pub mod limits;
mod outbox;
mod pace;
mod relay;
mod tally;
mod waiting;

#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    collections::VecDeque,
    net::SocketAddr,
    num::NonZeroU64,
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_link::{Link, Place, Receiver, Segment, Wait, lanes_wanted};
use outboard_ptx::Printed;
use outboard_wire::{
    DecodeError, Message as _, Op as _, Reader,
    frame::{ON_A_LANE, RequestHeader, context_and_call, copied_data_at},
    handshake::Purpose,
    limits::{CHUNK_BYTES_MAX, PLACED_BYTES_MIN},
    messages::{HostCallNote, HostPagesNote, LanesOpen, NetworkSet, Ping, PrintNote},
};
use rustix::{fs::SealFlags, thread::set_current_timer_slack};
use thiserror::Error;
use tracing::{Level, debug, enabled, trace};

use crate::{
    device::{Cx, Device, Failure, Outcome},
    images::ImageStore,
};
use answers::{restaged, send_answers};
use exposed::Exposed;
use grants::Grants;
use lanes::Lanes;
use outbox::Outbox;
use pace::Pace;
use relay::Relay;
pub use tally::Tally;
use waiting::{Admission, Queue, Waiting, WaitingList};

/// Serves one client until it leaves or breaks a rule. The device is the caller's, who drops it afterwards.
pub fn serve(
    device: &mut dyn Device,
    link: Link,
    purpose: Purpose,
    images: ImageStore,
) -> (End, Tally) {
    serve_with_lanes(device, link, purpose, images, lanes_wanted())
}

/// The same with a bound for the lanes that the session may have.
fn serve_with_lanes(
    device: &mut dyn Device,
    link: Link,
    purpose: Purpose,
    images: ImageStore,
    lanes_max: usize,
) -> (End, Tally) {
    // The kernel lets a sleep end 50 us late unless it is told otherwise: as long as some kernels run.
    if let Err(error) = set_current_timer_slack(NonZeroU64::new(limits::TIMER_SLACK_NS)) {
        debug!(%error, "timers stay coarse");
    }
    let address = link.addresses().map(|(ours, _)| ours);
    let grants = Grants::over(&link);
    let (sender, receiver) = link.split();
    let outbox = Outbox::new(sender);
    let registrar = outbox.registrar().filter(|_| purpose == Purpose::Session);
    let exposed = Exposed::new(registrar, device);
    let mut session = Session {
        device,
        purpose,
        images,
        receiver,
        outbox,
        waiting: WaitingList::default(),
        lanes: Lanes::new(lanes_max),
        address,
        pace: Pace::new(),
        tally: Tally::default(),
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
        // A client that cannot be told any more has at least been logged.
        let _ = session.outbox.farewell(op, &end.to_string());
    }
    if !session.waiting.is_empty() {
        let count = session.waiting.len();
        debug!(count, "answers that nobody waits for any more");
    }
    (end, session.tally)
}

/// Why a session ended.
#[derive(Debug, Error)]
pub enum End {
    #[error("the client left")]
    ClientLeft,
    /// The client's fault; it is told.
    #[error("the client sent a malformed message: {} (number {op}): {why}", tally::name(*op))]
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
    lanes: Lanes,
    /// Ours, where there can be lanes.
    address: Option<SocketAddr>,
    pace: Pace,
    tally: Tally,
    /// When the last message was done, if nothing has been waited for since.
    looked_at: Option<Instant>,
    grants: Grants,
    exposed: Exposed,
    /// The message in hand, where it is not bulk data.
    frame: Vec<u8>,
    reply: Vec<u8>,
    printed: Printed,
    host_calls: Vec<(u64, CUresult)>,
    /// Messages received while another was executed.
    early: VecDeque<Vec<u8>>,
    /// The program's call that the last message was of, as the device was told.
    call: u32,
}

impl Session<'_> {
    /// Receives what has come, answers what is ready; waits if there was neither.
    fn turn(&mut self) -> Result<(), End> {
        let mut is_idle = true;
        let admission = self.waiting.admission(Instant::now());
        if admission != Admission::Stalled {
            for _ in 0..limits::MESSAGES_PER_TURN_MAX {
                if self.waiting.has_sources(None) {
                    // What is reached may be read at once, and need not become an ordinary copy for what comes next.
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
            self.pace.worked();
            return Ok(());
        }
        let is_expecting = !self.waiting.is_empty()
            || self.device.awaits_host_calls()
            || self.outbox.holds_faults();
        let wait = if is_expecting {
            self.pace.next_wait()
        } else {
            Wait::Forever
        };
        match (admission, wait) {
            (_, Wait::Poll) => {}
            (Admission::Open, wait) => {
                self.looked_at = None;
                if self.take_message(wait)? {
                    self.pace.worked();
                }
            }
            (Admission::Stalled, Wait::Until(until)) => {
                thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            // Not reached: what stalls is waited for.
            (Admission::Stalled, Wait::Forever) => {}
        }
        Ok(())
    }

    /// Executes the next message, if there is one.
    fn take_message(&mut self, wait: Wait) -> Result<bool, End> {
        // What came while a message was executed goes first.
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
        // Between two messages that follow each other at once lies nothing worth another look at the clock.
        let start = self.looked_at.take().unwrap_or_else(Instant::now);
        let mut r = Reader::split(frame, data);
        let header = RequestHeader::decode(&mut r).map_err(|why| End::Malformed { op: 0, why })?;
        let (context, call) = context_and_call(header.context);
        let header = RequestHeader { context, ..header };
        if call != self.call {
            self.call = call;
            self.device.of_call(call);
        }
        if execute::is_fence(header.op) {
            // The client may see the device's word before our answer: it must then have all faults.
            self.outbox.send_held_faults()?;
        }
        let is_change = !execute::leaves_memory(header.op);
        if self.waiting.has_sources(None) {
            let fence = execute::fenced(header.op, header.context, &r);
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
        if header.op == LanesOpen::NUMBER {
            let asked = LanesOpen::decode(&mut r)
                .and_then(|asked| r.end().map(|()| asked))
                .map_err(|why| End::Malformed { op: header.op, why })?;
            return self.open_lanes(header, &asked).map(|()| true);
        }
        // The data of this message, where it comes on a lane.
        let (head, brought);
        let (frame, placed, r) = if header.lane == ON_A_LANE && execute::takes_data(header.op) {
            head = frame.to_vec();
            brought = self.data_from_lane(header.op)?;
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
        let result = if execute::is_bulk(header.op) {
            // Used where it lies: data only, which the client may alter meanwhile at its own cost.
            let mut no_fds = |_| Err(Failure::unsupported("a file descriptor with bulk data"));
            let mut cx = Cx {
                context: header.context,
                images: &mut self.images,
                placed: placed.as_ref(),
                fds: &mut no_fds,
                service: &mut |_, _| {},
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
            // Over shm the client could change the message between two looks at it.
            self.frame.clear();
            self.frame.extend_from_slice(frame);
            let body = self.frame.get(outboard_wire::frame::HEADER_BYTES..);
            let receiver = RefCell::new(&mut self.receiver);
            let mut relay = Relay {
                receiver: &receiver,
                outbox: &mut self.outbox,
                waiting: &mut self.waiting,
                lanes: &self.lanes,
                tally: &mut self.tally,
                early: &mut self.early,
            };
            let mut service = |reached: &[(u64, CUresult)], done: &mut Vec<u64>| {
                // A client that is gone is noticed when the message is done.
                if let Err(error) = relay.turn(reached, done) {
                    debug!(%error, "while a message was executed");
                }
            };
            let mut fds = |tag| {
                receiver
                    .borrow_mut()
                    .recv_fd(tag, Duration::from_millis(limits::FD_MS_MAX))
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
        self.tally.count(header.op, frame_len, spent);
        if enabled!(Level::TRACE) {
            let failure = executed.outcome.as_ref().err();
            trace!(
                op = tally::name(header.op),
                token = header.token,
                context = header.context,
                bytes = frame_len,
                ns = spent.as_nanos() as u64,
                ?failure,
                "message"
            );
        }
        self.settle(header, executed, end)?;
        self.grant(is_long && execute::takes_data(header.op))?;
        Ok(true)
    }

    /// Answers a message, or notes down that it will be answered.
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
                entry.on_lane = header.lane == ON_A_LANE;
                entry.to = executed.to;
                entry.source = executed.source;
                match self.waiting.push(entry) {
                    Ok(()) => return Ok(()),
                    Err(failure) => failure,
                }
            }
            Ok(Outcome::Done) if token == 0 => return Ok(()),
            Ok(Outcome::Done) => {
                self.tally.answered(op, self.reply.len());
                self.outbox.reply(op, token, &[&self.reply])?;
                return Ok(self.outbox.flush()?);
            }
            Err(failure) => failure,
        };
        self.tally.failed(op);
        debug!(op = tally::name(op), token, %failure, "failed");
        // After a fault the client asks no more: what its kernels printed comes with the news, or never.
        self.send_printed(failure.status.is_sticky())?;
        if token == 0 {
            self.outbox.fault(op, &failure)?;
        } else {
            self.outbox.failure(token, &failure)?;
        }
        Ok(self.outbox.flush()?)
    }

    /// Answers what the device has finished.
    fn answer_ready(&mut self) -> Result<bool, End> {
        self.outbox.let_go();
        if !self.waiting.poll() {
            return Ok(false);
        }
        self.outbox.send_held_faults()?;
        self.send_printed(self.waiting.any_lost())?;
        self.send_host_pages()?;
        send_answers(
            &mut self.waiting,
            &mut self.outbox,
            &self.lanes,
            &mut self.tally,
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
        // A host function may look at what was copied out, printed or written in front of it. Copies can have become ready
        // since they were last looked at; those behind the function cannot, before it is done.
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

/// Where a long frame goes: the data of a copy to the device into memory that the device copies from.
fn place(device: &mut dyn Device, purpose: Purpose, head: &[u8], len: usize) -> Option<Place> {
    if purpose != Purpose::Session {
        return None;
    }
    let skip = copied_data_at(head, len)?;
    let memory = device.room(len - skip)?;
    Some(Place { skip, memory })
}

/// Memory that a client hands over, if it cannot shrink: the client would end this process by taking away pages that are
/// mapped here. Only memory files have seals.
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
