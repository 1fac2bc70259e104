//! Tests of encrypted connections: keys of both sides, strangers, and what passes on the wire.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use crate::common::{authority::Authority, *};
use outboard_link::{Endpoint, connect};
use outboard_trust::{ALERT, HANDSHAKE, KEY_UPDATE, Sealer};
use outboard_wire::{
    handshake::{PREAMBLE_BYTES, Preamble, Purpose, encode_hello},
    limits::HANDSHAKE_MS_MAX,
};

/// Makes a key; returns its file and its fingerprint.
fn keygen(folder: &Path, name: &str) -> (PathBuf, String) {
    let file = folder.join(name);
    let made = output(outboard().arg("keygen").arg(&file));
    assert!(made.status.success(), "{}", text(&made.stderr));
    (file, text(&made.stdout).trim().to_owned())
}

struct Encrypted {
    server: Server,
    dir: tempfile::TempDir,
    fingerprint: String,
}

impl Encrypted {
    fn start(flags: &[&str]) -> Encrypted {
        let dir = tempfile::tempdir().unwrap();
        let (key, fingerprint) = keygen(dir.path(), "server");
        let key = key.to_str().unwrap();
        let mut all = vec!["--spare", "1", "--tls", "--tls-key", key];
        all.extend(flags);
        Encrypted {
            server: Server::start(&all),
            dir,
            fingerprint,
        }
    }

    fn port(&self) -> u16 {
        match self.server.tcp {
            Endpoint::Tls { port, .. } => port,
            _ => panic!("{} is not encrypted", self.server.tcp),
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port())).unwrap()
    }
}

fn run(url: &str) -> Command {
    let mut command = outboard();
    command.args(["run", "--gpu", url, "--", "true"]);
    command.env("XDG_CONFIG_HOME", "/proc/nowhere");
    command
}

/// Runs with some authority as the system's.
fn run_with_roots(url: &str, folder: &Path) -> Command {
    let mut command = run(url);
    command.env("SSL_CERT_FILE", Authority::new(folder, "root").file);
    command
}

fn refused(command: &mut Command) -> String {
    let Output { status, stderr, .. } = output(command);
    assert_eq!(status.code(), Some(1), "{}", text(&stderr));
    text(&stderr)
}

#[test]
fn the_printed_address_is_enough_and_no_other_key_is_accepted() {
    let Encrypted {
        mut server,
        dir,
        fingerprint,
    } = Encrypted::start(&[]);
    let url = server.tcp.to_string();
    assert!(
        url.ends_with(&format!("?fingerprint={fingerprint}")),
        "{url}"
    );
    let done = output(&mut run(&url));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let (_, other) = keygen(dir.path(), "other");
    let said = refused(&mut run(&url.replace(&fingerprint, &other)));
    assert!(said.contains("another key"), "{said}");
    let bare = url.split('?').next().unwrap();
    let said = refused(&mut run_with_roots(bare, dir.path()));
    assert!(said.contains("has a key and no certificate"), "{said}");
    assert!(said.contains("?fingerprint="), "{said}");
    server.expect_log("asks for a certificate, and this server has none");
    let said = refused(&mut run(&bare.replace("tcps", "tcp")));
    assert!(said.contains("tcps:// or rdmas:// address"), "{said}");
    assert!(server.is_running());
    let shown = output(
        outboard()
            .args(["keygen", "--show"])
            .arg(dir.path().join("server")),
    );
    assert_eq!(text(&shown.stdout).trim(), fingerprint);
    let again = output(outboard().arg("keygen").arg(dir.path().join("server")));
    assert!(!again.status.success(), "a key was overwritten");
}

