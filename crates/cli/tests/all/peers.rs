//! Tests of ways between two servers: what one shows the other, and what strangers get.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, Receiver, Sender, Stream, Wait, dial, open_peer};
use outboard_trust::peer_key;
use outboard_wire::{
    Message as _, Op,
    frame::{self, decode_reply},
    handshake::{PREAMBLE_BYTES, Preamble, Purpose, SessionKey, encode_hello},
    limits::SESSION_KEY_BYTES,
    messages::{self, PeerAwait, PeerAwaitReply, PeerConnect},
};

use crate::common::*;

const HERE: [&str; 2] = ["--peer-copies", "127.0.0.0/8"];

struct Session {
    halves: (Sender, Receiver),
}

impl Session {
    fn begin(server: &Server) -> Session {
        let (link, ..) = dial(&server.tcp, &hello(Purpose::Session), PATIENCE).unwrap();
        Session {
            halves: link.split(),
        }
    }

    /// Sends a request; returns the body of its reply, or its reason.
    fn ask<'a, M: Op<'a>>(&mut self, message: &M) -> Result<Vec<u8>, String> {
        let (sender, receiver) = &mut self.halves;
        let mut request = sender.reserve(frame::request_len(message)).unwrap();
        frame::encode_request(&mut request, 1, 0, message).unwrap();
        request.commit().unwrap();
        sender.flush().unwrap();
        let until = Wait::Until(Instant::now() + PATIENCE);
        let answer = receiver.recv(until).unwrap().unwrap();
        let (header, body) = decode_reply(answer).unwrap();
        let rest = body.rest().to_vec();
        match header.status {
            0 => Ok(rest),
            _ => Err(text(&rest)),
        }
    }

    fn secret(&mut self, way: u32) -> Option<SessionKey> {
        let body = self.ask(&PeerAwait { way }).unwrap();
        let mut reader = outboard_wire::Reader::new(&body);
        let reply = PeerAwaitReply::decode(&mut reader).unwrap();
        let bytes = <[u8; SESSION_KEY_BYTES]>::try_from(&reply.secret[..]);
        bytes.ok().map(SessionKey::new)
    }
}

fn port(server: &Server) -> u16 {
    match server.tcp {
        Endpoint::Tcp { port, .. } | Endpoint::Tls { port, .. } => port,
        _ => panic!("{} is no port", server.tcp),
    }
}

/// Comes as another server that knows this secret.
fn come(server: &Server, secret: &SessionKey) -> Result<(), String> {
    let socket = TcpStream::connect(("127.0.0.1", port(server))).unwrap();
    let stream = Stream::try_from(std::os::fd::OwnedFd::from(socket)).unwrap();
    let opened = open_peer(stream, server.tcp.pin(), secret, Instant::now() + PATIENCE);
    opened.map(drop).map_err(|error| error.to_string())
}

fn comes_once(server: &Server, session: &mut Session) {
    let wrong = SessionKey::new([7; SESSION_KEY_BYTES]);
    let secret = session.secret(0).unwrap();
    for stranger in [wrong, SessionKey::new(peer_key(secret.bytes()))] {
        let said = come(server, &stranger).unwrap_err();
        assert!(said.contains("with this key"), "{said}");
    }
    come(server, &secret).unwrap();
    let again = come(server, &secret).unwrap_err();
    assert!(again.contains("with this key"), "{again}");
}

#[test]
fn another_server_comes_once_with_the_secret_and_with_nothing_else() {
    let server = Server::start(&[&HERE[..], &["--spare", "0"]].concat());
    let mut session = Session::begin(&server);
    comes_once(&server, &mut session);
    // The number of a way is taken until it is closed.
    assert!(session.ask(&PeerAwait { way: 0 }).is_err());
    assert!(session.ask(&PeerAwait { way: 16 }).is_err());
    assert!(session.ask(&PeerAwait { way: u32::MAX }).is_err());
    // A session that has ended awaits nobody.
    let secret = session.secret(1).unwrap();
    drop(session);
    eventually("the end of the session", || server.workers().is_empty());
    assert!(come(&server, &secret).is_err());
    assert!(!server.log().contains("panicked"));
}

