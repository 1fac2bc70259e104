//! The ranks of a communicator: each has a socket to the first, by which all learn what each says.
//!
//! Sockets are in the folder in which adapters meet, which is its user's alone.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::host::host;

use super::{Outcome, abi::HANDLE_BYTES, broken, wrong};

/// First bytes of a handle and of a connection; the last is the version.
const MAGIC: [u8; 8] = *b"OBGIN\0\0\x01";
const HELLO_BYTES: usize = MAGIC.len() + 4;
/// Ranks of a communicator: the folder has as many places.
const RANKS_MAX: usize = 255;
/// Time for all ranks to come, and for each to say its part.
const PATIENCE: Duration = Duration::from_secs(60);
const HELLO: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);
/// Domains of verbs have lower numbers.
const DOMAIN_FIRST: u32 = 1 << 31;

/// The socket at which a rank listens.
#[derive(Debug)]
pub(super) struct Listener {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Listener {
    /// Makes a socket, and the handle by which others find it.
    pub(super) fn make() -> Outcome<(Listener, [u8; HANDLE_BYTES])> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let place = fabric()?.place();
        let path = fabric()?.gathering(place, number);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(broken(error)),
            _ => {}
        }
        let listener = UnixListener::bind(&path).map_err(broken)?;
        listener.set_nonblocking(true).map_err(broken)?;
        let mut handle = [0; HANDLE_BYTES];
        handle[..8].copy_from_slice(&MAGIC);
        handle[8..12].copy_from_slice(&place.to_le_bytes());
        handle[12..16].copy_from_slice(&number.to_le_bytes());
        Ok((Listener { listener, path }, handle))
    }
}

fn fabric() -> Outcome<&'static crate::fabric::Fabric> {
    let host = host().map_err(|_| broken("there is no adapter"))?;
    Ok(&host.fabric)
}

fn number(bytes: &[u8]) -> u32 {
    let bytes = bytes.iter().take(4).rev();
    bytes.fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// A rank among others.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    /// Keys of this communicator's memory open nothing for another's queues.
    pub(super) domain: u32,
    /// Sockets to the others, of the first rank; of another, to the first.
    ways: Mutex<Vec<UnixStream>>,
}

impl Member {
    /// Joins the ranks whose handles these are.
    pub(super) fn join(
        listener: &Listener,
        handles: &[[u8; HANDLE_BYTES]],
        rank: usize,
    ) -> Outcome<Member> {
        static DOMAINS: AtomicU32 = AtomicU32::new(DOMAIN_FIRST);
        if handles.len() > RANKS_MAX || rank >= handles.len() {
            return wrong(format!("rank {rank} of {}", handles.len()));
        }
        if handles[0][..8] != MAGIC {
            return wrong("a handle that another plugin has made");
        }
        let ways = match rank {
            0 => welcome(listener, handles.len())?,
            _ => vec![dial(&handles[0], rank)?],
        };
        for way in &ways {
            way.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
            way.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
        }
        Ok(Member {
            rank,
            ranks: handles.len(),
            domain: DOMAINS.fetch_add(1, Ordering::Relaxed),
            ways: Mutex::new(ways),
        })
    }

    /// Says something to all ranks. Returns what each says, which has to have as many bytes. After
    /// an error no more is said: ranks would take one thing for another.
    pub(super) fn gather(&self, said: &[u8]) -> Outcome<Vec<u8>> {
        let mut ways = self.ways.lock();
        let all = match (self.rank, ways.first_mut()) {
            (_, None) if self.ranks > 1 => Err(broken("the ranks no longer speak to each other")),
            (1.., Some(way)) => say_and_hear(way, said, self.ranks),
            _ => hear_all(&mut ways, said),
        };
        if all.is_err() {
            ways.clear();
        }
        all
    }
}

/// Sends the length of what is said, and what is said.
fn tell(way: &mut UnixStream, said: &[u8], length: usize) -> Outcome<()> {
    let mut frame = (length as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(said);
    way.write_all(&frame).map_err(gone)
}

/// Reads bytes of a rank, or of all, that say as much as this one does.
fn listen(way: &mut UnixStream, length: usize, into: &mut [u8]) -> Outcome<()> {
    let mut told = [0; 4];
    way.read_exact(&mut told).map_err(gone)?;
    if number(&told) as usize != length {
        return Err(broken("another rank says something else"));
    }
    way.read_exact(into).map_err(gone)
}

fn hear_all(ways: &mut [UnixStream], said: &[u8]) -> Outcome<Vec<u8>> {
    let mut all = said.to_vec();
    for way in ways.iter_mut() {
        let at = all.len();
        all.resize(at + said.len(), 0);
        listen(way, said.len(), &mut all[at..])?;
    }
    for way in ways.iter_mut() {
        tell(way, &all, said.len())?;
    }
    Ok(all)
}

fn say_and_hear(way: &mut UnixStream, said: &[u8], ranks: usize) -> Outcome<Vec<u8>> {
    tell(way, said, said.len())?;
    let mut all = vec![0; said.len() * ranks];
    listen(way, said.len(), &mut all)?;
    Ok(all)
}

fn gone(error: std::io::Error) -> super::Failure {
    broken(format!("another rank: {error}"))
}

/// Waits for all other ranks. Returns their sockets by their numbers.
fn welcome(listener: &Listener, ranks: usize) -> Outcome<Vec<UnixStream>> {
    let deadline = Instant::now() + PATIENCE;
    let mut ways: Vec<Option<UnixStream>> = (1..ranks).map(|_| None).collect();
    while ways.iter().any(Option::is_none) {
        if Instant::now() > deadline {
            return Err(broken(format!("not all {ranks} ranks have come")));
        }
        match listener.listener.accept() {
            Ok((stream, _)) => {
                let place = hear(&stream).and_then(|rank| ways.get_mut(rank.checked_sub(1)?));
                if let Some(place @ None) = place {
                    *place = Some(stream);
                }
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(broken(error)),
            Err(_) => sleep(PAUSE),
        }
    }
    Ok(ways.into_iter().flatten().collect())
}

/// Returns the rank of who has connected; `None` if it does not say so.
fn hear(mut stream: &UnixStream) -> Option<usize> {
    let mut hello = [0; HELLO_BYTES];
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(HELLO)).ok()?;
    stream.read_exact(&mut hello).ok()?;
    (hello[..8] == MAGIC).then(|| number(&hello[8..]) as usize)
}

fn dial(handle: &[u8; HANDLE_BYTES], rank: usize) -> Outcome<UnixStream> {
    let path = fabric()?.gathering(number(&handle[8..]), number(&handle[12..]));
    let mut stream = UnixStream::connect(path).map_err(gone)?;
    let mut hello = [0; HELLO_BYTES];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..].copy_from_slice(&(rank as u32).to_le_bytes());
    stream.write_all(&hello).map_err(gone)?;
    Ok(stream)
}
