//! Tests of tokens: proofs of both sides, strangers, replays, and files that are wrong.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::common::*;
use outboard_link::{
    Endpoint, Heartbeats, Receiver, Sender, Wait, dial, open_data_connections, use_token_file,
};
use outboard_trust::{Token, Transcript, random};
use outboard_wire::{
    frame,
    handshake::{
        ClientHello, PREAMBLE_BYTES, Preamble, Purpose, ServerWelcome, SessionKey, TokenHello,
        decode_challenge, encode_hello, encode_welcome,
    },
    limits::{PROOF_BYTES, SESSION_KEY_BYTES},
    messages,
};

const NO_BINDING: [u8; PROOF_BYTES] = [0; PROOF_BYTES];

/// A server with tokens.
struct Guarded {
    server: Server,
    tokens: PathBuf,
    dir: tempfile::TempDir,
}

impl Guarded {
    fn start() -> Guarded {
        let dir = tempfile::tempdir().unwrap();
        let tokens = dir.path().join("tokens");
        create(&tokens, "first", &[]);
        let server = Server::start(&["--spare", "0", "--tokens", tokens.to_str().unwrap()]);
        Guarded {
            server,
            tokens,
            dir,
        }
    }

    /// Makes a token of this server; returns its file.
    fn token(&self, name: &str, options: &[&str]) -> PathBuf {
        let file = self.dir.path().join(name);
        write_secret(&file, &create(&self.tokens, name, options));
        file
    }

