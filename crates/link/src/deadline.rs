//! How long a caller waits, and what it learns when the time is over.

use std::time::{Duration, Instant};

use crate::error::Error;

/// Time that [`Receiver::recv`](crate::Receiver::recv) waits for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Poll,
    Until(Instant),
    Forever,
}

pub(crate) fn timed_out(what: &'static str, start: Instant) -> Error {
    let ms = elapsed_ms(start);
    Error::TimedOut { what, ms }
}

pub(crate) fn elapsed_ms(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Returns the time `timeout` from now, or a day from now if the clock cannot represent that.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout)
        .unwrap_or(now + Duration::from_secs(86_400))
}
