//! The process at the other end of a shm link: detects its death, and passes descriptors to and
//! from it.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use outboard_wire::limits::{FDS_PENDING_MAX, HANDSHAKE_MS_MAX, PEER_DEATH_MS_MAX};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};

use super::map::{LAYOUT_VERSION, MAGIC};
use crate::{
    Error,
    deadline::{deadline_after, timed_out},
    sys,
};

/// Interval at which a waiting side looks whether the peer lives: half of the promise, since a peer
/// may die right after a look.
pub(super) const TICK: Duration = Duration::from_millis(PEER_DEATH_MS_MAX / 2);

/// The server's only message before the rings are in use. Its descriptors are the rings' file and,
/// if the kernel offers it, the worker's pidfd.
pub(super) struct Setup {
    pub(super) ring_bytes: u64,
    pub(super) file: OwnedFd,
    pub(super) pidfd: Option<OwnedFd>,
}

const SETUP_BYTES: usize = 24;

pub(super) struct Peer {
    socket: OwnedFd,
    /// Readable once the peer process ended. The socket alone would not show it: a child that the
    /// peer forked, or the supervisor that accepted it, may hold the other end open.
    pidfd: Option<OwnedFd>,
    owner_pid: u32,
}

impl Peer {
    pub(super) fn new(socket: OwnedFd, pidfd: Option<OwnedFd>) -> Self {
        Self {
            socket,
            pidfd,
            owner_pid: std::process::id(),
        }
    }

    /// Returns true if this process made the link, false if it inherited a copy by fork.
    pub(super) fn is_ours(&self) -> bool {
        self.owner_pid == std::process::id()
    }

    /// Returns true if the peer process ended or closed its end of the socket.
    pub(super) fn is_gone(&self) -> bool {
        // Errors and hang-ups are always reported; ordinary data is not asked for.
        let socket = PollFd::new(&self.socket, PollFlags::RDHUP);
        let zero = Some(Duration::ZERO);
        let news = match &self.pidfd {
            None => sys::wait(&mut [socket], zero),
            Some(pidfd) => sys::wait(&mut [socket, PollFd::new(pidfd, PollFlags::IN)], zero),
        };
        // poll fails only when the kernel is out of memory; the next look will show it.
        news.is_ok_and(|count| count > 0)
    }

    pub(super) fn send_fd(
        &self,
        tag: u64,
        fd: BorrowedFd<'_>,
        is_closed: impl Fn() -> bool,
    ) -> Result<(), Error> {
        send_all(&self.socket, &tag.to_le_bytes(), &[fd], || {
            if is_closed() || self.is_gone() {
                return Err(Error::Closed);
            }
            Ok(())
        })
    }
}

/// Descriptors that have arrived, and the start of the next message.
#[derive(Default)]
pub(super) struct Inbox {
    pending: Vec<(u64, OwnedFd)>,
    tag: [u8; 8],
    tag_len: usize,
    fds: Vec<OwnedFd>,
}

