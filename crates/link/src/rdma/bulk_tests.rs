//! Long data over this machine's device, if it has one: what is copied, where it arrives, and who
//! may write where.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use outboard_verbs::{Error as Verbs, Lasting};

use super::{
    Bulk, RdmaTarget, RdmaUse,
    counts::RdmaCounts,
    link_tests::{expect, pair, send},
    receiver::Receiver,
    sender::Sender,
};
use crate::{
    Error, Wait,
    conformance::{RdmaFixture, is_possible, soon},
    error::RdmaError,
    segment::Payload,
};

pub(super) const HEAD: &[u8] = b"a head of thirty-six bytes, no more!";
const GRANT_BYTES: usize = 1 << 20;

/// Memory that outlives the links of its test.
pub(super) struct Mine(pub(super) Vec<u8>);

impl Mine {
    pub(super) fn new(len: usize, seed: u8) -> Self {
        Self(
            (0..len)
                .map(|at| at as u8 ^ seed ^ (at >> 8) as u8)
                .collect(),
        )
    }

    fn lasting(&self) -> Lasting {
        // SAFETY: declared before the links that it is registered with, and so dropped after them;
        // read while no device writes.
        unsafe { Lasting::new(self.0.as_ptr().expose_provenance() as u64, self.0.len()) }
    }
}

/// The cost of posting `f`.
fn cost(sender: &mut Sender, f: impl FnOnce(&mut Sender)) -> RdmaCounts {
    let before = sender.counts();
    f(sender);
    let after = sender.counts();
    RdmaCounts {
        requests: after.requests - before.requests,
        doorbells: after.doorbells - before.doorbells,
        inline: after.inline - before.inline,
        wakes: 0,
        copied_bytes: after.copied_bytes - before.copied_bytes,
        direct_bytes: after.direct_bytes - before.direct_bytes,
        placed_bytes: after.placed_bytes - before.placed_bytes,
    }
}

