//! Sending by several threads and a helper, of which the one that has the turn sends for all.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use outboard_wire::limits::{RING_BYTES, TCP_SEND_BUFFER_BYTES};
use rustix::time::{ClockId, clock_gettime};

use super::{Fixture, commit_frame, expect_end, expect_frame, fill, pair, send, soon, write_frame};
use crate::{Error, Flusher, LinkKind, Reservation, Sender, Wait};

/// Starts a helper if the link has one, whatever the machine.
fn start_helper(flusher: &Flusher) -> Option<JoinHandle<Duration>> {
    let helper = flusher.any_helper()?;
    Some(thread::spawn(move || {
        helper.run();
        thread_time()
    }))
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn post(sender: &mut Sender, number: u64, len: usize) -> Result<(), Error> {
    commit_frame(sender, number, len)?;
    sender.post()
}

/// Lengths that differ; some frames go to the kernel without a copy.
fn len_of(number: u64) -> usize {
    match number % 97 {
        0 => 40_000,
        odd => 16 + odd as usize * 8,
    }
}

pub fn frames_of_many_threads_keep_their_order(fixture: &impl Fixture) {
    const THREADS: u64 = 3;
    const FRAMES: u64 = 20_000;
    for with_helper in [false, true] {
        let ((to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
        let flusher = to_client.flusher();
        let helper = with_helper.then(|| start_helper(&flusher)).flatten();
        let sender = Arc::new(Mutex::new(to_client));
        // Counted under the sender's lock.
        let count = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let (sender, count) = (Arc::clone(&sender), Arc::clone(&count));
                let flusher = flusher.clone();
                thread::spawn(move || {
                    for _ in 0..FRAMES {
                        let mut sender = sender.lock().expect("no panic");
                        let number = count.fetch_add(1, Ordering::Relaxed);
                        let len = len_of(number);
                        if len > 30_000 {
                            let mut frame = vec![0; len];
                            write_frame(&mut frame, number);
                            sender.send(&[&frame]).expect("to send");
                        } else if number.is_multiple_of(3) {
                            post(&mut sender, number, len).expect("to post");
                        } else {
                            let mut frame = Reservation::new(sender, len).expect("room");
                            fill(&mut frame, number, len);
                            // The last frame of all has nobody to leave with.
                            match number % 5 == 1 && number + 1 < THREADS * FRAMES {
                                true => flusher.commit_resting(frame).expect("to add"),
                                false => flusher.commit(frame).expect("to send"),
                            }
                            continue;
                        }
                        drop(sender);
                        flusher.flush().expect("to flush");
                    }
                })
            })
            .collect();
        // Every frame comes, although no thread sends anything afterwards.
        for number in 0..THREADS * FRAMES {
            expect_frame(&mut from_server, number, len_of(number));
        }
        for thread in threads {
            thread.join().expect("a sender");
        }
        drop(sender);
        expect_end(&mut from_server);
        if let Some(helper) = helper {
            helper.join().expect("the helper");
        }
    }
}

pub fn a_helper_ends_with_its_link(fixture: &impl Fixture) {
    for is_closed in [false, true] {
        for is_awake in [false, true] {
            let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
            let flusher = to_client.flusher();
            let helper = start_helper(&flusher);
            thread::sleep(Duration::from_millis(20));
            for number in 0..if is_awake { 1_000 } else { 1 } {
                send(&mut to_client, number, 100).expect("to send");
                expect_frame(&mut from_server, number, 100);
            }
            let closer = to_client.closer();
            if is_closed {
                closer.close();
            } else {
                drop(to_client);
            }
            let start = Instant::now();
            if let Some(helper) = helper {
                helper.join().expect("the helper");
            }
            assert!(start.elapsed() < Duration::from_secs(2));
            // Too late, and does no harm.
            let _ = flusher.flush();
        }
    }
}

pub fn what_a_helper_meets_is_told_to_the_next_sender(fixture: &impl Fixture) {
    let (server, (mut to_server, _from_server)) = pair(fixture);
    let flusher = to_server.flusher();
    let helper = start_helper(&flusher);
    drop(server);
    let start = Instant::now();
    let error = loop {
        let sent = post(&mut to_server, 0, 100).and_then(|()| flusher.flush());
        match sent {
            Ok(()) => assert!(start.elapsed() < Duration::from_secs(5), "no error"),
            Err(error) => break error,
        }
    };
    assert!(error.is_disconnect(), "{error}");
    let again = post(&mut to_server, 0, 100).expect_err("still gone");
    assert!(again.is_disconnect(), "{again}");
    drop(to_server);
    if let Some(helper) = helper {
        helper.join().expect("the helper");
    }
}

/// A helper without work costs less than 3 % of a core after it was awake.
pub fn a_helper_without_work_costs_nothing(fixture: &impl Fixture) {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let flusher = to_client.flusher();
    let helper = start_helper(&flusher);
    thread::sleep(Duration::from_millis(20));
    for number in 0..1_000 {
        post(&mut to_client, number, 100).expect("to post");
        flusher.flush().expect("to flush");
    }
    for number in 0..1_000 {
        expect_frame(&mut from_server, number, 100);
    }
    thread::sleep(Duration::from_millis(1_000));
    drop(to_client);
    if let Some(helper) = helper {
        let used = helper.join().expect("the helper");
        assert!(used < Duration::from_millis(30), "{used:?} of a second");
    }
}

pub fn back_pressure_reaches_threads_that_post(fixture: &impl Fixture) {
    const LEN: usize = 5_000;
    const FRAMES: u64 = 16_000;
    /// A ring, or what the kernel buffers for a tcp connection at both ends, plus what is posted.
    const IN_FLIGHT_BYTES_MAX: u64 =
        RING_BYTES as u64 + (12 << 20) + 3 * TCP_SEND_BUFFER_BYTES as u64;
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let flusher = to_client.flusher();
    let helper = start_helper(&flusher);
    let posted = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&posted);
    let sender = thread::spawn(move || {
        for number in 0..FRAMES {
            post(&mut to_client, number, LEN).expect("to post");
            flusher.flush().expect("to flush");
            counter.fetch_add(1, Ordering::Relaxed);
        }
        to_client
    });
    thread::sleep(Duration::from_millis(300));
    let posted = posted.load(Ordering::Relaxed);
    assert!(
        posted * LEN as u64 <= IN_FLIGHT_BYTES_MAX,
        "{posted} frames were taken that nobody read"
    );
    for number in 0..FRAMES {
        expect_frame(&mut from_server, number, LEN);
    }
    drop(sender.join());
    expect_end(&mut from_server);
    if let Some(helper) = helper {
        helper.join().expect("the helper");
    }
}

