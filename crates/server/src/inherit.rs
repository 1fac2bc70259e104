//! Descriptors that a worker inherits.

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, Stdio},
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    process::{Signal, getpid, getppid, set_parent_process_death_signal},
};
use thiserror::Error;

use crate::limits;

/// Starts this program itself, even if its file was replaced meanwhile, so supervisor and worker
/// are of one release.
pub(super) fn this_executable() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("outboard");
    command
}

/// Starts `command` with the descriptor's number as the value of `flag`. The child has no input,
/// logs to the server's standard error, does not receive the terminal's Ctrl-C, and is killed when
/// the server dies.
pub(super) fn pass(command: &mut Command, flag: &str, fd: OwnedFd) -> io::Result<Child> {
    let number = fd.as_raw_fd();
    command
        .arg(flag)
        .arg(number.to_string())
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .process_group(0);
    let supervisor = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The supervisor may have died before the line above.
        if getppid() != Some(supervisor) {
            return Err(io::ErrorKind::NotFound.into());
        }
        // SAFETY: the parent holds the descriptor open until spawn has returned, and this process
        // is a copy of it.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(fcntl_setfd(fd, FdFlags::empty())?)
    };
    // SAFETY: between fork and exec `prepare` makes system calls only; it allocates nothing and
    // takes no lock.
    unsafe { command.pre_exec(prepare) };
    let child = command.spawn();
    drop(fd);
    child
}

/// First descriptor of a service manager's (`SD_LISTEN_FDS_START`).
const OPENED_FIRST: RawFd = 3;

/// Why the sockets of a service manager cannot be taken over.
#[derive(Debug, Error)]
pub enum OpenedError {
    #[error("{name}={value:?} is no number; a service manager sets it (sd_listen_fds(3))")]
    NoNumber { name: &'static str, value: OsString },
    #[error(
        "LISTEN_FDS={count}: a service manager passes 1 to {} sockets on",
        limits::OPENED_SOCKETS_MAX
    )]
    Count { count: u64 },
    #[error("LISTEN_FDS={count}, but descriptor {number} cannot be taken over: {source}")]
    Descriptor {
        count: u64,
        number: RawFd,
        source: io::Error,
    },
}

/// Returns the listening sockets that a service manager has opened for this process, and their
/// numbers: `LISTEN_FDS` of sd_listen_fds(3). To be called once, before the process opens anything.
pub fn opened_sockets() -> Result<Vec<(RawFd, OwnedFd)>, OpenedError> {
    let number = |name| match std::env::var_os(name) {
        None => Ok(None),
        Some(value) => match value.to_str().and_then(|text| text.parse::<u64>().ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(OpenedError::NoNumber { name, value }),
        },
    };
    let own = getpid().as_raw_nonzero().get() as u64;
    // Sockets for another process, such as the one that started this one, are not its.
    if number("LISTEN_PID")? != Some(own) {
        return Ok(Vec::new());
    }
    let Some(count) = number("LISTEN_FDS")? else {
        return Ok(Vec::new());
    };
    if !(1..=limits::OPENED_SOCKETS_MAX.into()).contains(&count) {
        return Err(OpenedError::Count { count });
    }
    let numbers = (OPENED_FIRST..).take(count as usize);
    let taken = numbers.map(|number| match take(number) {
        Ok(socket) => Ok((number, socket)),
        Err(source) => Err(OpenedError::Descriptor {
            count,
            number,
            source,
        }),
    });
    taken.collect()
}

/// Takes ownership of a descriptor whose number came on the command line.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    if number <= 2 {
        return Err(io::Error::other("the standard streams are not passed on"));
    }
    // SAFETY: fcntl accepts any number; it fails if the number is no open descriptor.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the supervisor made it for this process, so nothing else
    // here owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
    Ok(fd)
}
