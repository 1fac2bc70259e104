//! Poll policy: waits for the device busily at first, then with sleeps in proportion to the time
//! already waited. So a short wait ends promptly, and a long one does not occupy a core.

use std::{
    hint, thread,
    time::{Duration, Instant},
};

use outboard_link::{Wait, cores};

use super::limits;

pub(super) struct PollPolicy {
    idle_since: Option<Instant>,
    spin: Duration,
    is_few_cores: bool,
}

impl PollPolicy {
    pub(super) fn new() -> PollPolicy {
        let is_few_cores = cores::are_few();
        let spin_ns = if is_few_cores {
            limits::SPIN_FEW_CORES_NS_MAX
        } else {
            limits::SPIN_NS_MAX
        };
        PollPolicy {
            idle_since: None,
            spin: Duration::from_nanos(spin_ns),
            is_few_cores,
        }
    }

    pub(super) fn worked(&mut self) {
        self.idle_since = None;
    }

    /// Returns how long to wait for a message before the device is polled again.
    pub(super) fn next_wait(&mut self) -> Wait {
        self.next_wait_at(Instant::now())
    }

    fn next_wait_at(&mut self, now: Instant) -> Wait {
        let since = *self.idle_since.get_or_insert(now);
        let waited = now - since;
        if waited < self.spin {
            if self.is_few_cores {
                thread::yield_now();
            } else {
                hint::spin_loop();
            }
            return Wait::Poll;
        }
        Wait::Until(now + sleep_after(waited, self.is_few_cores))
    }
}

fn sleep_after(waited: Duration, is_few_cores: bool) -> Duration {
    let (fraction, us_max) = match is_few_cores {
        true => (
            limits::SLEEP_FEW_CORES_FRACTION,
            limits::SLEEP_FEW_CORES_US_MAX,
        ),
        false => (limits::SLEEP_FRACTION, limits::SLEEP_US_MAX),
    };
    let us = Duration::from_micros;
    let short = (waited / fraction).clamp(us(limits::SLEEP_US_MIN), us(us_max));
    let long = (waited / limits::SLEEP_LONG_FRACTION).min(us(limits::SLEEP_LONG_US_MAX));
    short.max(long)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_with_the_time_waited_and_stay_in_bounds() {
        let us = Duration::from_micros;
        assert_eq!(sleep_after(us(1), true), us(10));
        assert_eq!(sleep_after(us(1_600), true), us(100));
        assert_eq!(sleep_after(us(100_000), true), us(500));
        assert_eq!(sleep_after(us(5_120), false), us(20));
        assert_eq!(sleep_after(us(51_200), false), us(50));
        for is_few_cores in [true, false] {
            assert_eq!(sleep_after(us(1_024_000), is_few_cores), us(1_000));
            assert_eq!(sleep_after(us(60_000_000), is_few_cores), us(5_000));
        }
    }

    #[test]
    fn spins_first_and_again_after_work() {
        let (mut poll_policy, start) = (PollPolicy::new(), Instant::now());
        assert_eq!(poll_policy.next_wait_at(start), Wait::Poll);
        let later = start + Duration::from_millis(2);
        let asleep = sleep_after(later - start, poll_policy.is_few_cores);
        assert_eq!(poll_policy.next_wait_at(later), Wait::Until(later + asleep));
        poll_policy.worked();
        assert_eq!(poll_policy.next_wait_at(later), Wait::Poll);
    }
}
