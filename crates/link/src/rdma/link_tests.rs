//! A link over this machine's device, otherwise the tests print that they did not run: what it
//! posts, and a peer that lies.

use std::{
    os::fd::OwnedFd,
    thread,
    time::{Duration, Instant},
};

use outboard_verbs::Error as Verbs;

use super::{
    RdmaOptions,
    layout::{CHECKED_BYTES_MAX, HEADER_BYTES},
    prepared::Prepared,
    receiver::Receiver,
    sender::Sender,
    setup::{self, SETUP_BYTES},
};
use crate::{
    Link, LinkKind, Listener, Stream, Wait,
    conformance::{Fixture, PATIENCE, RdmaFixture, is_possible, not_run, soon},
    connect,
    error::RdmaError,
    socket::Socket,
};

fn socket(stream: Stream) -> Socket {
    OwnedFd::from(stream).into()
}

fn streams() -> (Stream, Stream) {
    let listener = Listener::bind(&RdmaFixture.endpoint()).unwrap();
    let endpoint = RdmaFixture.seen_by_client(listener.endpoint().clone());
    let client = connect(&endpoint, PATIENCE).unwrap();
    let (server, _) = listener.accept(Some(soon())).unwrap();
    (server, client)
}

fn halves(link: Link) -> (Box<Sender>, Box<Receiver>) {
    match link {
        Link::Rdma(link) => link.split(),
        other => unreachable!("{other:?}"),
    }
}

pub(super) type Halves = (Box<Sender>, Box<Receiver>);

pub(super) fn pair() -> (Halves, Halves) {
    let (server, client) = streams();
    let client = thread::spawn(move || client.into_link_client(soon()).unwrap());
    let server = server.into_link_server().unwrap();
    (halves(server), halves(client.join().unwrap()))
}

pub(super) fn send(sender: &mut Sender, len: usize) {
    sender.reserve(len).unwrap().fill(7);
    sender.commit(len).unwrap();
    sender.flush().unwrap();
}

pub(super) fn expect(receiver: &mut Receiver, len: usize) {
    let frame = receiver.recv(Wait::Until(soon())).unwrap().unwrap();
    assert!(frame.len() == len && frame.iter().all(|&byte| byte == 7));
}

/// The cost of a launch: one request, one doorbell, no copy except the one into memory that the
/// device reads.
#[test]
fn a_small_frame_is_one_request_and_one_doorbell() {
    if !is_possible(
        &RdmaFixture,
        "a_small_frame_is_one_request_and_one_doorbell",
    ) {
        return;
    }
    let ((_to_client, mut from_client), (mut to_server, _from_server)) = pair();
    for len in [1, 100, 150, 1_000, CHECKED_BYTES_MAX] {
        let before = to_server.counts();
        // Laid out where the device reads it.
        let mirror = to_server.mirror();
        let room = to_server.reserve(len).unwrap();
        assert!(mirror.contains(&(room.as_ptr() as u64)));
        room.fill(7);
        to_server.commit(len).unwrap();
        assert_eq!(
            to_server.counts(),
            before,
            "nothing leaves before the flush"
        );
        to_server.flush().unwrap();
        let after = to_server.counts();
        assert_eq!(after.requests - before.requests, 1, "{len} bytes");
        assert_eq!(after.doorbells - before.doorbells, 1, "{len} bytes");
        let is_inline = len + HEADER_BYTES <= 200;
        assert!(
            !is_inline || after.inline - before.inline == 1,
            "{len} bytes"
        );
        // Copied out of the ring, which the peer can still write to.
        let ring = from_client.ring();
        let frame = from_client.recv(Wait::Until(soon())).unwrap().unwrap();
        assert_eq!(frame.len(), len);
        assert!(!ring.contains(&(frame.as_ptr() as u64)));
    }
    // Longer ones are two requests with one doorbell; frames that wait already go with them.
    let before = to_server.counts();
    send(&mut to_server, CHECKED_BYTES_MAX + 1);
    let after = to_server.counts();
    assert_eq!(after.requests - before.requests, 2);
    assert_eq!(after.doorbells - before.doorbells, 1);
    for _ in 0..100 {
        to_server.reserve(100).unwrap().fill(7);
        to_server.commit(100).unwrap();
    }
    to_server.flush().unwrap();
    assert_eq!(to_server.counts().requests - after.requests, 1);
    assert_eq!(to_server.counts().doorbells - after.doorbells, 1);
    expect(&mut from_client, CHECKED_BYTES_MAX + 1);
    for _ in 0..100 {
        expect(&mut from_client, 100);
    }
}

/// The receiver sends no word and no wake-up for every frame: words go back once per eighth of the
/// ring.
#[test]
fn frames_cost_their_receiver_next_to_no_requests() {
    if !is_possible(
        &RdmaFixture,
        "frames_cost_their_receiver_next_to_no_requests",
    ) {
        return;
    }
    let ((_to_client, mut from_client), (mut to_server, _from_server)) = pair();
    for _ in 0..300 {
        send(&mut to_server, 100);
    }
    for _ in 0..300 {
        expect(&mut from_client, 100);
    }
    // The receiver may have slept before the first frame.
    let posted = from_client.counts().requests;
    assert!(posted < 30, "{posted} requests for 300 frames");
    assert!(to_server.counts().wakes <= 2 + posted);
}

