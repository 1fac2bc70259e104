//! Tests of the verbs on this machine's device; if it has none, they print that they did not run.

use std::{
    io::Write,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use outboard_verbs::{
    Access, Chosen, Domain, Error, Memory, Options, OwnRegion, Queue, Remote, Request, Verb, choose,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const BYTES: usize = 64 << 10;

/// Options in the form of a URL's.
fn options(text: &str) -> Options {
    let mut options = Options::default();
    for part in text.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').expect("NAME=VALUE");
        options.set(name, value).expect("an option");
    }
    options
}

struct Side {
    chosen: Chosen,
    region: Arc<OwnRegion>,
    queue: Queue,
}

impl Side {
    fn new(psn: u32) -> Option<Self> {
        let said = std::env::var("OUTBOARD_RDMA").unwrap_or_default();
        let chosen = match choose(&options(&said), None, None) {
            Ok(chosen) => chosen,
            Err(error) => {
                let test = std::thread::current();
                let name = test.name().unwrap_or("verbs");
                // Printed for each test that could not run; past libtest, which would keep it.
                let _ = writeln!(std::io::stderr().lock(), "NOT RUN: {name}: {error}");
                assert!(std::env::var_os("OUTBOARD_RDMA_REQUIRED").is_none());
                return None;
            }
        };
        let domain = Domain::new(&chosen.context).expect("a domain");
        let memory = Memory::new(BYTES).expect("memory");
        let region =
            Arc::new(OwnRegion::new(&domain, memory, Access::WriteAndRead).expect("a region"));
        let regions = vec![Arc::clone(&region)];
        let queue = Queue::new(&domain, &chosen, regions, psn).expect("a queue");
        Some(Self {
            chosen,
            region,
            queue,
        })
    }

    fn remote(&self) -> Remote {
        let (number, psn) = self.queue.numbers();
        Remote {
            number,
            psn,
            gid: self.chosen.gid,
            lid: self.chosen.lid,
            mtu: self.chosen.mtu,
        }
    }

    fn request(&self, verb: Verb, to: &Side, offset: usize, len: usize) -> Request {
        Request {
            verb,
            piece: self.region.piece(offset, len),
            remote: to.region.memory().address() + offset as u64,
            rkey: to.region.rkey(),
        }
    }
}

fn pair() -> Option<(Side, Side)> {
    let (one, other) = (Side::new(7)?, Side::new(0xff_fff0)?);
    one.queue
        .connect(&one.chosen, &other.remote())
        .expect("to connect");
    other
        .queue
        .connect(&other.chosen, &one.remote())
        .expect("to connect");
    Some((one, other))
}

fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Posts one request and waits until it is done.
fn run(
    side: &mut Side,
    request: impl FnOnce(&Side) -> Request,
    mark: u64,
) -> Result<(), Box<Error>> {
    let request = request(side);
    side.queue.post(&[request], true, mark)?;
    let start = Instant::now();
    while side.queue.done() != mark {
        side.queue.poll()?;
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    Ok(())
}

#[test]
fn a_ping_comes_back_over_a_real_queue_pair() {
    let Some((mut one, mut other)) = pair() else {
        return;
    };
    for round in 1..=100u64 {
        one.region.memory().word(0).store(round, Ordering::Relaxed);
        run(
            &mut one,
            |one| one.request(Verb::Write, &other, 0, 8),
            round,
        )
        .unwrap();
        let theirs = &other.region.memory();
        until("the ping", || {
            theirs.word(0).load(Ordering::Acquire) == round
        });
        theirs.word(8).store(round * 3, Ordering::Relaxed);
        run(
            &mut other,
            |other| other.request(Verb::Write, &one, 8, 8),
            round,
        )
        .unwrap();
        let ours = &one.region.memory();
        until("the answer", || {
            ours.word(8).load(Ordering::Acquire) == round * 3
        });
    }
    assert_eq!(one.queue.counts().requests, 100);
    assert_eq!(one.queue.counts().doorbells, 100);
    // Reads the other's memory without its help.
    other.region.memory().word(64).store(77, Ordering::Relaxed);
    run(&mut one, |one| one.request(Verb::Read, &other, 64, 8), 1000).unwrap();
    assert_eq!(one.region.memory().word(64).load(Ordering::Acquire), 77);
}

#[test]
fn a_wake_up_makes_the_channel_readable() {
    let Some((mut one, mut other)) = pair() else {
        return;
    };
    for round in 1..=40 {
        other.queue.arm().unwrap();
        run(
            &mut one,
            |one| one.request(Verb::WriteAndWake, &other, 0, 16),
            round,
        )
        .unwrap();
        let mut fds = [PollFd::from_borrowed_fd(
            other.queue.channel(),
            PollFlags::IN,
        )];
        let patience = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        assert_eq!(poll(&mut fds, Some(&patience)), Ok(1));
        other.queue.take_event();
        other.queue.poll().unwrap();
        assert_eq!(other.queue.wakes(), round);
    }
}

#[test]
fn what_is_outside_the_window_or_of_another_session_is_refused() {
    let Some((_, stranger)) = pair() else {
        return;
    };
    for case in ["behind the end", "another session's key", "no key at all"] {
        let (mut one, other) = pair().unwrap();
        other.region.memory().word(0).store(5, Ordering::Relaxed);
        stranger.region.memory().word(0).store(6, Ordering::Relaxed);
        one.region
            .memory()
            .word(0)
            .store(u64::MAX, Ordering::Relaxed);
        let error = run(
            &mut one,
            |one| {
                let request = one.request(Verb::Write, &other, 0, 8);
                match case {
                    "behind the end" => Request {
                        remote: request.remote + BYTES as u64 - 4,
                        ..request
                    },
                    "another session's key" => Request {
                        remote: stranger.region.memory().address(),
                        rkey: stranger.region.rkey(),
                        ..request
                    },
                    _ => Request {
                        rkey: request.rkey ^ 0x5a5a_5a5a,
                        ..request
                    },
                }
            },
            1,
        )
        .unwrap_err();
        assert!(
            matches!(*error, Error::AccessRefused { .. }),
            "{case}: {error}"
        );
        assert_eq!(other.region.memory().word(0).load(Ordering::Acquire), 5);
        assert_eq!(stranger.region.memory().word(0).load(Ordering::Acquire), 6);
        // The connection is unusable, and says so.
        let again = run(&mut one, |one| one.request(Verb::Write, &other, 0, 8), 2).unwrap_err();
        assert!(matches!(*again, Error::AccessRefused { .. }), "{again}");
    }
}

#[test]
fn what_cannot_be_had_says_why() {
    if Side::new(0).is_none() {
        return;
    }
    let of = |text: &str| match choose(&options(text), None, None) {
        Ok(_) => unreachable!("{text}"),
        Err(error) => error,
    };
    assert!(matches!(of("device=mlx9_9"), Error::NoSuchDevice { .. }));
    assert!(matches!(of("port=9"), Error::NoSuchPort { .. }));
    assert!(matches!(of("gid=200"), Error::NoSuchGid { .. }));
    assert!(matches!(of("pkey=0x1234"), Error::NoPartition { .. }));
}
