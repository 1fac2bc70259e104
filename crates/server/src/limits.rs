//! Limits of the supervisor, units last.

/// Connections without a proper hello so far. Each is a process; further clients wait to be
/// accepted.
pub const HANDSHAKES_MAX: usize = 64;
/// How long a peer may take for its hello by default, at least and at most.
pub const GREET_MS_DEFAULT: u64 = outboard_wire::limits::HANDSHAKE_MS_MAX;
pub const GREET_MS_MIN: u64 = 100;
pub const GREET_MS_MAX: u64 = 60_000;
/// Places among the handshakes, and among the queries, that peers over a network leave to those
/// over local sockets, and the reverse, if the server listens at both.
pub const PLACES_KEPT: usize = 8;
/// Programs served at a time by default.
pub const SESSIONS_DEFAULT_MAX: usize = 64;
/// How long a client that only greets may stay.
pub const GREETING_MS_MAX: u64 = 1_000;
/// Connections that only greet, or ask about the devices.
pub const QUERIES_MAX: usize = 64;
/// Connections to other servers that are being opened for programs' copies, and keys of other
/// servers that one session waits for.
pub const PEER_DIALS_MAX: usize = 8;
pub const PEER_OFFERS_MAX: usize = 16;
/// Tenants whose connections are counted at a time.
pub const TENANTS_TRACKED_MAX: usize = 4_096;
/// Keys of sessions that have ended, which a server tells from those of servers before it.
pub const ENDED_KEYS_MAX: usize = 1_024;
/// How long nothing is accepted after the system refused a process or a descriptor.
pub const PAUSE_MS: u64 = 100;
/// How long workers have to end after SIGTERM, before SIGKILL.
pub const STOP_MS_MAX: u64 = 2_000;
pub const STOP_TICK_MS: u64 = 50;
/// How long a worker may take to release the device before it simply exits.
pub const GIVE_BACK_MS_MAX: u64 = 10_000;
/// Spare workers by default, and at most.
pub const SPARES_DEFAULT: usize = 1;
pub const SPARES_MAX: usize = 16;
/// Pause between a spare's being taken and the start of the next, so the client that took it has
/// the machine for itself.
pub const SPARE_PAUSE_MS: u64 = 500;
/// Pause after a spare failed. It doubles with each failure, until a client has used a spare.
pub const SPARE_RETRY_MS_MIN: u64 = 1_000;
pub const SPARE_RETRY_MS_MAX: u64 = 64_000;
/// How long a spare may take to welcome the client that it was given; then the worker that read the
/// hello serves the client.
pub const TAKE_OVER_MS_MAX: u64 = 5_000;
/// How long a spare may take to open its device.
pub const SPARE_START_MS_MAX: u64 = 120_000;
/// How long the worker by which a server finds out whether it can serve may take.
pub const TRY_MS_MAX: u64 = 10_000;
/// Length of the document of the management library's constant answers.
pub const FACTS_BYTES_MAX: u64 = 1 << 20;
/// Time between two reports of a session's usage, as long as it changes.
pub const USAGE_MS: u64 = 1_000;
/// How long a client that only asks may say nothing by default, at least and at most.
pub const QUERY_IDLE_MS_DEFAULT: u64 = 60_000;
pub const QUERY_IDLE_MS_MIN: u64 = 1_000;
pub const QUERY_IDLE_MS_MAX: u64 = 86_400_000;
/// GPUs of a server in its status and its metrics.
pub const GPUS_MAX: usize = 64;
/// Listening sockets that a service manager may pass on.
pub const OPENED_SOCKETS_MAX: u32 = 64;
/// How long a new server has to go ahead once it was offered the sockets of the running one: it
/// tries a worker first.
pub const HAND_OVER_MS_MAX: u64 = 60_000;
/// How long one of the two waits for the other's next word.
pub const HAND_OVER_ANSWER_MS_MAX: u64 = 5_000;
/// New servers that wait to take over.
pub const TAKERS_WAITING_MAX: i32 = 4;
/// How long sessions go on with a server whose successor runs by default, at least and at most.
pub const DRAIN_MS_DEFAULT: u64 = 86_400_000;
pub const DRAIN_MS_MIN: u64 = 1_000;
pub const DRAIN_MS_MAX: u64 = 604_800_000;
/// Requests for metrics that are answered at a time, the time for one, and its length.
pub const METRICS_CONNECTIONS_MAX: usize = 4;
pub const METRICS_MS_MAX: u64 = 2_000;
pub const METRICS_REQUEST_BYTES_MAX: usize = 8 << 10;
pub const METRICS_HEADERS_MAX: usize = 64;
/// Pause after the process that answers such requests has failed.
pub const METRICS_RETRY_MS: u64 = 1_000;
/// Refused connections in the audit file, each second.
pub const AUDIT_REFUSALS_PER_S_MAX: u32 = 10;
/// Length at which a client's name for itself is cut in the log.
pub const PROGRAM_CHARS_MAX: usize = 64;
/// Pause of the pool's agent after a failure; time for the manager's answer beyond the time that it
/// waits, if there are other managers and if there are none; and time for an earlier server's
/// workers to end.
pub const POOL_RETRY_MS: u64 = 200;
pub const POOL_ANSWER_MS_MAX: u64 = 2_000;
pub const POOL_ALONE_MS_MAX: u64 = 10_000;
pub const POOL_LOCK_MS_MAX: u64 = 5_000;
/// Pause between two checks of a box's GPUs, and time for one, in seconds: less than the time for
/// the lock of the box's state, which the check holds.
pub const POOL_CHECK_MS: u64 = 2_000;
pub const POOL_CHECK_S_MAX: &str = "4";
/// Pause before a management library that told no events is asked again.
pub const POOL_EVENTS_RETRY_MS: u64 = 10_000;
/// Time for the processes of older sessions of a GPU to end after SIGKILL.
pub const POOL_END_MS_MAX: u64 = 2_000;

/// Threads of a worker, where it has a control group of its own.
pub const WORKER_TASKS_MAX: u64 = 1_024;
/// Memory of a worker besides its budgets, where it has a control group of its own: the executable,
/// stacks, page tables, and the margin at which it ends itself.
pub const WORKER_BASE_BYTES: u64 = (256 << 20) + outboard_budget::MARGIN_BYTES;

/// Longest document between supervisor and worker.
pub(super) const DOCUMENT_BYTES_MAX: usize = 64 << 10;
