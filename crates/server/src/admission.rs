//! Documents between the supervisor and its workers: one a packet, with the descriptors that belong
//! to it ([`Control`](super::control::Control)).
//!
//! [`Admission`] is everything that a worker knows of the client it serves. A worker that read the
//! client's hello and a spare get the same document.

use std::time::Duration;

use outboard_link::{LinkKind, RdmaOptions, Stream};
use outboard_pool::{Grant, record::GpuFacts};
use outboard_trust::{CertificateText, TlsState};
use outboard_wire::{
    doc::{GpuStatus, Refusal, SessionEnd, StatusQuestion, Usage},
    handshake::{ClientHello, SessionKey},
};
use serde::{Deserialize, Serialize};

use super::{
    devices::{DeviceKind, DeviceOptions},
    sandbox::Sandbox,
    shares::Place,
};

/// A client with a place: who it is, its link, its devices and their limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Admission {
    pub(super) session: u64,
    pub(super) transport: Transport,
    pub(super) client: ClientHello,
    /// Name of the token that the client has proved to have.
    pub(super) token: Option<String>,
    /// Where the encrypted connection is, if it is one.
    pub(super) tls: Option<TlsState>,
    pub(super) device: DeviceOptions,
    /// Folder that keeps module images between sessions.
    pub(super) cache: Option<Cache>,
    /// The tenant that the session is counted to, whose images it finds there.
    pub(super) tenant: String,
    /// Workers whose contexts will still take device memory that is free now.
    pub(super) spares_to_come: u8,
    /// This machine's memory that the worker may use for the client, device memory apart.
    pub(super) host_memory_bytes: u64,
    /// Its place in the shares of memory. The ledger then comes along.
    pub(super) place: Option<Place>,
    /// Secret by which further connections of this session are known.
    pub(super) key: SessionKey,
    /// End of the client's lease by the machine's monotonic clock, if the server is part of a pool.
    pub(super) until_ms: Option<u64>,
    /// How long the client may say nothing, if it only asks.
    pub(super) query_idle_ms: u64,
    /// True if other servers may send data of its copies to this one, and receive it.
    pub(super) has_peers: bool,
    /// Options for the RDMA device that its endpoints may use, if there is one.
    pub(super) net_device: Option<String>,
}

/// A folder that keeps module images between sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cache {
    /// The bytes of its path.
    pub(super) path: Vec<u8>,
    /// Bytes that the tenant may keep there, and all tenants together.
    pub(super) tenant_bytes: Option<u64>,
    pub(super) all_bytes: Option<u64>,
}

/// The kind of link that a client's socket becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Transport {
    Shm,
    Tcp,
    /// With the options for the adapter, as text.
    Rdma(String),
}

/// The conditions under which a new client is heard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    pub(super) transport: Transport,
    /// Reason to refuse the client whatever it says.
    pub(super) refusal: Option<String>,
    /// File of the tokens, one of which the client must have: the bytes of its path.
    pub(super) tokens: Option<Vec<u8>>,
    /// The server's key and certificate, and who is served, if the connection is to be encrypted.
    pub(super) tls: Option<TlsTerms>,
    /// If the server is part of a pool: the public key of its manager, empty if it is not known
    /// yet.
    pub(super) pool: Option<String>,
    /// Time for the client's hello.
    pub(super) greet_ms: u64,
}

/// Terms of an encrypted connection. Paths are their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TlsTerms {
    /// File of the server's key.
    pub(super) key: Option<Vec<u8>>,
    pub(super) certificate: Option<CertificateText>,
    /// File of the authorities of clients' certificates.
    pub(super) client_ca: Option<Vec<u8>>,
    /// File of the keys and certificates that are served; None serves all.
    pub(super) authorized: Option<Vec<u8>>,
}

