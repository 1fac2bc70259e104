//! Data connections: further tcp connections of a session, for the data of long copies. Messages
//! travel on the session's own connection, in one order; only the data of some is elsewhere.
//!
//! ```text
//!  client                       connections' threads             session thread
//!   data 0, data 1, ... ───────► received where the device wants it, kept by number
//!   message, message, ... ──────────────────────────────────────► takes its data, submits the copy
//!                               ◄── replies with data ──────────── sent by any free connection
//!   destination ◄─────────────── sent from where the device wrote it
//! ```
//!
//! # Why nothing waits for ever
//!
//! The client sends data before its message, and on each connection in the order of the messages.
//! So when the session waits for data, that data is already on its way. A connection stops reading
//! only while [`DATA_FRAMES_AHEAD_MAX`] of its frames have not been taken, and the data needed next
//! is never after those: all earlier frames of its connection were taken before. The end of a
//! connection wakes every thread that waits here.

use std::{
    collections::{HashMap, VecDeque},
    hint,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outboard_device::Rooms;
use outboard_link::{
    Closer, Destination, Error, Frame, Link, Receiver, Segment, Sender, Stream, Tail, Wait,
    emulated::Attachment,
};
use outboard_wire::{
    DecodeError, Encode as _, Writer,
    frame::{DATA_FRAME_HEAD_BYTES, HEADER_BYTES, RequestHeader},
    handshake::{Purpose, RELEASE, ServerWelcome, SessionKey},
    heartbeat::Activity,
    limits::{
        DATA_CONNECTION_END_MS_MAX, DATA_CONNECTIONS_MAX, DATA_CONNECTIONS_OPEN_MS_MAX,
        DATA_FRAMES_AHEAD_MAX, DATA_PIECE_BYTES_MAX, DATA_REPLIES_BYTES_MAX,
    },
    messages::{DataConnectionsOpen, DataConnectionsOpenReply},
};
use tracing::{debug, info};

use super::{End, Session, handshake, limits, sources::DataConnectionSource, waiting::Waiting};

/// Time that the session spins for data on its way, on a machine with cores to spare, in
/// microseconds.
const LOOK_US_MAX: u64 = 100;

/// The data connections of one session; it has none before the client asks.
pub(super) struct DataConnections {
    shared: Arc<Shared>,
    opening: Option<JoinHandle<()>>,
    source: Option<Arc<dyn DataConnectionSource>>,
    /// This end of the emulated network that the session crosses.
    attachment: Option<Attachment>,
    connections_max: usize,
    is_few_cores: bool,
}

/// Facts that the client needs to connect.
struct Opened {
    connections: u32,
    key: SessionKey,
}

/// A reply with data, to be sent.
pub(super) struct Answer {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) entry: Waiting,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when data has arrived.
    arrived: Condvar,
    /// Signalled when data was taken, so that a connection may read on.
    taken: Condvar,
    /// Signalled when a reply is to be sent.
    given: Condvar,
    /// Signalled when a reply has been sent.
    sent: Condvar,
    /// Counts arrivals.
    arrivals: AtomicU64,
}

#[derive(Default)]
struct State {
    phase: Phase,
    connections: Vec<DataConnection>,
    /// Data that has arrived, by its number, with the index of its connection.
    data: HashMap<u64, (usize, Arc<dyn Segment>)>,
    /// Number of the data that is needed next.
    next: u64,
    answers: VecDeque<Answer>,
    answers_bytes: usize,
    /// Time at which the first connection ended.
    ended: Option<Instant>,
}

struct DataConnection {
    closer: Closer,
    /// Frames that it has brought and that are not taken yet.
    ahead: usize,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    None,
    Opening,
    Open,
    /// The session has ended.
    Closed,
}

