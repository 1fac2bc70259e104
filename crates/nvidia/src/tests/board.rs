//! The board: words that the GPU writes.

use std::{fs::File, os::unix::fs::FileExt};

use outboard_device::Host as _;

use super::*;

const BOARD_BYTES: u64 = 16 << 10;

fn fence(slot: u32, value: u64) -> Request<'static> {
    Request::FenceStream(messages::FenceStream {
        stream: STREAM,
        slot,
        value,
    })
}

fn open_board(client: &mut Client, file: &File) -> Result<(), Failure> {
    let va = 0x3a00_0000_0000 + u64::from(std::process::id()) * BOARD_BYTES;
    let mut fds = |_| Ok(OwnedFd::from(file.try_clone().expect("a descriptor")));
    let board = messages::BoardOpen {
        va,
        len: BOARD_BYTES,
        fd_tag: 1,
    };
    client
        .send_with(Request::BoardOpen(board), &mut fds)
        .map(drop)
}

fn word(file: &File, slot: u64) -> u64 {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, slot * 8).expect("a word");
    u64::from_le_bytes(bytes)
}

fn client_with_stream(fake: &Fake) -> Client {
    let mut client = Client::new(fake);
    client.done(Request::StreamCreate(messages::StreamCreate {
        stream: STREAM,
        flags: 1,
        priority: 0,
    }));
    client
}

#[test]
fn a_wait_looks_at_memory_and_asks_nobody() {
    let fake = Fake::build(&[]);
    let mut client = client_with_stream(&fake);
    let before = fake.ask("fake_event_queries", 0);
    let mut own = client.wait(fence(0, 0));
    assert_eq!(own.ready(), Ok(true));
    assert_eq!(fake.ask("fake_event_queries", 0), before);
}

#[test]
fn an_early_fence_takes_nothing_from_others() {
    let fake = Fake::build(&[]);
    let mut client = client_with_stream(&fake);
    let can = |client: &mut Client| client.device.can_fence_early(CONTEXT, None);
    assert!(can(&mut client));
    // The stream's mark is for each fence of the context.
    client.done(Request::EventCreate(messages::EventCreate {
        event: 1,
        flags: 0,
    }));
    client.done(Request::EventRecord(messages::EventRecord {
        event: 1,
        stream: STREAM,
        flags: 0,
    }));
    client.done(Request::StreamDestroy(messages::StreamDestroy {
        stream: STREAM,
    }));
    assert!(can(&mut client));
    let context = messages::FenceContext { slot: 0, value: 0 };
    let mut fence = client.wait(Request::FenceContext(context));
    assert_eq!(fence.ready(), Ok(true));
    assert!(can(&mut client));
}

/// A mark in the default stream makes later work of each blocking stream wait for earlier work of
/// all others: for a kernel that runs until such work has come, for ever.
#[test]
fn an_early_fence_is_no_barrier_between_blocking_streams() {
    const OTHER: u64 = STREAM + 1;
    let fake = Fake::build(&[]);
    let mut client = client_with_stream(&fake);
    let can = |client: &mut Client, stream| client.device.can_fence_early(CONTEXT, stream);
    let used = |client: &mut Client, stream| {
        let wait = messages::StreamWaitEvent {
            stream,
            event: 1,
            flags: 0,
        };
        client.done(Request::StreamWaitEvent(wait));
    };
    client.done(Request::EventCreate(messages::EventCreate {
        event: 1,
        flags: 0,
    }));
    client.done(Request::StreamCreate(messages::StreamCreate {
        stream: OTHER,
        flags: 0,
        priority: 0,
    }));
    fake.ask("fake_hold", 1);
    // A stream that is not ordered with the default stream is no matter.
    used(&mut client, STREAM);
    assert!([Some(0), Some(1), None].map(|of| can(&mut client, of)) == [true; 3]);
    used(&mut client, OTHER);
    assert!(can(&mut client, Some(STREAM)) && can(&mut client, Some(OTHER)));
    // The mark of a context's fence is in the default stream only if that was used.
    assert!([Some(0), Some(1), None].map(|of| can(&mut client, of)) == [false, false, true]);
    used(&mut client, 0);
    assert!([Some(0), Some(1), None].map(|of| can(&mut client, of)) == [false; 3]);
    let marks = fake.ask("fake_default_marks", 0);
    let context = messages::FenceContext { slot: 0, value: 0 };
    drop(client.wait(Request::FenceContext(context)));
    assert_eq!(fake.ask("fake_default_marks", 0), marks + 1);
    // A destroyed stream's work goes on.
    client.done(Request::StreamDestroy(messages::StreamDestroy {
        stream: OTHER,
    }));
    assert!([Some(0), Some(1), None].map(|of| can(&mut client, of)) == [false; 3]);
    fake.ask("fake_hold", 0);
    assert!([Some(0), Some(1), None].map(|of| can(&mut client, of)) == [true; 3]);
}

