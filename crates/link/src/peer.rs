//! Ways between two servers: connections to another server's port, which know the secret of one of
//! its sessions. They prove nothing else, and carry the data of copies.

use std::{
    net::{SocketAddr, TcpStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use outboard_trust::{Expected, Fingerprint, Identity, Own, peer_key};
use outboard_wire::handshake::{ClientHello, Purpose, RELEASE, SessionKey};

use crate::{
    Endpoint, Error, Link, Stream, credentials::Credentials, deadline::timed_out,
    listener::addresses_of, opening, opening::DialError,
};

/// Returns the addresses of a server's port. Looks its name up.
pub fn peer_addresses(endpoint: &Endpoint) -> Result<Vec<SocketAddr>, Error> {
    addresses_of(endpoint).map_err(Error::io("looking another server up"))
}

/// Connects to one of these addresses, and says nothing.
pub fn connect_peer(addresses: &[SocketAddr], deadline: Instant) -> Result<OwnedFd, Error> {
    let start = Instant::now();
    let mut last = Error::Closed;
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left < Duration::from_millis(1) {
            return Err(timed_out("connecting to another server", start));
        }
        match TcpStream::connect_timeout(address, left) {
            Ok(socket) => return Ok(socket.into()),
            Err(error) => last = Error::io("connecting to another server")(error),
        }
    }
    Err(last)
}

/// Opens a way over a connection to the server whose key is `pin`, if it encrypts, and whose
/// session has made this secret.
pub fn open_peer(
    stream: Stream,
    pin: Option<Fingerprint>,
    secret: &SessionKey,
    deadline: Instant,
) -> Result<Link, DialError> {
    let tls = match pin {
        None => None,
        Some(key) => {
            let own = Own::Key(Identity::random().map_err(Error::from)?);
            Some((own, Expected::Key(key)).into())
        }
    };
    let credentials = Credentials {
        tls,
        ..Credentials::default()
    };
    let mut stream = stream.with_credentials(credentials).secure(deadline)?;
    let hello = ClientHello {
        release: RELEASE.into(),
        purpose: Purpose::Peer {
            key: SessionKey::new(peer_key(secret.bytes())),
        },
        pid: std::process::id(),
        program: String::new(),
        emulation: None,
        is_rdma: false,
        token: None,
        grant: None,
        window: 0,
    };
    opening::open(&mut stream, &hello, deadline)?;
    Ok(stream.into_link_client(deadline)?)
}
