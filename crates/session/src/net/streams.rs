//! Streams between adapters of two servers' sessions, which travel by the ways between servers
//! ([`peers`](crate::peers)): a local socket's other end is the adapter's.

use std::{
    io::{Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, Link, Receiver, Sender, Wait, open_peer};
use outboard_net::remote::Carrier;
use outboard_wire::{
    handshake::SessionKey,
    limits::{HANDSHAKE_MS_MAX, PEER_ADDRESS_BYTES_MAX, PEER_OFFER_MS_MAX},
};
use tracing::debug;

use crate::{
    limits::NET_THREADS_MAX,
    peers::incoming,
    sources::{DataConnectionSource, PeerSource},
};

/// Bytes of one frame.
const FRAME_BYTES: usize = 64 << 10;

pub(super) struct Streams {
    source: Option<Arc<dyn DataConnectionSource>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Streams {
    pub(super) fn new(source: Option<Arc<dyn DataConnectionSource>>) -> Streams {
        Streams {
            source,
            threads: Mutex::default(),
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
        let (adapter, stream) = UnixStream::pair().map_err(said)?;
        let other = stream.try_clone().map_err(said)?;
        let (sender, receiver) = link.split();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        if threads.len() + 2 > 2 * NET_THREADS_MAX {
            return Err("too many queues of one session that meet others (NET_THREADS_MAX)".into());
        }
        let named = |name: &str| thread::Builder::new().name(name.into());
        let outgoing = named("outboard-net-o").spawn(move || send(sender, stream));
        threads.push(outgoing.map_err(said)?);
        let incoming = named("outboard-net-i").spawn(move || receive(receiver, other));
        threads.push(incoming.map_err(said)?);
        Ok(adapter)
    }
}

/// Sends what the adapter writes, until it ends.
fn send(mut sender: Sender, mut stream: UnixStream) {
    let mut bytes = vec![0; FRAME_BYTES];
    loop {
        let count = match stream.read(&mut bytes) {
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

/// Ends all threads: their streams' other ends are closed.
impl Drop for Streams {
    fn drop(&mut self) {
        let threads = self.threads.get_mut();
        for thread in threads.unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A thread that panicked has reported it.
            let _ = thread.join();
        }
    }
}