impl Session<'_> {
    /// Opens data connections, and tells the client how to connect.
    pub(super) fn open_data_connections(
        &mut self,
        header: RequestHeader,
        asked: &DataConnectionsOpen,
    ) -> Result<(), End> {
        let opened = match self.executor.purpose {
            Purpose::Session => {
                let rooms = self.executor.device.rooms();
                self.data_connections.open(asked.connections_max, rooms)
            }
            _ => None,
        };
        let reply = match &opened {
            Some(Opened { connections, key }) => DataConnectionsOpenReply {
                connections: *connections,
                key: key.bytes()[..].into(),
            },
            None => DataConnectionsOpenReply {
                connections: 0,
                key: [][..].into(),
            },
        };
        self.executor.reply.clear();
        self.executor.reply.resize(reply.encoded_len(), 0);
        // Never fails: the room is what the message asks for.
        let _ = reply.encode(&mut Writer::new(&mut self.executor.reply));
        self.stats.answered(header.op, self.executor.reply.len());
        if header.token != 0 {
            self.outbox
                .reply(header.op, header.token, &[&self.executor.reply])?;
        }
        Ok(self.outbox.flush()?)
    }

    /// Waits for data on its way, and meanwhile answers requests that are ready.
    pub(super) fn data_from_connection(&mut self, op: u16) -> Result<Arc<dyn Segment>, End> {
        if !self.data_connections.may_bring_data() {
            let why = DecodeError::NoDataConnection;
            return Err(End::Malformed { op, why });
        }
        loop {
            let patience = Duration::from_millis(limits::DATA_CONNECTION_LOOK_MS);
            let awaited = || self.data_connections.next_data(patience);
            if let Some(data) = self.pulse.during(Activity::AwaitsData, awaited)? {
                return Ok(data);
            }
            self.answer_ready()?;
            self.forward_host_calls()?;
        }
    }
}

impl DataConnections {
    /// Makes a session's data connections: at most `connections_max`, none without a source.
    pub(super) fn new(
        source: Option<Arc<dyn DataConnectionSource>>,
        attachment: Option<Attachment>,
        connections_max: usize,
    ) -> DataConnections {
        DataConnections {
            shared: Arc::default(),
            opening: None,
            source,
            attachment,
            connections_max: connections_max.min(DATA_CONNECTIONS_MAX),
            is_few_cores: outboard_link::cores::are_few(),
        }
    }

    /// Expects up to `wanted` data connections, once per session. Returns `None` if there will be
    /// none.
    fn open(&mut self, wanted: u32, rooms: Option<Arc<dyn Rooms>>) -> Option<Opened> {
        let count = self.connections_max.min(usize::try_from(wanted).ok()?);
        if count == 0 || self.opening.is_some() {
            return None;
        }
        let source = Arc::clone(self.source.as_ref()?);
        let key = source.key();
        self.shared.lock().phase = Phase::Opening;
        let shared = Arc::clone(&self.shared);
        let attachment = self.attachment.clone();
        let opening = spawn("outboard-data", move || {
            let installed = arrivals(&*source, attachment.as_ref(), count)
                .and_then(|links| shared.install(links, rooms.as_ref()));
            source.close();
            if let Err(error) = installed {
                debug!(%error, "no data connections");
                shared.end_all();
            }
        });
        self.opening = Some(opening.ok()?);
        Some(Opened {
            connections: count as u32,
            key,
        })
    }

    /// Returns true if a message may say that its data comes on a data connection.
    fn may_bring_data(&self) -> bool {
        matches!(self.shared.lock().phase, Phase::Opening | Phase::Open)
    }

