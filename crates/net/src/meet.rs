//! The meeting of two processes over tcp: one listens at a loopback address, the other connects,
//! and each says hello. The one that listens speaks second, so that a stranger learns nothing, and
//! hangs up on strangers.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::{AddrParseError, SocketAddr, TcpListener, TcpStream},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{adapter::Peer, error::Error, stream::read_by, way::Way};

/// First bytes of a connection; the last is the version.
const MAGIC: [u8; 8] = *b"OBNET\0\0\x01";
const HELLO_BYTES: usize = 40;
const RETRY: Duration = Duration::from_millis(5);
/// Connections that have not said hello. A further one takes the place of the oldest.
const GUESTS_MAX: usize = 64;

/// Registered memory that a process offers to the other: `struct outboard_net_window`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Window {
    pub address: u64,
    pub bytes: u64,
    pub key: u32,
    pub reserved: u32,
}

/// Where and how two processes meet.
#[derive(Clone, Copy, Debug)]
pub struct Meeting<'a> {
    pub address: &'a str,
    /// This one listens, the other connects.
    pub listens: bool,
    /// The address may be another than a loopback one: whoever reaches it can be the other.
    pub is_anywhere: bool,
    pub timeout: Duration,
    /// The way of entries; `None` is shared memory where it is possible, else tcp.
    pub way: Option<Way>,
}

impl Meeting<'_> {
    /// Returns the address, if processes may meet there.
    pub(crate) fn socket(&self) -> Result<SocketAddr, Error> {
        let failed = |why: String| Error::Meet {
            address: self.address.into(),
            why,
        };
        let socket: SocketAddr = self
            .address
            .parse()
            .map_err(|error: AddrParseError| failed(error.to_string()))?;
        match socket.ip().is_loopback() || self.is_anywhere {
            true => Ok(socket),
            false => Err(failed(
                "queues meet at loopback addresses, unless OUTBOARD_NET_ANYWHERE is given".into(),
            )),
        }
    }
}

/// The words that each process says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) peer: Peer,
    pub(crate) window: Window,
    /// This process takes memory that both have, [`SHARES`]; or 0, as versions before it said.
    pub(crate) ways: u32,
}

/// Bit of a hello's ways.
pub(crate) const SHARES: u32 = 1;
/// Bit of a hello's ways: the queue is at a server. Between two such queues entries do not come by
/// this connection.
pub(crate) const AT_SERVER: u32 = 2;
/// Bit of a hello's ways: the queue is one of an adapter, and its entries travel by verbs.
pub(crate) const BY_VERBS: u32 = 4;

/// Bit of a hello's ways: this process takes no other than memory that both have.
pub(crate) const SHARES_ALONE: u32 = 8;

/// Bit of a hello's ways: this process hears why the other has no memory to share.
pub(crate) const SAYS_WHY: u32 = 16;

/// Why a queue whose entries travel by verbs does not meet another.
pub(crate) const NOT_BY_VERBS: &str = "one of the two is a queue of nic whose entries travel by verbs (OUTBOARD_NET_WAY=verbs), and the other is \
     not: its keys are others";

impl Hello {
    fn bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.peer.qpn.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.peer.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.window.address.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.window.bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.window.key.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.ways.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<Hello> {
        let rest = bytes.strip_prefix(&MAGIC)?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(*rest.get(at..)?.first_chunk()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(*rest.get(at..)?.first_chunk()?));
        let peer = Peer {
            qpn: u32_at(0)?,
            epoch: u32_at(4)?,
        };
        let window = Window {
            address: u64_at(8)?,
            bytes: u64_at(16)?,
            key: u32_at(24)?,
            reserved: 0,
        };
        let ways = u32_at(28)?;
        Some(Hello { peer, window, ways })
    }
}

/// Reasons why two processes have not met.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotMet {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(
        "timed out; {0} connections had to be hung up on, since they said no hello of this version"
    )]
    Strangers(u64),
    #[error("what listens there has sent no hello of this version")]
    NoHello,
    #[error("what listens there has hung up: it is no such process, or of another version")]
    HungUp,
}

