//! Streams between adapters of two servers' sessions, which travel by the ways between servers
//! ([`peers`](crate::peers)): a local socket's other end is the adapter's.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outboard_link::{Closer, Endpoint, Link, Receiver, Sender, Wait, open_peer};
use outboard_net::remote::Carrier;
use outboard_wire::{
    handshake::SessionKey,
    limits::{HANDSHAKE_MS_MAX, PEER_ADDRESS_BYTES_MAX, PEER_OFFER_MS_MAX},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::debug;

use crate::{
    limits::{NET_PARTING_MS_MAX, NET_THREADS_MAX},
    peers::incoming,
    sources::{DataConnectionSource, PeerSource},
};

/// Bytes of one frame.
const FRAME_BYTES: usize = 64 << 10;

pub(super) struct Streams {
    source: Option<Arc<dyn DataConnectionSource>>,
    streams: Mutex<Vec<Stream>>,
}

/// A stream and the threads that carry it.
struct Stream {
    closer: Closer,
    /// This side of the pair, which hangs up when the adapter has closed its own.
    inner: UnixStream,
    left_at: Option<Instant>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    fn is_finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Returns true if the adapter has left, and what it wrote had its time to be sent.
    fn is_late(&mut self) -> bool {
        let mut fds = [PollFd::new(&self.inner, PollFlags::empty())];
        let now = Timespec::default();
        if poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP) {
            let left_at = self.left_at.get_or_insert_with(Instant::now);
            return left_at.elapsed() > Duration::from_millis(NET_PARTING_MS_MAX);
        }
        false
    }
}

/// Ends both threads, whether the other server reads or not.
impl Drop for Stream {
    fn drop(&mut self) {
        self.closer.close();
        let _ = self.inner.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}

impl Streams {
    pub(super) fn new(source: Option<Arc<dyn DataConnectionSource>>) -> Streams {
        Streams {
            source,
            streams: Mutex::default(),
        }
    }

    fn peers(&self) -> Result<&dyn PeerSource, String> {
        let peers = self.source.as_ref().and_then(|source| source.peers());
        peers.ok_or_else(|| {
            "the server connects to no other: outboard serve --peer-copies says to which it may"
                .into()
        })
    }

    /// Has two threads carry a stream's bytes over a link. Returns its other end.
    fn carried(&self, link: Link) -> Result<UnixStream, String> {
        let said = |error: std::io::Error| error.to_string();
        let (adapter, inner) = UnixStream::pair().map_err(said)?;
        let [from, to] = [
            inner.try_clone().map_err(said)?,
            inner.try_clone().map_err(said)?,
        ];
        let (sender, receiver) = link.split();
        self.end_late();
        let mut streams = self.lock();
        if streams.len() >= NET_THREADS_MAX {
            return Err("too many queues of one session that meet others (NET_THREADS_MAX)".into());
        }
        let mut stream = Stream {
            closer: sender.closer(),
            inner,
            left_at: None,
            threads: Vec::new(),
        };
        let named = |name: &str| thread::Builder::new().name(name.into());
        let outgoing = named("outboard-net-o").spawn(move || send(sender, from));
        stream.threads.push(outgoing.map_err(said)?);
        let incoming = named("outboard-net-i").spawn(move || receive(receiver, to));
        stream.threads.push(incoming.map_err(said)?);
        streams.push(stream);
        Ok(adapter)
    }

    /// Ends the streams that adapters have left for some time, of other servers that do not read.
    fn end_late(&self) {
        self.lock()
            .retain_mut(|stream| !stream.is_finished() && !stream.is_late());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends what the adapter writes, until it ends.
fn send(mut sender: Sender, mut stream: UnixStream) {
    let mut bytes = vec![0; FRAME_BYTES];
    loop {
        let count = match stream.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        let sent = sender
            .send(&[&bytes[..count]])
            .and_then(|()| sender.flush());
        if let Err(error) = sent {
            debug!(%error, "a stream to another server's adapter ends");
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
    sender.closer().close();
}

/// Gives the adapter what comes, until the other server ends.
fn receive(mut receiver: Receiver, mut stream: UnixStream) {
    while let Ok(frame) = receiver.recv(Wait::Forever) {
        if stream.write_all(frame.unwrap_or_default()).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

impl Carrier for Streams {
    fn offer(&self) -> Result<[u8; 32], String> {
        Ok(*self.peers()?.offer()?.bytes())
    }

    fn accept(&self, secret: [u8; 32], timeout: Duration) -> Result<UnixStream, String> {
        let within = timeout.min(Duration::from_millis(PEER_OFFER_MS_MAX));
        let secret = SessionKey::new(secret);
        let (link, _) = incoming::welcomed(self.peers()?, &secret, Instant::now() + within)?;
        self.carried(link)
    }

    fn dial(
        &self,
        address: &str,
        secret: [u8; 32],
        timeout: Duration,
    ) -> Result<UnixStream, String> {
        let named = Some(address).filter(|text| text.len() <= PEER_ADDRESS_BYTES_MAX);
        let named = named.and_then(|text| text.parse::<Endpoint>().ok());
        let endpoint = named.filter(Endpoint::is_for_peers);
        let endpoint = endpoint.ok_or("no address of another server")?;
        let within = timeout.min(Duration::from_millis(PEER_OFFER_MS_MAX));
        let stream = self.peers()?.dial(&endpoint, Instant::now() + within)?;
        let deadline = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX);
        let link = open_peer(stream, endpoint.pin(), &SessionKey::new(secret), deadline);
        self.carried(link.map_err(|error| error.to_string())?)
    }
}

/// Ends all threads. Adapters have left: what they wrote still has some time to be sent.
impl Drop for Streams {
    fn drop(&mut self) {
        let streams = self.streams.get_mut();
        let streams = streams.unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + Duration::from_millis(NET_PARTING_MS_MAX);
        while !streams.iter().all(Stream::is_finished) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        streams.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        net::{Ipv4Addr, TcpListener, TcpStream},
        os::fd::OwnedFd,
        sync::mpsc::channel,
    };

    use outboard_link::Stream as Connection;

    use super::*;

    /// Returns a link, and the socket of the other server.
    fn link() -> (Link, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let here = OwnedFd::from(listener.accept().unwrap().0);
        let link = Connection::try_from(here).unwrap().into_link_server();
        (link.unwrap(), there)
    }

    /// Returns an adapter's end that has no more room, since the other server does not read.
    fn full(streams: &Streams, link: Link) -> UnixStream {
        let mut adapter = streams.carried(link).unwrap();
        let timeout = Duration::from_millis(200);
        adapter.set_write_timeout(Some(timeout)).unwrap();
        while adapter.write(&[1; FRAME_BYTES]).is_ok() {}
        adapter
    }

    #[test]
    fn streams_end_though_the_other_server_does_not_read() {
        let streams = Streams::new(None);
        let (first, second) = (link(), link());
        let left = full(&streams, first.0);
        left.shutdown(Shutdown::Both).unwrap();
        streams.end_late();
        assert_eq!(streams.lock().len(), 1);
        thread::sleep(Duration::from_millis(NET_PARTING_MS_MAX + 50));
        streams.end_late();
        assert_eq!(streams.lock().len(), 0, "of one endpoint");

        let adapter = full(&streams, second.0);
        let (done, is_done) = channel();
        thread::spawn(move || {
            drop((adapter, streams));
            done.send(()).unwrap();
        });
        let waited = is_done.recv_timeout(Duration::from_secs(20));
        assert!(waited.is_ok(), "of a session");
        drop((first.1, second.1));
    }
}
