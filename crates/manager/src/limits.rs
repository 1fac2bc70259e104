//! Limits of the manager's HTTP, units last.

/// Connections at a time. A further one ends the oldest that asks for nothing, or waits.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Files that a manager has open beside its connections.
pub const FILES_BESIDE: u64 = 128;
/// Connections that wait for changes at a time; further ones are refused.
pub const WATCHERS_MAX: usize = 1_024;
/// Rows of a table of the page; further ones are counted.
pub const PAGE_ROWS_MAX: usize = 4_096;
/// Leases that are all told to the page with each change; of more only those that have changed.
pub const PAGE_LEASES_MAX: usize = 512;
/// Longest time that a watch waits for a change.
pub const WATCH_MS_MAX: u64 = 25_000;
/// Bytes of a request's head, and its headers.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
pub const HEADERS_MAX: usize = 32;
/// Bytes of a request's body, and of an answer's.
pub const BODY_BYTES_MAX: usize = 256 << 10;
pub const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Bytes of all answers that their clients have not taken; further requests are refused.
pub const OUTPUT_BYTES_MAX: usize = 256 << 20;
/// Time for a whole request to come, for a further one to begin, and for an answer to be taken.
pub const REQUEST_MS_MAX: u64 = 30_000;
/// Time in which the rest of a request that is refused is read, so that its client sees why.
pub const REST_MS_MAX: u64 = 500;
/// Time that a claim waits before its client is told its position.
pub const CLAIM_WAIT_MS: u64 = 5_000;
/// Pause between two attempts to read a store that failed.
pub const STORE_RETRY_MS: u64 = 200;
/// Time for a connection to a manager, and for an answer beyond the time that the request waits.
pub const CONNECT_MS_MAX: u64 = 3_000;
pub const ANSWER_MS_MAX: u64 = 10_000;
/// Managers of a pool, and members of its etcd cluster.
pub const MANAGERS_MAX: usize = 16;
/// Time for one of several managers to say whether it leads.
pub const LEADS_MS_MAX: u64 = 1_500;
/// Time for one request to etcd.
pub const ETCD_MS_MAX: u64 = 4_000;
/// Time after which the leader's key of a manager that has died is gone, in etcd's whole seconds.
pub const LEADER_S: u64 = 3;
/// Interval at which the leader keeps its key.
pub const LEADER_KEPT_MS: u64 = 800;
/// Writes of one transaction of etcd, whose default limit is 128 operations.
pub const ETCD_WRITES_MAX: usize = 120;
/// Bytes of all values of one request to etcd, whose default limit is 1.5 MiB.
pub const ETCD_BYTES_MAX: usize = 1 << 20;
/// Records of one answer of etcd.
pub const ETCD_PAGE: usize = 1_000;
/// Writes of one request that is usual, as a claim for two GPUs: further ones wait for the next
/// transaction if the store would do these in several steps.
pub const REQUEST_WRITES: usize = 6;
/// Bytes of noted writes beyond which further requests wait for the next transaction.
pub const BATCH_BYTES: usize = 256 << 10;
