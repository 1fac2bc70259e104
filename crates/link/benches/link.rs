//! Round trips and one-way streams over each kind of link, between two threads of this process:
//! `cargo bench -p outboard-link`. The numbers are this machine's; compare two versions in one sitting.

use std::{
    thread,
    time::{Duration, Instant},
};

use outboard_link::{
    Receiver, Sender, Wait,
    conformance::{Fixture, ShmFixture, TcpFixture, pair},
};

const LENS: [usize; 5] = [16, 64, 1 << 10, 64 << 10, 1 << 20];
/// How long each number is measured.
const SPAN: Duration = Duration::from_millis(500);

fn main() {
    println!("link   frame bytes   round trip median     p99       one way frames/s      MB/s");
    measure("shm", &ShmFixture::default());
    measure("tcp", &TcpFixture);
}

fn measure(name: &str, fixture: &impl Fixture) {
    for len in LENS {
        let (median, p99) = round_trips(fixture, len);
        let frames_per_s = one_way(fixture, len);
        println!(
            "{name:4} {len:13} {:17.2} µs {:8.2} µs {:19.0} {:10.1}",
            median.as_secs_f64() * 1e6,
            p99.as_secs_f64() * 1e6,
            frames_per_s,
            frames_per_s * len as f64 / 1e6,
        );
    }
}

fn round_trips(fixture: &impl Fixture, len: usize) -> (Duration, Duration) {
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
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn one_way(fixture: &impl Fixture, len: usize) -> f64 {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let flood = thread::spawn(move || {
        let end = Instant::now() + SPAN;
        while Instant::now() < end {
            for _ in 0..16 {
                to_client.reserve(len).expect("room").fill(1);
                to_client.commit(len).expect("to commit");
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

fn put(sender: &mut Sender, len: usize) {
    sender.reserve(len).expect("room").fill(1);
    sender.commit(len).expect("to commit");
    sender.flush().expect("to flush");
}

fn take(receiver: &mut Receiver, len: usize) {
    let frame = receiver.recv(Wait::Forever).expect("a frame");
    assert_eq!(frame.map(<[u8]>::len), Some(len));
}
