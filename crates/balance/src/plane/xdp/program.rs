//! The XDP program, assembled here: it hands the balancer's frames to the socket of the queue where
//! they came, and leaves all others to the kernel.
//!
//! ```text
//!  destination: the balancer's ──────────────────────────────────────────► taken
//!               this machine's, a group ─────────────────────────────────► the kernel's
//!               another's: from a backend's address, port and protocol ──► taken
//!                          an ICMP error about a packet to one of these ─► taken
//!                          a later fragment of a packet that was taken ──► taken
//!                          all else ─────────────────────────────────────► the kernel's
//! ```
//!
//! Under NAT, answers of backends have the clients' addresses as destinations. A question for a
//! hardware address (ARP, neighbour solicitation) counts by the address in question.
//!
//! It comes off the interface when its link's descriptor is closed, which the kernel also does for
//! a process that dies.

use crate::plane::Wanted;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

/// Addresses that a program tells apart.
const ADDRESSES_MAX: u32 = 16_384;
/// Backends' addresses, ports and protocols that a program tells apart.
const BACKENDS_MAX: u32 = 65_536;
/// Packets of which later fragments are taken; the least used makes room.
const FRAGMENTS_MAX: u32 = 4096;
const KEY_BYTES: u32 = 16;
const BACKEND_KEY_BYTES: u32 = 20;
/// Source, destination, identification and, for IPv4, the protocol.
const FRAGMENT_KEY_BYTES: u32 = 40;
/// Values of addresses: the balancer's, and those of this machine's kernel.
const OWN: u32 = 1;
const LOCAL: u32 = 2;

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const HASH_MAP: u32 = 1;
const LEAST_USED_MAP: u32 = 9;
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

/// The key of a backend: its address, and port and protocol as packets have them.
fn backend_key((address, protocol): (SocketAddr, u8)) -> [u8; BACKEND_KEY_BYTES as usize] {
    let mut bytes = [0; BACKEND_KEY_BYTES as usize];
    bytes[..16].copy_from_slice(&key(address.ip()));
    bytes[16..18].copy_from_slice(&address.port().to_be_bytes());
    bytes[18] = protocol;
    bytes
}

/// Returns the value of each address. The balancer's own count as such on this machine, too.
fn values(wanted: &Wanted) -> HashMap<IpAddr, u32> {
    let local = wanted.local.iter().map(|address| (*address, LOCAL));
    let own = wanted.own.iter().map(|address| (*address, OWN));
    local.chain(own).collect()
}

fn delete(map: &OwnedFd, key: &[u8]) -> io::Result<()> {
    let map = map.as_raw_fd() as u32;
    Arguments::new(&[(0, map)])
        .and(8, key)
        .call(MAP_DELETE)
        .map(drop)
}

/// The maps by which a program decides.
struct Maps {
    addresses: OwnedFd,
    backends: OwnedFd,
    sockets: OwnedFd,
}

/// Loads the program. Packets of which later fragments are taken are known to it alone.
fn load(maps: &Maps) -> io::Result<OwnedFd> {
    let fragments = create_map(LEAST_USED_MAP, FRAGMENT_KEY_BYTES, 4, FRAGMENTS_MAX)?;
    let code = assemble(
        maps.addresses.as_raw_fd(),
        maps.backends.as_raw_fd(),
        fragments.as_raw_fd(),
        maps.sockets.as_raw_fd(),
    );
    let count = (code.len() / 8) as u32;
    Arguments::new(&[(0, XDP_PROGRAM), (4, count), (68, ATTACH_XDP)])
        .and(8, &code)
        .and(16, b"Dual MIT/GPL\0")
        .open(PROGRAM_LOAD)
}

/// A program on an interface.
pub(super) struct Program {
    maps: Maps,
    present: Wanted,
    link: OwnedFd,
}

impl Maps {
    fn new(queues: u32) -> io::Result<Maps> {
        Ok(Maps {
            addresses: create_map(HASH_MAP, KEY_BYTES, 4, ADDRESSES_MAX)?,
            backends: create_map(HASH_MAP, BACKEND_KEY_BYTES, 4, BACKENDS_MAX)?,
            sockets: create_map(SOCKET_MAP, 4, 4, queues)?,
        })
    }

