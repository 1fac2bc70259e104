//! A server's view of itself at one moment: its sessions, its GPUs, and what it has counted.
//!
//! ```text
//!   client (outboard top)                      worker                    supervisor
//!     ├── hello, Purpose::Status ───────────────►│                          │
//!     │◄──────────────────────────── welcome ────┤                          │
//!     ├── question: 16 bytes ───────────────────►├── asks ─────────────────►│   as often
//!     │◄── length in 4 bytes, StatusAnswer ──────┤◄── a sealed file ────────┤   as it likes
//! ```

use serde::{Deserialize, Serialize};

/// Length of a question: its kind, then the number of a session, both little-endian.
pub const STATUS_QUESTION_BYTES: usize = 16;
/// Longest answer that a client accepts.
pub const STATUS_BYTES_MAX: usize = 16 << 20;
/// Upper bounds of the buckets that waits are counted in, in microseconds. A further bucket holds
/// longer waits.
pub const WAIT_BOUNDS_US: [u64; 14] = [
    20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000,
    10_000_000,
];
/// Tenants that are counted by their names.
pub const TENANTS_MAX: usize = 64;
/// Number of the buckets.
pub const WAIT_BUCKETS: usize = WAIT_BOUNDS_US.len() + 1;

/// A question about the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatusQuestion {
    /// The status of the server now.
    Now,
    /// End this session: only for the server's own user or root, over a local socket.
    End(u64),
}

/// The answer to a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StatusAnswer {
    Now(Box<ServerStatus>),
    Ended,
    Refused(String),
}

/// A server at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub release: String,
    pub pid: u32,
    pub uptime_ms: u64,
    /// Kind of device: nvidia or soft.
    pub device: String,
    pub sessions_max: u64,
    /// Workers that are ready for the next clients.
    pub spares_ready: u64,
    /// Settings that make the server slower, in words.
    pub slow_by: Vec<String>,
    pub gpus: Vec<GpuStatus>,
    pub sessions: Vec<SessionStatus>,
    pub tenants: Vec<TenantStatus>,
    pub totals: Totals,
}

/// One of the server's GPUs. Empty until the first worker has opened the devices.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatus {
    pub name: String,
    pub memory_bytes: u64,
    /// Memory that sessions have allocated.
    pub used_bytes: u64,
    /// Sessions that have memory there.
    pub sessions: u64,
}

/// One who has sessions, or was refused, since the server started.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its kind and name, as uid:1001, token:alice, key:sha256:..., address:10.0.0.7; `other`
    /// stands for those beyond [`TENANTS_MAX`].
    pub name: String,
    pub sessions: u64,
    /// Device memory of all its sessions, by device.
    pub memory_bytes: Vec<u64>,
    /// Memory of the server's machine.
    pub host_memory_bytes: u64,
    /// Connections that were refused because its share is used up.
    pub refusals: u64,
    /// Requests for memory that were refused.
    pub memory_refusals: u64,
}

/// One session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    pub session: u64,
    pub worker_pid: u32,
    /// The program's process, as the client names it.
    pub pid: u32,
    /// The program's name, as the client names it.
    pub program: String,
    /// Address of the client's host; empty over shm.
    pub address: String,
    /// User of the client's process, over shm.
    pub uid: Option<u32>,
    /// Name of the token that the client has proved to have.
    pub token: Option<String>,
    /// Name of the tenant whose share it uses.
    pub tenant: String,
    /// Kind of link: shm, tcp or rdma.
    pub link: String,
    pub age_ms: u64,
    pub usage: Usage,
    /// Rates between the last two reports of the worker, some 1 s apart.
    pub messages_per_s: u64,
    pub received_bytes_per_s: u64,
    pub sent_bytes_per_s: u64,
    /// Mean of the waits between the last two reports, in microseconds; 0 without one.
    pub wait_us: u64,
}

/// Messages, bytes, time and memory that a session has used so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub messages: u64,
    pub failures: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Time spent in the device's methods.
    pub executing_ns: u64,
    /// Replies that waited for the GPU.
    pub waits: u64,
    pub waiting_ns: u64,
    /// Waits by [`WAIT_BOUNDS_US`], [`WAIT_BUCKETS`] numbers.
    pub wait_counts: Vec<u64>,
    /// Device memory allocated now, by device.
    pub memory_bytes: Vec<u64>,
    /// Memory of the server's machine that its worker uses for it.
    pub host_memory_bytes: u64,
    /// Requests for memory that were refused.
    pub memory_refusals: u64,
    /// Work of the session's thread when it was looked at.
    pub doing: Doing,
}

/// The work of a session's thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doing {
    /// Executes a message.
    #[default]
    Busy,
    /// Waits for the client's next message, and owes no reply.
    AwaitsClient,
    /// Waits for the data of a message, which comes on a data connection.
    AwaitsData,
    /// Waits for the GPU, to reply to the message of this name.
    AwaitsGpu(String),
}

/// Sums over all sessions since the server started, those that have ended included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    pub sessions: u64,
    pub messages: u64,
    pub failures: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub executing_ns: u64,
    pub waits: u64,
    pub waiting_ns: u64,
    pub wait_counts: Vec<u64>,
    /// Ended sessions, by the number of the [`SessionEnd`].
    pub ends: Vec<u64>,
    /// Refused connections, by the number of the [`Refusal`].
    pub refusals: Vec<u64>,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEnd {
    /// The client left.
    Left,
    /// The client broke the protocol.
    Malformed,
    /// The connection broke.
    Link,
    /// The worker failed or was killed.
    Worker,
    /// A user ended it through the server.
    Asked,
    /// The server stopped.
    Stopped,
    /// Its lease of the GPUs is over.
    Lease,
}

