//! Tests of ways from another server: the pieces that it may bring, and how many are kept.

use std::{net::Ipv4Addr, sync::Mutex};

use outboard_link::{Endpoint, Error, Link};
use outboard_wire::handshake::{PREAMBLE_BYTES, Preamble};
use outboard_wire::limits::PEER_PIECES_AHEAD_MAX;

use super::*;
use crate::peers::incoming::{self, Incoming};

/// Brings one connection, whatever the secret.
struct Source(Mutex<Option<Stream>>);

impl DataConnectionSource for Source {
    fn key(&self) -> SessionKey {
        SessionKey::new([1; SESSION_KEY_BYTES])
    }

    fn next(&self, _: Instant) -> Result<Stream, Error> {
        Err(Error::Closed)
    }

    fn close(&self) {}

    fn peers(&self) -> Option<&dyn PeerSource> {
        Some(self)
    }
}

impl PeerSource for Source {
    fn offer(&self) -> Result<SessionKey, String> {
        Ok(self.key())
    }

    fn accept(&self, _: &SessionKey, _: Instant) -> Result<Stream, Error> {
        self.0.lock().unwrap().take().ok_or(Error::Closed)
    }

    fn dial(&self, _: &Endpoint, _: Instant) -> Result<Stream, String> {
        Err("nobody".into())
    }

    fn end(&self) {}
}

/// Returns a way, its thread, and the other server's end of it.
fn way() -> (Arc<Incoming>, JoinHandle<()>, Link) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (here, _) = listener.accept().unwrap();
    let [here, mut there] = [here, there].map(|end| Stream::try_from(OwnedFd::from(end)).unwrap());
    let source = Arc::new(Source(Mutex::new(Some(here))));
    let (way, _, thread) = incoming::begin(source).unwrap();
    let until = Instant::now() + PATIENCE;
    let mut preamble = [0; PREAMBLE_BYTES];
    there.read_exact_deadline(&mut preamble, until).unwrap();
    let mut document = vec![0; Preamble::decode(&preamble).unwrap().document_bytes];
    there.read_exact_deadline(&mut document, until).unwrap();
    (way, thread, there.into_link_client(until).unwrap())
}

fn piece(number: u64, len: usize) -> Vec<u8> {
    let mut frame = number.to_le_bytes().to_vec();
    frame.resize(8 + len, number as u8);
    frame
}

fn comes(way: &Arc<Incoming>, number: u64) -> Result<(), Failure> {
    let mut pending = Arc::clone(way).awaits(number);
    let start = Instant::now();
    while !pending.ready()? {
        assert!(start.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[test]
fn pieces_come_in_turn_and_no_more_than_are_kept() {
    let (way, receiving, link) = way();
    let (mut sender, _receiver) = link.split();
    let sending = thread::spawn(move || {
        for number in 0..40 {
            sender.send(&[&piece(number, CHUNK_BYTES_MAX)])?;
            sender.flush()?;
        }
        Ok::<_, Error>(())
    });
    comes(&way, PEER_PIECES_AHEAD_MAX as u64 - 1).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(way.kept(), PEER_PIECES_AHEAD_MAX);
    assert!(way.take(1).is_err(), "out of turn");
    for number in 0..40 {
        comes(&way, number).unwrap();
        let taken = way.take(number).unwrap();
        assert!(taken.len() == CHUNK_BYTES_MAX && taken[7] == number as u8);
        assert!(way.kept() <= PEER_PIECES_AHEAD_MAX);
    }
    assert!(way.take(40).is_err());
    sending.join().unwrap().unwrap();
    // The other end has gone.
    assert!(comes(&way, 40).is_err());
    receiving.join().unwrap();
}

#[test]
fn a_server_that_breaks_a_rule_ends_its_way_and_what_has_come_stays() {
    let wrong = [
        piece(2, 5),
        piece(0, 5),
        piece(1, 0),
        piece(1, CHUNK_BYTES_MAX + 1),
        vec![1, 2, 3],
    ];
    for frame in wrong {
        let (way, receiving, link) = way();
        let (mut sender, _receiver) = link.split();
        sender.send(&[&piece(0, 5)]).unwrap();
        sender.send(&[&frame]).unwrap();
        sender.flush().unwrap();
        receiving.join().unwrap();
        assert!(comes(&way, 1).is_err(), "{:?}", &frame[..3]);
        assert_eq!(way.take(0).unwrap(), [0; 5]);
    }
}
