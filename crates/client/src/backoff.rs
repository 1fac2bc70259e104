//! Short sleeps in a long wait.

use std::time::Duration;

/// A sleep lasts for this fraction of the time already waited.
const SLEEP_FRACTION: u32 = 256;
const SLEEP_US_MIN: u64 = 10;
const SLEEP_US_MAX: u64 = 50;
/// Greatest delay after the end of a sleep, in place of the kernel's default of 50 us.
const SLACK_NS: libc::c_ulong = 1_000;

/// Makes the calling thread's timers exact until it is dropped. The thread is the program's.
pub(crate) struct Backoff {
    slack_before_ns: libc::c_int,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        // SAFETY: reads and sets a number of the calling thread.
        let slack_before_ns = unsafe {
            let before = libc::prctl(libc::PR_GET_TIMERSLACK);
            libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS);
            before
        };
        Backoff { slack_before_ns }
    }

    pub(crate) fn sleep(&self, waited: Duration) {
        let (least, most) = (
            Duration::from_micros(SLEEP_US_MIN),
            Duration::from_micros(SLEEP_US_MAX),
        );
        std::thread::sleep((waited / SLEEP_FRACTION).clamp(least, most));
    }
}

impl Drop for Backoff {
    fn drop(&mut self) {
        if self.slack_before_ns > 0 {
            // SAFETY: sets a number of the calling thread.
            unsafe {
                libc::prctl(
                    libc::PR_SET_TIMERSLACK,
                    self.slack_before_ns as libc::c_ulong,
                )
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_timers_are_as_before() {
        // SAFETY: only reads a number.
        let slack = || unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        let before = slack();
        let backoff = Backoff::new();
        assert_eq!(slack(), SLACK_NS as i32);
        backoff.sleep(Duration::from_secs(1));
        drop(backoff);
        assert_eq!(slack(), before);
    }
}
