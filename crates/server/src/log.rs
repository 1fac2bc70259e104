//! Where this process writes its own log, while a device has led standard error elsewhere.

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

/// For a subscriber of `tracing`.
pub fn stderr() -> Stderr {
    Stderr
}

/// A copy of standard error, taken before it is led elsewhere. The first one stays. Panics are logged from then on, too: what they
/// say would otherwise go elsewhere.
pub(crate) fn keep(fd: OwnedFd) {
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