    /// Returns the data of the next message that has it on a data connection; waits for it until
    /// `timeout`. Returns an error if it cannot come any more.
    fn next_data(&self, timeout: Duration) -> Result<Option<Arc<dyn Segment>>, Error> {
        let start = Instant::now();
        let looking = Duration::from_micros(match self.is_few_cores {
            true => 0,
            false => LOOK_US_MAX,
        });
        loop {
            let seen = self.shared.arrivals.load(Ordering::Acquire);
            let mut state = self.shared.lock();
            if let Some(data) = self.shared.take_next(&mut state) {
                return Ok(Some(data));
            }
            // Data that was sent on other connections before may still be on its way.
            let end_max = Duration::from_millis(DATA_CONNECTION_END_MS_MAX);
            if state.ended.is_some_and(|at| at.elapsed() >= end_max) {
                return Err(Error::Closed);
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Ok(None);
            }
            if waited >= looking {
                let left = timeout - waited;
                let waiting = self.shared.arrived.wait_timeout(state, left);
                drop(waiting.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(state);
            while self.shared.arrivals.load(Ordering::Acquire) == seen && start.elapsed() < looking
            {
                hint::spin_loop();
            }
        }
    }

    /// Returns whether [`give`](Self::give) would not wait.
    pub(super) fn have_room(&self) -> bool {
        let state = self.shared.lock();
        !state.is_open() || state.answers_bytes < DATA_REPLIES_BYTES_MAX
    }

    /// Queues a reply for the data connections, or returns it if there are none. Waits while many
    /// bytes are queued: the client always goes on reading its data connections.
    pub(super) fn give(&self, answer: Answer) -> Option<Answer> {
        let mut state = self.shared.lock();
        while state.is_open() && state.answers_bytes >= DATA_REPLIES_BYTES_MAX {
            state = wait(&self.shared.sent, state);
        }
        if !state.is_open() {
            return Some(answer);
        }
        state.answers_bytes += answer.bytes();
        state.answers.push_back(answer);
        self.shared.given.notify_one();
        None
    }
}

/// Ends all threads before the device is dropped, whose memory they use.
impl Drop for DataConnections {
    fn drop(&mut self) {
        self.shared.lock().phase = Phase::Closed;
        self.shared.end_all();
        if let Some(source) = &self.source {
            source.close();
        }
        // A thread that panicked has reported it.
        if let Some(opening) = self.opening.take() {
            let _ = opening.join();
        }
        let mut state = self.shared.lock();
        let threads: Vec<_> = state
            .connections
            .drain(..)
            .flat_map(|connection| connection.threads)
            .collect();
        state.answers.clear();
        state.data.clear();
        drop(state);
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Starts two threads per connection, one for each direction.
    fn install(
        self: &Arc<Self>,
        links: Vec<Link>,
        rooms: Option<&Arc<dyn Rooms>>,
    ) -> Result<(), Error> {
        let mut state = self.lock();
        if state.phase != Phase::Opening {
            return Err(Error::Closed);
        }
        for (index, link) in links.into_iter().enumerate() {
            let (sender, receiver) = link.split();
            let closer = sender.closer();
            let (rooms, ours, theirs) = (rooms.cloned(), Arc::clone(self), Arc::clone(self));
            let started = [
                spawn("outboard-data-i", move || {
                    ours.receive(index, receiver, rooms)
                }),
                spawn("outboard-data-o", move || theirs.send(index, sender)),
            ];
            let mut connection = DataConnection {
                closer,
                ahead: 0,
                threads: Vec::new(),
            };
            let mut failed = None;
            for thread in started {
                match thread {
                    Ok(thread) => connection.threads.push(thread),
                    Err(error) => failed = Some(error),
                }
            }
            state.connections.push(connection);
            if let Some(error) = failed {
                info!(%error, "no data connections: a thread cannot be started");
                return Err(Error::Closed);
            }
        }
        state.phase = Phase::Open;
        info!(
            connections = state.connections.len(),
            "data connections are open"
        );
        Ok(())
    }

    /// Receives on one connection, until it ends; runs on a thread of its own.
    fn receive(&self, index: usize, mut receiver: Receiver, rooms: Option<Arc<dyn Rooms>>) {
        let mut place = |_: &[u8], len: usize| {
            let len = len.checked_sub(DATA_FRAME_HEAD_BYTES)?;
            let memory = rooms
                .as_ref()
                .filter(|_| len <= DATA_PIECE_BYTES_MAX)?
                .room(len)?;
            Some(Destination {
                skip: DATA_FRAME_HEAD_BYTES,
                memory,
            })
        };
        while self.wait_for_room(index) {
            let received = match receiver.recv_placed(Wait::Forever, &mut place) {
                Ok(Some(frame)) => self.keep(index, frame),
                Ok(None) => Ok(()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = received {
                debug!(connection = index, why, "a data connection ends");
                break;
            }
        }
        self.end(index);
    }

    /// Waits until the connection may read on. Returns false if the session has ended.
    fn wait_for_room(&self, index: usize) -> bool {
        let mut state = self.lock();
        loop {
            match state.connections.get(index) {
                _ if state.phase == Phase::Closed => return false,
                // It is not installed yet.
                None => return true,
                Some(connection) if connection.ahead < DATA_FRAMES_AHEAD_MAX => return true,
                Some(_) => state = wait(&self.taken, state),
            }
        }
    }

    fn keep(&self, index: usize, frame: Frame<'_>) -> Result<(), String> {
        let (number, rest) = frame
            .head
            .split_first_chunk::<DATA_FRAME_HEAD_BYTES>()
            .ok_or("a frame without a number")?;
        let number = u64::from_le_bytes(*number);
        let data: Arc<dyn Segment> = match frame.tail {
            Some(Tail::Own(memory)) => Arc::from(memory),
            Some(Tail::Granted(_)) => return Err("data in granted memory".into()),
            None => Arc::new(rest.to_vec()),
        };
        if data.bytes().len() > DATA_PIECE_BYTES_MAX {
            return Err(format!("a frame of {} bytes", data.bytes().len()));
        }
        let mut state = self.lock();
        if number < state.next || state.data.contains_key(&number) {
            return Err(format!("data number {number} for the second time"));
        }
        state.data.insert(number, (index, data));
        if let Some(connection) = state.connections.get_mut(index) {
            connection.ahead += 1;
        }
        drop(state);
        self.arrivals.fetch_add(1, Ordering::Release);
        self.arrived.notify_one();
        Ok(())
    }

    fn take_next(&self, state: &mut State) -> Option<Arc<dyn Segment>> {
        let next = state.next;
        let (index, data) = state.data.remove(&next)?;
        state.next += 1;
        if let Some(connection) = state.connections.get_mut(index) {
            connection.ahead = connection.ahead.saturating_sub(1);
            if connection.ahead + 1 == DATA_FRAMES_AHEAD_MAX {
                self.taken.notify_all();
            }
        }
        Some(data)
    }

    /// Sends on one connection, until it ends; runs on a thread of its own.
    fn send(&self, index: usize, mut sender: Sender) {
        while let Some(Answer { header, entry }) = self.next_answer() {
            let sent = match entry.reply_data() {
                Ok(Some(data)) => {
                    let len = (data.len() as u32).to_le_bytes();
                    sender
                        .send(&[&header, &len, data])
                        .and_then(|()| sender.flush())
                }
                // Not reached: only replies with data are queued for data connections.
                _ => Err(Error::Misuse("an answer without data")),
            };
            if let Err(error) = sent {
                debug!(connection = index, %error, "a data connection ends");
                break;
            }
        }
        self.end(index);
    }

    fn next_answer(&self) -> Option<Answer> {
        let mut state = self.lock();
        loop {
            if state.phase == Phase::Closed || state.ended.is_some() {
                return None;
            }
            if let Some(answer) = state.answers.pop_front() {
                state.answers_bytes = state.answers_bytes.saturating_sub(answer.bytes());
                self.sent.notify_one();
                return Some(answer);
            }
            state = wait(&self.given, state);
        }
    }

    /// Ends one connection. The client notices it and ends the session. Data that other connections
    /// have brought may still be needed.
    fn end(&self, index: usize) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(Instant::now);
        if let Some(connection) = state.connections.get(index) {
            connection.closer.close();
        }
        drop(state);
        self.notify();
    }

    fn end_all(&self) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(Instant::now);
        for connection in &state.connections {
            connection.closer.close();
        }
        drop(state);
        self.notify();
    }

    fn notify(&self) {
        self.arrivals.fetch_add(1, Ordering::Release);
        for changed in [&self.arrived, &self.taken, &self.given, &self.sent] {
            changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for `count` data connections, and welcomes them once all have come.
fn arrivals(
    source: &dyn DataConnectionSource,
    attachment: Option<&Attachment>,
    count: usize,
) -> Result<Vec<Link>, Error> {
    let deadline = Instant::now() + Duration::from_millis(DATA_CONNECTIONS_OPEN_MS_MAX);
    let streams: Vec<Stream> = (0..count)
        .map(|_| source.next(deadline))
        .collect::<Result<_, _>>()?;
    let welcome = ServerWelcome {
        release: RELEASE.into(),
        ..ServerWelcome::default()
    };
    streams
        .into_iter()
        .map(|mut stream| {
            match handshake::send_welcome(&mut stream, &welcome, deadline) {
                Err(handshake::Error::Link(error)) => return Err(error),
                Err(_) => return Err(Error::Misuse("a welcome that cannot be encoded")),
                Ok(()) => {}
            }
            let link = stream.into_link_server()?;
            match attachment {
                Some(attachment) => link.attached(attachment),
                None => Ok(link),
            }
        })
        .collect()
}

impl State {
    fn is_open(&self) -> bool {
        self.phase == Phase::Open && self.ended.is_none()
    }
}

impl Answer {
    fn bytes(&self) -> usize {
        HEADER_BYTES + self.entry.bytes()
    }
}

fn wait<'s>(changed: &Condvar, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
    changed.wait(state).unwrap_or_else(PoisonError::into_inner)
}

fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<thread::JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(body)
}
