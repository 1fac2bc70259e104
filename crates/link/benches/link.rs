//! Round trips and one-way streams over each kind of link, between two threads of this process, and
//! the same over a bare socket: `cargo bench -p outboard-link`. The numbers are this machine's;
//! compare two versions, or a link and the bare socket, in one sitting: they are measured in turns.

mod raw;

use std::{
    env, thread,
    time::{Duration, Instant},
};

use outboard_link::{
    Destination, Receiver, Segment, Sender, Tail, Wait,
    conformance::{Fixture, ShmFixture, TcpFixture, pair},
};
use outboard_wire::{Room as _, limits::FRAME_BYTES_MAX};

const LENS: [usize; 5] = [16, 64, 1 << 10, 64 << 10, 1 << 20];
/// Small frames between two looks at the clock: a look costs as much as a frame.
const SENDS: u32 = 16;
/// Length of each measurement.
const SPAN: Duration = Duration::from_millis(200);
/// Each number is the median of this many measurements, taken in turns.
const ROUNDS: usize = 5;

fn main() {
    let only = env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let is_wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    if is_wanted("frames") {
        println!("link   frame bytes   round trip median     p99       one way frames/s      MB/s");
        measure("shm", &ShmFixture::default());
        measure("tcp", &TcpFixture);
    }
    if is_wanted("round trips") {
        compare_round_trips();
    }
    if is_wanted("sends") {
        compare_sends();
    }
    if is_wanted("copies") {
        compare_copies();
    }
    if is_wanted("sockets") {
        compare_sockets();
    }
}

fn measure(name: &str, fixture: &impl Fixture) {
    for len in LENS {
        let mut times = round_trips(fixture, len);
        let frames_per_s = one_way(fixture, len);
        println!(
            "{name:4} {len:13} {:17.2} µs {:8.2} µs {:19.0} {:10.1}",
            us(raw::percentile(&mut times, 50)),
            us(raw::percentile(&mut times, 99)),
            frames_per_s,
            frames_per_s * len as f64 / 1e6,
        );
    }
}

/// Compares small frames with a ping-pong of as many bytes over a bare socket that spins.
fn compare_round_trips() {
    println!(
        "\nround trips    bare socket, spinning   bare socket, blocking     tcp link   link - spinning"
    );
    for len in [16, 200, 1 << 10, 4 << 10] {
        let (mut spinning, mut blocking, mut link) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            spinning.extend(raw::round_trips(len + 4, true, SPAN));
            blocking.extend(raw::round_trips(len + 4, false, SPAN));
            link.extend(round_trips(&TcpFixture, len));
        }
        let [spinning, blocking, link] =
            [spinning, blocking, link].map(|mut times| us(raw::percentile(&mut times, 50)));
        println!(
            "{len:6} bytes {spinning:20.2} µs {blocking:20.2} µs {link:12.2} µs {:+12.2} µs",
            link - spinning
        );
    }
}

/// Measures the cost of a small frame for a thread that sends one every few microseconds.
fn compare_sends() {
    const GAP: Duration = Duration::from_micros(4);
    println!(
        "\nsends of 150 bytes, one every 4 µs, ns each for the thread that sends, median (p99)"
    );
    let alone = || sends(&TcpFixture, GAP, false);
    let helped = || sends(&TcpFixture, GAP, true);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.extend(alone().unwrap_or_default());
        with.extend(helped().unwrap_or_default());
    }
    for (name, mut times) in [("by itself", without), ("with a helper", with)] {
        match times.is_empty() {
            true => println!("{name:16} no core for it on this machine"),
            false => println!(
                "{name:16} {:6} ({})",
                raw::percentile(&mut times, 50).as_nanos(),
                raw::percentile(&mut times, 99).as_nanos()
            ),
        }
    }
}

/// Compares the frames of a large copy, from memory to memory, with as many bytes over a bare
/// socket.
fn compare_copies() {
    println!(
        "\ncopies, GB/s    bare socket   link, placed   link, in its buffer and copied   placed / bare"
    );
    for len in [64 << 10, 256 << 10, 1 << 20] {
        let (mut bare, mut placed, mut copied) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            bare.push(raw::one_way(1, len, SPAN));
            placed.push(copies(len, true));
            copied.push(copies(len, false));
        }
        let [bare, placed, copied] = [bare, placed, copied].map(raw::median);
        println!(
            "{:6} KiB {bare:16.2} {placed:14.2} {copied:32.2} {:15.2}",
            len >> 10,
            placed / bare
        );
    }
}

/// Shows whether one connection fills the path.
fn compare_sockets() {
    println!("\nbare sockets side by side, GB/s");
    for count in [1, 2, 4, 8] {
        let rates = (0..ROUNDS).map(|_| raw::one_way(count, 1 << 20, SPAN));
        println!("{count:4} {:10.2}", raw::median(rates.collect()));
    }
}

