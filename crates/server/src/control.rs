//! The socket between the supervisor and one worker.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use outboard_device::pass_fd;
use outboard_link::{Error, Stream};
use outboard_session::DataConnectionSource;
use outboard_wire::{
    doc::{from_bytes, to_bytes},
    handshake::SessionKey,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, Shutdown, SocketFlags, SocketType, socketpair},
};
use serde::{Serialize, de::DeserializeOwned};

use super::{admission::Order, limits::DOCUMENT_BYTES_MAX};

/// Carries documents in packets, each with the descriptors that belong to it.
pub(super) struct Control(OwnedFd);

/// A document, and the descriptors that came with it.
pub(super) type Packet<T> = (T, Vec<OwnedFd>);

impl Control {
    /// Makes the supervisor's end, which never waits, and the worker's.
    pub(super) fn pair() -> io::Result<(Control, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        Ok((Control(ours), theirs))
    }

    /// Takes over the worker's end.
    pub(super) fn of_worker(socket: OwnedFd) -> Control {
        Control(socket)
    }

    pub(super) fn send<T: Serialize>(
        &self,
        document: &T,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let bytes = to_bytes(document).map_err(io::Error::other)?;
        if bytes.len() > DOCUMENT_BYTES_MAX {
            return Err(io::Error::other("a document that is too long"));
        }
        pass_fd::send(self, &bytes, fds)
    }

    /// Returns the next packet; `None` if the other end is closed.
    pub(super) fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<Packet<T>>> {
        let mut bytes = vec![0; DOCUMENT_BYTES_MAX];
        let (len, fds) = pass_fd::receive(self, &mut bytes)?;
        if len == 0 {
            return Ok(None);
        }
        let document = from_bytes(&bytes[..len]).map_err(io::Error::other)?;
        Ok(Some((document, fds)))
    }

    /// Returns whether a packet, or the other end's close, has come by `deadline`.
    fn wait(&self, deadline: Instant) -> io::Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(self, PollFlags::IN)], Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                ready => return Ok(ready? > 0),
            }
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Data connections that the supervisor passes on.
pub(super) struct PassedOn {
    control: Control,
    key: SessionKey,
}

impl PassedOn {
    pub(super) fn new(control: Control, key: SessionKey) -> Arc<PassedOn> {
        Arc::new(PassedOn { control, key })
    }
}

impl DataConnectionSource for PassedOn {
    fn key(&self) -> SessionKey {
        self.key
    }

    fn next(&self, deadline: Instant) -> Result<Stream, Error> {
        const DOING: &str = "waiting for data connections";
        let start = Instant::now();
        if !self.control.wait(deadline).map_err(Error::io(DOING))? {
            let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            return Err(Error::TimedOut { what: DOING, ms });
        }
        match self.control.receive().map_err(Error::io(DOING))? {
            Some((Order::DataConnection, fds)) => match fds.into_iter().next() {
                Some(socket) => Stream::try_from(socket),
                None => Err(Error::Misuse("a data connection without its socket")),
            },
            Some(_) => Err(Error::Misuse("an order that is no data connection")),
            None => Err(Error::Closed),
        }
    }

    fn close(&self) {
        // The supervisor then refuses further connections. It may have closed its end already.
        let _ = rustix::net::shutdown(&self.control, Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread, time::Duration};

    use outboard_wire::limits::SESSION_KEY_BYTES;

    use super::*;
    use crate::admission::Report;

    #[test]
    fn packets_keep_their_borders_and_descriptors() {
        let (ours, theirs) = Control::pair().unwrap();
        let theirs = Control::of_worker(theirs);
        let none = theirs.0.try_clone().unwrap();
        assert_eq!(
            ours.receive::<Report>().unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        theirs.send(&Report::Ready, &[none.as_fd()]).unwrap();
        theirs.send(&Report::Taken, &[]).unwrap();
        let (first, first_fds) = ours.receive::<Report>().unwrap().unwrap();
        assert_eq!((first, first_fds.len()), (Report::Ready, 1));
        let (second, fds) = ours.receive::<Report>().unwrap().unwrap();
        assert_eq!((second, fds.len()), (Report::Taken, 0));
        // The descriptor that was passed is the other end as well.
        drop((theirs, none, first_fds));
        assert!(ours.receive::<Report>().unwrap().is_none());
    }

    #[test]
    fn documents_have_a_longest_length() {
        let (ours, theirs) = Control::pair().unwrap();
        let longest = Order::Refuse("x".repeat(DOCUMENT_BYTES_MAX - 8));
        ours.send(&longest, &[]).unwrap();
        let got = Control::of_worker(theirs).receive::<Order>().unwrap();
        assert!(got.unwrap().0 == longest);
        let longer = Order::Refuse("x".repeat(DOCUMENT_BYTES_MAX));
        assert!(ours.send(&longer, &[]).is_err());
    }

    #[test]
    fn data_connections_come_until_they_are_closed() {
        let (ours, theirs) = Control::pair().unwrap();
        let key = SessionKey::new([1; SESSION_KEY_BYTES]);
        let source = PassedOn::new(Control::of_worker(theirs), key);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(matches!(source.next(soon()), Err(Error::TimedOut { .. })));
        ours.send(&Order::DataConnection, &[listener.as_fd()])
            .unwrap();
        assert!(source.next(soon()).is_ok());
        let waiting = thread::spawn({
            let source = Arc::clone(&source);
            move || source.next(Instant::now() + Duration::from_secs(10))
        });
        thread::sleep(Duration::from_millis(50));
        source.close();
        assert!(waiting.join().unwrap().is_err());
        let refused = ours.send(&Order::DataConnection, &[listener.as_fd()]);
        assert!(refused.is_err());
    }
}
