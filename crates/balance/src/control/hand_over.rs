//! Passing everything to the next process: it asks at the socket for commands, is given the
//! descriptors of the data plane and the connections, and says when it has them. Frames that come
//! meanwhile wait in the kernel's queues.
//!
//! ```text
//!  next ──► Question::HandOver
//!       ◄── 'H', length of the header (u32, little endian), header (JSON)
//!       ◄── 'f' with up to 64 descriptors, again and again
//!       ◄── connections, as a dump
//!       ──► 'T': it has taken them
//!       ◄── 'G': it may go on with them; this process passes no more frames
//! ```
//!
//! The running balancer passes no frames from the header on. It gives up after a bounded time, and
//! then closes the connection: a successor that wakes up later reads its end instead of 'G'.

use super::client::{self, ApiError};
use super::question::Question;
use super::room::is_late;
use super::state::{Lock, STATE_BYTES_MAX};
use crate::config::Config;
use crate::engine::{Engine, Neighbour, RestoreError, ServiceKey};
use crate::plane::{Handed, Plane, adopt};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// First byte of an answer that is not a refusal.
pub(super) const HANDED: u8 = b'H';
const DESCRIPTORS: u8 = b'f';
const TAKEN: u8 = b'T';
const GO: u8 = b'G';
/// Descriptors of one message.
const FDS_A_MESSAGE: usize = 64;
const HEADER_BYTES_MAX: u32 = 64 << 20;
/// Three for each interface, two for each of its queues.
const FDS_MAX: usize = 1 << 17;
/// Time for which no frames pass: all steps of the other process, and a share for each connection.
/// Frames wait as long, as far as their queues go.
const STOP_MAX: Duration = Duration::from_secs(2);
const STOP_A_CONNECTION: Duration = Duration::from_micros(2);
/// Time for which the next process waits for each step of the running one.
const STEP_MAX: Duration = Duration::from_secs(30);
/// Bytes written at a time, each with the time that is left.
const PIECE_BYTES: usize = 1 << 20;

#[derive(Serialize, Deserialize)]
struct Header {
    plane: Handed,
    descriptors: usize,
    /// Listeners for requests over HTTP, whose descriptors come after those of the plane.
    #[serde(default)]
    listeners: usize,
    /// State file whose lock is the last descriptor.
    lock: Option<PathBuf>,
    dump_bytes: u64,
    backends: Vec<HandedBackend>,
}

/// State of a backend that the configuration does not have.
#[derive(Serialize, Deserialize)]
struct HandedBackend {
    service: ServiceKey,
    address: SocketAddr,
    /// Hundredths of its weight; `None` if it is down.
    share: Option<u32>,
    /// By command: what the configuration drains, the next one says by itself.
    is_drained: bool,
    link: Option<Neighbour>,
}

/// Why nothing was taken over.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error(transparent)]
    Ask(#[from] ApiError),
    #[error("the running balancer's connections: {0}")]
    Connections(#[from] RestoreError),
    #[error(
        "the running balancer ended before it handed anything over: another process took over \
         from it first, or it was stopped"
    )]
    Gone,
    #[error("what the running balancer handed over: {0}")]
    Io(io::Error),
}

impl From<io::Error> for TakeError {
    fn from(error: io::Error) -> TakeError {
        match is_late(&error) {
            true => TakeError::Ask(ApiError::Late(STEP_MAX)),
            false => TakeError::Io(error),
        }
    }
}

fn backends(engine: &Engine) -> Vec<HandedBackend> {
    let services: std::collections::HashMap<_, _> = engine
        .services()
        .map(|(id, rule, _)| (id, (rule.address, rule.protocol)))
        .collect();
    let handed = |one: &crate::engine::Backend| {
        Some(HandedBackend {
            service: *services.get(&one.service)?,
            address: one.address,
            share: one.is_up.then_some(one.share),
            is_drained: one.is_drained_by_command,
            link: one.link,
        })
    };
    engine.backends().filter_map(handed).collect()
}

