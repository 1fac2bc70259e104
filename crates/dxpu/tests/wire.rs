//! Real packets: a host and a GPU box, two processes in network namespaces of their own, exchange
//! Ethernet frames over a pair of virtual interfaces. Both ends lose, change, repeat and delay
//! frames by seed. A GPU is enumerated, and its memory is written and read.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    collections::{HashMap, VecDeque},
    io::{BufRead as _, BufReader, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use outboard_dxpu::{
    connection::Connection,
    enumerate::{Answer, Below, Gpu, Reserve, RootComplex},
    ethernet::{ETHER_TYPE, FRAME_BYTES_MAX, Mac, frame, packet},
    memory::{Memory, Reads, write},
    packet::{Node, Route},
    proxy::{BoxProxy, Decision, HostProxy, completion},
    random::Random,
    tables::Assigned,
    tlp::{Id, Kind, Status, Tlp},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, netdevice::name_to_index, recv, send},
};

const HOST: Node = Node(1);
const BOX: Node = Node(2);
const HOST_MAC: Mac = [2, 0, 0, 0, 0, 1];
const BOX_MAC: Mac = [2, 0, 0, 0, 0, 2];
const SLOT: u8 = 3;
const MEMORY_BYTES: usize = 1 << 20;
/// Probability of each mishap of a frame, in both directions.
const LOST: f64 = 0.1;
const CHANGED: f64 = 0.02;
const TWICE: f64 = 0.02;
const LATE: f64 = 0.02;
const PACKETS_MAX: usize = 64;
const AGAIN_AFTER: Duration = Duration::from_millis(2);
/// Time for all of it, on a loaded machine too. It takes less than a second on an idle one.
const DEADLINE: Duration = Duration::from_secs(30);
const OPERATIONS: usize = 4_000;
const READ_BYTES_MAX: u64 = 512;
const TAGS: u16 = 32;
/// Answers are cut into pieces of at most this many bytes.
const PAYLOAD_BYTES_MAX: u64 = 256;

#[test]
fn a_gpu_is_read_and_written_over_a_cable_that_loses_frames() {
    let probe = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "--"])
        .args(["ip", "link", "add", "wire0", "type", "veth"])
        .args(["peer", "name", "wire1"])
        .output();
    let why = match &probe {
        Ok(done) if done.status.success() => None,
        Ok(done) => Some(String::from_utf8_lossy(&done.stderr).trim().to_string()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    if let Some(why) = why {
        let why = why.replace('\n', " ");
        let _ = writeln!(
            std::io::stderr().lock(),
            "NOT RUN: a_gpu_is_read_and_written_over_a_cable_that_loses_frames: {why}"
        );
        return;
    }
    let begin = Instant::now();
    let user = ["--user", "--map-root-user", "--net", "--kill-child"];
    let done = this_test("unshare", &user, "host_end").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    let wrong = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}\n{wrong}");
    assert!(said.contains("WIRE the host is content"), "{said}");
    assert!(begin.elapsed() < 2 * DEADLINE);
}

/// Returns the command that runs one of the ends below, in namespaces that `unshare` makes.
fn this_test(unshare: &str, namespaces: &[&str], end: &str) -> Command {
    let mut command = Command::new(unshare);
    command.args(namespaces).arg("--");
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", end]);
    command
}

fn ip(arguments: &str) {
    let done = Command::new("ip").args(arguments.split(' ')).status();
    assert!(done.unwrap().success(), "ip {arguments}");
}

/// A packet socket of an interface.
struct Cable {
    socket: OwnedFd,
    own: Mac,
    peer: Mac,
    random: Random,
    late: Vec<Vec<u8>>,
    lost: u64,
    /// Frames whose packets were refused.
    refused: u64,
    begin: Instant,
}

