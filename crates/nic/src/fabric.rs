//! The folder in which adapters of several processes meet: each holds a place, and listens there.
//!
//! ```text
//!  folder/7.lock   locked by the process of place 7 for as long as it lives
//!  folder/7        its socket
//!  folder/address  what the folder's address has of its own (gid.rs)
//!
//!  number of a queue pair: place 8 | number in the process 16
//! ```
//!
//! Of two queue pairs that are connected to each other, the one with the lower number dials. A
//! process answers only for a queue pair that is connected to the one that asks; others are hung up
//! on, and dial again. The one that asked confirms the answer, unless it was reset meanwhile: the
//! answer may be for its next connection. Then the one that was asked makes memory for the frames
//! of both, or they travel over the connection. The folder is its user's alone, so that only that
//! user's processes come.

use std::{
    collections::HashMap,
    env,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use outboard_net::{Common, Error, Link, Nic, Peer, WAY_VARIABLE, Way};
use parking_lot::Mutex;

use crate::{
    gid::{self, Gid},
    refused::say,
};

/// Names the folder.
pub const VARIABLE: &str = "OUTBOARD_NIC_FABRIC";
/// Processes that a folder has places for.
const PLACES_MAX: u32 = 255;
const PLACE_SHIFT: u32 = 16;
/// First bytes of a connection, its answer and the confirmation; the last is the version.
const MAGIC: [u8; 8] = *b"OBNIC\0\0\x04";
const HELLO_BYTES: usize = 16;
/// Time that a process has to say who it is, and to be answered: those who are not awaited are hung
/// up on at once.
const HELLO: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(10);
/// Connections that have not said who they are. More are hung up on.
const GUESTS_MAX: usize = 64;
/// Pauses between two tries to reach a peer.
const RETRY_MIN: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(50);
/// Connections of a process that have memory, of 2 MiB each. Frames of more travel over their
/// sockets.
const SHARED_MAX: usize = 64;
/// Time in which what waits is sent before a connection ends.
const FINISH: Duration = Duration::from_secs(1);

/// The place of this process, and its connections.
pub(crate) struct Fabric {
    folder: PathBuf,
    gid: Gid,
    place: u32,
    /// Keeps the place.
    _lock: File,
    meetings: Mutex<HashMap<u32, Meeting>>,
    guests: AtomicUsize,
    /// Connections that have memory, or are about to.
    sharing: Arc<AtomicUsize>,
    /// The way of frames; `None` is memory of both where it is possible.
    way: Option<Way>,
}

/// Room for one connection among those that have memory.
struct Room(Arc<AtomicUsize>);

impl Room {
    fn take(sharing: &Arc<AtomicUsize>) -> Option<Room> {
        let more = |count| (count < SHARED_MAX).then_some(count + 1);
        let taken = sharing.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().map(|_| Room(sharing.clone()))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A queue pair that is connected to one of another process.
struct Meeting {
    peer: u32,
    epoch: u32,
    is_met: bool,
    link: Option<Link>,
    /// Given back after the connection has ended.
    room: Option<Room>,
}

impl Fabric {
    /// Takes a place, with a socket that listens there.
    pub(crate) fn join() -> io::Result<(Fabric, UnixListener)> {
        // By verbs queues of the program travel, to this adapter, which has no other device.
        let way = Way::asked().map_err(io::Error::other)?;
        let way = way.filter(|way| *way != Way::Verbs);
        let folder = folder()?;
        let gid = gid::of(&folder)?;
        let (place, lock) = take_place(&folder)?;
        let socket = folder.join(place.to_string());
        let listener = UnixListener::bind(&socket).map_err(|error| named(&socket, &error))?;
        let fabric = Fabric {
            folder,
            gid,
            place,
            _lock: lock,
            meetings: Mutex::default(),
            guests: AtomicUsize::new(0),
            sharing: Arc::default(),
            way,
        };
        Ok((fabric, listener))
    }

    /// Answers processes that connect, each in a thread of its own.
    pub(crate) fn listen(
        &'static self,
        nic: &'static Nic,
        listener: UnixListener,
    ) -> io::Result<()> {
        spawn(move || {
            for stream in listener.incoming() {
                let stream = match stream {
                    Ok(stream) => stream,
                    Err(error) => {
                        say_lack(&error);
                        sleep(RETRY_MAX);
                        continue;
                    }
                };
                if self.guests.fetch_add(1, Ordering::AcqRel) >= GUESTS_MAX {
                    self.guests.fetch_sub(1, Ordering::AcqRel);
                    continue;
                }
                let welcome = move || {
                    let _ = self.welcome(nic, stream);
                    self.guests.fetch_sub(1, Ordering::AcqRel);
                };
                if let Err(error) = spawn(welcome) {
                    say_unconnected(&error);
                    self.guests.fetch_sub(1, Ordering::AcqRel);
                }
            }
        })
    }

    /// Number of the first queue pair of this process.
    pub(crate) fn qpn_first(&self) -> u32 {
        self.place << PLACE_SHIFT
    }

    /// Place of this process.
    pub(crate) fn place(&self) -> u32 {
        self.place
    }

    /// Address of all adapters of the folder.
    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }

    /// Name of a socket at which ranks of a communicator gather.
    pub(crate) fn gathering(&self, place: u32, number: u32) -> PathBuf {
        self.folder.join(format!("{place}.gin{number}"))
    }

    /// Connects a queue pair to another, of this process or of one that may come later.
    pub(crate) fn connect(
        &'static self,
        nic: &'static Nic,
        qpn: u32,
        peer: u32,
    ) -> Result<(), Error> {
        if peer >> PLACE_SHIFT == self.place {
            return nic.with(|adapter| {
                let peer = adapter.end_of(peer)?;
                adapter.connect(qpn, peer)
            });
        }
        if !(1..=PLACES_MAX).contains(&(peer >> PLACE_SHIFT)) {
            return Err(Error::NoPair(peer));
        }
        self.leave(qpn);
        let epoch = nic.with(|adapter| {
            // The peer's epoch is its own matter: a connection carries one of each.
            let end = Peer {
                qpn: peer,
                epoch: 0,
            };
            adapter.connect_remote(qpn, end)?;
            adapter.end_of(qpn).map(|end| end.epoch)
        })?;
        let meeting = Meeting {
            peer,
            epoch,
            is_met: false,
            link: None,
            room: None,
        };
        self.meetings.lock().insert(qpn, meeting);
        if qpn < peer {
            let thread = spawn(move || self.dial(nic, qpn, peer, epoch));
            thread.map_err(|error| Error::Thread(error.to_string()))?;
        }
        Ok(())
    }

    /// Ends the connection of a queue pair, after what waits is sent.
    pub(crate) fn leave(&self, qpn: u32) {
        let meeting = self.meetings.lock().remove(&qpn);
        if let Some(link) = meeting.as_ref().and_then(|meeting| meeting.link.as_ref()) {
            finish(&[link]);
        }
    }

    /// Sends what waits: the process is about to end.
    pub(crate) fn finish(&self) {
        let meetings = self.meetings.lock();
        let links: Vec<_> = meetings
            .values()
            .filter_map(|of| of.link.as_ref())
            .collect();
        finish(&links);
    }

    /// Tries to reach the peer until it answers, or the queue pair no longer wants it.
    fn dial(&self, nic: &Nic, qpn: u32, peer: u32, epoch: u32) {
        let mut pause = RETRY_MIN;
        while self.awaits(qpn, peer).is_some_and(|of| of == epoch) {
            let asked = self.ask(qpn, peer).inspect_err(say_lack);
            if let Ok(stream) = asked
                && self.claim(qpn, epoch, || (&stream).write_all(&MAGIC))
                && self.attach(nic, qpn, epoch, stream, false)
            {
                return;
            }
            sleep(pause);
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Returns the epoch of a queue pair that waits for this peer.
    fn awaits(&self, qpn: u32, peer: u32) -> Option<u32> {
        let meetings = self.meetings.lock();
        let meeting = meetings.get(&qpn)?;
        (meeting.peer == peer && !meeting.is_met).then_some(meeting.epoch)
    }

    fn ask(&self, qpn: u32, peer: u32) -> io::Result<UnixStream> {
        let place = peer >> PLACE_SHIFT;
        let mut stream = UnixStream::connect(self.folder.join(place.to_string()))?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut hello = [0; HELLO_BYTES];
        hello[..8].copy_from_slice(&MAGIC);
        hello[8..12].copy_from_slice(&qpn.to_le_bytes());
        hello[12..].copy_from_slice(&peer.to_le_bytes());
        stream.write_all(&hello)?;
        let mut answer = [0; MAGIC.len()];
        stream.read_exact(&mut answer)?;
        if answer != MAGIC {
            return Err(ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(None)?;
        Ok(stream)
    }

    /// Hears who a process is, and answers if it is awaited.
    fn welcome(&self, nic: &Nic, mut stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(HELLO))?;
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello)?;
        let number = |at: usize| {
            let bytes = hello[at..at + 4].iter().rev();
            bytes.fold(0, |sum, byte| sum << 8 | u32::from(*byte))
        };
        let (from, to) = (number(8), number(12));
        if hello[..8] != MAGIC || from >= to {
            return Err(ErrorKind::InvalidData.into());
        }
        let Some(epoch) = self.awaits(to, from) else {
            return Ok(());
        };
        stream.write_all(&MAGIC)?;
        stream.set_read_timeout(Some(ANSWER))?;
        let mut confirmed = [0; MAGIC.len()];
        stream.read_exact(&mut confirmed)?;
        if confirmed != MAGIC {
            return Err(ErrorKind::InvalidData.into());
        }
        stream.set_read_timeout(None)?;
        if self.claim(to, epoch, || Ok(())) {
            self.attach(nic, to, epoch, stream, true);
        }
        Ok(())
    }

    /// Notes that a connection is the one that a queue pair waits for, and tells the peer.
    fn claim(&self, qpn: u32, epoch: u32, tell: impl FnOnce() -> io::Result<()>) -> bool {
        let mut meetings = self.meetings.lock();
        let meeting = meetings.get_mut(&qpn);
        match meeting.filter(|of| of.epoch == epoch && !of.is_met) {
            Some(meeting) => {
                meeting.is_met = tell().is_ok();
                meeting.is_met
            }
            None => false,
        }
    }

    /// Lets a connection carry the frames of the queue pair that has claimed it. If it ends before
    /// both have agreed how, the queue pair waits for another.
    fn attach(&self, nic: &Nic, qpn: u32, epoch: u32, stream: UnixStream, gives: bool) -> bool {
        let room = match self.way {
            Some(Way::Tcp) => None,
            _ => Room::take(&self.sharing),
        };
        let deadline = Instant::now() + ANSWER;
        let agreed = Common::agree(&stream, gives, room.is_some(), deadline);
        let common = agreed.ok().filter(|common| self.permits(common));
        let room = room.filter(|_| common.as_ref().is_some_and(|of| of.way() == Way::Shm));
        let mut meetings = self.meetings.lock();
        let Some(meeting) = meetings.get_mut(&qpn).filter(|of| of.epoch == epoch) else {
            return false;
        };
        meeting.link = common.and_then(|common| {
            let link = Link::by(nic, stream, common, qpn, epoch);
            link.inspect_err(say_unconnected).ok()
        });
        meeting.is_met = meeting.link.is_some();
        meeting.room = room.filter(|_| meeting.is_met);
        meeting.is_met
    }

    /// Returns true if frames may travel as both processes have agreed; says why not.
    fn permits(&self, common: &Common) -> bool {
        let Some(asked) = self.way.filter(|way| *way != common.way()) else {
            return true;
        };
        let (asked, why) = (asked.name().to_string_lossy(), common.why());
        say(&format!(
            "outboard nic: queue pairs of two processes do not connect, as {WAY_VARIABLE} is \
             {asked}: {} (a process shares none if its {WAY_VARIABLE} is tcp, or once {SHARED_MAX} \
             connections have some)",
            why.unwrap_or_default()
        ));
        false
    }
}

/// Says what this process lacks, if an error is of that; others are of peers that are not there.
fn say_lack(error: &io::Error) {
    let lacks = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
    if error.raw_os_error().is_some_and(|of| lacks.contains(&of)) {
        say_unconnected(error);
    }
}

fn say_unconnected(error: &io::Error) {
    say(&format!(
        "outboard nic: queue pairs of two processes do not connect: {error}"
    ));
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    outboard_net::spawn("outboard-nic", work)?;
    Ok(())
}

fn finish(links: &[&Link]) {
    links.iter().for_each(|link| link.finish());
    let deadline = Instant::now() + FINISH;
    while Instant::now() < deadline && !links.iter().all(|link| link.is_finished()) {
        sleep(RETRY_MIN);
    }
}

/// Says which path an error is of.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The folder that [`VARIABLE`] names, else the user's own; made if it is not there.
fn folder() -> io::Result<PathBuf> {
    // SAFETY: reads a number of this process.
    let user = unsafe { libc::geteuid() };
    let folder = match (env::var_os(VARIABLE), env::var_os("XDG_RUNTIME_DIR")) {
        (Some(folder), _) => folder.into(),
        (None, Some(folder)) if Path::new(&folder).is_dir() => {
            Path::new(&folder).join("outboard-nic")
        }
        _ => env::temp_dir().join(format!("outboard-nic-{user}")),
    };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(named(&folder, &error));
        }
        _ => {}
    }
    let found = fs::symlink_metadata(&folder).map_err(|error| named(&folder, &error))?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "{}: not a folder that is this user's alone (mode 700)",
            folder.display()
        )));
    }
    Ok(folder)
}