    /// Changes the frames that are taken from those in `present` to those in `wanted`.
    fn change(&self, present: &Wanted, wanted: &Wanted) -> io::Result<()> {
        let (before, after) = (values(present), values(wanted));
        for (address, value) in &after {
            if before.get(address) != Some(value) {
                update(&self.addresses, &key(*address), &value.to_ne_bytes())?;
            }
        }
        for address in before.keys().filter(|one| !after.contains_key(*one)) {
            delete(&self.addresses, &key(*address))?;
        }
        let added = |one: &&(SocketAddr, u8)| !present.backends.contains(*one);
        for backend in wanted.backends.iter().filter(added) {
            update(&self.backends, &backend_key(*backend), &OWN.to_ne_bytes())?;
        }
        let removed = |one: &&(SocketAddr, u8)| !wanted.backends.contains(*one);
        for backend in present.backends.iter().filter(removed) {
            delete(&self.backends, &backend_key(*backend))?;
        }
        Ok(())
    }
}

impl Program {
    /// Loads the program and puts it on an interface that has `queues` queues at most.
    pub(super) fn attach(interface: u32, queues: u32) -> io::Result<Program> {
        let maps = Maps::new(queues)?;
        let program = load(&maps)?;
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
            maps,
            present: Wanted::default(),
            link: link?,
        })
    }

    /// Takes over a program that another process has put on its interface.
    pub(super) fn adopt(
        [link, addresses, backends, sockets]: [OwnedFd; 4],
        present: Wanted,
    ) -> Program {
        Program {
            maps: Maps {
                addresses,
                backends,
                sockets,
            },
            present,
            link,
        }
    }

    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        let maps = &self.maps;
        [&self.link, &maps.addresses, &maps.backends, &maps.sockets].map(AsFd::as_fd)
    }

    pub(super) fn present(&self) -> &Wanted {
        &self.present
    }

    /// Has frames of a queue go to a socket.
    pub(super) fn set_socket(&self, queue: u32, socket: RawFd) -> io::Result<()> {
        let sockets = &self.maps.sockets;
        update(sockets, &queue.to_ne_bytes(), &socket.to_ne_bytes())
    }

    /// Replaces what decides about frames.
    pub(super) fn set_wanted(&mut self, wanted: &Wanted) -> io::Result<()> {
        self.maps.change(&self.present, wanted)?;
        self.present = wanted.clone();
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
    Answer,
    Answer4,
    Error4,
    About4,
    Answer6,
    Error6,
    Fragment6,
    LookSource,
    LookFragment,
    Redirect,
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
const STORE_HALF: u8 = 0x6b;
const STORE_BYTE: u8 = 0x73;
const STORE_ZERO: u8 = 0x7a;
const MOVE: u8 = 0xbf;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const JUMP: u8 = 0x05;
const JUMP_ABOVE: u8 = 0x2d;
const JUMP_ABOVE_NUMBER: u8 = 0x25;
const JUMP_EQUAL: u8 = 0x15;
const JUMP_UNEQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const SET_LONG: u8 = 0x18;
/// Says that the number is a map's descriptor.
const MAP: u8 = 1;
const LOOKUP: i32 = 1;
const UPDATE: i32 = 2;
const REDIRECT: i32 = 51;
const PASS: i32 = 2;
/// Places of the keys on the stack: of an address, a backend, and a fragment's packet.
const KEY: i16 = -16;
const BACKEND: i16 = -40;
const FRAGMENT: i16 = -80;

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

    /// Sets r2 and r3 to begin and end of the frame, which calls do not keep.
    fn find_frame(&mut self) {
        self.add(LOAD_WORD, 2, 6, 0, 0);
        self.add(LOAD_WORD, 3, 6, 4, 0);
    }

    /// Copies words of the frame to the stack.
    fn copy(&mut self, at: i16, words: i16, to: i16) {
        for word in 0..words {
            self.add(LOAD_WORD, 5, 2, at + word * 4, 0);
            self.add(STORE_WORD, 10, 5, to + word * 4, 0);
        }
    }

    /// Copies two bytes of the frame to the stack.
    fn copy_half(&mut self, at: i16, to: i16) {
        self.add(LOAD_HALF, 5, 2, at, 0);
        self.add(STORE_HALF, 10, 5, to, 0);
    }

    /// Looks a key on the stack up in a map: r0 is the place of its value, or 0.
    fn look_up(&mut self, map: RawFd, key: i16) {
        self.set_map(1, map);
        self.add(MOVE, 2, 10, 0, 0);
        self.add(ADD, 2, 0, 0, key.into());
        self.add(CALL, 0, 0, 0, LOOKUP);
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

/// Registers across calls: r6 is the context, r7 the frame's version of IP (0 for ARP), r8 a
/// packet's protocol, and r9 is not 0 for a first fragment.
fn assemble(addresses: RawFd, backends: RawFd, fragments: RawFd, sockets: RawFd) -> Vec<u8> {
    let mut out = Assembler::default();
    out.add(MOVE, 6, 1, 0, 0);
    out.find_frame();
    out.add(STORE_ZERO, 10, 0, KEY, 0);
    out.add(STORE_ZERO, 10, 0, KEY + 8, 0);
    out.add(SET, 7, 0, 0, 0);
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
    out.copy(38, 1, KEY);
    out.jump(JUMP, 0, 0, 0, Label::Look);
    out.label(Label::V4);
    out.need(34, Label::Pass);
    out.add(SET, 7, 0, 0, 4);
    out.copy(30, 1, KEY);
    out.jump(JUMP, 0, 0, 0, Label::Look);
    // IPv6: the destination, or the target of a neighbour solicitation.
    out.label(Label::V6);
    out.need(54, Label::Pass);
    out.add(SET, 7, 0, 0, 6);
    out.copy(38, 4, KEY);
    out.add(LOAD_BYTE, 5, 2, 20, 0);
    out.jump(JUMP_UNEQUAL, 5, 0, 58, Label::Look);
    out.need(78, Label::Look);
    out.add(LOAD_BYTE, 5, 2, 54, 0);
    out.jump(JUMP_UNEQUAL, 5, 0, 135, Label::NotSolicited);
    out.copy(62, 4, KEY);
    out.label(Label::NotSolicited);
    out.label(Label::Look);
    out.look_up(addresses, KEY);
    out.jump(JUMP_EQUAL, 0, 0, 0, Label::Answer);
    out.add(LOAD_WORD, 5, 0, 0, 0);
    out.jump(JUMP_EQUAL, 5, 0, OWN as i32, Label::Redirect);
    out.jump(JUMP, 0, 0, 0, Label::Pass);
    answers(&mut out, backends, fragments);
    // Without a socket at its queue, a frame goes to the kernel.
    out.label(Label::Redirect);
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

/// Decides about packets to others: answers of backends, errors about what was sent to them, and
/// later fragments of what was taken.
fn answers(out: &mut Assembler, backends: RawFd, fragments: RawFd) {
    out.label(Label::Answer);
    for at in (FRAGMENT..KEY).step_by(8) {
        out.add(STORE_ZERO, 10, 0, at, 0);
    }
    out.add(SET, 9, 0, 0, 0);
    out.find_frame();
    out.need(34, Label::Pass);
    // To a group of hosts.
    out.add(LOAD_BYTE, 5, 2, 0, 0);
    out.add(AND, 5, 0, 0, 1);
    out.jump(JUMP_UNEQUAL, 5, 0, 0, Label::Pass);
    out.jump(JUMP_EQUAL, 7, 0, 4, Label::Answer4);
    out.jump(JUMP_EQUAL, 7, 0, 6, Label::Answer6);
    out.jump(JUMP, 0, 0, 0, Label::Pass);
    answers_v4(out);
    answers_v6(out);

    out.label(Label::LookSource);
    out.add(STORE_BYTE, 10, 8, BACKEND + 18, 0);
    out.look_up(backends, BACKEND);
    out.jump(JUMP_EQUAL, 0, 0, 0, Label::Pass);
    out.jump(JUMP_EQUAL, 9, 0, 0, Label::Redirect);
    // Its later fragments are taken, too. The value does not matter.
    out.set_map(1, fragments);
    for (register, place) in [(2, FRAGMENT), (3, KEY)] {
        out.add(MOVE, register, 10, 0, 0);
        out.add(ADD, register, 0, 0, place.into());
    }
    out.add(SET, 4, 0, 0, 0);
    out.add(CALL, 0, 0, 0, UPDATE);
    out.jump(JUMP, 0, 0, 0, Label::Redirect);
    out.label(Label::LookFragment);
    out.look_up(fragments, FRAGMENT);
    out.jump(JUMP_EQUAL, 0, 0, 0, Label::Pass);
    out.jump(JUMP, 0, 0, 0, Label::Redirect);
}

/// Fills in the keys of an IPv4 packet, and chooses the one that counts.
fn answers_v4(out: &mut Assembler) {
    out.label(Label::Answer4);
    out.add(LOAD_BYTE, 5, 2, 14, 0);
    out.jump(JUMP_UNEQUAL, 5, 0, 0x45, Label::Pass);
    out.add(LOAD_BYTE, 8, 2, 23, 0);
    out.copy(26, 1, BACKEND);
    out.copy(26, 1, FRAGMENT);
    out.copy(30, 1, FRAGMENT + 16);
    out.copy_half(18, FRAGMENT + 32);
    out.add(STORE_BYTE, 10, 8, FRAGMENT + 36, 0);
    out.add(LOAD_HALF, 9, 2, 20, 0);
    out.add(MOVE, 5, 9, 0, 0);
    out.add(AND, 5, 0, 0, wire(0x1fff));
    out.jump(JUMP_UNEQUAL, 5, 0, 0, Label::LookFragment);
    // More fragments follow.
    out.add(AND, 9, 0, 0, wire(0x2000));
    out.jump(JUMP_EQUAL, 8, 0, 1, Label::Error4);
    out.need(36, Label::Pass);
    out.copy_half(34, BACKEND + 16);
    out.jump(JUMP, 0, 0, 0, Label::LookSource);
    // What an error is about went to a backend: its destination counts.
    out.label(Label::Error4);
    out.jump(JUMP_UNEQUAL, 9, 0, 0, Label::Pass);
    out.need(66, Label::Pass);
    out.add(LOAD_BYTE, 5, 2, 34, 0);
    out.jump(JUMP_EQUAL, 5, 0, 3, Label::About4);
    out.jump(JUMP_EQUAL, 5, 0, 11, Label::About4);
    out.jump(JUMP_UNEQUAL, 5, 0, 12, Label::Pass);
    out.label(Label::About4);
    out.add(LOAD_BYTE, 5, 2, 42, 0);
    out.jump(JUMP_UNEQUAL, 5, 0, 0x45, Label::Pass);
    out.add(LOAD_HALF, 5, 2, 48, 0);
    out.add(AND, 5, 0, 0, wire(0x1fff));
    out.jump(JUMP_UNEQUAL, 5, 0, 0, Label::Pass);
    out.add(LOAD_BYTE, 8, 2, 51, 0);
    out.copy(58, 1, BACKEND);
    out.copy_half(64, BACKEND + 16);
    out.jump(JUMP, 0, 0, 0, Label::LookSource);
}

/// Fills in the keys of an IPv6 packet whose transport, or a fragment's header, follows the first
/// header.
fn answers_v6(out: &mut Assembler) {
    out.label(Label::Answer6);
    out.need(58, Label::Pass);
    out.add(LOAD_BYTE, 8, 2, 20, 0);
    out.copy(22, 4, BACKEND);
    out.jump(JUMP_EQUAL, 8, 0, 44, Label::Fragment6);
    out.jump(JUMP_EQUAL, 8, 0, 58, Label::Error6);
    out.copy_half(54, BACKEND + 16);
    out.jump(JUMP, 0, 0, 0, Label::LookSource);
    out.label(Label::Fragment6);
    out.need(64, Label::Pass);
    out.copy(22, 8, FRAGMENT);
    out.copy(58, 1, FRAGMENT + 32);
    out.add(LOAD_HALF, 5, 2, 56, 0);
    out.add(AND, 5, 0, 0, wire(0xfff8));
    out.jump(JUMP_UNEQUAL, 5, 0, 0, Label::LookFragment);
    out.add(SET, 9, 0, 0, 1);
    out.add(LOAD_BYTE, 8, 2, 54, 0);
    out.copy_half(62, BACKEND + 16);
    out.jump(JUMP, 0, 0, 0, Label::LookSource);
    out.label(Label::Error6);
    out.need(106, Label::Pass);
    out.add(LOAD_BYTE, 5, 2, 54, 0);
    out.jump(JUMP_EQUAL, 5, 0, 0, Label::Pass);
    out.jump(JUMP_ABOVE_NUMBER, 5, 0, 4, Label::Pass);
    out.add(LOAD_BYTE, 8, 2, 68, 0);
    out.copy(86, 4, BACKEND);
    out.copy_half(104, BACKEND + 16);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::build::{Build, address, socket};
    use crate::engine::{ICMP, ICMP_V6, TCP, UDP};

    const PROGRAM_TRY: libc::c_int = 10;
    const TAKEN: u32 = 4;
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 1];

    /// Runs a program on one frame, and returns what it says.
    fn try_on(program: &OwnedFd, frame: &[u8]) -> io::Result<u32> {
        let words = [(0, program.as_raw_fd() as u32), (8, frame.len() as u32)];
        let mut arguments = Arguments::new(&words).and(16, frame);
        let (pointer, length) = (arguments.0.as_mut_ptr(), arguments.0.len());
        // SAFETY: the arguments are 128 bytes that the kernel may write, and `frame` outlives the
        // call.
        if unsafe { libc::syscall(libc::SYS_bpf, PROGRAM_TRY, pointer, length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let [.., a, b, c, d] = arguments.0[..8] else {
            unreachable!("eight bytes")
        };
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    fn frame(to: [u8; 6], packet: &[u8]) -> Vec<u8> {
        let kind = if packet[0] >> 4 == 4 {
            [8, 0]
        } else {
            [0x86, 0xdd]
        };
        let mut frame = [&to[..], &[2, 0, 0, 0, 0, 9], &kind].concat();
        frame.extend_from_slice(packet);
        frame
    }

    /// An ICMP error about the packet `about`, cut after its ports.
    fn error(from: &str, to: &str, kind: u8, about: &[u8]) -> Vec<u8> {
        let is_v6 = about[0] >> 4 == 6;
        let (protocol, header) = if is_v6 { (ICMP_V6, 40) } else { (ICMP, 20) };
        let mut raw = vec![kind, 0, 0, 0, 0, 0, 0, 0];
        raw.extend_from_slice(&about[..header + 8]);
        Build::new(from, to, protocol).raw(protocol, raw).bytes()
    }

    struct Hosts {
        vip: &'static str,
        balancer: &'static str,
        backend: &'static str,
        /// Another port of the backend's.
        shell: &'static str,
        client: &'static str,
        router: &'static str,
        unreachable: u8,
    }

    const HOSTS: [Hosts; 2] = [
        Hosts {
            vip: "192.0.2.10:80",
            balancer: "192.0.2.5:41000",
            backend: "203.0.113.1:8080",
            shell: "203.0.113.1:22",
            client: "198.51.100.7:40000",
            router: "203.0.113.254:0",
            unreachable: 3,
        },
        Hosts {
            vip: "[2001:db8::10]:80",
            balancer: "[2001:db8::5]:41000",
            backend: "[2001:db8:2::1]:8080",
            shell: "[2001:db8:2::1]:22",
            client: "[2001:db8:1::7]:40000",
            router: "[2001:db8:2::fe]:0",
            unreachable: 1,
        },
    ];

    fn wanted() -> Wanted {
        let mut wanted = Wanted::default();
        for hosts in &HOSTS {
            wanted.own.push(socket(hosts.vip).ip());
            wanted.local.push(socket(hosts.balancer).ip());
            wanted.backends.push((socket(hosts.backend), TCP));
            wanted.backends.push((socket(hosts.backend), UDP));
        }
        wanted
    }

    /// A program with a socket at queue 0; `None`, said, if this process may not load it.
    fn program() -> Option<(Maps, OwnedFd, OwnedFd)> {
        let maps = match Maps::new(1) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                eprintln!("not tried: loading an XDP program needs root");
                return None;
            }
            maps => maps.expect("maps"),
        };
        let program = load(&maps).expect("the verifier takes it");
        let family = rustix::net::AddressFamily::from_raw(libc::AF_XDP as u16);
        let kind = rustix::net::SocketType::RAW;
        let socket = rustix::net::socket(family, kind, None).expect("an AF_XDP socket");
        let number = socket.as_raw_fd().to_ne_bytes();
        update(&maps.sockets, &0u32.to_ne_bytes(), &number).expect("a socket");
        Some((maps, program, socket))
    }

    /// Each kind of frame, and whether the balancer is to have it.
    #[test]
    fn the_balancer_s_frames_are_taken_and_no_others() {
        let Some((maps, program, _socket)) = program() else {
            return;
        };
        maps.change(&Wanted::default(), &wanted()).expect("changed");
        for hosts in &HOSTS {
            packets(&program, hosts);
            errors(&program, hosts);
            fragments(&program, hosts);
        }
    }

    fn check(program: &OwnedFd, what: &str, bytes: &[u8], is_taken: bool) {
        let verdict = try_on(program, bytes).expect("runs");
        let expected = if is_taken { TAKEN } else { PASS as u32 };
        assert_eq!(verdict, expected, "{what}: {bytes:02x?}");
    }

    fn packets(program: &OwnedFd, hosts: &Hosts) {
        let Hosts {
            vip,
            balancer,
            backend,
            shell,
            client,
            router,
            ..
        } = *hosts;
        for (what, from, to, is_taken) in [
            ("to the service", client, vip, true),
            ("an answer", backend, client, true),
            ("of a health check", backend, balancer, false),
            ("a shell's, to the balancer", shell, balancer, false),
            ("a shell's, to a client", shell, client, false),
            ("between others", client, router, false),
            ("to the backend itself", client, backend, false),
        ] {
            for build in [Build::tcp(from, to), Build::udp(from, to).data(&[1])] {
                check(program, what, &frame(MAC, &build.bytes()), is_taken);
                let group = is_taken && to == vip;
                check(program, what, &frame(GROUP, &build.bytes()), group);
            }
        }
        let other = Build::new(backend, client, 132).raw(132, vec![0; 20]);
        check(
            program,
            "of no service's protocol",
            &frame(MAC, &other.bytes()),
            false,
        );
        let whole = frame(MAC, &Build::tcp(backend, client).bytes());
        for end in 14..whole.len() {
            let is_taken = end >= if hosts.unreachable == 3 { 36 } else { 58 };
            check(program, "cut", &whole[..end], is_taken);
        }
    }

    /// Errors about packets to backends are taken; the outer addresses do not matter.
    fn errors(program: &OwnedFd, hosts: &Hosts) {
        let Hosts {
            vip,
            balancer,
            backend,
            shell,
            client,
            router,
            unreachable,
        } = *hosts;
        let there = Build::tcp(client, backend).bytes();
        let elsewhere = Build::tcp(client, shell).bytes();
        for (what, from, to, about, is_taken) in [
            ("an error of a router's", router, client, &there, true),
            ("an error of the backend's", shell, client, &there, true),
            ("an error about a shell", router, client, &elsewhere, false),
            ("an error to the balancer", router, balancer, &there, false),
            ("an error to the service", client, vip, &elsewhere, true),
        ] {
            let bytes = error(from, to, unreachable, about);
            check(program, what, &frame(MAC, &bytes), is_taken);
        }
        let echo = if unreachable == 3 { 8 } else { 128 };
        check(
            program,
            "an echo",
            &frame(MAC, &error(router, client, echo, &there)),
            false,
        );
        let whole = frame(MAC, &error(router, client, unreachable, &there));
        let end = if unreachable == 3 { 66 } else { 106 };
        check(program, "cut after the ports", &whole[..end], true);
        check(program, "cut before the ports", &whole[..end - 1], false);
    }

    /// Later fragments follow the first one.
    fn fragments(program: &OwnedFd, hosts: &Hosts) {
        let long = Build::udp(hosts.backend, hosts.client).data(&[7; 100]);
        let later = |id| frame(MAC, &long.piece(16, 108, id));
        check(program, "a fragment without a first", &later(1), false);
        check(
            program,
            "a first fragment",
            &frame(MAC, &long.piece(0, 16, 1)),
            true,
        );
        check(program, "a later fragment", &later(1), true);
        check(program, "a fragment of another packet", &later(2), false);
        let others = Build::udp(hosts.shell, hosts.client).data(&[7; 100]);
        for (begin, end) in [(0, 16), (16, 108)] {
            let piece = frame(MAC, &others.piece(begin, end, 3));
            check(program, "a shell's", &piece, false);
        }
    }

    #[test]
    fn what_is_wanted_is_changed_by_the_difference() {
        let Some((maps, program, _socket)) = program() else {
            return;
        };
        let hosts = &HOSTS[0];
        let answer = frame(MAC, &Build::tcp(hosts.backend, hosts.client).bytes());
        let to_balancer = frame(MAC, &Build::tcp(hosts.client, hosts.balancer).bytes());
        let taken = |bytes: &[u8]| try_on(&program, bytes).expect("runs") == TAKEN;
        maps.change(&Wanted::default(), &wanted()).expect("changed");
        assert!(taken(&answer) && !taken(&to_balancer));
        // The backend goes, and the balancer's address becomes a service's.
        let mut next = wanted();
        next.backends.clear();
        next.own.push(address("192.0.2.5"));
        maps.change(&wanted(), &next).expect("changed");
        assert!(!taken(&answer) && taken(&to_balancer));
        maps.change(&next, &wanted()).expect("changed");
        assert!(taken(&answer) && !taken(&to_balancer));
        maps.change(&wanted(), &Wanted::default()).expect("changed");
        assert!(!taken(&answer) && !taken(&to_balancer));
    }
}
