//! Tests of endpoints of `net.h`: what a client may ask of them, and that nothing it asks ends more
//! than its own call.

use outboard_wire::doc::{
    self, NET_ENDPOINTS_MAX, NetAnswer, NetCall, NetEnd, NetOptions, NetQueueOptions,
};

use super::*;

const PINNED_BYTES: usize = 256 << 10;
const QUEUE_BYTES: u64 = 64 << 10;
const SHAPE: NetQueueOptions = NetQueueOptions {
    log_blocks: 5,
    log_receives: 0,
    signal_every: 1,
    flags: 0,
    counters: 0,
};

impl Client {
    /// Gives the session pinned memory. Returns its address.
    fn pin(&self) -> u64 {
        let memory = Mapped::allocate(PINNED_BYTES).unwrap();
        let address = memory.address();
        self.board.pinned.set(memory).unwrap();
        address
    }

    fn net_raw(&mut self, endpoint: u32, call: &[u8]) -> NetAnswer {
        self.send(7, &messages::NetCall { endpoint, call });
        let received = self.recv();
        assert!(received.is_answer_to(7), "{:?}", received.header);
        let data = Reader::new(&received.body).bytes("data").unwrap().to_vec();
        doc::from_bytes(&data).unwrap()
    }

    fn net(&mut self, endpoint: u32, call: &NetCall) -> NetAnswer {
        self.net_raw(endpoint, &doc::to_bytes(call).unwrap())
    }

    fn refused(&mut self, endpoint: u32, call: &NetCall, why: &str) {
        match self.net(endpoint, call) {
            NetAnswer::Failed(said) => assert!(said.contains(why), "{call:?}: {said}"),
            other => panic!("{call:?}: {other:?}"),
        }
    }

    fn queue(&mut self, endpoint: u32, address: u64) -> u32 {
        match self.net(endpoint, &create(address, QUEUE_BYTES, SHAPE)) {
            NetAnswer::Queue { qpn, .. } => qpn,
            other => panic!("{other:?}"),
        }
    }
}

fn open() -> NetCall {
    NetCall::Open(NetOptions {
        seed: 0,
        delay_ns_min: 0,
        delay_ns_max: 0,
        bytes_per_s: 0,
        loss_ppm: 0,
    })
}

fn create(address: u64, bytes: u64, options: NetQueueOptions) -> NetCall {
    NetCall::Create {
        address,
        bytes,
        options,
    }
}

fn register(address: u64, bytes: u64, access: u32) -> NetCall {
    NetCall::Register {
        address,
        bytes,
        access,
    }
}

#[test]
fn memory_of_others_and_numbers_that_are_none_are_refused() {
    let mut client = Client::tcp();
    let base = client.pin();
    client.refused(0, &NetCall::Status { qpn: 1 }, "no endpoint 0");
    for endpoint in [NET_ENDPOINTS_MAX, u32::MAX] {
        client.refused(endpoint, &open(), "beyond the 8 of a session");
    }
    for endpoint in 0..NET_ENDPOINTS_MAX {
        assert_eq!(client.net(endpoint, &open()), NetAnswer::Done);
    }
    client.refused(0, &open(), "there already");

    let here = Box::new([0_u64; 512]);
    let end = base + PINNED_BYTES as u64;
    for (address, bytes) in [
        (here.as_ptr() as u64, 4096),
        (0, 1),
        (base - 1, 2),
        (end - 1, 2),
        (base, u64::MAX),
        (u64::MAX, 1),
    ] {
        client.refused(0, &register(address, bytes, 15), "not pinned here");
        client.refused(0, &create(address, bytes, SHAPE), "not pinned here");
    }
    client.refused(0, &register(base, 8, 16), "no access 0x10");
    client.refused(0, &create(base, 4096, SHAPE), "a queue takes");
    client.refused(0, &create(base + 64, QUEUE_BYTES, SHAPE), "a queue takes");
    for log_blocks in [0, 4, 16, u32::MAX] {
        let shape = NetQueueOptions {
            log_blocks,
            ..SHAPE
        };
        client.refused(
            0,
            &create(base, QUEUE_BYTES, shape),
            "has 2^5 to 2^15 entries",
        );
    }
    for flags in [64, 8, 16, u32::MAX] {
        let shape = NetQueueOptions { flags, ..SHAPE };
        client.refused(0, &create(base, QUEUE_BYTES, shape), "no flags");
    }
    let counters = NetQueueOptions {
        counters: u64::MAX - 63,
        ..SHAPE
    };
    client.refused(
        0,
        &create(base, QUEUE_BYTES, counters),
        "end of all addresses",
    );

    let qpn = client.queue(0, base);
    client.refused(1, &create(base, QUEUE_BYTES, SHAPE), "already lies there");
    client.refused(1, &NetCall::Status { qpn: qpn + 9 }, "no queue pair");
    client.refused(1, &NetCall::Reset { qpn: qpn + 9 }, "no queue pair");
    let counters = vec![0; 5];
    client.refused(0, &NetCall::ResetCounters { qpn, counters }, "counters");
    assert_eq!(client.net(0, &NetCall::Close), NetAnswer::Done);
    client.refused(0, &NetCall::Close, "no endpoint 0");
    // The memory is free again.
    client.queue(1, base);
    assert!(matches!(client.leave().0, End::ClientLeft));
}

