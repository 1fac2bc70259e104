//! Every limit of a session, units last.

use outboard_wire::{frame::HEADER_BYTES, limits::FRAME_BYTES_MAX};

/// Messages executed before pendings are looked at again.
pub const MESSAGES_PER_TURN_MAX: usize = 16;

/// Answers that wait for the device, and their data, past which no message is received until one is answered.
pub const WAITING_MAX: usize = 1_024;
pub const WAITING_BYTES_MAX: u64 = 64 << 20;
/// How long that lasts without an answer.
pub const STALL_MS_MAX: u64 = 100;
/// Past these a message that would wait fails instead.
pub const WAITING_HARD_MAX: usize = 65_536;
pub const WAITING_HARD_BYTES_MAX: u64 = 4 << 30;

/// The longest answer that is given at once: what a frame carries behind its header.
pub const REPLY_BYTES_MAX: usize = FRAME_BYTES_MAX - HEADER_BYTES;

/// Messages kept while the device is held up in a call of its own; past these the client waits too.
pub const EARLY_MESSAGES_MAX: usize = 4_096;

/// Busy waiting while an answer is due, before the first sleep: the driver's own waits spin as well. On a machine of one or
/// two cores the device's own threads need the core.
pub const SPIN_NS_MAX: u64 = 2_000_000;
pub const SPIN_FEW_CORES_NS_MAX: u64 = 2_000;
/// Sleeps between looks at what waits: such a part of the time already waited, in these bounds. A look costs about a
/// microsecond.
pub const SLEEP_US_MIN: u64 = 10;
pub const SLEEP_US_MAX: u64 = 50;
pub const SLEEP_FRACTION: u32 = 256;
/// On one or two cores: the device's own threads need them.
pub const SLEEP_FEW_CORES_US_MAX: u64 = 500;
pub const SLEEP_FEW_CORES_FRACTION: u32 = 16;

/// While data is awaited that comes on a lane, what is ready is answered this often.
pub const LANE_LOOK_MS: u64 = 1;

/// How late a sleep may end.
pub const TIMER_SLACK_NS: u64 = 1_000;

/// A file descriptor is sent in front of the message that names it.
pub const FD_MS_MAX: u64 = 1_000;

/// Fault notes sent in one second; those beyond are counted, and the first of them is sent with the count.
pub const FAULTS_PER_SECOND_MAX: u32 = 64;
/// The reason that goes with a failure is cut here.
pub const REASON_BYTES_MAX: usize = 8 << 10;

/// How long a refused client is given to read why.
pub const PARTING_MS_MAX: u64 = 500;
