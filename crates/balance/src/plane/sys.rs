//! System calls for TUN devices and packet sockets that rustix lacks.

use super::PlaneError;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

/// A packet socket bound to one interface.
pub(super) struct PacketSocket {
    pub(super) fd: OwnedFd,
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
}

/// All kinds of Ethernet frames, as the kernel wants it.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
const QUEUE_BYTES: i32 = 8 << 20;

fn failed<'a>(interface: &'a str, step: &'static str) -> impl Fn(io::Error) -> PlaneError + 'a {
    move |source| PlaneError::System {
        interface: interface.to_string(),
        step,
        source,
    }
}

/// Returns the result of a system call, or its error.
fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Opens a TUN device whose frames have a header of checksums and segments.
pub(super) fn open_tun(name: &str) -> Result<OwnedFd, PlaneError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
        .map_err(|error| failed(name, "opening /dev/net/tun")(error.into()))?;
    // SAFETY: the request is numbers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(failed(name, "its name")(io::ErrorKind::InvalidInput.into()));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags =
        (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: the request is whole, and TUNSETIFF reads no more than it.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw const request) }).map_err(
        failed(
            name,
            "making the TUN device of this name, which is not where packets come from",
        ),
    )?;
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // SAFETY: TUNSETOFFLOAD takes a number.
    checked(unsafe {
        libc::ioctl(
            fd.as_raw_fd(),
            libc::TUNSETOFFLOAD,
            libc::c_ulong::from(offloads),
        )
    })
    .map_err(failed(name, "its offloads"))?;
    bring_up(name, request).map_err(failed(name, "bringing it up"))?;
    Ok(fd)
}

/// Brings an interface up.
fn bring_up(_name: &str, mut request: libc::ifreq) -> io::Result<()> {
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::DGRAM,
        None,
    )?;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is whole, and SIOCSIFFLAGS reads no more than it.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) })?;
    Ok(())
}

/// Opens a packet socket that gets all frames that come in at an interface. `prepare` is called
/// before the first can come.
pub(super) fn open_packet<T>(
    name: &str,
    prepare: impl FnOnce(&OwnedFd) -> T,
) -> Result<(PacketSocket, T), PlaneError> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes numbers only.
    let fd = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })
        .map_err(failed(name, "opening a packet socket"))?;
    // SAFETY: the call has returned this descriptor, and nothing else has it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let index = rustix::net::netdevice::name_to_index(fd.as_fd(), name)
        .map_err(|error| failed(name, "finding it")(error.into()))?;
    let step = failed(name, "setting up the packet socket");
    // Frames that this machine sends itself are not for the balancer.
    set_option(&fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1).map_err(&step)?;
    set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1).map_err(&step)?;
    widen(&fd).map_err(&step)?;
    let prepared = prepare(&fd);
    let mac = bind(&fd, index).map_err(&step)?;
    let socket = PacketSocket {
        fd,
        name: name.to_string(),
        index,
        mac: mac.ok_or_else(|| PlaneError::NotEthernet(name.to_string()))?,
    };
    Ok((socket, prepared))
}

/// Gives a socket much memory for frames both ways: virtual devices account a frame to its sender
/// until it is read. Without the right to it, the kernel's limit holds.
pub(super) fn widen(fd: &OwnedFd) -> io::Result<()> {
    for (forced, usual) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        if set_option(fd, libc::SOL_SOCKET, forced, QUEUE_BYTES).is_err() {
            set_option(fd, libc::SOL_SOCKET, usual, QUEUE_BYTES)?;
        }
    }
    Ok(())
}

pub(super) fn set_option(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    let pointer = (&raw const value).cast();
    // SAFETY: `pointer` is to a number of `length` bytes, which lives until the call returns.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, pointer, length) })?;
    Ok(())
}

/// Gives a packet socket a ring for frames that come.
pub(super) fn set_receive_ring(fd: &OwnedFd, request: &libc::tpacket_req) -> io::Result<()> {
    let length = size_of::<libc::tpacket_req>() as libc::socklen_t;
    let pointer = (&raw const *request).cast();
    let (level, option) = (libc::SOL_PACKET, libc::PACKET_RX_RING);
    // SAFETY: `pointer` is to a whole request, which is borrowed across the call.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, pointer, length) })?;
    Ok(())
}

/// Binds a packet socket to an interface. Returns its hardware address if it is Ethernet.
fn bind(fd: &OwnedFd, index: u32) -> io::Result<Option<[u8; 6]>> {
    // SAFETY: an address is numbers and bytes, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ALL;
    address.sll_ifindex = index as i32;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` is a whole address of `length` bytes.
    checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })?;
    let address = bound_to(fd)?;
    let is_ethernet = address.sll_hatype == libc::ARPHRD_ETHER && address.sll_halen == 6;
    let [a, b, c, d, e, f, ..] = address.sll_addr;
    Ok(is_ethernet.then_some([a, b, c, d, e, f]))
}

/// Returns the index of the interface to which a packet socket is bound: -1 once that is gone.
pub(super) fn bound_index(fd: &OwnedFd) -> io::Result<i32> {
    Ok(bound_to(fd)?.sll_ifindex)
}

fn bound_to(fd: &OwnedFd) -> io::Result<libc::sockaddr_ll> {
    // SAFETY: an address is numbers and bytes, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    let own = (&raw mut address).cast();
    // SAFETY: `own` has room for `length` bytes, and both outlive the call.
    checked(unsafe { libc::getsockname(fd.as_raw_fd(), own, &raw mut length) })?;
    Ok(address)
}
