//! The socket: state that both halves of a connection and their handles share.

use std::{
    io::IoSlice,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use outboard_trust::Opener;
use outboard_wire::limits::LINGER_MS_MAX;
use rustix::{
    event::PollFlags,
    io::Errno,
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg},
};

use super::{
    deframer::Deframer,
    kernel::{self, Opening},
    liveness::{self, Watch},
};
use crate::{Error, deadline::timed_out, sys, wake::WakeUp, wild};

/// State that both halves and their handles share.
pub(super) struct Shared {
    pub(super) socket: OwnedFd,
    /// Wakes the receiver.
    pub(super) wake: WakeUp,
    pub(super) is_closed: AtomicBool,
    pub(super) owner_pid: u32,
}

impl Shared {
    pub(super) fn is_ours(&self) -> bool {
        self.owner_pid == std::process::id()
    }

    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Reads the bytes that have arrived, without waiting; returns true if there were any.
    pub(super) fn read(
        &self,
        deframer: &mut Deframer,
        opening: &mut Opening,
        is_dry: &mut bool,
    ) -> Result<bool, Error> {
        if let Opening::Own(opener) = opening {
            return self.read_sealed(deframer, opener, is_dry);
        }
        loop {
            let room = deframer.room()?;
            let len = room.len();
            match recv(&self.socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) if self.is_closed() => return Err(Error::Closed),
                Ok((0, _)) => return Err(deframer.end()),
                Ok((count, _)) => {
                    deframer.filled(count);
                    // A key update behind the data was met by the same call, and is not polled for.
                    let may_hide_update = matches!(opening, Opening::Kernel(_));
                    *is_dry = count < len && !may_hide_update;
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    *is_dry = true;
                    return Ok(false);
                }
                Err(error) => match opening {
                    // The kernel keeps a record that is no data for those who ask for its kind.
                    Opening::Kernel(opener) if error == Errno::IO => {
                        kernel::take_control(&self.socket, opener)
                            .map_err(|error| ended(error, deframer))?;
                    }
                    Opening::Kernel(_) => return Err(kernel::fault(error)),
                    _ => return Err(Error::io("receiving")(error)),
                },
            }
        }
    }

    /// Like [`read`](Self::read), of an encrypted connection.
    fn read_sealed(
        &self,
        deframer: &mut Deframer,
        opener: &mut Opener,
        is_dry: &mut bool,
    ) -> Result<bool, Error> {
        let mut was_short = false;
        loop {
            let taken = opener.take(deframer.room()?);
            let count = taken.map_err(|error| ended(error.into(), deframer))?;
            if count > 0 {
                deframer.filled(count);
                *is_dry = was_short && opener.is_empty();
                return Ok(true);
            }
            let room = opener.room();
            let len = room.len();
            match recv(&self.socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) if self.is_closed() => return Err(Error::Closed),
                Ok((0, _)) => return Err(deframer.end()),
                Ok((count, _)) => {
                    opener.filled(count);
                    was_short = count < len;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    *is_dry = true;
                    return Ok(false);
                }
                Err(error) => return Err(Error::io("receiving")(error)),
            }
        }
    }

    /// Sends all of `slices`, or what the peer takes before the deadline. Returns the calls that
    /// took bytes.
    pub(super) fn write_all(
        &self,
        mut slices: &mut [IoSlice<'_>],
        deadline: Option<Instant>,
    ) -> Result<u64, Error> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let mut watch = Watch::default();
        let mut full_since = None;
        let mut is_fault_new = true;
        let mut calls = 0;
        IoSlice::advance_slices(&mut slices, 0);
        while !slices.is_empty() {
            match sendmsg(
                &self.socket,
                slices,
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
                Ok(count) => {
                    calls += 1;
                    is_fault_new = true;
                    IoSlice::advance_slices(&mut slices, count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let now = Instant::now();
                    let since = *full_since.get_or_insert(now);
                    if deadline.is_some_and(|deadline| now >= deadline) {
                        return Err(timed_out("sending to the peer", since));
                    }
                    let tick = now + liveness::TICK;
                    let tick = deadline.map_or(tick, |deadline| deadline.min(tick));
                    let has_room = sys::wait_one(self.socket.as_fd(), PollFlags::OUT, Some(tick))
                        .map_err(Error::io("waiting for the peer"))?;
                    if self.is_closed() {
                        return Err(Error::Closed);
                    }
                    if !has_room {
                        watch.look(&self.socket)?;
                    }
                }
                Err(Errno::FAULT) if is_fault_new && wild::read_each_page(slices) => {
                    is_fault_new = false;
                }
                Err(error) => return Err(Error::io("sending")(error)),
            }
        }
        Ok(calls)
    }

    /// Waits until the peer's host has what was sent. Closing a socket that holds unread bytes
    /// resets the connection, which would discard bytes that are still on their way.
    pub(super) fn linger(&self) {
        let deadline = Instant::now() + Duration::from_millis(LINGER_MS_MAX);
        let mut unread = [0; 4096];
        while sys::unacknowledged_bytes(self.socket.as_fd()).is_ok_and(|bytes| bytes > 0)
            && Instant::now() < deadline
        {
            match recv(&self.socket, &mut unread, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }
}

/// Returns the error for the end of the stream where the peer has said that nothing follows.
fn ended(error: Error, deframer: &Deframer) -> Error {
    match error {
        Error::Closed => deframer.end(),
        error => error,
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_ours() && !self.is_closed() {
            self.linger();
        }
    }
}