/// A message from the supervisor to a worker.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Enter this sandbox. Comes first, and the next order at once.
    Confine(Sandbox),
    /// Read the hello of a new client. Brings its socket.
    Greet { session: u64, terms: Terms },
    /// Open the device, and wait for a client whose hello another worker has read.
    Prepare(DeviceOptions),
    /// Serve the client that was greeted. May bring the ledger of shares, and the document of the
    /// devices' facts.
    Serve(Box<Admission>),
    /// Serve a client that another worker has greeted. Brings its socket, and may bring the ledger
    /// of shares.
    TakeOver(Box<Admission>),
    /// Tell the client why it is not served.
    Refuse(String),
    /// End: another worker has the client.
    Leave,
    /// A data connection of the session that is served. Brings its socket.
    DataConnection { tls: Option<TlsState> },
    /// A connection for heartbeats of the session that is served. Brings its socket.
    Heartbeat { tls: Option<TlsState> },
    /// The answer to a question about the server. Brings its document, a `StatusAnswer`.
    Answer,
    /// Answer requests for metrics. Brings the listening socket.
    Export,
    /// Open the device, report its GPUs, and end.
    Inventory(DeviceOptions),
    /// The client's lease ends later, by the machine's monotonic clock.
    Lease { until_ms: u64 },
    /// Say that orders reach this worker, and end.
    Try,
    /// A connection of another server, which has shown this key. Brings its socket.
    Peer {
        key: SessionKey,
        tls: Option<TlsState>,
    },
    /// The answer to `Report::Dial` of this number. Brings the socket, or says why there is none.
    Dialled {
        number: u32,
        refused: Option<String>,
    },
}

/// A message from a worker to the supervisor.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Report {
    /// A spare has opened its device. May bring the document of the devices' facts.
    Ready,
    /// A client has sent a proper hello, and proved to have the token of this name if one is asked
    /// for. Brings its socket.
    Heard {
        hello: Box<ClientHello>,
        token: Option<String>,
        /// Tenant's name of the key that the client has, if the server asks for one.
        key: Option<String>,
        /// Signed by the manager of the server's pool, for this server or another.
        grant: Option<Box<Grant>>,
        /// Where the encrypted connection is.
        tls: Option<TlsState>,
    },
    /// A spare has the client, and a device that works.
    Taken,
    /// The GPUs that a worker has found.
    Gpus(Vec<GpuStatus>),
    /// Messages, bytes and memory that the worker's session has used so far.
    Usage(Box<Usage>),
    /// The session is over.
    Ended(SessionEnd),
    /// The client is not served.
    TurnedAway(Refusal),
    /// A client asks about the server.
    Asks(StatusQuestion),
    /// GPUs of the device, in the order of their numbers.
    Inventory(Vec<GpuFacts>),
    /// Address window of the session's device memory.
    Window { base: u64, bytes: u64 },
    /// The worker was started, is confined, and has its first order.
    Works,
    /// Another server is to show this key, once.
    Offer(SessionKey),
    /// Connect to another server, at this address.
    Dial { number: u32, address: String },
}

impl Admission {
    /// Returns the memory that the worker can take for the client, where a group of processes may
    /// be bounded by it. Over shm it may not: the kernel charges memory that the program shares to
    /// whoever touches it first. A GPU's driver takes memory of its own.
    pub(super) fn group_bytes(&self) -> Option<u64> {
        let device = &self.device;
        let is_bounded = self.transport != Transport::Shm && device.kind == DeviceKind::Soft;
        let device_bytes = device.memory_bytes?.checked_mul(device.devices as u64)?;
        is_bounded.then(|| self.host_memory_bytes.saturating_add(device_bytes))
    }

    /// How long the client may say nothing, if it only asks.
    pub(super) fn idle_max(&self) -> Duration {
        Duration::from_millis(self.query_idle_ms)
    }
}

