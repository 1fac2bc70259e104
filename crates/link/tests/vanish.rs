//! A host that disappears without a word: a network namespace whose only cable is pulled.
//!
//! Needs root and the `ip`, `unshare` and `nsenter` commands, and takes 20 s:
//! `cargo test -p outboard-link --test vanish -- --ignored`
#![cfg(not(loom))]

use std::{
    env,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use outboard_link::{Error, Listener, Wait, conformance::soon, connect};
use outboard_wire::limits::PEER_VANISHED_MS_MAX;

const ADDRESS: &str = "OUTBOARD_VANISH_ADDRESS";
/// The promise, and the delay of a look once a second and of a slow machine.
const NOTICED: Duration = Duration::from_millis(PEER_VANISHED_MS_MAX + 3_000);

#[test]
#[ignore = "needs root and takes 20 s"]
fn a_vanished_host_is_noticed_by_whoever_waits_for_it() {
    let network = Network::new();
    let listener = Listener::bind(&"tcp://10.213.77.1:0".parse().unwrap()).unwrap();
    let mut peer = network
        .command(&env::current_exe().unwrap().to_string_lossy())
        .args(["--exact", "peer", "--ignored"])
        .env(ADDRESS, listener.endpoint().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let links: Vec<_> = (0..3)
        .map(|_| {
            let (stream, _) = listener.accept(Some(soon())).unwrap();
            let (mut sender, mut receiver) = stream.into_link_server().unwrap().split();
            sender.send(&[b"hello"]).unwrap();
            sender.flush().unwrap();
            assert!(receiver.recv(Wait::Until(soon())).unwrap().is_some());
            (sender, receiver)
        })
        .collect();
    // Everything that was sent has been acknowledged.
    thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    network.pull_the_cable();
    thread::scope(|scope| {
        for (case, (mut sender, mut receiver)) in links.into_iter().enumerate() {
            scope.spawn(move || {
                let error = match case {
                    // Nothing is outstanding.
                    0 => receiver.recv(Wait::Forever).map(|_| ()),
                    // A question is outstanding, and the thread waits for its answer.
                    1 => {
                        sender.send(&[b"question"]).unwrap();
                        sender.flush().unwrap();
                        receiver.recv(Wait::Forever).map(|_| ())
                    }
                    // More is outstanding than the socket takes.
                    _ => loop {
                        if let Err(error) = sender.send(&[&[7; 1 << 20]]) {
                            break Err(error);
                        }
                    },
                };
                let took = start.elapsed();
                assert!(
                    matches!(error, Err(Error::Vanished { .. })),
                    "case {case}: {error:?}"
                );
                assert!(took <= NOTICED, "case {case}: noticed after {took:?}");
                assert!(
                    took >= Duration::from_secs(5),
                    "case {case}: gave up after {took:?}"
                );
            });
        }
    });
    peer.kill().unwrap();
    peer.wait().unwrap();
}

/// Not a test: the process in the other namespace.
#[test]
#[ignore = "started by the other test"]
fn peer() {
    let Ok(address) = env::var(ADDRESS) else {
        return;
    };
    let links: Vec<_> = (0..3)
        .map(|_| {
            let stream = connect(&address.parse().unwrap(), Duration::from_secs(5)).unwrap();
            let (mut sender, receiver) = stream.into_link_client(soon()).unwrap().split();
            sender.send(&[b"hello"]).unwrap();
            sender.flush().unwrap();
            (sender, receiver)
        })
        .collect();
    thread::sleep(Duration::from_secs(120));
    drop(links);
}

/// A namespace with one cable to ours, for as long as its only process lives.
struct Network(Child);

impl Network {
    fn new() -> Self {
        let holder = Command::new("unshare").args(["-n", "sleep", "120"]).spawn();
        let network = Self(holder.expect("unshare"));
        // unshare takes a moment to enter its namespace.
        thread::sleep(Duration::from_millis(500));
        let pid = network.0.id().to_string();
        let cable = [
            "link",
            "add",
            "outboard0",
            "type",
            "veth",
            "peer",
            "name",
            "outboard1",
        ];
        run(Command::new("ip").args(cable).args(["netns", &pid]));
        run(Command::new("ip").args(["addr", "add", "10.213.77.1/30", "dev", "outboard0"]));
        run(Command::new("ip").args(["link", "set", "outboard0", "up"]));
        run(network
            .command("ip")
            .args(["addr", "add", "10.213.77.2/30", "dev", "outboard1"]));
        run(network
            .command("ip")
            .args(["link", "set", "outboard1", "up"]));
        network
    }

    /// Makes a command that runs in the namespace.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.id().to_string(), "-n", program]);
        command
    }

    fn pull_the_cable(&self) {
        run(self
            .command("ip")
            .args(["link", "set", "outboard1", "down"]));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(command: &mut Command) {
    let status = command.status().expect("the command");
    assert!(status.success(), "{command:?}: {status}");
}
