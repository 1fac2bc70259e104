//! Hand-over: a new server takes the listening sockets of a running one, which accepts no client
//! from then on and ends with its last session.
//!
//! ```text
//!  running server                                    new server
//!      │ listens at the file of --hand-over               │ its settings are right
//!      │◄────────────────────────────────── connects ─────┤
//!      ├── Offer: release, sockets, sessions ────────────►│
//!      ├── Offered: an address, its socket; for each ────►│ could serve a client
//!      │◄────────────────────────────────────────── GO ───┤
//!      │ accepts no more                                  │
//!      ├── DRAINS ───────────────────────────────────────►│ accepts
//!      │◄── a further connection of an older session ─────┤
//!      │ ends with its last session                       │
//! ```
//!
//! Both have the sockets between the offer and GO, and only the running server accepts. If the new
//! one fails before GO, nothing has changed. A client that connects in between waits in the
//! backlog, which belongs to the socket.
//!
//! The offer is JSON, so that releases can differ. Further connections of older sessions (data
//! connections, heartbeats) come to the new server; it passes them back if both are of one build,
//! and otherwise refuses them: such a session goes on without.

use std::{
    fs, io,
    net::TcpListener,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{FileTypeExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use outboard_device::pass_fd;
use outboard_link::{Endpoint, Listener};
use outboard_wire::{handshake::SessionKey, messages::FINGERPRINT};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use thiserror::Error;

use super::{admission::Order, control::Control, limits};

const GO: &[u8] = b"go";
const DRAINS: &[u8] = b"drains";
const DOING: &str = "asking the server that runs";
/// Form of the documents. A server with another form is not taken over from.
const FORM: u32 = 1;

/// Why a running server is not taken over from. That one goes on.
#[derive(Debug, Error)]
pub enum HandOverError {
    #[error("{} is no socket", .0.display())]
    NoSocket(PathBuf),
    #[error("the server there is of user {uid}: only one's own, or root's, is taken over from")]
    Stranger { uid: u32 },
    #[error("user {uid} is refused: a server hands over to its own user, or to root's, alone")]
    StrangeTaker { uid: u32 },
    #[error(
        "the server there hands over in form {theirs}, not {FORM}; stop it, or wait for its last session"
    )]
    Form { theirs: u32 },
    #[error("the server there hands over {theirs} sockets, at most {max} are accepted")]
    Sockets { theirs: u32, max: u32 },
    #[error("the server there did not answer within {ms} ms; it goes on")]
    Late { ms: u64 },
    #[error(
        "the server there does not hand over: another server takes over from it now, it \
         refuses this user, or it has ended"
    )]
    Gone,
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: io::Error,
    },
}

impl HandOverError {
    fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> HandOverError {
        move |error| HandOverError::Io {
            doing,
            source: error.into(),
        }
    }
}

/// The first document of a running server.
#[derive(Debug, Serialize, Deserialize)]
struct Offer {
    form: u32,
    release: String,
    /// Of the declarations that it was built from.
    build: u64,
    sockets: u32,
    sessions: u64,
}

/// A listening socket, which comes along.
#[derive(Debug, Serialize, Deserialize)]
struct Offered {
    address: Address,
    /// The server removes the socket's file when it ends.
    removes_file: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Address {
    /// The address of programs, as it is written.
    Programs(String),
    Metrics,
}

/// The file at which a server waits for its successor.
pub(super) struct Handing {
    socket: OwnedFd,
    path: PathBuf,
    /// The successor keeps the file.
    is_left: bool,
    /// The server that was made an offer, until it goes ahead or its time is over.
    taker: Option<(Control, Instant)>,
}

impl Handing {
    /// Listens at `path`, where no server does. Only this user and root can connect.
    pub(super) fn bind(path: &Path) -> io::Result<Handing> {
        let address = SocketAddrUnix::new(path)?;
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = unix_socket()?;
        rustix::net::bind(&socket, &address)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        rustix::net::listen(&socket, limits::TAKERS_WAITING_MAX)?;
        Ok(Handing {
            socket,
            path: path.into(),
            is_left: false,
            taker: None,
        })
    }

    /// Returns what to poll: the file's socket, or that of the server that was made an offer.
    pub(super) fn awaited(&self) -> BorrowedFd<'_> {
        match &self.taker {
            Some((taker, _)) => taker.as_fd(),
            None => self.socket.as_fd(),
        }
    }

