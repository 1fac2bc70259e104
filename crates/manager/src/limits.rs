//! Limits of the manager's HTTP, units last.

/// Connections at a time; further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Bytes of a request's head, and its headers.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
pub const HEADERS_MAX: usize = 32;
/// Bytes of a request's body, and of an answer's.
pub const BODY_BYTES_MAX: usize = 256 << 10;
pub const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Time for a whole request to come, for a further one to begin, and for an answer to be taken.
pub const REQUEST_MS_MAX: u64 = 30_000;
/// Time that a claim waits before its client is told its position.
pub const CLAIM_WAIT_MS: u64 = 5_000;
/// Pause between two attempts to read a store that failed.
pub const STORE_RETRY_MS: u64 = 200;
/// Time for a connection to a manager, and for an answer beyond the time that the request waits.
pub const CONNECT_MS_MAX: u64 = 3_000;
pub const ANSWER_MS_MAX: u64 = 10_000;