/// A server that sends another session's key: its device refuses what the client writes, the other
/// session is unharmed, and the client gets an error.
#[test]
fn a_key_of_another_session_is_refused() {
    if !is_possible(&RdmaFixture, "a_key_of_another_session_is_refused") {
        return;
    }
    let ((mut to_client, _from_client), (_to_server, mut from_server)) = pair();
    let (liar, client) = streams();
    let mut liar = socket(liar);
    let victim = from_server.ring_window();
    let lying = thread::spawn(move || {
        let theirs = setup::receive(&mut liar, soon()).unwrap();
        let prepared = Prepared::new(&liar, &RdmaOptions::default(), Some(&theirs)).unwrap();
        prepared.connect(&theirs).unwrap();
        let mut said = prepared.setup();
        said.ring = victim;
        setup::send(&mut liar, Ok(&said), soon()).unwrap();
        setup::receive_ready(&mut liar, soon()).unwrap();
        (prepared, liar)
    });
    let link = client.into_link_client(soon()).unwrap();
    let _kept = lying.join().unwrap();
    let (mut sender, _receiver) = halves(link);
    let start = Instant::now();
    let error = loop {
        let sent = sender.reserve(10_000).map(|room| room.fill(1));
        let sent = sent.and_then(|()| sender.commit(10_000));
        if let Err(error) = sent
            .and_then(|()| sender.flush())
            .and_then(|()| sender.poll())
        {
            break error;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no error");
        thread::sleep(Duration::from_millis(1));
    };
    assert!(
        matches!(
            error.rdma(),
            Some(RdmaError::Verbs(Verbs::AccessRefused { .. }))
        ),
        "{error}"
    );
    // The other session goes on.
    send(&mut to_client, 1_000);
    expect(&mut from_server, 1_000);
}

/// A setup that is cut short or nonsense, and the message of a side without a suitable device.
#[test]
fn a_setup_that_is_wrong_is_an_error_on_both_sides() {
    if !is_possible(
        &RdmaFixture,
        "a_setup_that_is_wrong_is_an_error_on_both_sides",
    ) {
        return;
    }
    for cut in [0, 1, 100, SETUP_BYTES - 1] {
        let (server, mut client) = streams();
        client.write_all_deadline(&vec![b'O'; cut], soon()).unwrap();
        drop(client);
        let error = server.into_link_server().unwrap_err();
        assert!(error.is_disconnect(), "{cut}: {error}");
    }
    // The server is asked for a device that it does not have; the client learns why there is no
    // link.
    let (server, client) = streams();
    let server = server.with_rdma("device=mlx9_9".parse().unwrap()).unwrap();
    assert_eq!(server.kind(), LinkKind::Rdma);
    let client = thread::spawn(move || client.into_link_client(soon()).unwrap_err());
    let error = server.into_link_server().unwrap_err();
    assert!(
        matches!(
            error.rdma(),
            Some(RdmaError::Verbs(Verbs::NoSuchDevice { .. }))
        ),
        "{error}"
    );
    let error = client.join().unwrap();
    let Some(RdmaError::PeerCannot { reason }) = error.rdma() else {
        unreachable!("{error}");
    };
    assert!(reason.contains("mlx9_9"), "{reason}");
    // A client with another partition, kind of address or link layer would otherwise wait in vain.
    let (server, client) = streams();
    let mut server = socket(server);
    let client = thread::spawn(move || client.into_link_client(soon()).unwrap_err());
    let mut theirs = setup::receive(&mut server, soon()).unwrap();
    theirs.partition = 0x1234;
    setup::send(&mut server, Ok(&theirs), soon()).unwrap();
    let error = client.join().unwrap();
    assert!(
        matches!(error.rdma(), Some(RdmaError::Differ { .. })),
        "{error}"
    );
}

/// Either side may make packets smaller than the port's largest.
#[test]
fn every_mtu_carries_frames() {
    if !is_possible(&RdmaFixture, "every_mtu_carries_frames") {
        return;
    }
    for (ours, theirs) in [("mtu=256", "mtu=1024"), ("mtu=2048", "mtu=512")] {
        let (server, client) = streams();
        let merged = |stream: Stream, mtu: &str| {
            let said = stream.rdma().unwrap().to_string();
            stream
                .with_rdma(format!("{said}&{mtu}").parse().unwrap())
                .unwrap()
        };
        let (server, client) = (merged(server, ours), merged(client, theirs));
        let client = thread::spawn(move || client.into_link_client(soon()).unwrap());
        let (mut sender, _receiver) = halves(server.into_link_server().unwrap());
        let (_sender, mut receiver) = halves(client.join().unwrap());
        for len in [1, 300, 5_000, 100_000] {
            send(&mut sender, len);
            expect(&mut receiver, len);
        }
    }
}

/// Runs only if `OUTBOARD_RDMA_MEMLOCK` says that this process may lock less memory than a link
/// needs, which is so only without privileges.
#[test]
fn a_limit_on_locked_memory_is_named() {
    if std::env::var_os("OUTBOARD_RDMA_MEMLOCK").is_none() {
        not_run(
            "a_limit_on_locked_memory_is_named",
            "this process has no such limit",
        );
        return;
    }
    let (server, client) = streams();
    let error = client.into_link_client(soon()).unwrap_err();
    let Some(RdmaError::Verbs(Verbs::MemoryLock { needed, limit })) = error.rdma() else {
        unreachable!("{error}");
    };
    assert!(limit < needed, "{error}");
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    // The server does not wait for a message that cannot come.
    let error = server.into_link_server().unwrap_err();
    assert!(error.is_disconnect(), "{error}");
}