/// Why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// All places for sessions are in use.
    Sessions,
    /// All places for queries are in use.
    Queries,
    /// A further connection whose session is not here, or wants none.
    Key,
    /// Bytes that are not of Outboard's protocol.
    Stranger,
    /// Another version or release.
    Version,
    /// Another link than the address is for.
    Link,
    /// A local user whom the server does not let in (`--allow-uid`).
    User,
    /// No proof of a token that the server knows.
    Token,
    /// No complete hello in time.
    Silent,
    /// The device could not be opened.
    Device,
    /// No grant that gives GPUs of this server now.
    Grant,
    /// Another reason, which the log has.
    Other,
    /// The tenant's share is used up (`--share`).
    Share,
    /// A key or certificate that the server does not serve (`--authorized`, `--tls-ca`).
    TlsKey,
    /// No proper TLS handshake.
    Tls,
}

impl SessionEnd {
    pub const ALL: [SessionEnd; 7] = [
        SessionEnd::Left,
        SessionEnd::Malformed,
        SessionEnd::Link,
        SessionEnd::Worker,
        SessionEnd::Asked,
        SessionEnd::Stopped,
        SessionEnd::Lease,
    ];

    pub fn name(self) -> &'static str {
        match self {
            SessionEnd::Left => "left",
            SessionEnd::Malformed => "malformed",
            SessionEnd::Link => "link",
            SessionEnd::Worker => "worker",
            SessionEnd::Asked => "asked",
            SessionEnd::Stopped => "stopped",
            SessionEnd::Lease => "lease",
        }
    }
}

impl Refusal {
    pub const ALL: [Refusal; 15] = [
        Refusal::Sessions,
        Refusal::Queries,
        Refusal::Key,
        Refusal::Stranger,
        Refusal::Version,
        Refusal::Link,
        Refusal::User,
        Refusal::Token,
        Refusal::Silent,
        Refusal::Device,
        Refusal::Grant,
        Refusal::Other,
        Refusal::Share,
        Refusal::TlsKey,
        Refusal::Tls,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Refusal::Sessions => "sessions",
            Refusal::Queries => "queries",
            Refusal::Key => "key",
            Refusal::Stranger => "stranger",
            Refusal::Version => "version",
            Refusal::Link => "link",
            Refusal::User => "user",
            Refusal::Token => "token",
            Refusal::Silent => "silent",
            Refusal::Device => "device",
            Refusal::Grant => "grant",
            Refusal::Other => "other",
            Refusal::Share => "share",
            Refusal::TlsKey => "tls_key",
            Refusal::Tls => "tls",
        }
    }
}

impl StatusQuestion {
    pub fn to_bytes(self) -> [u8; STATUS_QUESTION_BYTES] {
        let (kind, session) = match self {
            StatusQuestion::Now => (0, 0),
            StatusQuestion::End(session) => (1, session),
        };
        let mut bytes = [0; STATUS_QUESTION_BYTES];
        bytes[..8].copy_from_slice(&u64::to_le_bytes(kind));
        bytes[8..].copy_from_slice(&u64::to_le_bytes(session));
        bytes
    }

    /// Returns `None` for bytes that are no question.
    pub fn from_bytes(bytes: &[u8; STATUS_QUESTION_BYTES]) -> Option<StatusQuestion> {
        let (numbers, _) = bytes.as_chunks::<8>();
        let [kind, session] = numbers else {
            return None;
        };
        match (u64::from_le_bytes(*kind), u64::from_le_bytes(*session)) {
            (0, 0) => Some(StatusQuestion::Now),
            (1, session) => Some(StatusQuestion::End(session)),
            _ => None,
        }
    }
}

/// Returns the bucket of a wait.
pub fn wait_bucket(wait_ns: u64) -> usize {
    WAIT_BOUNDS_US.partition_point(|bound_us| bound_us * 1_000 < wait_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_were_written() {
        for question in [StatusQuestion::Now, StatusQuestion::End(7)] {
            let bytes = question.to_bytes();
            assert_eq!(StatusQuestion::from_bytes(&bytes), Some(question));
        }
        for at in [1, 7, 8] {
            let mut bytes = StatusQuestion::Now.to_bytes();
            bytes[at] = 1;
            assert_eq!(StatusQuestion::from_bytes(&bytes), None, "{at}");
        }
    }

    #[test]
    fn numbers_of_reasons_are_their_places() {
        for (at, end) in SessionEnd::ALL.into_iter().enumerate() {
            assert_eq!(end as usize, at);
        }
        for (at, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal as usize, at);
        }
    }

    #[test]
    fn a_wait_is_counted_where_prometheus_expects_it() {
        assert_eq!(wait_bucket(0), 0);
        assert_eq!(wait_bucket(20_000), 0, "a bound belongs to its bucket");
        assert_eq!(wait_bucket(20_001), 1);
        assert_eq!(wait_bucket(u64::MAX), WAIT_BUCKETS - 1);
    }
}