    /// Returns by when the server that was made an offer has to go ahead.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.taker.as_ref().map(|(_, until)| *until)
    }

    /// Forgets the server that was made an offer, if it is late.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        self.taker.take_if(|(_, until)| *until <= now).is_some()
    }

    /// Accepts a new server and offers it the sockets, or hears what it says to the offer. Returns
    /// it once it goes ahead.
    pub(super) fn hear(
        &mut self,
        listeners: &[Listener],
        metrics: Option<BorrowedFd<'_>>,
        sessions: usize,
    ) -> io::Result<Option<Control>> {
        let Some((taker, _)) = &self.taker else {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match rustix::net::accept_with(&self.socket, flags) {
                // The server left before it was accepted.
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(None),
                accepted => accepted?,
            };
            if let Some(uid) = stranger(socket.as_fd()).map_err(io::Error::other)? {
                return Err(io::Error::other(HandOverError::StrangeTaker { uid }));
            }
            let taker = Control::of_worker(socket);
            offer(&taker, listeners, metrics, sessions)?;
            let until = Instant::now() + Duration::from_millis(limits::HAND_OVER_MS_MAX);
            self.taker = Some((taker, until));
            return Ok(None);
        };
        let mut word = [0; GO.len()];
        let heard = pass_fd::receive(taker, &mut word);
        match (heard, self.taker.take()) {
            (Ok((len, _)), Some((taker, _))) if word[..len] == *GO => Ok(Some(taker)),
            (Ok(_), _) => Err(io::Error::other("it left before it could serve")),
            (Err(error), _) => Err(error),
        }
    }

    /// Leaves the file to the successor, and tells it that it is the only one to accept.
    pub(super) fn leave(mut self, successor: &Control) -> io::Result<()> {
        self.is_left = true;
        pass_fd::send(successor, DRAINS, &[])
    }
}

impl Drop for Handing {
    fn drop(&mut self) {
        if !self.is_left {
            // An error cannot be reported here; the next server replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn offer(
    taker: &Control,
    listeners: &[Listener],
    metrics: Option<BorrowedFd<'_>>,
    sessions: usize,
) -> io::Result<()> {
    let offer = Offer {
        form: FORM,
        release: outboard_wire::handshake::RELEASE.into(),
        build: FINGERPRINT,
        sockets: (listeners.len() + usize::from(metrics.is_some())) as u32,
        sessions: sessions as u64,
    };
    pass_fd::send(taker, &serde_json::to_vec(&offer)?, &[])?;
    for listener in listeners {
        let offered = Offered {
            address: Address::Programs(listener.endpoint().to_string()),
            removes_file: listener.removes_file(),
        };
        pass_fd::send(taker, &serde_json::to_vec(&offered)?, &[listener.as_fd()])?;
    }
    if let Some(socket) = metrics {
        let offered = Offered {
            address: Address::Metrics,
            removes_file: false,
        };
        pass_fd::send(taker, &serde_json::to_vec(&offered)?, &[socket])?;
    }
    Ok(())
}

/// Fails if what is at `path` is no socket of a server: then none can be taken over from there.
pub fn check(path: &Path) -> Result<(), HandOverError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(HandOverError::io(DOING)(error)),
        Ok(found) if found.file_type().is_socket() => Ok(()),
        Ok(_) => Err(HandOverError::NoSocket(path.into())),
    }
}

/// A server that runs and has offered its sockets.
pub(super) struct Predecessor {
    control: Control,
    pub(super) release: String,
    pub(super) sessions: u64,
    is_same_build: bool,
    sockets: Vec<(Endpoint, OwnedFd, bool)>,
    metrics: Option<OwnedFd>,
}

