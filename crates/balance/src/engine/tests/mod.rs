//! Expected frames are built from nothing by [`build`], with checksums over whole packets, and
//! never by the code that is tested.

mod attacks;
mod bad_input;
pub(crate) mod build;
mod forwarding;
mod keeping;
mod mtu;
mod simulated;

use super::*;
use build::{Build, address, socket};

pub(super) const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

pub(super) fn service(forward: Forward, vip: &str, protocol: u8, backends: &[&str]) -> ServiceRule {
    let source = if vip.starts_with('[') {
        "2001:db8::99"
    } else {
        "192.0.2.99"
    };
    ServiceRule {
        name: "gpu".into(),
        address: socket(vip),
        protocol,
        forward,
        affinity: false,
        adopt: false,
        sources: if forward == Forward::FullNat {
            vec![address(source)]
        } else {
            Vec::new()
        },
        source_ports: (1024, 65_535),
        backends: backends.iter().map(|one| backend(one)).collect(),
    }
}

pub(super) fn backend(text: &str) -> BackendRule {
    BackendRule {
        address: socket(text),
        weight: 1,
        drain: false,
        is_checked: true,
        link: None,
    }
}

pub(super) fn engine_with(rules: &[ServiceRule], options: Options, port: Port) -> Engine {
    let mut engine = Engine::new(options, vec![port], 0).expect("memory");
    engine.reload(rules, Timeouts::default());
    engine
}

pub(super) fn options() -> Options {
    Options {
        connections_max: 4096,
        half_open_max: 1024,
        fragments_max: 16,
        hash_seed: 1,
        secrets: [1, 2, 3, 4].map(Secret::from_seed),
    }
}

/// An engine whose frames begin with the IP header.
pub(super) fn engine(rules: &[ServiceRule]) -> Engine {
    engine_with(rules, options(), Port::default())
}

/// Sends one frame through an engine.
pub(super) fn pass(engine: &mut Engine, bytes: &[u8], now_ms: u64) -> Result<Vec<u8>, Reason> {
    let mut frames = [Frame {
        bytes: bytes.to_vec(),
        ..Frame::default()
    }];
    let mut verdicts = Vec::new();
    engine.process(&mut frames, &mut verdicts, now_ms);
    let [frame] = frames;
    match verdicts[..] {
        [Verdict::Send(0)] => Ok(frame.bytes),
        [Verdict::Drop(reason)] => Err(reason),
        ref other => panic!("{other:?}"),
    }
}

/// Opens a TCP connection by a whole handshake. Returns the backend's address, and the source that
/// it sees.
pub(super) fn connect(engine: &mut Engine, client: &str, vip: &str, now: u64) -> (String, String) {
    let syn = Build::tcp(client, vip).flags("S").numbers(100, 0);
    let there = pass(engine, &syn.bytes(), now).expect("the SYN is sent on");
    let (source, target) = build::ends(&there);
    let answer = Build::tcp(&target, &source).flags("SA").numbers(900, 101);
    pass(engine, &answer.bytes(), now).expect("the answer is sent on");
    let ack = Build::tcp(client, vip).flags("A").numbers(101, 901);
    pass(engine, &ack.bytes(), now).expect("the end of the handshake is sent on");
    (target, source)
}
