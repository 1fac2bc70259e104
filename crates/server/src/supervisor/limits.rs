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
/// A client's name for itself is cut here in the log.
pub const PROGRAM_CHARS_MAX: usize = 64;

/// The words between worker and supervisor.
pub(super) const ASK_SESSION: u8 = b'S';
pub(super) const ASK_QUERY: u8 = b'Q';
pub(super) const ANSWER_YES: u8 = b'Y';
pub(super) const ANSWER_NO: u8 = b'N';
