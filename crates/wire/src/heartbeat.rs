//! Heartbeats: a connection of their own, over which a thread of the worker that is not the
//! session's answers whether the worker lives and what it waits for.
//!
//! ```text
//!   client                                     worker
//!     ├── connect, hello with the key ──────────►│
//!     │◄──────────────────────────── welcome ────┤
//!     ├── question: a number of 8 bytes ────────►│
//!     │◄── Beat: 32 bytes ───────────────────────┤   as often as the client asks
//! ```

/// Length of a question: a number, little-endian.
pub const QUESTION_BYTES: usize = 8;
/// Length of an answer.
pub const BEAT_BYTES: usize = 32;

/// The work of a session's thread at the moment of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It waits for the client's next message, and owes no reply.
    Idle,
    /// It executes a message, or waits for the GPU.
    Busy,
    /// It waits for the data of a message, which comes on a data connection.
    AwaitsData,
}

/// The answer to a question. All numbers are little-endian.
///
/// ```text
///   offset  bytes
///   0       8      the question's number
///   8       8      messages executed
///   16      8      bytes received over tcp on all connections of the session; 0 if unknown
///   24      1      activity: 0 idle, 1 busy, 2 awaits data
///   25      7      0
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    pub question: u64,
    pub messages: u64,
    pub received_bytes: u64,
    pub activity: Activity,
}

impl Activity {
    pub fn number(self) -> u8 {
        match self {
            Activity::Idle => 0,
            Activity::Busy => 1,
            Activity::AwaitsData => 2,
        }
    }

    pub fn from_number(number: u8) -> Option<Activity> {
        match number {
            0 => Some(Activity::Idle),
            1 => Some(Activity::Busy),
            2 => Some(Activity::AwaitsData),
            _ => None,
        }
    }
}

impl Beat {
    pub fn to_bytes(self) -> [u8; BEAT_BYTES] {
        let mut bytes = [0; BEAT_BYTES];
        bytes[0..8].copy_from_slice(&self.question.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.messages.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.received_bytes.to_le_bytes());
        bytes[24] = self.activity.number();
        bytes
    }

    /// Returns `None` for bytes that are no answer.
    pub fn from_bytes(bytes: &[u8; BEAT_BYTES]) -> Option<Beat> {
        let (numbers, _) = bytes.as_chunks::<8>();
        let [question, messages, received_bytes, last] = numbers else {
            return None;
        };
        let [activity, 0, 0, 0, 0, 0, 0, 0] = *last else {
            return None;
        };
        Some(Beat {
            question: u64::from_le_bytes(*question),
            messages: u64::from_le_bytes(*messages),
            received_bytes: u64::from_le_bytes(*received_bytes),
            activity: Activity::from_number(activity)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_is_read_as_it_was_written() {
        for activity in [Activity::Idle, Activity::Busy, Activity::AwaitsData] {
            let beat = Beat {
                question: 1 << 60,
                messages: 2,
                received_bytes: 3,
                activity,
            };
            assert_eq!(Beat::from_bytes(&beat.to_bytes()), Some(beat));
        }
    }

    #[test]
    fn other_bytes_are_no_beat() {
        for (at, value) in [(24, 3), (25, 1), (31, 1)] {
            let mut bytes = [0; BEAT_BYTES];
            bytes[at] = value;
            assert_eq!(Beat::from_bytes(&bytes), None);
        }
    }
}