/// Locks the first place that no living process has, and takes the socket of an earlier one away.
/// A place whose lock is no file, or whose socket is a folder, is nobody's.
fn take_place(folder: &Path) -> io::Result<(u32, File)> {
    let mut unfit = String::new();
    for place in 1..=PLACES_MAX {
        let path = folder.join(format!("{place}.lock"));
        let lock = match open_lock(&path) {
            Ok(lock) => lock,
            Err(error) if is_no_file(&error) => {
                unfit = format!("; {} is no file", path.display());
                continue;
            }
            Err(error) => return Err(named(&path, &error)),
        };
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            continue;
        }
        let socket = folder.join(place.to_string());
        match fs::remove_file(&socket) {
            Err(error) if error.kind() == ErrorKind::IsADirectory => {
                unfit = format!("; {} is a folder", socket.display());
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(named(&socket, &error));
            }
            _ => return Ok((place, lock)),
        }
    }
    Err(io::Error::other(format!(
        "{}: {PLACES_MAX} processes have their places{unfit}",
        folder.display()
    )))
}

/// Opens a lock without waiting for the other end of a pipe that is in its place.
fn open_lock(path: &Path) -> io::Result<File> {
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    match lock.metadata()?.is_file() {
        true => Ok(lock),
        false => Err(io::Error::from_raw_os_error(libc::ENXIO)),
    }
}

/// Returns whether an error says that a pipe nobody reads, a socket, a link or a folder is there.
fn is_no_file(error: &io::Error) -> bool {
    let number = error.raw_os_error();
    number.is_some_and(|of| [libc::ENXIO, libc::ELOOP, libc::EISDIR].contains(&of))
}
