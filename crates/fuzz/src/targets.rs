//! The decoders, one per line, with real input to start from.

use outboard_wire::{
    Encode as _, Message as _, Op, Reader, Writer, doc,
    frame::{self, ReplyHeader, RequestHeader, decode_reply},
    handshake::{
        self, ClientHello, Clock, Emulation, PREAMBLE_BYTES, Preamble, Purpose, ServerChallenge,
        SessionKey, TokenHello,
    },
    limits::{NONCE_BYTES, PROOF_BYTES, SESSION_KEY_BYTES, TOKEN_ID_BYTES},
    messages::{self, Note, Request},
    network::Network,
    runs::{GatheredRuns, Runs},
};

pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&[u8]),
    pub(crate) seeds: Vec<Vec<u8>>,
}

pub(crate) fn all() -> Vec<Target> {
    let urls = texts(&[
        "shm:///run/a.sock",
        "tcp://host:4833",
        "tcp://[::1]:1",
        "tcps://host:1?fingerprint=sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
        "rdma://host?device=mlx5_0&gid=3&pkey=0xffff",
    ]);
    let setups = vec![outboard_link::rdma::setup_seed()];
    let none = Vec::new;
    let target = |name, run, seeds| Target { name, run, seeds };
    vec![
        target("tokens", tokens, texts(&["a 0011223344556677 00 5 never"])),
        target("tls-records", tls_records, sealed()),
        target("request", request, requests()),
        target("reply", reply, replies()),
        target("handshake", handshake, hellos()),
        target("documents", documents, documents_of_each_kind()),
        target("activities", activities, recorded_work()),
        target("url", url, urls),
        target("deframer", outboard_link::fuzz_deframer, none()),
        target("ring", outboard_link::shm::fuzz_ring, none()),
        target("rdma-ring", outboard_link::rdma::fuzz_ring, none()),
        target("rdma-setup", outboard_link::rdma::fuzz_setup, setups),
        target("image", outboard_image::fuzz::image, images()),
        target("fatbin", outboard_image::fuzz::fatbin, images()),
        target("cubin", outboard_image::fuzz::cubin, images()),
        target("library", outboard_image::fuzz::objects, libraries()),
        target("ptx-header", outboard_image::fuzz::ptx, ptx()),
        target("ptx", outboard_ptx::fuzz::text, ptx()),
        target("ptx-lowered", lowered, changes()),
        target(
            "balanced",
            outboard_balance::engine::fuzz::frame,
            outboard_balance::engine::fuzz::seeds(),
        ),
        target(
            "balance-dump",
            outboard_balance::engine::fuzz::dump,
            outboard_balance::engine::fuzz::dumps(),
        ),
        target(
            "tlp",
            outboard_dxpu::fuzz::transaction,
            outboard_dxpu::fuzz::transactions(),
        ),
        target(
            "tlp-packets",
            outboard_dxpu::fuzz::packets,
            outboard_dxpu::fuzz::packet_seeds(),
        ),
        target("recording", outboard_trace::fuzz, recordings()),
    ]
}

/// A target that fails on input which only mutation finds.
pub(crate) fn canary() -> Target {
    fn run(data: &[u8]) {
        let trapped = data.windows(4).any(|w| w == u32::MAX.to_le_bytes());
        assert!(!trapped, "as it must");
    }
    Target {
        name: "canary",
        run,
        seeds: vec![vec![0; 64]],
    }
}

fn request(data: &[u8]) {
    let mut reader = Reader::new(data);
    if let Ok(header) = RequestHeader::decode(&mut reader) {
        // Few random numbers are valid messages, so every input is also tried as one.
        let number = header.op % messages::OPS.len() as u16;
        if Request::decode(number, &mut reader).is_ok() {
            let _ = reader.end();
        }
    }
}

fn reply(data: &[u8]) {
    if let Ok((header, mut reader)) = decode_reply(data) {
        if let Ok(Note::HostRuns(note)) = Note::decode(header.note % 8, &mut reader.clone()) {
            let runs = Runs::of(note.va, note.runs, note.data);
            let bytes = runs.map(|runs| runs.map(|(_, data)| data.len()).sum::<usize>());
            assert!(bytes.is_err() || bytes == Ok(note.data.len()));
        }
        let _ = reader.bytes("a reply");
    }
}

