//! Data connections: further tcp connections of a session, which prove with a key that they belong
//! to it.
//!
//! ```text
//!  client                                         server
//!    │◄── over the session: port, key, how many ────┤ DataConnectionListener::bind
//!    ├── connect, "OUTBDATA", key ─────────────────►│ accept: drops strangers
//!    │◄───────────────────────────── "OUTBDATA" ────┤ once all have come
//! ```

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::OnceLock,
    time::{Duration, Instant},
};

use outboard_wire::limits::{
    DATA_CONNECTION_GREETING_MS_MAX, DATA_CONNECTION_GREETINGS_MAX, DATA_CONNECTION_KEY_BYTES,
    DATA_CONNECTIONS, DATA_CONNECTIONS_CORES_MIN, DATA_CONNECTIONS_FEW,
    DATA_CONNECTIONS_FEW_CORES_MIN, DATA_CONNECTIONS_MAX, DATA_CONNECTIONS_OPEN_MS_MAX,
};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    net::RecvFlags,
};

use crate::{Error, Link, Stream, cores, sys};

/// First bytes of a data connection in both directions.
const WORD: [u8; 8] = *b"OUTBDATA";
const GREETING_BYTES: usize = WORD.len() + DATA_CONNECTION_KEY_BYTES;
/// Interval at which a server that waits for data connections checks whether the session has ended.
const TICK: Duration = Duration::from_millis(20);

/// Number of data connections that a session of this process should have, by the machine's cores,
/// or by the environment (`OUTBOARD_DATA_CONNECTIONS`, for tests and measurements).
pub fn data_connections_wanted() -> usize {
    let by_cores = || match cores::count() {
        DATA_CONNECTIONS_CORES_MIN.. => DATA_CONNECTIONS,
        DATA_CONNECTIONS_FEW_CORES_MIN.. => DATA_CONNECTIONS_FEW,
        _ => 0,
    };
    said().map_or_else(by_cores, |said| said.min(DATA_CONNECTIONS_MAX))
}

/// Returns true if the environment sets the number.
pub fn data_connections_are_set() -> bool {
    said().is_some()
}

fn said() -> Option<usize> {
    static SAID: OnceLock<Option<usize>> = OnceLock::new();
    *SAID.get_or_init(|| {
        std::env::var("OUTBOARD_DATA_CONNECTIONS")
            .ok()?
            .parse()
            .ok()
    })
}

pub type DataConnectionKey = [u8; DATA_CONNECTION_KEY_BYTES];

/// The port at which a session's data connections arrive.
pub struct DataConnectionListener {
    listener: TcpListener,
    greeting: [u8; GREETING_BYTES],
    port: u16,
}

impl DataConnectionListener {
    /// Listens at a port of the system's choice, on the session's own address here.
    pub fn bind(session: SocketAddr, key: &DataConnectionKey) -> Result<Self, Error> {
        const DOING: &str = "listening for the data connections of a session";
        let mut address = session;
        address.set_port(0);
        let listener = TcpListener::bind(address).map_err(Error::io(DOING))?;
        listener.set_nonblocking(true).map_err(Error::io(DOING))?;
        let port = listener.local_addr().map_err(Error::io(DOING))?.port();
        Ok(Self {
            listener,
            greeting: greeting(key),
            port,
        })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns `count` data connections once all have come, or an error after
    /// [`DATA_CONNECTIONS_OPEN_MS_MAX`] or when `is_over` says so. No further connection is
    /// accepted afterwards.
    pub fn accept(self, count: usize, is_over: impl Fn() -> bool) -> Result<Vec<Link>, Error> {
        let start = Instant::now();
        let mut connections: Vec<Stream> = Vec::new();
        let mut guests: Vec<Guest> = Vec::new();
        while connections.len() < count {
            if is_over() {
                return Err(Error::Closed);
            }
            if start.elapsed() >= Duration::from_millis(DATA_CONNECTIONS_OPEN_MS_MAX) {
                return Err(crate::stream::timed_out(
                    "the data connections of a session",
                    start,
                ));
            }
            let mut fds = vec![PollFd::new(&self.listener, PollFlags::IN)];
            fds.extend(guests.iter().map(|g| PollFd::new(&g.stream, PollFlags::IN)));
            sys::wait(&mut fds, Some(TICK)).map_err(Error::io("waiting for data connections"))?;
            guests = guests
                .into_iter()
                .filter_map(|mut guest| match guest.listen(&self.greeting) {
                    Said::Nothing => Some(guest),
                    Said::Key => {
                        connections.push(guest.stream);
                        None
                    }
                    Said::Nonsense => None,
                })
                .collect();
            // A connection that was closed at once is ignored.
            while let Ok((socket, _)) = self.listener.accept() {
                // A client sends the key at once, so of the connections without one the oldest
                // makes room.
                if guests.len() >= DATA_CONNECTION_GREETINGS_MAX {
                    guests.remove(0);
                }
                guests.push(Guest::new(socket.into())?);
            }
        }
        drop(self.listener);
        connections.truncate(count);
        connections
            .into_iter()
            .map(|mut connection| {
                let until = Instant::now() + Duration::from_millis(DATA_CONNECTION_GREETING_MS_MAX);
                connection.write_all_deadline(&WORD, until)?;
                connection.into_link_server()
            })
            .collect()
    }
}

/// Opens `count` data connections, or none. Returns the numbers of their sockets too: a forked
/// child must close its copies.
pub fn open_data_connections(
    server: SocketAddr,
    key: &DataConnectionKey,
    count: usize,
    deadline: Instant,
) -> Result<Vec<(Link, RawFd)>, Error> {
    let connect = || {
        let left = deadline.saturating_duration_since(Instant::now());
        let socket = TcpStream::connect_timeout(&server, left.max(Duration::from_millis(1)))
            .map_err(Error::io("connecting a data connection"))?;
        let mut stream = Stream::try_from(OwnedFd::from(socket))?;
        stream.write_all_deadline(&greeting(key), deadline)?;
        Ok(stream)
    };
    // The server answers none before all have come.
    let connections: Vec<Stream> = (0..count)
        .map(|_| connect())
        .collect::<Result<_, Error>>()?;
    connections
        .into_iter()
        .map(|mut stream| {
            let mut answer = [0; WORD.len()];
            stream.read_exact_deadline(&mut answer, deadline)?;
            if answer != WORD {
                return Err(Error::Misuse(
                    "a data connection that something else answers",
                ));
            }
            let fd = stream.as_fd().as_raw_fd();
            Ok((stream.into_link_client(deadline)?, fd))
        })
        .collect()
}

fn greeting(key: &DataConnectionKey) -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    let (word, rest) = bytes.split_at_mut(WORD.len());
    word.copy_from_slice(&WORD);
    rest.copy_from_slice(key);
    bytes
}