#[test]
fn other_servers_are_asked_for_only_where_that_is_allowed() {
    let mut client = Client::tcp();
    let base = client.pin();
    assert_eq!(client.net(0, &open()), NetAnswer::Done);
    let qpn = client.queue(0, base);
    let peer = NetEnd { qpn: 1, epoch: 1 };
    let (secret, timeout_ms) = ([7; 32], u32::MAX);
    client.refused(0, &NetCall::Await { qpn }, "--peer-copies");
    let meet = NetCall::Meet {
        qpn,
        peer,
        timeout_ms,
    };
    client.refused(0, &meet, "awaits nobody");
    for (address, why) in [
        ("tcp://127.0.0.1:1", "--peer-copies"),
        ("shm:///tmp/socket", "no address of another server"),
        ("127.0.0.1:22", "no address of another server"),
        (&"a".repeat(5000), "no address of another server"),
    ] {
        let join = NetCall::Join {
            qpn,
            peer,
            address: address.into(),
            secret,
            timeout_ms,
        };
        client.refused(0, &join, why);
    }
    assert!(matches!(client.leave().0, End::ClientLeft));
}

/// Calls of random bytes, and calls with one byte changed, while adapters are held and let go.
#[test]
fn nonsense_is_an_answer_and_no_end() {
    let mut client = Client::tcp();
    let base = client.pin();
    let mut state = 5_u64;
    let mut random = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    let calls = [
        open(),
        NetCall::Close,
        register(base, 4096, 15),
        create(base, QUEUE_BYTES, SHAPE),
        NetCall::Connect { one: 1, other: 2 },
        NetCall::Status { qpn: 1 },
        NetCall::End { qpn: 1 },
        NetCall::Look,
    ];
    let mut answered = [0, 0];
    for round in 0..2000 {
        let mut bytes = doc::to_bytes(&calls[random(calls.len())]).unwrap();
        match round % 4 {
            0 => bytes = (0..random(40)).map(|_| random(256) as u8).collect(),
            1 => {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            2 => bytes.truncate(random(bytes.len() + 1)),
            _ => {}
        }
        if round % 7 == 0 {
            let held = random(3) as u8;
            client.send(0, &messages::NetHold { held });
        }
        let answer = client.net_raw(random(3) as u32, &bytes);
        answered[usize::from(matches!(answer, NetAnswer::Failed(_)))] += 1;
    }
    assert!(answered.iter().all(|count| *count > 100), "{answered:?}");
    // It ends while its adapters are held.
    client.send(0, &messages::NetHold { held: 1 });
    assert!(matches!(client.leave().0, End::ClientLeft));
}
