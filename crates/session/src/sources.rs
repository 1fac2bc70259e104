//! The sources of a session's further connections: its server, which has the sockets.

use std::time::Instant;

use outboard_link::{Endpoint, Error, Stream};
use outboard_wire::handshake::SessionKey;

/// Brings a session the connections that presented its key.
pub trait DataConnectionSource: Send + Sync {
    fn key(&self) -> SessionKey;

    /// Returns the next connection, whose hello has been read. Waits for it until `deadline`.
    fn next(&self, deadline: Instant) -> Result<Stream, Error>;

    /// Takes no further connections, and ends a wait for one.
    fn close(&self);

    /// Returns options for the RDMA device that endpoints of `net.h` may use, if there is one.
    fn net_device(&self) -> Option<String> {
        None
    }

    /// Returns the way to other servers, if this one makes copies to and from them.
    fn peers(&self) -> Option<&dyn PeerSource> {
        None
    }
}

/// Finds other servers, and is found by them, on behalf of a session.
pub trait PeerSource: Send + Sync {
    /// Makes a secret, and has the server pass on a connection that knows it, once.
    fn offer(&self) -> Result<SessionKey, String>;

    /// Returns the connection that knows this secret. Waits for it until `deadline`.
    fn accept(&self, secret: &SessionKey, deadline: Instant) -> Result<Stream, Error>;

    /// Returns a connection to the port of this address, on which nothing has been said.
    fn dial(&self, address: &Endpoint, deadline: Instant) -> Result<Stream, String>;

    /// Ends all waits.
    fn end(&self);
}