    fn connect(&self) -> TcpStream {
        let Endpoint::Tcp { port, .. } = self.server.tcp else {
            unreachable!();
        };
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

fn create(tokens: &Path, name: &str, options: &[&str]) -> String {
    let mut command = outboard();
    command
        .args(["token", "create", name, "--tokens"])
        .arg(tokens);
    let output = output(command.args(options));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn write_secret(file: &Path, secret: &str) {
    fs::write(file, secret).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Runs a program that does nothing through the server.
fn run(endpoint: &Endpoint, token: Option<&Path>) -> Output {
    let mut command = outboard();
    command.args(["run", "--gpu", &endpoint.to_string()]);
    if let Some(token) = token {
        command.arg("--token-file").arg(token);
    }
    output(command.args(["--", "true"]))
}

fn refused(endpoint: &Endpoint, token: Option<&Path>) -> String {
    let output = run(endpoint, token);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    text(&output.stderr)
}

fn accepted(endpoint: &Endpoint, token: Option<&Path>) {
    let output = run(endpoint, token);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_token_is_needed_until_it_expires_or_is_revoked() {
    let guarded = Guarded::start();
    let tcp = &guarded.server.tcp;
    let alice = guarded.token("alice", &[]);
    let brief = guarded.token("brief", &["--expires", "1s"]);
    let start = Instant::now();
    accepted(tcp, Some(&alice));
    assert!(refused(tcp, None).contains("asks for a token"));
    // On one machine the kernel says who is who.
    accepted(&guarded.server.shm, None);

    let list = |options: &[&str]| {
        let mut command = outboard();
        command
            .args(["token", "list", "--tokens"])
            .arg(&guarded.tokens);
        text(&output(command.args(options)).stdout)
    };
    let secret = fs::read_to_string(&alice).unwrap();
    let key = secret.trim().rsplit(':').next().unwrap();
    for listed in [list(&[]), list(&["--json"])] {
        assert!(
            listed.contains("alice") && listed.contains("brief"),
            "{listed}"
        );
        assert!(!listed.contains(key));
    }

    thread::sleep(Duration::from_millis(2100).saturating_sub(start.elapsed()));
    let stranger = tempfile::tempdir().unwrap();
    let unknown = stranger.path().join("unknown");
    write_secret(
        &unknown,
        &create(&stranger.path().join("tokens"), "eve", &[]),
    );
    let mut revoke = outboard();
    revoke
        .args(["token", "revoke", "alice", "--tokens"])
        .arg(&guarded.tokens);
    assert!(output(&mut revoke).status.success());
    let said: Vec<_> = [&alice, &brief, &unknown]
        .map(|token| refused(tcp, Some(token)))
        .into();
    assert!(said[0].contains("wrong, revoked or expired"), "{}", said[0]);
    assert!(said.iter().all(|other| *other == said[0]), "{said:?}");
    guarded.server.expect_log("the token brief has expired");
}

#[test]
fn a_token_that_nobody_was_shown_is_not_added() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("settings/tokens");
    let mut full = outboard();
    full.args(["token", "create", "alice", "--tokens"])
        .arg(&tokens);
    full.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
    let done = full.stderr(Stdio::piped()).output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("no token is added"));
    // The name is free.
    create(&tokens, "alice", &[]);
    let mode = |name: &str| {
        let file = dir.path().join(name);
        fs::metadata(file).unwrap().permissions().mode() & 0o777
    };
    let modes = ["settings", "settings/tokens", "settings/tokens.lock"].map(mode);
    assert_eq!(modes, [0o700, 0o600, 0o600]);
}

/// Standard output has the secret, as text or as JSON; a file of results has never one.
#[test]
fn keys_and_tokens_are_said_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let (key, tokens) = (dir.path().join("key"), dir.path().join("tokens"));
    let said = |arguments: &[&str]| {
        let done = output(outboard().args(arguments));
        assert!(done.status.success(), "{}", text(&done.stderr));
        text(&done.stdout)
    };
    let json = |said: &str| serde_json::from_str::<serde_json::Value>(said).unwrap();
    let (key, tokens) = (key.to_str().unwrap(), tokens.to_str().unwrap());
    let made = json(&said(&["keygen", "--json", key]));
    let fingerprint = said(&["keygen", "--show", key]);
    assert_eq!(made["fingerprint"].as_str(), Some(fingerprint.trim()));
    assert_eq!(
        (made["file"].as_str(), &made["made"]),
        (Some(key), &true.into())
    );

    let alice = json(&said(&[
        "token", "create", "alice", "--tokens", tokens, "--json",
    ]));
    let secret = alice["token"].as_str().unwrap();
    assert!(secret.parse::<Token>().is_ok() && alice["file"].as_str() == Some(tokens));
    let file = dir.path().join("bob.json");
    let in_file = format!("--json={}", file.display());
    let secret = said(&["token", "create", "bob", "--tokens", tokens, &in_file]);
    let written = fs::read_to_string(&file).unwrap();
    assert!(!written.contains(secret.trim()) && secret.trim().parse::<Token>().is_ok());
    let bob = json(&written);
    let list = json(&said(&["token", "list", "--json", "--tokens", tokens]));
    assert_eq!((&list[0]["id"], &list[1]["id"]), (&alice["id"], &bob["id"]));
    let gone = json(&said(&[
        "token", "revoke", "--json", "bob", "--tokens", tokens,
    ]));
    assert_eq!(
        (gone["name"].as_str(), &gone["revoked"]),
        (Some("bob"), &true.into())
    );
}

#[test]
fn commands_and_libraries_find_their_token() {
    let guarded = Guarded::start();
    let tcp = guarded.server.tcp.to_string();
    let alice = guarded.token("alice", &[]);
    let mut doctor = outboard();
    doctor
        .args(["probe", "--seconds", "1", &tcp, "--token-file"])
        .arg(&alice);
    let probed = output(&mut doctor);
    assert!(probed.status.success(), "{}", text(&probed.stderr));
    // By the variable, as sweep, bench and programs started otherwise do.
    let mut by_variable = outboard();
    by_variable.args(["run", "--gpu", &tcp, "--", "true"]);
    let done = output(by_variable.env("OUTBOARD_TOKEN_FILE", &alice));
    assert!(done.status.success(), "{}", text(&done.stderr));
    // In the user's settings, by the server's address.
    let folder = guarded.dir.path().join("config/outboard/tokens");
    fs::create_dir_all(&folder).unwrap();
    fs::copy(&alice, folder.join(tcp.strip_prefix("tcp://").unwrap())).unwrap();
    let config = guarded.dir.path().join("config");
    let mut by_default = outboard();
    by_default.args(["run", "--gpu", &tcp, "--", "true"]);
    let done = output(by_default.env("XDG_CONFIG_HOME", config));
    assert!(done.status.success(), "{}", text(&done.stderr));
}

#[test]
fn files_that_others_can_read_are_refused_on_both_sides() {
    let guarded = Guarded::start();
    let alice = guarded.token("alice", &[]);
    let open = |file: &Path, mode| {
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    };
    open(&alice, 0o644);
    let said = refused(&guarded.server.tcp, Some(&alice));
    assert!(said.contains("chmod 600"), "{said}");
    open(&alice, 0o600);
    accepted(&guarded.server.tcp, Some(&alice));
    // A running server trusts no token any more, and says nothing about it to strangers.
    open(&guarded.tokens, 0o640);
    let said = refused(&guarded.server.tcp, Some(&alice));
    assert!(said.contains("its log says why"), "{said}");
    guarded.server.expect_log("chmod 600");
    let mut serve = outboard();
    serve
        .args(["serve", "--device", "soft", "--tokens"])
        .arg(&guarded.tokens);
    let said = text(&output(&mut serve).stderr);
    assert!(said.contains("chmod 600"), "{said}");
    for missing in [None, Some(guarded.dir.path().join("none"))] {
        let file = missing
            .as_deref()
            .unwrap_or(Path::new("/proc/nowhere/token"));
        let said = refused(&guarded.server.tcp, Some(file));
        assert!(said.contains("No such file"), "{said}");
    }
}

#[test]
fn a_client_with_a_token_uses_no_server_without_it() {
    let open = Server::start(&["--spare", "0"]);
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    write_secret(&token, &Token::random().unwrap().to_text());
    let said = refused(&open.tcp, Some(&token));
    assert!(said.contains("asks for no token"), "{said}");
    // A server that welcomes at once, and one that answers with the proof of another key.
    for challenges in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at: Endpoint = format!("tcp://{}", listener.local_addr().unwrap())
            .parse()
            .unwrap();
        let fake = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let hello = read_message(&mut stream);
            let answer = match challenges {
                false => encode_welcome(&ServerWelcome {
                    release: outboard_wire::handshake::RELEASE.into(),
                    ..ServerWelcome::default()
                }),
                true => {
                    let nonce = random().unwrap();
                    let other = Token::random().unwrap();
                    let proof =
                        Transcript::new(&NO_BINDING, &hello, &nonce).server_proof(&other.key);
                    outboard_wire::handshake::encode_challenge(
                        &outboard_wire::handshake::ServerChallenge {
                            release: outboard_wire::handshake::RELEASE.into(),
                            nonce,
                            proof,
                        },
                    )
                }
            };
            stream.write_all(&answer.unwrap()).unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            rest
        });
        let said = refused(&at, Some(&token));
        let why = ["asks for no token", "does not prove"][usize::from(challenges)];
        assert!(said.contains(why), "{said}");
        assert_eq!(
            fake.join().unwrap(),
            b"",
            "the client said more to a stranger"
        );
    }
}

