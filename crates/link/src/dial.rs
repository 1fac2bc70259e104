//! Opens a session at an address: connects, sends the hello, reads the welcome.

use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    time::{Duration, Instant},
};

use outboard_wire::{
    handshake::{self, ClientHello, HandshakeError, PREAMBLE_BYTES, Preamble, ServerWelcome},
    limits,
};

use crate::{Endpoint, Error, Link, Stream, connect, fill_standard_descriptors};

/// Reason why no session came about.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error(transparent)]
    Link(#[from] Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

/// Opens a session within `timeout`. Returns also the number of the link's socket: a forked child
/// must close its copy, so that the server can notice the parent's end.
pub fn dial(
    endpoint: &Endpoint,
    hello: &ClientHello,
    timeout: Duration,
) -> Result<(Link, RawFd, ServerWelcome), DialError> {
    let deadline = Instant::now() + timeout;
    fill_standard_descriptors();
    let mut stream = connect(
        endpoint,
        timeout.min(Duration::from_millis(limits::HANDSHAKE_MS_MAX)),
    )?;
    let hello = ClientHello {
        is_rdma: stream.rdma().is_some(),
        ..hello.clone()
    };
    stream.write_all_deadline(&handshake::encode_hello(&hello)?, deadline)?;
    let welcome = read_welcome(&mut stream, deadline).map_err(|error| match error {
        DialError::Link(Error::TimedOut { ms, .. }) => Error::Silent {
            endpoint: endpoint.to_string(),
            ms,
        }
        .into(),
        other => other,
    })?;
    let socket = stream.as_fd().as_raw_fd();
    let link = match &hello.emulation {
        None => stream.into_link_client(deadline)?,
        Some(emulation) => stream.into_emulated_client(deadline, &emulation.network)?,
    };
    Ok((link, socket, welcome))
}

/// Reads the server's answer to a hello.
pub(crate) fn read_welcome(
    stream: &mut Stream,
    deadline: Instant,
) -> Result<ServerWelcome, DialError> {
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact_deadline(&mut preamble, deadline)?;
    let preamble = Preamble::decode(&preamble)?;
    // A refusal says more than a version that differs, so it is read first.
    let mut document = vec![0; preamble.document_bytes];
    if !preamble.refused {
        preamble.check_version()?;
    }
    stream.read_exact_deadline(&mut document, deadline)?;
    Ok(handshake::decode_welcome(&preamble, &document)?)
}