impl Inbox {
    pub(super) fn receive(
        &mut self,
        peer: &Peer,
        tag: u64,
        deadline: Instant,
        is_closed: impl Fn() -> bool,
    ) -> Result<OwnedFd, Error> {
        let start = Instant::now();
        loop {
            if let Some(at) = self.pending.iter().position(|(t, _)| *t == tag) {
                return Ok(self.pending.swap_remove(at).1);
            }
            if is_closed() {
                return Err(Error::Closed);
            }
            // Looked at before the socket: what a peer sent before it died is delivered.
            let was_gone = peer.is_gone();
            let rest = &mut self.tag[self.tag_len..];
            match sys::receive_with_fds(peer.socket.as_fd(), rest, &mut self.fds) {
                Ok(0) => return Err(Error::Closed),
                Ok(count) => {
                    self.tag_len += count;
                    self.file_away()?;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if was_gone => return Err(Error::Closed),
                Err(Errno::AGAIN) => {
                    let now = Instant::now();
                    if now >= deadline {
                        return Err(timed_out("waiting for a file descriptor", start));
                    }
                    let until = deadline.min(now + TICK);
                    sys::wait_one(peer.socket.as_fd(), PollFlags::IN, Some(until))
                        .map_err(Error::io("waiting for a file descriptor"))?;
                }
                Err(Errno::MSGSIZE) => return Err(wrong_fds(sys::FDS_PER_MESSAGE_MAX)),
                Err(error) => return Err(Error::io("receiving a file descriptor")(error)),
            }
        }
    }

    fn file_away(&mut self) -> Result<(), Error> {
        if self.tag_len < self.tag.len() {
            return Ok(());
        }
        self.tag_len = 0;
        let count = self.fds.len();
        let (Some(fd), 1) = (self.fds.pop(), count) else {
            self.fds.clear();
            return Err(wrong_fds(count));
        };
        if self.pending.len() >= FDS_PENDING_MAX {
            return Err(Error::PeerMisbehaved {
                what: "file descriptors that nobody asked for",
                got: FDS_PENDING_MAX as u64 + 1,
                allowed: FDS_PENDING_MAX as u64,
            });
        }
        self.pending.push((u64::from_le_bytes(self.tag), fd));
        Ok(())
    }
}

pub(super) fn send_setup(
    socket: &OwnedFd,
    ring_bytes: u64,
    file: BorrowedFd<'_>,
    pidfd: Option<BorrowedFd<'_>>,
) -> Result<(), Error> {
    let mut bytes = [0; SETUP_BYTES];
    bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[8..12].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
    bytes[16..].copy_from_slice(&ring_bytes.to_le_bytes());
    let start = Instant::now();
    let deadline = deadline_after(Duration::from_millis(HANDSHAKE_MS_MAX));
    let fds: Vec<_> = [Some(file), pidfd].into_iter().flatten().collect();
    send_all(socket, &bytes, &fds, || {
        if Instant::now() >= deadline {
            return Err(timed_out("passing shared memory to the client", start));
        }
        Ok(())
    })
}

pub(super) fn receive_setup(socket: &OwnedFd, deadline: Instant) -> Result<Setup, Error> {
    const WHAT: &str = "the server's shared memory";
    let start = Instant::now();
    let mut bytes = [0; SETUP_BYTES];
    let mut fds = Vec::new();
    let mut have = 0;
    while have < SETUP_BYTES {
        match sys::receive_with_fds(socket.as_fd(), &mut bytes[have..], &mut fds) {
            Ok(0) if have == 0 => return Err(Error::Closed),
            Ok(0) => {
                let want = SETUP_BYTES;
                return Err(Error::Truncated { have, want });
            }
            Ok(count) => have += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let ready = sys::wait_one(socket.as_fd(), PollFlags::IN, Some(deadline))
                    .map_err(Error::io("waiting for the server's shared memory"))?;
                if !ready {
                    return Err(timed_out(WHAT, start));
                }
            }
            Err(Errno::MSGSIZE) => return Err(wrong_fds(sys::FDS_PER_MESSAGE_MAX)),
            Err(error) => return Err(Error::io("receiving the server's shared memory")(error)),
        }
    }
    let u64_at = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let found = [u64_at(0), u64_at(8)];
    for (got, allowed) in found.into_iter().zip([MAGIC, LAYOUT_VERSION.into()]) {
        if got != allowed {
            let what = "shared memory of another layout";
            return Err(Error::PeerMisbehaved { what, got, allowed });
        }
    }
    let mut fds = fds.into_iter();
    let Some(file) = fds.next() else {
        return Err(wrong_fds(0));
    };
    Ok(Setup {
        ring_bytes: u64_at(16),
        file,
        pidfd: fds.next(),
    })
}

/// Sends a message whose first byte carries `fds`. While the socket is full, `may_wait` is called
/// every tick.
fn send_all(
    socket: &OwnedFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    mut may_wait: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    let mut sent = 0;
    while sent < bytes.len() {
        let fds = if sent == 0 { fds } else { &[] };
        match sys::send_with_fds(socket.as_fd(), &bytes[sent..], fds) {
            Ok(count) => sent += count,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => {
                may_wait()?;
                // The kernel has an event for room in a full socket, but none for descriptors in
                // flight.
                let tick = Some(Instant::now() + TICK);
                sys::wait_one(socket.as_fd(), PollFlags::OUT, tick)
                    .map_err(Error::io("waiting to pass a file descriptor"))?;
            }
            Err(error) => return Err(Error::io("passing a file descriptor")(error)),
        }
    }
    Ok(())
}

fn wrong_fds(got: usize) -> Error {
    Error::PeerMisbehaved {
        what: "a message with that many file descriptors",
        got: got as u64,
        allowed: 1,
    }
}