impl Cable {
    fn open(interface: &str, own: Mac, peer: Mac, seed: u64) -> Cable {
        let protocol = ETHER_TYPE.to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call takes numbers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol)) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the call has returned this descriptor, and nothing else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the address is numbers and bytes, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = name_to_index(socket.as_fd(), interface).unwrap() as i32;
        // SAFETY: the address is whole, and its length is its own.
        let bound = unsafe {
            let address = (&raw const address).cast();
            let length = size_of::<libc::sockaddr_ll>() as u32;
            libc::bind(socket.as_raw_fd(), address, length)
        };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        Cable {
            socket,
            own,
            peer,
            random: Random::new(seed),
            late: Vec::new(),
            lost: 0,
            refused: 0,
            begin: Instant::now(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    /// Sends packets, and does to each what the seed says.
    fn send(&mut self, packets: &mut Vec<Vec<u8>>) {
        let mut frames = std::mem::take(&mut self.late);
        for packet in packets.drain(..) {
            let mut bytes = frame(self.peer, self.own, &packet).unwrap();
            if self.random.chance(LOST) {
                self.lost += 1;
                continue;
            }
            if self.random.chance(CHANGED) {
                let bit = self.random.below(8 * packet.len() as u64) as usize;
                bytes[16 + bit / 8] ^= 1 << (bit % 8);
            }
            if self.random.chance(TWICE) {
                frames.push(bytes.clone());
            }
            match self.random.chance(LATE) {
                true => self.late.push(bytes),
                false => frames.push(bytes),
            }
        }
        for bytes in frames {
            // A full queue loses frames, as any network does.
            match send(&self.socket, &bytes, SendFlags::empty()) {
                Ok(_) | Err(Errno::AGAIN | Errno::NOBUFS) => {}
                Err(error) => panic!("sending a frame: {error}"),
            }
        }
    }

    /// Waits a moment for a frame.
    fn wait(&self) {
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        let moment = Timespec::try_from(AGAIN_AFTER / 2).unwrap();
        poll(&mut ready, Some(&moment)).unwrap();
    }

    fn receive(&mut self, buffer: &mut [u8; FRAME_BYTES_MAX]) -> Option<Vec<u8>> {
        loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => {
                    if let Ok(packet) = packet(&buffer[..length], self.own) {
                        return Some(packet.to_vec());
                    }
                    self.refused += 1;
                }
                Err(Errno::AGAIN) => return None,
                Err(error) => panic!("receiving a frame: {error}"),
            }
        }
    }
}

/// A transaction that has arrived.
type Arrived = (Route, Kind, Vec<u8>);

/// One end: the cable, and the connection over it.
struct End {
    cable: Cable,
    connection: Connection,
    out: Vec<Vec<u8>>,
}

impl End {
    fn open(interface: &str, macs: [Mac; 2], nodes: [Node; 2], seed: u64) -> End {
        let again_ns = AGAIN_AFTER.as_nanos() as u64;
        End {
            cable: Cable::open(interface, macs[0], macs[1], seed),
            connection: Connection::new(nodes[0], nodes[1], PACKETS_MAX, again_ns),
            out: Vec::new(),
        }
    }

    /// Sends a transaction if there is room.
    fn send(&mut self, kind: Kind, data: &[u8], route: Route) -> bool {
        let now_ns = self.cable.now_ns();
        let tlp = Tlp::new(kind, data);
        let sent = self.connection.send(&tlp, route, now_ns, &mut self.out);
        self.cable.send(&mut self.out);
        sent.is_ok()
    }

    /// Waits a moment, and returns what has arrived.
    fn turn(&mut self) -> Vec<Arrived> {
        self.cable.wait();
        let mut arrived = Vec::new();
        let mut buffer = [0; FRAME_BYTES_MAX];
        let now_ns = self.cable.now_ns();
        while let Some(bytes) = self.cable.receive(&mut buffer) {
            match self.connection.take(&bytes, now_ns, &mut self.out) {
                Ok(Some((route, tlp))) => arrived.push((route, tlp.kind, tlp.data.to_vec())),
                Ok(None) => {}
                Err(_) => self.cable.refused += 1,
            }
        }
        self.connection.overdue(now_ns, &mut self.out);
        self.cable.send(&mut self.out);
        arrived
    }
}

/// The host: its proxy, and the box's process, which ends with it.
struct Host {
    end: End,
    proxy: HostProxy,
    gpu_box: Child,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.gpu_box.kill();
        let _ = self.gpu_box.wait();
    }
}

impl Host {
    fn check_time(&self) {
        assert!(
            self.end.cable.begin.elapsed() < DEADLINE,
            "it takes too long"
        );
    }

    /// Returns what has arrived, all of it from a GPU of this host's.
    fn turn(&mut self) -> Vec<Arrived> {
        self.check_time();
        let arrived = self.end.turn();
        assert!(arrived.iter().all(|(route, ..)| self.proxy.admits(route)));
        arrived
    }

    fn send(&mut self, kind: &Kind, data: &[u8]) -> bool {
        match self.proxy.take(kind, data) {
            Decision::Forward { routes, kind } => self.end.send(kind, data, routes[0]),
            other => panic!("{kind:?}: {other:?}"),
        }
    }
}

