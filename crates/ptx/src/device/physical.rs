//! Physical allocations (`cuMemCreate`): memory that can be mapped at several addresses and
//! outlives its mappings.

use std::{
    fmt, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::Arc,
};

use super::{error::Error, work::Mapping};
use crate::memory::{Memory, MemoryError};

/// Memory without an address, in an anonymous file. Clones share the memory.
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
        // SAFETY: the name is a literal with its NUL; the flags are plain bits.
        let fd = unsafe { libc::memfd_create(c"device memory".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so nothing else owns it.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let len = i64::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: ftruncate touches no memory; the descriptor is open.
        if unsafe { libc::ftruncate(file.as_raw_fd(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Physical {
            file: Arc::new(file),
            bytes,
        })
    }

    /// Wraps memory of another process.
    pub fn from_file(file: OwnedFd, bytes: u64) -> Physical {
        Physical {
            file: Arc::new(file),
            bytes,
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Replaces mapped memory that nothing uses now by a new allocation with equal contents.
    pub(super) fn replace(memory: &Memory, address: u64, bytes: u64) -> Result<Physical, Error> {
        let failed = |error: io::Error| Error::InvalidValue(format!("memory to share: {error}"));
        let physical = Physical::new(bytes).map_err(failed)?;
        let mut piece = vec![0; PIECE_BYTES.min(bytes as usize)];
        let mut at = 0;
        while at < bytes {
            let len = (bytes - at).min(PIECE_BYTES as u64) as usize;
            let piece = &mut piece[..len];
            memory
                .read(address + at, piece)
                .map_err(|e| Error::InvalidValue(e.to_string()))?;
            // Pages of zeros are not written, so that the file has no pages for them.
            if piece.iter().any(|byte| *byte != 0) {
                let file = std::fs::File::from(physical.file.try_clone().map_err(failed)?);
                file.write_all_at(piece, at).map_err(failed)?;
            }
            at += len as u64;
        }
        match map_file(&physical.file, 0, address, bytes) {
            true => Ok(physical),
            false => Err(failed(io::Error::last_os_error())),
        }
    }
}

/// Bytes copied at once.
const PIECE_BYTES: usize = 1 << 20;

/// Maps pages of a file over existing anonymous pages.
fn map_file(file: &OwnedFd, offset: u64, address: u64, bytes: u64) -> bool {
    // SAFETY: this process mapped the range as anonymous pages, and nothing else owns it; after the
    // call it is still mapped readable and writable.
    let got = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED,
            file.as_raw_fd(),
            offset as i64,
        )
    };
    got != libc::MAP_FAILED
}

impl Mapping {
    /// Maps the memory into the window.
    pub(super) fn apply(&self, memory: &Memory) -> Result<(), MemoryError> {
        memory.map(self.address, self.bytes)?;
        let Some((physical, offset)) = &self.backing else {
            return Ok(());
        };
        if !map_file(&physical.file, *offset, self.address, self.bytes) {
            let _ = memory.unmap(self.address);
            return Err(MemoryError::OutOfMemory { bytes: self.bytes });
        }
        // Its earlier contents are unknown.
        memory.mark_written(self.address, self.bytes);
        Ok(())
    }
}
