//! The socket between the supervisor and one worker.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use outboard_device::pass_fd;
use outboard_wire::doc::{from_bytes, to_bytes};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, SocketFlags, SocketType, socketpair},
};
use serde::{Serialize, de::DeserializeOwned};

use super::limits::DOCUMENT_BYTES_MAX;

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

    pub(super) fn try_clone(&self) -> io::Result<Control> {
        self.0.try_clone().map(Control)
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

    /// Sends a document if that does not wait.
    pub(super) fn send_if_room<T: Serialize>(&self, document: &T) -> io::Result<()> {
        let mut fds = [PollFd::new(self, PollFlags::OUT)];
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())))?;
        match fds[0].revents() == PollFlags::OUT {
            true => self.send(document, &[]),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
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
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Order, Report};

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
    fn a_supervisor_that_does_not_read_holds_no_worker_up() {
        let (ours, theirs) = Control::pair().unwrap();
        let theirs = Control::of_worker(theirs);
        let sent = (0..100_000).take_while(|_| theirs.send_if_room(&Report::Ready).is_ok());
        let count = sent.count();
        assert!((1..100_000).contains(&count), "{count}");
        assert!(ours.receive::<Report>().unwrap().is_some());
        drop(ours);
        assert!(theirs.send_if_room(&Report::Ready).is_err());
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
}
