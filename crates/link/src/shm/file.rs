//! Memory that two processes map, as a file without a name.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::Errno,
    process::{Resource, getrlimit},
};

/// Seals of these files: their length never changes.
pub(super) const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Fails if a file of this length exceeds the limit of the process's files (`ulimit -f`): the
/// kernel kills a process that tries.
pub fn check_file_limit(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(max) if bytes > max => Err(io::Error::other(format!(
            "{bytes} bytes of shared memory count as a file, and files are limited to {max} bytes (ulimit -f)"
        ))),
        _ => Ok(()),
    }
}

/// Fails if this process gets no file of this length in memory, as in a sandbox without
/// memfd_create, or with a limit of its files.
pub(super) fn check_memory_file(bytes: u64) -> io::Result<()> {
    check_file_limit(bytes)?;
    memfd_create("outboard-link", MemfdFlags::CLOEXEC)
        .map(drop)
        .map_err(refused)
}

fn refused(error: Errno) -> io::Error {
    io::Error::other(format!("memfd_create: {error}"))
}

/// Returns a file of zeros in memory, whose length is sealed.
pub(super) fn memory_file(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    check_file_limit(bytes)?;
    let file =
        memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(refused)?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}
