//! Tests of the server with clients that are wrong, many, slow or gone, and with signals.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{fd::AsRawFd as _, unix::net::UnixListener},
    thread,
    time::{Duration, Instant},
};

use crate::common::*;
use outboard_link::{
    DialError, Endpoint, Heartbeats, Link, Receiver, Sender, Wait, connect, dial,
    open_data_connections,
};
use outboard_wire::{
    Message as _, frame,
    handshake::{
        HandshakeError, PREAMBLE_BYTES, PROTOCOL_VERSION, Preamble, Purpose, SessionKey,
        encode_hello,
    },
    limits::SESSION_KEY_BYTES,
    messages,
};
use rustix::process::{Signal, kill_process};

/// Returns the server's answer to `bytes`, until it hangs up.
fn say(endpoint: &Endpoint, bytes: &[u8]) -> Vec<u8> {
    let deadline = Instant::now() + PATIENCE;
    let mut stream = connect(endpoint, PATIENCE).unwrap();
    // It may hang up before it has read all of it.
    let _ = stream.write_all_deadline(bytes, deadline);
    let mut answer = Vec::new();
    let mut byte = [0];
    while stream.read_exact_deadline(&mut byte, deadline).is_ok() {
        answer.push(byte[0]);
    }
    assert!(Instant::now() < deadline, "the server did not hang up");
    answer
}

/// Returns the reason in a refusal.
fn refusal(answer: &[u8]) -> String {
    let (preamble, document) = answer.split_first_chunk::<PREAMBLE_BYTES>().unwrap();
    let preamble = Preamble::decode(preamble).unwrap();
    assert!(preamble.refused);
    assert_eq!(preamble.document_bytes, document.len());
    text(document)
}

fn query(endpoint: &Endpoint) -> Result<(), DialError> {
    dial(endpoint, &hello(Purpose::Query), PATIENCE).map(drop)
}

