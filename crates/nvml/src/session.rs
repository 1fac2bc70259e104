//! The connection of this process to its server, from the first `nvmlInit` to the last
//! `nvmlShutdown`, and the snapshot that answers calls.

use std::{
    path::Path,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use outboard_link::{
    DialError, Endpoint, Error as LinkError, ListError, Receiver, Sender, Wait, dial,
    emulated::{self, AskedError},
};
use outboard_wire::{
    DecodeError, EncodeError,
    doc::{self, NVML_FACTS, NVML_NOW, NVML_SAMPLES, NvmlSnapshot},
    frame::{decode_reply, encode_request, request_len},
    handshake::{ClientHello, Purpose},
    messages, several,
};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    clock, log,
    sets::Sets,
    types::{Result, nvmlReturn_t},
};

/// Greatest age of an answer about the present state. Calls that make up one line of a display
/// share a snapshot.
const SNAPSHOT_AGE_MS_MAX: u64 = 100;
/// Time limit for `nvmlInit` to reach the server.
const DIAL_MS_MAX: u64 = 5_000;
/// Time limit for a snapshot. The first one of an unused GPU wakes its driver, which takes seconds.
const ANSWER_MS_MAX: u64 = 10_000;
/// Pause before a server that did not answer is asked again.
const RETRY_MS: u64 = 1_000;
/// Most frames other than the reply, before a server counts as broken.
const STRAY_FRAMES_MAX: u32 = 1_000;

/// The greatest age of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Age {
    /// For values that change all the time.
    Now,
    /// For values that change and take time to measure.
    Sampled,
    /// For values that stay while the connection does.
    Any,
}

impl Age {
    fn detail(self) -> u32 {
        match self {
            Age::Any => NVML_FACTS,
            Age::Now => NVML_NOW,
            Age::Sampled => NVML_SAMPLES,
        }
    }
}

/// The server's facts and the time at which they were taken.
pub(crate) struct Snapshot {
    pub(crate) content: NvmlSnapshot,
    /// The details that were requested.
    detail: u32,
    taken: Instant,
    /// Microseconds since 1970.
    pub(crate) taken_us: i64,
}

/// Number of `nvmlInit` minus number of `nvmlShutdown`. Kept outside the lock, because a forked
/// child inherits it.
static REFERENCES: AtomicU32 = AtomicU32::new(0);

pub(crate) fn is_initialised() -> bool {
    REFERENCES.load(Ordering::Acquire) > 0
}

pub(crate) fn init() -> Result {
    let mut state = lock();
    if !is_initialised() {
        // A server that gives no snapshot fails here, where programs expect it. It need not query
        // its GPUs for this one.
        state
            .refresh(NVML_FACTS)
            .map_err(|()| nvmlReturn_t::DRIVER_NOT_LOADED)?;
    }
    REFERENCES.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

pub(crate) fn shutdown() -> Result {
    let mut state = lock();
    match REFERENCES.load(Ordering::Acquire) {
        0 => return Err(nvmlReturn_t::UNINITIALIZED),
        1 => *state = SessionState::default(),
        _ => {}
    }
    let was_last = REFERENCES.fetch_sub(1, Ordering::AcqRel) == 1;
    drop(state);
    if was_last {
        *sets() = Sets::default();
    }
    Ok(())
}

/// Returns a snapshot, from the server if the known one is too old.
pub(crate) fn snapshot(age: Age) -> Result<Arc<Snapshot>> {
    if !is_initialised() {
        return Err(nvmlReturn_t::UNINITIALIZED);
    }
    let mut state = lock();
    let limit = match age {
        Age::Now | Age::Sampled => Duration::from_millis(SNAPSHOT_AGE_MS_MAX),
        Age::Any => Duration::MAX,
    };
    match &state.snapshot {
        Some(known) if known.detail >= age.detail() && clock::now() - known.taken <= limit => {
            Ok(Arc::clone(known))
        }
        _ => state
            .refresh(age.detail())
            .map_err(|()| nvmlReturn_t::UNKNOWN),
    }
}

/// One process's connection, state and sets of events.
struct ProcessSession {
    pid: u32,
    state: Mutex<SessionState>,
    sets: Mutex<Sets>,
}

#[derive(Default)]
struct SessionState {
    /// One for each server, in the order of their devices; none that has failed.
    connections: Vec<Option<Connection>>,
    snapshot: Option<Arc<Snapshot>>,
    failed: Option<Instant>,
}

fn lock() -> MutexGuard<'static, SessionState> {
    process().state.lock()
}

