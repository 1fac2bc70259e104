//! Limits of a session, units last.

use outboard_wire::{frame::HEADER_BYTES, limits::FRAME_BYTES_MAX};

/// Messages executed before the pending replies are polled again.
pub const MESSAGES_PER_TURN_MAX: usize = 16;

/// Pending replies, and bytes of their data, above which none is added until one is sent.
pub const WAITING_MAX: usize = 1_024;
pub const WAITING_BYTES_MAX: u64 = 64 << 20;
/// How long no message is executed in that state without a reply being sent.
pub const STALL_MS_MAX: u64 = 100;
/// Messages that are held in that state at most, while others go before them: those of 1 GiB.
pub const HELD_MAX: usize = 1_024;
/// Limits above which a message that would wait fails instead.
pub const WAITING_HARD_MAX: usize = 65_536;
pub const WAITING_HARD_BYTES_MAX: u64 = 4 << 30;

/// How long a message with data waits for the GPU's work to give memory back, if most of the
/// session's host memory is in use, and how often it looks.
pub const TIGHT_MS_MAX: u64 = 20;
pub const TIGHT_LOOK_US: u64 = 200;

/// The longest immediate reply: the bytes of a frame after its header.
pub const REPLY_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES;

/// Bytes of messages kept while the device blocks in a call of its own. Above this the client has
/// to wait, and with it the host function that the device may wait for.
pub const EARLY_BYTES_MAX: usize = 1 << 30;

/// Busy waiting while a reply is pending, before the first sleep; the driver's own waits spin as
/// well. On a machine of one or two cores the device's own threads need the core.
pub const SPIN_NS_MAX: u64 = 2_000_000;
pub const SPIN_FEW_CORES_NS_MAX: u64 = 2_000;
/// How long the pending replies are looked at between two looks at the link, which costs a system
/// call over tcp.
pub const LOOK_NS: u64 = 1_000;
/// Sleep between two polls of the pending replies: this fraction of the time already waited, within
/// these bounds. A poll costs about 1 us.
pub const SLEEP_US_MIN: u64 = 10;
pub const SLEEP_US_MAX: u64 = 50;
pub const SLEEP_FRACTION: u32 = 256;
/// Bounds on one or two cores, where the device's own threads need them.
pub const SLEEP_FEW_CORES_US_MAX: u64 = 500;
pub const SLEEP_FEW_CORES_FRACTION: u32 = 16;
/// Longer sleeps for a wait of more than 50 ms: this fraction of the time already waited, so that a
/// wait of any length ends at most a thousandth late, and its polls cost less than 1 % of a core.
pub const SLEEP_LONG_FRACTION: u32 = 1_024;
pub const SLEEP_LONG_US_MAX: u64 = 5_000;

/// Time after long data from the client for which replies with data are left to a thread of their
/// own, over an emulated network, and pending replies from which they are: a single one is sooner
/// sent than that thread wakes.
pub const BOTH_WAYS_MS: u64 = 1_000;
pub const STREAM_REPLIES_MIN: usize = 4;
/// Data sent there before messages are looked for again.
pub const SENT_BYTES_MAX: usize = 4 << 20;

/// Interval at which the session sends ready replies while it waits for data on a data connection.
pub const DATA_CONNECTION_LOOK_MS: u64 = 1;

/// How late the kernel may end a sleep.
pub const TIMER_SLACK_NS: u64 = 1_000;

/// How long a message waits for its file descriptor, which is sent before it.
pub const FD_MS_MAX: u64 = 1_000;

/// Fault notes sent in one second. The first fault above this is sent later, with the count of the
/// others.
pub const FAULTS_PER_SECOND_MAX: u32 = 64;
/// Length at which the text of a failure is cut.
pub const REASON_BYTES_MAX: usize = 8 << 10;

/// How long a refused client is given to read the reason.
pub const PARTING_MS_MAX: u64 = 500;
/// Calls of `net.h` of one session that wait, each on a thread: two of each relayed queue, and
/// others.
pub(crate) const NET_CALLS_MAX: usize = 48;
/// Queues of one session that have met those of other servers.
pub(crate) const NET_THREADS_MAX: usize = 16;
/// How long what an adapter has written is sent to another server after its end.
pub(crate) const NET_PARTING_MS_MAX: u64 = 500;
