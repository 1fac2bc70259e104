//! How fast messages are sent, and how many between two waits: whether a helper is worth its core.
//!
//! A helper saves the program's thread the system call, 4 us over loopback. But it occupies a core,
//! which in a virtual machine is often half of the core that the program runs on: its code was
//! slower by half. And while a thread waits for the peer it looks at the socket all the time,
//! whose lock a send of the helper needs. So a program that waits after a few messages sends by
//! itself.

use std::time::{Duration, Instant};

use outboard_wire::limits::{SENDS_BETWEEN_WAITS_MIN, SENDS_CLOSE_MIN, SENDS_CLOSE_NS_MAX};

/// Counts of one connection's sends.
#[derive(Default)]
pub(super) struct Pace {
    /// Sends of the senders themselves since the last look at the clock, and the time of that look.
    sends: u32,
    since: Option<Instant>,
    /// Sends since the receiver last began to wait, and its waits until then.
    stretch: u32,
    waits: u32,
}

impl Pace {
    /// Counts a send, of whichever thread, after so many waits of the receiver. Returns whether few
    /// are sent between two waits, whenever that is known anew.
    #[inline]
    pub(super) fn sent(&mut self, waits: u32) -> Option<bool> {
        let mut is_terse = None;
        if waits != self.waits {
            is_terse = Some(self.stretch < SENDS_BETWEEN_WAITS_MIN);
            // The time of a wait is no time between two sends.
            *self = Pace {
                waits,
                ..Pace::default()
            };
        }
        self.stretch = self.stretch.saturating_add(1);
        match self.stretch {
            SENDS_BETWEEN_WAITS_MIN => Some(false),
            _ => is_terse,
        }
    }

    /// Called after a sender has sent by itself. Returns true if sends follow each other so fast
    /// that a helper should do them.
    #[inline]
    pub(super) fn wants_help(&mut self) -> bool {
        self.sends += 1;
        if self.stretch < SENDS_BETWEEN_WAITS_MIN || self.sends < SENDS_CLOSE_MIN {
            return false;
        }
        // One look at the clock per `SENDS_CLOSE_MIN` sends.
        self.sends = 0;
        let now = Instant::now();
        let before = self.since.replace(now);
        let longest = Duration::from_nanos(SENDS_CLOSE_NS_MAX * u64::from(SENDS_CLOSE_MIN));
        before.is_some_and(|before| now - before < longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_help_is_wanted_for_a_few_messages_between_waits() {
        let mut pace = Pace::default();
        for waits in 1..1_000 {
            let is_terse = pace.sent(waits);
            assert_eq!(is_terse, Some(true), "at wait {waits}");
            assert!(!pace.wants_help());
            for _ in 2..SENDS_BETWEEN_WAITS_MIN {
                assert_eq!(pace.sent(waits), None);
                assert!(!pace.wants_help());
            }
        }
    }

    #[test]
    fn a_stretch_of_many_messages_is_not_terse_nor_is_the_next_until_it_ends() {
        let mut pace = Pace::default();
        let news: Vec<_> = (0..2 * SENDS_BETWEEN_WAITS_MIN)
            .filter_map(|_| pace.sent(0))
            .collect();
        assert_eq!(news, [false]);
        // The first send of a stretch tells of the one before.
        assert_eq!(pace.sent(1), Some(false));
        assert_eq!(pace.sent(2), Some(true));
    }
}