pub fn the_last_flush_ends_in_time(fixture: &impl Fixture) {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let flusher = to_client.flusher();
    post(&mut to_client, 0, 1_000).expect("to post");
    let deadline = soon();
    flusher.flush_until(deadline).expect("to flush");
    assert!(Instant::now() < deadline);
    expect_frame(&mut from_server, 0, 1_000);
    if to_client.carrier() != LinkKind::Tcp {
        return;
    }
    // A peer that does not read, and a thread that is sending.
    let blocked = thread::spawn(move || {
        while send(&mut to_client, 1, 100_000).is_ok() {}
        to_client
    });
    thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    let flushed = flusher.flush_until(start + Duration::from_millis(100));
    assert!(flushed.is_ok(), "{flushed:?}");
    assert!((100..1_000).contains(&start.elapsed().as_millis()));
    drop(from_server);
    drop(_keep_too);
    drop(blocked.join());
}

pub fn a_forked_child_leaves_the_helper_alone(fixture: &impl Fixture) {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let flusher = to_client.flusher();
    let helper = start_helper(&flusher);
    thread::sleep(Duration::from_millis(20));
    let mut number = 0;
    for _ in 0..20 {
        // Most of the time the helper is awake and sending.
        for _ in 0..50 {
            post(&mut to_client, number, 100).expect("to post");
            flusher.flush().expect("to flush");
            number += 1;
        }
        // SAFETY: the child ends at once, by a call that is always fine.
        match unsafe { libc::fork() } {
            -1 => unreachable!("fork failed"),
            0 => {
                let flushed = flusher.flush_until(Instant::now() + Duration::from_millis(200));
                drop(to_client);
                // SAFETY: the child uses nothing afterwards; `_exit` runs no code of the process.
                unsafe { libc::_exit(i32::from(flushed.is_err())) }
            }
            child => {
                let mut status = 0;
                // SAFETY: `status` outlives the call.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
    }
    for expected in 0..number {
        expect_frame(&mut from_server, expected, 100);
    }
    let deadline = Instant::now() + Duration::from_millis(50);
    let nothing = from_server.recv(Wait::Until(deadline)).expect("no end");
    assert!(nothing.is_none());
    drop(to_client);
    if let Some(helper) = helper {
        helper.join().expect("the helper");
    }
}