#[test]
fn a_server_that_does_not_encrypt_gets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, fingerprint) = keygen(dir.path(), "key");
    let open = Server::start(&["--spare", "0"]);
    let url = format!("{}?fingerprint={fingerprint}", open.tcp).replace("tcp:", "tcps:");
    refused(&mut run(&url));
    // One that echoes what it gets, and one that talks of something else.
    for talk in [None, Some(&b"HTTP/1.1 200 OK\r\n\r\n"[..])] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let strange = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut got = vec![0; 4096];
            let count = stream.read(&mut got).unwrap();
            got.truncate(count);
            let _ = stream.write_all(talk.unwrap_or(&got));
            let _ = stream.read_to_end(&mut got);
            got
        });
        let said = refused(&mut run(&format!("tcps://{at}?fingerprint={fingerprint}")));
        assert!(said.contains("TLS") || said.contains("encrypted"), "{said}");
        let got = strange.join().unwrap();
        let hello = &encode_hello(&hello(Purpose::Greeting)).unwrap()[..8];
        assert!(!got.windows(8).any(|window| window == hello));
    }
}

#[test]
fn only_authorized_keys_are_served_where_they_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let (alice, of_alice) = keygen(dir.path(), "alice");
    let (eve, of_eve) = keygen(dir.path(), "eve");
    let list = dir.path().join("list");
    fs::write(&list, format!("# who may\n{of_alice} alice\n")).unwrap();
    let encrypted = Encrypted::start(&["--authorized", list.to_str().unwrap()]);
    let url = encrypted.server.tcp.to_string();
    let with = |key: &Path| {
        let mut command = run(&url);
        command.env("OUTBOARD_KEY_FILE", key);
        command
    };
    let done = output(&mut with(&alice));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = refused(&mut with(&eve));
    assert!(
        said.contains(&of_eve) && said.contains("not authorized"),
        "{said}"
    );
    let said = refused(&mut run(&url));
    assert!(said.contains("not authorized"), "{said}");
    // The next connection sees a change of the list.
    fs::write(&list, format!("{of_eve}\n")).unwrap();
    assert!(refused(&mut with(&alice)).contains("not authorized"));
    assert!(output(&mut with(&eve)).status.success());
}

#[test]
fn beyond_this_machine_an_encrypted_server_says_who_may_come() {
    let dir = tempfile::tempdir().unwrap();
    let (key, _) = keygen(dir.path(), "key");
    let serve = |more: &[&str]| {
        let mut command = outboard();
        command
            .args(["serve", "--device", "soft", "--tls", "--tls-key"])
            .arg(&key);
        text(&output(command.args(more)).stderr)
    };
    let said = serve(&["--listen", "tcp://192.0.2.1:4833"]);
    assert!(
        said.contains("--authorized") && said.contains("--tokens"),
        "{said}"
    );
    let list = dir.path().join("list");
    fs::write(&list, "").unwrap();
    let said = serve(&[
        "--listen",
        "tcp://192.0.2.1:4833",
        "--authorized",
        list.to_str().unwrap(),
    ]);
    assert!(said.contains("annot assign"), "{said}");
    // Adapters' data is open, whoever is known.
    let listed = ["--authorized", list.to_str().unwrap()];
    for url in ["rdma://192.0.2.1:4833", "rdmas://192.0.2.1:4833?gid=1"] {
        let said = serve(&[&["--listen", url][..], &listed].concat());
        assert!(
            said.contains("rdmas://192.0.2.1:4833?fingerprint=sha256:"),
            "{said}"
        );
        assert!(
            said.contains("neither encrypted") && said.contains("--insecure"),
            "{said}"
        );
    }
    let said = serve(&["--listen", "shm:///tmp/nothing-here"]);
    assert!(said.contains("are for tcp and rdma addresses"), "{said}");
    let mut missing = outboard();
    missing.args([
        "serve",
        "--tls",
        "--tls-key",
        "/proc/nowhere/key",
        "--listen",
        "tcp://127.0.0.1:0",
    ]);
    let said = text(&output(&mut missing).stderr);
    assert!(said.contains("outboard keygen"), "{said}");
}

