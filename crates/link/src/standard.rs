//! Standard input, output and error of a program that was started without them.

use std::{mem, os::fd::AsRawFd as _};

use rustix::fs::{Mode, OFlags, open};

/// Opens `/dev/null` as those of the descriptors 0 to 2 that are closed. Otherwise a socket or a
/// file of ours, made after this call, would become one of them, and the program's output would go
/// into it. Programs that are executed find the descriptors closed, as they were.
pub fn fill_standard_descriptors() {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    while let Ok(file) = open(c"/dev/null", flags, Mode::empty()) {
        if file.as_raw_fd() > libc::STDERR_FILENO {
            return;
        }
        mem::forget(file);
    }
}
