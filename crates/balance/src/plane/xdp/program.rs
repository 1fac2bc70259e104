//! The XDP program, assembled here: it hands frames for the balancer's addresses to the sockets of
//! the queue where they came, and leaves all others to the kernel.
//!
//! It comes off the interface when its link's descriptor is closed, which the kernel also does for
//! a process that dies.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// Addresses that a program tells apart.
const ADDRESSES_MAX: u32 = 8192;
const KEY_BYTES: u32 = 16;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const HASH_MAP: u32 = 1;
const SOCKET_MAP: u32 = 17;
const XDP_PROGRAM: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// In the driver, or else after it.
const MODES: [u32; 2] = [1 << 2, 1 << 1];

/// The kernel's union of arguments of `bpf`.
#[repr(C, align(8))]
struct Arguments([u8; 128]);

impl Arguments {
    fn new(words: &[(usize, u32)]) -> Arguments {
        let mut arguments = Arguments([0; 128]);
        for (at, word) in words {
            arguments.0[*at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        arguments
    }

    /// Adds a pointer, which must be valid for the call.
    fn and(mut self, at: usize, bytes: &[u8]) -> Arguments {
        let pointer = bytes.as_ptr() as u64;
        self.0[at..at + 8].copy_from_slice(&pointer.to_ne_bytes());
        self
    }

    fn call(&self, command: libc::c_int) -> io::Result<RawFd> {
        let pointer = self.0.as_ptr();
        // SAFETY: the arguments are 128 readable bytes; pointers in them are to slices that the
        // callers in this module hold across the call, with the lengths that go with them.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, pointer, self.0.len()) };
        if result < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(result as RawFd)
        }
    }

    fn open(&self, command: libc::c_int) -> io::Result<OwnedFd> {
        let fd = self.call(command)?;
        // SAFETY: the call has returned this descriptor, and nothing else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

fn create_map(kind: u32, key: u32, value: u32, entries: u32) -> io::Result<OwnedFd> {
    Arguments::new(&[(0, kind), (4, key), (8, value), (12, entries)]).open(MAP_CREATE)
}

fn update(map: &OwnedFd, key: &[u8], value: &[u8]) -> io::Result<()> {
    let map = map.as_raw_fd() as u32;
    Arguments::new(&[(0, map)])
        .and(8, key)
        .and(16, value)
        .call(MAP_UPDATE)
        .map(drop)
}

/// The key of an address: IPv4 addresses are followed by zeros, and no IPv6 address of a host
/// begins as they do.
fn key(address: IpAddr) -> [u8; KEY_BYTES as usize] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// A program on an interface.
pub(super) struct Program {
    addresses: OwnedFd,
    sockets: OwnedFd,
    present: Vec<IpAddr>,
    link: OwnedFd,
}

impl Program {
    /// Loads the program and puts it on an interface that has `queues` queues at most.
    pub(super) fn attach(interface: u32, queues: u32) -> io::Result<Program> {
        let addresses = create_map(HASH_MAP, KEY_BYTES, 4, ADDRESSES_MAX)?;
        let sockets = create_map(SOCKET_MAP, 4, 4, queues)?;
        let code = assemble(addresses.as_raw_fd(), sockets.as_raw_fd());
        let count = (code.len() / 8) as u32;
        let load = Arguments::new(&[(0, XDP_PROGRAM), (4, count), (68, ATTACH_XDP)]);
        let program = load
            .and(8, &code)
            .and(16, b"Dual MIT/GPL\0")
            .open(PROGRAM_LOAD)?;
        let mut link = Err(io::ErrorKind::Unsupported.into());
        for mode in MODES {
            let program = program.as_raw_fd() as u32;
            let words = [(0, program), (4, interface), (8, ATTACH_XDP), (12, mode)];
            link = Arguments::new(&words).open(LINK_CREATE);
            if link.is_ok() {
                break;
            }
        }
        Ok(Program {
            addresses,
            sockets,
            present: Vec::new(),
            link: link?,
        })
    }

    /// Takes over a program that another process has put on its interface.
    pub(super) fn adopt([link, addresses, sockets]: [OwnedFd; 3], present: Vec<IpAddr>) -> Program {
        Program {
            addresses,
            sockets,
            present,
            link,
        }
    }

    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [&self.link, &self.addresses, &self.sockets].map(AsFd::as_fd)
    }

    pub(super) fn present(&self) -> &[IpAddr] {
        &self.present
    }

    /// Has frames of a queue go to a socket.
    pub(super) fn set_socket(&self, queue: u32, socket: RawFd) -> io::Result<()> {
        update(&self.sockets, &queue.to_ne_bytes(), &socket.to_ne_bytes())
    }

    /// Replaces the addresses whose frames are taken.
    pub(super) fn set_addresses(&mut self, wanted: &[IpAddr]) -> io::Result<()> {
        for address in wanted.iter().filter(|one| !self.present.contains(one)) {
            update(&self.addresses, &key(*address), &1u32.to_ne_bytes())?;
        }
        for address in self.present.iter().filter(|one| !wanted.contains(one)) {
            let map = self.addresses.as_raw_fd() as u32;
            Arguments::new(&[(0, map)])
                .and(8, &key(*address))
                .call(MAP_DELETE)?;
        }
        self.present = wanted.to_vec();
        Ok(())
    }
}

/// Places in the program that are jumped to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    V4,
    V6,
    Arp,
    NotSolicited,
    Look,
    Pass,
}

/// Collects instructions, and fills in jumps at the end.
#[derive(Default)]
struct Assembler {
    code: Vec<[u8; 8]>,
    labels: Vec<(Label, usize)>,
    jumps: Vec<(usize, Label)>,
}

const LOAD_WORD: u8 = 0x61;
const LOAD_HALF: u8 = 0x69;
const LOAD_BYTE: u8 = 0x71;
const STORE_WORD: u8 = 0x63;
const STORE_ZERO: u8 = 0x7a;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const JUMP: u8 = 0x05;
const JUMP_ABOVE: u8 = 0x2d;
const JUMP_EQUAL: u8 = 0x15;
const JUMP_UNEQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const SET_LONG: u8 = 0x18;
/// Says that the number is a map's descriptor.
const MAP: u8 = 1;
const LOOKUP: i32 = 1;
const REDIRECT: i32 = 51;
const PASS: i32 = 2;
/// Place of the address on the stack.
const KEY: i16 = -16;

impl Assembler {
    fn add(&mut self, operation: u8, to: u8, from: u8, offset: i16, number: i32) {
        let [a, b] = offset.to_le_bytes();
        let [c, d, e, f] = number.to_le_bytes();
        self.code
            .push([operation, (from << 4) | to, a, b, c, d, e, f]);
    }

