//! A connected socket that carries raw bytes until a deadline: the handshake's, and the setup of a
//! rdma link.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use outboard_trust::{
    Channel, Expected, Opener, Own, RecordIo, Sealer, ServerOwn, Shown, TlsState, open_as_client,
    open_as_server,
};
use outboard_wire::limits::PROOF_BYTES;
use rustix::{
    event::PollFlags,
    io::Errno,
    net::{RecvFlags, SendFlags},
};

use crate::{deadline::timed_out, error::Error, sys};

pub(crate) struct Socket {
    raw: Raw,
    /// Encrypts what passes, if it is to be encrypted.
    records: Option<Box<Records>>,
}

/// The ends of an encrypted connection.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Bytes that only they know.
    pub(crate) binding: [u8; PROOF_BYTES],
    pub(crate) peer: Shown,
}

const UNREAD: &str = "bytes that were not read";

/// The descriptor itself.
#[derive(Debug)]
struct Raw(OwnedFd);

/// The two halves of an encrypted connection after its handshake.
pub(crate) type Records = (Sealer, Opener);

impl Socket {
    /// Encrypts the connection from now on, to the server that is expected.
    pub(crate) fn secure_client(
        &mut self,
        (own, server): &(Own, Expected),
        deadline: Instant,
    ) -> Result<Ends, Error> {
        let channel = open_as_client(&mut Timed(&self.raw, deadline), own, server)??;
        Ok(self.secured(channel))
    }

    /// Encrypts the connection from now on, to a client of any key or certificate.
    pub(crate) fn secure_server(
        &mut self,
        own: &ServerOwn,
        deadline: Instant,
    ) -> Result<Ends, Error> {
        let channel = open_as_server(&mut Timed(&self.raw, deadline), own)??;
        Ok(self.secured(channel))
    }

    fn secured(&mut self, channel: Channel) -> Ends {
        self.records = Some(Box::new((channel.sealer, channel.opener)));
        Ends {
            binding: channel.binding,
            peer: channel.peer,
        }
    }

    /// Returns what another process needs to go on with the connection; None if it is not
    /// encrypted.
    pub(crate) fn tls_state(&self) -> Result<Option<TlsState>, Error> {
        let state =
            |records: &Records| TlsState::of(&records.0, &records.1).ok_or(Error::Misuse(UNREAD));
        self.records.as_deref().map(state).transpose()
    }

    /// Goes on with an encrypted connection that another process has opened.
    pub(crate) fn resume(&mut self, state: TlsState) -> Result<(), Error> {
        self.records = Some(Box::new(state.resume()?));
        Ok(())
    }

    /// Returns the descriptor, and what encrypts it.
    pub(crate) fn into_parts(self) -> Result<(OwnedFd, Option<Records>), Error> {
        match self.records {
            Some(records) if !records.1.is_empty() => Err(Error::Misuse(UNREAD)),
            records => Ok((self.raw.0, records.map(|records| *records))),
        }
    }

    /// Fills `bytes` from the socket, and reads nothing after them; of an encrypted connection not
    /// after the record that they are in.
    pub(crate) fn read_exact_deadline(
        &mut self,
        bytes: &mut [u8],
        deadline: Instant,
    ) -> Result<(), Error> {
        let Some(records) = &mut self.records else {
            return self.raw.read_exact_deadline(bytes, deadline);
        };
        let mut have = 0;
        while have < bytes.len() {
            have += records.1.take(&mut bytes[have..])?;
            if have < bytes.len() {
                let room = records.1.room_exact();
                self.raw.read_exact_deadline(room, deadline)?;
                let count = room.len();
                records.1.filled(count);
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
        let Some(records) = &mut self.records else {
            return self.raw.write_all_deadline(bytes, deadline);
        };
        let mut sealed = Vec::new();
        records.0.seal(bytes, &mut sealed)?;
        self.raw.write_all_deadline(&sealed, deadline)
    }
}

/// A socket with the time until which a handshake may take.
struct Timed<'s>(&'s Raw, Instant);

impl RecordIo for Timed<'_> {
    type Error = Error;

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        self.0.read_exact_deadline(bytes, self.1)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.0.write_all_deadline(bytes, self.1)
    }
}

impl Raw {
    fn read_exact_deadline(&self, bytes: &mut [u8], deadline: Instant) -> Result<(), Error> {
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

    fn write_all_deadline(&self, bytes: &[u8], deadline: Instant) -> Result<(), Error> {
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
        Self {
            raw: Raw(socket),
            records: None,
        }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.raw.0
    }
}

/// Shows no keys.
impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.0.as_fd()
    }
}