fn handshake(data: &[u8]) {
    let Some((preamble, document)) = data.split_first_chunk::<PREAMBLE_BYTES>() else {
        return;
    };
    if let Ok(preamble) = Preamble::decode(preamble) {
        let _ = preamble.check(document);
        let _ = handshake::decode_welcome(&preamble, document);
        let _ = handshake::decode_challenge(&preamble, document);
    }
    let _ = handshake::decode_hello(document);
}

/// The files of tokens, a server's and a program's.
fn tokens(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = outboard_trust::Store::parse(text);
        let _ = text.parse::<outboard_trust::Token>();
        let _ = outboard_trust::parse_lifetime(text);
        let _ = text.parse::<outboard_trust::Fingerprint>();
    }
}

/// Both halves of an encrypted connection, with secrets that are known here.
fn records() -> Option<(outboard_trust::Sealer, outboard_trust::Opener)> {
    let state = outboard_trust::TlsState::of_secrets([1; 32], [1; 32]);
    state.resume().ok()
}

/// Bytes that come over an encrypted connection; the first says in what pieces.
fn tls_records(data: &[u8]) {
    let (Some((_, mut opener)), Some((piece, mut data))) = (records(), data.split_first()) else {
        return;
    };
    let mut out = [0; 4096];
    loop {
        match opener.take(&mut out) {
            Err(_) => return,
            Ok(0) if data.is_empty() => return,
            Ok(0) => {
                let room = match piece & 1 {
                    0 => opener.room(),
                    _ => opener.room_exact(),
                };
                assert!(!room.is_empty(), "no room for the next record");
                let count = room.len().min(data.len()).min(1 + usize::from(*piece) * 64);
                room[..count].copy_from_slice(&data[..count]);
                opener.filled(count);
                data = &data[count..];
            }
            Ok(_) => {}
        }
    }
}

fn sealed() -> Vec<Vec<u8>> {
    [&b"hello"[..], &[7; 40_000]]
        .iter()
        .filter_map(|plain| {
            let mut bytes = vec![1];
            records()?.0.seal(plain, &mut bytes).ok()?;
            Some(bytes)
        })
        .collect()
}

fn documents(data: &[u8]) {
    let _ = doc::from_bytes::<doc::LibraryCard>(data);
    let _ = doc::from_bytes::<doc::JitOptions>(data);
    let _ = doc::from_bytes::<doc::CopyBox>(data);
    let _ = doc::from_bytes::<doc::DeviceCard>(data);
    let _ = doc::from_bytes::<doc::NvmlSnapshot>(data);
    let _ = doc::from_bytes::<doc::Activities>(data);
    let _ = doc::from_bytes::<doc::NetAnswer>(data);
}

/// The answers to a profiler's questions, and the records made of them.
fn activities(data: &[u8]) {
    let _ = messages::ActivityEnableReply::decode(&mut Reader::new(data));
    let _ = messages::ActivityClockReply::decode(&mut Reader::new(data));
    if let Ok(reply) = messages::ActivityTakeReply::decode(&mut Reader::new(data)) {
        outboard_cupti::fuzz(&reply.document);
    }
    outboard_cupti::fuzz(data);
}

fn url(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(endpoint) = text.parse::<outboard_link::Endpoint>()
    {
        let printed = endpoint.to_string();
        assert_eq!(printed.parse().as_ref(), Ok(&endpoint), "{printed}");
    }
}

