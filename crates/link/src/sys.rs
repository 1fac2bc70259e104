//! Thin, safe wrappers of system calls: waiting for sockets, passing descriptors, and calls that
//! rustix lacks.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::{self, MaybeUninit},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

/// Converts a `Duration` for the kernel; `None`, which means for ever, if it does not fit.
pub(crate) fn timespec(duration: Duration) -> Option<Timespec> {
    Timespec::try_from(duration).ok()
}

/// Returns the time left until `deadline`; `None` if there is none.
pub(crate) fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Waits until one of `fds` has news, for at most `timeout`, and returns how many have. A signal
/// counts as none.
pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> io::Result<usize> {
    let timeout = timeout.and_then(timespec);
    match poll(fds, timeout.as_ref()) {
        Ok(count) => Ok(count),
        Err(Errno::INTR) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Waits until `fd` is ready for `events` or has failed, and returns true; false once the deadline
/// has passed.
pub(crate) fn wait_one(
    fd: BorrowedFd<'_>,
    events: PollFlags,
    deadline: Option<Instant>,
) -> io::Result<bool> {
    loop {
        let timeout = left(deadline);
        if wait(&mut [PollFd::from_borrowed_fd(fd, events)], timeout)? > 0 {
            return Ok(true);
        }
        if timeout.is_some_and(|left| left.is_zero()) {
            return Ok(false);
        }
    }
}

/// Descriptors that travel with one message, at most.
pub(crate) const FDS_PER_MESSAGE_MAX: usize = 2;

/// Sends `bytes` and, with the first of them, `fds`. Does not block; returns the number of bytes
/// sent.
pub(crate) fn send_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
}

/// Receives into `bytes` and appends the descriptors that came with them to `fds`. Does not block.
/// The kernel closes descriptors beyond [`FDS_PER_MESSAGE_MAX`], which is reported as `EMSGSIZE`.
pub(crate) fn receive_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            fds.extend(received);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok(message.bytes)
}

/// Returns the kernel's state of a tcp connection: `struct tcp_info` of linux/tcp.h.
pub(crate) fn tcp_info(socket: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    // SAFETY: tcp_info consists of integers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    // SAFETY: tcp_info is plain integers, so any bytes that the kernel writes are valid.
    unsafe { get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) }?;
    Ok(info)
}

/// Returns the bytes that a tcp connection has received: `tcpi_bytes_received` of linux/tcp.h,
/// which lies after the end of libc's `tcp_info`. An older kernel leaves it 0.
pub(crate) fn tcp_bytes_received(socket: BorrowedFd<'_>) -> io::Result<u64> {
    const AT: usize = 128 / 8;
    let mut info = [0_u64; AT + 1];
    // SAFETY: every byte pattern is a valid integer.
    unsafe { get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info) }?;
    Ok(info[AT])
}

/// Returns device and inode of the file that has this number; `None` if there is none.
pub(crate) fn identity_of_number(fd: std::os::fd::RawFd) -> Option<(u64, u64)> {
    // SAFETY: stat consists of integers, for which zero is valid.
    let mut found: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: a number that no file has is an error, and `found` has room for the answer.
    match unsafe { libc::fstat(fd, &raw mut found) } {
        0 => Some((found.st_dev, found.st_ino)),
        _ => None,
    }
}

/// Returns the bytes of a tcp connection that the peer has not acknowledged: `SIOCOUTQ` of tcp(7).
pub(crate) fn tcp_unsent_bytes(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, for which `bytes` is room.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match rc {
        0 => Ok(u64::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the credentials of the process that connected, or that listened: `SO_PEERCRED` of
/// unix(7). The pid is 0 for a process of a foreign pid namespace (rustix's type cannot represent
/// that).
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    // SAFETY: ucred is three integers.
    unsafe { get_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut cred) }?;
    Ok(cred)
}

/// Returns a descriptor of the process that connected, or that listened, at the other end of a unix
/// socket; it becomes readable when that process ends. Linux 6.5.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// `SO_PEERPIDFD` of asm-generic/socket.h, equal on x86-64 and arm64.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: libc::c_int = -1;
    // SAFETY: a c_int has no invalid bytes.
    unsafe { get_option(socket, libc::SOL_SOCKET, SO_PEERPIDFD, &mut fd) }?;
    // SAFETY: the kernel just installed this descriptor for us, and nothing else has its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the number of bytes sent and not yet acknowledged by the peer's host: `SIOCOUTQ` of
/// tcp(7).
pub(crate) fn unacknowledged_bytes(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ writes one int, which `bytes` has room for.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    match rc {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// # Safety
///
/// Every byte pattern must be a valid `T`.
unsafe fn get_option<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut T,
) -> io::Result<()> {
    let mut len = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has room for `len` bytes, and the kernel writes no more; the caller vouches
    // for the values.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_mut(value).cast(),
            &mut len,
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `struct sched_attr` of sched(7).
#[repr(C)]
#[derive(Default)]
struct SchedulingAttributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice of a thread with the ordinary policy (Linux 6.12; ignored before).
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

fn scheduling_attributes() -> io::Result<SchedulingAttributes> {
    let mut attributes = SchedulingAttributes::default();
    let bytes = mem::size_of::<SchedulingAttributes>() as u32;
    let place = std::ptr::from_mut(&mut attributes);
    // SAFETY: the kernel writes `bytes` bytes at most, which are plain integers.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, place, bytes, 0) };
    match rc {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets the calling thread's slice, if it has the ordinary policy. Threads that it starts inherit
/// it.
pub(crate) fn set_slice(slice: Duration) -> io::Result<()> {
    let mut attributes = scheduling_attributes()?;
    if attributes.policy != libc::SCHED_OTHER.unsigned_abs() {
        return Ok(());
    }
    attributes.size = mem::size_of::<SchedulingAttributes>() as u32;
    attributes.runtime_ns = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    let place = std::ptr::from_ref(&attributes);
    // SAFETY: the kernel reads the `size` bytes of the attributes.
    let rc = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, place, 0) };
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_kept_and_inherited_if_the_kernel_has_slices() {
        std::thread::spawn(|| {
            let before = scheduling_attributes().expect("attributes").runtime_ns;
            set_slice(Duration::from_micros(200)).expect("an ordinary thread");
            let after = scheduling_attributes().expect("attributes").runtime_ns;
            // Kernels before 6.12 report no slice, and keep none.
            assert!(after == 200_000 || after == before, "{before} {after}");
            let theirs = std::thread::spawn(|| scheduling_attributes().map(|a| a.runtime_ns));
            let theirs = theirs.join().expect("a thread").expect("attributes");
            assert_eq!(theirs, after);
        })
        .join()
        .expect("no panic");
    }
}
