//! Memory that the kernel shares.

use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

/// Mapped memory, unmapped when this is dropped.
pub(super) struct Mapping {
    pub(super) begin: *mut u8,
    pub(super) bytes: usize,
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps a part of a socket's rings, or of a file in memory.
    pub(super) fn of(file: &OwnedFd, offset: u64, bytes: usize) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        let hint = std::ptr::null_mut();
        // SAFETY: new memory at a place of the kernel's choice.
        let begin =
            unsafe { rustix::mm::mmap(hint, bytes, protection, flags, file.as_fd(), offset) }?;
        Ok(Mapping {
            begin: begin.cast(),
            bytes,
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is whole, and nothing keeps a pointer into it.
        let _ = unsafe { rustix::mm::munmap(self.begin.cast(), self.bytes) };
    }
}
