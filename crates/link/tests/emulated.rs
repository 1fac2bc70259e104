//! Tests of an emulated network's promises, over each link that can carry it. Since the machine may
//! be busy, frames must never be early, but a bound on lateness is wide or applies to the best of
//! several attempts.
#![cfg(not(loom))]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use outboard_link::{
    Destination, Endpoint, Error, Link, Receiver, Segment, Sender, Wait,
    conformance::{
        EmulatedFixture, Fixture, PATIENCE, ShmFixture, TcpFixture, expect_end, expect_frame, pair,
        send, soon,
    },
    emulated::{Attachment, End},
};
use rustix::time::{ClockId, clock_gettime};

type Side = (Sender, Receiver);

/// Both ends of a link over each carrier, the server's first.
fn pairs(network: &str) -> [(&'static str, (Side, Side)); 2] {
    let shm = pair(&EmulatedFixture::with(ShmFixture::default(), network));
    let tcp = pair(&EmulatedFixture::with(TcpFixture, network));
    [("shm", shm), ("tcp", tcp)]
}

/// A frame of `len` bytes is in flight for `way_ns + len * byte_ns` at least, and none overtakes
/// another.
fn nothing_is_early(network: &str, way_ns: u64, byte_ns: f64) {
    none_of_these_is_early((400, 20_000), network, way_ns, byte_ns);
}

fn none_of_these_is_early(
    (frames, bytes_max): (u64, usize),
    network: &str,
    way_ns: u64,
    byte_ns: f64,
) {
    for (carrier, ((mut to_client, _keep), (_keep_too, mut from_server))) in pairs(network) {
        let (tell, told) = mpsc::channel();
        let sender = thread::spawn(move || {
            for number in 0..frames {
                let len = 1 + (number as usize * 7_919) % bytes_max;
                let sent = Instant::now();
                send(&mut to_client, number, len).expect("to send");
                tell.send((sent, len)).expect("to tell");
                if number % 16 == 0 {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            to_client
        });
        let mut wire_free: Option<Instant> = None;
        for number in 0..frames {
            // By every way of waiting.
            let frame = loop {
                let wait = match number % 3 {
                    0 => Wait::Poll,
                    1 => Wait::Until(Instant::now() + Duration::from_micros(100)),
                    _ => Wait::Forever,
                };
                if let Some(frame) = from_server.recv(wait).expect("no end") {
                    break frame.len();
                }
            };
            let arrived = Instant::now();
            let (sent, len) = told.recv().expect("when it was sent");
            assert_eq!(frame, len);
            let on_wire = Duration::from_nanos((len as f64 * byte_ns) as u64);
            let begins = wire_free.map_or(sent, |free| free.max(sent));
            wire_free = Some(begins + on_wire);
            let earliest = begins + on_wire + Duration::from_nanos(way_ns);
            assert!(
                arrived >= earliest,
                "{carrier}, {network}: frame {number} came {:?} early",
                earliest - arrived
            );
        }
        sender.join().expect("the sender");
    }
}

#[test]
fn no_frame_is_handed_over_before_its_time() {
    nothing_is_early("rtt=10us", 5_000, 0.0);
    nothing_is_early("rtt=2ms", 1_000_000, 0.0);
    nothing_is_early("bandwidth=1Gbps", 0, 8.0);
    nothing_is_early("rtt=400us,bandwidth=200Mbps", 200_000, 40.0);
    nothing_is_early(
        "rtt=100us,bandwidth=10Gbps,jitter=50us,tail=1ms@5%",
        50_000,
        0.8,
    );
    // Many and long ones are taken out of the link before their time.
    none_of_these_is_early((2_000, 300), "rtt=40ms", 20_000_000, 0.0);
    none_of_these_is_early((100, 900_000), "rtt=20ms,bandwidth=8Gbps", 10_000_000, 1.0);
}

/// Returns the shortest of several round trips of an echo.
fn round_trip(
    ((mut to_client, mut from_client), (mut to_server, mut from_server)): (Side, Side),
) -> Duration {
    const ROUNDS: u64 = 20;
    let echo = thread::spawn(move || {
        while let Ok(Some(frame)) = from_client.recv(Wait::Until(soon())) {
            to_client.send(&[frame]).expect("to echo");
            to_client.flush().expect("to flush");
        }
    });
    let times: Vec<Duration> = (0..ROUNDS)
        .map(|number| {
            let start = Instant::now();
            send(&mut to_server, number, 64).expect("to send");
            expect_frame(&mut from_server, number, 64);
            start.elapsed()
        })
        .collect();
    drop(to_server);
    echo.join().expect("the echo");
    times.into_iter().min().expect("some")
}

#[test]
fn a_round_trip_takes_what_the_network_says() {
    for (text, rtt) in [("rtt=5ms", 5), ("rtt=20ms", 20)] {
        let rtt = Duration::from_millis(rtt);
        for (carrier, pair) in pairs(text) {
            let took = round_trip(pair);
            assert!(took >= rtt, "{carrier}: {took:?}");
            // Less than twice: on a busy machine a thread may start milliseconds late.
            let most = rtt * 3 / 2 + Duration::from_millis(2);
            assert!(took < most, "{carrier}: {took:?}");
        }
    }
}

/// Sends `frames` of 25,000 bytes; returns the time until the last has arrived.
fn stream(mut sender: Sender, mut receiver: Receiver, frames: u64) -> Duration {
    let start = Instant::now();
    let sending = thread::spawn(move || {
        for number in 0..frames {
            send(&mut sender, number, 25_000).expect("to send");
        }
        sender
    });
    for number in 0..frames {
        expect_frame(&mut receiver, number, 25_000);
    }
    let took = start.elapsed();
    sending.join().expect("the sender");
    took
}

/// Attempts over shm and over tcp, of which the best counts.
const TRIES: usize = 3;

/// 200 Mbps: a millisecond a frame.
#[test]
fn a_stream_takes_what_the_bandwidth_says_in_each_direction_for_itself() {
    const FRAMES: u64 = 100;
    let least = Duration::from_millis(FRAMES);
    let mut best = [Duration::MAX; 2];
    for _ in 0..TRIES {
        let pairs = pairs("rtt=2ms,bandwidth=200Mbps");
        for (best, (carrier, (server, client))) in best.iter_mut().zip(pairs) {
            let ((to_client, from_client), (to_server, from_server)) = (server, client);
            let back = thread::spawn(move || stream(to_server, from_client, FRAMES));
            let there = stream(to_client, from_server, FRAMES);
            let back = back.join().expect("the other direction");
            assert!(there.min(back) >= least, "{carrier}: {there:?}, {back:?}");
            *best = there.max(back).min(*best);
        }
    }
    // Both directions over one wire would take twice as long.
    let most = least + least / 2;
    assert!(best.iter().all(|took| *took < most), "{best:?}");
}

#[test]
fn twice_the_bandwidth_is_half_the_time() {
    let take = |network: &str| {
        let mut best = [u64::MAX; 2];
        for _ in 0..TRIES {
            for (best, (_, (server, client))) in best.iter_mut().zip(pairs(network)) {
                let took = stream(server.0, client.1, 80);
                *best = (took.as_nanos() as u64).min(*best);
            }
        }
        best
    };
    let (slow, fast) = (take("bandwidth=100Mbps"), take("bandwidth=200Mbps"));
    for (slow, fast) in slow.into_iter().zip(fast) {
        let ratio = slow as f64 / fast as f64;
        assert!((1.6..2.4).contains(&ratio), "{slow} ns and {fast} ns");
    }
}

/// A receiver that waits for a frame's arrival can be woken, can time out, and can be ended.
#[test]
fn waiting_for_a_time_of_arrival_can_be_ended() {
    const WAY: Duration = Duration::from_secs(2);
    for (_, ((mut to_client, _keep), (to_server, mut from_server))) in pairs("rtt=4s") {
        let sent = Instant::now();
        send(&mut to_client, 7, 10).expect("to send");
        // It has been sent, and is not handed over.
        thread::sleep(Duration::from_millis(20));
        assert!(from_server.recv(Wait::Poll).expect("no end").is_none());
        let until = Instant::now() + Duration::from_millis(50);
        let nothing = from_server.recv(Wait::Until(until)).expect("no end");
        assert!(nothing.is_none() && Instant::now() >= until);
        let waker = from_server.waker();
        // Before it waits, and while it does.
        waker.wake();
        assert!(from_server.recv(Wait::Forever).expect("no end").is_none());
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            waker.wake();
        });
        assert!(from_server.recv(Wait::Forever).expect("no end").is_none());
        other.join().expect("the waker's thread");
        let closer = to_server.closer();
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            closer.close();
        });
        let ended = from_server.recv(Wait::Forever).map(drop);
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
        other.join().expect("the closer's thread");
        assert!(sent.elapsed() < WAY, "{:?}", sent.elapsed());
    }
}

