//! State that both halves of a link and their handles share: above all the tcp connection over
//! which the link was made. It carries no more bytes; it shows only whether the peer lives.

use std::{
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags},
    net::{Shutdown, shutdown, sockopt},
};

use crate::{
    Error, sys,
    tcp::liveness::{self, Watch},
    wake::WakeUp,
};

pub(super) struct Shared {
    socket: OwnedFd,
    /// Wakes the receiver.
    wake: WakeUp,
    is_closed: AtomicBool,
    owner_pid: u32,
}

/// Reason why a sleep ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct News {
    pub(super) is_completion: bool,
}

impl Shared {
    pub(super) fn new(socket: OwnedFd) -> Result<Self, Error> {
        liveness::configure(&socket)?;
        Ok(Self {
            socket,
            wake: WakeUp::new()?,
            is_closed: AtomicBool::new(false),
            owner_pid: std::process::id(),
        })
    }

    pub(super) fn is_ours(&self) -> bool {
        self.owner_pid == std::process::id()
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        if self.is_ours() {
            // Wakes sleeping threads on both sides.
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
        self.wake();
    }

    pub(super) fn wake(&self) {
        self.wake.wake();
    }

    pub(super) fn take_wake(&self) -> bool {
        self.wake.take()
    }

    /// Returns the reason why the peer is gone, if it is.
    pub(super) fn peer_end(&self) -> Option<Error> {
        // Errors and hang-ups are always reported; bytes from the peer are not asked for.
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        // poll fails only when the kernel is out of memory; the next look will show it.
        let is_over = sys::wait(&mut fds, Some(Duration::ZERO)).is_ok_and(|count| count > 0);
        is_over.then(|| match sockopt::socket_error(&self.socket) {
            Ok(Err(error)) => Error::io("watching the peer")(error),
            _ => Error::Closed,
        })
    }

    /// Returns an error if the kernel knows that the peer's host no longer answers. Called while
    /// waiting.
    pub(super) fn watch(&self, watch: &mut Watch) -> Result<(), Error> {
        watch.look(&self.socket)
    }

    /// Sleeps until something has completed, the peer is gone, or (for a receiver) a wake-up is
    /// pending.
    pub(super) fn sleep(
        &self,
        channel: std::os::fd::BorrowedFd<'_>,
        is_receiver: bool,
        timeout: Duration,
    ) -> Result<News, Error> {
        let mut fds = [
            PollFd::from_borrowed_fd(channel, PollFlags::IN),
            PollFd::new(&self.socket, PollFlags::RDHUP),
            PollFd::new(&self.wake, PollFlags::IN),
        ];
        let count = if is_receiver { 3 } else { 2 };
        sys::wait(&mut fds[..count], Some(timeout)).map_err(Error::io("waiting for the peer"))?;
        Ok(News {
            is_completion: !fds[0].revents().is_empty(),
        })
    }
}