#[test]
fn a_server_without_the_option_awaits_nobody_and_connects_to_nobody() {
    let server = Server::start(&["--spare", "0"]);
    let mut session = Session::begin(&server);
    assert!(session.secret(0).is_none());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    assert!(session.ask(&connect(0, &address)).is_err());
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "the server has connected");
}

fn connect(way: u32, address: &str) -> PeerConnect<'_> {
    PeerConnect {
        way,
        address: address.as_bytes(),
        secret: &[0x41; SESSION_KEY_BYTES],
    }
}

#[test]
fn a_server_connects_to_its_networks_only_and_says_nothing_that_a_program_chooses() {
    let server = Server::start(&[&HERE[..], &["--spare", "0"]].concat());
    let mut session = Session::begin(&server);
    // An address elsewhere, none at all, and one that no server listens at, look the same.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut said = Vec::new();
    for address in [
        "tcp://192.0.2.1:22",
        "tcp://[::1]:22",
        &format!("tcp://{closed}"),
    ] {
        said.push(session.ask(&connect(3, address)).unwrap_err());
        session.ask(&messages::PeerClose { way: 3 }).unwrap();
    }
    said.dedup();
    assert_eq!(said.len(), 1, "{said:?}");
    for address in [
        "",
        "shm:///tmp/x",
        "rdmas://127.0.0.1",
        "tcps://127.0.0.1",
        "http://127.0.0.1",
    ] {
        let error = session.ask(&connect(3, address)).unwrap_err();
        assert!(error.contains("no address"), "{error}");
    }
    // Something that is no server of Outboard's learns nothing that the program has chosen.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let heard = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = vec![0; PREAMBLE_BYTES];
        stream.read_exact(&mut hello).unwrap();
        let preamble = Preamble::decode(hello.as_slice().try_into().unwrap()).unwrap();
        let mut document = vec![0; preamble.document_bytes];
        stream.read_exact(&mut document).unwrap();
        hello.extend(document);
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        (hello, rest)
    });
    let error = session.ask(&connect(3, &address)).unwrap_err();
    assert!(!error.contains("HTTP"), "{error}");
    let (hello, rest) = heard.join().unwrap();
    assert!(!hello.windows(8).any(|bytes| bytes == [0x41; 8]));
    assert!(rest.is_empty(), "{rest:?}");
    assert!(!server.log().contains("panicked"));
}

/// A stranger's hello without a secret gets what one with a wrong key gets, also where tokens or
/// keys are asked for.
#[test]
fn the_hello_of_another_server_is_no_way_around_tokens_and_keys() {
    let dir = tempfile::tempdir().unwrap();
    let (tokens, key, list) = ["tokens", "key", "list"]
        .map(|name| dir.path().join(name))
        .into();
    for (verb, file) in [
        (&["keygen"][..], &key),
        (&["token", "create", "a", "--tokens"], &tokens),
    ] {
        assert!(output(outboard().args(verb).arg(file)).status.success());
    }
    std::fs::write(&list, "").unwrap();
    let path = |path: &std::path::PathBuf| path.to_str().unwrap().to_owned();
    let (tokens, key, list) = (path(&tokens), path(&key), path(&list));
    let guarded = [
        vec!["--tokens", &tokens],
        vec![
            "--tokens",
            &tokens,
            "--tls",
            "--tls-key",
            &key,
            "--authorized",
            &list,
        ],
    ];
    for flags in guarded {
        let server = Server::start(&[&HERE[..], &["--spare", "0"], &flags].concat());
        let wrong = SessionKey::new([7; SESSION_KEY_BYTES]);
        let said = come(&server, &wrong).unwrap_err();
        assert!(said.contains("with this key"), "{said}");
        let refused = dial(&server.tcp, &hello(Purpose::Session), PATIENCE);
        assert!(refused.is_err(), "a session without a token");
    }
    // Nor is it one at a local socket.
    let server = Server::start(&[&HERE[..], &["--spare", "0"]].concat());
    let hello = encode_hello(&hello(Purpose::Peer {
        key: SessionKey::new([7; 32]),
    }))
    .unwrap();
    let mut local = raw_unix(&server);
    local.write_all(&hello).unwrap();
    local
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut answer = Vec::new();
    local.read_to_end(&mut answer).unwrap();
    assert!(text(&answer).contains("with this key"), "{}", text(&answer));
}