impl Predecessor {
    /// Asks the server that waits at `path`, if there is one.
    pub(super) fn ask(path: &Path) -> Result<Option<Predecessor>, HandOverError> {
        check(path)?;
        let socket = unix_socket().map_err(HandOverError::io(DOING))?;
        let address = SocketAddrUnix::new(path).map_err(HandOverError::io(DOING))?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            // The file of a server that was killed.
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Ok(None),
            Err(Errno::AGAIN) => return Err(HandOverError::Gone),
            Err(error) => return Err(HandOverError::io(DOING)(error)),
        }
        if let Some(uid) = stranger(socket.as_fd())? {
            return Err(HandOverError::Stranger { uid });
        }
        let control = Control::of_worker(socket);
        let (offer, _): (Offer, _) = heard(&control)?;
        if offer.form != FORM {
            return Err(HandOverError::Form { theirs: offer.form });
        }
        // One socket more than programs may have: that of the metrics.
        let max = limits::OPENED_SOCKETS_MAX + 1;
        if offer.sockets > max {
            let theirs = offer.sockets;
            return Err(HandOverError::Sockets { theirs, max });
        }
        let mut predecessor = Predecessor {
            control,
            release: plain(&offer.release),
            sessions: offer.sessions,
            is_same_build: offer.build == FINGERPRINT
                && offer.release == outboard_wire::handshake::RELEASE,
            sockets: Vec::new(),
            metrics: None,
        };
        for _ in 0..offer.sockets {
            let (offered, socket): (Offered, _) = heard(&predecessor.control)?;
            let socket = socket.ok_or(HandOverError::Gone)?;
            match offered.address {
                Address::Metrics => predecessor.metrics = Some(socket),
                Address::Programs(address) => {
                    // An address of a later release that means nothing here is nobody's.
                    if let Ok(endpoint) = address.parse() {
                        let of = (endpoint, socket, offered.removes_file);
                        predecessor.sockets.push(of);
                    }
                }
            }
        }
        Ok(Some(predecessor))
    }

    /// Takes the socket that listens at `endpoint`, if there is one.
    pub(super) fn take(
        &mut self,
        endpoint: &Endpoint,
    ) -> Option<Result<Listener, outboard_link::Error>> {
        let is_it = |(its, ..): &(Endpoint, OwnedFd, bool)| its.is_same_place(endpoint);
        let at = self.sockets.iter().position(is_it)?;
        let (_, socket, removes_file) = self.sockets.swap_remove(at);
        Some(Listener::take_over(socket, endpoint, removes_file))
    }

    /// Takes the socket for requests for metrics, if it is at this address.
    pub(super) fn take_metrics(&mut self, address: std::net::SocketAddr) -> Option<TcpListener> {
        let listener = TcpListener::from(self.metrics.take()?);
        listener
            .local_addr()
            .is_ok_and(|its| its == address)
            .then_some(listener)
    }

    /// Returns the addresses at which only the running server listens.
    pub(super) fn left(&self) -> impl Iterator<Item = &Endpoint> {
        self.sockets.iter().map(|(endpoint, ..)| endpoint)
    }

    /// Goes ahead: from the answer on the other server accepts nobody. An error says that it has
    /// not answered; then it has ended, or both accept.
    pub(super) fn go(&mut self) -> Result<(), HandOverError> {
        self.sockets.clear();
        self.metrics = None;
        let sent = pass_fd::send(&self.control, GO, &[]);
        sent.map_err(HandOverError::io("going ahead"))?;
        let mut word = [0; DRAINS.len()];
        match received(&self.control, &mut word)? {
            (len, _) if word[..len] == *DRAINS => Ok(()),
            _ => Err(HandOverError::Gone),
        }
    }

    /// Returns what is readable once the other server has ended.
    pub(super) fn ends(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Passes a further connection of one of its sessions on.
    pub(super) fn pass(&self, key: SessionKey, order: &Order, socket: BorrowedFd<'_>) -> bool {
        self.is_same_build && self.control.send(&(key, order), &[socket]).is_ok()
    }
}

fn heard<T: DeserializeOwned>(control: &Control) -> Result<(T, Option<OwnedFd>), HandOverError> {
    let mut bytes = vec![0; limits::DOCUMENT_BYTES_MAX];
    let (len, fds) = received(control, &mut bytes)?;
    if len == 0 {
        return Err(HandOverError::Gone);
    }
    let document = serde_json::from_slice(&bytes[..len]);
    let document = document.map_err(HandOverError::io("reading what the server there offers"))?;
    Ok((document, fds.into_iter().next()))
}

fn received(control: &Control, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), HandOverError> {
    const DOING: &str = "waiting for the server that runs";
    let ms = limits::HAND_OVER_ANSWER_MS_MAX;
    let limit = Timespec::try_from(Duration::from_millis(ms)).ok();
    let mut fds = [PollFd::new(control, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()));
    match ready.map_err(HandOverError::io(DOING))? {
        0 => Err(HandOverError::Late { ms }),
        _ => pass_fd::receive(control, bytes).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionReset => HandOverError::Gone,
            _ => HandOverError::io(DOING)(error),
        }),
    }
}

/// Returns the user of the process on the other side, unless it is this one's user, or root.
fn stranger(socket: BorrowedFd<'_>) -> Result<Option<u32>, HandOverError> {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    let uid = peer
        .map_err(HandOverError::io("asking whose the server is"))?
        .uid;
    let is_known = uid == rustix::process::geteuid() || uid.is_root();
    Ok((!is_known).then(|| uid.as_raw()))
}

fn unix_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Text of another process for the log.
fn plain(text: &str) -> String {
    let chars = text.chars().filter(|c| !c.is_control());
    chars.take(limits::PROGRAM_CHARS_MAX).collect()
}
