//! Passes descriptors between the server's own processes.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

/// Sends a few bytes together with a descriptor. Does not wait if the socket's buffer is empty.
pub(crate) fn send(socket: &UnixStream, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    match sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

/// Receives bytes and the descriptor that came with them. Zero bytes mean that the other end is
/// closed.
pub(crate) fn receive(
    socket: &UnixStream,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut fds = control.drain().filter_map(|ancillary| match ancillary {
        RecvAncillaryMessage::ScmRights(mut received) => received.next(),
        _ => None,
    });
    let fd = fds.next();
    Ok((message.bytes, fd))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::fd::AsFd as _,
    };

    use super::*;

    #[test]
    fn a_socket_arrives_with_its_bytes_and_works() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut kept, passed) = UnixStream::pair().unwrap();
        send(&here, b"take", passed.as_fd()).unwrap();
        drop(passed);
        let mut bytes = [0; 16];
        let (len, fd) = receive(&there, &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"take");
        let mut arrived = UnixStream::from(fd.unwrap());
        arrived.write_all(b"hello").unwrap();
        drop(arrived);
        let mut text = String::new();
        kept.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn a_closed_end_is_no_bytes_and_no_descriptor() {
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        let (len, fd) = receive(&there, &mut [0; 4]).unwrap();
        assert_eq!((len, fd.is_none()), (0, true));
        assert!(send(&there, b"x", there.as_fd()).is_err());
    }
}