#[test]
fn the_client_sees_the_word_too() {
    let fake = Fake::build(&[]);
    let mut client = client_with_stream(&fake);
    let file = tempfile::tempfile().expect("a file");
    file.set_len(BOARD_BYTES).expect("its length");
    open_board(&mut client, &file).expect("a board");
    let mut watched = client.wait(fence(5, 77));
    assert_eq!(word(&file, 5), 77);
    assert_eq!(watched.ready(), Ok(true));
    // A slot past the board's end is not written.
    let mut wild = client.wait(fence(1 << 30, 78));
    assert_eq!(wild.ready(), Ok(true));
    assert!((0..BOARD_BYTES / 8).all(|slot| word(&file, slot) != 78));
    // The context's default stream is all there is to wait for, once the other is done.
    let mut context = client.wait(Request::FenceContext(messages::FenceContext {
        slot: 7,
        value: 80,
    }));
    assert_eq!(word(&file, 7), 80);
    assert_eq!(context.ready(), Ok(true));
    drop((watched, wild, context));
    assert!(open_board(&mut client, &file).is_err(), "one a session");
    drop(client);
    assert_eq!(fake.ask("fake_live", 0), 0);
}

#[test]
fn a_word_that_does_not_come_is_no_wait_for_ever() {
    let fake = Fake::build(&[]);
    let mut client = client_with_stream(&fake);
    fake.ask("fake_hold", 1);
    let mut late = client.wait(fence(0, 0));
    assert_eq!(late.ready(), Ok(false));
    fake.ask("fake_hold", 0);
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(late.ready(), Ok(true));
}

#[test]
fn a_wait_for_a_context_puts_nothing_into_a_default_stream_that_was_not_used() {
    let fake = Fake::build(&[]);
    let mut client = Client::new(&fake);
    let streams = [5, 6];
    for stream in streams {
        client.done(Request::StreamCreate(messages::StreamCreate {
            stream,
            flags: 0,
            priority: 0,
        }));
    }
    let va = client.map(0, 2 * MIB);
    let other = client.map(4 * MIB, 2 * MIB);
    let memset = |dst_device, h_stream| {
        Request::CuMemsetD8Async(messages::CuMemsetD8Async {
            dst_device,
            uc: 1,
            n: 1,
            h_stream,
        })
    };
    for stream in streams {
        client.done(memset(va, stream));
    }
    fake.ask("fake_hold", 1);
    let waits = |client: &mut Client| {
        client.wait(Request::FenceContext(messages::FenceContext {
            slot: 0,
            value: 0,
        }))
    };
    let mut both = waits(&mut client);
    client.done(Request::MemUnmap(messages::MemUnmap { va, len: 2 * MIB }));
    assert_eq!(
        fake.ask("fake_default_marks", 0),
        0,
        "a barrier for both streams"
    );
    assert_eq!(both.ready(), Ok(false));
    client.done(Request::StreamDestroy(messages::StreamDestroy {
        stream: 5,
    }));
    let mut after = [waits(&mut client), waits(&mut client)];
    // Memory that is freed now waits for it, too.
    client.done(memset(other, 6));
    assert!(!client.device.is_idle());
    let marks = client.device.busy_marks().expect("marks");
    assert!(
        marks.len() > 1,
        "of the stream that is gone, and of the other"
    );
    for wait in &mut after {
        assert_eq!(wait.ready(), Ok(false));
    }
    client.done(memset(other, 0));
    let mut all = waits(&mut client);
    let marks = fake.ask("fake_default_marks", 0);
    assert!(marks > 0);
    fake.ask("fake_hold", 0);
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!((both.ready(), all.ready()), (Ok(true), Ok(true)));
    client.done(memset(other, 6));
    fake.ask("fake_hold", 1);
    let _one = waits(&mut client);
    assert_eq!(
        fake.ask("fake_default_marks", 0),
        marks,
        "its work is known to be done"
    );
}
