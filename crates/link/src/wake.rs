//! A wake-up that one thread leaves for another that waits in `poll`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::fstat,
};

use crate::{Error, sys};

/// Readable while a wake-up is pending.
pub(crate) struct WakeUp {
    event: OwnedFd,
    identity: (u64, u64),
}

impl WakeUp {
    pub(crate) fn new() -> Result<WakeUp, Error> {
        const DOING: &str = "making an eventfd";
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags).map_err(Error::io(DOING))?;
        let identity = identity(event.as_fd()).ok_or(Error::Closed)?;
        Ok(WakeUp { event, identity })
    }

    pub(crate) fn wake(&self) {
        if self.is_intact() {
            // The counter is full after 2^64 - 2 wake-ups, and then still readable.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Returns whether a wake-up was pending, which it is no more.
    pub(crate) fn take(&self) -> bool {
        self.is_intact() && rustix::io::read(&self.event, &mut [0; 8]).is_ok()
    }

    /// Returns false if the program has closed all descriptors (closefrom(3)) and opened a file of
    /// its own under this number.
    fn is_intact(&self) -> bool {
        identity(self.event.as_fd()) == Some(self.identity)
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Device and inode, which eventfds share with each other and with no file.
pub(crate) fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let found = fstat(fd).ok()?;
    Some((found.st_dev, found.st_ino))
}

/// A descriptor by its number and its identity, to be closed where only the number is at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownFd {
    fd: RawFd,
    identity: (u64, u64),
}

impl KnownFd {
    /// Returns `None` for a number that no file has.
    pub fn of(fd: BorrowedFd<'_>) -> Option<KnownFd> {
        Some(KnownFd {
            fd: fd.as_raw_fd(),
            identity: identity(fd)?,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// Returns whether the number is still that of the same file. A program may close all
    /// descriptors, and get their numbers for its own files.
    pub fn is_intact(&self) -> bool {
        sys::identity_of_number(self.fd) == Some(self.identity)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        io::{Seek as _, Write as _},
        mem::ManuallyDrop,
    };

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn a_wake_up_is_taken_once() {
        let wake = WakeUp::new().unwrap();
        assert!(!wake.take());
        wake.wake();
        wake.wake();
        assert!(wake.take());
        assert!(!wake.take());
    }

    #[test]
    fn a_file_under_the_number_is_neither_written_nor_read() {
        let mut wake = WakeUp::new().unwrap();
        let file = memfd_create("the program's", MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(file);
        file.write_all(b"the program's").unwrap();
        file.rewind().unwrap();
        rustix::io::dup2(&file, &mut wake.event).unwrap();
        // The number is the file's now, and both are closed once.
        let wake = ManuallyDrop::new(wake);
        wake.wake();
        assert!(!wake.take());
        assert_eq!(file.stream_position().unwrap(), 0);
        assert_eq!(file.metadata().unwrap().len(), 13);
    }
}
