//! Passes descriptors between the server's own processes.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

/// Descriptors that go together, at most.
const FDS_MAX: usize = 2;

/// Sends a few bytes together with descriptors. Does not wait if the socket's buffer is empty.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    let bytes = &[IoSlice::new(bytes)];
    match sendmsg(socket, bytes, &mut control, SendFlags::NOSIGNAL)? {
        sent if sent == bytes[0].len() => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

/// Receives bytes and the descriptors that came with them. Zero bytes mean that the other end is
/// closed.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let fds = control.drain().filter_map(|ancillary| match ancillary {
        RecvAncillaryMessage::ScmRights(received) => Some(received),
        _ => None,
    });
    let fds = fds.flatten().collect();
    match message.flags.contains(ReturnFlags::TRUNC) {
        true => Err(ErrorKind::InvalidData.into()),
        false => Ok((message.bytes, fds)),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn a_socket_arrives_with_its_bytes_and_works() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut kept, passed) = UnixStream::pair().unwrap();
        send(&here, b"take", &[passed.as_fd(), here.as_fd()]).unwrap();
        drop(passed);
        let mut bytes = [0; 16];
        let (len, mut fds) = receive(&there, &mut bytes).unwrap();
        assert_eq!((&bytes[..len], fds.len()), (&b"take"[..], 2));
        let mut arrived = UnixStream::from(fds.remove(0));
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
        let (len, fds) = receive(&there, &mut [0; 4]).unwrap();
        assert_eq!((len, fds.len()), (0, 0));
        assert!(send(&there, b"x", &[there.as_fd()]).is_err());
    }
}
