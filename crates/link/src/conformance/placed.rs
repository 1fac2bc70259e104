//! Long frames that are received into the caller's memory.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use outboard_wire::limits::{FRAME_BYTES_MAX, PLACED_BYTES_MIN, PLACED_HEAD_BYTES};

use super::{
    Fixture, check_frame, expect_end, expect_frame, interesting_lens, pair, random_numbers, rounds,
    send, soon, write_frame,
};
use crate::{
    Destination, Error, LinkKind, Listener, Receiver, Sender, Wait, connect,
    emulated::End,
    segment::{Segment, Tail},
};

/// Memory that counts its instances.
struct Counted {
    bytes: Vec<u8>,
    alive: Arc<AtomicUsize>,
}

impl Counted {
    fn boxed(len: usize, alive: &Arc<AtomicUsize>) -> Box<Counted> {
        alive.fetch_add(1, Ordering::Relaxed);
        Box::new(Counted {
            bytes: vec![0; len],
            alive: Arc::clone(alive),
        })
    }
}

impl Segment for Counted {
    fn room(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether the link places long frames: tcp, and each link that emulates a network.
fn places(receiver: &Receiver) -> bool {
    matches!(receiver.kind(), LinkKind::Tcp | LinkKind::Emulated)
}

/// A sender of raw bytes, and the receiving end of the link, over tcp; `None` over shm, whose ring
/// is written in whole frames.
fn raw_to_receiver(fixture: &impl Fixture) -> Option<(crate::Stream, (Sender, Receiver))> {
    let listener = Listener::bind(&fixture.endpoint()).expect("to listen");
    let endpoint = listener.endpoint().clone();
    let raw = thread::spawn(move || connect(&endpoint, super::PATIENCE).expect("to connect"));
    let (stream, _) = listener.accept(Some(soon())).expect("a client");
    let raw = fixture.raw(raw.join().expect("the client's thread"));
    (stream.kind() == LinkKind::Tcp)
        .then(|| fixture.wrap(stream.into_link_server().expect("a link"), End::Server))
        .map(|link| (raw, link.split()))
}

fn raw_frame(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = (len as u32).to_le_bytes().to_vec();
    bytes.resize(4 + len, 0);
    write_frame(&mut bytes[4..], number);
    bytes
}

/// Sends frames of these lengths, some together and some in parts.
fn send_all(mut sender: Sender, lens: Vec<usize>) -> JoinHandle<Sender> {
    thread::spawn(move || {
        for (number, len) in lens.into_iter().enumerate() {
            let mut frame = vec![0; len];
            write_frame(&mut frame, number as u64);
            sender.send(&[&frame]).expect("to send");
            if number.is_multiple_of(3) {
                sender.flush().expect("to flush");
            }
        }
        sender.flush().expect("to flush");
        sender
    })
}

pub fn long_frames_are_placed_and_short_ones_are_not(fixture: &impl Fixture) {
    let ((to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let mut lens = interesting_lens();
    let mut random = random_numbers(5);
    lens.extend((0..rounds(200)).map(|_| 1 + random() as usize % FRAME_BYTES_MAX));
    lens.extend([PLACED_BYTES_MIN - 1, PLACED_BYTES_MIN]);
    let sender = send_all(to_client, lens.clone());
    let alive = Arc::default();
    let mut kept = Vec::new();
    let wishes: Vec<(bool, usize)> = lens
        .iter()
        .map(|_| {
            (
                !random().is_multiple_of(4),
                random() as usize % PLACED_HEAD_BYTES,
            )
        })
        .collect();
    // Frames that were asked about, or need no place. Over an emulated network they may be later
    // ones than the one that is received.
    let mut asked = 0;
    let mut place = |head: &[u8], announced: usize| {
        let next = lens[asked..]
            .iter()
            .position(|&len| len >= PLACED_BYTES_MIN);
        let number = asked + next.expect("a long frame");
        asked = number + 1;
        let (len, (is_wanted, skip)) = (lens[number], wishes[number]);
        assert_eq!(announced, len, "about frame {number}");
        assert!((PLACED_HEAD_BYTES..=len).contains(&head.len()));
        let mut start = vec![0; len];
        write_frame(&mut start, number as u64);
        assert!(start.starts_with(head));
        is_wanted.then(|| Destination {
            skip,
            memory: Counted::boxed(len - skip, &alive),
        })
    };
    for (number, &len) in lens.iter().enumerate() {
        let frame = from_server
            .recv_placed(Wait::Until(soon()), &mut place)
            .expect("a frame")
            .expect("a frame in time");
        assert_eq!(frame.bytes(), len);
        let is_placed = frame.tail.is_some();
        let whole = [
            frame.head,
            &frame.tail.as_ref().map_or(vec![], Tail::copied),
        ]
        .concat();
        check_frame(&whole, number as u64);
        kept.extend(frame.tail.map(|tail| (whole, tail)));
        let may_be_placed = places(&from_server) && len >= PLACED_BYTES_MIN;
        assert_eq!(is_placed, may_be_placed && wishes[number].0);
    }
    drop(sender.join());
    expect_end(&mut from_server);
    // Kept frames have not changed since.
    assert_eq!(alive.load(Ordering::Relaxed), kept.len());
    for (whole, tail) in &kept {
        assert!(whole.ends_with(&tail.copied()));
    }
    drop(kept);
    assert_eq!(alive.load(Ordering::Relaxed), 0);
}

pub fn a_placed_frame_goes_on_in_a_later_call(fixture: &impl Fixture) {
    const LEN: usize = 100_000;
    let Some((mut raw, (_sender, mut receiver))) = raw_to_receiver(fixture) else {
        return;
    };
    let alive = Arc::default();
    for (number, step) in [(0, 60_000), (1, 257), (2, LEN)] {
        raw.write_all_deadline(&fixture.front(), soon())
            .expect("to write");
        let bytes = raw_frame(number, LEN);
        let asked = Cell::new(0);
        let mut seen = 0;
        for part in bytes[..bytes.len() - 1].chunks(step) {
            raw.write_all_deadline(part, soon()).expect("to write");
            seen += part.len();
            let mut place = |_: &[u8], len: usize| {
                asked.set(asked.get() + 1);
                Some(Destination {
                    skip: 20,
                    memory: Counted::boxed(len - 20, &alive),
                })
            };
            // Until the receiver has asked for a place.
            loop {
                let frame = receiver
                    .recv_placed(Wait::Poll, &mut place)
                    .expect("no end");
                assert!(frame.is_none());
                if seen < PLACED_HEAD_BYTES + 4 || asked.get() > 0 {
                    break;
                }
            }
        }
        assert_eq!(asked.get(), 1);
        assert_eq!(alive.load(Ordering::Relaxed), 1);
        raw.write_all_deadline(&bytes[bytes.len() - 1..], soon())
            .expect("to write");
        // A caller that asks for the frame in one piece gets it so.
        expect_frame(&mut receiver, number, LEN);
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }
}

pub fn a_peer_that_goes_away_in_a_placed_frame(fixture: &impl Fixture) {
    const LEN: usize = 50_000;
    for cut in [300, 20_000, LEN + 3] {
        let Some((mut raw, (_sender, mut receiver))) = raw_to_receiver(fixture) else {
            return;
        };
        let alive = Arc::default();
        let bytes = [&fixture.front(), &raw_frame(1, LEN)[..cut]].concat();
        raw.write_all_deadline(&bytes, soon()).expect("to write");
        drop(raw);
        let mut place = |_: &[u8], len: usize| {
            Some(Destination {
                skip: 0,
                memory: Counted::boxed(len, &alive),
            })
        };
        let error = receiver
            .recv_placed(Wait::Until(soon()), &mut place)
            .map(drop)
            .expect_err("no frame");
        assert!(
            matches!(error, Error::Truncated { have, want } if have == cut && want == LEN + 4),
            "{error}"
        );
        // No thread fills it any more.
        assert_eq!(alive.load(Ordering::Relaxed), 0);
    }
}

pub fn a_place_that_does_not_fit_is_refused(fixture: &impl Fixture) {
    const LEN: usize = 40_000;
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    if !places(&from_server) {
        return;
    }
    for (number, (skip, room)) in [(0, LEN + 1), (10, LEN), (LEN + 1, 0), (0, 0)]
        .into_iter()
        .enumerate()
    {
        send(&mut to_client, number as u64, LEN).expect("to send");
        let mut place = |_: &[u8], _: usize| {
            let memory = Box::new(vec![0; room]);
            Some(Destination { skip, memory })
        };
        let error = from_server
            .recv_placed(Wait::Until(soon()), &mut place)
            .map(drop)
            .expect_err("no such place");
        assert!(matches!(error, Error::Misuse(_)), "{error}");
        expect_frame(&mut from_server, number as u64, LEN);
    }
}

/// A receiver that keeps earlier frames still receives nothing after the frame that it asks for.
pub fn back_pressure_holds_while_frames_are_kept(fixture: &impl Fixture) {
    const LEN: usize = 1 << 20;
    const FRAMES: u64 = 64;
    let ((mut to_client, _keep), (_keep_too, mut from_server)) = pair(fixture);
    let sender = thread::spawn(move || {
        for number in 0..FRAMES {
            send(&mut to_client, number, LEN).expect("to send");
        }
        to_client
    });
    let alive = Arc::default();
    let mut kept = Vec::new();
    for number in 0..FRAMES {
        let mut place = |_: &[u8], len: usize| {
            Some(Destination {
                skip: 0,
                memory: Counted::boxed(len, &alive),
            })
        };
        let frame = from_server
            .recv_placed(Wait::Until(soon()), &mut place)
            .expect("a frame")
            .expect("a frame in time");
        match frame.tail {
            Some(tail) => kept.push((number, tail)),
            None => check_frame(frame.head, number),
        }
        let placed = alive.load(Ordering::Relaxed);
        match from_server.kind() {
            // Frames may have been placed that have not arrived yet.
            LinkKind::Emulated => assert!(placed >= kept.len()),
            _ => assert_eq!(placed, kept.len()),
        }
    }
    drop(sender.join());
    expect_end(&mut from_server);
    assert_eq!(alive.load(Ordering::Relaxed), kept.len());
    for (number, tail) in kept {
        check_frame(&tail.copied(), number);
    }
}