    fn jump(&mut self, operation: u8, to: u8, from: u8, number: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.add(operation, to, from, 0, number);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Passes frames that are shorter than `bytes`: r2 is their begin, r3 their end.
    fn need(&mut self, bytes: i32, otherwise: Label) {
        self.add(MOVE, 4, 2, 0, 0);
        self.add(ADD, 4, 0, 0, bytes);
        self.jump(JUMP_ABOVE, 4, 3, 0, otherwise);
    }

    /// Copies words of the frame to the key.
    fn copy_key(&mut self, at: i16, words: i16) {
        for word in 0..words {
            self.add(LOAD_WORD, 5, 2, at + word * 4, 0);
            self.add(STORE_WORD, 10, 5, KEY + word * 4, 0);
        }
    }

    fn set_map(&mut self, to: u8, map: RawFd) {
        self.add(SET_LONG, to, MAP, 0, map);
        self.add(0, 0, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<u8> {
        for (at, label) in self.jumps {
            let place = self
                .labels
                .iter()
                .find(|one| one.0 == label)
                .map_or(0, |one| one.1);
            let distance = place as i16 - at as i16 - 1;
            self.code[at][2..4].copy_from_slice(&distance.to_le_bytes());
        }
        self.code.concat()
    }
}

/// A number of two bytes as the frame has it.
fn wire(number: u16) -> i32 {
    i32::from(number.to_be())
}

fn assemble(addresses: RawFd, sockets: RawFd) -> Vec<u8> {
    let mut out = Assembler::default();
    out.add(MOVE, 6, 1, 0, 0);
    out.add(LOAD_WORD, 2, 6, 0, 0);
    out.add(LOAD_WORD, 3, 6, 4, 0);
    out.add(STORE_ZERO, 10, 0, KEY, 0);
    out.add(STORE_ZERO, 10, 0, KEY + 8, 0);
    out.need(14, Label::Pass);
    out.add(LOAD_HALF, 5, 2, 12, 0);
    out.jump(JUMP_EQUAL, 5, 0, wire(0x0800), Label::V4);
    out.jump(JUMP_EQUAL, 5, 0, wire(0x86dd), Label::V6);
    out.jump(JUMP_EQUAL, 5, 0, wire(0x0806), Label::Arp);
    out.jump(JUMP, 0, 0, 0, Label::Pass);
    // A request for a hardware address: whose it is.
    out.label(Label::Arp);
    out.need(42, Label::Pass);
    out.add(LOAD_HALF, 5, 2, 20, 0);
    out.jump(JUMP_UNEQUAL, 5, 0, wire(1), Label::Pass);
    out.copy_key(38, 1);
    out.jump(JUMP, 0, 0, 0, Label::Look);
    out.label(Label::V4);
    out.need(34, Label::Pass);
    out.copy_key(30, 1);
    out.jump(JUMP, 0, 0, 0, Label::Look);
    // IPv6: the destination, or the target of a neighbour solicitation.
    out.label(Label::V6);
    out.need(54, Label::Pass);
    out.copy_key(38, 4);
    out.add(LOAD_BYTE, 5, 2, 20, 0);
    out.jump(JUMP_UNEQUAL, 5, 0, 58, Label::Look);
    out.need(78, Label::Look);
    out.add(LOAD_BYTE, 5, 2, 54, 0);
    out.jump(JUMP_UNEQUAL, 5, 0, 135, Label::NotSolicited);
    out.copy_key(62, 4);
    out.label(Label::NotSolicited);
    out.label(Label::Look);
    out.set_map(1, addresses);
    out.add(MOVE, 2, 10, 0, 0);
    out.add(ADD, 2, 0, 0, KEY.into());
    out.add(CALL, 0, 0, 0, LOOKUP);
    out.jump(JUMP_EQUAL, 0, 0, 0, Label::Pass);
    // Without a socket at its queue, a frame goes to the kernel.
    out.set_map(1, sockets);
    out.add(LOAD_WORD, 2, 6, 16, 0);
    out.add(SET, 3, 0, 0, PASS);
    out.add(CALL, 0, 0, 0, REDIRECT);
    out.add(EXIT, 0, 0, 0, 0);
    out.label(Label::Pass);
    out.add(SET, 0, 0, 0, PASS);
    out.add(EXIT, 0, 0, 0, 0);
    out.finish()
}
