//! The server's half of the handshake.

use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

use outboard_device::{Device, Failure};
use outboard_link::Stream;
use outboard_wire::handshake::{
    ClientHello, HandshakeError, PREAMBLE_BYTES, Preamble, Purpose, RELEASE, ServerWelcome,
    decode_hello, encode_refusal, encode_welcome,
};
use thiserror::Error;

use super::limits;

/// Why a connection did not become a session.
#[derive(Debug, Error)]
pub enum Error {
    #[error(transparent)]
    Link(#[from] outboard_link::Error),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the device cannot be used: {0}")]
    Device(#[from] Failure),
    /// The reason as it is sent to the client.
    #[error("{0}")]
    Refused(String),
}

/// A client's first message.
#[derive(Debug)]
pub struct Hello {
    pub hello: ClientHello,
    /// The message as it was sent, for proofs.
    pub bytes: Vec<u8>,
}

/// Reads the client's first message. A client of another release is told so before the error
/// returns.
pub fn read_hello(stream: &mut Stream, deadline: Instant) -> Result<Hello, Error> {
    let mut bytes = [0; PREAMBLE_BYTES];
    stream.read_exact_deadline(&mut bytes, deadline)?;
    let hello = read_document(stream, &bytes, deadline);
    match &hello {
        // A peer that is not Outboard would not understand an answer.
        Err(Error::Handshake(HandshakeError::NotOutboard { .. }) | Error::Link(_)) => {}
        Err(error) => refuse(stream, &from_the_client(error)),
        Ok(_) => {}
    }
    hello
}

fn read_document(
    stream: &mut Stream,
    preamble: &[u8; PREAMBLE_BYTES],
    deadline: Instant,
) -> Result<Hello, Error> {
    let mut bytes = preamble.to_vec();
    let preamble = Preamble::decode(preamble)?;
    preamble.check_version()?;
    let mut document = vec![0; preamble.document_bytes];
    stream.read_exact_deadline(&mut document, deadline)?;
    // Checked before the document is decoded: another release may encode it differently.
    preamble.check(&document)?;
    bytes.extend(&document);
    Ok(Hello {
        hello: decode_hello(&document)?,
        bytes,
    })
}

/// Words the error as it is shown to the client.
fn from_the_client(error: &Error) -> String {
    match error {
        Error::Handshake(error) => error.clone().from_the_other_side().to_string(),
        other => other.to_string(),
    }
}

/// Tells a client why it gets no session, and waits briefly for it to read that.
pub fn refuse(stream: &mut Stream, why: &str) {
    let deadline = Instant::now() + Duration::from_millis(limits::PARTING_MS_MAX);
    // A client that has left need not be told.
    if stream
        .write_all_deadline(&encode_refusal(why), deadline)
        .is_err()
    {
        return;
    }
    // Closing a socket that holds unread bytes discards what was sent last (TCP reset), so the
    // client closes first.
    if rustix::net::shutdown(stream.as_fd(), rustix::net::Shutdown::Write).is_ok() {
        while stream.read_exact_deadline(&mut [0; 1], deadline).is_ok() {}
    }
}

/// Makes the server's answer to the hello. Only a session gets an address window. Device memory
/// that spare workers will still take is not leased to it.
pub fn welcome(
    device: Option<&mut (dyn Device + 'static)>,
    session: u64,
    purpose: Purpose,
    window: u8,
    spares_to_come: u32,
) -> Result<ServerWelcome, Failure> {
    let mut welcome = ServerWelcome {
        release: RELEASE.into(),
        session,
        driver_version: 0,
        ptx_only: false,
        window_base: 0,
        window_bytes: 0,
        exact_memory: false,
        confirms_memory: false,
        devices: Vec::new(),
        key: None,
    };
    if let Some(device) = device {
        welcome.driver_version = device.driver_version();
        welcome.exact_memory = device.exact_memory();
        welcome.devices = device.cards(spares_to_come)?;
        if purpose == Purpose::Session {
            (welcome.window_base, welcome.window_bytes) = device.reserve_window(window)?;
        }
    }
    Ok(welcome)
}

pub fn send_welcome(
    stream: &mut Stream,
    welcome: &ServerWelcome,
    deadline: Instant,
) -> Result<(), Error> {
    Ok(stream.write_all_deadline(&encode_welcome(welcome)?, deadline)?)
}
