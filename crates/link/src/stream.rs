//! A connected socket before it becomes a link: it carries the handshake's bytes.

use std::{
    fmt,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use rustix::net::{AddressFamily, SocketType, sockopt};

use outboard_trust::{ServerOwn, Shown, TlsState};
use outboard_wire::{
    limits::{PROOF_BYTES, RING_BYTES},
    network::Network,
};

use crate::{
    credentials::Credentials,
    emulated::End,
    error::Error,
    kind::LinkKind,
    link::Link,
    rdma::{self, RdmaOptions},
    shm,
    socket::{Ends, Socket},
    sys, tcp,
};

/// A connected socket that carries raw bytes, in either role.
///
/// A supervisor that accepted it passes it to a worker by inheritance: it turns it into an
/// [`OwnedFd`], most simply the worker's standard input, and the worker takes it over by
/// [`Stream::try_from`]. Over tcp the supervisor must then drop its own copy, or the client does
/// not learn of the worker's end; over shm the client watches the worker process itself.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    /// Shm, tcp or rdma.
    kind: LinkKind,
    /// Options for this side's adapter.
    rdma: RdmaOptions,
    /// A client's secrets for this server.
    credentials: Credentials,
    /// The ends of an encrypted connection that this process has opened.
    ends: Option<Ends>,
}

/// The other end of a [`Stream`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// The process that connected (or that listens). A process of another pid namespace has the pid
    /// 0.
    Process {
        pid: u32,
        uid: u32,
        gid: u32,
    },
    Host(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, uid, .. } => write!(f, "process {pid} of user {uid}"),
            Self::Host(address) => write!(f, "{address}"),
        }
    }
}

impl Stream {
    /// Returns the kind of link that [`Stream::into_link_client`] and [`Stream::into_link_server`]
    /// make.
    pub fn kind(&self) -> LinkKind {
        self.kind
    }

    /// Makes a tcp connection one that becomes a rdma link. The peer must do so too.
    pub fn with_rdma(self, options: RdmaOptions) -> Result<Self, Error> {
        match self.kind {
            LinkKind::Tcp | LinkKind::Rdma => Ok(Self {
                kind: LinkKind::Rdma,
                rdma: options,
                ..self
            }),
            _ => Err(Error::Misuse("rdma over a socket that is not tcp")),
        }
    }

    pub(crate) fn with_credentials(self, credentials: Credentials) -> Self {
        Self {
            credentials,
            ..self
        }
    }

    /// Encrypts a client's connection, if its address says so.
    pub(crate) fn secure(mut self, deadline: Instant) -> Result<Self, Error> {
        if let Some(tls) = &self.credentials.tls {
            self.ends = Some(self.socket.secure_client(tls, deadline)?);
        }
        Ok(self)
    }

    /// Encrypts a server's connection; its client may have any key or certificate, which is
    /// returned.
    pub fn secure_server(&mut self, own: &ServerOwn, deadline: Instant) -> Result<Shown, Error> {
        let ends = self.socket.secure_server(own, deadline)?;
        let peer = ends.peer.clone();
        self.ends = Some(ends);
        Ok(peer)
    }

    /// Returns bytes that only the two ends of an encrypted connection know; zeros for another.
    pub fn binding(&self) -> [u8; PROOF_BYTES] {
        let ends = self.ends.as_ref();
        ends.map_or([0; PROOF_BYTES], |ends| ends.binding)
    }

    /// Returns what another process needs to go on with an encrypted connection, besides the
    /// descriptor. An error if bytes have come that were not read.
    pub fn tls_state(&self) -> Result<Option<TlsState>, Error> {
        self.socket.tls_state()
    }

    /// Goes on with the encrypted connection that another process has opened.
    pub fn resume(mut self, state: Option<TlsState>) -> Result<Self, Error> {
        if let Some(state) = state {
            self.socket.resume(state)?;
        }
        Ok(self)
    }

    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Returns the options for the adapter, if this becomes a rdma link.
    pub fn rdma(&self) -> Option<&RdmaOptions> {
        (self.kind == LinkKind::Rdma).then_some(&self.rdma)
    }