#[test]
fn strangers_are_sent_away_and_the_server_goes_on() {
    let mut server = Server::start(&[]);
    let noise: Vec<u8> = (0..5_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let hello = encode_hello(&hello(Purpose::Query)).unwrap();
    let mut long = hello.clone();
    long[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut garbled = hello.clone();
    garbled[PREAMBLE_BYTES..].fill(0xff);
    for endpoint in server.endpoints() {
        assert_eq!(say(&endpoint, &noise), b"");
        assert_eq!(say(&endpoint, b"GET / HTTP/1.1\r\nHost: gpu\r\n\r\n"), b"");
        // Cut in the preamble, in the document, or at once.
        for len in [0, 7, PREAMBLE_BYTES, hello.len() - 1] {
            let mut stream = connect(&endpoint, PATIENCE).unwrap();
            stream
                .write_all_deadline(&hello[..len], Instant::now() + PATIENCE)
                .unwrap();
        }
        assert!(refusal(&say(&endpoint, &long)).contains("at most"));
        assert!(refusal(&say(&endpoint, &garbled)).contains("damaged, or of another release"));
        query(&endpoint).unwrap();
    }
    assert!(server.is_running());
    assert!(!server.log().contains("panicked"), "{}", server.log());
    eventually("the end of all workers", || server.workers().is_empty());
}

#[test]
fn clients_of_other_releases_are_told() {
    let server = Server::start(&[]);
    let hello = encode_hello(&hello(Purpose::Session)).unwrap();
    let mut old = hello.clone();
    old[8..10].copy_from_slice(&0u16.to_le_bytes());
    let mut other = hello.clone();
    other[16] ^= 1;
    let mut later = hello;
    // The document begins with the release: its length, and "0.1.0" or the like.
    later[PREAMBLE_BYTES + 1] = b'9';
    for endpoint in server.endpoints() {
        let why = refusal(&say(&endpoint, &old));
        let differ = format!("protocol versions differ: here 0, there {PROTOCOL_VERSION}");
        assert!(why.contains(&differ), "{why}");
        let why = refusal(&say(&endpoint, &other));
        assert!(why.contains("different declarations (here"), "{why}");
        assert!(why.contains("use the same release"), "{why}");
        let why = refusal(&say(&endpoint, &later));
        let release = env!("CARGO_PKG_VERSION");
        let differ = format!(
            "different releases (here 9{}, there {release})",
            &release[1..]
        );
        assert!(why.contains(&differ), "{why}");
    }
}

#[test]
fn a_silent_client_is_given_up_and_the_supervisor_waits_for_no_one() {
    let server = Server::start(&[]);
    let silent = connect(&server.tcp, PATIENCE).unwrap();
    let start = Instant::now();
    query(&server.tcp).unwrap();
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "held up by a silent client"
    );
    eventually("the end of the silent client's worker", || {
        server.workers().is_empty()
    });
    assert!(start.elapsed() < Duration::from_secs(10));
    drop(silent);
}

#[test]
fn a_crowd_of_silent_clients_costs_a_bounded_number_of_processes() {
    let server = Server::start(&[]);
    let port = match server.tcp {
        Endpoint::Tcp { port, .. } => port,
        _ => unreachable!(),
    };
    let crowd: Vec<_> = (0..100)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    // Of 64 places 8 are kept for local programs.
    eventually("a full house", || server.workers().len() == 56);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(server.workers().len(), 56);
    // A new client waits in the backlog, and is served when the silent ones are dropped.
    query(&server.tcp).unwrap();
    drop(crowd);
}

#[test]
fn twenty_clients_at_once() {
    let server = Server::start(&[]);
    let clients: Vec<_> = (0..20)
        .map(|n| {
            let endpoint = server.endpoints()[n % 2].clone();
            thread::spawn(move || dial(&endpoint, &hello(Purpose::Session), PATIENCE).unwrap())
        })
        .collect();
    let links: Vec<_> = clients.into_iter().map(|c| c.join().unwrap()).collect();
    let mut sessions: Vec<_> = links.iter().map(|(.., welcome)| welcome.session).collect();
    sessions.sort();
    sessions.dedup();
    assert_eq!(sessions.len(), 20);
    assert!(links.iter().all(|(.., welcome)| welcome.window_bytes > 0));
    eventually("one worker for each", || server.workers().len() == 20);
    drop(links);
    eventually("the end of all workers", || server.workers().is_empty());
}

#[test]
fn one_session_too_many_is_refused_until_a_place_is_free() {
    let server = Server::start(&["--sessions-max", "1"]);
    let first = dial(&server.shm, &hello(Purpose::Session), PATIENCE).unwrap();
    match dial(&server.tcp, &hello(Purpose::Session), PATIENCE) {
        Err(DialError::Handshake(HandshakeError::Refused(why))) => {
            assert!(why.contains("all of its 1 sessions"), "{why}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    // Queries are not sessions.
    let (.., welcome) = dial(&server.tcp, &hello(Purpose::Query), PATIENCE).unwrap();
    assert_eq!((welcome.window_bytes, welcome.devices.len()), (0, 1));
    let (.., welcome) = dial(&server.tcp, &hello(Purpose::Greeting), PATIENCE).unwrap();
    assert_eq!((welcome.window_bytes, welcome.devices.len()), (0, 0));
    drop(first);
    eventually("a free place", || {
        dial(&server.tcp, &hello(Purpose::Session), PATIENCE).is_ok()
    });
}

#[test]
fn a_killed_worker_is_logged_and_harms_nobody_else() {
    let mut server = Server::start(&[]);
    let (link, ..) = dial(&server.shm, &hello(Purpose::Session), PATIENCE).unwrap();
    let victim = server.only_worker();
    let (other, ..) = dial(&server.tcp, &hello(Purpose::Session), PATIENCE).unwrap();
    kill_process(victim, Signal::KILL).unwrap();
    server.expect_log("the worker was killed by SIGKILL (9)");
    let (_sender, mut receiver) = link.split();
    let error = receiver
        .recv(Wait::Until(Instant::now() + PATIENCE))
        .unwrap_err();
    assert!(error.is_disconnect(), "{error}");
    query(&server.shm).unwrap();
    assert!(server.is_running());
    eventually("one worker left", || server.workers().len() == 1);
    drop(other);
}

#[test]
fn signals_end_everything_and_remove_the_socket() {
    // A server leaves the signals ignored that its parent ignores, as `nohup` does.
    let ignored = |signal: Signal| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
        let set = u64::from_str_radix(line.unwrap().trim(), 16).unwrap();
        set >> (signal.as_raw() - 1) & 1 == 1
    };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        if signal == Signal::HUP && ignored(signal) {
            continue;
        }
        let mut server = Server::start(&[]);
        let clients = [
            dial(&server.shm, &hello(Purpose::Session), PATIENCE).unwrap(),
            dial(&server.tcp, &hello(Purpose::Session), PATIENCE).unwrap(),
        ];
        // One client is in the handshake, too.
        let _silent = connect(&server.tcp, PATIENCE).unwrap();
        eventually("three workers", || server.workers().len() == 3);
        let workers = server.workers();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
        assert!(!server.socket_path().exists());
        assert!(workers.into_iter().all(|pid| !is_alive(pid)));
        drop(clients);
    }
}

#[test]
fn a_worker_that_does_not_react_is_killed_in_the_end() {
    let mut server = Server::start(&[]);
    let _client = dial(&server.tcp, &hello(Purpose::Session), PATIENCE).unwrap();
    let worker = server.only_worker();
    kill_process(worker, Signal::STOP).unwrap();
    server.signal(Signal::TERM);
    let start = Instant::now();
    assert_eq!(server.wait().code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(6));
    assert!(!is_alive(worker));
}

#[test]
fn workers_do_not_outlive_a_killed_supervisor_and_its_socket_is_replaced() {
    let mut server = Server::start(&[]);
    let _client = dial(&server.shm, &hello(Purpose::Session), PATIENCE).unwrap();
    let worker = server.only_worker();
    server.signal(Signal::KILL);
    server.wait();
    eventually("the worker's end", || !is_alive(worker));
    assert!(
        server.socket_path().exists(),
        "nobody was left to remove it"
    );
    let url = server.shm.to_string();
    let mut next = outboard()
        .args(["serve", "--device", "soft", "--listen", &url])
        .spawn()
        .unwrap();
    eventually("the next server at the same address", || {
        query(&server.shm).is_ok()
    });
    kill_process(rustix::process::Pid::from_child(&next), Signal::TERM).unwrap();
    assert_eq!(wait(&mut next, PATIENCE).code(), Some(0));
}

#[test]
fn a_cache_that_is_no_folder_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = output(
        outboard()
            .args(["serve", "--device", "soft", "--cache"])
            .arg(file.path()),
    );
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("is not a folder"), "{stderr}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn addresses_that_cannot_be_listened_at() {
    let dir = tempfile::TempDir::new().unwrap();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy_tcp = format!("tcp://{}", busy.local_addr().unwrap());
    let socket = dir.path().join("busy");
    let _busy = UnixListener::bind(&socket).unwrap();
    let busy_shm = format!("shm://{}", socket.display());
    let file = dir.path().join("file");
    fs::write(&file, "precious").unwrap();
    let no_socket = format!("shm://{}", file.display());
    let no_folder = format!("shm://{}/none/socket", dir.path().display());
    for (url, reason, code) in [
        (busy_tcp.as_str(), "in use", 1),
        (&busy_shm, "in use", 1),
        (&no_socket, "is not a socket", 1),
        (&no_folder, "No such file", 2),
        ("tcp://192.0.2.1:4833", "annot assign", 1),
    ] {
        // Addresses opened before the failure are closed again.
        let good = dir.path().join("good");
        let output = output(
            outboard()
                .args(["serve", "--device", "soft", "--insecure", "--listen"])
                .arg(format!("shm://{}", good.display()))
                .args(["--listen", url]),
        );
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{url}: {stderr}");
        assert!(stderr.contains(reason), "{url}: {stderr}");
        assert!(stderr.contains(url), "{url}: {stderr}");
        assert_eq!(text(&output.stdout), "");
        assert!(!good.exists());
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}

#[test]
fn a_stale_socket_is_replaced_and_only_the_owner_may_connect() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::TempDir::new().unwrap();
    let socket = dir.path().join("stale");
    drop(UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let url = format!("shm://{}", socket.display());
    let mut child = outboard()
        .args(["serve", "--device", "soft", "--listen", &url])
        .spawn()
        .unwrap();
    let endpoint: Endpoint = url.parse().unwrap();
    eventually("a server in place of the stale socket", || {
        query(&endpoint).is_ok()
    });
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn what_a_worker_is_told_is_not_trusted_either() {
    for control in ["0", "99"] {
        let output = output(outboard().args(["worker", "--control", control]));
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    }
    for order in [&b"\xff\xff\xff"[..], b"\x00"] {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::empty(),
            None,
        )
        .unwrap();
        rustix::io::write(&ours, order).unwrap();
        let number = theirs.as_raw_fd().to_string();
        let output = output(outboard().args(["worker", "--control", &number]));
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

/// Returns the key of a session's data connections, of which it asks for `count`.
fn ask_data_connections(link: Link, count: u32) -> (SessionKey, (Sender, Receiver)) {
    let (mut sender, mut receiver) = link.split();
    let question = messages::DataConnectionsOpen {
        connections_max: count,
    };
    let mut frame = sender.reserve(frame::request_len(&question)).unwrap();
    frame::encode_request(&mut frame, 1, 0, &question).unwrap();
    frame.commit().unwrap();
    sender.flush().unwrap();
    let wait = Wait::Until(Instant::now() + PATIENCE);
    let answer = receiver.recv(wait).unwrap().unwrap();
    let (_, mut body) = frame::decode_reply(answer).unwrap();
    let reply = messages::DataConnectionsOpenReply::decode(&mut body).unwrap();
    assert_eq!(reply.connections, count);
    let key = SessionKey::new(reply.key.as_ref().try_into().unwrap());
    (key, (sender, receiver))
}

/// A heartbeat's refusal as unknown tells a client that its session is over, so it must not come
/// for a session that another server may still have.
#[test]
fn heartbeats_of_unknown_sessions_are_refused_and_of_perhaps_others_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("next").display().to_string();
    let options = ["--hand-over", &path];
    let first = Server::start(&options);
    let is_unknown = |server: &Server, key| {
        let asked = Heartbeats::connect(&server.tcp, key, PATIENCE);
        match asked.err() {
            None => false,
            Some(DialError::Handshake(error)) => error.is_not_awaited(),
            Some(error) => panic!("{error}"),
        }
    };
    let strange = SessionKey::new([7; SESSION_KEY_BYTES]);
    assert!(is_unknown(&first, strange));
    // A server before this one might have left the session to one before itself.
    let second = Server::start(&options);
    first.expect_log("a new server has taken over");
    eventually("the end of the server before", || {
        second.log().contains("the server before has ended")
    });
    assert!(!is_unknown(&second, strange));
    let (link, _, welcome) = dial(&second.tcp, &hello(Purpose::Session), PATIENCE).unwrap();
    let key = welcome.key.unwrap();
    let until = Instant::now() + PATIENCE;
    let mut heartbeats = Heartbeats::connect(&second.tcp, key, PATIENCE).unwrap();
    heartbeats.ask(until).unwrap();
    drop((link, heartbeats));
    eventually("a refusal after the session", || is_unknown(&second, key));
    assert!(!is_unknown(&second, strange));
}

#[test]
fn data_connections_come_to_the_sessions_port_with_its_key_and_no_other() {
    let flags = &["--device", "soft", "--threads", "1", "--spare", "0"];
    let mut command = outboard();
    command.env("OUTBOARD_DATA_CONNECTIONS", "2");
    let server = Server::start_with(command.arg("serve").args(flags));
    let Endpoint::Tcp { port, .. } = server.tcp else {
        unreachable!()
    };
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let open = |key| open_data_connections(&at.into(), None, key, 2, Instant::now() + PATIENCE);
    let refused = |key| {
        let error = open(key).err().unwrap().to_string();
        assert!(error.contains("no session of it awaits"), "{error}");
    };
    let (link, ..) = dial(&server.tcp, &hello(Purpose::Session), PATIENCE).unwrap();
    let (key, session) = ask_data_connections(link, 2);
    // Strangers: with another key, without a word, with half a hello. None is charged to the
    // session.
    let wrong = SessionKey::new([0; SESSION_KEY_BYTES]);
    let crowd: Vec<_> = (0..40).map(|_| TcpStream::connect(at).unwrap()).collect();
    for mut stranger in &crowd[..20] {
        stranger.write_all(b"OUTBOARD").unwrap();
    }
    for _ in 0..5 {
        refused(wrong);
    }
    let connections = open(key).unwrap();
    assert_eq!(connections.len(), 2);
    server.expect_log("data connections are open");
    // It has all that it asked for.
    refused(key);
    // Another session has another key, and its end closes nothing of the first.
    let (link, ..) = dial(&server.tcp, &hello(Purpose::Session), PATIENCE).unwrap();
    let (other, second) = ask_data_connections(link, 2);
    assert!(!other.is(&key));
    drop(second);
    drop(crowd);
    eventually("one worker left", || server.workers().len() == 1);
    refused(other);
    let mut receivers: Vec<_> = connections
        .into_iter()
        .map(|(link, _)| link.split())
        .collect();
    for (_, receiver) in &mut receivers {
        let soon = Wait::Until(Instant::now() + Duration::from_millis(20));
        assert_eq!(receiver.recv(soon).unwrap(), None);
    }
    drop(session);
    for (_, receiver) in &mut receivers {
        let until = Wait::Until(Instant::now() + PATIENCE);
        assert!(receiver.recv(until).is_err(), "closed with the session");
    }
    eventually("no worker left", || server.workers().is_empty());
    refused(key);
}

#[test]
fn a_silent_tcp_client_sees_the_end_of_the_connection() {
    let server = Server::start(&[]);
    let Endpoint::Tcp { port, .. } = server.tcp else {
        unreachable!()
    };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"OUT").unwrap();
    let start = Instant::now();
    assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    assert!(start.elapsed() < Duration::from_secs(8));
}
