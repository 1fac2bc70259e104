//! Frames: whole, once, in order, under every load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_wire::{
    Room as _,
    limits::{FRAME_BYTES_MAX, RING_BYTES},
};

use super::{
    Fixture, PATIENCE, check_frame, expect_end, expect_frame, interesting_lens, pair,
    random_numbers, rounds, send, soon,
};
use crate::{Error, Receiver, Sender, Wait};

pub fn every_length_arrives_whole_and_in_order(fixture: &impl Fixture) {
    let ((mut to_client, mut from_client), (mut to_server, mut from_server)) = pair(fixture);
    let echo = thread::spawn(move || {
        loop {
            match from_client.recv(Wait::Until(soon())) {
                Ok(Some(frame)) => to_client.send(&[frame]).expect("to echo"),
                Ok(None) => unreachable!("nothing came in time"),
                Err(error) => {
                    assert!(matches!(error, Error::Closed), "{error}");
                    return;
                }
            }
            to_client.flush().expect("to flush");
        }
    });
    let mut random = random_numbers(1);
    let mut lens = interesting_lens();
    lens.extend((0..100).map(|_| 1 + random() as usize % FRAME_BYTES_MAX));
    for (number, &len) in lens.iter().enumerate() {
        send(&mut to_server, number as u64, len).expect("to send");
        expect_frame(&mut from_server, number as u64, len);
    }
    drop(to_server);
    expect_end(&mut from_server);
    echo.join().expect("the echo");
}

pub fn a_frame_may_be_shorter_than_reserved(fixture: &impl Fixture) {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    for (number, &len) in interesting_lens().iter().enumerate() {
        // A reservation that is not committed leaves no trace.
        let unsent = to_client.reserve(len);
        let put = unsent.map(|mut frame| frame.put(&vec![0xee; len]));
        assert!(matches!(put, Ok(Ok(()))));
        let mut frame = to_client.reserve(FRAME_BYTES_MAX).expect("room");
        super::fill(&mut frame, number as u64, len);
        frame.commit().expect("to commit");
        to_client.flush().expect("to flush");
        expect_frame(&mut from_server, number as u64, len);
    }
}

pub fn wrong_use_is_an_error_and_harms_nothing(fixture: &impl Fixture) {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let too_long = FRAME_BYTES_MAX + 1;
    assert!(matches!(
        to_client.reserve(too_long).err(),
        Some(Error::FrameTooLarge { len, max: FRAME_BYTES_MAX }) if len == too_long
    ));
    assert!(matches!(
        to_client.send(&[&vec![0; FRAME_BYTES_MAX], &[0]]),
        Err(Error::FrameTooLarge { .. })
    ));
    assert!(matches!(to_client.reserve(0).err(), Some(Error::Misuse(_))));
    assert!(matches!(to_client.send(&[]), Err(Error::Misuse(_))));
    let empty = to_client.reserve(8).expect("room");
    assert!(matches!(empty.commit(), Err(Error::Misuse(_))));
    let mut frame = to_client.reserve(8).expect("room");
    assert!(frame.put(&[7; 9]).is_err());
    frame.put(&[7; 6]).expect("room");
    assert!(frame.put(&[7; 3]).is_err());
    assert_eq!(frame.left(), 2);
    frame.put(&[7; 2]).expect("room");
    assert!(frame.put(&[7]).is_err());
    frame.commit().expect("to commit");
    to_client.flush().expect("to flush");
    let frame = from_server.recv(Wait::Until(soon())).expect("a frame");
    assert_eq!(frame.map(<[u8]>::len), Some(8));
    send(&mut to_client, 1, 100).expect("to send");
    expect_frame(&mut from_server, 1, 100);
}

