//! Traffic for `make bench-balance`: UDP frames of 64 bytes on a client's interface, and a backend
//! that answers them, both in namespaces of other processes.
//!
//! ```text
//! traffic latency CLIENT BACKEND ADDRESS MAC FLOWS RATE SECONDS   times of frames there and back
//! traffic flood   CLIENT BACKEND ADDRESS MAC FLOWS RATE SECONDS   frames that arrive
//! ```
//!
//! A flood's RATE of 0 is all that can be sent. CLIENT and BACKEND are processes in whose
//! namespaces `eth0` is used, ADDRESS the service's address and port, MAC the next hop's. One
//! thread does everything, on the cores that it is given.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// Without the four bytes of the frame's check, which virtual devices leave out.
const FRAME_BYTES: usize = 60;
const DATA_AT: usize = 14 + 20 + 8;
const MARK: [u8; 4] = *b"mark";
const BURST: usize = 64;
const FIRST_PORT: u16 = 10_000;
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();

struct Arguments {
    is_flood: bool,
    client: u32,
    backend: u32,
    service: SocketAddrV4,
    next_hop: [u8; 6],
    flows: u16,
    rate: f64,
    time: Duration,
}

fn arguments() -> Result<Arguments, Failure> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [kind, client, backend, service, mac, flows, rate, seconds] = given.as_slice() else {
        return Err("see the comment at the top of traffic.rs".into());
    };
    let mut next_hop = [0; 6];
    for (byte, text) in next_hop.iter_mut().zip(mac.split(':')) {
        *byte = u8::from_str_radix(text, 16)?;
    }
    Ok(Arguments {
        is_flood: kind == "flood",
        client: client.parse()?,
        backend: backend.parse()?,
        service: service.parse()?,
        next_hop,
        flows: flows.parse()?,
        rate: rate.parse()?,
        time: Duration::from_secs_f64(seconds.parse()?),
    })
}

fn main() -> Result<(), Failure> {
    let arguments = arguments()?;
    let client = Socket::open(arguments.client, !arguments.is_flood)?;
    if arguments.is_flood {
        flood(&arguments, &client)
    } else {
        let backend = Socket::open(arguments.backend, true)?;
        latency(&arguments, &client, &backend)
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A packet socket of `eth0` in a namespace.
struct Socket {
    fd: OwnedFd,
    mac: [u8; 6],
    address: Ipv4Addr,
}

impl Socket {
    /// Opens a socket in the namespace of a process, which this thread enters.
    fn open(process: u32, receives: bool) -> Result<Socket, Failure> {
        let namespace = std::fs::File::open(format!("/proc/{process}/ns/net"))?;
        rustix::thread::move_into_link_name_space(
            namespace.as_fd(),
            Some(rustix::thread::LinkNameSpaceType::Network),
        )?;
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes numbers only.
        let fd = checked(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: the call has returned this descriptor, and nothing else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        for option in [libc::PACKET_IGNORE_OUTGOING, libc::PACKET_QDISC_BYPASS] {
            set_option(&fd, libc::SOL_PACKET, option, 1)?;
        }
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20)?;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 8 << 20)?;
        let index = rustix::net::netdevice::name_to_index(fd.as_fd(), "eth0")?;
        // SAFETY: an address is numbers and bytes, for which zero is a value.
        let mut bound: libc::sockaddr_ll = unsafe { zeroed() };
        bound.sll_family = libc::AF_PACKET as u16;
        // A socket without a protocol gets no frames.
        bound.sll_protocol = if receives { ALL } else { 0 };
        bound.sll_ifindex = index as i32;
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let pointer = (&raw mut bound).cast();
        // SAFETY: `bound` is a whole address of `length` bytes.
        checked(unsafe { libc::bind(fd.as_raw_fd(), pointer, length) })?;
        // SAFETY: `bound` has room for `length` bytes, and both outlive the call.
        checked(unsafe { libc::getsockname(fd.as_raw_fd(), pointer.cast(), &raw mut length) })?;
        let [a, b, c, d, e, f, ..] = bound.sll_addr;
        let mac = [a, b, c, d, e, f];
        let address = own_address()?;
        Ok(Socket { fd, mac, address })
    }

    fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        rustix::io::read(&self.fd, buffer).ok()
    }
}

