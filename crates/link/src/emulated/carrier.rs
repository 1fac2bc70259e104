//! The link that carries an emulated one: shm or tcp. A real network's delay would add up with the
//! emulated one's.

use std::ptr::NonNull;

use crate::{
    credentials::Way,
    deadline::Wait,
    error::Error,
    kind::LinkKind,
    segment::{ChooseDestination, Frame},
    shm, tcp,
};

/// An established link over which a network can be emulated.
pub(crate) enum Carrier {
    Shm(shm::Connection),
    Tcp(tcp::Connection),
}

impl Carrier {
    /// Returns the way to the peer, over tcp.
    pub(super) fn way(&self) -> Option<Way> {
        match self {
            Self::Shm(_) => None,
            Self::Tcp(link) => link.way(),
        }
    }

    pub(super) fn split(self) -> (Sender, Receiver) {
        match self {
            Self::Shm(link) => {
                let (sender, receiver) = link.split();
                (Sender::Shm(sender), Receiver::Shm(receiver))
            }
            Self::Tcp(link) => {
                let (sender, receiver) = link.split();
                (Sender::Tcp(sender), Receiver::Tcp(receiver))
            }
        }
    }
}

/// The sending half of a carrier: each of its frames follows its stamp.
pub(super) enum Sender {
    Shm(shm::Sender),
    Tcp(tcp::Sender),
}

impl Sender {
    pub(super) fn kind(&self) -> LinkKind {
        match self {
            Self::Shm(_) => LinkKind::Shm,
            Self::Tcp(_) => LinkKind::Tcp,
        }
    }

    pub(super) fn reserve(&mut self, len: usize) -> Result<NonNull<u8>, Error> {
        match self {
            Self::Shm(sender) => sender.reserve_stamped(len),
            Self::Tcp(sender) => Ok(NonNull::from(sender.reserve_stamped(len)?).cast()),
        }
    }

    pub(super) fn commit(&mut self, stamp: u64, len: usize) -> Result<(), Error> {
        match self {
            Self::Shm(sender) => sender.commit_stamped(stamp, len),
            Self::Tcp(sender) => sender.commit_stamped(stamp, len),
        }
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        match self {
            Self::Shm(_) => Ok(()),
            Self::Tcp(sender) => sender.flush(),
        }
    }

    pub(super) fn post(&mut self) -> Result<(), Error> {
        match self {
            Self::Shm(_) => Ok(()),
            Self::Tcp(sender) => sender.post(),
        }
    }

    pub(super) fn flusher(&self) -> Option<tcp::Flusher> {
        match self {
            Self::Shm(_) => None,
            Self::Tcp(sender) => Some(sender.flusher()),
        }
    }

    pub(super) fn shutdown(&mut self) {
        match self {
            Self::Shm(sender) => sender.shutdown(),
            Self::Tcp(sender) => sender.shutdown(),
        }
    }

    pub(super) fn closer(&self) -> Closer {
        match self {
            Self::Shm(sender) => Closer::Shm(sender.closer()),
            Self::Tcp(sender) => Closer::Tcp(sender.closer()),
        }
    }
}

/// The receiving half of a carrier.
pub(super) enum Receiver {
    Shm(shm::Receiver),
    Tcp(tcp::Receiver),
}

impl Receiver {
    pub(super) fn kind(&self) -> LinkKind {
        match self {
            Self::Shm(_) => LinkKind::Shm,
            Self::Tcp(_) => LinkKind::Tcp,
        }
    }

    pub(super) fn recv(&mut self, wait: Wait) -> Result<Option<&[u8]>, Error> {
        match self {
            Self::Shm(receiver) => receiver.recv(wait),
            Self::Tcp(receiver) => receiver.recv(wait),
        }
    }

    pub(super) fn recv_placed(
        &mut self,
        wait: Wait,
        place: &mut ChooseDestination<'_>,
    ) -> Result<Option<Frame<'_>>, Error> {
        match self {
            Self::Shm(receiver) => {
                let tail = receiver.take_placed(wait, place)?;
                let head = receiver.taken();
                Ok(tail.map(|tail| Frame { head, tail }))
            }
            Self::Tcp(receiver) => receiver.recv_placed(wait, place),
        }
    }

    pub(super) fn take_wake(&mut self) -> Result<bool, Error> {
        match self {
            Self::Shm(receiver) => receiver.take_wake(),
            Self::Tcp(receiver) => receiver.take_wake(),
        }
    }

    pub(super) fn waker(&self) -> Waker {
        match self {
            Self::Shm(receiver) => Waker::Shm(receiver.waker()),
            Self::Tcp(receiver) => Waker::Tcp(receiver.waker()),
        }
    }
}

#[derive(Clone)]
pub(super) enum Waker {
    Shm(shm::Waker),
    Tcp(tcp::Waker),
}

impl Waker {
    pub(super) fn wake(&self) {
        match self {
            Self::Shm(waker) => waker.wake(),
            Self::Tcp(waker) => waker.wake(),
        }
    }
}

#[derive(Clone)]
pub(super) enum Closer {
    Shm(shm::Closer),
    Tcp(tcp::Closer),
}

impl Closer {
    pub(super) fn close(&self) {
        match self {
            Self::Shm(closer) => closer.close(),
            Self::Tcp(closer) => closer.close(),
        }
    }
}
