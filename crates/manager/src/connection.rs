//! One client of the manager.

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

use outboard_pool::api::PoolError;
use outboard_trust::Secured;

use crate::{
    http::{self, Malformed, Request},
    limits,
    routes::Wait,
};

/// First byte of a client that encrypts.
const HANDSHAKE: u8 = 22;
/// Bytes that have come and wait for the answers of requests before them.
const INPUT_BYTES_MAX: usize = limits::HEAD_BYTES_MAX + limits::BODY_BYTES_MAX;
const ENCRYPTED: &str =
    "this manager's address begins with https://; it prints the address when it starts";

pub(crate) struct Connection {
    stream: TcpStream,
    tls: Option<Secured>,
    /// Something has come.
    is_begun: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Bytes of the output that have been sent.
    sent: usize,
    /// True if the connection ends with the answer.
    is_last: bool,
    /// True once a request was refused before it came whole: what follows it is read and dropped.
    is_refused: bool,
    /// True if a further request may have come with the one that was answered.
    has_more: bool,
    /// True once a whole request has come.
    has_asked: bool,
    /// The request that has no answer yet, and when it gets one in any case.
    pub(crate) wait: Option<(Wait, u64)>,
    /// Time until which something must happen.
    pub(crate) until_ms: u64,
}

/// State of a connection after some bytes.
pub(crate) enum Heard {
    Request(Request),
    Nothing,
    /// No request, which is refused. The answer is the connection's last.
    Malformed(Malformed),
    /// It is over.
    Ended,
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        tls: Option<Secured>,
        now_ms: u64,
    ) -> io::Result<Connection> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream,
            tls,
            is_begun: false,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            is_last: false,
            is_refused: false,
            has_more: false,
            has_asked: false,
            wait: None,
            until_ms: now_ms + limits::REQUEST_MS_MAX,
        })
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns the length of the output that the client has not taken.
    pub(crate) fn output_bytes(&self) -> usize {
        self.output.len() - self.sent
    }

    /// Returns whether its request has not come in time, or its client has not taken the answer.
    pub(crate) fn is_late(&self, now_ms: u64) -> bool {
        self.wait.is_none() && self.until_ms <= now_ms
    }

    /// Returns the order in which connections end for others: strangers that have never asked for
    /// anything come before clients.
    pub(crate) fn rank(&self) -> (bool, u64) {
        (self.has_asked, self.until_ms)
    }

    /// Returns whether it may be ended for another one: it asks for nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.wait.is_none() && self.output.is_empty()
    }

    /// Returns whether the client sends nothing more: it has given up, or was ended.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.stream.peek(&mut [0]), Ok(0))
    }

    /// Returns whether there may be a request that has come already and can be handled now.
    pub(crate) fn has_more(&self) -> bool {
        self.has_more && self.is_idle()
    }

    /// Reads what has come. A request is taken only after the one before was answered; those that
    /// came together are taken one after the other before more is read.
    pub(crate) fn read(&mut self) -> Heard {
        if self.has_more() {
            match self.next() {
                Heard::Nothing => {}
                heard => return heard,
            }
        }
        let mut piece = [0; 16 << 10];
        match self.stream.read(&mut piece) {
            Ok(0) => return Heard::Ended,
            Ok(_) if self.is_refused => return Heard::Nothing,
            Ok(count) if self.take(&piece[..count]) => {}
            Err(error) if is_later(&error) => return Heard::Nothing,
            Ok(_) | Err(_) => return Heard::Ended,
        }
        match self.next() {
            Heard::Nothing if self.input.len() > INPUT_BYTES_MAX => Heard::Ended,
            heard => heard,
        }
    }

    /// Takes what has come. Returns false if the connection is over.
    fn take(&mut self, bytes: &[u8]) -> bool {
        let is_first = !std::mem::replace(&mut self.is_begun, true);
        let Some(tls) = &mut self.tls else {
            self.input.extend_from_slice(bytes);
            return true;
        };
        if is_first && bytes.first() != Some(&HANDSHAKE) {
            let error = PoolError::Wrong(ENCRYPTED.into());
            let body = serde_json::to_vec(&error).unwrap_or_default();
            let answer = http::write_answer(error.status(), "application/json", "", &body);
            self.output.extend(answer);
            self.write();
            return false;
        }
        let taken = tls.receive(bytes, &mut self.input);
        self.output.extend(tls.take_output());
        if let Err(error) = &taken {
            tracing::debug!(%error, "no encrypted connection");
        }
        self.write() && taken.is_ok()
    }

    fn next(&mut self) -> Heard {
        self.has_more = false;
        if self.input.is_empty() {
            return Heard::Nothing;
        }
        if self.wait.is_some() || self.has_output() {
            self.has_more = !self.is_last;
            return Heard::Nothing;
        }
        match http::take_request(&mut self.input) {
            Ok(Some(request)) => {
                self.is_last = request.is_last;
                self.has_more = !request.is_last && !self.input.is_empty();
                self.has_asked = true;
                Heard::Request(request)
            }
            Ok(None) => Heard::Nothing,
            Err(malformed) => {
                tracing::debug!(why = malformed.text, "a request that is none");
                self.is_last = true;
                self.input = Vec::new();
                Heard::Malformed(malformed)
            }
        }
    }

    /// Notes the answer to what is no request.
    pub(crate) fn refuse(&mut self, now_ms: u64, malformed: Malformed) {
        let error = PoolError::Wrong(malformed.text.into());
        let body = serde_json::to_vec(&error).unwrap_or_default();
        self.answer(now_ms, malformed.status, ("application/json", ""), &body);
        self.is_refused = true;
        // A socket that is closed with bytes unread takes its answer back.
        self.until_ms = now_ms + limits::REST_MS_MAX;
    }

    /// Notes an answer. `more` has further lines of its head.
    pub(crate) fn answer(
        &mut self,
        now_ms: u64,
        status: u16,
        (kind, more): (&str, &str),
        body: &[u8],
    ) {
        self.wait = None;
        let close = match self.is_last {
            true => "Connection: close\r\n",
            false => "",
        };
        let answer = http::write_answer(status, kind, &format!("{more}{close}"), body);
        match &mut self.tls {
            None => self.output.extend(answer),
            // If that fails, the client's deadline ends the connection.
            Some(tls) => {
                let _ = tls.send(&answer);
                self.output.extend(tls.take_output());
            }
        }
        self.until_ms = now_ms + limits::REQUEST_MS_MAX;
    }

    /// Sends what there is room for. Returns false if the connection is over.
    pub(crate) fn write(&mut self) -> bool {
        if self.output.is_empty() {
            return true;
        }
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return false,
                Ok(count) => self.sent += count,
                Err(error) if is_later(&error) => return true,
                Err(_) => return false,
            }
        }
        // A large answer's memory is not kept.
        self.output = Vec::new();
        self.sent = 0;
        if self.is_refused {
            return self.stream.shutdown(Shutdown::Write).is_ok();
        }
        !self.is_last
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_client_that_takes_its_answer_slowly_is_late_all_the_same() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut connection = Connection::new(stream, None, 5).unwrap();
        let long = vec![b'x'; 32 << 20];
        connection.answer(7, 200, ("text/plain", ""), &long);
        let whole = connection.output_bytes();
        assert!(connection.write() && connection.has_output() && !connection.is_idle());
        let mut before = connection.output_bytes();
        assert!(before < whole);
        for now_ms in [1_000, 7 + limits::REQUEST_MS_MAX - 1] {
            while connection.output_bytes() == before {
                assert!(peer.read(&mut [0; 64 << 10]).unwrap() > 0);
                assert!(connection.write());
            }
            before = connection.output_bytes();
            assert!(!connection.is_late(now_ms));
        }
        assert!(connection.is_late(7 + limits::REQUEST_MS_MAX));
    }
}
