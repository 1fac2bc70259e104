//! The worker of a client that asks what the server sees of itself.

use std::{
    io,
    os::fd::AsFd as _,
    time::{Duration, Instant},
};

use outboard_link::Stream;
use outboard_session::handshake;
use outboard_wire::{
    doc::{STATUS_BYTES_MAX, STATUS_QUESTION_BYTES, StatusAnswer, StatusQuestion, to_bytes},
    handshake::ServerWelcome,
    limits::HANDSHAKE_MS_MAX,
};

use super::{
    admission::{Order, Report},
    control::Control,
    sealed,
};

/// Answers a client until it leaves, or says nothing for long.
pub(super) fn serve(
    mut stream: Stream,
    control: &Control,
    welcome: &ServerWelcome,
    idle_max: Duration,
) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX);
    if handshake::send_welcome(&mut stream, welcome, deadline).is_err() {
        return Ok(());
    }
    loop {
        let deadline = Instant::now() + idle_max;
        let mut question = [0; STATUS_QUESTION_BYTES];
        if stream.read_exact_deadline(&mut question, deadline).is_err() {
            return Ok(());
        }
        let answer = match StatusQuestion::from_bytes(&question) {
            Some(question) => ask(control, question)?,
            None => {
                let why = StatusAnswer::Refused("this is no question about a server".into());
                to_bytes(&why).map_err(io::Error::other)?
            }
        };
        let deadline = Instant::now() + Duration::from_millis(HANDSHAKE_MS_MAX);
        let len = u32::try_from(answer.len())
            .unwrap_or(u32::MAX)
            .to_le_bytes();
        let sent = stream
            .write_all_deadline(&len, deadline)
            .and_then(|()| stream.write_all_deadline(&answer, deadline));
        if sent.is_err() {
            return Ok(());
        }
    }
}

/// Asks the supervisor. Returns a document, a [`StatusAnswer`].
pub(super) fn ask(control: &Control, question: StatusQuestion) -> io::Result<Vec<u8>> {
    control.send(&Report::Asks(question), &[])?;
    match control.receive()? {
        Some((Order::Answer, fds)) => match fds.into_iter().next() {
            Some(file) => sealed::read(file, STATUS_BYTES_MAX as u64),
            None => Err(io::Error::other("an answer without its file")),
        },
        // The server has gone.
        None => Err(io::ErrorKind::NotConnected.into()),
        Some((order, _)) => Err(io::Error::other(format!("no answer: {order:?}"))),
    }
}

/// Sends the answer to a worker that asked.
pub(super) fn answer(control: &Control, answer: &StatusAnswer) -> io::Result<()> {
    let document = to_bytes(answer).map_err(io::Error::other)?;
    let file = sealed::seal(&document)?;
    control.send(&Order::Answer, &[file.as_fd()])
}