#[test]
fn what_is_on_its_way_arrives_although_its_sender_has_left() {
    for (_, ((mut to_client, keep), (_keep_too, mut from_server))) in pairs("rtt=400ms") {
        let sent = Instant::now();
        for number in 0..3 {
            send(&mut to_client, number, 1_000).expect("to send");
        }
        drop((to_client, keep));
        for number in 0..3 {
            expect_frame(&mut from_server, number, 1_000);
        }
        assert!(sent.elapsed() >= Duration::from_millis(200));
        expect_end(&mut from_server);
    }
}

#[test]
fn waiting_long_for_a_time_of_arrival_costs_little() {
    for (carrier, ((mut to_client, _keep), (_keep_too, mut from_server))) in pairs("rtt=2s") {
        let time = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        send(&mut to_client, 1, 10).expect("to send");
        let before = time();
        // Frames that come meanwhile do not wake the receiver.
        let sender = thread::spawn(move || {
            for number in 2..200 {
                send(&mut to_client, number, 10).expect("to send");
                thread::sleep(Duration::from_millis(2));
            }
            to_client
        });
        expect_frame(&mut from_server, 1, 10);
        let used = time() - before;
        assert!(
            used < Duration::from_millis(30),
            "{carrier}: {used:?} of a second"
        );
        sender.join().expect("the sender");
    }
}