/// Reads a preamble and its document.
fn read_message(stream: &mut TcpStream) -> Vec<u8> {
    let mut message = vec![0; PREAMBLE_BYTES];
    stream.read_exact(&mut message).unwrap();
    let preamble = Preamble::decode(message[..].try_into().unwrap()).unwrap();
    message.resize(PREAMBLE_BYTES + preamble.document_bytes, 0);
    stream.read_exact(&mut message[PREAMBLE_BYTES..]).unwrap();
    message
}

fn hello_with(token: &Token, purpose: Purpose) -> Vec<u8> {
    let token = TokenHello {
        id: token.id,
        nonce: random().unwrap(),
    };
    let hello = ClientHello {
        token: Some(token),
        ..hello(purpose)
    };
    encode_hello(&hello).unwrap()
}

/// Sends a hello, and returns the challenge's transcript and proof.
fn challenged(stream: &mut TcpStream, hello: &[u8]) -> (Transcript, [u8; PROOF_BYTES]) {
    stream.write_all(hello).unwrap();
    let message = read_message(stream);
    let (preamble, document) = message.split_first_chunk::<PREAMBLE_BYTES>().unwrap();
    let challenge = decode_challenge(&Preamble::decode(preamble).unwrap(), document).unwrap();
    let transcript = Transcript::new(&NO_BINDING, hello, &challenge.nonce);
    (transcript, challenge.proof)
}

/// Returns the kind of the answer and its text, which is a refusal's.
fn answer(stream: &mut TcpStream) -> (bool, String) {
    let message = read_message(stream);
    let (preamble, document) = message.split_first_chunk::<PREAMBLE_BYTES>().unwrap();
    (Preamble::decode(preamble).unwrap().refused, text(document))
}

fn read_token(file: &Path) -> Token {
    Token::read(file).unwrap()
}

#[test]
fn strangers_get_one_answer_and_proofs_hold_once() {
    let guarded = Guarded::start();
    let alice = read_token(&guarded.token("alice", &[]));
    let expired = read_token(&guarded.token("expired", &["--expires", "1s"]));
    thread::sleep(Duration::from_millis(1100));
    let unknown = Token::random().unwrap();

    // The right proof, and all that came before it, are of no use again.
    let hello = hello_with(&alice, Purpose::Greeting);
    let mut stream = guarded.connect();
    let (transcript, proof) = challenged(&mut stream, &hello);
    assert!(transcript.is_of_server(&alice.key, &proof));
    let right = transcript.client_proof(&alice.key);
    stream.write_all(&right).unwrap();
    assert!(!answer(&mut stream).0);
    let mut answers = Vec::new();
    let mut attack =
        |token: &Token, hello: &[u8], proof: &dyn Fn(&Transcript, [u8; 32]) -> [u8; 32]| {
            let mut stream = guarded.connect();
            let (transcript, server_proof) = challenged(&mut stream, hello);
            if token.id != alice.id {
                assert!(!transcript.is_of_server(&token.key, &server_proof));
            }
            stream.write_all(&proof(&transcript, server_proof)).unwrap();
            let (is_refused, why) = answer(&mut stream);
            assert!(is_refused);
            answers.push(why);
        };
    attack(&alice, &hello, &|_, _| right);
    // Reflected, and somebody else's.
    attack(&alice, &hello, &|_, server_proof| server_proof);
    attack(&alice, &hello, &|transcript, _| {
        transcript.client_proof(&unknown.key)
    });
    for token in [&expired, &unknown] {
        let hello = hello_with(token, Purpose::Session);
        attack(token, &hello, &|transcript, _| {
            transcript.client_proof(&token.key)
        });
        attack(token, &hello, &|_, server_proof| server_proof);
    }
    assert!(answers.iter().all(|why| *why == answers[0]), "{answers:?}");
    assert!(answers[0].contains("not valid here"), "{}", answers[0]);
}

