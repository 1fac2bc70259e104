//! A capture of real programs through the balancer, replayed: the engine makes of each frame what
//! the balancer made of it then.

use outboard_balance::config::Config;
use outboard_balance::engine::{Engine, Frame, Neighbour, Options, Port, Verdict};
use outboard_balance::replay::{Replayed, replay};
use outboard_flow::Secret;
use outboard_flow::traffic::pcap::Reader;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

const PROGRAMS: &[u8] = include_bytes!("../captures/programs.pcap");
const CONFIG: &str = include_str!("../captures/balance.toml");
const VIP: [u8; 4] = [192, 0, 2, 10];
const CLIENT: [u8; 4] = [198, 51, 100, 1];
/// Requests of curl, queries of dig and connections of iperf3.
const CONNECTIONS: u64 = 11 + 5 + 2;

/// Frames of the capture, each with its time: those that the balancer got, and those it sent.
struct Capture {
    mac: [u8; 6],
    came: Vec<(u64, Vec<u8>)>,
    went: Vec<Vec<u8>>,
}

fn capture() -> Capture {
    let mut reader = Reader::new(PROGRAMS).expect("a capture");
    let mut records = Vec::new();
    while let Some(record) = reader.read().expect("a record") {
        assert_eq!(record.length as usize, record.bytes.len(), "all is there");
        records.push(record);
    }
    let to_service = |bytes: &[u8]| bytes[30..34] == VIP;
    let first = records.iter().find(|one| to_service(&one.bytes));
    let mac = first.expect("a frame to the service").bytes[..6].try_into();
    let mac: [u8; 6] = mac.expect("six bytes");
    let (went, came): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|one| one.bytes[6..12] == mac);
    Capture {
        mac,
        came: came
            .into_iter()
            .map(|one| (one.time_ns, one.bytes))
            .collect(),
        went: went.into_iter().map(|one| one.bytes).collect(),
    }
}

/// The backends' hardware addresses, by which they answered.
fn engine(config: &Config, capture: &Capture) -> Engine {
    let options = Options {
        connections_max: 1000,
        half_open_max: 100,
        fragments_max: 10,
        hash_seed: config.hash_seed,
        secrets: [5, 6, 7, 8].map(Secret::from_seed),
    };
    let port = Port {
        mac: Some(capture.mac),
        mtu: Some(1500),
    };
    let mut engine = Engine::new(options, vec![port], 0).expect("memory");
    engine.reload(&config.services, config.timeouts.clone());
    for (_, bytes) in &capture.came {
        let (mut mac, mut source) = ([0; 6], [0; 4]);
        mac.copy_from_slice(&bytes[6..12]);
        source.copy_from_slice(&bytes[26..30]);
        engine.set_neighbour(IpAddr::from(source), Neighbour { port: 0, mac });
    }
    engine
}

#[test]
fn each_frame_becomes_what_it_became_then() {
    let (config, capture) = (Config::parse(CONFIG).expect("right"), capture());
    let mut engine = engine(&config, &capture);
    let (mut went, mut verdicts) = (Vec::new(), Vec::new());
    let begin_ns = capture.came[0].0;
    for (time_ns, bytes) in &capture.came {
        let mut frames = [Frame {
            bytes: bytes.clone(),
            ..Frame::default()
        }];
        engine.process(&mut frames, &mut verdicts, (time_ns - begin_ns) / 1_000_000);
        assert_eq!(verdicts, [Verdict::Send(0)], "{bytes:02x?}");
        let [frame] = frames;
        went.push(frame.bytes);
    }
    assert_eq!(went.len(), capture.went.len());
    for (number, (got, then)) in went.iter().zip(&capture.went).enumerate() {
        assert_eq!(got, then, "frame {number}");
    }
    assert_eq!(engine.counts().opened, CONNECTIONS);
    // Both directions of each connection, at one backend.
    let mut backends: HashMap<(u8, [u8; 2]), HashSet<[u8; 4]>> = HashMap::new();
    for bytes in &went {
        let host = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).expect("four bytes");
        if host(26) == CLIENT {
            let port = [bytes[34], bytes[35]];
            backends
                .entry((bytes[23], port))
                .or_default()
                .insert(host(30));
        }
    }
    assert_eq!(backends.len() as u64, CONNECTIONS);
    assert!(backends.values().all(|one| one.len() == 1), "{backends:?}");
    let used: HashSet<_> = backends.values().flatten().collect();
    assert_eq!(used.len(), 2, "both servers had some");
}

#[test]
fn the_capture_is_replayed_as_the_command_does_it() {
    let config = Config::parse(CONFIG).expect("right");
    let (mut out, mut replayed) = (Vec::new(), Replayed::default());
    replay(&config, PROGRAMS, &mut out, &mut replayed).expect("replayed");
    let capture = capture();
    let (came, went) = (capture.came.len() as u64, capture.went.len() as u64);
    assert_eq!(replayed.read, came + went);
    assert_eq!((replayed.sent, replayed.opened), (came, CONNECTIONS));
    // Of what it sent then, nothing is for it.
    let dropped: u64 = replayed.dropped.iter().map(|one| one.1).sum();
    assert_eq!(dropped, went);
}
