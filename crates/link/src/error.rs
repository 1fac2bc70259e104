//! What can go wrong on a link, and whose fault it is.

use std::io;

/// An error of a link. After any of them but [`Error::Unsupported`], [`Error::Misuse`], [`Error::FrameTooLarge`] and
/// [`Error::TimedOut`] the link is of no further use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer closed the link or died, or this side closed it. Everything it sent was delivered.
    #[error("the link is closed")]
    Closed,

    /// The peer went away in the middle of a frame.
    #[error("the peer went away in mid-frame, {have} of {want} bytes arrived")]
    Truncated { have: usize, want: usize },

    /// The peer's host stopped answering: it lost power or network.
    #[error("the peer's host has not answered for {ms} ms")]
    Vanished { ms: u64 },

    /// The peer broke a rule of the link.
    #[error("the peer misbehaved: {what} (it sent {got}, allowed is {allowed})")]
    PeerMisbehaved {
        what: &'static str,
        got: u64,
        allowed: u64,
    },

    /// Nothing happened in the time allowed.
    #[error("{what} did not finish within {ms} ms")]
    TimedOut { what: &'static str, ms: u64 },

    /// The caller's frame is longer than the link carries.
    #[error("a frame of {len} bytes exceeds the limit of {max} bytes")]
    FrameTooLarge { len: usize, max: usize },

    /// The caller broke a rule of this interface.
    #[error("wrong use of the link: {0}")]
    Misuse(&'static str),

    /// This kind of link cannot do it.
    #[error("{what} is not possible over a {kind} link")]
    Unsupported {
        what: &'static str,
        kind: &'static str,
    },

    /// Somebody listens there already.
    #[error("{endpoint} is in use by another server")]
    AddressInUse { endpoint: String },

    /// Nobody listens there.
    #[error("no server at {endpoint}: {source}")]
    NoServer { endpoint: String, source: io::Error },

    /// Something that is not a socket lies at the path of a shm endpoint.
    #[error("{path} exists and is not a socket; remove it or choose another path")]
    NotASocket { path: String },

    /// RDMA lacks something, or its device refused.
    #[cfg(not(loom))]
    #[error(transparent)]
    Rdma(Box<crate::rdma::RdmaError>),

    /// The operating system refused.
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: io::Error,
    },
}

#[cfg(not(loom))]
impl From<crate::rdma::RdmaError> for Error {
    /// In a box: an error that is long costs every message some instructions.
    fn from(error: crate::rdma::RdmaError) -> Self {
        Self::Rdma(Box::new(error))
    }
}

impl Error {
    /// What RDMA lacks, or its device refused.
    #[cfg(not(loom))]
    pub fn rdma(&self) -> Option<&crate::rdma::RdmaError> {
        match self {
            Self::Rdma(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the peer is gone, for whatever reason.
    pub fn is_disconnect(&self) -> bool {
        matches!(
            self,
            Self::Closed | Self::Truncated { .. } | Self::Vanished { .. }
        )
    }

    /// For `map_err`: an error of the operating system, met while `doing` something. What a broken connection says is
    /// turned into what it means.
    pub(crate) fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |error| {
            let source = error.into();
            match source.kind() {
                io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected => Self::Closed,
                io::ErrorKind::TimedOut
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable => Self::Vanished {
                    ms: outboard_wire::limits::PEER_VANISHED_MS_MAX,
                },
                _ => Self::Io { doing, source },
            }
        }
    }
}