impl Transport {
    /// Returns the link's name.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Rdma(_) => "rdma",
        }
    }

    pub(super) fn of(stream: &Stream) -> Transport {
        match (stream.rdma(), stream.kind()) {
            (Some(options), _) => Transport::Rdma(options.to_string()),
            (None, LinkKind::Shm) => Transport::Shm,
            (None, _) => Transport::Tcp,
        }
    }

    /// Makes `stream`, taken over from another process, one of this transport.
    pub(super) fn dress(&self, stream: Stream) -> Result<Stream, outboard_link::Error> {
        match self {
            Transport::Shm | Transport::Tcp => Ok(stream),
            Transport::Rdma(options) => {
                let options: RdmaOptions = options
                    .parse()
                    .map_err(|_| outboard_link::Error::Misuse("RDMA options that are none"))?;
                stream.with_rdma(options)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use outboard_soft::{Checks, Watch};
    use outboard_wire::{
        doc::{Doing, from_bytes, to_bytes},
        handshake::{Clock, Emulation, Purpose, TokenHello},
        limits::{NONCE_BYTES, SESSION_KEY_BYTES, TOKEN_ID_BYTES},
        network::Network,
    };

    use outboard_pool::near::{Level, Near, NearGpu, Nic, NvlinkEnd, NvlinkKind};

    use super::*;

    const GOLDEN: &str = include_str!("golden.txt");

    fn device() -> DeviceOptions {
        DeviceOptions {
            kind: DeviceKind::Soft,
            memory_bytes: Some(0x0102_0304_0506),
            threads: Some(7),
            devices: 2,
            chosen: Some(vec![1]),
            gpu_percent: Some(25),
            board: outboard_soft::BOARD,
            capability: "9.0".parse().unwrap(),
            watch: Watch {
                checks: Checks {
                    race: true,
                    barrier: true,
                    ..Checks::default()
                },
                fail: true,
                seed: Some(9),
            },
        }
    }

    fn client(purpose: Purpose) -> ClientHello {
        ClientHello {
            release: "1.2.3".into(),
            purpose,
            pid: 0x0a0b,
            program: "python3".into(),
            emulation: Some(Emulation {
                network: Network::try_from(String::from("rtt=10us")).unwrap(),
                clock: Clock {
                    boot_id: "boot".into(),
                    now_ns: 0x0c0d_0e0f,
                },
            }),
            is_rdma: true,
            token: Some(TokenHello {
                id: [0x77; TOKEN_ID_BYTES],
                nonce: [0x88; NONCE_BYTES],
            }),
            grant: Some(vec![0x99; 3]),
            window: 0,
        }
    }

    fn admission(transport: Transport) -> Box<Admission> {
        Box::new(Admission {
            session: 0x1112_1314,
            transport,
            client: client(Purpose::Session),
            token: Some("bob".into()),
            tls: None,
            device: device(),
            cache: Some(Cache {
                path: b"/cache".to_vec(),
                tenant_bytes: Some(0x4546),
                all_bytes: None,
            }),
            tenant: "token:bob".into(),
            spares_to_come: 3,
            host_memory_bytes: 0x2122_2324_2526,
            place: None,
            key: SessionKey::new([0x55; SESSION_KEY_BYTES]),
            until_ms: Some(0x3132_3334),
            query_idle_ms: 0x3334_3536,
            has_peers: true,
            net_device: Some("device=mlx5_0".into()),
        })
    }

    fn grant() -> Grant {
        Grant {
            pool: "ab".into(),
            incarnation: 1,
            lease: 2,
            of: "box".into(),
            owner: "o".into(),
            gpus: vec![(outboard_pool::Uuid([7; 16]), 3)],
            deadline_ms: 4,
        }
    }

    fn facts() -> GpuFacts {
        GpuFacts {
            uuid: outboard_pool::Uuid([8; 16]),
            model: "m".into(),
            memory_bytes: 5,
            capability: (9, 0),
            pci: (0, 1, 2),
            nvlink: Some("0".into()),
            bridge: None,
            proxy: 6,
            near: Near {
                numa: Some(1),
                nvlinks: vec![NvlinkEnd {
                    pci: (0, 2, 3),
                    kind: NvlinkKind::Switch,
                    links: 4,
                }],
                gpus: vec![NearGpu {
                    slot: 5,
                    level: Level::Node,
                }],
                nics: vec![Nic {
                    name: "e".into(),
                    rdma: None,
                    pci: (0, 6, 7),
                    level: Level::Single,
                }],
            },
        }
    }

    fn bytes<T>(out: &mut String, name: &str, document: &T)
    where
        T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
    {
        let bytes = to_bytes(document).unwrap();
        assert_eq!(from_bytes::<T>(&bytes).unwrap(), *document);
        write!(out, "{name} ").unwrap();
        bytes.iter().for_each(|b| write!(out, "{b:02x}").unwrap());
        out.push('\n');
    }

    fn documents_without_content(out: &mut String) {
        bytes(out, "Answer", &Order::Answer);
        bytes(out, "Export", &Order::Export);
        bytes(out, "Try", &Order::Try);
        bytes(out, "Works", &Report::Works);
    }

    fn documents_of_other_servers(out: &mut String) {
        let key = SessionKey::new([0x57; SESSION_KEY_BYTES]);
        bytes(out, "Peer", &Order::Peer { key, tls: None });
        let dialled = Order::Dialled {
            number: 0x6364,
            refused: Some("no".into()),
        };
        bytes(out, "Dialled", &dialled);
        bytes(out, "Offer", &Report::Offer(key));
        let dial = Report::Dial {
            number: 0x6566,
            address: "tcp://b:1".into(),
        };
        bytes(out, "Dial", &dial);
    }

    fn tls_terms() -> TlsTerms {
        TlsTerms {
            key: Some(b"/key".to_vec()),
            certificate: None,
            client_ca: Some(b"/ca".to_vec()),
            authorized: Some(b"/authorized".to_vec()),
        }
    }

    fn documents_of_a_pool(out: &mut String) {
        bytes(out, "Inventory", &Report::Inventory(vec![facts()]));
        let window = Report::Window {
            base: 0x4142,
            bytes: 0x4344,
        };
        bytes(out, "Window", &window);
        let lease = Order::Lease { until_ms: 0x5152 };
        bytes(out, "Lease", &lease);
        bytes(out, "TakeInventory", &Order::Inventory(device()));
    }

    /// A meant change is written with `OUTBOARD_GOLDEN=write`.
    #[test]
    fn documents_have_their_golden_bytes() {
        let rdma = Transport::Rdma("device=mlx5_0&gid=3".into());
        let key = SessionKey::new([0x66; SESSION_KEY_BYTES]);
        let mut out = String::new();
        let greet = Order::Greet {
            session: 5,
            terms: Terms {
                transport: Transport::Tcp,
                refusal: None,
                tokens: Some(b"/tokens".to_vec()),
                tls: Some(tls_terms()),
                pool: Some("key".into()),
                greet_ms: 0x6162,
            },
        };
        bytes(&mut out, "Greet", &greet);
        bytes(&mut out, "Prepare", &Order::Prepare(device()));
        bytes(&mut out, "Serve", &Order::Serve(admission(Transport::Shm)));
        let take_over = Order::TakeOver(admission(rdma));
        bytes(&mut out, "TakeOver", &take_over);
        bytes(&mut out, "Refuse", &Order::Refuse("full".into()));
        bytes(&mut out, "Leave", &Order::Leave);
        let sandbox = Sandbox::new(DeviceKind::Soft, true, Some("/cache".as_ref()));
        let sandbox = sandbox.with_secrets(&["/tokens".into()]);
        bytes(&mut out, "Confine", &Order::Confine(sandbox));
        bytes(
            &mut out,
            "DataConnection",
            &Order::DataConnection { tls: None },
        );
        bytes(&mut out, "Heartbeat", &Order::Heartbeat { tls: None });
        bytes(&mut out, "Ready", &Report::Ready);
        let heard = Report::Heard {
            hello: Box::new(client(Purpose::DataConnection { key })),
            token: Some("alice".into()),
            key: None,
            grant: Some(Box::new(grant())),
            tls: None,
        };
        bytes(&mut out, "Heard", &heard);
        bytes(&mut out, "Taken", &Report::Taken);
        let gpus = vec![GpuStatus {
            name: "GPU".into(),
            memory_bytes: 1 << 30,
            used_bytes: 3,
            sessions: 1,
        }];
        bytes(&mut out, "Gpus", &Report::Gpus(gpus));
        let usage = Usage {
            messages: 1,
            wait_counts: vec![5, 6],
            memory_bytes: vec![7],
            doing: Doing::AwaitsGpu("FenceStream".into()),
            ..Usage::default()
        };
        bytes(&mut out, "Usage", &Report::Usage(Box::new(usage)));
        bytes(&mut out, "Ended", &Report::Ended(SessionEnd::Link));
        bytes(&mut out, "TurnedAway", &Report::TurnedAway(Refusal::Key));
        documents_of_a_pool(&mut out);
        documents_of_other_servers(&mut out);
        documents_without_content(&mut out);
        bytes(&mut out, "Asks", &Report::Asks(StatusQuestion::End(9)));
        if std::env::var_os("OUTBOARD_GOLDEN").is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/golden.txt");
            std::fs::write(path, &out).unwrap();
            return;
        }
        assert!(out == GOLDEN, "documents have changed:\n{out}");
    }

    #[test]
    fn a_document_that_is_cut_or_wrong_is_an_error() {
        let whole = to_bytes(&Order::TakeOver(admission(Transport::Tcp))).unwrap();
        for len in 0..whole.len() {
            assert!(from_bytes::<Order>(&whole[..len]).is_err(), "{len}");
        }
        let mut wrong = whole;
        wrong[0] = 0x7f;
        assert!(from_bytes::<Order>(&wrong).is_err());
    }
}
