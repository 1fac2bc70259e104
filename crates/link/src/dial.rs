//! Opens a session at an address: connects, sends the hello, proves what there is to prove, and
//! reads the welcome.

use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    time::{Duration, Instant},
};

use outboard_wire::{
    handshake::{ClientHello, ServerWelcome},
    limits,
};

use crate::{
    Endpoint, Error, Link, Stream, connect, fill_standard_descriptors, opening, opening::DialError,
};

/// Opens a session within `timeout`. Returns also the number of the link's socket: a forked child
/// must close its copy, so that the server can notice the parent's end.
pub fn dial(
    endpoint: &Endpoint,
    hello: &ClientHello,
    timeout: Duration,
) -> Result<(Link, RawFd, ServerWelcome), DialError> {
    let deadline = Instant::now() + timeout;
    let (stream, welcome) = greet(endpoint, hello, timeout)?;
    let socket = stream.as_fd().as_raw_fd();
    let link = match &hello.emulation {
        None => stream.into_link_client(deadline)?,
        Some(emulation) => stream.into_emulated_client(deadline, &emulation.network)?,
    };
    Ok((link, socket, welcome))
}

/// Connects, and exchanges hello and welcome within `timeout`. Returns the connection before it
/// becomes a link.
pub fn greet(
    endpoint: &Endpoint,
    hello: &ClientHello,
    timeout: Duration,
) -> Result<(Stream, ServerWelcome), DialError> {
    let deadline = Instant::now() + timeout;
    fill_standard_descriptors();
    let mut stream = connect(
        endpoint,
        timeout.min(Duration::from_millis(limits::HANDSHAKE_MS_MAX)),
    )?;
    let welcome = opening::open(&mut stream, hello, deadline).map_err(|error| match error {
        DialError::Link(Error::TimedOut { ms, .. }) => Error::Silent {
            endpoint: endpoint.to_string(),
            ms,
        }
        .into(),
        other => other,
    })?;
    Ok((stream, welcome))
}
