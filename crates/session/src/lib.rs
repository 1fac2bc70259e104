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
//! [`WAITING_BYTES_MAX`](limits::WAITING_BYTES_MAX) of their data, none is added until a reply is
//! sent. So a client that copies out faster than the link carries cannot fill the server's memory.
//! Copies from the device are held then, and copies to the device in other streams go before them:
//! no program can tell (`held.rs`). Any other message waits. But the work may itself need a message
//! that has yet to come: the end of a host function, or a value that a stream waits for. So after
//! [`STALL_MS_MAX`](limits::STALL_MS_MAX) without a reply, messages are executed again, up to hard
//! limits above which a message fails.
//!
//! Nor does the session wait for room on the data connections: what is ready for them is sent once
//! there is some, and what becomes ready later follows it.

mod answers;
mod aside;
mod blocked_service;
mod changes;
mod data_connections;
mod execute;
mod executor;
mod exposed;
mod foresight;
mod grants;
pub mod handshake;
mod held;
pub mod limits;
mod message;
mod message_stats;
mod net;
mod news;
mod outbox;
mod peers;
mod poll_policy;
mod pulse;
mod session_ops;
mod sources;
mod waiting;

#[cfg(test)]
mod tests;

use std::{
    num::NonZeroU64,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_budget::Exhausted;
use outboard_device::{Device, Printed, images::ImageStore};
use outboard_link::{GpuMemory, Link, LinkKind, Receiver, Wait, cores, data_connections_wanted};
use outboard_wire::{DecodeError, doc::SessionEnd, handshake::Purpose, messages::HostCallNote};
use rustix::thread::set_current_timer_slack;
use thiserror::Error;
use tracing::debug;

use answers::{WithoutRoom, has_room, send_answers};
use blocked_service::Early;
use data_connections::DataConnections;
use executor::Executor;
use exposed::Exposed;
use foresight::{Awaited, Foresight};
use grants::Grants;
use held::Held;
use message_stats::Counters;
pub use message_stats::MessageStats;
use net::Net;
use outbox::Outbox;
use peers::Peers;
use poll_policy::PollPolicy;
pub use pulse::Pulse;
pub use sources::{DataConnectionSource, PeerSource};
use waiting::{Admission, WaitingList};

/// Serves one client until it leaves, breaks the protocol, or sends nothing for `idle_max` while no
/// reply is due. The caller owns the device and drops it afterwards. `source` brings data
/// connections, if the link can have them.
pub fn serve(
    device: &mut dyn Device,
    link: Link,
    purpose: Purpose,
    images: ImageStore,
    source: Option<Arc<dyn DataConnectionSource>>,
    idle_max: Option<Duration>,
    pulse: &Pulse,
) -> (End, MessageStats) {
    let bounds = Bounds {
        connections_max: data_connections_wanted(),
        idle_max,
    };
    serve_within(device, link, purpose, images, source, bounds, pulse)
}

/// Bounds of a session.
struct Bounds {
    connections_max: usize,
    idle_max: Option<Duration>,
}

/// Serves one client within bounds.
fn serve_within(
    device: &mut dyn Device,
    link: Link,
    purpose: Purpose,
    images: ImageStore,
    source: Option<Arc<dyn DataConnectionSource>>,
    bounds: Bounds,
    pulse: &Pulse,
) -> (End, MessageStats) {
    // By default the kernel may end a sleep 50 us late, as long as some kernels run.
    if let Err(error) = set_current_timer_slack(NonZeroU64::new(limits::TIMER_SLACK_NS)) {
        debug!(%error, "timers stay coarse");
    }
    // A program's own threads may keep every core busy while it waits for this one.
    if let Err(error) = cores::wake_promptly() {
        debug!(%error, "the session's threads keep the default slice");
    }
    let peers = Peers::new(source.clone());
    let for_net = source.clone().filter(|_| purpose == Purpose::Session);
    let net = Net::new(for_net, || device.expose(GpuMemory::Auto));
    let source = source.filter(|_| link.data_connections().is_some());
    let (attachment, carrier) = (link.attachment().cloned(), link.carrier());
    for helper in link.copy_helpers() {
        let started = thread::Builder::new().name("outboard-copy".into());
        if let Err(error) = started.spawn(move || helper.run()) {
            debug!(%error, "a thread that helps with copies cannot be started");
        }
    }
    let (sender, mut receiver) = link.split();
    let grants = Grants::over(&mut receiver);
    let mut outbox = Outbox::new(sender);
    let registrar = outbox.registrar().filter(|_| purpose == Purpose::Session);
    let exposed = Exposed::new(registrar, device);
    let mut session = Session {
        executor: Executor::new(device, purpose, images, exposed),
        receiver,
        outbox,
        waiting: WaitingList::default(),
        data_connections: DataConnections::new(source, attachment, bounds.connections_max),
        peers,
        net,
        poll_policy: PollPolicy::new(),
        foresight: Foresight::default(),
        stats: &pulse.counters,
        looked_at: None,
        grants,
        frame: Vec::new(),
        printed: Printed::default(),
        host_calls: Vec::new(),
        early: Early::default(),
        held: Held::new(carrier == LinkKind::Rdma),
        ended_aside: None,
        idle_max: bounds.idle_max,
        pulse,
    };
    let end = loop {
        if let Err(end) = session.turn() {
            break end;
        }
    };
    session.outbox.say_end(&end);
    if !session.waiting.is_empty() {
        let count = session.waiting.len();
        debug!(count, "answers that nobody waits for any more");
    }
    (end, pulse.stats())
}

/// Why a session ended.
#[derive(Debug, Error)]
pub enum End {
    #[error("the client left")]
    ClientLeft,
    /// The client broke the protocol; it is told so.
    #[error("the client sent a malformed message: {} (number {op}): {why}", message_stats::name(*op))]
    Malformed { op: u16, why: DecodeError },
    #[error("the client asked nothing for {} ms", .0.as_millis())]
    Idle(Duration),
    /// Bytes that a device has written cannot be kept in order; the client is told so.
    #[error(
        "memory that an RDMA device has written is sent in order, beside which there is no room for it: {0}"
    )]
    Memory(Exhausted),
    #[error(transparent)]
    Link(outboard_link::Error),
}