fn requests() -> Vec<Vec<u8>> {
    fn framed<'a, M: Op<'a>>(message: &M) -> Vec<u8> {
        let mut room = vec![0; frame::request_len(message)];
        // A frame of the message's own length always fits.
        let _ = frame::encode_request(&mut Writer::new(&mut room), 7, 1, message);
        room
    }
    vec![
        framed(&messages::MemMap {
            va: 1 << 45,
            len: 2 << 20,
        }),
        framed(&messages::CopyIn {
            dst: 1 << 45,
            stream: 0,
            sync: 1,
            data: b"sixteen bytes..."[..].into(),
        }),
        framed(&messages::LibraryLoad {
            library: 1,
            hash: &[7; 32],
            len: 100_000,
            options: &[0; 4],
        }),
        framed(&messages::ActivityEnable {
            kinds: 7,
            kept_bytes_max: 1 << 20,
        }),
        framed(&messages::ActivityClock {}),
        framed(&messages::ActivityTake {
            flags: 1,
            activities_max: 10_000,
        }),
        framed(&messages::Launch {
            kernel: 1 << 32,
            stream: 0,
            grid_x: 1,
            grid_y: 1,
            grid_z: 1,
            block_x: 32,
            block_y: 1,
            block_z: 1,
            shared_bytes: 0,
            attributes: &[],
            params: &[1; 24][..],
        }),
    ]
}

/// Every header and document of the protocol, as a test of `wire` has written them down.
fn documents_of_each_kind() -> Vec<Vec<u8>> {
    include_str!("../../wire/src/golden.txt")
        .lines()
        .filter_map(|line| {
            let (digits, _) = line.split_once(' ')?.1.as_bytes().as_chunks::<2>();
            digits
                .iter()
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
                .collect()
        })
        .collect()
}

/// A note with runs of changed bytes, and documents.
fn replies() -> Vec<Vec<u8>> {
    let mut gathered = GatheredRuns::default();
    for at in [4096, 4104, 4112, 5000] {
        gathered.add(at, b"four");
    }
    let note = messages::HostRunsNote {
        va: gathered.va(),
        runs: gathered.places(),
        data: gathered.data(),
    };
    let header = ReplyHeader {
        note: messages::HostRunsNote::NUMBER,
        placed: 0,
        token: 0,
        status: 0,
        replies_before: 0,
    };
    let mut room = vec![0; frame::HEADER_BYTES + note.encoded_len()];
    let mut writer = Writer::new(&mut room);
    // A frame of the note's own length always fits.
    let _ = header
        .encode(&mut writer)
        .and_then(|()| note.encode(&mut writer));
    let mut all = documents_of_each_kind();
    all.push(room);
    all
}

/// Work of each kind; two copies that are pieces of one.
fn recorded_work() -> Vec<Vec<u8>> {
    let activity = |call, what| doc::Activity {
        call,
        device: 0,
        context: 1,
        stream: 7,
        start_ns: 1 << 40,
        end_ns: (1 << 40) + 5_000,
        graph: 0,
        graph_node: 0,
        what,
    };
    let copy = doc::ActivityWhat::Copy {
        bytes: u64::MAX - 5,
        kind: 1,
        source: 1,
        destination: 3,
        flags: 1,
    };
    let memset = doc::ActivityWhat::Memset {
        bytes: 64,
        value: 7,
        memory: 3,
        flags: 0,
    };
    let kernel = doc::ActivityWhat::Kernel {
        name: 0,
        grid: [1, 2, 3],
        block: [32, 1, 1],
        cluster: [0; 3],
        static_shared_bytes: 0,
        dynamic_shared_bytes: 0,
        shared_executed_bytes: 0,
        registers: 16,
        local_bytes_per_thread: 0,
        local_bytes_total: 0,
        launch_type: 0,
        grid_id: 9,
    };
    let whole = doc::Activities {
        names: vec!["fill".into()],
        done: vec![
            activity(1, kernel),
            activity(2, copy),
            activity(2, copy),
            activity(3, memset),
        ],
        dropped: 0,
        more: false,
    };
    // A document that is made here always becomes bytes.
    vec![doc::to_bytes(&whole).unwrap_or_default()]
}