#[test]
fn junk_cuts_and_slow_handshakes_harm_nobody() {
    let mut encrypted = Encrypted::start(&[]);
    let mut slow = encrypted.connect();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    slow.write_all(&[22, 3, 1, 2, 0]).unwrap();
    let start = Instant::now();
    let noise: Vec<u8> = (0..1_000_000u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let _ = encrypted.connect().write_all(&noise);
    let record = [&[22, 3, 1, 64, 0][..], &noise].concat();
    let _ = encrypted.connect().write_all(&record);
    let first = first_flight(&encrypted.server.tcp);
    for cut in (0..first.len()).step_by(3) {
        let mut stream = encrypted.connect();
        stream.write_all(&first[..cut]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    }
    let done = output(&mut run(&encrypted.server.tcp.to_string()));
    assert!(done.status.success(), "{}", text(&done.stderr));
    // A byte now and then does not keep it.
    while start.elapsed() < Duration::from_millis(HANDSHAKE_MS_MAX + 1_000) {
        thread::sleep(Duration::from_millis(200));
        let _ = slow.write_all(&[0]);
    }
    let _ = slow.read_to_end(&mut Vec::new());
    assert!(
        start.elapsed() < Duration::from_secs(9),
        "{:?}",
        start.elapsed()
    );
    eventually("the end of all workers", || {
        encrypted.server.workers().is_empty()
    });
    assert!(encrypted.server.is_running());
    assert!(!encrypted.server.log().contains("panicked"));
}

/// Returns what a client says first to a server with this key.
fn first_flight(server: &Endpoint) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let Endpoint::Tls { fingerprint, .. } = server else {
        unreachable!();
    };
    let at = listener.local_addr().unwrap();
    let url = format!("tcps://{at}?fingerprint={}", fingerprint.unwrap());
    let dialling = thread::spawn(move || connect(&url.parse().unwrap(), PATIENCE).err());
    let (mut stream, _) = listener.accept().unwrap();
    let mut first = vec![0; 5];
    stream.read_exact(&mut first).unwrap();
    let len = usize::from(u16::from_be_bytes([first[3], first[4]]));
    first.resize(5 + len, 0);
    stream.read_exact(&mut first[5..]).unwrap();
    drop(stream);
    assert!(dialling.join().unwrap().is_some());
    first
}

/// Passes bytes on and keeps them, the client's and the server's; flips a bit
/// of the `flip`th byte that the server sends.
fn relay(port: u16, flip: Option<usize>) -> (u16, [Arc<Mutex<Vec<u8>>>; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().port();
    let seen = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
    let [of_client, of_server] = seen.clone();
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let ways = [
                (
                    client.try_clone().unwrap(),
                    server.try_clone().unwrap(),
                    None,
                    &of_client,
                ),
                (server, client, flip, &of_server),
            ];
            for (mut from, mut to, flip, seen) in ways {
                let seen = Arc::clone(seen);
                thread::spawn(move || {
                    let (mut piece, mut at) = ([0; 4096], 0);
                    while let Ok(count @ 1..) = from.read(&mut piece) {
                        if let Some(flip) = flip.filter(|flip| (at..at + count).contains(flip)) {
                            piece[flip - at] ^= 1;
                        }
                        at += count;
                        seen.lock().unwrap().extend(&piece[..count]);
                        if to.write_all(&piece[..count]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (here, seen)
}

#[test]
fn nothing_passes_that_can_be_read_or_changed() {
    let encrypted = Encrypted::start(&[]);
    let url = encrypted.server.tcp.to_string();
    let through = |port: u16| url.replace(&format!(":{}?", encrypted.port()), &format!(":{port}?"));
    let (port, seen) = relay(encrypted.port(), None);
    let done = output(&mut run(&through(port)));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let seen = seen.map(|bytes| bytes.lock().unwrap().clone());
    for seen in &seen {
        assert!(seen.len() > 300);
        for word in [
            &b"OUTBOARD"[..],
            outboard_wire::handshake::RELEASE.as_bytes(),
        ] {
            assert!(!seen.windows(word.len()).any(|window| window == word));
        }
    }
    // From the handshake to the welcome.
    let len = seen[1].len();
    for flip in [20, len / 3, len / 2, len - 40, len - 1] {
        let (port, _) = relay(encrypted.port(), Some(flip));
        let said = refused(&mut run(&through(port)));
        assert!(!said.contains("panicked"), "{flip}: {said}");
    }
}

/// Begins a session over an encrypted connection, whose records the test makes from then on.
fn bare_session(server: &Endpoint) -> (TcpStream, Sealer) {
    let deadline = Instant::now() + PATIENCE;
    let mut stream = connect(server, PATIENCE).unwrap();
    let hello = encode_hello(&hello(Purpose::Session)).unwrap();
    stream.write_all_deadline(&hello, deadline).unwrap();
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact_deadline(&mut preamble, deadline).unwrap();
    let mut document = vec![0; Preamble::decode(&preamble).unwrap().document_bytes];
    stream.read_exact_deadline(&mut document, deadline).unwrap();
    let state = stream.tls_state().unwrap().unwrap();
    let socket = stream.as_fd().try_clone_to_owned().unwrap();
    (socket.into(), state.resume().unwrap().0)
}

/// Runs in guests as well, where the kernel reads the records (`tests/rdma/test_kernel_tls.py`).
#[test]
fn records_that_no_client_makes_end_their_session_alone() {
    const BROKEN: &str = "a record was changed on its way, or is none";
    let mut encrypted = Encrypted::start(&[]);
    let cases: [(&str, &[u8], &str); 9] = [
        ("alert", &[2, 42], "alert 42"),
        ("half an alert", &[2], BROKEN),
        ("ticket", &[4, 0, 0, 0], BROKEN),
        ("half a key update", &KEY_UPDATE[..3], BROKEN),
        ("long message", &[24; 4_000], BROKEN),
        ("unknown kind", &[1], BROKEN),
        ("changed", &[0; 64], BROKEN),
        ("too long", &[23, 3, 3, 0x50, 0], BROKEN),
        ("not encrypted", &[21, 3, 3, 0, 2, 1, 0], BROKEN),
    ];
    for (name, message, expected) in cases {
        let (mut socket, mut sealer) = bare_session(&encrypted.server.tcp);
        let mut bytes = Vec::new();
        let kind = match name {
            "alert" | "half an alert" => ALERT,
            "unknown kind" => 99,
            _ => HANDSHAKE,
        };
        match name {
            "too long" | "not encrypted" => bytes.extend(message),
            _ => sealer.seal_record(kind, message, &mut bytes).unwrap(),
        }
        if name == "changed" {
            bytes[20] ^= 1;
        }
        let before = encrypted.server.log().matches(expected).count();
        socket.write_all(&bytes).unwrap();
        eventually(&format!("the end of a session by {name}"), || {
            encrypted.server.log().matches(expected).count() > before
        });
        // The worker says it and is gone; the connection with it.
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let rest = socket.read_to_end(&mut Vec::new());
        assert!(
            rest.is_ok()
                || rest.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset),
            "{name}"
        );
    }
    let done = output(&mut run(&encrypted.server.tcp.to_string()));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(encrypted.server.is_running());
    assert!(!encrypted.server.log().contains("panicked"));
}

#[test]
fn tokens_are_bound_to_the_encrypted_connection() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let mut create = outboard();
    create
        .args(["token", "create", "alice", "--tokens"])
        .arg(&tokens);
    let token = dir.path().join("alice");
    fs::write(&token, output(&mut create).stdout).unwrap();
    fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let encrypted = Encrypted::start(&["--tokens", tokens.to_str().unwrap()]);
    let url = encrypted.server.tcp.to_string();
    let mut with = run(&url);
    let done = output(with.env("OUTBOARD_TOKEN_FILE", &token));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(refused(&mut run(&url)).contains("asks for a token"));
}
