//! A server for tests that answers `nvml_snapshot`, correctly or not, through outboard-link.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod library;

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use outboard_link::{Endpoint, LinkKind, Listener, Stream, Wait};
use outboard_wire::{
    Encode as _, Op, Reader, Writer,
    doc::{
        self, NvmlDevice, NvmlFabric, NvmlField, NvmlLink, NvmlMemory, NvmlPci, NvmlPeer,
        NvmlProcess, NvmlSnapshot,
    },
    frame::{HEADER_BYTES, ReplyHeader, RequestHeader},
    handshake::{self, PREAMBLE_BYTES, Preamble, Purpose, ServerWelcome},
    messages,
};

/// The server's reaction to a request.
#[derive(Clone)]
pub(crate) enum Answer {
    Snapshot(Box<NvmlSnapshot>),
    Refusal(u32, &'static str),
    Garbage,
    /// Notes, and replies to requests that were never made, without end.
    Strays,
    Silence,
    HangUp,
}

pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    answer: Mutex<Answer>,
    questions: AtomicU32,
    connections: AtomicU32,
    stop: AtomicBool,
}

impl Server {
    /// Starts a server at a new address.
    pub(crate) fn start(kind: LinkKind, answer: Answer) -> Server {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let endpoint = match kind {
            LinkKind::Tcp => "tcp://127.0.0.1:0".parse(),
            _ => {
                let name = format!(
                    "outboard-nvml-{}-{}.sock",
                    std::process::id(),
                    NUMBER.fetch_add(1, Ordering::Relaxed)
                );
                format!("shm://{}", std::env::temp_dir().join(name).display()).parse()
            }
        };
        Server::at(&endpoint.unwrap(), answer)
    }

    pub(crate) fn at(endpoint: &Endpoint, answer: Answer) -> Server {
        let listener = Listener::bind(endpoint).unwrap();
        let shared = Arc::new(Shared {
            answer: Mutex::new(answer),
            questions: AtomicU32::new(0),
            connections: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        });
        let endpoint = listener.endpoint().clone();
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || accept(&listener, &accepting));
        Server {
            endpoint,
            shared,
            thread: Some(thread),
        }
    }

    pub(crate) fn set(&self, answer: Answer) {
        *self.shared.answer.lock().unwrap() = answer;
    }

    pub(crate) fn questions(&self) -> u32 {
        self.shared.questions.load(Ordering::Relaxed)
    }

    pub(crate) fn connections(&self) -> u32 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Time within which a stopped server notices.
const POLL: Duration = Duration::from_millis(10);

fn accept(listener: &Listener, shared: &Arc<Shared>) {
    let mut clients = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept(Some(Instant::now() + POLL)) {
            shared.connections.fetch_add(1, Ordering::Relaxed);
            let shared = Arc::clone(shared);
            clients.push(std::thread::spawn(move || serve(stream, &shared)));
        }
    }
    for client in clients {
        client.join().unwrap();
    }
}

/// Serves one client until it leaves or the server stops.
fn serve(mut stream: Stream, shared: &Shared) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact_deadline(&mut preamble, deadline).unwrap();
    let mut document = vec![0; Preamble::decode(&preamble).unwrap().document_bytes];
    stream.read_exact_deadline(&mut document, deadline).unwrap();
    let hello = handshake::decode_hello(&document).unwrap();
    assert_eq!(hello.purpose, Purpose::Management);
    let welcome = ServerWelcome {
        release: outboard_wire::handshake::RELEASE.into(),
        session: 1,
        driver_version: 13000,
        ptx_only: false,
        window_base: 0,
        window_bytes: 0,
        exact_memory: false,
        confirms_memory: false,
        devices: Vec::new(),
        key: None,
    };
    let welcome = handshake::encode_welcome(&welcome).unwrap();
    stream.write_all_deadline(&welcome, deadline).unwrap();
    let (mut sender, mut receiver) = stream.into_link_server().unwrap().split();
    while !shared.stop.load(Ordering::Relaxed) {
        let token = match receiver.recv(Wait::Until(Instant::now() + POLL)) {
            Ok(Some(frame)) => {
                let header = RequestHeader::decode(&mut Reader::new(frame)).unwrap();
                assert_eq!(header.op, messages::NvmlSnapshot::NUMBER);
                header.token
            }
            Ok(None) => continue,
            Err(_) => return,
        };
        shared.questions.fetch_add(1, Ordering::Relaxed);
        let answer = shared.answer.lock().unwrap().clone();
        let frames = match answer {
            Answer::Snapshot(snapshot) => vec![snapshot_frame(token, &snapshot)],
            Answer::Refusal(status, reason) => {
                vec![frame(token, 0, status, &bytes_field(reason.as_bytes()))]
            }
            Answer::Garbage => vec![frame(
                token,
                0,
                0,
                &bytes_field(b"\xff\xff\xff\xff\xff\xff"),
            )],
            Answer::Strays => (0..2_000)
                .map(|n| frame(token + 1, (n % 2) as u16, 0, &[]))
                .collect(),
            Answer::Silence => continue,
            Answer::HangUp => return,
        };
        for frame in frames {
            if sender
                .send(&[&frame])
                .and_then(|()| sender.flush())
                .is_err()
            {
                return;
            }
        }
    }
}

