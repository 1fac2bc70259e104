//! Waiting, waking and ending: nothing hangs, and no bytes that were sent are lost.

use std::{
    io::{Read, Seek, Write},
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

use super::{Fixture, expect_end, expect_frame, pair, random_numbers, send, soon};
use crate::{Error, LinkKind, Listener, Wait, connect, emulated::End};

pub fn what_was_sent_before_the_end_is_delivered(fixture: &impl Fixture) {
    for (frames, len) in [(0, 1), (1, 1), (1_000, 100), (3, 1 << 20)] {
        let ((mut to_client, from_client), (_keep, mut from_server)) = pair(fixture);
        for number in 0..frames {
            super::commit_frame(&mut to_client, number, len).expect("to commit");
        }
        // Not flushed: ending the link does that.
        drop((to_client, from_client));
        for number in 0..frames {
            expect_frame(&mut from_server, number, len);
        }
        expect_end(&mut from_server);
    }
}

pub fn the_end_of_one_direction_leaves_the_other(fixture: &impl Fixture) {
    let ((mut to_client, mut from_client), (mut to_server, mut from_server)) = pair(fixture);
    send(&mut to_client, 1, 10).expect("to send");
    to_client.shutdown();
    assert!(matches!(to_client.reserve(1).err(), Some(Error::Closed)));
    expect_frame(&mut from_server, 1, 10);
    expect_end(&mut from_server);
    send(&mut to_server, 2, 10).expect("to send still");
    expect_frame(&mut from_client, 2, 10);
    drop(to_server);
    expect_end(&mut from_client);
}

pub fn a_closing_side_with_unread_frames_loses_none_of_its_own(fixture: &impl Fixture) {
    let ((mut to_client, from_client), (mut to_server, mut from_server)) = pair(fixture);
    for number in 0..100 {
        send(&mut to_server, number, 1_000).expect("to send");
    }
    for number in 0..50 {
        send(&mut to_client, number, 1_000).expect("to send");
    }
    drop((to_client, from_client));
    for number in 0..50 {
        expect_frame(&mut from_server, number, 1_000);
    }
    expect_end(&mut from_server);
}

pub fn a_sender_learns_that_nobody_receives(fixture: &impl Fixture) {
    let (server, (mut to_server, _from_server)) = pair(fixture);
    let sender = thread::spawn(move || {
        let mut number = 0;
        loop {
            match send(&mut to_server, number, 100_000) {
                Ok(()) => number += 1,
                Err(error) => return error,
            }
        }
    });
    // Long enough for the sender to be blocked.
    thread::sleep(Duration::from_millis(200));
    assert!(!sender.is_finished());
    let start = Instant::now();
    drop(server);
    let error = sender.join().expect("the sender");
    assert!(error.is_disconnect(), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

pub fn waiting_ends_in_time(fixture: &impl Fixture) {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    for ms in [0, 1, 20, 120] {
        let start = Instant::now();
        let deadline = start + Duration::from_millis(ms);
        let frame = from_server.recv(Wait::Until(deadline)).expect("no error");
        assert!(frame.is_none());
        assert!(start.elapsed() >= Duration::from_millis(ms));
        assert!(start.elapsed() < Duration::from_millis(ms + 500));
    }
    for _ in 0..10_000 {
        assert!(from_server.recv(Wait::Poll).expect("no error").is_none());
    }
    send(&mut to_client, 1, 10).expect("to send");
    // Over tcp it takes the kernel a moment.
    let start = Instant::now();
    while from_server.recv(Wait::Poll).expect("no error").is_none() {
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    // A deadline in the past still yields a frame that has arrived.
    send(&mut to_client, 2, 10).expect("to send");
    let past = Instant::now();
    thread::sleep(Duration::from_millis(50));
    assert!(
        from_server
            .recv(Wait::Until(past))
            .expect("no error")
            .is_some()
    );
}

pub fn a_waker_ends_waiting_once(fixture: &impl Fixture) {
    let (_server, (_keep, mut from_server)) = pair(fixture);
    let waker = from_server.waker();
    let start = Instant::now();
    let other = thread::spawn({
        let waker = waker.clone();
        move || {
            thread::sleep(Duration::from_millis(100));
            waker.wake();
        }
    });
    assert!(from_server.recv(Wait::Forever).expect("no error").is_none());
    assert!(start.elapsed() >= Duration::from_millis(100));
    assert!(start.elapsed() < Duration::from_secs(5));
    other.join().expect("the waker's thread");
    // Woken twice before it waits: one wait ends, not two.
    waker.wake();
    waker.wake();
    assert!(from_server.recv(Wait::Forever).expect("no error").is_none());
    let start = Instant::now();
    let deadline = start + Duration::from_millis(50);
    assert!(
        from_server
            .recv(Wait::Until(deadline))
            .expect("no error")
            .is_none()
    );
    assert!(start.elapsed() >= Duration::from_millis(50));
}

pub fn a_waker_is_heard_among_frames(fixture: &impl Fixture) {
    const FRAMES: u64 = 2_000;
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let waker = from_server.waker();
    let sender = thread::spawn(move || {
        for number in 0..FRAMES {
            send(&mut to_client, number, 20).expect("to send");
            if number % 7 == 0 {
                thread::sleep(Duration::from_micros(50));
            }
        }
        to_client
    });
    let other = thread::spawn(move || {
        for _ in 0..200 {
            waker.wake();
            thread::sleep(Duration::from_micros(200));
        }
    });
    let mut number = 0;
    let mut wakes = 0;
    while number < FRAMES || wakes == 0 {
        match from_server.recv(Wait::Until(soon())).expect("no error") {
            Some(frame) => {
                super::check_frame(frame, number);
                number += 1;
            }
            None => wakes += 1,
        }
    }
    drop(sender.join());
    other.join().expect("the waker's thread");
    assert!((1..=200).contains(&wakes));
}

pub fn a_closer_ends_a_blocked_receiver_and_a_blocked_sender(fixture: &impl Fixture) {
    let ((_to_client, mut from_client), (mut to_server, mut from_server)) = pair(fixture);
    let closer = to_server.closer();
    let receiver = thread::spawn(move || {
        let first = from_server.recv(Wait::Forever).map(|_| ());
        let second = from_server.recv(Wait::Poll).map(|_| ());
        first.and(second)
    });
    let sender = thread::spawn(move || {
        loop {
            if send(&mut to_server, 0, 100_000).is_err() {
                return send(&mut to_server, 0, 1).expect_err("still closed");
            }
        }
    });
    thread::sleep(Duration::from_millis(200));
    assert!(!receiver.is_finished() && !sender.is_finished());
    let start = Instant::now();
    closer.close();
    let received = receiver.join().expect("the receiver");
    assert!(matches!(received, Err(Error::Closed)), "{received:?}");
    let error = sender.join().expect("the sender");
    assert!(matches!(error, Error::Closed), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2));
    // The other side sees the end, too.
    loop {
        match from_client.recv(Wait::Until(soon())) {
            Ok(Some(frame)) => assert_eq!(frame.len(), 100_000),
            Ok(None) => unreachable!("neither a frame nor the end"),
            Err(error) => return assert!(error.is_disconnect(), "{error}"),
        }
    }
}

/// Waiting costs less than 3 % of a core.
pub fn waiting_costs_no_processor_time(fixture: &impl Fixture) {
    let (_server, (_keep, mut from_server)) = pair(fixture);
    let before = clock_gettime(ClockId::ThreadCPUTime);
    let deadline = Instant::now() + Duration::from_millis(1_000);
    assert!(
        from_server
            .recv(Wait::Until(deadline))
            .expect("no error")
            .is_none()
    );
    let after = clock_gettime(ClockId::ThreadCPUTime);
    let used_ns = (after.tv_sec - before.tv_sec) * 1_000_000_000 + after.tv_nsec - before.tv_nsec;
    assert!(
        used_ns < 30_000_000,
        "waiting for a second took {used_ns} ns of processor time"
    );
}

pub fn file_descriptors_arrive_by_tag_or_not_at_all(fixture: &impl Fixture) {
    let ((mut to_client, from_client), (mut to_server, mut from_server)) = pair(fixture);
    let files: Vec<_> = (0..3u8).map(file_of).collect();
    if to_client.kind() != LinkKind::Shm {
        assert!(to_client.fds().is_none() && from_server.fds().is_none());
        return;
    }
    let from_server = from_server.fds().expect("descriptors over shm");
    let passes = to_client.fds().expect("descriptors over shm");
    let none = from_server.recv_fd(7, Duration::from_millis(20));
    assert!(matches!(none, Err(Error::TimedOut { .. })), "{none:?}");
    for (tag, file) in files.iter().enumerate() {
        passes
            .send_fd(tag as u64, file.as_fd())
            .expect("to pass it");
    }
    // The last message of a side that is gone before the message is read.
    drop((to_client, from_client));
    for tag in [2u8, 0, 1] {
        let fd = from_server
            .recv_fd(tag.into(), super::PATIENCE)
            .expect("a descriptor");
        let flags = rustix::io::fcntl_getfd(&fd).expect("its flags");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        let mut content = Vec::new();
        std::fs::File::from(fd)
            .read_to_end(&mut content)
            .expect("to read");
        assert_eq!(content, [tag; 9]);
        rewind(&files[usize::from(tag)]);
    }
    let none = from_server.recv_fd(3, super::PATIENCE);
    assert!(matches!(none, Err(Error::Closed)), "{none:?}");
    let to_server = to_server.fds().expect("descriptors over shm");
    let sent = to_server.send_fd(1, files[0].as_fd());
    assert!(matches!(sent, Err(Error::Closed)), "{sent:?}");
}

/// Noise from the peer instead of a link's bytes. Over shm the noise is on the socket; noise in the
/// rings is tested with the rings.
pub fn noise_from_the_peer_is_an_error(fixture: &impl Fixture) {
    for seed in 0..50 {
        let listener = Listener::bind(&fixture.endpoint()).expect("to listen");
        let endpoint = listener.endpoint().clone();
        let noisy = thread::spawn(move || {
            let mut random = random_numbers(seed);
            let noise: Vec<u8> = (0..1_000).flat_map(|_| random().to_le_bytes()).collect();
            let mut stream = connect(&endpoint, super::PATIENCE).expect("to connect");
            // The other side may have ended the link before all of it was sent.
            let _ = stream.write_all_deadline(&noise, soon());
            stream
        });
        let (stream, _) = listener.accept(Some(soon())).expect("a client");
        let is_rdma = stream.kind() == LinkKind::Rdma;
        let link = match stream.into_link_server() {
            // The noise comes in place of the client's setup.
            Err(error) if is_rdma => {
                assert!(matches!(error, Error::PeerMisbehaved { .. }), "{error}");
                continue;
            }
            link => link.expect("a link"),
        };
        let link = fixture.wrap(link, End::Server);
        let (kind, carrier) = (link.kind(), link.carrier());
        let (_sender, mut receiver) = link.split();
        let error = match carrier {
            // No thread reads the socket.
            LinkKind::Shm if kind != carrier => {
                let deadline = Instant::now() + Duration::from_millis(20);
                let nothing = receiver.recv(Wait::Until(deadline));
                assert!(nothing.expect("no end").is_none());
                continue;
            }
            LinkKind::Shm => {
                let fds = receiver.fds().expect("descriptors over shm");
                fds.recv_fd(0, super::PATIENCE).map(|_| ())
            }
            _ => loop {
                match receiver.recv(Wait::Until(Instant::now() + Duration::from_millis(200))) {
                    Ok(Some(frame)) => assert!(frame.len() <= 8_000),
                    // Some noise looks like the start of a long frame.
                    Ok(None) => {
                        drop(noisy.join());
                        break receiver.recv(Wait::Until(soon())).map(|_| ());
                    }
                    Err(error) => break Err(error),
                }
            },
        };
        assert!(
            matches!(
                error,
                Err(Error::PeerMisbehaved { .. } | Error::Truncated { .. } | Error::Tls(_))
            ),
            "{error:?}"
        );
    }
}

pub fn a_forked_child_does_not_end_the_link(fixture: &impl Fixture) {
    let (server, (mut to_server, mut from_server)) = pair(fixture);
    let (mut to_client, mut from_client) = server;
    // SAFETY: the child drops the halves, which closes descriptors and unmaps memory, then exits at
    // once.
    match unsafe { libc::fork() } {
        -1 => unreachable!("fork failed"),
        0 => {
            drop((to_server, from_server));
            // SAFETY: always fine; nothing of the test harness runs in the child.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` outlives the call.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    for number in 0..2 {
        send(&mut to_server, number, 100).expect("to send");
        expect_frame(&mut from_client, number, 100);
        send(&mut to_client, number, 100).expect("to send");
        expect_frame(&mut from_server, number, 100);
        // No end follows.
        for receiver in [&mut from_client, &mut from_server] {
            let deadline = Instant::now() + Duration::from_millis(100);
            assert!(
                receiver
                    .recv(Wait::Until(deadline))
                    .expect("no end")
                    .is_none()
            );
        }
    }
}

fn file_of(byte: u8) -> std::fs::File {
    let fd = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = std::fs::File::from(fd.expect("a memfd"));
    file.write_all(&[byte; 9]).expect("to write");
    rewind(&file);
    file
}

fn rewind(mut file: &std::fs::File) {
    file.rewind().expect("to rewind");
}