/// Bytes under way on a long, fast network: more than a ring or a socket holds.
#[test]
fn as_many_bytes_are_under_way_as_the_network_holds() {
    const LEN: usize = 1 << 20;
    const FRAMES: u64 = 96;
    for (carrier, ((mut to_client, _keep), (_keep_too, mut from_server))) in
        pairs("rtt=6s,bandwidth=10Gbps")
    {
        let is_sent = Arc::new(AtomicBool::new(false));
        let tell = Arc::clone(&is_sent);
        let sender = thread::spawn(move || {
            let mut frame = vec![0; LEN];
            for number in 0..FRAMES {
                frame[..8].copy_from_slice(&number.to_le_bytes());
                to_client.send(&[&frame]).expect("to send");
            }
            tell.store(true, Ordering::Release);
            to_client
        });
        for number in 0..FRAMES {
            let frame = from_server.recv(Wait::Until(soon()));
            let frame = frame.expect("no end").expect("a frame in time");
            assert!(
                is_sent.load(Ordering::Acquire),
                "{carrier}: a sender was held back"
            );
            assert_eq!(frame.len(), LEN);
            assert_eq!(frame[..8], number.to_le_bytes());
        }
        sender.join().expect("the sender");
    }
}

/// A sender that sends without end is held back, though the receiver waits.
#[test]
fn what_is_taken_in_before_its_time_has_a_bound() {
    const LEN: usize = 1 << 20;
    /// Bytes of the network, a ring and the kernel's buffers, and as many again.
    const BYTES_MAX: usize = 128 << 20;
    for (carrier, ((mut to_client, _keep), (to_server, mut from_server))) in
        pairs("rtt=10s,bandwidth=1Mbps")
    {
        let sent = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&sent);
        let closer = to_client.closer();
        let flood = thread::spawn(move || {
            let frame = vec![7; LEN];
            while to_client.send(&[&frame]).is_ok() {
                count.fetch_add(LEN, Ordering::Relaxed);
            }
        });
        let (mut before, mut now) = (0, 1);
        // Until nothing more is taken.
        while now != before && now < BYTES_MAX {
            before = now;
            let until = Instant::now() + Duration::from_millis(500);
            assert!(
                from_server
                    .recv(Wait::Until(until))
                    .expect("no end")
                    .is_none()
            );
            now = sent.load(Ordering::Relaxed);
        }
        assert!((LEN..BYTES_MAX).contains(&now), "{carrier}: {now} bytes");
        closer.close();
        flood.join().expect("the sender");
        drop(to_server);
    }
}