/// Waits for the other process at an address. Returns its connection and its hello.
pub(crate) fn listen(
    socket: SocketAddr,
    mine: Hello,
    deadline: Instant,
) -> Result<(TcpStream, Hello), NotMet> {
    let listener = TcpListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    let (mut guests, mut strangers) = (VecDeque::new(), 0);
    loop {
        accept(&listener, &mut guests, &mut strangers)?;
        for mut guest in std::mem::take(&mut guests) {
            match guest.heard() {
                Heard::Hello(theirs) => match guest.answer(mine) {
                    Ok(stream) => return Ok((stream, theirs)),
                    Err(_) => strangers += 1,
                },
                Heard::Something => strangers += 1,
                Heard::Less => guests.push_back(guest),
            }
        }
        if Instant::now() > deadline {
            return Err(match strangers {
                0 => late().into(),
                _ => NotMet::Strangers(strangers),
            });
        }
        sleep(RETRY);
    }
}

/// Takes the connections that have come.
fn accept(
    listener: &TcpListener,
    guests: &mut VecDeque<Guest>,
    strangers: &mut u64,
) -> io::Result<()> {
    for _ in 0..GUESTS_MAX {
        match listener.accept() {
            Ok((stream, _)) => {
                if guests.len() == GUESTS_MAX {
                    guests.pop_front();
                    *strangers += 1;
                }
                guests.extend(Guest::new(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            // A connection that has ended already is no reason to end.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionAborted | ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A connection that has not said hello yet.
struct Guest {
    stream: TcpStream,
    bytes: [u8; HELLO_BYTES],
    got: usize,
}

enum Heard {
    /// Less than a hello so far.
    Less,
    Hello(Hello),
    /// Something else, or the end.
    Something,
}

impl Guest {
    fn new(stream: TcpStream) -> Option<Guest> {
        stream.set_nonblocking(true).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(Guest {
            stream,
            bytes: [0; HELLO_BYTES],
            got: 0,
        })
    }

    fn heard(&mut self) -> Heard {
        match self.stream.read(&mut self.bytes[self.got..]) {
            Ok(count) if count > 0 => self.got += count,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Ok(_) | Err(_) => return Heard::Something,
        }
        if self.got == HELLO_BYTES {
            return Hello::parse(&self.bytes).map_or(Heard::Something, Heard::Hello);
        }
        let begun = self.got.min(MAGIC.len());
        match self.bytes[..begun] == MAGIC[..begun] {
            true => Heard::Less,
            false => Heard::Something,
        }
    }

    fn answer(mut self, mine: Hello) -> io::Result<TcpStream> {
        self.stream.set_nonblocking(false)?;
        self.stream.write_all(&mine.bytes())?;
        Ok(self.stream)
    }
}

/// Connects to the other process, which may begin to listen later.
pub(crate) fn connect(
    socket: SocketAddr,
    mine: Hello,
    deadline: Instant,
) -> Result<(TcpStream, Hello), NotMet> {
    let mut stream = reach(socket, deadline)?;
    stream.set_nodelay(true)?;
    stream
        .write_all(&mine.bytes())
        .map_err(|error| match has_hung_up(&error) {
            true => NotMet::HungUp,
            false => error.into(),
        })?;
    let bytes = hear(&stream, deadline)?;
    let theirs = Hello::parse(&bytes).ok_or(NotMet::NoHello)?;
    Ok((stream, theirs))
}

fn reach(socket: SocketAddr, deadline: Instant) -> io::Result<TcpStream> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&socket, left.max(RETRY)) {
            // A connection to a port at which nobody listens can meet itself.
            Ok(stream) if stream.local_addr()? != socket => return Ok(stream),
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused | ErrorKind::Interrupted | ErrorKind::TimedOut
                ) =>
            {
                return Err(error);
            }
            Ok(_) | Err(_) if Instant::now() > deadline => return Err(late()),
            Ok(_) | Err(_) => sleep(RETRY),
        }
    }
}

/// Waits for a hello's bytes.
fn hear(stream: &TcpStream, deadline: Instant) -> Result<[u8; HELLO_BYTES], NotMet> {
    let mut bytes = [0; HELLO_BYTES];
    read_by(stream, &mut bytes, deadline).map_err(|error| match has_hung_up(&error) {
        true => NotMet::HungUp,
        false => error.into(),
    })?;
    stream.set_read_timeout(None)?;
    Ok(bytes)
}

/// Returns whether an error says that the other end of a connection is gone.
fn has_hung_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
    )
}