fn hellos() -> Vec<Vec<u8>> {
    let hello = ClientHello {
        release: handshake::RELEASE.into(),
        purpose: Purpose::Session,
        pid: 1,
        program: "python3".into(),
        emulation: None,
        is_rdma: false,
        token: None,
        grant: None,
        window: 0,
    };
    let emulated = ClientHello {
        emulation: Some(Emulation {
            network: Network::default(),
            clock: Clock {
                boot_id: "00000000-0000-4000-8000-000000000000".into(),
                now_ns: 1,
            },
        }),
        ..hello.clone()
    };
    let data_connection = ClientHello {
        purpose: Purpose::DataConnection {
            key: SessionKey::new([7; SESSION_KEY_BYTES]),
        },
        ..hello.clone()
    };
    let with_token = ClientHello {
        token: Some(TokenHello {
            id: [1; TOKEN_ID_BYTES],
            nonce: [2; NONCE_BYTES],
        }),
        ..hello.clone()
    };
    let challenge = ServerChallenge {
        release: handshake::RELEASE.into(),
        nonce: [3; NONCE_BYTES],
        proof: [4; PROOF_BYTES],
    };
    [hello, emulated, data_connection, with_token]
        .iter()
        .flat_map(handshake::encode_hello)
        .chain([handshake::encode_refusal("full")])
        .chain(handshake::encode_challenge(&challenge))
        .collect()
}

fn images() -> Vec<Vec<u8>> {
    [
        &include_bytes!("../../image/tests/data/none.fatbin")[..],
        include_bytes!("../../image/tests/data/speed.fatbin"),
        include_bytes!("../../image/tests/data/size.fatbin"),
        include_bytes!("../../image/tests/data/sm_90.cubin"),
        include_bytes!("../../image/tests/data/sm_80.cubin"),
    ]
    .map(<[u8]>::to_vec)
    .into()
}

/// Returns a static library, and an object in it.
fn libraries() -> Vec<Vec<u8>> {
    let library = include_bytes!("../../image/tests/data/device_functions.a");
    let object = library.windows(4).position(|w| w == b"\x7fELF");
    vec![library.to_vec(), library[object.unwrap_or(0)..].to_vec()]
}

/// Returns a whole file, and the contents of a block.
fn recordings() -> Vec<Vec<u8>> {
    use outboard_trace::{Call, Class, Mark, Record, Trace};
    let mark = |at_ns, is_end| {
        Record::Mark(Mark {
            name: 0,
            thread: 1,
            at_ns,
            is_end,
        })
    };
    let call = |server| {
        Record::Call(Call {
            function: 0,
            class: Class::Synchronous,
            thread: 1,
            start_ns: 100,
            duration_ns: 30,
            request_bytes: 64,
            response_bytes: 200,
            stream: 1,
            event: 1,
            correlation: 0,
            status: 0,
            server,
        })
    };
    let trace = Trace {
        records: vec![mark(1, false), call(0), call(1), mark(300, true)],
        names: vec!["iteration".into()],
        complete: true,
        lost: 1,
        ..Trace::default()
    };
    vec![
        outboard_trace::to_bytes(&trace),
        outboard_trace::fuzz_seed(&trace),
    ]
}

/// Texts that between them lower to most kinds of instructions.
const LOWERED: [&str; 5] = [
    include_str!("../../ptx/tests/all/data/basics.ptx"),
    include_str!("../../ptx/tests/all/data/warp.ptx"),
    include_str!("../../ptx/tests/all/data/functions.ptx"),
    include_str!("../../ptx/tests/all/data/half.ptx"),
    include_str!("../../ptx/tests/all/data/mma.ptx"),
];

/// Changes a lowered program, and runs it if it passes verification.
fn lowered(data: &[u8]) {
    outboard_ptx::fuzz::lowered(&LOWERED, data);
}

/// Changes of single operands, for each text and its first kernels.
fn changes() -> Vec<Vec<u8>> {
    let texts = 0..LOWERED.len() as u8;
    texts
        .flat_map(|text| (0..8).map(move |kernel| [text, kernel, 0, 3, 0, 1, 28, 0, 0, 0].into()))
        .collect()
}

fn ptx() -> Vec<Vec<u8>> {
    texts(&[
        include_str!("../../ptx/tests/all/data/basics.ptx"),
        include_str!("../../image/tests/data/compute_80.ptx"),
    ])
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|t| t.as_bytes().to_vec()).collect()
}
