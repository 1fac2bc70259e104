//! Short sleeps in a long wait.

use std::time::Duration;

/// A sleep lasts for this fraction of the time already waited.
const NAP_FRACTION: u32 = 256;
const NAP_US_MIN: u64 = 10;
const NAP_US_MAX: u64 = 50;
/// Greatest delay after the end of a sleep, in place of the kernel's default of 50 us.
const SLACK_NS: libc::c_ulong = 1_000;

/// Makes the calling thread's timers exact until it is dropped. The thread is the program's.
pub(crate) struct Naps {
    slack_before_ns: libc::c_int,
}

impl Naps {
    pub(crate) fn new() -> Naps {
        // SAFETY: reads and sets a number of the calling thread.
        let slack_before_ns = unsafe {
            let before = libc::prctl(libc::PR_GET_TIMERSLACK);
            libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS);
            before
        };
        Naps { slack_before_ns }
    }

    pub(crate) fn nap(&self, waited: Duration) {
        let (least, most) = (
            Duration::from_micros(NAP_US_MIN),
            Duration::from_micros(NAP_US_MAX),
        );
        std::thread::sleep((waited / NAP_FRACTION).clamp(least, most));
    }
}

impl Drop for Naps {
    fn drop(&mut self) {
        if self.slack_before_ns > 0 {
            // SAFETY: as above.
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
        let naps = Naps::new();
        assert_eq!(slack(), SLACK_NS as i32);
        naps.nap(Duration::from_secs(1));
        drop(naps);
        assert_eq!(slack(), before);
    }
}
