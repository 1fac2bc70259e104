//! Calls of `include/outboard/net.h` whose endpoint is where the GPU is: the documents of
//! `net_call`. The library of the program makes them, and the server's session executes them;
//! `outboard_net::remote` has both sides.

use serde::{Deserialize, Serialize};

/// Endpoints of a session, whose numbers are below this.
pub const NET_ENDPOINTS_MAX: u32 = 8;
/// Longest answer, in bytes: a piece of a relayed stream, or the counters of a queue.
pub const NET_ANSWER_BYTES_MAX: usize = NET_PIECE_BYTES_MAX + 64;
/// Longest piece of a relayed stream.
pub const NET_PIECE_BYTES_MAX: usize = 64 << 10;
/// Bytes at the start of a queue's memory that threads write last as they post: counters, records
/// and doorbell.
pub const NET_CONTROL_BYTES: u64 = 8192;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetCall {
    /// Opens the endpoint of this number.
    Open(NetOptions),
    Close,
    Register {
        address: u64,
        bytes: u64,
        access: u32,
    },
    Create {
        address: u64,
        bytes: u64,
        options: NetQueueOptions,
    },
    Connect {
        one: u32,
        other: u32,
    },
    Reset {
        qpn: u32,
    },
    /// Puts a queue back of whose counters, in a GPU's memory, this is a copy.
    ResetCounters {
        qpn: u32,
        counters: Vec<u8>,
    },
    Status {
        qpn: u32,
    },
    /// Asks for the queue's own words for a peer.
    End {
        qpn: u32,
    },
    /// Asks for a secret by which the server of a queue's peer is known. `Meet` has to follow.
    Await {
        qpn: u32,
    },
    /// Connects a queue to the peer whose server comes with the secret of `Await`, within a time.
    Meet {
        qpn: u32,
        peer: NetEnd,
        timeout_ms: u32,
    },
    /// Connects a queue to a peer at another server, which awaits this one at an address.
    Join {
        qpn: u32,
        peer: NetEnd,
        address: String,
        secret: [u8; 32],
        timeout_ms: u32,
    },
    /// Connects a queue to a peer of the other program's own adapter, whose stream this program
    /// relays.
    Relay {
        qpn: u32,
        peer: NetEnd,
    },
    /// Gives the adapter what has come by a relayed stream; waits for some time for room.
    Give {
        stream: u64,
        bytes: Vec<u8>,
    },
    /// Waits for some time for what the adapter sends by a relayed stream.
    Take {
        stream: u64,
    },
    /// Ends a relayed stream.
    HangUp {
        stream: u64,
    },
    /// Connects a queue of kernels that load and store themselves to one of another process, which
    /// offers mapped memory by this key.
    ConnectDirect {
        qpn: u32,
        offered: Option<NetKey>,
    },
    /// Ends the connection of such a queue, whose peer is gone.
    LosePeer {
        qpn: u32,
    },
    /// Wakes the adapters. What they and kernels have written comes before the answer.
    Look,
    /// Asks where a queue of an RDMA device's is reached.
    Reached {
        qpn: u32,
    },
    /// Connects such a queue to a peer that is reached there.
    Reach {
        qpn: u32,
        peer: NetReach,
    },
}

/// `struct outboard_net_options`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetOptions {
    pub seed: u64,
    pub delay_ns_min: u64,
    pub delay_ns_max: u64,
    pub bytes_per_s: u64,
    pub loss_ppm: u32,
    /// Of `enum outboard_net_provider`; 0 leaves the choice to the server.
    pub provider: u32,
}

/// `struct outboard_net_queue_options`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetQueueOptions {
    pub log_blocks: u32,
    pub log_receives: u32,
    pub signal_every: u32,
    pub flags: u32,
    pub counters: u64,
}

/// A queue as its peer names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetEnd {
    pub qpn: u32,
    pub epoch: u32,
}

/// A queue pair of an RDMA device, as its peer's device reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetReach {
    pub number: u32,
    /// Number of its first packet.
    pub psn: u32,
    pub gid: [u8; 16],
    pub lid: u16,
    pub mtu: u16,
}

/// Memory that kernels load from and store to themselves, as they know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetKey {
    pub address: u64,
    pub bytes: u64,
    pub key: u32,
    pub access: u32,
}

/// The answer to a call. An error is the text of `outboard_net_message`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetAnswer {
    Done,
    /// The provider that was opened.
    Opened(u32),
    Key(u32),
    Queue {
        qpn: u32,
        scratch_key: u32,
    },
    Counters(Vec<u8>),
    Status(NetStatus),
    End(NetEnd),
    Secret([u8; 32]),
    /// A relayed stream, by a number that no other of the session has had.
    Relayed(u64),
    /// Bytes of a relayed stream; none if none have come in time.
    Piece(Vec<u8>),
    /// As many bytes of a piece were given: fewer than it has if there was no room in time.
    Given(u32),
    /// A relayed stream is over.
    Ended,
    Failed(String),
    Reached(NetReach),
}

/// `struct outboard_net_status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetStatus {
    pub succeeded: u64,
    pub flushed: u64,
    pub retries: u64,
    /// Index and syndrome of the entry that failed first.
    pub failure: Option<(u16, u8)>,
}
