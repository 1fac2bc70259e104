//! Tests of the verbs on this machine's device; if it has none, they print that they did not run.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    RdmaError, RdmaOptions,
    device::{Chosen, choose},
    domain::{Access, Domain, OwnRegion},
    memory::Memory,
    queue::{Queue, Remote, Request, Verb},
};
use crate::{Error, conformance::not_run};

const BYTES: usize = 64 << 10;

struct Side {
    chosen: Chosen,
    region: Arc<OwnRegion>,
    queue: Queue,
}

impl Side {
    fn new(psn: u32) -> Option<Self> {
        let options = RdmaOptions::default().with_environment().unwrap();
        let chosen = match choose(&options, None, None) {
            Ok(chosen) => chosen,
            Err(error) => {
                let test = std::thread::current();
                not_run(test.name().unwrap_or("rdma"), error);
                assert!(std::env::var_os("OUTBOARD_RDMA_REQUIRED").is_none());
                return None;
            }
        };
        let domain = Domain::new(&chosen.context).unwrap();
        let memory = Memory::new(BYTES).unwrap();
        let region = Arc::new(OwnRegion::new(&domain, memory, Access::WriteAndRead).unwrap());
        let regions = vec![Arc::clone(&region)];
        let queue = Queue::new(&domain, &chosen, regions, psn).unwrap();
        Some(Self {
            chosen,
            region,
            queue,
        })
    }

    fn remote(&self) -> Remote {
        Remote {
            number: self.queue.number(),
            psn: self.queue.psn,
            gid: self.chosen.gid,
            lid: self.chosen.lid,
            mtu: self.chosen.mtu,
        }
    }

    fn request(&self, verb: Verb, to: &Side, offset: usize, len: usize) -> Request {
        Request {
            verb,
            piece: self.region.piece(offset, len),
            remote: to.region.memory.address() + offset as u64,
            rkey: to.region.rkey,
        }
    }
}

fn pair() -> Option<(Side, Side)> {
    let (one, other) = (Side::new(7)?, Side::new(0xff_fff0)?);
    one.queue.connect(&one.chosen, &other.remote()).unwrap();
    other.queue.connect(&other.chosen, &one.remote()).unwrap();
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
fn run(side: &mut Side, request: impl FnOnce(&Side) -> Request, mark: u64) -> Result<(), Error> {
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
        one.region.memory.word(0).store(round, Ordering::Relaxed);
        run(
            &mut one,
            |one| one.request(Verb::Write, &other, 0, 8),
            round,
        )
        .unwrap();
        let theirs = &other.region.memory;
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
        let ours = &one.region.memory;
        until("the answer", || {
            ours.word(8).load(Ordering::Acquire) == round * 3
        });
    }
    assert_eq!(one.queue.counts().requests, 100);
    assert_eq!(one.queue.counts().doorbells, 100);
    // Reads the other's memory without its help.
    other.region.memory.word(64).store(77, Ordering::Relaxed);
    run(&mut one, |one| one.request(Verb::Read, &other, 64, 8), 1000).unwrap();
    assert_eq!(one.region.memory.word(64).load(Ordering::Acquire), 77);
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
        let until = Some(Instant::now() + Duration::from_secs(20));
        let events = rustix::event::PollFlags::IN;
        assert!(crate::sys::wait_one(other.queue.channel(), events, until).unwrap());
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
        other.region.memory.word(0).store(5, Ordering::Relaxed);
        stranger.region.memory.word(0).store(6, Ordering::Relaxed);
        one.region.memory.word(0).store(u64::MAX, Ordering::Relaxed);
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
                        remote: stranger.region.memory.address(),
                        rkey: stranger.region.rkey,
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
            matches!(error.rdma(), Some(RdmaError::AccessRefused { .. })),
            "{case}: {error}"
        );
        assert_eq!(other.region.memory.word(0).load(Ordering::Acquire), 5);
        assert_eq!(stranger.region.memory.word(0).load(Ordering::Acquire), 6);
        // The connection is unusable, and says so.
        let again = run(&mut one, |one| one.request(Verb::Write, &other, 0, 8), 2).unwrap_err();
        assert!(
            matches!(again.rdma(), Some(RdmaError::AccessRefused { .. })),
            "{again}"
        );
    }
}

#[test]
fn what_cannot_be_had_says_why() {
    if Side::new(0).is_none() {
        return;
    }
    let of = |text: &str| match choose(&text.parse().unwrap(), None, None) {
        Ok(_) => unreachable!("{text}"),
        Err(error) => error,
    };
    assert!(matches!(
        of("device=mlx9_9"),
        RdmaError::NoSuchDevice { .. }
    ));
    assert!(matches!(of("port=9"), RdmaError::NoSuchPort { .. }));
    assert!(matches!(of("gid=200"), RdmaError::NoSuchGid { .. }));
    assert!(matches!(of("pkey=0x1234"), RdmaError::NoPartition { .. }));
}