#[test]
fn handshakes_that_are_cut_or_slow_harm_nobody() {
    let mut guarded = Guarded::start();
    let file = guarded.token("alice", &[]);
    let alice = read_token(&file);
    // Answers the challenge one byte at a time, for longer than a handshake may take.
    let mut slow = guarded.connect();
    let hello = hello_with(&alice, Purpose::Query);
    let (transcript, _) = challenged(&mut slow, &hello);
    let proof = transcript.client_proof(&alice.key);
    slow.write_all(&proof[..1]).unwrap();
    let start = Instant::now();

    for cut in 0..hello.len() {
        guarded.connect().write_all(&hello[..cut]).unwrap();
    }
    for cut in 0..PROOF_BYTES {
        let mut stream = guarded.connect();
        let (transcript, _) = challenged(&mut stream, &hello);
        let proof = transcript.client_proof(&alice.key);
        stream.write_all(&proof[..cut]).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }
    accepted(&guarded.server.tcp, Some(&file));
    for byte in &proof[1..] {
        thread::sleep(Duration::from_millis(200));
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
    }
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
    assert!(
        rest.is_empty() || rest.len() > PREAMBLE_BYTES && rest[10] == 1,
        "it was welcomed"
    );
    eventually("the end of all workers", || {
        guarded.server.workers().is_empty()
    });
    assert!(guarded.server.is_running());
    assert!(!guarded.server.log().contains("panicked"));
}

/// Asks for data connections; returns the key that they need.
fn data_connections_of((sender, receiver): &mut (Sender, Receiver)) -> SessionKey {
    let question = messages::DataConnectionsOpen { connections_max: 2 };
    let mut request = sender.reserve(frame::request_len(&question)).unwrap();
    frame::encode_request(&mut request, 1, 0, &question).unwrap();
    request.commit().unwrap();
    sender.flush().unwrap();
    let answer = receiver
        .recv(Wait::Until(Instant::now() + PATIENCE))
        .unwrap();
    let (_, mut rest) = frame::decode_reply(answer.unwrap()).unwrap();
    let reply =
        <messages::DataConnectionsOpenReply as outboard_wire::Message>::decode(&mut rest).unwrap();
    let key: [u8; SESSION_KEY_BYTES] = reply.key.as_ref().try_into().unwrap();
    SessionKey::new(key)
}

#[test]
fn every_connection_of_a_session_needs_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    let file = dir.path().join("alice");
    write_secret(&file, &create(&tokens, "alice", &[]));
    let mut serve = outboard();
    serve
        .args(["serve", "--device", "soft", "--spare", "0", "--tokens"])
        .arg(&tokens);
    let server = Server::start_with(serve.env("OUTBOARD_DATA_CONNECTIONS", "2"));
    assert!(use_token_file(&file));
    let (link, _, welcome) = dial(&server.tcp, &hello(Purpose::Session), PATIENCE).unwrap();
    server.expect_log("alice");
    let way = link.data_connections().unwrap();
    let mut halves = link.split();
    let key = data_connections_of(&mut halves);
    let until = Instant::now() + PATIENCE;
    // The session's key alone is not enough.
    let Endpoint::Tcp { port, .. } = server.tcp else {
        unreachable!();
    };
    let bare = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let without = open_data_connections(&bare.into(), None, key, 2, until);
    let said = without.err().unwrap().to_string();
    assert!(said.contains("asks for a token"), "{said}");
    assert_eq!(
        open_data_connections(&way, None, key, 2, until)
            .unwrap()
            .len(),
        2
    );
    let mut heartbeats = Heartbeats::connect(&server.tcp, welcome.key.unwrap(), PATIENCE).unwrap();
    heartbeats.ask(until).unwrap();
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let key = welcome.key.unwrap();
    let hello = encode_hello(&hello(Purpose::Heartbeat { key })).unwrap();
    stranger.write_all(&hello).unwrap();
    assert!(answer(&mut stranger).1.contains("asks for a token"));
}