/// Returns the address that this namespace uses to send to the documentation's networks.
fn own_address() -> Result<Ipv4Addr, Failure> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.10:9")?;
    match socket.local_addr()?.ip() {
        std::net::IpAddr::V4(address) => Ok(address),
        std::net::IpAddr::V6(_) => Err("no IPv4 address".into()),
    }
}

fn set_option(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let length = size_of::<i32>() as libc::socklen_t;
    let pointer = (&raw const value).cast();
    // SAFETY: `pointer` is to a number of `length` bytes, which lives until the call returns.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, pointer, length) })?;
    Ok(())
}

fn sum(bytes: &[u8], begin: u32) -> u32 {
    let words = bytes.chunks(2).map(|pair| {
        let last = pair.get(1).copied().unwrap_or_default();
        u32::from(u16::from_be_bytes([pair[0], last]))
    });
    begin + words.sum::<u32>()
}

fn folded(mut sum: u32) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// Makes the frame of a flow, with a number in its data.
fn frame(arguments: &Arguments, client: &Socket, flow: u16, number: u32) -> [u8; FRAME_BYTES] {
    let mut bytes = [0; FRAME_BYTES];
    bytes[..6].copy_from_slice(&arguments.next_hop);
    bytes[6..12].copy_from_slice(&client.mac);
    bytes[12..14].copy_from_slice(&[8, 0]);
    let ip_bytes = (FRAME_BYTES - 14) as u16;
    bytes[14] = 0x45;
    bytes[16..18].copy_from_slice(&ip_bytes.to_be_bytes());
    bytes[22..24].copy_from_slice(&[64, libc::IPPROTO_UDP as u8]);
    bytes[26..30].copy_from_slice(&client.address.octets());
    bytes[30..34].copy_from_slice(&arguments.service.ip().octets());
    let header = folded(sum(&bytes[14..34], 0));
    bytes[24..26].copy_from_slice(&header);
    bytes[34..36].copy_from_slice(&(FIRST_PORT + flow).to_be_bytes());
    bytes[36..38].copy_from_slice(&arguments.service.port().to_be_bytes());
    bytes[38..40].copy_from_slice(&(ip_bytes - 20).to_be_bytes());
    bytes[DATA_AT..DATA_AT + 4].copy_from_slice(&MARK);
    bytes[DATA_AT + 4..DATA_AT + 8].copy_from_slice(&number.to_be_bytes());
    let pseudo = u32::from(ip_bytes - 20) + libc::IPPROTO_UDP as u32;
    let whole = folded(sum(&bytes[34..], sum(&bytes[26..34], pseudo)));
    bytes[40..42].copy_from_slice(&whole);
    bytes
}

/// Turns a frame around.
fn turn(bytes: &mut [u8], mac: [u8; 6]) {
    bytes.copy_within(6..12, 0);
    bytes[6..12].copy_from_slice(&mac);
    for (first, second, length) in [(26, 30, 4), (34, 36, 2)] {
        for at in 0..length {
            bytes.swap(first + at, second + at);
        }
    }
}

/// Returns the number in a frame of ours.
fn number_of(bytes: &[u8]) -> Option<usize> {
    let data = bytes.get(DATA_AT..DATA_AT + 8)?;
    let (mark, number) = data.split_at(4);
    let number = u32::from_be_bytes(number.try_into().ok()?);
    (mark == MARK).then_some(number as usize)
}

