//! Peers that are killed, as real processes: each is the test's own executable, started again as
//! [`child_main`].

use std::{
    env, io,
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use outboard_wire::limits::PEER_DEATH_MS_MAX;

use super::{Fixture, PATIENCE, expect_frame, send, soon};
use crate::{Error, LinkKind, Listener, Receiver, Sender, Stream, Wait, connect, emulated::End};

const ROLE: &str = "OUTBOARD_CONFORMANCE_ROLE";
const ENDPOINT: &str = "OUTBOARD_CONFORMANCE_ENDPOINT";
/// The promise, and a busy machine's delay.
const DEATH_NOTICED: Duration = Duration::from_millis(PEER_DEATH_MS_MAX + 400);
const FORKED_CHILD_LIVES: Duration = Duration::from_secs(2);

pub fn a_peer_killed_in_mid_stream(fixture: &impl Fixture, module: &str) {
    let (mut child, (_keep, mut from_client)) = client(fixture, module, "flood");
    for number in 0..5_000 {
        expect_frame(&mut from_client, number, 100);
    }
    child.kill();
    // Later frames are in order and whole, except for the last frame of a stream.
    let mut number = 5_000;
    let error = loop {
        match from_client.recv(Wait::Until(soon())) {
            Ok(Some(frame)) => super::check_frame(frame, number),
            Ok(None) => unreachable!("neither a frame nor the end"),
            Err(error) => break error,
        }
        number += 1;
    };
    assert!(error.is_disconnect(), "{error}");
}

pub fn a_peer_killed_while_it_is_waited_for(fixture: &impl Fixture, module: &str) {
    let (mut child, (_keep, mut from_client)) = client(fixture, module, "idle");
    expect_frame(&mut from_client, 0, 1);
    let waiting = thread::spawn(move || {
        let error = from_client
            .recv(Wait::Forever)
            .map(|_| ())
            .expect_err("the end");
        (error, Instant::now())
    });
    thread::sleep(Duration::from_millis(120));
    assert!(!waiting.is_finished());
    let killed = Instant::now();
    child.kill();
    let (error, noticed) = waiting.join().expect("the receiver");
    assert!(error.is_disconnect(), "{error}");
    let took = noticed.saturating_duration_since(killed);
    assert!(took <= DEATH_NOTICED, "noticed after {took:?}");
}

pub fn a_peer_killed_while_it_keeps_the_sender_waiting(fixture: &impl Fixture, module: &str) {
    let (mut child, (mut to_client, mut from_client)) = client(fixture, module, "idle");
    expect_frame(&mut from_client, 0, 1);
    let sending = thread::spawn(move || {
        loop {
            if let Err(error) = send(&mut to_client, 0, 100_000) {
                return (error, Instant::now());
            }
        }
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!sending.is_finished());
    let killed = Instant::now();
    child.kill();
    let (error, noticed) = sending.join().expect("the sender");
    assert!(error.is_disconnect(), "{error}");
    let took = noticed.saturating_duration_since(killed);
    assert!(took <= DEATH_NOTICED, "noticed after {took:?}");
}

/// As with a program whose data loader runs in forked workers. Over tcp and rdma the child keeps
/// the connection open and cannot be told from its parent: the link ends with the child.
pub fn a_peer_killed_whose_forked_child_lives(fixture: &impl Fixture, module: &str) {
    let (mut child, (_keep, mut from_client)) = client(fixture, module, "parent");
    expect_frame(&mut from_client, 0, 1);
    let killed = Instant::now();
    child.kill();
    let error = from_client.recv(Wait::Until(soon())).map(|_| ());
    assert!(error.as_ref().is_err_and(Error::is_disconnect), "{error:?}");
    let bound = match from_client.carrier() {
        LinkKind::Tcp | LinkKind::Rdma => FORKED_CHILD_LIVES + PATIENCE,
        _ => DEATH_NOTICED,
    };
    assert!(
        killed.elapsed() <= bound,
        "noticed after {:?}",
        killed.elapsed()
    );
}

/// The supervisor accepts and lets a worker inherit the socket, here as its standard input. Over
/// shm the worker's death is noticed although the supervisor keeps the socket open.
pub fn a_worker_killed_that_inherited_its_socket(fixture: &impl Fixture, module: &str) {
    let listener = Listener::bind(&fixture.endpoint()).expect("to listen");
    let endpoint = fixture.seen_by_client(listener.endpoint().clone());
    let client = thread::spawn(move || {
        let stream = connect(&endpoint, PATIENCE).expect("to connect");
        stream.into_link_client(soon()).expect("a client's link")
    });
    let (stream, _) = listener.accept(Some(soon())).expect("a client");
    let socket = OwnedFd::from(stream);
    let kept = socket.try_clone().expect("a copy");
    let mut worker = start(module, "worker", "", Stdio::from(socket));
    let link = fixture.wrap(client.join().expect("the client"), End::Client);
    let kept = (link.carrier() == LinkKind::Shm).then_some(kept);
    let (mut to_server, mut from_server) = link.split();
    for number in 0..100 {
        send(&mut to_server, number, 1_000).expect("to send");
        expect_frame(&mut from_server, number, 1_000);
    }
    let waiting = thread::spawn(move || {
        let error = from_server
            .recv(Wait::Forever)
            .map(|_| ())
            .expect_err("the end");
        (error, Instant::now())
    });
    let killed = Instant::now();
    worker.kill();
    let (error, noticed) = waiting.join().expect("the receiver");
    assert!(error.is_disconnect(), "{error}");
    let took = noticed.saturating_duration_since(killed);
    assert!(took <= DEATH_NOTICED, "noticed after {took:?}");
    drop(kept);
}

/// Runs a started process by its role; does nothing in the test process itself.
pub fn child_main(fixture: &impl Fixture) {
    let Ok(role) = env::var(ROLE) else { return };
    let stream = match role.as_str() {
        "worker" => {
            let socket = io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .expect("the socket");
            fixture.adopt(Stream::try_from(socket).expect("a stream"))
        }
        _ => {
            let endpoint = env::var(ENDPOINT).expect("an endpoint");
            connect(&endpoint.parse().expect("an endpoint"), PATIENCE).expect("to connect")
        }
    };
    let (link, end) = match role.as_str() {
        "worker" => (stream.into_link_server(), End::Server),
        _ => (stream.into_link_client(soon()), End::Client),
    };
    let link = fixture.wrap(link.expect("a link"), end);
    let (mut sender, mut receiver) = link.split();
    match role.as_str() {
        "flood" => {
            for number in 0.. {
                send(&mut sender, number, 100).expect("to send");
            }
        }
        "idle" => {
            send(&mut sender, 0, 1).expect("to send");
            thread::sleep(2 * PATIENCE);
        }
        "parent" => {
            // SAFETY: the child only sleeps and exits.
            if unsafe { libc::fork() } == 0 {
                thread::sleep(FORKED_CHILD_LIVES);
                // SAFETY: always fine; nothing of the test harness runs in the child.
                unsafe { libc::_exit(0) }
            }
            send(&mut sender, 0, 1).expect("to send");
            thread::sleep(2 * PATIENCE);
        }
        "worker" => loop {
            match receiver.recv(Wait::Until(soon())) {
                Ok(Some(frame)) => sender.send(&[frame]).expect("to echo"),
                Ok(None) | Err(Error::Closed) => return,
                Err(error) => unreachable!("{error}"),
            }
            sender.flush().expect("to flush");
        },
        other => unreachable!("no role {other}"),
    }
}

/// Starts a client process; returns it with the server's side of its link.
fn client(fixture: &impl Fixture, module: &str, role: &str) -> (Killed, (Sender, Receiver)) {
    let listener = Listener::bind(&fixture.endpoint()).expect("to listen");
    let endpoint = fixture
        .seen_by_client(listener.endpoint().clone())
        .to_string();
    let child = start(module, role, &endpoint, Stdio::null());
    let (stream, _) = listener.accept(Some(soon())).expect("a client");
    let link = stream.into_link_server().expect("a link");
    let link = fixture.wrap(link, End::Server);
    (child, link.split())
}

fn start(module: &str, role: &str, endpoint: &str, stdin: Stdio) -> Killed {
    // The test harness identifies the test by its path within the crate.
    let path = module
        .split_once("::")
        .map_or("child".into(), |(_, path)| format!("{path}::child"));
    let child = Command::new(env::current_exe().expect("this executable"))
        .args(["--exact", &path, "--test-threads", "1"])
        .env(ROLE, role)
        .env(ENDPOINT, endpoint)
        .stdin(stdin)
        .stdout(Stdio::null())
        .spawn()
        .expect("a process");
    Killed(child)
}

/// A process that is killed at the end of its test.
struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}