impl End {
    /// Returns the reason as the server counts it.
    pub fn counted(&self) -> SessionEnd {
        match self {
            End::ClientLeft | End::Idle(_) => SessionEnd::Left,
            End::Malformed { .. } => SessionEnd::Malformed,
            End::Link(_) => SessionEnd::Link,
            End::Memory(_) => SessionEnd::Worker,
        }
    }

    /// Returns the message of which the client is told that it ended the session, or 0 for none, if
    /// it is told.
    fn told(&self) -> Option<u16> {
        match self {
            End::Malformed { op, .. } => Some(*op),
            End::Memory(_) => Some(0),
            _ => None,
        }
    }
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
    executor: Executor<'d>,
    receiver: Receiver,
    outbox: Outbox,
    waiting: WaitingList,
    data_connections: DataConnections,
    /// Dropped after `waiting`, whose pieces it may have.
    peers: Peers,
    net: Net,
    poll_policy: PollPolicy,
    foresight: Foresight,
    stats: &'d Counters,
    /// When the last message was done, if the session has not waited since. Spares a look at the
    /// clock.
    looked_at: Option<Instant>,
    grants: Grants,
    /// Copy of the message in execution, unless it is bulk data.
    frame: Vec<u8>,
    printed: Printed,
    host_calls: Vec<(u64, CUresult)>,
    /// Messages received while another was executed.
    early: Early,
    /// Messages received before those, which others may pass.
    held: Held,
    /// Why the session ended while the device was held up in a call of its own.
    ended_aside: Option<End>,
    /// Longest time without a message while no reply is due.
    idle_max: Option<Duration>,
    pulse: &'d Pulse,
}

