//! A connected socket that carries raw bytes until a deadline: the handshake's, and the setup of a
//! rdma link.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use rustix::{
    event::PollFlags,
    io::Errno,
    net::{RecvFlags, SendFlags},
};

use crate::{deadline::timed_out, error::Error, sys};

#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// Fills `bytes` from the socket, and reads nothing after them.
    pub(crate) fn read_exact_deadline(
        &mut self,
        bytes: &mut [u8],
        deadline: Instant,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let want = bytes.len();
        let mut have = 0;
        while have < want {
            match rustix::net::recv(&self.0, &mut bytes[have..], RecvFlags::DONTWAIT) {
                Ok((0, _)) if have == 0 => return Err(Error::Closed),
                Ok((0, _)) => return Err(Error::Truncated { have, want }),
                Ok((count, _)) => have += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.wait(PollFlags::IN, "the peer's answer", start, deadline)?
                }
                Err(error) => return Err(Error::io("reading from the peer")(error)),
            }
        }
        Ok(())
    }

    /// Sends all of `bytes`.
    pub(crate) fn write_all_deadline(
        &mut self,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let mut rest = bytes;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while !rest.is_empty() {
            match rustix::net::send(&self.0, rest, flags) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.wait(PollFlags::OUT, "sending to the peer", start, deadline)?
                }
                Err(error) => return Err(Error::io("sending to the peer")(error)),
            }
        }
        Ok(())
    }

    fn wait(
        &self,
        events: PollFlags,
        what: &'static str,
        start: Instant,
        deadline: Instant,
    ) -> Result<(), Error> {
        match sys::wait_one(self.0.as_fd(), events, Some(deadline)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(timed_out(what, start)),
            Err(error) => Err(Error::io("waiting for the peer")(error)),
        }
    }
}

impl From<OwnedFd> for Socket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.0
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