/// A connection that has not sent the key yet.
struct Guest {
    stream: Stream,
    said: [u8; GREETING_BYTES],
    len: usize,
    since: Instant,
}

enum Said {
    Nothing,
    Key,
    Nonsense,
}

impl Guest {
    fn new(socket: OwnedFd) -> Result<Guest, Error> {
        Ok(Guest {
            stream: Stream::try_from(socket)?,
            said: [0; GREETING_BYTES],
            len: 0,
            since: Instant::now(),
        })
    }

    /// Reads the bytes that have arrived; never waits.
    fn listen(&mut self, greeting: &[u8; GREETING_BYTES]) -> Said {
        match rustix::net::recv(
            &self.stream,
            &mut self.said[self.len..],
            RecvFlags::DONTWAIT,
        ) {
            Ok((0, _)) => Said::Nonsense,
            Ok((count, _)) => {
                self.len += count;
                match (self.len == GREETING_BYTES, self.said == *greeting) {
                    (false, _) => self.unless_late(),
                    (true, true) => Said::Key,
                    (true, false) => Said::Nonsense,
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => self.unless_late(),
            Err(_) => Said::Nonsense,
        }
    }

    fn unless_late(&self) -> Said {
        match self.since.elapsed() < Duration::from_millis(DATA_CONNECTION_GREETING_MS_MAX) {
            true => Said::Nothing,
            false => Said::Nonsense,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, thread};

    use super::*;
    use crate::Wait;

    const KEY: DataConnectionKey = [7; DATA_CONNECTION_KEY_BYTES];
    const PATIENCE: Duration = Duration::from_secs(10);

    fn listener() -> (DataConnectionListener, SocketAddr) {
        let listener = DataConnectionListener::bind("127.0.0.1:0".parse().unwrap(), &KEY).unwrap();
        let at = SocketAddr::new("127.0.0.1".parse().unwrap(), listener.port());
        (listener, at)
    }

    fn open(at: SocketAddr, key: DataConnectionKey) -> Result<Vec<(Link, RawFd)>, Error> {
        open_data_connections(at, &key, 2, Instant::now() + PATIENCE)
    }

    #[test]
    fn data_connections_come_among_strangers() {
        let (listener, at) = listener();
        // More silent connections than are kept, one that sends half the greeting, one that sends
        // other bytes, one with a wrong key.
        let silent: Vec<TcpStream> = (0..3 * DATA_CONNECTION_GREETINGS_MAX)
            .map(|_| TcpStream::connect(at).unwrap())
            .collect();
        let mut half = TcpStream::connect(at).unwrap();
        half.write_all(&WORD).unwrap();
        let mut other = TcpStream::connect(at).unwrap();
        other
            .write_all(&b"GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n"[..])
            .unwrap();
        let accepting = thread::spawn(move || listener.accept(2, || false));
        assert!(open(at, [8; DATA_CONNECTION_KEY_BYTES]).is_err());
        let ours = open(at, KEY).unwrap();
        let theirs = accepting.join().unwrap().unwrap();
        let mut senders: Vec<_> = ours
            .into_iter()
            .map(|(connection, _)| connection.split())
            .collect();
        for (sender, _) in &mut senders {
            sender.send(&[b"hello"]).unwrap();
            sender.flush().unwrap();
        }
        for connection in theirs {
            let (_sender, mut receiver) = connection.split();
            let frame = receiver.recv(Wait::Until(Instant::now() + PATIENCE));
            assert_eq!(frame.unwrap(), Some(&b"hello"[..]));
        }
        drop((silent, half, other));
        assert!(TcpStream::connect(at).is_err(), "nobody listens any more");
    }

    #[test]
    fn waiting_for_data_connections_ends_with_the_session() {
        let (listener, at) = listener();
        let start = Instant::now();
        let accepting = thread::spawn(move || {
            listener.accept(1, || start.elapsed() > Duration::from_millis(50))
        });
        assert!(accepting.join().unwrap().is_err());
        assert!(start.elapsed() < Duration::from_millis(DATA_CONNECTIONS_OPEN_MS_MAX));
        assert!(TcpStream::connect(at).is_err());
    }
}
