//! Listening, connecting, and the bytes of a handshake, before there is a link.
#![cfg(not(loom))]

use std::{
    fs,
    io::Write,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::PermissionsExt,
        unix::net::UnixListener,
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

use outboard_link::{
    Endpoint, Error, LinkKind, Listener, Peer, Stream, Wait,
    conformance::{Fixture, PATIENCE, ShmFixture, TcpFixture, soon},
    connect,
};
use outboard_wire::limits::{FRAME_BYTES_MAX, HANDSHAKE_MS_MAX};

fn path_of(endpoint: &Endpoint) -> &Path {
    match endpoint {
        Endpoint::Shm(path) => path,
        other => unreachable!("{other} has no path"),
    }
}

fn in_ms(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

/// Returns the server's stream and the client's.
fn streams(fixture: &impl Fixture) -> (Stream, Stream) {
    let listener = Listener::bind(&fixture.endpoint()).expect("to listen");
    let client = connect(listener.endpoint(), PATIENCE).expect("to connect");
    let (server, _) = listener.accept(Some(soon())).expect("a client");
    (server, client)
}

#[test]
fn a_socket_file_is_private_and_goes_with_its_listener() {
    let fixture = ShmFixture::default();
    let endpoint = fixture.endpoint();
    let listener = Listener::bind(&endpoint).unwrap();
    let mode = fs::metadata(path_of(&endpoint))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(listener);
    assert!(!path_of(&endpoint).exists());
}

#[test]
fn a_live_server_is_not_displaced_and_a_dead_one_is() {
    let fixture = ShmFixture::default();
    let endpoint = fixture.endpoint();
    let path = path_of(&endpoint);
    // Leaves its file, as a killed server does.
    drop(UnixListener::bind(path).unwrap());
    assert!(path.exists());
    let first = Listener::bind(&endpoint).unwrap();
    let error = Listener::bind(&endpoint).unwrap_err();
    assert!(matches!(error, Error::AddressInUse { .. }), "{error}");
    assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
    // The attempt did not change the first.
    connect(&endpoint, PATIENCE).unwrap();
    // Once replaced, the first does not remove the file of the second.
    fs::remove_file(path).unwrap();
    let second = Listener::bind(&endpoint).unwrap();
    drop(first);
    assert!(path.exists());
    connect(&endpoint, PATIENCE).unwrap();
    drop(second);
    assert!(!path.exists());
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let fixture = ShmFixture::default();
    let endpoint = fixture.endpoint();
    fs::write(path_of(&endpoint), "precious").unwrap();
    let error = Listener::bind(&endpoint).unwrap_err();
    assert!(matches!(error, Error::NotASocket { .. }), "{error}");
    assert_eq!(fs::read(path_of(&endpoint)).unwrap(), b"precious");
    let nowhere = Endpoint::Shm(path_of(&endpoint).join("below/a/file"));
    assert!(Listener::bind(&nowhere).is_err());
}

#[test]
fn a_tcp_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://127.0.0.1:{}", taken.local_addr().unwrap().port());
    let error = Listener::bind(&url.parse().unwrap()).unwrap_err();
    assert!(matches!(error, Error::AddressInUse { .. }), "{error}");
    assert!(error.to_string().contains(&url), "{error}");
}

#[test]
fn nobody_there_is_an_error_at_once() {
    let fixture = ShmFixture::default();
    let gone = Listener::bind(&TcpFixture.endpoint()).unwrap();
    let closed_port = gone.endpoint().clone();
    drop(gone);
    let stale = fixture.endpoint();
    drop(UnixListener::bind(path_of(&stale)).unwrap());
    for endpoint in [fixture.endpoint(), stale, closed_port] {
        let start = Instant::now();
        let error = connect(&endpoint, PATIENCE).unwrap_err();
        assert!(matches!(error, Error::NoServer { .. }), "{error}");
        assert!(error.to_string().contains(&endpoint.to_string()), "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn a_server_that_does_not_accept_costs_no_more_than_the_timeout() {
    let fixture = ShmFixture::default();
    let listener = Listener::bind(&fixture.endpoint()).unwrap();
    let mut waiting = Vec::new();
    let error = loop {
        match connect(listener.endpoint(), Duration::from_millis(50)) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
        assert!(waiting.len() < 10_000, "the backlog has no end");
    };
    assert!(matches!(error, Error::Crowded { .. }), "{error}");
}

#[test]
fn accepting_ends_in_time() {
    let listener = Listener::bind(&TcpFixture.endpoint()).unwrap();
    let start = Instant::now();
    let error = listener.accept(Some(in_ms(50))).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(start.elapsed() >= Duration::from_millis(50));
}

#[test]
fn peers_are_named() {
    let fixture = ShmFixture::default();
    let listener = Listener::bind(&fixture.endpoint()).unwrap();
    let _client = connect(listener.endpoint(), PATIENCE).unwrap();
    let (_, peer) = listener.accept(None).unwrap();
    let own = std::process::id();
    assert!(
        matches!(peer, Peer::Process { pid, .. } if pid == own),
        "{peer}"
    );
    let listener = Listener::bind(&TcpFixture.endpoint()).unwrap();
    let _client = connect(listener.endpoint(), PATIENCE).unwrap();
    let (_, peer) = listener.accept(None).unwrap();
    assert!(peer.to_string().starts_with("127.0.0.1:"), "{peer}");
}

#[test]
fn names_and_ipv6_are_reached() {
    for url in ["tcp://localhost:0", "tcp://[::1]:0"] {
        let listener = match Listener::bind(&url.parse().unwrap()) {
            // A machine without IPv6.
            Err(Error::Io { .. }) if url.contains('[') => continue,
            listener => listener.unwrap(),
        };
        assert!(connect(listener.endpoint(), PATIENCE).is_ok());
    }
}

#[test]
fn bytes_of_the_handshake_arrive_and_nothing_beyond_them_is_taken() {
    fn check(fixture: &impl Fixture) {
        let (mut server, mut client) = streams(fixture);
        client
            .write_all_deadline(b"hello and more", soon())
            .unwrap();
        let mut hello = [0; 5];
        server.read_exact_deadline(&mut hello, soon()).unwrap();
        assert_eq!(&hello, b"hello");
        let mut rest = [0; 9];
        server.read_exact_deadline(&mut rest, soon()).unwrap();
        assert_eq!(&rest, b" and more");

        let start = Instant::now();
        let error = server
            .read_exact_deadline(&mut rest, in_ms(50))
            .unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        assert!(start.elapsed() >= Duration::from_millis(50));
        // The peer does not read: once the socket is full, writing ends in time, too.
        let much = vec![0; 64 << 20];
        let error = server.write_all_deadline(&much, in_ms(100)).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");

        client.write_all_deadline(b"hel", soon()).unwrap();
        let client = OwnedFd::from(client);
        rustix::net::shutdown(&client, rustix::net::Shutdown::Write).unwrap();
        let error = server.read_exact_deadline(&mut hello, soon()).unwrap_err();
        assert!(
            matches!(error, Error::Truncated { have: 3, want: 5 }),
            "{error}"
        );
        let error = server.read_exact_deadline(&mut hello, soon()).unwrap_err();
        assert!(matches!(error, Error::Closed), "{error}");
    }
    check(&ShmFixture::default());
    check(&TcpFixture);
}

#[test]
fn descriptors_are_close_on_exec() {
    fn check(fixture: &impl Fixture) {
        let (server, client) = streams(fixture);
        for fd in [server.as_fd(), client.as_fd()] {
            let flags = rustix::io::fcntl_getfd(fd).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
        let inherited = OwnedFd::from(server);
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        let stream = Stream::try_from(inherited).unwrap();
        let flags = rustix::io::fcntl_getfd(&stream).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
    check(&ShmFixture::default());
    check(&TcpFixture);
}

#[test]
fn only_connected_stream_sockets_are_taken_over() {
    let file = fs::File::open("/dev/null").unwrap();
    assert!(matches!(
        Stream::try_from(OwnedFd::from(file)),
        Err(Error::Io { .. })
    ));
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(matches!(
        Stream::try_from(OwnedFd::from(udp)),
        Err(Error::Misuse(_))
    ));
}

#[test]
fn a_server_that_never_passes_shared_memory_is_given_up() {
    let fixture = ShmFixture::default();
    let (server, client) = streams(&fixture);
    let start = Instant::now();
    let error = client.into_link_client(in_ms(100)).unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_millis(HANDSHAKE_MS_MAX));
    drop(server);

    let (server, client) = streams(&fixture);
    drop(server);
    let error = client.into_link_client(soon()).unwrap_err();
    assert!(matches!(error, Error::Closed), "{error}");

    for (answer, what) in [
        (
            &b"outboard\x01\0\0\0\0\0\0\0\0\0\x80\0\0\0\0\0"[..],
            "file descriptors (it sent 0",
        ),
        (
            &b"outboard\x02\0\0\0\0\0\0\0\0\0\x80\0\0\0\0\0"[..],
            "another layout",
        ),
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], "another layout"),
    ] {
        let (mut server, client) = streams(&fixture);
        server.write_all_deadline(answer, soon()).unwrap();
        let error = client.into_link_client(soon()).unwrap_err();
        assert!(matches!(error, Error::PeerMisbehaved { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn a_client_that_leaves_before_the_link_is_an_error_or_an_end() {
    let (server, client) = streams(&ShmFixture::default());
    drop(client);
    match server.into_link_server() {
        Err(error) => assert!(error.is_disconnect(), "{error}"),
        Ok(link) => {
            let (_sender, mut receiver) = link.split();
            let error = receiver.recv(Wait::Until(soon())).unwrap_err();
            assert!(error.is_disconnect(), "{error}");
        }
    }
}

#[test]
fn a_tcp_stream_cut_anywhere_ends_with_what_was_missing() {
    let frame = [&5u32.to_le_bytes()[..], b"hello"].concat();
    let stream = [&frame[..], &frame[..]].concat();
    for cut in 0..=stream.len() {
        let (server, mut client) = streams(&TcpFixture);
        assert_eq!(server.kind(), LinkKind::Tcp);
        let (_sender, mut receiver) = server.into_link_server().unwrap().split();
        client.write_all_deadline(&stream[..cut], soon()).unwrap();
        drop(client);
        for _ in 0..cut / frame.len() {
            assert_eq!(
                receiver.recv(Wait::Until(soon())).unwrap(),
                Some(&b"hello"[..])
            );
        }
        let error = receiver.recv(Wait::Until(soon())).unwrap_err();
        let left = cut % frame.len();
        match error {
            Error::Closed => assert_eq!(left, 0),
            Error::Truncated { have, want } => {
                assert_eq!(have, left);
                assert_eq!(want, if left < 4 { 4 } else { frame.len() });
            }
            error => panic!("{error}"),
        }
    }
}

#[test]
fn a_tcp_length_out_of_bounds_is_refused_before_its_bytes_arrive() {
    for len in [0, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
        let (server, client) = streams(&TcpFixture);
        let (_sender, mut receiver) = server.into_link_server().unwrap().split();
        let mut client = std::net::TcpStream::from(OwnedFd::from(client));
        client.write_all(&len.to_le_bytes()).unwrap();
        let error = receiver.recv(Wait::Until(soon())).unwrap_err();
        let len = u64::from(len);
        assert!(
            matches!(error, Error::PeerMisbehaved { got, .. } if got == len),
            "{error}"
        );
    }
}

#[test]
fn random_bytes_through_the_deframer() {
    let mut random = outboard_link::conformance::random_numbers(5);
    for _ in 0..300 {
        let mut data = Vec::new();
        // Some whole frames, then arbitrary bytes.
        for _ in 0..random() % 8 {
            let len = 1 + random() % 700;
            data.extend((len as u32).to_le_bytes());
            data.extend((0..len).map(|_| random() as u8));
        }
        data.extend((0..random() % 40).map(|_| random() as u8));
        outboard_link::fuzz_deframer(&data);
    }
    // A frame longer than the buffer's first size.
    let mut data = (FRAME_BYTES_MAX as u32).to_le_bytes().to_vec();
    data.resize(4 + FRAME_BYTES_MAX, 0xff);
    data.extend([1, 0, 0, 0, 7]);
    outboard_link::fuzz_deframer(&data);
}

/// A peer that lives but does not read is not given up, however long the window stays closed.
#[test]
#[ignore = "takes 20 s; run with --ignored"]
fn a_tcp_peer_that_is_busy_is_not_a_peer_that_vanished() {
    let (server, client) = streams(&TcpFixture);
    let (mut sender, _receiver) = server.into_link_server().unwrap().split();
    let (_sender, mut receiver) = client.into_link_client(soon()).unwrap().split();
    let sending = thread::spawn(move || {
        for _ in 0..400 {
            sender.send(&[&[7; 100_000]]).unwrap();
        }
    });
    thread::sleep(Duration::from_secs(20));
    assert!(!sending.is_finished());
    for _ in 0..400 {
        assert!(receiver.recv(Wait::Until(soon())).unwrap().is_some());
    }
    sending.join().unwrap();
}
