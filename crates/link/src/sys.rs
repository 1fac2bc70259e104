//! Thin, safe wrappers of system calls: waiting for sockets, passing descriptors, and calls that
//! rustix lacks.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::{self, MaybeUninit},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    time::{Duration, Instant},
};

use outboard_trust::KernelKey;
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
/// The kernel closes descriptors beyond [`FDS_PER_MESSAGE_MAX`], which is reported as `EMSGSIZE`,
/// and those that this process may not have (`ulimit -n`), which is reported as `EMFILE`.
pub(crate) fn receive_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_MESSAGE_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let before = fds.len();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = ancillary {
            fds.extend(received);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        // There was room for more, so the kernel had no number for the next one.
        let has_room = fds.len() - before < FDS_PER_MESSAGE_MAX;
        return Err(if has_room {
            Errno::MFILE
        } else {
            Errno::MSGSIZE
        });
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

/// Has the kernel send the acknowledgement that it holds back for a tcp connection, if any, and go
/// on holding them back: `TCP_QUICKACK` with an even number (`__tcp_sock_set_quickack` of Linux).
pub(crate) fn acknowledge(socket: BorrowedFd<'_>) -> io::Result<()> {
    const ONCE: libc::c_int = 2;
    // SAFETY: the option is an integer, which the kernel reads during the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_QUICKACK,
            std::ptr::from_ref(&ONCE).cast(),
            mem::size_of_val(&ONCE) as libc::socklen_t,
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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

/// Directions of a connection for the kernel's TLS: `TLS_TX` and `TLS_RX` of linux/tls.h.
pub(crate) const TLS_TX: libc::c_int = 1;
pub(crate) const TLS_RX: libc::c_int = 2;

/// `struct tls12_crypto_info_aes_gcm_128` of linux/tls.h.
#[repr(C)]
struct Aes128Gcm {
    version: u16,
    cipher: u16,
    iv: [u8; 8],
    key: [u8; 16],
    salt: [u8; 4],
    record: [u8; 8],
}

const _: () = assert!(mem::size_of::<Aes128Gcm>() == 40);

/// Gives a tcp connection to the kernel's TLS, which changes nothing before it has keys. ENOENT if
/// the kernel has none; ENOTCONN for a socket that is not connected.
pub(crate) fn use_kernel_tls(socket: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the option is any bytes that end with a 0 or with the length.
    unsafe { set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_ULP, b"tls") }
}

/// Gives the kernel's TLS the key of a direction.
pub(crate) fn set_kernel_tls_key(
    socket: impl AsFd,
    direction: libc::c_int,
    key: &KernelKey,
) -> Result<(), Errno> {
    const TLS_1_3_VERSION: u16 = 0x0304;
    const TLS_CIPHER_AES_GCM_128: u16 = 51;
    let info = Aes128Gcm {
        version: TLS_1_3_VERSION,
        cipher: TLS_CIPHER_AES_GCM_128,
        iv: key.iv,
        key: key.key,
        salt: key.salt,
        record: key.record,
    };
    // SAFETY: the option is this structure, which has no padding.
    unsafe { set_option(socket.as_fd(), libc::SOL_TLS, direction, &info) }
}

/// Has the kernel decrypt records where the caller wants their data, since none has padding.
pub(crate) fn expect_no_padding(socket: impl AsFd) -> Result<(), Errno> {
    const TLS_RX_EXPECT_NO_PAD: libc::c_int = 4;
    let yes: libc::c_int = 1;
    // SAFETY: the option is an int.
    unsafe { set_option(socket.as_fd(), libc::SOL_TLS, TLS_RX_EXPECT_NO_PAD, &yes) }
}

/// Room for one control message that has a byte, aligned as one.
#[repr(C)]
union KindOfRecord {
    header: libc::cmsghdr,
    bytes: [u8; mem::size_of::<libc::cmsghdr>() + mem::size_of::<usize>()],
}

fn message_of(parts: &mut libc::iovec, kind: &mut KindOfRecord) -> libc::msghdr {
    // SAFETY: msghdr is integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = parts;
    message.msg_iovlen = 1;
    message.msg_control = std::ptr::from_mut(kind).cast();
    message.msg_controllen = mem::size_of::<KindOfRecord>() as _;
    message
}

fn count_of(rc: isize) -> Result<usize, Errno> {
    usize::try_from(rc).map_err(|_| {
        let error = io::Error::last_os_error();
        Errno::from_io_error(&error).unwrap_or(Errno::IO)
    })
}

/// Sends `bytes` as one record of this kind by the kernel's TLS.
pub(crate) fn send_control(
    socket: impl AsFd,
    kind: u8,
    bytes: &[u8],
    may_block: bool,
) -> Result<usize, Errno> {
    const TLS_SET_RECORD_TYPE: libc::c_int = 1;
    let mut parts = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut room = KindOfRecord { bytes: [0; _] };
    let message = message_of(&mut parts, &mut room);
    // SAFETY: the control buffer is aligned, and has room for a header and a byte, so there is a
    // first header; both are written within it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_TLS;
        (*header).cmsg_type = TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as _;
        *libc::CMSG_DATA(header) = kind;
    }
    let flags = match may_block {
        true => libc::MSG_NOSIGNAL,
        false => libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
    };
    // SAFETY: `message` points to `parts`, to `bytes` through it, and to `room`, which all outlive
    // the call; the kernel only reads them.
    let rc = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
    count_of(rc)
}

/// Receives a record by the kernel's TLS, and its kind. Does not block. EMSGSIZE if the record is
/// longer than `bytes`.
pub(crate) fn receive_control(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, u8), Errno> {
    const TLS_GET_RECORD_TYPE: libc::c_int = 2;
    let mut parts = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut room = KindOfRecord { bytes: [0; _] };
    let mut message = message_of(&mut parts, &mut room);
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: `message` points to `parts`, to `bytes` through it, and to `room`, which all outlive
    // the call and have the lengths that it says.
    let rc = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags) };
    let count = count_of(rc)?;
    // SAFETY: the kernel has set the length of the control messages within the buffer; a first
    // header is there if they are at least as long as one.
    let kind = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        match header.as_ref() {
            Some(found)
                if found.cmsg_level == libc::SOL_TLS && found.cmsg_type == TLS_GET_RECORD_TYPE =>
            {
                *libc::CMSG_DATA(header)
            }
            _ => return Err(Errno::BADMSG),
        }
    };
    match message.msg_flags & libc::MSG_EOR {
        0 => Err(Errno::MSGSIZE),
        _ => Ok((count, kind)),
    }
}

/// # Safety
///
/// The option must be one whose value is a `T` without padding.
unsafe fn set_option<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> Result<(), Errno> {
    // SAFETY: the kernel reads the bytes of `value`, and no more.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            mem::size_of::<T>() as libc::socklen_t,
        )
    };
    count_of(rc as isize).map(|_| ())
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