impl Below for Host {
    fn configure(&mut self, kind: &Kind, value: u32) -> Answer {
        let data = match kind {
            Kind::ConfigurationWrite { .. } => value.to_le_bytes().to_vec(),
            _ => Vec::new(),
        };
        let (routes, kind) = match self.proxy.take(kind, &data) {
            Decision::Dropped => panic!("configuration is answered"),
            Decision::Answer { kind, value } => match kind {
                Kind::Completion { status, .. } => return (status, value.unwrap_or(0)),
                kind => panic!("{kind:?} is no completion"),
            },
            Decision::Forward { routes, kind } => (routes, kind),
        };
        assert!(self.end.send(kind, &data, routes[0]));
        loop {
            if let Some((_, kind, data)) = self.turn().into_iter().next() {
                let Kind::Completion { status, .. } = kind else {
                    panic!("{kind:?}")
                };
                return (status, data.try_into().map_or(0, u32::from_le_bytes));
            }
        }
    }
}

/// Makes the cable, and starts the box's process at its other end.
fn start() -> Host {
    ip(
        "link add wire0 address 02:00:00:00:00:01 type veth peer name wire1 address 02:00:00:00:00:02",
    );
    let mut gpu_box = this_test("unshare", &["--net"], "box_end")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(gpu_box.stdout.take().unwrap()).lines();
    let mut hear = |word: &str| {
        let heard = said
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.contains(word));
        assert!(heard, "the box ended before it said {word:?}");
    };
    hear("WIRE here");
    ip(&format!("link set wire1 netns {}", gpu_box.id()));
    ip("link set wire0 up");
    writeln!(gpu_box.stdin.as_mut().unwrap(), "go").unwrap();
    hear("WIRE open");
    Host {
        end: End::open("wire0", [HOST_MAC, BOX_MAC], [HOST, BOX], 1),
        proxy: HostProxy::new(HOST, 4),
        gpu_box,
    }
}

/// Returns the address of the GPU's memory, after enumeration.
fn find_gpu(host: &mut Host) -> u64 {
    let mut root = RootComplex::default();
    assert_eq!(root.boot(host, Reserve::default()), Ok(4));
    let gpu = Assigned {
        gpu_box: BOX,
        slot: SLOT,
        path: 5,
    };
    host.proxy.plug(gpu).unwrap();
    assert_eq!(root.changed(host), [(0, true)]);
    let found = root.enumerate(host, 0).unwrap();
    let bar = found.bars.iter().find(|bar| bar.number == 1).unwrap();
    assert_eq!(bar.window.limit - bar.window.base + 1, MEMORY_BYTES as u64);
    bar.window.base
}

/// Random reads and writes, and what reads are to return.
struct Operations {
    base: u64,
    random: Random,
    memory: Vec<u8>,
    reads: Reads,
    /// Bytes of the moment when a read is sent: writes do not pass reads on this connection.
    expected: HashMap<u16, Vec<u8>>,
    compared: u64,
}

impl Operations {
    /// Returns the next operation; none while all tags are used.
    fn next(&mut self) -> Option<(Kind, Vec<u8>)> {
        let random = &mut self.random;
        let address = random.below(MEMORY_BYTES as u64);
        let (at, to_border) = (address as usize, 4_096 - address % 4_096);
        if random.chance(0.5) {
            let bytes = 1 + random.below(to_border) as usize;
            let bytes: Vec<u8> = (0..bytes).map(|_| random.number() as u8).collect();
            self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
            return Some(write(Id::default(), self.base + address, &bytes).unwrap());
        }
        let bytes = 1 + random.below(to_border.min(READ_BYTES_MAX)) as usize;
        let kind = self.reads.begin(self.base + address, bytes)?;
        let Kind::MemoryRead { request, .. } = kind else {
            panic!("{kind:?} is no read")
        };
        let bytes = self.memory[at..at + bytes].to_vec();
        self.expected.insert(request.tag, bytes);
        Some((kind, Vec::new()))
    }

    fn compare(&mut self, kind: &Kind, data: &[u8]) {
        let Some(answer) = self.reads.take(kind, data).unwrap() else {
            return;
        };
        let Kind::Completion { tag, .. } = kind else {
            panic!("{kind:?} is no completion")
        };
        let bytes = self.expected.remove(tag).unwrap();
        self.compared += bytes.len() as u64;
        assert_eq!(answer.bytes, Ok(bytes), "at {:#x}", answer.address);
    }
}

