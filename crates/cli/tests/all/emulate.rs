//! Tests of emulated networks: agreed on when a session begins, and obeyed by the real server.
// The helpers of tests are no `#[test]`s, which clippy.toml exempts.
use std::time::{Duration, Instant};

use crate::common::*;
use outboard_link::{
    DialError, Endpoint, LinkKind, Receiver, Sender, Wait, dial, emulated::emulation,
};
use outboard_wire::{
    Op,
    frame::{ReplyHeader, decode_reply, encode_request, request_len},
    handshake::{ClientHello, Emulation, HandshakeError, Purpose},
    messages::Ping,
};

fn hello_over(network: &str, purpose: Purpose) -> ClientHello {
    let network = network.parse().unwrap();
    ClientHello {
        emulation: Some(emulation(network).unwrap()),
        is_rdma: false,
        window: 0,
        ..hello(purpose)
    }
}

/// Sends a message and reads its answer.
fn ask<'a, M: Op<'a>>(link: &mut (Sender, Receiver), message: &M) -> ReplyHeader {
    let (sender, receiver) = link;
    let mut frame = sender.reserve(request_len(message)).unwrap();
    encode_request(&mut frame, 1, 0, message).unwrap();
    frame.commit().unwrap();
    sender.flush().unwrap();
    let frame = receiver.recv(Wait::Until(Instant::now() + PATIENCE));
    decode_reply(frame.unwrap().unwrap()).unwrap().0
}

#[test]
fn both_sides_keep_to_the_network() {
    let server = Server::start(&[]);
    let rtt = Duration::from_millis(200);
    for endpoint in server.endpoints() {
        for purpose in [Purpose::Query, Purpose::Session] {
            let hello = hello_over("rtt=200ms", purpose);
            let (link, ..) = dial(&endpoint, &hello, PATIENCE).unwrap();
            assert_eq!(link.kind(), LinkKind::Emulated);
            let mut link = link.split();
            let start = Instant::now();
            assert_eq!(ask(&mut link, &Ping {}).status, 0);
            let took = start.elapsed();
            // If only one side emulated, it would take half of it.
            assert!(took >= rtt, "{endpoint}: {took:?}");
            assert!(took < 3 * rtt, "{endpoint}: {took:?}");
        }
    }
}

fn refusal(endpoint: &Endpoint, purpose: Purpose, change: impl Fn(&mut Emulation)) -> String {
    let mut hello = hello_over("rtt=1ms", purpose);
    hello.emulation.as_mut().map(change).unwrap();
    match dial(endpoint, &hello, PATIENCE) {
        Err(DialError::Handshake(HandshakeError::Refused(why))) => why,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("was not refused"),
    }
}

#[test]
fn a_client_of_another_machine_is_told_why_it_cannot_be() {
    let server = Server::start(&[]);
    for endpoint in server.endpoints() {
        for purpose in [Purpose::Greeting, Purpose::Session, Purpose::Management] {
            let why = refusal(&endpoint, purpose, |emulation| {
                emulation.clock.boot_id = "another".into();
            });
            assert!(why.contains("processes of one machine"), "{why}");
            assert!(why.contains("booted as another"), "{why}");
            assert!(why.contains("leave --emulate out"), "{why}");
            let why = refusal(&endpoint, purpose, |emulation| {
                emulation.clock.now_ns += 3_600_000_000_000;
            });
            assert!(why.contains("time namespace"), "{why}");
        }
        dial(&endpoint, &hello(Purpose::Greeting), PATIENCE).unwrap();
    }
}
