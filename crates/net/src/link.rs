//! A tcp connection between queues of two processes. It is neither authenticated nor encrypted:
//! both processes are on one machine.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    thread::{Builder, JoinHandle, sleep},
    time::{Duration, Instant},
};

use crate::{
    adapter::{HEADER_BYTES, Header, Peer},
    error::Error,
    meet::{self, Hello, Window},
    nic::{Nic, Shared},
    queue::Queue,
};

/// Sleeps of a thread that has nothing to send, or no room.
const IDLE_MIN: Duration = Duration::from_micros(20);
const IDLE_MAX: Duration = Duration::from_millis(1);

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
        let qpn = queue.export().qpn;
        let epoch = nic.with(|adapter| adapter.end_of(qpn))?.epoch;
        let mine = Hello {
            peer: Peer { qpn, epoch },
            window: mine,
        };
        let met = match listens {
            true => meet::listen(socket, mine, deadline),
            false => meet::connect(socket, mine, deadline),
        };
        let (stream, theirs) = met.map_err(|error| failed(&error))?;
        nic.with(|adapter| adapter.connect_remote(qpn, theirs.peer))?;
        queue.connected();
        let link = Link::start(nic.shared(), stream, qpn, epoch).map_err(|error| failed(&error))?;
        Ok((link, theirs.window))
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