/// Locks this process's sets of events. No server is asked while they are locked.
pub(crate) fn sets() -> MutexGuard<'static, Sets> {
    process().sets.lock()
}

/// Returns this process's state. A forked child gets a state of its own: it can use neither the
/// parent's connection nor a lock that another thread of the parent held.
fn process() -> &'static ProcessSession {
    static PROCESS: AtomicPtr<ProcessSession> = AtomicPtr::new(ptr::null_mut());
    let pid = std::process::id();
    let mut seen = PROCESS.load(Ordering::Acquire);
    loop {
        // SAFETY: null, or a box that was leaked below and is never freed.
        let known: Option<&'static ProcessSession> = unsafe { seen.as_ref() };
        if let Some(process) = known.filter(|p| p.pid == pid) {
            return process;
        }
        let new = Box::into_raw(Box::new(ProcessSession {
            pid,
            state: Mutex::default(),
            sets: Mutex::default(),
        }));
        match PROCESS.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // The child's copies of the parent's descriptors would keep the session alive after
                // the parent's end.
                if let Some(mut parents) = known.and_then(|p| p.state.try_lock()) {
                    parents.connections.clear();
                }
                seen = new;
            }
            Err(now) => {
                // SAFETY: made above, and not published.
                drop(unsafe { Box::from_raw(new) });
                seen = now;
            }
        }
    }
}

impl SessionState {
    /// Takes a new snapshot. Errors have been reported on stderr when this returns.
    fn refresh(&mut self, detail: u32) -> std::result::Result<Arc<Snapshot>, ()> {
        static SAID: AtomicBool = AtomicBool::new(false);
        let resting = |failed: &Instant| clock::now() - *failed < Duration::from_millis(RETRY_MS);
        if self.failed.as_ref().is_some_and(resting) {
            return Err(());
        }
        match self.ask(detail) {
            Ok(content) => {
                SAID.store(false, Ordering::Relaxed);
                let since_1970 = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                let snapshot = Arc::new(Snapshot {
                    content,
                    detail,
                    taken: clock::now(),
                    taken_us: i64::try_from(since_1970.as_micros()).unwrap_or(i64::MAX),
                });
                self.failed = None;
                self.snapshot = Some(Arc::clone(&snapshot));
                Ok(snapshot)
            }
            Err(error) => {
                self.connections.clear();
                self.failed = Some(clock::now());
                if SAID.swap(true, Ordering::Relaxed) {
                    log::debug(error);
                } else {
                    log::warn(error);
                }
                Err(())
            }
        }
    }

    /// Asks all servers, and makes one list of their devices. A server that does not answer fails
    /// all: the devices of the others would change their numbers.
    fn ask(&mut self, detail: u32) -> std::result::Result<NvmlSnapshot, Failure> {
        let urls = std::env::var("OUTBOARD_GPU").map_err(|_| Failure::NoServer)?;
        let servers = Endpoint::list(&urls)?;
        self.connections.resize_with(servers.len(), || None);
        let all = servers.iter().zip(&mut self.connections);
        let answers = all.map(|(endpoint, connection)| ask_one(endpoint, connection, detail));
        Ok(several::one_list(
            answers.collect::<std::result::Result<Vec<NvmlSnapshot>, Failure>>()?,
        ))
    }
}