impl Session<'_> {
    /// Receives messages and sends ready replies; waits if there was neither.
    fn turn(&mut self) -> Result<(), End> {
        let mut is_idle = true;
        let admission = self.waiting.admission(Instant::now());
        if self.may_take(admission) {
            for _ in 0..limits::MESSAGES_PER_TURN_MAX {
                if self.waiting.has_sources(None) {
                    // A copy whose mark is reached can be read by the adapter now, before the next
                    // message would make it an ordinary copy.
                    self.answer_ready()?;
                }
                if !self.take_message(Wait::Poll, admission)? {
                    self.looked_at = None;
                    self.foresee();
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
            || self.executor.device.awaits_host_calls()
            || self.outbox.holds_faults();
        let wait = if is_expecting {
            self.poll_policy.next_wait()
        } else {
            Wait::Forever
        };
        // The end of the session, if nothing comes until then.
        let idle_until = match (wait, self.idle_max) {
            (Wait::Forever, Some(max)) => Some((Instant::now() + max, max)),
            _ => None,
        };
        let wait = idle_until.map_or(wait, |(until, _)| Wait::Until(until));
        match (self.may_take(admission), wait) {
            (_, Wait::Poll) => self.look_again()?,
            (true, wait) => {
                self.looked_at = None;
                self.pulse.awaits(self.waiting.oldest());
                let took = self.take_message(wait, admission);
                self.pulse.awaits(None);
                match (took?, idle_until) {
                    (true, _) => self.poll_policy.worked(),
                    (false, Some((until, max))) if until <= Instant::now() => {
                        return Err(End::Idle(max));
                    }
                    (false, _) => {}
                }
            }
            (false, Wait::Until(until)) => {
                self.pulse.awaits(self.waiting.oldest());
                thread::sleep(until.saturating_duration_since(Instant::now()));
                self.pulse.awaits(None);
            }
            // Not reached: a stalled session has pending replies, and so a bounded wait.
            (false, Wait::Forever) => {}
        }
        Ok(())
    }

    /// Returns whether a message may be received, if only to see whether it may be executed.
    fn may_take(&self, admission: Admission) -> bool {
        admission == Admission::Open || self.held.may_receive()
    }

    /// Prepares for the next wait of the client, if it does as it did before.
    fn foresee(&mut self) {
        let Some(awaited) = self.foresight.expect() else {
            return;
        };
        // The fence first: the GPU is at work meanwhile.
        if let Awaited::Fence(fence) = awaited
            && self.waiting.is_empty()
            && self.held.is_empty()
            && self.foresight.has_room()
        {
            let fence = self.executor.fence_early(fence);
            self.foresight.made(fence);
        }
        self.receiver.acknowledge();
    }

    /// Looks for replies that are ready a little longer, without a look at the link.
    fn look_again(&mut self) -> Result<(), End> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_nanos(limits::LOOK_NS) {
            if self.answer_ready()? {
                self.poll_policy.worked();
                break;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Sends the replies that the device has finished, as far as there is room for them.
    fn answer_ready(&mut self) -> Result<bool, End> {
        self.answer_ready_or(WithoutRoom::Leave)
    }

    fn answer_ready_or(&mut self, without_room: WithoutRoom) -> Result<bool, End> {
        self.outbox.drop_read_owners();
        if !self.waiting.poll() {
            return Ok(false);
        }
        if without_room == WithoutRoom::Leave
            && let Some(first) = self.waiting.held_back()
            && !has_room(first, self.outbox.room().as_ref(), &self.data_connections)
        {
            return Ok(false);
        }
        self.outbox.send_held_faults()?;
        self.send_printed(self.waiting.any_lost())?;
        self.send_host_pages()?;
        send_answers(
            &mut self.waiting,
            &mut self.outbox,
            &self.data_connections,
            self.stats,
            without_room,
        )?;
        self.outbox.flush()?;
        Ok(true)
    }

    fn send_printed(&mut self, lost: bool) -> Result<(), End> {
        self.executor.device.take_printed(&mut self.printed, lost);
        news::send_printed(&mut self.outbox, &mut self.printed)
    }

    fn send_host_pages(&mut self) -> Result<(), End> {
        let device = &mut self.executor.device;
        news::send_host_pages(&mut self.outbox, &self.net, |changed| {
            device.take_host_pages(changed);
        })
    }

    fn forward_host_calls(&mut self) -> Result<bool, End> {
        if !self.executor.device.awaits_host_calls() {
            return Ok(false);
        }
        self.executor.device.take_host_calls(&mut self.host_calls);
        if self.host_calls.is_empty() {
            return Ok(false);
        }
        // A host function may read what was copied out, printed or written before it. Copies may
        // have become ready since the last poll; those after the function cannot be, because the
        // function is not done.
        self.answer_ready_or(WithoutRoom::Wait)?;
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