/// A process that takes over, which has until a time to do so.
struct Taker<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Taker<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the next process was too slow",
            )),
            false => Ok(left),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        for mut piece in bytes.chunks(PIECE_BYTES) {
            while !piece.is_empty() {
                self.stream.set_write_timeout(Some(self.left()?))?;
                let mut stream = self.stream;
                match stream.write(piece) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => piece = &piece[count..],
                    Err(error) if is_again(&error) => self.left().map(drop)?,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn read(&self) -> io::Result<u8> {
        let mut byte = [0];
        loop {
            self.stream.set_read_timeout(Some(self.left()?))?;
            let mut stream = self.stream;
            match stream.read_exact(&mut byte) {
                Err(error) if is_again(&error) => self.left().map(drop)?,
                read => return read.map(|()| byte[0]),
            }
        }
    }
}

/// Returns whether a step may be tried again, if there is time left.
fn is_again(error: &io::Error) -> bool {
    is_late(error) || error.kind() == io::ErrorKind::Interrupted
}

/// Returns the time for which the balancer may pass no frames while it is taken over.
fn stop_max(connections: usize) -> Duration {
    STOP_MAX + STOP_A_CONNECTION * connections as u32
}

/// Hands everything over. If this fails, nothing has changed, and the balancer goes on.
pub(super) fn give(
    stream: &UnixStream,
    engine: &Engine,
    plane: &mut dyn Plane,
    lock: Option<&Lock>,
    listeners: &[TcpListener],
) -> io::Result<()> {
    let (open, half_open, _) = engine.sizes();
    let taker = Taker {
        stream,
        end: Instant::now() + stop_max(open + half_open),
    };
    plane.flush();
    let dump = engine.dump();
    let (plane, mut fds) = plane.hand_over();
    let lock = lock.map(Lock::parts);
    fds.extend(listeners.iter().map(TcpListener::as_fd));
    fds.extend(lock.map(|(_, file)| file));
    let header = serde_json::to_vec(&Header {
        plane,
        descriptors: fds.len(),
        listeners: listeners.len(),
        lock: lock.map(|(state, _)| state.into()),
        dump_bytes: dump.len() as u64,
        backends: backends(engine),
    })?;
    taker.write(&[HANDED])?;
    taker.write(&(header.len() as u32).to_le_bytes())?;
    taker.write(&header)?;
    for fds in fds.chunks(FDS_A_MESSAGE) {
        stream.set_write_timeout(Some(taker.left()?))?;
        send_descriptors(stream, fds)?;
    }
    taker.write(&dump)?;
    match taker.read()? {
        TAKEN => taker.write(&[GO]),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn send_descriptors(stream: &UnixStream, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_A_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let bytes = [IoSlice::new(&[DESCRIPTORS])];
    match sendmsg(stream, &bytes, &mut control, SendFlags::NOSIGNAL)? {
        1 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

fn receive_descriptors(stream: &UnixStream, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_A_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let bytes = &mut [IoSliceMut::new(&mut byte)];
    let received = recvmsg(stream, bytes, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.bytes == 1 && byte == [DESCRIPTORS] {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The process before, which waits for its successor.
#[derive(Debug)]
pub(super) struct Predecessor(UnixStream);

/// Everything of the process before that is not the engine's.
pub(super) struct Taken {
    pub(super) plane: Box<dyn Plane>,
    pub(super) lock: Option<Lock>,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) predecessor: Predecessor,
}

impl Predecessor {
    /// Lets it end: its successor passes frames from here on. An error says that it goes on.
    pub(super) fn dismiss(mut self) -> io::Result<()> {
        let gave_up = |_| io::Error::other("it gave up, and goes on: this process was too slow");
        self.0.write_all(&[TAKEN]).map_err(gave_up)?;
        let mut answer = [0];
        self.0.read_exact(&mut answer).map_err(gave_up)?;
        match answer {
            [GO] => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Takes everything over from the balancer that answers at a socket. Until it is dismissed, it goes
/// on as before if this process ends.
pub(super) fn take(api: &Path, config: &Config, engine: &mut Engine) -> Result<Taken, TakeError> {
    let plane = config.plane.clone();
    let mut stream = client::open(api, &Question::HandOver { plane })?;
    stream.set_read_timeout(Some(STEP_MAX))?;
    stream.set_write_timeout(Some(STEP_MAX))?;
    let mut first = [0];
    stream.read_exact(&mut first).map_err(|error| {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionReset | UnexpectedEof => TakeError::Gone,
            _ => error.into(),
        }
    })?;
    if first != [HANDED] {
        let mut text = String::from_utf8_lossy(&first).into_owned();
        stream.read_to_string(&mut text)?;
        let refused: Result<(), String> = serde_json::from_str(&text).map_err(ApiError::Answer)?;
        let why = refused.err().unwrap_or_default();
        return Err(ApiError::Refused(why).into());
    }
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > HEADER_BYTES_MAX {
        return Err(invalid().into());
    }
    let mut header = vec![0; length as usize];
    stream.read_exact(&mut header)?;
    let header: Header = serde_json::from_slice(&header).map_err(ApiError::Answer)?;
    if header.descriptors > FDS_MAX || header.dump_bytes > STATE_BYTES_MAX {
        return Err(invalid().into());
    }
    let mut fds = Vec::new();
    while fds.len() < header.descriptors {
        receive_descriptors(&stream, &mut fds)?;
    }
    let mut dump = Vec::new();
    (&stream).take(header.dump_bytes).read_to_end(&mut dump)?;
    let lock = match header.lock {
        Some(state) => Some(Lock::adopt(state, fds.pop().ok_or_else(invalid)?)),
        None => None,
    };
    let of_plane = fds
        .len()
        .checked_sub(header.listeners)
        .ok_or_else(invalid)?;
    let listeners = fds.split_off(of_plane);
    let plane = adopt(header.plane, fds)?;
    engine.set_ports(plane.ports());
    for one in header.backends {
        engine.set_health(&one.service, one.address, one.share);
        if one.is_drained {
            engine.drain(one.address, true);
        }
        if let Some(link) = one.link {
            engine.set_neighbour(one.address.ip(), link);
        }
    }
    engine.await_neighbours();
    let (restored, left_out) = engine.restore(&dump)?;
    tracing::info!(restored, left_out, "connections of the running balancer");
    Ok(Taken {
        plane,
        lock,
        listeners: listeners.into_iter().map(TcpListener::from).collect(),
        predecessor: Predecessor(stream),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Frame, Options, Verdict};
    use outboard_flow::Secret;
    use std::net::UdpSocket;

    const TEXT: &str = r#"
        [plane]
        interfaces = ["eth0"]
        [[service]]
        name = "a"
        address = "192.0.2.10:80"
        protocol = "udp"
        forward = "nat"
        check = { kind = "tcp" }
        backend = [{ address = "192.0.2.11:80" }, { address = "192.0.2.12:80" }]
    "#;

    /// A plane whose only descriptor is a datagram socket of this host's.
    struct Loopback(UdpSocket);

    impl Plane for Loopback {
        fn interfaces(&self) -> Vec<String> {
            vec!["eth0".into()]
        }

        fn ports(&self) -> Vec<crate::engine::Port> {
            vec![crate::engine::Port::default()]
        }

        fn index(&self, _port: usize) -> Option<u32> {
            None
        }

        fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
            vec![self.0.as_fd()]
        }

        fn receive(&mut self, frames: &mut Vec<Frame>, _max: usize) -> io::Result<()> {
            frames.clear();
            Ok(())
        }

        fn send(&mut self, _index: usize, _frame: &Frame, _port: u16) -> io::Result<()> {
            Ok(())
        }

        fn hand_over(&mut self) -> (Handed, Vec<BorrowedFd<'_>>) {
            let name = "eth0".into();
            (Handed::Tun { name }, self.descriptors())
        }
    }

    fn engine(config: &Config, seed: u64) -> Engine {
        let options = Options {
            connections_max: 100,
            half_open_max: 100,
            fragments_max: 10,
            hash_seed: 0,
            secrets: [1, 2, 3, 4].map(|one| Secret::from_seed(one + seed)),
        };
        let mut engine = Engine::new(options, vec![Default::default()], 0).expect("memory");
        engine.reload(&config.services, config.timeouts.clone());
        engine
    }

    /// A datagram of 8 bytes between two hosts of 192.0.2.0/24, without a checksum.
    fn datagram(from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
        bytes.extend([192, 0, 2, from.0, 192, 0, 2, to.0]);
        let words = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum: u32 = words.sum();
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(from.1.to_be_bytes());
        bytes.extend(to.1.to_be_bytes());
        bytes.extend([0, 8, 0, 0]);
        bytes
    }

    fn pass(engine: &mut Engine, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let mut frames = [Frame {
            bytes,
            ..Frame::default()
        }];
        let mut verdicts = Vec::new();
        engine.process(&mut frames, &mut verdicts, 1);
        let [frame] = frames;
        matches!(verdicts[..], [Verdict::Send(0)]).then_some(frame.bytes)
    }

    /// Runs `take` against a socket that `give` answers at, and returns what both say.
    fn hand(
        old: &Engine,
        new: &mut Engine,
        name: &str,
    ) -> (io::Result<()>, Result<Box<dyn Plane>, TakeError>) {
        let config = Config::parse(TEXT).expect("right");
        let folder = std::env::temp_dir().join(format!("hand-over-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("api");
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let mut plane = Loopback(UdpSocket::bind("127.0.0.1:0").expect("a port"));
        let both = std::thread::scope(|scope| {
            let taken = scope.spawn(|| {
                let taken = take(&path, &config, new)?;
                assert!(taken.lock.is_some());
                let address = taken.listeners[0].local_addr()?;
                assert!(std::net::TcpStream::connect(address).is_ok());
                if name != "dies" {
                    taken.predecessor.dismiss()?;
                }
                Ok(taken.plane)
            });
            let (stream, _) = listener.accept().expect("a process");
            let mut question = Vec::new();
            while question.last() != Some(&b'\n') {
                let mut byte = [0];
                (&stream).read_exact(&mut byte).expect("a question");
                question.extend(byte);
            }
            assert!(String::from_utf8_lossy(&question).contains("hand-over"));
            let lock = Lock::take(&folder.join("state")).expect("free");
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let given = give(&stream, old, &mut plane, Some(&lock), &[listener]);
            drop(stream);
            (given, taken.join().expect("no panic"))
        });
        std::fs::remove_dir_all(&folder).expect("removed");
        both
    }

    #[test]
    fn another_process_gets_descriptors_connections_drains_and_health() {
        let config = Config::parse(TEXT).expect("right");
        let (mut old, mut new) = (engine(&config, 0), engine(&config, 50));
        let first = pass(&mut old, datagram((101, 5000), (10, 80))).expect("sent");
        let backend = first[19];
        let answer = pass(&mut old, datagram((backend, 80), (101, 5000))).expect("sent");
        assert_eq!(answer[12..20], [192, 0, 2, 10, 192, 0, 2, 101]);
        pass(&mut old, datagram((102, 5000), (10, 80))).expect("half-open");
        assert_eq!(old.sizes(), (1, 1, 0));
        let services = &config.services[0];
        let (key, home) = ((services.address, 17), format!("192.0.2.{backend}:80"));
        let home: SocketAddr = home.parse().expect("an address");
        let other = services.backends.iter().find(|one| one.address != home);
        old.drain(home, true);
        old.set_health(&key, other.expect("two").address, None);

        let (given, taken) = hand(&old, &mut new, "whole");
        given.expect("given");
        let plane = taken.expect("taken");
        assert_eq!(
            (plane.interfaces(), plane.descriptors().len()),
            (vec!["eth0".into()], 1)
        );
        assert_eq!(new.sizes(), (1, 1, 0));
        // It stays where it was, and a new client finds neither backend: one is drained, one down.
        let next = pass(&mut new, datagram((101, 5000), (10, 80))).expect("sent");
        assert_eq!(next[19], backend);
        assert!(pass(&mut new, datagram((103, 5000), (10, 80))).is_none());
    }

    #[test]
    fn what_the_next_file_has_no_longer_is_not_handed_over() {
        let file = TEXT.replacen("11:80\"", "11:80\", drain = true", 1);
        let config = Config::parse(&file).expect("right");
        let (mut old, key) = (engine(&config, 0), (config.services[0].address, 17));
        let backend = config.services[0].backends[1].address;
        old.set_health(&key, backend, None);
        let states = |engine: &Engine| {
            let state = |one: &crate::engine::Backend| (one.is_up, one.is_drained);
            engine.backends().map(state).collect::<Vec<_>>()
        };
        assert_eq!(states(&old), [(true, true), (false, false)]);
        // Neither the check nor the drain.
        let unchecked = TEXT.replace("check = { kind = \"tcp\" }", "");
        let next = Config::parse(&unchecked).expect("right");
        let mut new = engine(&next, 50);
        hand(&old, &mut new, "less").0.expect("given");
        assert_eq!(states(&new), [(true, false); 2]);
        old.reload(&next.services, next.timeouts.clone());
        assert_eq!(states(&old), [(true, false); 2]);
        // The check that has ended was about to tell this.
        old.set_health(&key, backend, None);
        assert_eq!(states(&old), [(true, false); 2]);
    }

    #[test]
    fn a_successor_that_hangs_stops_frames_for_a_bounded_time_and_takes_nothing_later() {
        let config = Config::parse(TEXT).expect("right");
        let old = engine(&config, 0);
        let mut plane = Loopback(UdpSocket::bind("127.0.0.1:0").expect("a port"));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let begin = Instant::now();
        let error = give(&ours, &old, &mut plane, None, &[]).expect_err("it is silent");
        assert!(error.to_string().contains("too slow"), "{error}");
        assert!((STOP_MAX..STOP_MAX * 2).contains(&begin.elapsed()));
        drop(ours);
        let late = Predecessor(theirs).dismiss().expect_err("too late");
        assert!(late.to_string().contains("goes on"), "{late}");
        assert_eq!(stop_max(1 << 20).as_secs(), 4);
    }

    #[test]
    fn the_loser_of_two_take_overs_is_told_what_happened() {
        let config = Config::parse(TEXT).expect("right");
        let path = std::env::temp_dir().join(format!("gone-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        let mut new = engine(&config, 50);
        let taken = std::thread::scope(|scope| {
            let taken = scope.spawn(|| take(&path, &config, &mut new).map(drop));
            let (stream, _) = listener.accept().expect("a process");
            (&stream).read_exact(&mut [0; 1]).expect("a question");
            drop(stream);
            taken.join().expect("no panic")
        });
        std::fs::remove_file(&path).expect("removed");
        assert!(matches!(taken, Err(TakeError::Gone)), "{taken:?}");
    }

    #[test]
    fn a_successor_that_dies_is_an_error_to_the_one_that_goes_on() {
        let config = Config::parse(TEXT).expect("right");
        let (old, mut new) = (engine(&config, 0), engine(&config, 50));
        let (given, _) = hand(&old, &mut new, "dies");
        assert!(given.is_err());
    }
}