fn snapshot_frame(token: u32, snapshot: &NvmlSnapshot) -> Vec<u8> {
    let document = doc::to_bytes(snapshot).unwrap();
    frame(token, 0, 0, &bytes_field(&document))
}

fn bytes_field(bytes: &[u8]) -> Vec<u8> {
    let reply = messages::NvmlSnapshotReply {
        document: bytes.into(),
    };
    let mut out = vec![0; reply.encoded_len()];
    reply.encode(&mut Writer::new(&mut out)).unwrap();
    out
}

fn frame(token: u32, note: u16, status: u32, rest: &[u8]) -> Vec<u8> {
    let mut out = vec![0; HEADER_BYTES];
    let header = ReplyHeader {
        note,
        placed: 0,
        token,
        status,
        replies_before: 0,
    };
    header.encode(&mut Writer::new(&mut out)).unwrap();
    out.extend(rest);
    out
}

/// Two devices: one with all facts, and one with the fewest that a driver may give.
pub(crate) fn two_devices() -> NvmlSnapshot {
    NvmlSnapshot {
        driver_version: "580.95.05".into(),
        nvml_version: "13.580.95.05".into(),
        cuda_version: 13000,
        devices: vec![talkative(), taciturn()],
        driver_branch: Some("r581_42".into()),
    }
}

fn talkative() -> NvmlDevice {
    NvmlDevice {
        name: "NVIDIA H200".into(),
        uuid: "GPU-00112233-4455-6677-8899-aabbccddeeff".into(),
        serial: Some("1650000000001".into()),
        board_part_number: Some("699-2G520-0200-000".into()),
        vbios_version: Some("96.00.BC.00.01".into()),
        brand: Some(14),
        architecture: Some(9),
        compute_capability: (9, 0),
        pci: talkative_pci(),
        cores: Some(16896),
        minor_number: Some(3),
        board_id: Some(0x5d00),
        multi_gpu_board: Some(0),
        module_id: Some(4),
        memory: NvmlMemory {
            total_bytes: 150_000_000_000,
            free_bytes: 149_000_000_000,
            used_bytes: 400_000_000,
            reserved_bytes: Some(600_000_000),
        },
        bar1_bytes: Some((1 << 38, (1 << 38) - 100, 100)),
        memory_bus_bits: Some(6144),
        ecc_mode: Some((1, 0)),
        ecc_uncorrected: (Some(2), Some(3)),
        ecc_corrected: (Some(4), None),
        mig_mode: Some((0, 1)),
        compute_mode: Some(0),
        persistence_mode: Some(1),
        display_mode: Some(0),
        display_active: Some(0),
        accounting_mode: Some(0),
        virtualization_mode: Some(0),
        gsp_firmware_version: Some("580.95.05".into()),
        processes_graphics: Vec::new(),
        processes_mps: Vec::new(),
        mig_devices_max: Some(7),
        inforom_status: Some(0),
        nvlinks_active: 18,
        fabric: Some(NvmlFabric {
            cluster_uuid: [9; 16],
            status: 0,
            clique: 5,
            state: 3,
            health_mask: 77,
            health_summary: Some(2),
        }),
        cpu_affinity: Some(vec![0xffff_ffff, 3, 0]),
        memory_affinity: Some(vec![2]),
        processes_compute: processes(),
        nvlinks: links(),
        peers: peers(),
        fields: fields(),
        ..measurements()
    }
}

