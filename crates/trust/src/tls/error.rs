//! Errors of encrypted connections.

use thiserror::Error;

/// Reason why there is no encrypted connection, or none any more.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("the peer does not speak TLS (its first bytes are {first:02x?})")]
    NotTls { first: [u8; 5] },
    #[error(
        "the server has another key than the one in its address: its key was changed, or it is another server that \
         listens here"
    )]
    OtherKey,
    #[error("no encrypted connection: {0}")]
    Handshake(#[source] rustls::Error),
    #[error("the keys cannot be derived")]
    Keys,
    #[error("a record was changed on its way, or is none")]
    Record,
    #[error("the peer closed the connection")]
    Closed,
    #[error("the peer gave the connection up (alert {0})")]
    Alert(u8),
}