/// Memory that counts its instances.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Segment for Counted {
    fn room(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The caller's memory that was filled early is given back when the receiver ends, and when this
/// side is closed.
#[test]
fn frames_that_wait_for_their_time_end_with_their_link() {
    for is_closed in [false, true] {
        for (carrier, ((mut to_client, _keep), (to_server, mut from_server))) in pairs("rtt=10s") {
            let alive = Arc::new(AtomicUsize::new(0));
            let mut place = |_: &[u8], len: usize| {
                alive.fetch_add(1, Ordering::Relaxed);
                let memory = Box::new(Counted(vec![0; len], Arc::clone(&alive)));
                Some(Destination { skip: 0, memory })
            };
            for number in 0..4 {
                send(&mut to_client, number, 100_000).expect("to send");
            }
            while alive.load(Ordering::Relaxed) < 4 {
                let until = Instant::now() + Duration::from_millis(1);
                let nothing = from_server.recv_placed(Wait::Until(until), &mut place);
                assert!(nothing.expect("no end").is_none(), "{carrier}");
            }
            if is_closed {
                to_server.closer().close();
                let ended = from_server.recv_placed(Wait::Forever, &mut place);
                assert!(matches!(ended.map(drop), Err(Error::Closed)), "{carrier}");
            } else {
                drop(from_server);
            }
            assert_eq!(alive.load(Ordering::Relaxed), 0, "{carrier}");
        }
    }
}

/// Two links of one session share its bandwidth.
#[test]
fn links_of_one_attachment_wait_for_one_wire() {
    const FRAMES: u64 = 40;
    let network = "bandwidth=200Mbps".parse().expect("a network");
    let ends = [End::Server, End::Client].map(|end| Attachment::new(&network, end));
    let (first, second) = (Attached(&ends), Attached(&ends));
    let start = Instant::now();
    let streams = [pair(&first), pair(&second)]
        .map(|(server, client)| thread::spawn(move || stream(server.0, client.1, FRAMES)));
    for stream in streams {
        stream.join().expect("a stream");
    }
    // A millisecond a frame, of both.
    assert!(start.elapsed() >= Duration::from_millis(2 * FRAMES));
}

/// Links over tcp that share an attachment at each end.
struct Attached<'a>(&'a [Attachment; 2]);

impl Fixture for Attached<'_> {
    fn endpoint(&self) -> Endpoint {
        TcpFixture.endpoint()
    }

    fn wrap(&self, link: Link, end: End) -> Link {
        let [server, client] = self.0;
        let attachment = match end {
            End::Server => server,
            End::Client => client,
        };
        link.attached(attachment).expect("an emulated network")
    }
}

/// A network at the client's end only: what the server sends are the bytes that a hostile one could
/// send.
struct OneSided<F>(EmulatedFixture<F>);

impl<F: Fixture> Fixture for OneSided<F> {
    fn endpoint(&self) -> Endpoint {
        self.0.endpoint()
    }

    fn wrap(&self, link: Link, end: End) -> Link {
        match end {
            End::Client => self.0.wrap(link, end),
            End::Server => link,
        }
    }
}

fn hostile(frames: &[&[u8]]) -> [Error; 2] {
    let say = |((mut to_client, keep), (_keep_too, mut from_server)): (Side, Side)| {
        for frame in frames {
            to_client.send(&[frame]).expect("to send");
        }
        drop((to_client, keep));
        loop {
            match from_server.recv(Wait::Until(Instant::now() + PATIENCE)) {
                Ok(frame) => assert!(frame.is_some()),
                Err(error) => return error,
            }
        }
    };
    let network = "rtt=10us";
    [
        say(pair(&OneSided(EmulatedFixture::with(
            ShmFixture::default(),
            network,
        )))),
        say(pair(&OneSided(EmulatedFixture::with(TcpFixture, network)))),
    ]
}

#[test]
fn stamps_that_cannot_be_are_refused() {
    for stamp in [&[1][..], &[0; 7], &[0; 9], &[0; 1_000]] {
        for error in hostile(&[stamp, b"frame"]) {
            let Error::PeerMisbehaved {
                got, allowed: 8, ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!(got, stamp.len() as u64);
        }
    }
    for late in [u64::MAX, u64::MAX / 2] {
        for error in hostile(&[&late.to_le_bytes(), b"frame"]) {
            assert!(matches!(error, Error::PeerMisbehaved { .. }), "{error}");
        }
    }
    // In order, the second one's stamp before the first one's; and an end where a frame should be.
    let past = 5u64.to_le_bytes();
    for error in hostile(&[&past, b"frame", &[0; 8], b"another", &past]) {
        assert!(error.is_disconnect(), "{error}");
    }
}
