//! Output for this process's log, which stays on the original standard error while a device
//! redirects it.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::OwnedFd,
    sync::OnceLock,
};

static KEPT: OnceLock<File> = OnceLock::new();

/// Standard error as it was when the process began.
#[derive(Debug, Default, Clone, Copy)]
pub struct Stderr;

/// Makes the writer that a `tracing` subscriber logs to.
pub fn stderr() -> Stderr {
    Stderr
}

/// Stores a copy of standard error, taken before a device redirects it; only the first call has an
/// effect. Panics are logged from then on, because their text would go to the redirected stream.
pub fn keep(fd: OwnedFd) {
    if KEPT.set(fd.into()).is_ok() {
        std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    }
}

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match KEPT.get() {
            Some(mut kept) => kept.write(bytes),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