#[test]
#[ignore = "an end of the cable, which the test of both runs"]
fn host_end() {
    let mut host = start();
    let mut operations = Operations {
        base: find_gpu(&mut host),
        random: Random::new(7),
        memory: vec![0; MEMORY_BYTES],
        reads: Reads::new(Id::new(0, 0, 0), TAGS),
        expected: HashMap::new(),
        compared: 0,
    };
    let mut done = 0;
    let mut next = operations.next();
    while done < OPERATIONS || !operations.reads.is_idle() || host.end.connection.held() > 0 {
        while done < OPERATIONS {
            next = next.or_else(|| operations.next());
            let Some((kind, data)) = &next else {
                break;
            };
            if !host.send(kind, data) {
                break;
            }
            done += 1;
            next = None;
        }
        for (_, kind, data) in host.turn() {
            operations.compare(&kind, &data);
        }
    }
    let ms = host.end.cable.begin.elapsed().as_millis();
    let (lost, refused) = (host.end.cable.lost, host.end.cable.refused);
    let counts = host.end.connection.counts();
    assert!(lost > 0 && refused > 0, "{lost} {refused}");
    assert!(counts.repeated > 0 && counts.again > 0 && counts.early > 0);

    // Memory that the GPU does not have is refused by the GPU itself, not by silence.
    let reads = &mut operations.reads;
    let beyond = reads.begin(operations.base + MEMORY_BYTES as u64, 4);
    assert!(host.send(&beyond.unwrap(), &[]));
    let refusal = loop {
        if let Some((_, kind, data)) = host.turn().first() {
            break reads.take(kind, data).unwrap().unwrap();
        }
    };
    assert_eq!(refusal.bytes, Err(Status::UnsupportedRequest));
    println!(
        "WIRE the host is content: {done} operations, {} bytes read, {lost} frames lost here, \
         {refused} refused, {counts:?}, {ms} ms",
        operations.compared
    );
}

#[test]
#[ignore = "an end of the cable, which the test of both runs"]
fn box_end() {
    println!("WIRE here");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    assert_eq!(line, "go\n");
    ip("link set wire1 up");
    let mut end = End::open("wire1", [BOX_MAC, HOST_MAC], [BOX, HOST], 2);
    println!("WIRE open");
    let mut proxy = BoxProxy::new(BOX, 8);
    proxy.table.plug(SLOT, true).unwrap();
    proxy.table.assign(SLOT, HOST, 5).unwrap();
    let mut gpu = Gpu::new(MEMORY_BYTES as u64);
    let mut memory: Option<Memory> = None;
    let mut answers = VecDeque::new();
    // The host kills this process when it has seen enough.
    while end.cable.begin.elapsed() < 2 * DEADLINE {
        for (route, kind, data) in end.turn() {
            assert_eq!(proxy.admits(&route), Some(SLOT));
            match kind {
                Kind::ConfigurationRead { .. } | Kind::ConfigurationWrite { .. } => {
                    let value = data.try_into().map_or(0, u32::from_le_bytes);
                    let (status, value) = gpu.configure(&kind, value);
                    let answer = completion(gpu.id, Id::default(), 1, status);
                    let data = match kind {
                        Kind::ConfigurationRead { .. } if status == Status::Successful => {
                            value.to_le_bytes().to_vec()
                        }
                        _ => Vec::new(),
                    };
                    answers.push_back((answer, data));
                }
                Kind::MemoryWrite { request, address } => {
                    // The first write after enumeration is to where the register says.
                    let memory = memory.get_or_insert_with(|| of_register(&mut gpu));
                    assert!(memory.write(&request, address, &data), "{address:#x}");
                }
                Kind::MemoryRead {
                    request,
                    address,
                    dwords,
                } => {
                    let memory = memory.get_or_insert_with(|| of_register(&mut gpu));
                    let answer = |kind, data: &[u8]| answers.push_back((kind, data.to_vec()));
                    memory.read(gpu.id, &request, address, dwords, answer);
                }
                other => panic!("{other:?}"),
            }
        }
        let way = proxy.route(SLOT).unwrap();
        while let Some((kind, data)) = answers.front() {
            if !end.send(*kind, data, way) {
                break;
            }
            answers.pop_front();
        }
    }
}

/// Returns the memory at the address that enumeration wrote into the GPU's register.
fn of_register(gpu: &mut Gpu) -> Memory {
    let mut read = |register| {
        let kind = Kind::ConfigurationRead {
            request: Default::default(),
            target: gpu.id,
            register,
            is_local: true,
        };
        u64::from(gpu.configure(&kind, 0).1)
    };
    assert_eq!(read(0x14) & 6, 4, "a register of 64 bits");
    let base = read(0x14) & !15 | read(0x18) << 32;
    Memory::new(base, MEMORY_BYTES, PAYLOAD_BYTES_MAX)
}
