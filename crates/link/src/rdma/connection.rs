//! A rdma link: two rings, one per direction, each with a reliable connection of its own, so that
//! the halves of a link never share a queue.

use std::time::{Duration, Instant};

use outboard_wire::limits::HANDSHAKE_MS_MAX;

use super::{
    RdmaOptions,
    prepared::{Prepared, TO_CLIENT, TO_SERVER},
    receiver::Receiver,
    sender::Sender,
    setup,
};
use crate::{Error, deadline::deadline_after, socket::Socket};

/// An established rdma link.
pub struct Connection {
    sender: Box<Sender>,
    receiver: Box<Receiver>,
}

impl Connection {
    /// Sets up the server's side, over a tcp connection's `socket` after its handshake.
    pub(crate) fn serve(mut socket: Socket, options: &RdmaOptions) -> Result<Self, Error> {
        let deadline = deadline_after(Duration::from_millis(HANDSHAKE_MS_MAX));
        let theirs = setup::receive(&mut socket, deadline)?;
        let prepared = Prepared::new(&socket, options, Some(&theirs))
            .and_then(|prepared| prepared.connect(&theirs).map(|()| prepared));
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                // The peer may or may not receive the reason.
                let _ = setup::send(&mut socket, Err(&error.to_string()), deadline);
                return Err(error);
            }
        };
        setup::send(&mut socket, Ok(&prepared.setup()), deadline)?;
        setup::receive_ready(&mut socket, deadline)?;
        let (sender, receiver) = prepared.finish(socket, &theirs, TO_CLIENT)?;
        Ok(Self { sender, receiver })
    }

    /// Sets up the client's side.
    pub(crate) fn join(
        mut socket: Socket,
        options: &RdmaOptions,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let prepared = Prepared::new(&socket, options, None)?;
        setup::send(&mut socket, Ok(&prepared.setup()), deadline)?;
        let theirs = setup::receive(&mut socket, deadline)?;
        prepared.connect(&theirs)?;
        setup::send_ready(&mut socket, deadline)?;
        let (sender, receiver) = prepared.finish(socket, &theirs, TO_SERVER)?;
        Ok(Self { sender, receiver })
    }

    pub(crate) fn split(self) -> (Box<Sender>, Box<Receiver>) {
        (self.sender, self.receiver)
    }
}