/// Says why a meeting has failed after the hellos.
pub(crate) fn why(error: &io::Error) -> String {
    match has_hung_up(error) {
        true => "the other process has hung up".into(),
        false => error.to_string(),
    }
}

fn late() -> io::Error {
    ErrorKind::TimedOut.into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn hello(qpn: u32) -> Hello {
        Hello {
            peer: Peer { qpn, epoch: 7 },
            window: Window {
                address: 1 << 40,
                bytes: 4096,
                key: 9,
                reserved: 0,
            },
            ways: SHARES,
        }
    }

    fn free() -> SocketAddr {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn strangers_are_hung_up_on_and_learn_nothing() {
        let socket = free();
        let listening = std::thread::spawn(move || listen(socket, hello(1), soon()));
        let stranger = |says: &[u8]| {
            let mut stream = reach(socket, soon()).unwrap();
            stream.write_all(says).unwrap();
            stream
        };
        let mut wrong_version = hello(3).bytes();
        wrong_version[7] += 1;
        for says in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &wrong_version] {
            // What was not read may reset the connection: either is its end.
            let mut heard = Vec::new();
            let _ = stranger(says).read_to_end(&mut heard);
            assert_eq!(heard, [0; 0]);
        }
        drop(stranger(b""));
        let silent: Vec<_> = (0..2 * GUESTS_MAX).map(|_| stranger(b"OBNET")).collect();
        let (_stream, theirs) = connect(socket, hello(2), soon()).unwrap();
        assert_eq!(theirs, hello(1));
        assert_eq!(listening.join().unwrap().unwrap().1, hello(2));
        drop(silent);
    }

    /// A listener with no place left answers no connection, as a machine that is not there.
    #[test]
    fn an_address_that_does_not_answer_is_tried_until_the_deadline_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let socket = listener.local_addr().unwrap();
        let connected = || TcpStream::connect_timeout(&socket, Duration::from_millis(100)).ok();
        let places: Vec<TcpStream> = std::iter::from_fn(connected).collect();
        let begin = Instant::now();
        let deadline = begin + Duration::from_millis(500);
        let said = connect(socket, hello(1), deadline).unwrap_err().to_string();
        assert_eq!(said, "timed out");
        let waited = begin.elapsed();
        assert!(waited >= Duration::from_millis(500) && waited < Duration::from_secs(20));
        drop(places);
    }

    #[test]
    fn a_peer_that_is_gone_has_hung_up_however_that_is_seen() {
        for kind in [
            ErrorKind::BrokenPipe,
            ErrorKind::ConnectionReset,
            ErrorKind::UnexpectedEof,
        ] {
            assert_eq!(why(&kind.into()), "the other process has hung up");
        }
        assert_eq!(why(&late()), "timed out");
    }

    #[test]
    fn a_meeting_that_has_not_come_about_says_why() {
        let socket = free();
        let now = Instant::now();
        let said = listen(socket, hello(1), now).unwrap_err().to_string();
        assert_eq!(said, "timed out");
        let said = connect(socket, hello(1), now).unwrap_err().to_string();
        assert_eq!(said, "timed out");
        let listening = std::thread::spawn(move || {
            let soon = Instant::now() + Duration::from_secs(2);
            listen(socket, hello(1), soon)
        });
        let mut stream = reach(socket, soon()).unwrap();
        stream.write_all(&[1; HELLO_BYTES]).unwrap();
        let said = listening.join().unwrap().unwrap_err().to_string();
        assert!(said.starts_with("timed out; 1 connections"), "{said}");

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = listener.local_addr().unwrap();
        let other = std::thread::spawn(move || {
            drop(listener.accept().unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&[1; HELLO_BYTES]).unwrap();
        });
        let first = connect(socket, hello(1), soon()).unwrap_err();
        assert!(matches!(first, NotMet::HungUp), "{first}");
        let second = connect(socket, hello(1), soon()).unwrap_err();
        assert!(matches!(second, NotMet::NoHello), "{second}");
        other.join().unwrap();
    }
}
