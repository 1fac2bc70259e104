//! Places for connections: those that have not asked yet make room for newer ones.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Connections whose requests are awaited.
const AWAITED_MAX: usize = 32;
/// All connections, those too whose answers are on their way.
const CONNECTIONS_MAX: usize = 2 * AWAITED_MAX;
/// Pause after an error of the listener.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection of somebody who asks.
pub(super) trait Asking: io::Read + io::Write + AsFd + Send + Sized + 'static {
    fn again(&self) -> io::Result<Self>;
    fn end(&self, how: Shutdown) -> io::Result<()>;
    fn read_for(&self, longest: Duration) -> io::Result<()>;
    fn write_for(&self, longest: Duration) -> io::Result<()>;
}

macro_rules! asking {
    ($($stream:ty),*) => {$(
        impl Asking for $stream {
            fn again(&self) -> io::Result<Self> {
                self.try_clone()
            }

            fn end(&self, how: Shutdown) -> io::Result<()> {
                self.shutdown(how)
            }

            fn read_for(&self, longest: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(longest))
            }

            fn write_for(&self, longest: Duration) -> io::Result<()> {
                self.set_write_timeout(Some(longest))
            }
        }
    )*};
}

asking!(TcpStream, UnixStream);

/// Reads some bytes before a time.
pub(super) fn read_some(
    stream: &mut impl Asking,
    bytes: &mut [u8],
    deadline: Instant,
) -> io::Result<usize> {
    loop {
        stream.read_for(left(deadline)?)?;
        match stream.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Writes all bytes before a time.
pub(super) fn write_all(
    stream: &mut impl Asking,
    mut bytes: &[u8],
    deadline: Instant,
) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.write_for(left(deadline)?)?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ends an answer before its question has come whole. A close while something is unread would be a
/// reset, which takes the answer with it.
pub(super) fn read_rest(stream: &mut impl Asking, longest: Duration) -> io::Result<()> {
    stream.end(Shutdown::Write)?;
    let (end, mut rest) = (Instant::now() + longest, [0; 4096]);
    while read_some(stream, &mut rest, end).is_ok_and(|count| count > 0) {}
    Ok(())
}

/// Returns whether an error says that time is up.
pub(super) fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// Connections that are there.
struct Present<S> {
    count: usize,
    /// Those whose requests have not come whole, the oldest first.
    awaited: VecDeque<(u64, S)>,
}

struct Room<S> {
    present: Mutex<Present<S>>,
    left: Condvar,
    /// Answer to those that make room.
    too_many: &'static [u8],
}

impl<S: Asking> Room<S> {
    fn with<T>(&self, act: impl FnOnce(&mut Present<S>) -> T) -> T {
        act(&mut self.present.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a connection once there is room, for which the oldest that is awaited is ended.
    fn enter(&self, number: u64, stream: &S) -> io::Result<()> {
        let own = stream.again()?;
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        if present.awaited.len() >= AWAITED_MAX
            && let Some((_, oldest)) = present.awaited.pop_front()
        {
            let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
            // It is told if it listens, and its thread finds the end of the stream.
            let _ = rustix::net::send(&oldest, self.too_many, flags);
            let _ = oldest.end(Shutdown::Both);
        }
        while present.count >= CONNECTIONS_MAX {
            present = self
                .left
                .wait(present)
                .unwrap_or_else(PoisonError::into_inner);
        }
        present.count += 1;
        present.awaited.push_back((number, own));
        Ok(())
    }

    /// Notes that a request has come whole. Returns whether it still has its place.
    fn has_come(&self, number: u64) -> bool {
        self.with(|present| {
            let before = present.awaited.len();
            present.awaited.retain(|(one, _)| *one != number);
            present.awaited.len() < before
        })
    }

    fn leave(&self, number: u64) {
        self.has_come(number);
        self.with(|present| present.count -= 1);
        self.left.notify_one();
    }
}

/// Serves connections for as long as the process lives, each by a thread. `answer` is given a
/// connection, and a function to call once the request has come whole: if that returns `false`, the
/// connection has made room for others. Those that do get the answer `too_many`.
pub(super) fn serve<S: Asking>(
    name: &str,
    too_many: &'static [u8],
    mut accept: impl FnMut() -> io::Result<S>,
    answer: impl Fn(S, &dyn Fn() -> bool) -> io::Result<()> + Send + Sync + 'static,
) {
    let room = Arc::new(Room {
        present: Mutex::new(Present {
            count: 0,
            awaited: VecDeque::new(),
        }),
        left: Condvar::new(),
        too_many,
    });
    let answer = Arc::new(answer);
    for number in 0.. {
        let Ok(stream) = accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if room.enter(number, &stream).is_err() {
            continue;
        }
        let (inside, answer) = (Arc::clone(&room), Arc::clone(&answer));
        let work = move || {
            if let Err(error) = answer(stream, &|| inside.has_come(number)) {
                tracing::debug!(%error, "a request without an answer");
            }
            inside.leave(number);
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        if thread.is_err() {
            room.leave(number);
        }
    }
}
