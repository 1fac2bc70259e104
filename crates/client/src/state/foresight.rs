//! Foresees what the program is going to wait for, so that the question leaves together with the
//! last message before the wait.
//!
//! A program that waits after each step waits after the same number of messages each time. Once
//! three waits in a row have come after equally many, the next one is expected there, and the
//! launch that comes before it is sent together with its fence (`calls/foreseen.rs`). So a step's
//! end and its wait are one segment of a connection, and one system call at each side; the GPU
//! reaches the fence while the program is on its way to the wait.
//!
//! If the program sends anything else first, its next wait asks again, and nobody looks at the
//! early answer. Each such miss doubles the number of equal waits that it takes before another is
//! expected.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    session::{Group, Progress},
    thread,
};

/// Waits in a row after equally many messages, after the first, before one is expected.
const REPEATS_MIN: u32 = 2;
/// Most repeats that are asked for, after many misses.
const REPEATS_MAX: u32 = 256;

/// The aim of a thread's wait: a stream's work, or that of all of a context's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// Where the thread's own state is.
    thread: usize,
    /// The context and the stream, as in messages.
    pub(crate) context: u64,
    pub(crate) stream: Option<u64>,
}

impl Awaited {
    /// Returns what the calling thread waits for.
    pub(crate) fn here(context: u64, stream: Option<u64>) -> Awaited {
        let thread = address_of(&thread::here());
        Awaited {
            thread,
            context,
            stream,
        }
    }
}

fn address_of(thread: &thread::Local) -> usize {
    std::ptr::from_ref(thread).addr()
}

/// The waits of the program at one server.
pub(crate) struct Foresight(Mutex<Habit>);

/// The distances of waits, and the fence that was sent early.
struct Habit {
    last: Option<Awaited>,
    /// Number of the last message before the last wait.
    mark: u64,
    /// Messages between the last two waits.
    usual: u64,
    /// Waits like `last`, at the usual distance, in a row.
    repeats: u32,
    /// Repeats after which a wait is expected.
    needed: u32,
    asked: Option<Asked>,
}

/// A fence that was sent early: of all messages up to a number.
struct Asked {
    awaited: Awaited,
    number: u64,
    group: Arc<Group>,
}

impl Default for Foresight {
    fn default() -> Foresight {
        Foresight(Mutex::new(Habit {
            last: None,
            mark: 0,
            usual: 0,
            repeats: 0,
            needed: REPEATS_MIN,
            asked: None,
        }))
    }
}

impl Foresight {
    /// Returns the expected wait if it is this thread's.
    pub(crate) fn expected(&self, thread: &thread::Local) -> Option<Awaited> {
        let last = self.0.lock().last;
        last.filter(|awaited| awaited.thread == address_of(thread))
    }

    /// Keeps the group of a fence that was sent after the message with this number.
    pub(crate) fn asked(&self, awaited: Awaited, number: u64, group: Arc<Group>) {
        let mut habit = self.0.lock();
        let asked = Asked {
            awaited,
            number,
            group,
        };
        if habit.asked.replace(asked).is_some() {
            habit.missed();
        }
    }

    /// Notes a wait for all messages up to `mark`; `progress` has the numbers of all. Returns the
    /// group of its fence if that was sent early.
    pub(crate) fn wait(
        &self,
        awaited: Awaited,
        mark: u64,
        progress: &Progress,
    ) -> Option<Arc<Group>> {
        let sent = progress.mark();
        let mut habit = self.0.lock();
        let asked = habit.asked.take_if(|asked| asked.awaited == awaited);
        let group = match asked {
            Some(asked) if asked.number >= mark => {
                habit.needed = (habit.needed - 1).max(REPEATS_MIN);
                Some(asked.group)
            }
            Some(_) => {
                habit.missed();
                None
            }
            None => None,
        };
        let distance = sent.saturating_sub(habit.mark);
        let is_usual = habit.last == Some(awaited) && distance == habit.usual;
        habit.repeats = match is_usual {
            true => habit.repeats.saturating_add(1),
            false => 0,
        };
        habit.last = Some(awaited);
        habit.mark = sent;
        habit.usual = distance;
        let is_expected = habit.repeats >= habit.needed && distance > 0;
        progress.expect_wait(is_expected.then_some(sent + distance));
        group
    }
}

impl Habit {
    fn missed(&mut self) {
        self.needed = (self.needed * 2).min(REPEATS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Numbered;

    fn of_stream() -> Awaited {
        Awaited::here(1, Some(2))
    }

    /// A program's messages and waits.
    #[derive(Default)]
    struct Program {
        foresight: Foresight,
        progress: Progress,
    }

    impl Program {
        fn send(&self, messages: u64) {
            for _ in 0..messages {
                self.progress.number(Numbered::Work(None));
            }
        }

        fn wait(&self) -> Option<Arc<Group>> {
            self.wait_for(of_stream(), self.progress.mark())
        }

        fn wait_for(&self, awaited: Awaited, mark: u64) -> Option<Arc<Group>> {
            self.foresight.wait(awaited, mark, &self.progress)
        }

        /// Waits `times` times after `step` messages each.
        fn waits(&self, step: u64, times: u32) {
            for _ in 0..times {
                self.send(step);
                assert!(self.wait().is_none());
            }
        }

        /// Asks for the next wait early, with the message that comes now.
        fn ask(&self) -> Arc<Group> {
            self.send(1);
            let (group, number) = (Group::new(1), self.progress.mark());
            self.foresight.asked(of_stream(), number, group.clone());
            group
        }
    }

    #[test]
    fn a_wait_is_expected_after_three_at_equal_distances() {
        let program = Program::default();
        program.waits(2, 2);
        program.send(1);
        assert!(!program.progress.is_wait_due());
        program.send(1);
        assert!(program.wait().is_none() && !program.progress.is_wait_due());
        program.send(1);
        assert!(program.progress.is_wait_due());
        // One thread takes it, once.
        assert!(program.progress.take_expected() && !program.progress.take_expected());
        let expected = || program.foresight.expected(&thread::here());
        assert_eq!(expected(), Some(of_stream()));
        let elsewhere = std::thread::scope(|scope| scope.spawn(expected).join().expect("no panic"));
        assert_eq!(elsewhere, None);
    }

    #[test]
    fn an_early_fence_serves_the_wait_that_it_covers() {
        let program = Program::default();
        program.waits(1, 3);
        let early = program.ask();
        let mark = program.progress.mark();
        // Another thread sends to another stream.
        program.send(1);
        let found = program.wait_for(of_stream(), mark).expect("the early one");
        assert!(Arc::ptr_eq(&found, &early));
        program.ask();
        program.send(1);
        assert!(program.wait().is_none(), "it is later work");
        program.ask();
        let mark = program.progress.mark();
        let other = program.wait_for(Awaited::here(1, None), mark);
        assert!(other.is_none(), "it is another wait");
    }

    #[test]
    fn after_a_miss_more_waits_must_be_equal() {
        let program = Program::default();
        program.waits(1, 3);
        assert!(program.progress.is_wait_due());
        program.ask();
        program.waits(1, 1);
        // The distance was two, and is one again.
        program.waits(1, 4);
        assert!(!program.progress.is_wait_due());
        program.waits(1, 1);
        assert!(program.progress.is_wait_due());
    }
}
