//! The check before a server says that it listens: could a client be served?

use std::{io, path::Path, time::Duration};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{Mode, OFlags, open},
};

use super::{ServeError, ServeOptions, start_worker};
use crate::{
    admission::{Order, Report},
    limits,
};

/// Files that every start of a worker needs, with what for.
const NEEDED: [(&str, OFlags, &str); 2] = [
    (
        "/proc/self/exe",
        OFlags::PATH,
        "workers are started from it; is /proc mounted?",
    ),
    (
        "/dev/null",
        OFlags::RDWR,
        "it is the standard input of workers",
    ),
];

/// Starts a worker that confines itself as all do, and ends. The error says what is missing here.
pub(super) fn check(options: &ServeOptions) -> Result<(), ServeError> {
    for (path, flags, what_for) in NEEDED {
        open(path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            ServeError::Missing {
                path: Path::new(path),
                what_for,
                source: error.into(),
            }
        })?;
    }
    try_worker(options).map_err(ServeError::Worker)
}

fn try_worker(options: &ServeOptions) -> io::Result<()> {
    let (mut child, control) = start_worker(options, None, &Order::Try, None)?;
    let limit = Timespec::try_from(Duration::from_millis(limits::TRY_MS_MAX)).ok();
    let mut fds = [PollFd::new(&control, PollFlags::IN)];
    let is_heard = rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))? > 0;
    let works = is_heard && matches!(control.receive(), Ok(Some((Report::Works, _))));
    if !works && !is_heard {
        let _ = child.kill();
    }
    let status = child.wait()?;
    match (works, is_heard) {
        (true, _) => Ok(()),
        (false, true) => Err(io::Error::other(format!(
            "it ended with {status} before it could serve anyone"
        ))),
        (false, false) => Err(io::Error::other(format!(
            "it said nothing for {} ms",
            limits::TRY_MS_MAX
        ))),
    }
}
