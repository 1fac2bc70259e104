//! Physical allocations (`cuMemCreate`): memory that can be mapped at several addresses and outlives its mappings.

use std::{
    fmt, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::Arc,
};

use super::work::Mapping;
use crate::memory::{Memory, MemoryError};

/// Memory without an address, in an anonymous file. Clones are the same memory.
#[derive(Clone)]
pub struct Physical {
    file: Arc<OwnedFd>,
    bytes: u64,
}

impl fmt::Debug for Physical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Physical({} bytes)", self.bytes)
    }
}

impl Physical {
    pub fn new(bytes: u64) -> io::Result<Physical> {
        // SAFETY: a literal with its NUL; the flags are plain bits.
        let fd = unsafe { libc::memfd_create(c"device memory".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let len = i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: our own descriptor.
        if unsafe { libc::ftruncate(file.as_raw_fd(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Physical {
            file: Arc::new(file),
            bytes,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Mapping {
    /// Puts the memory into the window.
    pub(super) fn apply(&self, memory: &Memory) -> Result<(), MemoryError> {
        memory.map(self.address, self.bytes)?;
        let Some((physical, offset)) = &self.backing else {
            return Ok(());
        };
        // SAFETY: the range was just mapped by us as anonymous pages and belongs to nobody else; replacing them by
        // pages of the file keeps it readable and writable throughout.
        let got = unsafe {
            libc::mmap(
                self.address as *mut libc::c_void,
                self.bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                physical.file.as_raw_fd(),
                *offset as i64,
            )
        };
        if got == libc::MAP_FAILED {
            let _ = memory.unmap(self.address);
            return Err(MemoryError::OutOfMemory { bytes: self.bytes });
        }
        // What it holds from before is not known.
        memory.mark_written(self.address, self.bytes);
        Ok(())
    }
}
