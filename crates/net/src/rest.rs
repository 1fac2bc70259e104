//! How an adapter's thread passes the time in which it finds nothing to do.
//!
//! It looks again at once, then lets others run, then sleeps: for a sixteenth of the time since the
//! last entry, from [`SHORTEST`] to the longest that is permitted. So the first entry after a pause
//! waits for a sixteenth of the pause at most, and an adapter that nobody uses takes little.

use std::{
    env,
    thread::yield_now,
    time::{Duration, Instant},
};

use crate::error::Error;

/// Variable of the environment with the longest sleep, in microseconds.
pub const SLEEP_VARIABLE: &str = "OUTBOARD_NET_SLEEP_US";

/// Looks without work before the thread lets others run, about a GPU's way to memory and back, and
/// before it sleeps.
const YIELD_AFTER: u32 = 256;
const SLEEP_AFTER: u32 = 4096;
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(10);
const LONGEST_MAX: Duration = Duration::from_secs(1);
const PART: u32 = 16;

/// A step of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Look,
    Yield,
    Sleep,
}

#[derive(Debug)]
pub(crate) struct Rest {
    longest: Duration,
    looks: u32,
    /// End of the looks without a sleep.
    since: Option<Instant>,
}

impl Rest {
    pub(crate) fn new(longest: Duration) -> Rest {
        let (looks, since) = (0, None);
        Rest {
            longest,
            looks,
            since,
        }
    }

    /// Returns what follows a look that found this many things to do.
    pub(crate) fn after(&mut self, done: usize) -> Next {
        if done > 0 {
            *self = Rest::new(self.longest);
        }
        self.looks = (self.looks + 1).min(SLEEP_AFTER);
        match self.looks {
            SLEEP_AFTER => Next::Sleep,
            YIELD_AFTER.. => Next::Yield,
            _ => Next::Look,
        }
    }

    /// Returns the time of the next sleep. An adapter that waits for something looks often.
    pub(crate) fn time(&mut self, now: Instant, is_waiting: bool) -> Duration {
        let idle = now.duration_since(*self.since.get_or_insert(now));
        match is_waiting {
            true => SHORTEST,
            false => (idle / PART).clamp(SHORTEST, self.longest),
        }
    }
}

/// Time for which others run when a thread lets them, where processors are wanted by more threads
/// than there are; and for which that is remembered.
const CROWDED: Duration = Duration::from_micros(30);
const REMEMBERED: Duration = Duration::from_millis(100);

/// Notices that others want the processor: a thread that only looks comes late then, and is woken
/// sooner than it gets its turn.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    until: Option<Instant>,
}

impl Crowd {
    /// Lets others run.
    pub(crate) fn pass(&mut self) {
        let before = Instant::now();
        yield_now();
        let now = Instant::now();
        if now - before > CROWDED {
            self.until = Some(now + REMEMBERED);
        }
    }

    pub(crate) fn is_there(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// Returns the longest sleep that the environment permits.
pub(crate) fn longest() -> Result<Duration, Error> {
    let Some(given) = env::var_os(SLEEP_VARIABLE) else {
        return Ok(LONGEST);
    };
    let given = given.to_string_lossy();
    parse(&given).ok_or_else(|| Error::Sleep {
        variable: SLEEP_VARIABLE,
        given: given.into(),
        us_min: SHORTEST.as_micros(),
        us_max: LONGEST_MAX.as_micros(),
    })
}

fn parse(given: &str) -> Option<Duration> {
    let time = Duration::from_micros(given.parse().ok()?);
    (SHORTEST..=LONGEST_MAX).contains(&time).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_with_the_pause_and_end_with_it() {
        let mut rest = Rest::new(LONGEST);
        let (mut looks, mut yields) = (0, 0);
        loop {
            match rest.after(0) {
                Next::Look => looks += 1,
                Next::Yield => yields += 1,
                Next::Sleep => break,
            }
        }
        assert_eq!(
            (looks, yields),
            (YIELD_AFTER - 1, SLEEP_AFTER - YIELD_AFTER)
        );
        let mut now = Instant::now();
        let start = now;
        let mut sleeps = 0;
        while rest.time(now, false) < LONGEST {
            let time = rest.time(now, false);
            assert!(time == SHORTEST || time <= (now - start) / PART);
            now += time;
            sleeps += 1;
            assert_eq!(rest.after(0), Next::Sleep);
        }
        assert!(now - start >= LONGEST * PART && sleeps < 150, "{sleeps}");
        assert_eq!(rest.time(now, true), SHORTEST);
        assert_eq!(rest.after(1), Next::Look);
        assert_eq!(rest.time(now, false), SHORTEST);
    }

    #[test]
    fn times_that_are_none_are_refused() {
        assert_eq!(parse("200000"), Some(Duration::from_millis(200)));
        for wrong in ["", "49", "1000001", "-1", "5 ms", "99999999999999999999"] {
            assert_eq!(parse(wrong), None);
        }
    }
}
