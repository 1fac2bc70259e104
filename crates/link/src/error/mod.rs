//! Errors of a link, each of which says whose fault it is.

#[cfg(not(loom))]
mod rdma;

use std::io;

#[cfg(not(loom))]
pub use self::rdma::RdmaError;
#[cfg(not(loom))]
use crate::kind::LinkKind;

/// An error of a link. The link is unusable after any error except [`Error::Unsupported`],
/// [`Error::Misuse`], [`Error::FrameTooLarge`] and [`Error::TimedOut`].
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

    /// A descriptor that another process has opened cannot be listened on.
    #[error("{0}")]
    NoListener(&'static str),

    /// This kind of link cannot do it.
    #[error("{what} is not possible over a {kind} link")]
    Unsupported {
        what: &'static str,
        kind: &'static str,
    },

    /// The server's backlog is full.
    #[error(
        "{endpoint} has had no room for another connection for {ms} ms: too many clients wait there; try again later"
    )]
    Crowded { endpoint: String, ms: u64 },

    /// A connection came about, and nothing was said on it.
    #[error(
        "{endpoint} took the connection but has said nothing for {ms} ms: it is busy with other clients, stopped, or no Outboard server"
    )]
    Silent { endpoint: String, ms: u64 },

    /// Another server listens there already.
    #[error("{endpoint} is in use by another server")]
    AddressInUse { endpoint: String },

    /// No server listens there.
    #[error("no server at {endpoint}: {source}")]
    NoServer { endpoint: String, source: io::Error },

    /// Another user's process listens there.
    #[error(
        "{endpoint} is served by user {uid}, who is neither you nor root; if you trust that user with your programs' data, set {variable}={uid}"
    )]
    Stranger {
        endpoint: String,
        uid: u32,
        variable: &'static str,
    },

    /// The path of a shm endpoint exists and is not a socket.
    #[error("{path} exists and is not a socket; remove it or choose another path")]
    NotASocket { path: String },

    /// RDMA lacks something, or its device refused a request.
    #[cfg(not(loom))]
    #[error(transparent)]
    Rdma(Box<RdmaError>),

    /// The token for a server cannot be used.
    #[error(transparent)]
    Token(Box<outboard_trust::TokenError>),
    #[error("the file of grants (OUTBOARD_GRANT_FILE): {0}")]
    Grants(String),

    /// The key for encrypted connections cannot be used.
    #[error(transparent)]
    Key(Box<outboard_trust::IdentityError>),

    /// There is no encrypted connection, or none any more.
    #[error(transparent)]
    Tls(Box<outboard_trust::TlsError>),

    /// A file of certificates cannot be used.
    #[error(transparent)]
    Certificates(Box<outboard_trust::CertificateFileError>),
    #[error("of OUTBOARD_CERTIFICATE and OUTBOARD_CERTIFICATE_KEY one alone is set")]
    HalfCertificate,

    /// The operating system refused a request.
    #[error("{doing}: {source}")]
    Io {
        doing: &'static str,
        source: io::Error,
    },
}

impl Error {
    /// Returns the RDMA error, if it is one.
    #[cfg(not(loom))]
    pub fn rdma(&self) -> Option<&RdmaError> {
        match self {
            Self::Rdma(error) => Some(error),
            _ => None,
        }
    }

    /// Returns true if the peer is gone, for whatever reason.
    pub fn is_disconnect(&self) -> bool {
        matches!(
            self,
            Self::Closed | Self::Truncated { .. } | Self::Vanished { .. }
        )
    }

    /// Returns the error of a caller that needs a capability which a link of this kind lacks.
    #[cfg(not(loom))]
    pub fn lacks(what: &'static str, kind: LinkKind) -> Self {
        let kind = kind.name();
        Self::Unsupported { what, kind }
    }

    /// Converts an error of the operating system, met while `doing` something, for `map_err`.
    /// Errors of a broken connection become [`Error::Closed`] or [`Error::Vanished`].
    pub fn io<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
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

impl From<outboard_trust::TlsError> for Error {
    fn from(error: outboard_trust::TlsError) -> Self {
        match error {
            outboard_trust::TlsError::Closed => Self::Closed,
            error => Self::Tls(Box::new(error)),
        }
    }
}

impl From<outboard_trust::TokenError> for Error {
    fn from(error: outboard_trust::TokenError) -> Self {
        Self::Token(Box::new(error))
    }
}

impl From<outboard_trust::CertificateFileError> for Error {
    fn from(error: outboard_trust::CertificateFileError) -> Self {
        Self::Certificates(Box::new(error))
    }
}

impl From<outboard_trust::IdentityError> for Error {
    fn from(error: outboard_trust::IdentityError) -> Self {
        Self::Key(Box::new(error))
    }
}