pub fn a_frame_may_come_in_parts(fixture: &impl Fixture) {
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let mut random = random_numbers(2);
    for round in 0..200u64 {
        // Some frames are buffered before it, and some of the parts are long, empty or many.
        let before = random() % 3;
        for number in 0..before {
            super::commit_frame(&mut to_client, number, 50).expect("to commit");
        }
        let mut frame = vec![0; 1 + random() as usize % 60_000];
        super::write_frame(&mut frame, round);
        let count = 1 + random() as usize % 20;
        let mut cuts: Vec<_> = (0..count)
            .map(|_| random() as usize % frame.len())
            .collect();
        cuts.extend([0, frame.len()]);
        cuts.sort_unstable();
        let parts: Vec<_> = cuts.windows(2).map(|cut| &frame[cut[0]..cut[1]]).collect();
        to_client.send(&parts).expect("to send");
        to_client.flush().expect("to flush");
        for number in 0..before {
            expect_frame(&mut from_server, number, 50);
        }
        expect_frame(&mut from_server, round, frame.len());
    }
}

/// 200,000 frames in each direction take well under a second on a quiet machine.
pub fn many_small_frames(fixture: &impl Fixture) {
    const FRAMES: u64 = 200_000;
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let start = Instant::now();
    let sender = thread::spawn(move || {
        for number in 0..FRAMES {
            let mut frame = to_client.reserve(64).expect("room");
            frame.put(&number.to_le_bytes()).expect("room");
            frame.put(&[0; 56]).expect("room");
            frame.commit().expect("to commit");
        }
        to_client.flush().expect("to flush");
        to_client
    });
    for number in 0..FRAMES {
        let frame = from_server.recv(Wait::Until(soon())).expect("a frame");
        let frame = frame.expect("a frame in time");
        assert_eq!(frame[..8], number.to_le_bytes());
    }
    assert!(start.elapsed() < PATIENCE);
    drop(sender.join());
    expect_end(&mut from_server);
}

pub fn back_pressure_holds_the_sender_back(fixture: &impl Fixture) {
    const LEN: usize = 100_000;
    const FRAMES: u64 = 800;
    /// A ring, or what the kernel buffers for a tcp connection at both ends, plus some frames.
    const IN_FLIGHT_BYTES_MAX: u64 = RING_BYTES as u64 + (12 << 20);
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    let sender = thread::spawn(move || {
        for number in 0..FRAMES {
            send(&mut to_client, number, LEN).expect("to send");
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    thread::sleep(Duration::from_millis(300));
    let sent = sent.load(Ordering::Relaxed);
    assert!(sent > 0, "nothing was sent");
    assert!(
        sent * LEN as u64 <= IN_FLIGHT_BYTES_MAX,
        "{sent} frames were taken that nobody read"
    );
    for number in 0..FRAMES {
        if number % 100 == 0 {
            thread::sleep(Duration::from_millis(10));
        }
        expect_frame(&mut from_server, number, LEN);
    }
    sender.join().expect("the sender");
}

pub fn both_directions_at_once(fixture: &impl Fixture) {
    fn flood(mut sender: Sender, rounds: u64) -> Sender {
        let mut random = random_numbers(3);
        for number in 0..rounds {
            let len = 1 + random() as usize % 50_000;
            send(&mut sender, number, len).expect("to send");
        }
        sender
    }
    fn drain(mut receiver: Receiver, rounds: u64) -> Receiver {
        let mut random = random_numbers(3);
        for number in 0..rounds {
            let len = 1 + random() as usize % 50_000;
            let frame = receiver.recv(Wait::Until(soon())).expect("a frame");
            let frame = frame.expect("a frame in time");
            assert_eq!(frame.len(), len);
            check_frame(frame, number);
        }
        receiver
    }
    let rounds = rounds(1_500) as u64;
    let (server, client) = pair(fixture);
    thread::scope(|scope| {
        for (sender, receiver) in [server, client] {
            scope.spawn(move || flood(sender, rounds));
            scope.spawn(move || drain(receiver, rounds));
        }
    });
}