    /// Returns the other end.
    pub fn peer(&self) -> Result<Peer, Error> {
        match self.kind {
            LinkKind::Shm => {
                let cred = sys::peer_credentials(self.socket.as_fd())
                    .map_err(Error::io("asking who connected"))?;
                Ok(Peer::Process {
                    pid: u32::try_from(cred.pid).unwrap_or(0),
                    uid: cred.uid,
                    gid: cred.gid,
                })
            }
            _ => rustix::net::getpeername(&self.socket)
                .map_err(Error::io("asking who connected"))?
                .and_then(|address| SocketAddr::try_from(address).ok())
                .map(Peer::Host)
                .ok_or(Error::Closed),
        }
    }

    /// Fills `bytes` from the socket, and reads nothing after them.
    pub fn read_exact_deadline(
        &mut self,
        bytes: &mut [u8],
        deadline: Instant,
    ) -> Result<(), Error> {
        self.socket.read_exact_deadline(bytes, deadline)
    }

    /// Sends all of `bytes`.
    pub fn write_all_deadline(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), Error> {
        self.socket.write_all_deadline(bytes, deadline)
    }

    /// Makes the server's side of the link; over shm it creates the rings and passes them on. Does
    /// not wait for the client, except over rdma, where the client's setup comes first.
    pub fn into_link_server(self) -> Result<Link, Error> {
        match self.kind {
            LinkKind::Shm => shm::Connection::serve(self.socket.into(), RING_BYTES).map(Link::Shm),
            LinkKind::Rdma => {
                let link = rdma::Connection::serve(self.socket, &self.rdma)?;
                Ok(Link::Rdma(Box::new(link)))
            }
            _ => {
                let (socket, records) = self.socket.into_parts()?;
                tcp::Connection::new(socket, records).map(Link::Tcp)
            }
        }
    }

    /// Like [`into_link_server`](Self::into_link_server), with an emulated `network` in between.
    pub fn into_emulated_server(self, network: &Network) -> Result<Link, Error> {
        self.into_link_server()?.emulated(network, End::Server)
    }

    /// Like [`into_link_client`](Self::into_link_client), with an emulated `network` in between.
    pub fn into_emulated_client(self, deadline: Instant, network: &Network) -> Result<Link, Error> {
        let link = self.into_link_client(deadline)?;
        link.emulated(network, End::Client)
    }

    /// Makes the client's side of the link; over shm and rdma it waits for the server's rings until
    /// `deadline`.
    pub fn into_link_client(self, deadline: Instant) -> Result<Link, Error> {
        match self.kind {
            LinkKind::Shm => shm::Connection::join(self.socket.into(), deadline).map(Link::Shm),
            LinkKind::Rdma => {
                let link = rdma::Connection::join(self.socket, &self.rdma, deadline)?;
                Ok(Link::Rdma(Box::new(link)))
            }
            _ => {
                let (socket, records) = self.socket.into_parts()?;
                let mut link = tcp::Connection::new(socket, records)?;
                link.use_credentials(self.credentials);
                Ok(Link::Tcp(link))
            }
        }
    }
}

/// Takes over an inherited descriptor. The worker received it without close-on-exec; it is
/// close-on-exec afterwards.
impl TryFrom<OwnedFd> for Stream {
    type Error = Error;

    fn try_from(socket: OwnedFd) -> Result<Self, Error> {
        const DOING: &str = "taking over an inherited socket";
        let domain = sockopt::socket_domain(&socket).map_err(Error::io(DOING))?;
        let kind = match domain {
            AddressFamily::UNIX => LinkKind::Shm,
            AddressFamily::INET | AddressFamily::INET6 => LinkKind::Tcp,
            _ => {
                return Err(Error::Misuse(
                    "the inherited socket is neither unix nor tcp",
                ));
            }
        };
        if sockopt::socket_type(&socket).map_err(Error::io(DOING))? != SocketType::STREAM {
            return Err(Error::Misuse("the inherited socket is not a stream"));
        }
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).map_err(Error::io(DOING))?;
        Ok(Self {
            socket: socket.into(),
            kind,
            rdma: RdmaOptions::default(),
            credentials: Credentials::default(),
            ends: None,
        })
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        stream.socket.into()
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
