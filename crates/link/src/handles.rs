//! Handles with which any thread wakes or ends a side of a link.

use crate::{emulated, rdma, shm, tcp};

/// Wakes a blocked [`Receiver`](crate::Receiver).
#[derive(Clone)]
pub struct Waker(pub(crate) WakerKind);

#[derive(Clone)]
pub(crate) enum WakerKind {
    Shm(shm::Waker),
    Tcp(tcp::Waker),
    Rdma(rdma::Waker),
    Emulated(emulated::Waker),
}

impl Waker {
    pub fn wake(&self) {
        match &self.0 {
            WakerKind::Shm(waker) => waker.wake(),
            WakerKind::Tcp(waker) => waker.wake(),
            WakerKind::Rdma(waker) => waker.wake(),
            WakerKind::Emulated(waker) => waker.wake(),
        }
    }
}

/// Ends this side of a link.
#[derive(Clone)]
pub struct Closer(pub(crate) CloserKind);

#[derive(Clone)]
pub(crate) enum CloserKind {
    Shm(shm::Closer),
    Tcp(tcp::Closer),
    Rdma(rdma::Closer),
    Emulated(emulated::Closer),
}

impl Closer {
    pub fn close(&self) {
        match &self.0 {
            CloserKind::Shm(closer) => closer.close(),
            CloserKind::Tcp(closer) => closer.close(),
            CloserKind::Rdma(closer) => closer.close(),
            CloserKind::Emulated(closer) => closer.close(),
        }
    }
}
