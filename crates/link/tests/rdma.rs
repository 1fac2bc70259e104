//! A rdma link over a bad cable: frames with known content while packets get lost, and a port that
//! goes down. Needs two devices and permission to disturb the connection between them, as in the
//! guest of `make test-rdma`: `OUTBOARD_RDMA_CABLE` names their network interfaces. Without it
//! nothing is tested, and the tests print that.
#![cfg(not(loom))]
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use outboard_link::{
    Error, RdmaError, Receiver, Sender, Wait,
    conformance::{
        RdmaFixture, expect_end, expect_frame, not_run, pair, random_numbers, send, soon,
    },
};
use outboard_verbs::Error as Verbs;
use outboard_wire::limits::PEER_VANISHED_MS_MAX;

/// The interfaces at both ends of the cable.
fn cable(test: &str) -> Option<Vec<String>> {
    let said = std::env::var("OUTBOARD_RDMA_CABLE").ok();
    if said.is_none() {
        not_run(test, "OUTBOARD_RDMA_CABLE names no two interfaces");
    }
    said.map(|said| said.split(',').map(Into::into).collect())
}

fn system(command: &[&str]) -> String {
    let done = Command::new(command[0])
        .args(&command[1..])
        .output()
        .unwrap();
    assert!(done.status.success(), "{command:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Loses some of the packets that leave these interfaces, until dropped.
struct Loss(Vec<String>);

impl Loss {
    fn new(interfaces: &[String], percent: &str) -> Self {
        for interface in interfaces {
            let what = ["root", "netem", "loss", percent];
            system(&[&["tc", "qdisc", "replace", "dev", interface], &what[..]].concat());
        }
        Self(interfaces.into())
    }

    /// Number of packets lost, by interface.
    fn dropped(&self) -> Vec<u64> {
        let count = |interface: &String| {
            let said = system(&["tc", "-s", "qdisc", "show", "dev", interface]);
            let (_, rest) = said.split_once("dropped ").unwrap();
            rest.split([',', ' ']).next().unwrap().parse().unwrap()
        };
        self.0.iter().map(count).collect()
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        for interface in &self.0 {
            system(&["tc", "qdisc", "del", "dev", interface, "root"]);
        }
    }
}

/// Takes an interface down, until dropped.
struct Down<'a>(&'a str);

impl<'a> Down<'a> {
    fn new(interface: &'a str) -> Self {
        system(&["ip", "link", "set", interface, "down"]);
        Self(interface)
    }
}

impl Drop for Down<'_> {
    fn drop(&mut self) {
        system(&["ip", "link", "set", self.0, "up"]);
        // Time until the system knows that the link's address is in no other use.
        thread::sleep(Duration::from_secs(3));
    }
}

/// Frames of all lengths in both directions at once, with every byte checked.
fn soak(frames: u64) {
    fn flood(mut sender: Sender, frames: u64) -> Sender {
        let mut random = random_numbers(31);
        for number in 0..frames {
            send(&mut sender, number, length(&mut random)).unwrap();
        }
        sender
    }
    fn drain(mut receiver: Receiver, frames: u64) {
        let mut random = random_numbers(31);
        for number in 0..frames {
            expect_frame(&mut receiver, number, length(&mut random));
        }
        expect_end(&mut receiver);
    }
    fn length(random: &mut impl FnMut() -> u64) -> usize {
        let most = [100, 1_500, 1_500, 40_000][random() as usize % 4];
        1 + random() as usize % most
    }
    let (server, client) = pair(&RdmaFixture);
    thread::scope(|scope| {
        for (sender, receiver) in [server, client] {
            scope.spawn(move || drop(flood(sender, frames)));
            scope.spawn(move || drain(receiver, frames));
        }
    });
}

#[test]
fn no_byte_is_wrong_while_packets_get_lost() {
    let Some(cable) = cable("no_byte_is_wrong_while_packets_get_lost") else {
        return;
    };
    let loss = Loss::new(&cable, "5%");
    soak(400);
    let dropped = loss.dropped();
    assert!(dropped.iter().all(|&count| count > 0), "{dropped:?}");
}

/// Returns a thread's error; fails if the thread does not end in time.
fn ended(what: &str, thread: thread::JoinHandle<Error>, start: Instant) -> Error {
    while !thread.is_finished() {
        assert!(
            start.elapsed() < Duration::from_millis(PEER_VANISHED_MS_MAX),
            "{what} was not told"
        );
        thread::sleep(Duration::from_millis(10));
    }
    thread.join().unwrap()
}

/// Checks that both ends of a link which loses all packets get an error within the bound, whatever
/// each waits for.
fn both_are_told<T>(break_it: impl FnOnce() -> T) {
    let ((mut to_client, _from_client), (_to_server, mut from_server)) = pair(&RdmaFixture);
    send(&mut to_client, 0, 1_000).unwrap();
    expect_frame(&mut from_server, 0, 1_000);
    let sender = thread::spawn(move || {
        loop {
            if let Err(error) = send(&mut to_client, 1, 20_000) {
                return error;
            }
        }
    });
    let receiver = thread::spawn(move || {
        loop {
            match from_server.recv(Wait::Until(soon())) {
                Ok(Some(frame)) => assert_eq!(frame.len(), 20_000),
                Ok(None) => unreachable!("neither a frame nor an error"),
                Err(error) => return error,
            }
        }
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!sender.is_finished() && !receiver.is_finished());
    let broken = break_it();
    let start = Instant::now();
    let error = ended("the sender", sender, start);
    assert!(is_of_the_network(&error), "{error}");
    // The receiver has sent nothing that needs an acknowledgement; it sends from time to time to
    // find out.
    let error = ended("the receiver", receiver, start);
    assert!(
        error.is_disconnect() || is_of_the_network(&error),
        "{error}"
    );
    drop(broken);
}

/// Returns true if the peer did not answer, or could not be asked, which a device without a cable
/// reports.
fn is_of_the_network(error: &Error) -> bool {
    matches!(error, Error::Vanished { .. })
        || matches!(error.rdma(), Some(RdmaError::Verbs(Verbs::Failed { .. })))
}

#[test]
fn a_cable_that_is_cut_ends_the_link_in_time() {
    if let Some(cable) = cable("a_cable_that_is_cut_ends_the_link_in_time") {
        both_are_told(|| Loss::new(&cable, "100%"));
        soak(20);
    }
}

/// A new link can be made when the port is back.
#[test]
fn a_port_that_goes_down_ends_the_link_in_time() {
    if let Some(cable) = cable("a_port_that_goes_down_ends_the_link_in_time") {
        both_are_told(|| Down::new(&cable[0]));
        soak(20);
    }
}
