//! Tests of endpoints of `net.h`: what a client may ask of them, and that nothing it asks ends more
//! than its own call.

use outboard_wire::doc::{
    self, NET_ENDPOINTS_MAX, NET_PIECE_BYTES_MAX, NetAnswer, NetCall, NetEnd, NetKey, NetOptions,
    NetQueueOptions, NetReach,
};

use super::*;

const QUEUE_BYTES: u64 = 64 << 10;
const PINNED_BYTES: usize = 20 * QUEUE_BYTES as usize;
const SHAPE: NetQueueOptions = NetQueueOptions {
    log_blocks: 5,
    log_receives: 0,
    signal_every: 1,
    flags: 0,
    counters: 0,
};

const REACH: NetReach = NetReach {
    number: u32::MAX,
    psn: u32::MAX,
    gid: [0xff; 16],
    lid: u16::MAX,
    mtu: 0,
};

/// The answer where the choice is left to the server: `nic`.
const OPENED: NetAnswer = NetAnswer::Opened(2);

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
    open_as(0, 0)
}

fn open_as(provider: u32, loss_ppm: u32) -> NetCall {
    NetCall::Open(NetOptions {
        seed: 0,
        delay_ns_min: 0,
        delay_ns_max: 0,
        bytes_per_s: 0,
        loss_ppm,
        provider,
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
        assert_eq!(client.net(endpoint, &open()), OPENED);
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
    assert_eq!(client.net(0, &open()), OPENED);
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

/// Pieces of a relayed stream that are no frames end the stream, and nothing else.
#[test]
fn relayed_streams_are_few_and_end_with_rubbish() {
    let mut client = Client::tcp();
    let base = client.pin();
    assert_eq!(client.net(0, &open()), OPENED);
    let (qpn, peer) = (client.queue(0, base), NetEnd { qpn: 1, epoch: 1 });
    let rubbish = |stream| NetCall::Give {
        stream,
        bytes: vec![0xff; 4096],
    };
    client.refused(0, &NetCall::Take { stream: 0 }, "no stream 0");
    client.refused(0, &rubbish(0), "no stream 0");
    let relay = NetCall::Relay { qpn, peer };
    client.refused(1, &relay, "no endpoint 1");
    let NetAnswer::Relayed(stream) = client.net(0, &relay) else {
        panic!("no stream");
    };
    let (give, take) = (rubbish(stream), NetCall::Take { stream });
    client.refused(1, &take, "no stream");
    let bytes = vec![0; NET_PIECE_BYTES_MAX + 1];
    client.refused(0, &NetCall::Give { stream, bytes }, "too long");
    assert_eq!(client.net(0, &give), NetAnswer::Given(4096));
    let mut answer = NetAnswer::Done;
    while answer != NetAnswer::Ended {
        answer = client.net(0, &take);
        assert!(matches!(answer, NetAnswer::Ended | NetAnswer::Piece(_)));
    }
    assert_eq!(client.net(0, &give), NetAnswer::Ended);
    assert_eq!(client.net(0, &NetCall::HangUp { stream }), NetAnswer::Done);
    client.refused(0, &give, "no stream");
    let mut relay = |number: u64| {
        let qpn = client.queue(0, base + number * QUEUE_BYTES);
        client.net(0, &NetCall::Relay { qpn, peer })
    };
    for number in 1..=16 {
        assert!(matches!(relay(number), NetAnswer::Relayed(_)));
    }
    let NetAnswer::Failed(why) = relay(17) else {
        panic!("a 17th relayed queue");
    };
    assert!(why.contains("16 queues at most"), "{why}");
    client.refused(0, &NetCall::Relay { qpn: 9, peer }, "no queue pair");
    assert_eq!(client.net(0, &NetCall::Close), NetAnswer::Done);
    assert!(matches!(client.leave().0, End::ClientLeft));
}

/// Kernels that load and store themselves: only tables are here, of which no address is used.
#[test]
fn tables_of_kernels_take_any_numbers_and_no_calls_of_adapters() {
    let mut client = Client::tcp();
    let base = client.pin();
    for (provider, why) in [
        (1, "outboard serve --net-device"),
        (4, "outboard serve --net-device"),
        (5, "no provider"),
    ] {
        client.refused(0, &open_as(provider, 0), why);
    }
    client.refused(0, &open_as(3, 1), "only nic has a network");
    assert_eq!(client.net(0, &open_as(3, 0)), NetAnswer::Opened(3));
    let here = Box::new([0_u64; 8]);
    let of_server = here.as_ptr() as u64;
    client.refused(0, &create(of_server, QUEUE_BYTES, SHAPE), "not pinned here");
    client.refused(0, &register(8, u64::MAX, 15), "end of all addresses");
    for address in (0..56).map(|number| of_server + number) {
        assert!(matches!(
            client.net(0, &register(address, 8, 15)),
            NetAnswer::Key(_)
        ));
    }
    client.refused(0, &register(base, 8, 15), "56 registrations at most");
    let qpn = client.queue(0, base);
    let peer = NetEnd { qpn, epoch: 0 };
    client.refused(0, &NetCall::Relay { qpn, peer }, "nvlink has no such call");
    client.refused(0, &NetCall::Await { qpn }, "nvlink has no such call");
    client.refused(0, &NetCall::Reached { qpn }, "nvlink has no such call");
    let reach = NetCall::Reach { qpn, peer: REACH };
    client.refused(0, &reach, "nvlink has no such call");
    let offered = |key| NetKey {
        address: 64,
        bytes: 64,
        key,
        access: u32::MAX,
    };
    for key in [0, 0xff, u32::MAX] {
        let offered = Some(offered(key));
        let connect = NetCall::ConnectDirect { qpn, offered };
        assert_eq!(client.net(0, &connect), NetAnswer::Done);
        client.refused(0, &connect, "is connected");
        assert_eq!(client.net(0, &NetCall::LosePeer { qpn }), NetAnswer::Done);
        assert_eq!(client.net(0, &NetCall::Reset { qpn }), NetAnswer::Done);
    }
    let beyond = NetKey {
        bytes: u64::MAX,
        ..offered(1)
    };
    let offered = Some(beyond);
    client.refused(
        0,
        &NetCall::ConnectDirect { qpn, offered },
        "end of all addresses",
    );
    assert_eq!(*here, [0; 8]);
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
        NetCall::Take { stream: 1 },
        NetCall::HangUp { stream: 1 },
        NetCall::LosePeer { qpn: 1 },
        NetCall::ConnectDirect {
            qpn: 1,
            offered: None,
        },
        NetCall::Look,
        NetCall::Reached { qpn: 1 },
        NetCall::Reach {
            qpn: 1,
            peer: REACH,
        },
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
