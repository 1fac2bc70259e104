//! The client's end of a session's heartbeats ([`outboard_wire::heartbeat`]).

use std::{
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

use outboard_wire::{
    handshake::{ClientHello, Purpose, RELEASE, SessionKey},
    heartbeat::{BEAT_BYTES, Beat},
};

use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle};

use crate::{
    Endpoint, Error, LinkKind, Stream, connect, fill_standard_descriptors, opening,
    opening::DialError, sys, wake::KnownFd, wake::identity,
};

/// Time between signs of life on a quiet connection.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// A connection over which the session's worker answers.
pub struct Heartbeats {
    stream: Option<Stream>,
    /// Device and inode of the socket: a program may close descriptors that it did not open, and
    /// get their numbers for its own files.
    identity: (u64, u64),
    question: u64,
}

impl Heartbeats {
    /// Connects to the server of the session whose key this is, within `timeout`.
    pub fn connect(
        endpoint: &Endpoint,
        key: SessionKey,
        timeout: Duration,
    ) -> Result<Heartbeats, DialError> {
        let deadline = Instant::now() + timeout;
        fill_standard_descriptors();
        let mut stream = connect(endpoint, timeout)?;
        if stream.kind() != LinkKind::Shm {
            // The connection is quiet for long, and what translates addresses must not forget it.
            let kept = set_socket_keepalive(&stream, true)
                .and_then(|()| set_tcp_keepidle(&stream, KEEPALIVE));
            kept.map_err(Error::io("configuring a heartbeat's connection"))?;
        }
        let hello = ClientHello {
            release: RELEASE.into(),
            purpose: Purpose::Heartbeat { key },
            pid: std::process::id(),
            program: String::new(),
            emulation: None,
            is_rdma: false,
            token: None,
            grant: None,
            window: 0,
        };
        opening::open(&mut stream, &hello, deadline)?;
        Ok(Heartbeats {
            identity: identity(stream.as_fd()).ok_or(Error::Closed)?,
            stream: Some(stream),
            question: 0,
        })
    }

    /// Returns the connection's socket, for a forked child to close.
    pub fn socket(&self) -> Option<KnownFd> {
        self.stream
            .as_ref()
            .and_then(|stream| KnownFd::of(stream.as_fd()))
    }

    /// Asks the worker, and waits for its answer until `deadline`. After an error the connection
    /// cannot be used any more.
    pub fn ask(&mut self, deadline: Instant) -> Result<Beat, Error> {
        let is_intact = self.is_intact();
        let stream = self.stream.as_mut().filter(|_| is_intact);
        let stream = stream.ok_or(Error::Closed)?;
        self.question += 1;
        stream.write_all_deadline(&self.question.to_le_bytes(), deadline)?;
        let mut answer = [0; BEAT_BYTES];
        stream.read_exact_deadline(&mut answer, deadline)?;
        Beat::from_bytes(&answer)
            .filter(|beat| beat.question == self.question)
            .ok_or(Error::Misuse("an answer to another question"))
    }
}

impl Heartbeats {
    fn is_intact(&self) -> bool {
        let stream = self.stream.as_ref();
        stream.and_then(|stream| identity(stream.as_fd())) == Some(self.identity)
    }
}

impl Drop for Heartbeats {
    /// Closes the connection, but no file of the program's that has its number now.
    fn drop(&mut self) {
        if !self.is_intact() {
            std::mem::forget(self.stream.take());
        }
    }
}

/// Returns the bytes that a tcp connection has received from its peer since it was opened; `None`
/// if the kernel does not say.
pub fn received_bytes(socket: BorrowedFd<'_>) -> Option<u64> {
    sys::tcp_bytes_received(socket).ok().filter(|n| *n > 0)
}

/// Returns the bytes that wait in a tcp connection for the peer to take them.
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> Option<u64> {
    sys::tcp_unsent_bytes(socket).ok()
}

/// Returns the bytes that have come over a connection and are not read yet.
pub fn unread_bytes(socket: BorrowedFd<'_>) -> Option<u64> {
    rustix::io::ioctl_fionread(socket).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn received_bytes_are_counted_by_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        there.write_all(&[7; 1000]).unwrap();
        here.read_exact(&mut [0; 1000]).unwrap();
        // A sandbox's kernel may not count.
        assert!(matches!(received_bytes(here.as_fd()), None | Some(1000)));
        assert_eq!(received_bytes(there.as_fd()), None);
    }
}
