//! The numbers of messages. Each message without a reply has the session's next number, given under
//! the sender's lock, so that the order of numbers is the order in which the server sees them.
//!
//! A number serves as a mark: work of a stream up to its last number is done once anything that
//! was sent later, and that waits for the stream, is answered.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of no message, plus one: none is expected to be the last before a wait.
const NOT_EXPECTED: u64 = u64::MAX;

/// Numbers of the last messages sent, to one stream or to any, and how far they are known to be
/// done. If both are equal, a wait need not ask.
#[derive(Debug)]
pub(crate) struct Progress {
    /// Number of the last message; written only under the sender's lock.
    sent: AtomicU64,
    /// Number before that of the message after which a wait is expected (`state/foresight.rs`). It
    /// is beside `sent`, which each message reads.
    expected_after: AtomicU64,
    /// The last row of messages that are no work for the GPU: the number before it, and its last.
    /// Both are written only under the sender's lock, and before `sent`.
    quiet_after: AtomicU64,
    quiet_until: AtomicU64,
    /// All messages up to this number are known to be done.
    done: AtomicU64,
}

/// The kind of a message, by which it is numbered.
#[derive(Clone, Copy)]
pub(crate) enum Numbered<'p> {
    /// It has no number: a request that a wait need not cover.
    No,
    /// It is no work for the GPU, but a wait reports its errors.
    Quietly(Option<&'p Progress>),
    /// It is work for the GPU, in this stream if it is in one.
    Work(Option<&'p Progress>),
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            sent: AtomicU64::new(0),
            expected_after: AtomicU64::new(NOT_EXPECTED),
            quiet_after: AtomicU64::new(0),
            quiet_until: AtomicU64::new(0),
            done: AtomicU64::new(0),
        }
    }
}

impl Progress {
    /// Gives a message the next number, in these numbers of the session and in its stream's. The
    /// caller holds the sender's lock.
    #[inline(always)]
    pub(crate) fn number(&self, message: Numbered<'_>) -> u64 {
        let (stream, is_work) = match message {
            Numbered::No => return 0,
            Numbered::Quietly(stream) => (stream, false),
            Numbered::Work(stream) => (stream, true),
        };
        let number = self.sent.load(Ordering::Relaxed) + 1;
        if !is_work {
            self.begin_quiet(number);
            if let Some(stream) = stream {
                stream.begin_quiet(number);
            }
        }
        self.sent.store(number, Ordering::Release);
        if let Some(stream) = stream {
            stream.sent.store(number, Ordering::Release);
        }
        number
    }

    /// Notes that the message with this number, which is about to be sent, is no work.
    #[cold]
    fn begin_quiet(&self, number: u64) {
        let before = self.sent.load(Ordering::Relaxed);
        if self.quiet_until.load(Ordering::Relaxed) != before {
            self.quiet_after.store(before, Ordering::Release);
        }
        self.quiet_until.store(number, Ordering::Release);
    }

    /// Returns the number of the last message: the mark to `complete` once a wait that starts now
    /// is over.
    #[inline]
    pub(crate) fn mark(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Returns whether a wait is expected after the next message.
    #[inline(always)]
    pub(crate) fn is_wait_due(&self) -> bool {
        self.expected_after.load(Ordering::Relaxed) == self.sent.load(Ordering::Relaxed)
    }

    /// Expects a wait after the message with this number, or none.
    pub(crate) fn expect_wait(&self, number: Option<u64>) {
        let after = number.map_or(NOT_EXPECTED, |number| number - 1);
        self.expected_after.store(after, Ordering::Relaxed);
    }

    /// Expects no wait any more; returns whether one was expected.
    pub(crate) fn take_expected(&self) -> bool {
        self.expected_after.swap(NOT_EXPECTED, Ordering::Relaxed) != NOT_EXPECTED
    }

    /// Returns the number of the last message that is work for the GPU. While messages are sent it
    /// may name a later one, which only lets a caller wait for more.
    pub(crate) fn work_mark(&self) -> u64 {
        let mark = self.mark();
        match self.quiet_until.load(Ordering::Acquire) >= mark {
            // The row may be a later one, which begins after the mark.
            true => self.quiet_after.load(Ordering::Acquire).min(mark),
            false => mark,
        }
    }

    /// The number up to which everything is known to be done.
    pub(crate) fn done(&self) -> &AtomicU64 {
        &self.done
    }

    /// Notes that everything up to a number is done.
    pub(crate) fn complete(&self, mark: u64) {
        self.done.fetch_max(mark, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn is_complete(&self, mark: u64) -> bool {
        self.done.load(Ordering::Acquire) >= mark
    }

    /// Returns the number up to which everything is known to be done; `u64::MAX` if all of it is.
    pub(crate) fn known(&self) -> u64 {
        match self.is_idle() {
            true => u64::MAX,
            false => self.done.load(Ordering::Acquire),
        }
    }

    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_complete(self.mark())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_of_numbers_serves_all_streams() {
        let (session, one, other) = <(Progress, Progress, Progress)>::default();
        assert_eq!(session.number(Numbered::Work(Some(&one))), 1);
        assert_eq!(session.number(Numbered::Work(Some(&other))), 2);
        assert_eq!(session.number(Numbered::Work(None)), 3);
        assert_eq!(session.number(Numbered::No), 0);
        assert_eq!((session.mark(), one.mark(), other.mark()), (3, 1, 2));
        // A wait that began before the last message covers the streams, not the session.
        for progress in [&session, &one, &other] {
            progress.complete(2);
        }
        assert!(one.is_idle() && other.is_idle() && !session.is_idle());
        assert_eq!((session.known(), one.known()), (2, u64::MAX));
        // A wait that ends late takes nothing back.
        session.complete(3);
        session.complete(1);
        assert!(session.is_idle());
    }

    #[test]
    fn a_message_that_is_no_work_is_not_waited_for_by_work() {
        let (session, stream) = <(Progress, Progress)>::default();
        session.number(Numbered::Work(Some(&stream)));
        session.number(Numbered::Quietly(Some(&stream)));
        session.number(Numbered::Quietly(None));
        assert_eq!((session.mark(), session.work_mark()), (3, 1));
        assert_eq!((stream.mark(), stream.work_mark()), (2, 1));
        stream.complete(1);
        assert!(stream.is_complete(stream.work_mark()) && !stream.is_idle());
        // Later messages are work.
        session.number(Numbered::Work(Some(&stream)));
        assert_eq!((session.work_mark(), stream.work_mark()), (4, 4));
    }
}