fn talkative_pci() -> NvmlPci {
    NvmlPci {
        domain: 0,
        bus: 0x5d,
        device: 0,
        bus_id: "00000000:5D:00.0".into(),
        device_id: 0x2335_10de,
        subsystem_id: 0x18be_10de,
        class: Some((3, 2)),
        link_generation: Some(5),
        link_generation_max: Some(5),
        link_generation_device_max: Some(6),
        link_width: Some(8),
        link_width_max: Some(16),
        throughput_kilobytes_per_s: Some((111, 222)),
        replays: Some(7),
    }
}

/// The part of a description that changes while the device works.
fn measurements() -> NvmlDevice {
    NvmlDevice {
        utilization_gpu: Some(42),
        utilization_memory: Some(17),
        utilization_encoder: Some((1, 100_000)),
        utilization_decoder: Some((2, 200_000)),
        temperature_celsius: Some(33),
        temperature_thresholds_celsius: vec![Some(90), Some(87), None, Some(85)],
        fan_percent: Some(30),
        fans: Some(2),
        power_milliwatts: Some(123_456),
        power_limit_milliwatts: Some(700_000),
        power_limit_default_milliwatts: Some(700_001),
        power_limit_enforced_milliwatts: Some(700_002),
        power_limit_range_milliwatts: Some((200_000, 700_003)),
        energy_millijoules: Some(1 << 40),
        performance_state: Some(0),
        performance_states: vec![0, 2, 8],
        clock_event_reasons: Some(1),
        clocks_mhz: [Some(1980), Some(1981), Some(3201), Some(1650)],
        clocks_max_mhz: [Some(2000), Some(2001), Some(3202), None],
        clocks_application_mhz: [Some(1970), None, Some(3203), None],
        ..NvmlDevice::default()
    }
}

fn processes() -> Vec<NvmlProcess> {
    vec![
        NvmlProcess {
            pid: 4242,
            used_bytes: Some(1 << 30),
            name: Some("/usr/bin/python3".into()),
        },
        NvmlProcess {
            pid: 4243,
            used_bytes: None,
            name: None,
        },
    ]
}

fn links() -> Vec<NvmlLink> {
    vec![
        NvmlLink {
            state: (0, 1),
            version: (0, 6),
            capabilities: vec![(0, 1); 6],
            remote_type: (0, 2),
            remote: Some(NvmlPci {
                bus: 0x9a,
                bus_id: "00000000:9A:00.0".into(),
                ..NvmlPci::default()
            }),
        },
        NvmlLink {
            state: (0, 0),
            ..NvmlLink::default()
        },
    ]
}

fn peers() -> Vec<NvmlPeer> {
    vec![
        NvmlPeer {
            p2p_status: vec![(0, 0), (0, 0), (0, 0), (0, 0), (0, 5), (0, 0)],
            ancestor: (3, 0),
        },
        NvmlPeer {
            p2p_status: vec![(0, 0), (0, 1), (0, 5), (15, 0), (0, 5), (2, 0)],
            ancestor: (0, 30),
        },
    ]
}

fn fields() -> Vec<NvmlField> {
    vec![
        NvmlField {
            scope: 1,
            id: 165,
            value_type: 1,
            bits: 1,
        },
        NvmlField {
            scope: 0,
            id: 83,
            value_type: 3,
            bits: 1 << 40,
        },
        NvmlField {
            scope: 0,
            id: 186,
            value_type: 1,
            bits: 123_456,
        },
    ]
}

fn taciturn() -> NvmlDevice {
    NvmlDevice {
        name: "NVIDIA H200".into(),
        uuid: "GPU-ffeeddcc-bbaa-9988-7766-554433221100".into(),
        compute_capability: (9, 0),
        pci: NvmlPci {
            bus: 0x9a,
            bus_id: "00000000:9A:00.0".into(),
            ..NvmlPci::default()
        },
        memory: NvmlMemory {
            total_bytes: 1000,
            free_bytes: 600,
            used_bytes: 400,
            reserved_bytes: None,
        },
        ..NvmlDevice::default()
    }
}

/// Makes tests take turns: the library keeps one state per process.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the path of the library as programs load it.
pub(crate) fn built_library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.with_file_name("liboutboard_nvml.so");
    assert!(library.exists(), "{}", library.display());
    library
}
