//! Memory that two processes map, as a file without a name.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    process::{Resource, getrlimit},
};

/// Seals of these files: their length never changes.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Returns a file of zeros in memory, whose length is sealed. The limit of a process's files
/// (`ulimit -f`) is asked before, because the kernel kills a process that exceeds it.
pub fn memory_file(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    if let Some(max) = getrlimit(Resource::Fsize).current
        && bytes > max
    {
        return Err(io::Error::other(format!(
            "{bytes} bytes of shared memory count as a file, and files are limited to {max} bytes (ulimit -f)"
        )));
    }
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}
