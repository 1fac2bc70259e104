//! Facts about a session's thread that another thread of its process may read at any time.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use outboard_wire::heartbeat::Activity;

/// The work of a session's thread at a moment. The thread writes it, almost without cost to its
/// messages; a heartbeat's answer has it.
#[derive(Debug)]
pub struct Pulse {
    messages: AtomicU64,
    activity: AtomicU8,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse {
            messages: AtomicU64::new(0),
            activity: AtomicU8::new(Activity::Busy.number()),
        }
    }
}

impl Pulse {
    /// Returns the number of messages taken, and what the thread is doing.
    pub fn read(&self) -> (u64, Activity) {
        let activity = Activity::from_number(self.activity.load(Ordering::Relaxed));
        (
            self.messages.load(Ordering::Relaxed),
            activity.unwrap_or(Activity::Busy),
        )
    }

    #[inline]
    pub(super) fn takes_message(&self) {
        // One thread writes.
        let messages = self.messages.load(Ordering::Relaxed);
        self.messages
            .store(messages.wrapping_add(1), Ordering::Relaxed);
    }

    /// Marks the time in which `wait` runs with a activity.
    pub(super) fn during<R>(&self, activity: Activity, wait: impl FnOnce() -> R) -> R {
        self.activity.store(activity.number(), Ordering::Relaxed);
        let result = wait();
        self.activity
            .store(Activity::Busy.number(), Ordering::Relaxed);
        result
    }
}