/// Waits until a grant for `len` bytes has arrived.
fn wait_for_grant(sender: &Sender, len: usize) {
    let start = Instant::now();
    while sender.given.look(len).is_none() {
        assert!(start.elapsed() < Duration::from_secs(10), "no grant");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The data of the next frame, and true if it was in granted memory.
pub(super) fn received(receiver: &mut Receiver) -> (Vec<u8>, bool) {
    let frame = receiver.recv_placed(Wait::Until(soon())).unwrap().unwrap();
    let (head, rest) = frame.head.split_at(HEAD.len());
    assert_eq!(head, HEAD);
    match frame.tail {
        Some(tail) => {
            assert!(rest.is_empty());
            (tail.copied(), true)
        }
        None => (rest.to_vec(), false),
    }
}

#[test]
fn data_goes_from_where_it_lies_to_where_it_is_wanted() {
    if !is_possible(
        &RdmaFixture,
        "data_goes_from_where_it_lies_to_where_it_is_wanted",
    ) {
        return;
    }
    let mine = Mine::new(GRANT_BYTES, 3);
    let ((to_client, mut from_client), (mut to_server, _from_server)) = pair();
    let registrar = to_server.registrar();
    let source = registrar.register(mine.lasting(), RdmaUse::Source).unwrap();
    for (len, is_granted, is_registered) in [
        (GRANT_BYTES, true, true),
        (100_001, true, true),
        (100_001, true, false),
        (100_001, false, true),
        (100_001, false, false),
    ] {
        if is_granted {
            assert!(from_client.grant(None, GRANT_BYTES).unwrap());
            wait_for_grant(&to_server, len);
            // A side cannot use its own grants.
            assert!(to_client.given.look(len).is_none());
        }
        // From any offset in it.
        let data = &mine.0[GRANT_BYTES - len..];
        let bulk = Bulk {
            data,
            source: is_registered.then_some(&source),
            target: None,
        };
        let cost = cost(&mut to_server, |sender| {
            assert_eq!(sender.send_long(&[HEAD], bulk).unwrap(), is_registered);
        });
        let expected = match (is_granted, is_registered) {
            // The data to its destination, and the frame.
            (true, _) => 2,
            // The data, the head, and the header when both have arrived.
            (false, true) => 3,
            (false, false) => 2,
        };
        assert_eq!(cost.requests, expected, "{cost:?}");
        assert_eq!(cost.doorbells, 1, "{cost:?}");
        let when = |is: bool| if is { len as u64 } else { 0 };
        assert_eq!(cost.copied_bytes, when(!is_registered));
        assert_eq!(cost.direct_bytes, when(is_registered));
        assert_eq!(cost.placed_bytes, when(is_granted));
        let (got, was_placed) = received(&mut from_client);
        assert!(got == data && was_placed == is_granted, "{cost:?}");
        assert_eq!(from_client.granted(), 0);
    }
    to_server.wait_until_read().unwrap();
    assert!(to_server.kept.is_empty());
    assert_eq!(registrar.figures(), (1, GRANT_BYTES as u64));
}

/// Data that exceeds the grants goes through the ring; memory is granted again and again, and no
/// more of it is allocated.
#[test]
fn grants_go_round() {
    if !is_possible(&RdmaFixture, "grants_go_round") {
        return;
    }
    const LEN: usize = 40_000;
    let mine = Mine::new(2 * LEN, 9);
    let ((_to_client, mut from_client), (mut to_server, _from_server)) = pair();
    let mut placed = 0;
    for round in 0..40 {
        if round % 4 != 3 {
            assert!(from_client.grant(None, LEN).unwrap());
            wait_for_grant(&to_server, LEN);
        }
        let len = LEN + usize::from(round % 4 == 2);
        let data = &mine.0[round..round + len];
        to_server.send_long(&[HEAD], Bulk::copied(data)).unwrap();
        if round % 4 == 2 {
            // As one frame: too long for the grant, which remains.
            to_server
                .send_long(&[HEAD], Bulk::copied(&data[..LEN]))
                .unwrap();
            let (got, was_placed) = received(&mut from_client);
            assert!(got == data && !was_placed);
            // In one piece for a caller that wants it so.
            let whole = from_client.recv(Wait::Until(soon())).unwrap().unwrap();
            assert!(whole == [HEAD, &data[..LEN]].concat());
            continue;
        }
        let (got, was_placed) = received(&mut from_client);
        assert!(got == data, "round {round}");
        placed += usize::from(was_placed);
    }
    assert_eq!(placed, 20);
    let many = std::iter::from_fn(|| from_client.grant(None, LEN).unwrap().then_some(()));
    assert_eq!(many.count(), super::grants::GRANTS_MAX);
}

/// Data into memory that the other side named, with its key; the link keeps the data until it was
/// read.
#[test]
fn data_is_written_where_the_peer_asked_for_it() {
    if !is_possible(&RdmaFixture, "data_is_written_where_the_peer_asked_for_it") {
        return;
    }
    const LEN: usize = 300_000;
    struct Shared(Arc<Mine>);
    impl Payload for Shared {
        fn bytes(&self) -> &[u8] {
            &self.0.0
        }
    }
    let mut mine = Mine::new(LEN + 2, 0);
    let theirs = Arc::new(Mine::new(LEN, 77));
    let ((mut to_client, _from_client), (to_server, mut from_server)) = pair();
    let target = to_server
        .registrar()
        .register(mine.lasting(), RdmaUse::Target)
        .unwrap();
    let target = target.target(mine.lasting().address() + 1);
    let source = to_client
        .registrar()
        .register(theirs.lasting(), RdmaUse::Source)
        .unwrap();
    for source in [None, Some(&source)] {
        mine.0.fill(5);
        let cost = cost(&mut to_client, |sender| {
            let owner = Box::new(Shared(Arc::clone(&theirs)));
            sender
                .send_owned(&[HEAD], owner, source, Some(target))
                .unwrap();
        });
        assert_eq!((cost.requests, cost.doorbells), (2, 1));
        let copied = if source.is_none() { LEN as u64 } else { 0 };
        assert_eq!(cost.copied_bytes, copied);
        // The owner of copied data is dropped at once, any other is kept until the data was read.
        let is_kept = Arc::strong_count(&theirs) == 2;
        assert_eq!(is_kept, source.is_some());
        let (rest, was_granted) = received(&mut from_server);
        assert!(rest.is_empty() && !was_granted);
        assert!(mine.0[1..=LEN] == theirs.0);
        assert_eq!([mine.0[0], mine.0[LEN + 1]], [5, 5]);
        to_client.wait_until_read().unwrap();
        assert_eq!(Arc::strong_count(&theirs), 1);
    }
}

/// A peer that writes beyond its grant, or with a key of another session, is refused by the adapter
/// and loses only its own session.
#[test]
fn a_target_of_somebody_elses_is_refused() {
    if !is_possible(&RdmaFixture, "a_target_of_somebody_elses_is_refused") {
        return;
    }
    const LEN: usize = 50_000;
    let mine = Mine::new(LEN, 1);
    let untouched = mine.0.clone();
    let other = Mine::new(LEN, 2);
    let ((mut other_to_client, _from_client), (other_to_server, mut other_from_server)) = pair();
    let registered = |sender: &Sender| {
        let registered = sender.registrar().register(mine.lasting(), RdmaUse::Target);
        registered.unwrap().target(mine.lasting().address())
    };
    let of_other = registered(&other_to_server);
    let as_source = |sender: &Sender| {
        let source = sender.registrar().register(mine.lasting(), RdmaUse::Source);
        source.unwrap().target(mine.lasting().address())
    };
    let past_the_end = |target: RdmaTarget| RdmaTarget {
        address: target.address + 1,
        ..target
    };
    for case in 0..4 {
        let ((mut to_client, _from_client), (to_server, _from_server)) = pair();
        let target = match case {
            0 => of_other,
            1 => past_the_end(registered(&to_server)),
            2 => as_source(&to_server),
            _ => {
                // Given up: its key becomes invalid with it.
                let target = registered(&to_server);
                to_server.registrar().forget(target.address, LEN);
                target
            }
        };
        let bulk = Bulk {
            data: &other.0,
            source: None,
            target: Some(target),
        };
        to_client.send_long(&[HEAD], bulk).unwrap();
        let error = failure(&mut to_client);
        assert!(
            matches!(
                error.rdma(),
                Some(RdmaError::Verbs(Verbs::AccessRefused { .. }))
            ),
            "{case}: {error}"
        );
        assert!(mine.0 == untouched, "{case}");
    }
    // The other session goes on.
    send(&mut other_to_client, 1_000);
    expect(&mut other_from_server, 1_000);
}

pub(super) fn failure(sender: &mut Sender) -> Error {
    let start = Instant::now();
    loop {
        if let Err(error) = sender.poll() {
            return error;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no error");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Memory that cannot be registered costs only the attempt, and the link goes on.
#[test]
fn what_cannot_be_registered_harms_nothing() {
    if !is_possible(&RdmaFixture, "what_cannot_be_registered_harms_nothing") {
        return;
    }
    let mine = Mine::new(500_000, 4);
    let ((mut to_client, mut from_client), (mut to_server, mut from_server)) = pair();
    for round in 0..5 {
        for use_ in [RdmaUse::Source, RdmaUse::Target] {
            // SAFETY: no memory is mapped there, which the test is about.
            let nothing = unsafe { Lasting::new(1 << 30, 1 << 20) };
            assert!(to_server.registrar().register(nothing, use_).is_none());
        }
        to_server.send_long(&[HEAD], Bulk::copied(&mine.0)).unwrap();
        assert!(received(&mut from_client).0 == mine.0, "round {round}");
        to_client.send_long(&[HEAD], Bulk::copied(&mine.0)).unwrap();
        assert!(received(&mut from_server).0 == mine.0, "round {round}");
        thread::sleep(Duration::from_millis(300));
    }
}
