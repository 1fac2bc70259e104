//! Receives frames from the socket, and waits while it is empty.

use std::{os::fd::AsFd, sync::Arc, time::Instant};

use rustix::event::{PollFd, PollFlags};

use super::{
    deframer::{Deframer, Parts},
    kernel::Opening,
    liveness::{self, Watch},
    shared::Shared,
};
use crate::{
    Error, Wait,
    segment::{ChooseDestination, Frame, Tail},
    spin::{self, Spin},
    sys,
};

/// The receiving half of a tcp link.
pub struct Receiver {
    deframer: Deframer,
    opening: Opening,
    /// A frame whose placing was begun by [`recv_placed`](Self::recv_placed), and that is now
    /// wanted in one piece.
    joined: Vec<u8>,
    spin: Spin,
    /// True if the socket was empty at the last look.
    is_dry: bool,
    watch: Watch,
    shared: Arc<Shared>,
}

impl Receiver {
    pub(super) fn new(shared: Arc<Shared>, opening: Opening) -> Self {
        Self {
            deframer: Deframer::new(),
            opening,
            joined: Vec::new(),
            spin: Spin::new(),
            is_dry: false,
            watch: Watch::default(),
            shared,
        }
    }

    #[cfg(feature = "conformance")]
    pub(super) fn is_in_kernel(&self) -> bool {
        matches!(self.opening, Opening::Kernel(_))
    }

    #[inline]
    pub(crate) fn recv(&mut self, wait: Wait) -> Result<Option<&[u8]>, Error> {
        let Some(Parts { head, tail }) = self.next(wait, &mut |_, _| None)? else {
            return Ok(None);
        };
        let Some(tail) = tail else {
            return Ok(Some(self.deframer.bytes(head)));
        };
        self.joined.clear();
        self.joined.extend_from_slice(self.deframer.bytes(head));
        self.joined.extend_from_slice(tail.bytes());
        Ok(Some(&self.joined))
    }

    #[inline]
    pub(crate) fn recv_placed(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Frame<'_>>, Error> {
        let Some(Parts { head, tail }) = self.next(wait, place)? else {
            return Ok(None);
        };
        let head = self.deframer.bytes(head);
        let tail = tail.map(Tail::Own);
        Ok(Some(Frame { head, tail }))
    }

    #[inline]
    fn next(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Parts>, Error> {
        loop {
            if let Some(parts) = self.deframer.next(place)? {
                return Ok(Some(parts));
            }
            match self.fill(wait) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => {
                    self.deframer.fail();
                    return Err(error);
                }
            }
        }
    }

    /// Has the kernel acknowledge what has arrived now, and not with the next frame.
    pub(crate) fn acknowledge(&self) {
        // Nothing is lost where it cannot: the kernel acknowledges later.
        let _ = sys::acknowledge(self.shared.socket.as_fd());
    }

    pub(crate) fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.shared))
    }

    /// Returns true if a [`Waker`] has woken since a wait last ended; an error if this side was
    /// closed.
    pub(crate) fn take_wake(&mut self) -> Result<bool, Error> {
        match self.shared.wake.take() {
            true if self.shared.is_closed() => Err(Error::Closed),
            is_woken => Ok(is_woken),
        }
    }

    /// Reads the bytes that have arrived; if there are none, waits as `wait` says. Returns false if
    /// the wait ended without bytes.
    fn fill(&mut self, wait: Wait) -> Result<bool, Error> {
        let deadline = match wait {
            Wait::Poll => return self.read(),
            Wait::Until(deadline) => Some(deadline),
            Wait::Forever => None,
        };
        // A look at a socket that was empty a moment ago costs as much as one that finds bytes.
        if !self.is_dry && self.read()? {
            return Ok(true);
        }
        let start = Instant::now();
        if spin::has_cores_to_spare() && self.spin(start)? {
            return Ok(true);
        }
        loop {
            let left = sys::left(deadline).unwrap_or(liveness::TICK);
            if left.is_zero() {
                return self.read();
            }
            let shared = &self.shared;
            let mut fds = [
                PollFd::new(&shared.socket, PollFlags::IN),
                PollFd::new(&shared.wake, PollFlags::IN),
            ];
            let news = sys::wait(&mut fds, Some(left.min(liveness::TICK)))
                .map_err(Error::io("waiting for the peer"))?;
            if news == 0 {
                self.watch.look(&shared.socket)?;
            } else if fds[0].revents().is_empty() && shared.wake.take() {
                return if shared.is_closed() {
                    Err(Error::Closed)
                } else {
                    Ok(false)
                };
            } else if self.read()? {
                self.spin.ended(start);
                return Ok(true);
            }
        }
    }

    /// Reads from the socket until bytes arrive or the busy wait ends.
    fn spin(&mut self, start: Instant) -> Result<bool, Error> {
        let mut read = Ok(false);
        let Self {
            spin,
            deframer,
            opening,
            shared,
            is_dry,
            ..
        } = self;
        spin.until(start, || {
            read = shared.read(deframer, opening, is_dry);
            !matches!(read, Ok(false))
        });
        read
    }

    /// Reads the bytes that have arrived, without waiting.
    fn read(&mut self) -> Result<bool, Error> {
        self.shared
            .read(&mut self.deframer, &mut self.opening, &mut self.is_dry)
    }
}

/// Wakes a blocked [`Receiver`].
#[derive(Clone)]
pub struct Waker(Arc<Shared>);

impl Waker {
    pub(crate) fn wake(&self) {
        self.0.wake.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{TcpListener, TcpStream},
        os::fd::OwnedFd,
        time::Duration,
    };

    use super::{super::Connection, *};

    const TRIES: u32 = 1_000;

    fn connection(stream: TcpStream) -> Connection {
        Connection::new(OwnedFd::from(stream), None).unwrap()
    }

    /// Returns the number of segments that the peer has not acknowledged.
    fn unacknowledged(receiver: &Receiver) -> u32 {
        let info = sys::tcp_info(receiver.shared.socket.as_fd()).unwrap();
        info.tcpi_unacked
    }

    #[test]
    fn what_the_kernel_would_acknowledge_later_is_acknowledged_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut to_server, mut from_server) = connection(stream).split();
        let (mut to_client, mut from_client) = connection(listener.accept().unwrap().0).split();
        let soon = || Wait::Until(Instant::now() + Duration::from_secs(10));
        // The kernel begins to hold acknowledgements back once messages went both ways, and does
        // not for longer than 40 ms: a slow machine takes several tries.
        let sent_early = (0..TRIES).any(|_| {
            to_server.send(&[&[1]], 1).unwrap();
            to_server.flush().unwrap();
            from_client.recv(soon()).unwrap();
            let before = unacknowledged(&from_server);
            from_client.acknowledge();
            let after = unacknowledged(&from_server);
            to_client.send(&[&[2]], 1).unwrap();
            to_client.flush().unwrap();
            from_server.recv(soon()).unwrap();
            (before, after) == (1, 0)
        });
        assert!(sent_early);
    }
}