fn ask_one(
    endpoint: &Endpoint,
    connection: &mut Option<Connection>,
    detail: u32,
) -> std::result::Result<NvmlSnapshot, Failure> {
    if let Some(connection) = connection {
        match connection.ask(detail) {
            // The server was restarted, or closed the connection of an idle client.
            Err(Failure::Link(error)) if error.is_disconnect() => {}
            outcome => return outcome,
        }
    }
    *connection = None;
    connection.insert(Connection::open(endpoint)?).ask(detail)
}

/// Reason for a missing snapshot.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(
        "OUTBOARD_GPU names no server; start the program with `outboard run --gpu URL -- PROGRAM`"
    )]
    NoServer,
    #[error("OUTBOARD_GPU: {0}")]
    Servers(#[from] ListError),
    #[error(transparent)]
    Emulate(#[from] AskedError),
    #[error("OUTBOARD_GPU={url}: {error}")]
    Dial { url: String, error: DialError },
    #[error("the connection to the server failed: {0}")]
    Link(#[from] LinkError),
    #[error("the question does not fit into a frame: {0}")]
    Encode(#[from] EncodeError),
    #[error("the server's answer cannot be read: {0}")]
    Decode(#[from] DecodeError),
    #[error("the server's answer cannot be read: {0}")]
    Document(String),
    #[error("the server cannot say anything of its devices (CUresult {status}): {reason}")]
    Refused { status: u32, reason: String },
    #[error("the server did not answer within {ms} ms")]
    NoAnswer { ms: u64 },
    #[error("the server sent {STRAY_FRAMES_MAX} frames and none of them was the answer")]
    Stray,
}

struct Connection {
    sender: Sender,
    receiver: Receiver,
    token: u32,
}

impl Connection {
    fn open(endpoint: &Endpoint) -> std::result::Result<Connection, Failure> {
        let hello = ClientHello {
            release: env!("CARGO_PKG_VERSION").into(),
            purpose: Purpose::Management,
            pid: std::process::id(),
            program: program_name(),
            emulation: emulated::asked()?,
            is_rdma: false,
            token: None,
            grant: None,
            window: 0,
        };
        let (link, _, _) =
            dial(endpoint, &hello, Duration::from_millis(DIAL_MS_MAX)).map_err(|error| {
                let url = endpoint.to_string();
                Failure::Dial { url, error }
            })?;
        let (sender, receiver) = link.split();
        Ok(Connection {
            sender,
            receiver,
            token: 0,
        })
    }

    fn ask(&mut self, detail: u32) -> std::result::Result<NvmlSnapshot, Failure> {
        self.token = self.token.wrapping_add(1).max(1);
        let question = messages::NvmlSnapshot { detail };
        let mut frame = self.sender.reserve(request_len(&question))?;
        encode_request(&mut frame, self.token, 0, &question)?;
        frame.commit()?;
        self.sender.flush()?;
        let deadline = Instant::now() + Duration::from_millis(ANSWER_MS_MAX);
        for _ in 0..STRAY_FRAMES_MAX {
            let Some(frame) = self.receiver.recv(Wait::Until(deadline))? else {
                return Err(Failure::NoAnswer { ms: ANSWER_MS_MAX });
            };
            let (header, mut rest) = decode_reply(frame)?;
            // Notes, and replies to requests that were given up, are dropped.
            if header.note != 0 || header.token != self.token {
                continue;
            }
            if header.status != 0 {
                let reason = rest.bytes("the reason of a refusal").unwrap_or_default();
                return Err(Failure::Refused {
                    status: header.status,
                    reason: String::from_utf8_lossy(reason).into_owned(),
                });
            }
            let reply = <messages::NvmlSnapshotReply as outboard_wire::Message>::decode(&mut rest)?;
            return doc::from_bytes(&reply.document).map_err(|e| Failure::Document(e.to_string()));
        }
        Err(Failure::Stray)
    }
}

fn program_name() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
