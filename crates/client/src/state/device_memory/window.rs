//! The reservation of device addresses in this process: all of the server's window, or less of it
//! if the process may not have as many addresses (`ulimit -v`).

use std::io;

use super::CHUNK_BYTES;

/// Part of a limited address space that device memory takes. The rest is the program's.
const PART_OF_LIMIT: u64 = 4;
/// Least window with which a program is served: some chunks for each device and the libraries' own.
const BYTES_MIN: u64 = 64 << 20;

/// Addresses that are reserved from the window's start on.
pub(super) struct Reserved {
    pub(super) bytes: u64,
    /// The limit of the address space in bytes, if it is the reason why there are not more.
    pub(super) limit: Option<u64>,
}

/// Reserves addresses so that nothing else is mapped there.
pub(super) fn reserve(base: u64, bytes: u64) -> Result<Reserved, String> {
    let error = match map(base, bytes) {
        Ok(()) => return Ok(Reserved { bytes, limit: None }),
        Err(error) => error,
    };
    let failed = |bytes: u64, error: &io::Error| {
        format!(
            "{bytes:#x} bytes of addresses at {base:#x} cannot be reserved in this process: {error}"
        )
    };
    let limit = address_limit().filter(|_| error.raw_os_error() == Some(libc::ENOMEM));
    let Some(limit) = limit else {
        return Err(failed(bytes, &error));
    };
    // Halved as long as the program's own mappings leave too few.
    let mut less = (limit / PART_OF_LIMIT).min(bytes) / CHUNK_BYTES * CHUNK_BYTES;
    while less >= BYTES_MIN {
        if map(base, less).is_ok() {
            return Ok(Reserved {
                bytes: less,
                limit: Some(limit),
            });
        }
        less = less / 2 / CHUNK_BYTES * CHUNK_BYTES;
    }
    Err(format!(
        "{}; the address space is limited to {} KiB (ulimit -v)",
        failed(BYTES_MIN, &error),
        limit >> 10
    ))
}

fn map(base: u64, bytes: u64) -> io::Result<()> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let at = base as *mut libc::c_void;
    // SAFETY: a fresh mapping that replaces nothing and allows no access.
    let got = unsafe { libc::mmap(at, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if got != at {
        // SAFETY: an old kernel ignored the flag and mapped elsewhere; nothing uses this mapping.
        unsafe { libc::munmap(got, bytes as usize) };
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    // SAFETY: the mapping just made. Core dumps leave it out: it is empty.
    unsafe { libc::madvise(got, bytes as usize, libc::MADV_DONTDUMP) };
    Ok(())
}

/// Returns the limit of this process's address space in bytes, if there is one.
fn address_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the kernel writes a limit to a limit.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    (got == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}
