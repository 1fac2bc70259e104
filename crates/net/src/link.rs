//! A tcp connection between queues of two processes. It is neither authenticated nor encrypted:
//! both processes are on one machine.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread::{Builder, JoinHandle, sleep},
    time::{Duration, Instant},
};

use crate::{
    adapter::{HEADER_BYTES, Header, Peer},
    error::Error,
    nic::{Nic, Shared},
    queue::Queue,
};

/// First bytes of a connection; the last is the version.
const MAGIC: [u8; 8] = *b"OBNET\0\0\x01";
const HELLO_BYTES: usize = 40;
const RETRY: Duration = Duration::from_millis(5);
/// Sleeps of a thread that has nothing to send, or no room.
const IDLE_MIN: Duration = Duration::from_micros(20);
const IDLE_MAX: Duration = Duration::from_millis(1);

/// Registered memory that a process offers to the other: `struct outboard_net_window`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Window {
    pub address: u64,
    pub bytes: u64,
    pub key: u32,
    pub reserved: u32,
}

/// A queue's connection, which ends with it, or with the queue's reset.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Link {
    /// Meets the other process at a loopback address: one of them listens. Connects the queue to
    /// the other's, and returns the memory that it offers.
    pub fn meet(
        nic: &Nic,
        queue: &Queue,
        address: &str,
        listens: bool,
        timeout: Duration,
        mine: Window,
    ) -> Result<(Link, Window), Error> {
        let failed = |why: &dyn ToString| Error::Meet {
            address: address.into(),
            why: why.to_string(),
        };
        let socket: SocketAddr = address.parse().map_err(|error| failed(&error))?;
        if !socket.ip().is_loopback() {
            return Err(failed(&"queues meet at loopback addresses alone"));
        }
        let deadline = Instant::now() + timeout;
        let mut stream = reach(socket, listens, deadline).map_err(|error| failed(&error))?;
        let qpn = queue.export().qpn;
        let epoch = nic.with(|adapter| adapter.end_of(qpn))?.epoch;
        let hello = hello(qpn, epoch, mine);
        let bytes = exchange(&mut stream, &hello, deadline).map_err(|error| failed(&error))?;
        let (peer, theirs) = parse(&bytes).ok_or(Error::Peer("no hello of this version"))?;
        nic.with(|adapter| adapter.connect_remote(qpn, peer))?;
        queue.connected();
        let link = Link::start(nic.shared(), stream, qpn, epoch).map_err(|error| failed(&error))?;
        Ok((link, theirs))
    }

    fn start(shared: Shared, stream: TcpStream, qpn: u32, epoch: u32) -> std::io::Result<Link> {
        let (reader, writer) = (stream.try_clone()?, stream.try_clone()?);
        let mut link = Link {
            stream,
            threads: Vec::new(),
        };
        let receiving = shared.clone();
        let names = ["outboard-net-in", "outboard-net-out"];
        let [incoming, outgoing] = names.map(|name| Builder::new().name(name.into()));
        link.threads.push(incoming.spawn(move || {
            let _ = receive(&receiving, &reader, qpn, epoch);
            let _ = reader.shutdown(Shutdown::Both);
            receiving.with(|adapter| adapter.link_down(qpn, epoch));
        })?);
        link.threads.push(outgoing.spawn(move || {
            let _ = send(&shared, &writer, qpn, epoch);
            let _ = writer.shutdown(Shutdown::Both);
        })?);
        Ok(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn late() -> std::io::Error {
    ErrorKind::TimedOut.into()
}

fn reach(socket: SocketAddr, listens: bool, deadline: Instant) -> std::io::Result<TcpStream> {
    let listener = listens.then(|| TcpListener::bind(socket)).transpose()?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
    }
    loop {
        let reached = match &listener {
            Some(listener) => listener.accept().map(|(stream, _)| stream),
            None => TcpStream::connect(socket),
        };
        match reached {
            Ok(stream) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::ConnectionRefused | ErrorKind::Interrupted
                ) =>
            {
                return Err(error);
            }
            Err(_) if Instant::now() > deadline => return Err(late()),
            Err(_) => sleep(RETRY),
        }
    }
}

fn hello(qpn: u32, epoch: u32, window: Window) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&qpn.to_le_bytes());
    bytes[12..16].copy_from_slice(&epoch.to_le_bytes());
    bytes[16..24].copy_from_slice(&window.address.to_le_bytes());
    bytes[24..32].copy_from_slice(&window.bytes.to_le_bytes());
    bytes[32..36].copy_from_slice(&window.key.to_le_bytes());
    bytes
}

fn parse(bytes: &[u8; HELLO_BYTES]) -> Option<(Peer, Window)> {
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
    Some((peer, window))
}

/// Sends a hello, and waits for the other's.
fn exchange(
    stream: &mut TcpStream,
    hello: &[u8; HELLO_BYTES],
    deadline: Instant,
) -> std::io::Result<[u8; HELLO_BYTES]> {
    stream.write_all(hello)?;
    let (mut bytes, mut got) = ([0; HELLO_BYTES], 0);
    while got < HELLO_BYTES {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => got += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(late()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.set_read_timeout(None)?;
    Ok(bytes)
}

/// Gives the peer's frames to the adapter, one after the other, until the connection is over.
fn receive(shared: &Shared, mut stream: &TcpStream, qpn: u32, epoch: u32) -> Result<(), Error> {
    let over = |_| Error::Peer("no more");
    let mut data = Vec::new();
    loop {
        let mut bytes = [0; HEADER_BYTES];
        stream.read_exact(&mut bytes).map_err(over)?;
        let header = Header::parse(&bytes).ok_or(Error::Peer("a message that is too long"))?;
        data.resize(header.data_bytes as usize, 0);
        stream.read_exact(&mut data).map_err(over)?;
        while !shared.with(|adapter| adapter.has_room(qpn, epoch))? {
            sleep(IDLE_MAX);
        }
        shared.with(|adapter| adapter.incoming(qpn, epoch, &header, &data))?;
    }
}

fn send(shared: &Shared, mut stream: &TcpStream, qpn: u32, epoch: u32) -> Result<(), Error> {
    let mut idle = IDLE_MIN;
    loop {
        match shared.with(|adapter| adapter.outgoing(qpn, epoch))? {
            Some(frame) => {
                idle = IDLE_MIN;
                let over = |_| Error::Peer("no more");
                stream.write_all(&frame).map_err(over)?;
            }
            None => {
                sleep(idle);
                idle = (idle * 2).min(IDLE_MAX);
            }
        }
    }
}
