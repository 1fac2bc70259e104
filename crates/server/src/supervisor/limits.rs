//! Every limit of the supervisor, units last.

/// Connections that have not said a proper hello yet. Each is a process; further clients wait to be accepted.
pub const HANDSHAKES_MAX: usize = 64;
/// Programs served at a time, unless told otherwise.
pub const SESSIONS_DEFAULT_MAX: usize = 64;
/// How long a client that only greets may stay.
pub const GREETING_MS_MAX: u64 = 1_000;
/// Connections that only greet, or ask about the devices.
pub const QUERIES_MAX: usize = 64;
/// How long nothing is accepted after the system refused a process or a descriptor.
pub const PAUSE_MS: u64 = 100;
/// How long workers have to end after SIGTERM, before SIGKILL.
pub const STOP_MS_MAX: u64 = 2_000;
pub const STOP_TICK_MS: u64 = 50;
/// How long a worker takes to give the device back before it simply exits.
pub const GIVE_BACK_MS_MAX: u64 = 10_000;
/// Spare workers, unless told otherwise, and at most.
pub const SPARES_DEFAULT: usize = 1;
pub const SPARES_MAX: usize = 16;
/// How long after a spare was taken the next one is started: the client that took it has the machine for itself first.
pub const SPARE_PAUSE_MS: u64 = 500;
/// How long after a spare failed the next one is tried: twice as long each time, until a client has used one.
pub const SPARE_RETRY_MS_MIN: u64 = 1_000;
pub const SPARE_RETRY_MS_MAX: u64 = 64_000;
/// How long a spare may take to open its device.
pub const SPARE_START_MS_MAX: u64 = 120_000;
/// What the management library says of a server's devices.
pub const FACTS_BYTES_MAX: u64 = 1 << 20;
/// A client's name for itself is cut here in the log.
pub const PROGRAM_CHARS_MAX: usize = 64;

/// The words between worker and supervisor.
pub(super) const ASK_SESSION: u8 = b'S';
pub(super) const ASK_QUERY: u8 = b'Q';
pub(super) const ANSWER_YES: u8 = b'Y';
pub(super) const ANSWER_NO: u8 = b'N';
/// Followed by a channel to a spare, which takes the client over.
pub(super) const ANSWER_HAND_OVER: u8 = b'H';
/// The spare did not take it: the worker keeps its client.
pub(super) const KEPT: u8 = b'K';
/// From a spare, with what it knows of the devices, and to it: session, contexts to come, and the channel on which the client comes.
pub(super) const SPARE_READY: u8 = b'R';
pub(super) const SPARE_TAKE: u8 = b'T';
/// On the channel between worker and spare: here is the client; it is mine now.
pub(super) const CHANNEL_CLIENT: u8 = b'C';
pub(super) const CHANNEL_DONE: u8 = b'D';
