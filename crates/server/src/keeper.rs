//! The keeper: a thread of a worker that takes the session's further connections from the
//! supervisor. It hands data connections to the session, and answers heartbeats itself, whatever
//! the session's thread is doing.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_device::MemoryInUse;
use outboard_link::{Endpoint, Error, LinkKind, Stream, received_bytes};
use outboard_session::{
    DataConnectionSource, PeerSource, Pulse,
    handshake::{refuse, send_welcome, welcome},
};
use outboard_trust::peer_key;
use outboard_wire::{
    doc::SessionEnd,
    handshake::{NOT_AWAITED, Purpose, SessionKey},
    heartbeat::{Beat, QUESTION_BYTES},
    limits::{DATA_CONNECTIONS_MAX, HEARTBEAT_CONNECTIONS_MAX, PEER_WAYS_MAX},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::low_level;
use tracing::{debug, warn};

use super::{
    admission::{Order, Report},
    control::Control,
    devices::LEASE_OVER_STATUS,
    pool::now_ms,
    usage::UsageReports,
};

/// Time for reading the rest of a question that has begun to come, and for writing its answer.
const ANSWER: Duration = Duration::from_millis(100);

/// Time of the end of a session that has no lease.
const NO_END: u64 = u64::MAX;

pub(super) struct Keeper {
    control: Control,
    key: SessionKey,
    /// True if other servers may send data of copies to this one, and receive it.
    has_peers: bool,
    /// Options for the RDMA device that endpoints may use.
    net_device: Option<String>,
    pulse: Pulse,
    /// End of the session's lease, or [`NO_END`].
    until_ms: AtomicU64,
    state: Mutex<State>,
    /// Number of the last connection to another server that was asked for.
    dial_last: AtomicU32,
    /// Signalled when a connection has come, or none will come any more.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    data_connections: VecDeque<Stream>,
    /// No data connection is taken any more.
    closed: bool,
    /// Connections of other servers, by the key that they have shown.
    peers: VecDeque<(SessionKey, Stream)>,
    /// Connections to other servers, by their numbers, or why there is none.
    dialled: VecDeque<(u32, Result<OwnedFd, String>)>,
    /// No connection of another server is waited for any more.
    has_no_peers: bool,
    /// Copies of the descriptors of the session's tcp connections.
    sockets: Vec<OwnedFd>,
}

impl Keeper {
    /// Starts the thread. `stream` is the session's own connection, before it becomes a link.
    /// `usage`, if there is one, is reported to the supervisor. The process ends at `until_ms` of
    /// the machine's monotonic clock, if the session has a lease.
    pub(super) fn start(
        control: Control,
        (key, has_peers, net_device): (SessionKey, bool, Option<String>),
        stream: &Stream,
        usage: Option<UsageReports>,
        until_ms: Option<u64>,
    ) -> Arc<Keeper> {
        let keeper = Arc::new(Keeper {
            control,
            key,
            has_peers,
            net_device,
            pulse: Pulse::default(),
            until_ms: AtomicU64::new(until_ms.unwrap_or(NO_END)),
            state: Mutex::default(),
            dial_last: AtomicU32::new(0),
            changed: Condvar::new(),
        });
        if stream.kind() == LinkKind::Tcp {
            keeper.lock().sockets.extend(copy_of(stream));
        }
        let its = Arc::clone(&keeper);
        let run = move || its.run(usage);
        if let Err(error) = thread::Builder::new()
            .name("outboard-keeper".into())
            .spawn(run)
        {
            warn!(%error, "no thread for heartbeats and data connections");
            keeper.close();
            keeper.end();
        }
        keeper
    }

    pub(super) fn pulse(&self) -> &Pulse {
        &self.pulse
    }

    /// Drops its copies of the session's connections, whose ends the client could not see before.
    pub(super) fn drop_copies(&self) {
        self.lock().sockets.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports what the session has used, and how it ended.
    pub(super) fn tell_end(&self, memory: Option<MemoryInUse>, end: SessionEnd) {
        UsageReports::new(memory).send(&self.pulse, &self.control);
        if let Err(error) = self.control.send_if_room(&Report::Ended(end)) {
            debug!(%error, "the supervisor does not learn how the session ended");
        }
    }

    /// Reports once how the session has ended, if its device is still held up: the process may end
    /// in that call.
    fn tell_early_end(&self, is_told: &mut bool) {
        if let Some(end) = self.pulse.end().filter(|_| !*is_told) {
            *is_told = self.control.send_if_room(&Report::Ended(end)).is_ok();
        }
    }

    /// Serves until the supervisor has gone and nobody asks any more.
    fn run(&self, mut usage: Option<UsageReports>) {
        let control = &self.control;
        let mut is_end_told = false;
        let mut heartbeats: VecDeque<Stream> = VecDeque::new();
        let mut has_supervisor = true;
        while has_supervisor || !heartbeats.is_empty() {
            if let Some(usage) = usage.as_mut().filter(|_| has_supervisor) {
                usage.look(&self.pulse, control);
                self.tell_early_end(&mut is_end_told);
            }
            let limit = usage.as_ref().filter(|_| has_supervisor);
            let limit = limit.map(UsageReports::left);
            let limit = limit
                .into_iter()
                .chain(self.left_of_lease(has_supervisor))
                .min();
            let mut ready = match wait(control, has_supervisor, &heartbeats, limit) {
                Ok(ready) => ready,
                Err(error) => {
                    debug!(%error, "the keeper cannot wait");
                    break;
                }
            };
            if ready.remove(0) {
                match self.take(control) {
                    Some(stream) => heartbeats.extend(stream),
                    None => has_supervisor = false,
                }
            }
            let mut ready = ready.into_iter();
            heartbeats.retain_mut(|stream| !ready.next().unwrap_or(false) || self.answers(stream));
            while heartbeats.len() > HEARTBEAT_CONNECTIONS_MAX {
                heartbeats.pop_front();
            }
        }
        self.close();
        self.end();
    }

    /// Returns the time left of the session's lease. When it is over, or its supervisor has gone,
    /// the process ends at once: the GPUs may be others' next.
    fn left_of_lease(&self, has_supervisor: bool) -> Option<Duration> {
        let until_ms = self.until_ms.load(Ordering::Relaxed);
        if until_ms == NO_END {
            return None;
        }
        let left_ms = until_ms.saturating_sub(now_ms());
        if left_ms == 0 || !has_supervisor {
            warn!("ends: its lease of the GPUs is over");
            let _ = self.control.send_if_room(&Report::Ended(SessionEnd::Lease));
            // No handlers of exits run: a driver's might wait for a call that is under way.
            low_level::exit(LEASE_OVER_STATUS);
        }
        Some(Duration::from_millis(left_ms))
    }

    /// Takes a connection from the supervisor. Returns the stream if it is for heartbeats; `None`
    /// if the supervisor has gone.
    fn take(&self, control: &Control) -> Option<Option<Stream>> {
        let (order, fds) = match control.receive() {
            Ok(packet) => packet?,
            Err(error) => {
                debug!(%error, "the keeper cannot read an order");
                return None;
            }
        };
        if let Order::Lease { until_ms } = order {
            self.until_ms.store(until_ms, Ordering::Relaxed);
            return Some(None);
        }
        let mut fds = fds.into_iter();
        if let Order::Dialled { number, refused } = order {
            let socket = fds.next().ok_or_else(|| refused.unwrap_or_default());
            self.keep_dialled(number, socket);
            return Some(None);
        }
        let Some(Ok(stream)) = fds.next().map(Stream::try_from) else {
            return Some(None);
        };
        match order {
            Order::DataConnection { tls } => {
                if let Ok(stream) = stream.resume(tls) {
                    self.keep(stream);
                }
            }
            Order::Heartbeat { tls } => {
                let Ok(mut stream) = stream.resume(tls) else {
                    return Some(None);
                };
                let welcomed = welcome(None, 0, Purpose::Heartbeat { key: self.key }, 0, 0)
                    .is_ok_and(|welcome| {
                        send_welcome(&mut stream, &welcome, Instant::now() + ANSWER).is_ok()
                    });
                return Some(welcomed.then_some(stream));
            }
            Order::Peer { key, tls } => {
                if let Ok(stream) = stream.resume(tls) {
                    self.keep_peer(key, stream);
                }
            }
            order => debug!(?order, "an order that is no connection"),
        }
        Some(None)
    }

    fn keep(&self, mut stream: Stream) {
        let mut state = self.lock();
        if state.closed || state.data_connections.len() >= DATA_CONNECTIONS_MAX {
            drop(state);
            return refuse(&mut stream, NOT_AWAITED);
        }
        state.sockets.extend(copy_of(&stream));
        state.data_connections.push_back(stream);
        self.changed.notify_all();
    }

    fn keep_peer(&self, key: SessionKey, mut stream: Stream) {
        let mut state = self.lock();
        if state.has_no_peers || state.peers.len() >= PEER_WAYS_MAX {
            drop(state);
            return refuse(&mut stream, NOT_AWAITED);
        }
        state.peers.push_back((key, stream));
        self.changed.notify_all();
    }

    fn keep_dialled(&self, number: u32, socket: Result<OwnedFd, String>) {
        let mut state = self.lock();
        if !state.has_no_peers {
            // One that nobody waits for any more makes room.
            state.dialled.truncate(PEER_WAYS_MAX);
            state.dialled.push_front((number, socket));
            self.changed.notify_all();
        }
    }

    /// Waits until `found` finds something among what the supervisor has brought from other
    /// servers.
    fn wait_for_peer<T>(
        &self,
        deadline: Instant,
        mut found: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if state.has_no_peers {
                return Err(Error::Closed);
            }
            if let Some(found) = found(&mut state) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut {
                    what: "waiting for another server",
                    ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
                });
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Answers a question that has come. Returns false if the connection has ended.
    fn answers(&self, stream: &mut Stream) -> bool {
        let deadline = Instant::now() + ANSWER;
        let mut question = [0; QUESTION_BYTES];
        if stream.read_exact_deadline(&mut question, deadline).is_err() {
            return false;
        }
        let (messages, activity) = self.pulse.read();
        let beat = Beat {
            question: u64::from_le_bytes(question),
            messages,
            received_bytes: self.received_bytes(),
            activity,
        };
        stream
            .write_all_deadline(&beat.to_bytes(), deadline)
            .is_ok()
    }

    /// Returns the bytes received on all connections; 0 if the kernel does not count.
    fn received_bytes(&self) -> u64 {
        let state = self.lock();
        let counts = state
            .sockets
            .iter()
            .map(|socket| received_bytes(socket.as_fd()));
        counts.sum::<Option<u64>>().unwrap_or(0)
    }
}

/// Returns a copy of a connection's descriptor, whose bytes are to be counted. Without it
/// heartbeats know less.
fn copy_of(stream: &Stream) -> Option<OwnedFd> {
    stream.as_fd().try_clone_to_owned().ok()
}

/// Waits until there is something to read, and returns where: from the supervisor, if there still
/// is one, then of each heartbeat. Nothing may be ready after `limit`.
fn wait(
    control: &Control,
    has_supervisor: bool,
    heartbeats: &VecDeque<Stream>,
    limit: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let events = |wanted| {
        if wanted {
            PollFlags::IN
        } else {
            PollFlags::empty()
        }
    };
    let mut fds = vec![PollFd::new(control, events(has_supervisor))];
    fds.extend(
        heartbeats
            .iter()
            .map(|stream| PollFd::new(stream, PollFlags::IN)),
    );
    // A supervisor that has gone would end every wait at once.
    let first = usize::from(!has_supervisor);
    // A wait that ended early would look for usage in vain.
    let limit = limit.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
    rustix::io::retry_on_intr(|| poll(&mut fds[first..], limit.as_ref()))?;
    Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
}

impl DataConnectionSource for Keeper {
    fn key(&self) -> SessionKey {
        self.key
    }

    fn next(&self, deadline: Instant) -> Result<Stream, Error> {
        let start = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(stream) = state.data_connections.pop_front() {
                return Ok(stream);
            }
            if state.closed {
                return Err(Error::Closed);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut {
                    what: "waiting for data connections",
                    ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
                });
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.data_connections.clear();
        self.changed.notify_all();
    }

    fn net_device(&self) -> Option<String> {
        self.net_device.clone()
    }

    fn peers(&self) -> Option<&dyn PeerSource> {
        self.has_peers.then_some(self)
    }
}

impl PeerSource for Keeper {
    fn offer(&self) -> Result<SessionKey, String> {
        let secret = outboard_trust::random().map_err(|error| error.to_string())?;
        let offer = Report::Offer(SessionKey::new(peer_key(&secret)));
        let sent = self.control.send_if_room(&offer);
        sent.map_err(|error| error.to_string())?;
        Ok(SessionKey::new(secret))
    }

    fn accept(&self, secret: &SessionKey, deadline: Instant) -> Result<Stream, Error> {
        let key = SessionKey::new(peer_key(secret.bytes()));
        self.wait_for_peer(deadline, |state| {
            let at = state.peers.iter().position(|(shown, _)| shown.is(&key))?;
            state.peers.remove(at).map(|(_, stream)| stream)
        })
    }

    fn dial(&self, address: &Endpoint, deadline: Instant) -> Result<Stream, String> {
        let number = self
            .dial_last
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        let address = address.to_string();
        let sent = self.control.send_if_room(&Report::Dial { number, address });
        sent.map_err(|error| error.to_string())?;
        let dialled = self.wait_for_peer(deadline, |state| {
            let at = state.dialled.iter().position(|(its, _)| *its == number)?;
            state.dialled.remove(at).map(|(_, socket)| socket)
        });
        let socket = dialled.map_err(|error| error.to_string())??;
        Stream::try_from(socket).map_err(|error| error.to_string())
    }

    fn end(&self) {
        let mut state = self.lock();
        state.has_no_peers = true;
        state.peers.clear();
        state.dialled.clear();
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::unix::net::UnixStream,
    };

    use outboard_wire::{
        handshake::{PREAMBLE_BYTES, Preamble},
        heartbeat::{Activity, BEAT_BYTES},
        limits::SESSION_KEY_BYTES,
    };

    use super::*;

    fn keeper() -> (Control, Arc<Keeper>, UnixStream) {
        let (ours, theirs) = Control::pair().unwrap();
        let (main, client) = UnixStream::pair().unwrap();
        let main = Stream::try_from(OwnedFd::from(main)).unwrap();
        let key = SessionKey::new([1; SESSION_KEY_BYTES]);
        (
            ours,
            Keeper::start(
                Control::of_worker(theirs),
                (key, true, None),
                &main,
                None,
                None,
            ),
            client,
        )
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn data_connections_come_until_they_are_closed() {
        let (ours, source, _client) = keeper();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(matches!(source.next(soon()), Err(Error::TimedOut { .. })));
        ours.send(&Order::DataConnection { tls: None }, &[connected.as_fd()])
            .unwrap();
        assert!(source.next(later()).is_ok());
        let waiting = thread::spawn({
            let source = Arc::clone(&source);
            move || source.next(later())
        });
        thread::sleep(Duration::from_millis(50));
        source.close();
        assert!(waiting.join().unwrap().is_err());
        ours.send(&Order::DataConnection { tls: None }, &[connected.as_fd()])
            .unwrap();
        assert!(matches!(source.next(later()), Err(Error::Closed)));
    }

    /// Connects as a client does, and reads the welcome.
    fn heartbeat(ours: &Control) -> Stream {
        let (there, here) = UnixStream::pair().unwrap();
        ours.send(&Order::Heartbeat { tls: None }, &[there.as_fd()])
            .unwrap();
        let mut here = Stream::try_from(OwnedFd::from(here)).unwrap();
        let mut preamble = [0; PREAMBLE_BYTES];
        here.read_exact_deadline(&mut preamble, later()).unwrap();
        let preamble = Preamble::decode(&preamble).unwrap();
        assert!(!preamble.refused);
        here.read_exact_deadline(&mut vec![0; preamble.document_bytes], later())
            .unwrap();
        here
    }

    fn ask(stream: &mut Stream, question: u64) -> Result<Beat, Error> {
        stream.write_all_deadline(&question.to_le_bytes(), later())?;
        let mut beat = [0; BEAT_BYTES];
        stream.read_exact_deadline(&mut beat, later())?;
        Ok(Beat::from_bytes(&beat).unwrap())
    }

    #[test]
    fn heartbeats_are_answered_without_the_session_and_without_the_supervisor() {
        let (ours, _keeper, _client) = keeper();
        let mut first = heartbeat(&ours);
        let expected = Beat {
            question: 5,
            messages: 0,
            received_bytes: 0,
            activity: Activity::Busy,
        };
        assert_eq!(ask(&mut first, 5).unwrap(), expected);
        // Half a question is not waited for.
        let mut second = heartbeat(&ours);
        second.write_all_deadline(&[1; 3], later()).unwrap();
        assert!(second.read_exact_deadline(&mut [0], later()).is_err());
        let mut third = heartbeat(&ours);
        let mut fourth = heartbeat(&ours);
        assert!(ask(&mut first, 6).is_err(), "more than are kept");
        drop(ours);
        assert_eq!(ask(&mut third, 7).unwrap().question, 7);
        assert_eq!(ask(&mut fourth, 8).unwrap().question, 8);
    }
}