/// Sends frames at a fixed rate, one flow after the other, turns them around at the backend, and
/// prints how long they were on their way.
fn latency(arguments: &Arguments, client: &Socket, backend: &Socket) -> Result<(), Failure> {
    let count = (arguments.rate * arguments.time.as_secs_f64()) as usize;
    let pause = 1.0 / arguments.rate;
    let begin = Instant::now();
    let mut sent = vec![None; count];
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let mut buffer = [0; 2048];
    let mut next = 0;
    // Late frames are waited for a while.
    let end = arguments.time + Duration::from_millis(200);
    while begin.elapsed() < end && (next < count || back.len() < count) {
        if next < count && begin.elapsed().as_secs_f64() >= next as f64 * pause {
            let flow = (next % usize::from(arguments.flows)) as u16;
            let bytes = frame(arguments, client, flow, next as u32);
            sent[next] = Some(Instant::now());
            let _ = rustix::io::write(&client.fd, &bytes);
            next += 1;
        }
        if let Some(length) = backend.receive(&mut buffer)
            && let Some(at) = number_of(&buffer[..length])
        {
            there.extend(sent.get(at).copied().flatten().map(|at| at.elapsed()));
            turn(&mut buffer[..length], backend.mac);
            let _ = rustix::io::write(&backend.fd, &buffer[..length]);
        }
        if let Some(length) = client.receive(&mut buffer)
            && let Some(at) = number_of(&buffer[..length])
        {
            back.extend(sent.get(at).copied().flatten().map(|at| at.elapsed()));
        }
    }
    println!(
        "{{\"sent\": {next}, \"back\": {}, \"there_us\": {}, \"round_us\": {}}}",
        back.len(),
        shares(&mut there),
        shares(&mut back)
    );
    Ok(())
}

fn shares(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        let time = times.get(index).or(times.last());
        time.map_or(0.0, |time| time.as_nanos() as f64 / 1000.0)
    };
    format!(
        "{{\"p50\": {:.2}, \"p90\": {:.2}, \"p99\": {:.2}}}",
        at(0.5),
        at(0.9),
        at(0.99)
    )
}

/// Returns the number of frames that have come to the backend's interface.
fn arrived(process: u32) -> Result<u64, Failure> {
    let text = std::fs::read_to_string(format!("/proc/{process}/net/dev"))?;
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("eth0:"));
    let packets = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(packets.ok_or("the backend has no eth0")?.parse()?)
}

/// Sends frames in bursts and prints how many arrive at the backend.
fn flood(arguments: &Arguments, client: &Socket) -> Result<(), Failure> {
    let frames: Vec<_> = (0..arguments.flows)
        .map(|flow| frame(arguments, client, flow, u32::from(flow)))
        .collect();
    let mut parts: Vec<_> = frames
        .iter()
        .map(|frame| libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: FRAME_BYTES,
        })
        .collect();
    let message = |part: &mut libc::iovec| {
        // SAFETY: a message's header is numbers and pointers, for which zero is a value.
        let mut message: libc::mmsghdr = unsafe { zeroed() };
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
        message
    };
    let mut messages: Vec<_> = parts.iter_mut().map(message).collect();
    let burst = BURST.min(messages.len());
    let places = (messages.len() / burst).max(1);
    // The first part of the time fills the queues.
    let warm = arguments.time / 5;
    let begin = Instant::now();
    let (mut sent, mut turn) = (0_u64, 0);
    let mut marks = None;
    while begin.elapsed() < warm + arguments.time {
        if marks.is_none() && begin.elapsed() >= warm {
            marks = Some((Instant::now(), sent, arrived(arguments.backend)?));
        }
        let is_due = begin.elapsed().as_secs_f64() * arguments.rate >= sent as f64;
        if arguments.rate > 0.0 && !is_due {
            std::hint::spin_loop();
            continue;
        }
        let first = turn % places * burst;
        turn += 1;
        let pointer = messages[first..first + burst].as_mut_ptr();
        // SAFETY: `pointer` is to `burst` headers, whose parts are frames that outlive the call.
        let result = unsafe {
            libc::sendmmsg(
                client.fd.as_raw_fd(),
                pointer,
                burst as u32,
                libc::MSG_DONTWAIT,
            )
        };
        sent += u64::try_from(result).unwrap_or_default();
    }
    let (at, sent_then, arrived_then) = marks.ok_or("no time at all")?;
    let seconds = at.elapsed().as_secs_f64();
    let arrived = arrived(arguments.backend)? - arrived_then;
    println!(
        "{{\"sent_mpps\": {:.4}, \"arrived_mpps\": {:.4}}}",
        (sent - sent_then) as f64 / seconds / 1e6,
        arrived as f64 / seconds / 1e6
    );
    Ok(())
}
