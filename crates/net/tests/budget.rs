//! Queues whose peers ask for much and take nothing, in a process with a share of its machine's
//! memory: their connections end, and not the process.
#![allow(clippy::unwrap_used)]

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    sync::atomic::Ordering,
    thread::{sleep, spawn},
    time::{Duration, Instant},
};

use outboard_budget::CountingAllocator;
use outboard_net::{Access, Link, Mapped, Network, Nic, Peer, Queue, QueueOptions};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const BUDGET_BYTES: u64 = 256 << 20;
const WINDOW_BYTES: usize = 16 << 20;
const QUEUES: usize = 16;
const LEFT_BYTES: u64 = 16 << 20;
const FLOODED: usize = 8;
const HEADER_BYTES: usize = 48;
const PATIENCE: Duration = Duration::from_secs(60);

const WRITE: u8 = 1;
const READ: u8 = 5;
const NOP: u8 = 8;
const DONE: u8 = 16;

struct Target {
    nic: Nic,
    window: Mapped,
    key: u32,
}

impl Target {
    fn new() -> Target {
        let window = Mapped::allocate(WINDOW_BYTES).unwrap();
        let nic = Nic::start(Network::default()).unwrap();
        let key = nic.with(|of| of.register(1, window.clone(), Access::ALL).unwrap());
        Target { nic, window, key }
    }

    /// A queue of this process, and its peer's end of their connection.
    fn connected(&self) -> ((Link, Queue), UnixStream) {
        let options = QueueOptions {
            log_blocks: 6,
            signal_every: 1,
            ..QueueOptions::default()
        };
        let memory = Mapped::allocate(options.bytes()).unwrap();
        let queue = Queue::create(&self.nic, memory, options).unwrap();
        let qpn = queue.export().qpn;
        let epoch = self.nic.with(|of| of.end_of(qpn).unwrap().epoch);
        let peer = Peer { qpn: 1, epoch: 2 };
        self.nic.with(|of| of.connect_remote(qpn, peer).unwrap());
        let (mine, theirs) = UnixStream::pair().unwrap();
        let second = Some(Duration::from_secs(1));
        theirs.set_write_timeout(second).unwrap();
        theirs.set_read_timeout(Some(PATIENCE)).unwrap();
        let link = Link::over(&self.nic, mine, qpn, epoch).unwrap();
        ((link, queue), theirs)
    }

    /// The start of a peer's frame: a read of `bytes` of the window, or a write of `bytes`.
    fn frame(&self, kind: u8, sequence: u64, bytes: usize) -> [u8; HEADER_BYTES] {
        let mut frame = [0; HEADER_BYTES];
        frame[0] = kind;
        frame[8..16].copy_from_slice(&sequence.to_le_bytes());
        frame[16..24].copy_from_slice(&self.window.address().to_le_bytes());
        frame[24..28].copy_from_slice(&self.key.to_le_bytes());
        let length = (bytes as u32).to_le_bytes();
        let at = if kind == READ { 28 } else { 4 };
        frame[at..at + 4].copy_from_slice(&length);
        frame
    }
}

fn is_over((link, _): &(Link, Queue)) -> bool {
    link.is_finished()
}

/// Waits until the connections of some are over. Returns of how many.
fn count_over(links: &[(Link, Queue)]) -> usize {
    let begin = Instant::now();
    while !links.iter().any(is_over) {
        assert!(begin.elapsed() < PATIENCE, "all have their answers");
        sleep(Duration::from_millis(10));
    }
    links.iter().filter(|link| is_over(link)).count()
}

// The budget is the process's: one test.
#[test]
fn peers_that_ask_for_more_than_there_is_lose_their_connections_alone() {
    let target = Target::new();
    outboard_budget::set(BUDGET_BYTES);
    long_answers(&target);
    // The memory of those that are gone is there for the next.
    assert!(outboard_budget::used() < BUDGET_BYTES / 2);
    outboard_budget::set(outboard_budget::used() + LEFT_BYTES);
    short_answers(&target);
    short_entry_beyond(&target);
}

/// Three answers of the whole window, of which the peer takes none; or a frame that never comes
/// whole.
fn long_answers(target: &Target) {
    let (mut links, mut peers) = (Vec::new(), Vec::new());
    for number in 0..QUEUES {
        let (link, mut theirs) = target.connected();
        let frames = (0..3).flat_map(|at| target.frame(READ, at, WINDOW_BYTES));
        let frames: Vec<u8> = match number % 4 {
            0 => target.frame(WRITE, 0, WINDOW_BYTES).to_vec(),
            _ => frames.collect(),
        };
        theirs.write_all(&frames).unwrap();
        links.push(link);
        peers.push(theirs);
    }
    // Whose connection has ended has less than three answers.
    let over = count_over(&links);
    assert!(outboard_budget::used() < BUDGET_BYTES + (16 << 20));
    assert!(over < QUEUES, "some had room");
}

/// As many answers without data as the peer can ask for.
fn short_answers(target: &Target) {
    let (links, peers): (Vec<_>, Vec<_>) = (0..FLOODED).map(|_| target.connected()).unzip();
    let threads = peers.into_iter().map(|mut theirs| {
        let frames: Vec<u8> = (0..1024).flat_map(|at| target.frame(NOP, at, 0)).collect();
        spawn(move || {
            let wrote = |_: &u32| theirs.write_all(&frames).is_ok();
            let _ = (0..1024).take_while(wrote).count();
            theirs
        })
    });
    let threads: Vec<_> = threads.collect();
    count_over(&links);
    let peers = threads.into_iter().map(|one| one.join().unwrap());
    let peers: Vec<_> = peers.collect();
    drop((links, peers));
}

/// An honest peer's short entry, where the budget is used up.
fn short_entry_beyond(target: &Target) {
    let (link, mut theirs) = target.connected();
    outboard_budget::set(outboard_budget::used() - (1 << 20));
    theirs.write_all(&target.frame(WRITE, 0, 8)).unwrap();
    theirs.write_all(&7_u64.to_le_bytes()).unwrap();
    let mut answer = [0; HEADER_BYTES];
    theirs.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], DONE);
    assert_eq!(target.window.u64(0).load(Ordering::Relaxed), 7);
    drop(link);
}