fn round_trips(fixture: &impl Fixture, len: usize) -> Vec<Duration> {
    let ((mut to_client, mut from_client), (mut to_server, mut from_server)) = pair(fixture);
    let echo = thread::spawn(move || {
        while let Ok(Some(frame)) = from_client.recv(Wait::Forever) {
            let len = frame.len();
            put(&mut to_client, len);
        }
    });
    let mut times = Vec::new();
    let end = Instant::now() + SPAN;
    while Instant::now() < end {
        let start = Instant::now();
        put(&mut to_server, len);
        take(&mut from_server, len);
        times.push(start.elapsed());
    }
    drop((to_server, from_server));
    echo.join().expect("the echo");
    times
}

fn sends(fixture: &impl Fixture, gap: Duration, is_helped: bool) -> Option<Vec<Duration>> {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let flusher = to_client.flusher();
    let helper = match is_helped {
        true => Some(flusher.helper()?),
        false => None,
    };
    let helper = helper.map(|helper| thread::spawn(|| helper.run()));
    let drain = thread::spawn(move || while let Ok(Some(_)) = from_server.recv(Wait::Forever) {});
    let mut times = Vec::new();
    let end = Instant::now() + SPAN;
    while Instant::now() < end {
        let start = Instant::now();
        for _ in 0..SENDS {
            commit(&mut to_client, 150);
            to_client.post().expect("to post");
            flusher.flush().expect("to flush");
        }
        times.push(start.elapsed() / SENDS);
        while start.elapsed() < gap {
            std::hint::spin_loop();
        }
    }
    drop(to_client);
    drain.join().expect("the receiver");
    if let Some(helper) = helper {
        helper.join().expect("the helper");
    }
    Some(times)
}

fn one_way(fixture: &impl Fixture, len: usize) -> f64 {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let flood = thread::spawn(move || {
        let end = Instant::now() + SPAN;
        while Instant::now() < end {
            for _ in 0..16 {
                commit(&mut to_client, len);
            }
        }
    });
    let start = Instant::now();
    let mut frames = 0u64;
    while let Ok(Some(frame)) = from_server.recv(Wait::Forever) {
        std::hint::black_box(frame[0]);
        frames += 1;
    }
    flood.join().expect("the flood");
    frames as f64 / start.elapsed().as_secs_f64()
}

/// Bytes per nanosecond of frames with `len` bytes of data, which end up in one of a few buffers.
fn copies(len: usize, is_placed: bool) -> f64 {
    const HEAD: [u8; 36] = [7; 36];
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(&TcpFixture);
    let flood = thread::spawn(move || {
        let data = vec![1; len];
        let end = Instant::now() + SPAN;
        while Instant::now() < end {
            to_client.send(&[&HEAD, &data]).expect("to send");
        }
    });
    let mut buffers: Vec<Box<dyn Segment>> = Vec::new();
    buffers.extend((0..4).map(|_| Box::new(vec![0u8; len]) as Box<dyn Segment>));
    let start = Instant::now();
    let mut bytes = 0u64;
    loop {
        let mut memory = buffers.pop();
        let mut place = |_: &[u8], _: usize| {
            let memory = memory.take_if(|_| is_placed)?;
            Some(Destination {
                skip: HEAD.len(),
                memory,
            })
        };
        let Ok(Some(frame)) = from_server.recv_placed(Wait::Forever, &mut place) else {
            break;
        };
        bytes += frame.bytes() as u64;
        if let (None, Some(memory)) = (&frame.tail, &mut memory) {
            memory.room().copy_from_slice(&frame.head[HEAD.len()..]);
        }
        let tail = frame.tail.and_then(|tail| match tail {
            Tail::Own(memory) => Some(memory),
            Tail::Granted(_) => None,
        });
        buffers.extend(memory.into_iter().chain(tail));
        let last = buffers.len() - 1;
        buffers.swap(0, last);
    }
    flood.join().expect("the flood");
    bytes as f64 / start.elapsed().as_nanos() as f64
}

/// Commits a frame of ones.
fn commit(sender: &mut Sender, len: usize) {
    static ONES: [u8; FRAME_BYTES_MAX] = [1; FRAME_BYTES_MAX];
    let mut frame = sender.reserve(len).expect("room");
    frame.put(&ONES[..len]).expect("room");
    frame.commit().expect("to commit");
}

fn put(sender: &mut Sender, len: usize) {
    commit(sender, len);
    sender.flush().expect("to flush");
}

fn take(receiver: &mut Receiver, len: usize) {
    let frame = receiver.recv(Wait::Forever).expect("a frame");
    assert_eq!(frame.map(<[u8]>::len), Some(len));
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
