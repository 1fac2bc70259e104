//! Facts about a session's thread that another thread of its process may read at any time.

use std::sync::{
    OnceLock,
    atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering},
};

use outboard_wire::{doc::SessionEnd, heartbeat::Activity};
use tracing::{debug, warn};

use super::End;
use super::message_stats::{self, Counters, MessageStats};

/// Stands for no message in [`Pulse::awaited`].
const NONE: u16 = u16::MAX;

/// The work of a session's thread at a moment. The thread writes it, almost without cost to its
/// messages; a heartbeat's answer and the server's status have it.
#[derive(Debug)]
pub struct Pulse {
    messages: AtomicU64,
    activity: AtomicU8,
    /// The message whose reply the thread sleeps for, until the GPU is done.
    awaited: AtomicU16,
    /// Why the session is over, while the device is still held up in a call of its own.
    end: OnceLock<SessionEnd>,
    pub(super) counters: Counters,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse {
            messages: AtomicU64::new(0),
            activity: AtomicU8::new(Activity::Busy.number()),
            awaited: AtomicU16::new(NONE),
            end: OnceLock::new(),
            counters: Counters::default(),
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

    /// Returns the name of the message whose reply the thread sleeps for, until the GPU is done.
    pub fn awaited(&self) -> Option<&'static str> {
        let op = self.awaited.load(Ordering::Relaxed);
        (op != NONE).then(|| message_stats::name(op))
    }

    /// Returns why the session is over, if the device is still held up in a call of its own.
    pub fn end(&self) -> Option<SessionEnd> {
        self.end.get().copied()
    }

    /// Notes that the session is over while the device is held up in a call of its own, which may
    /// end the process.
    pub(super) fn ends(&self, end: &End) {
        match end {
            End::ClientLeft => debug!("{end} while a message was executed"),
            _ => warn!("the session is over while a message is executed, because {end}"),
        }
        // The first reason stays.
        let _ = self.end.set(end.counted());
    }

    /// Returns what the session has counted so far.
    pub fn stats(&self) -> MessageStats {
        self.counters.read()
    }

    #[inline]
    pub(super) fn takes_message(&self) {
        // One thread writes.
        let messages = self.messages.load(Ordering::Relaxed);
        self.messages
            .store(messages.wrapping_add(1), Ordering::Relaxed);
    }

    /// Marks the time in which `wait` runs with an activity.
    pub(super) fn during<R>(&self, activity: Activity, wait: impl FnOnce() -> R) -> R {
        self.activity.store(activity.number(), Ordering::Relaxed);
        let result = wait();
        self.activity
            .store(Activity::Busy.number(), Ordering::Relaxed);
        result
    }

    /// Notes the message whose reply waits for the GPU, before the thread sleeps; `None` once it
    /// works again.
    pub(super) fn awaits(&self, op: Option<u16>) {
        self.awaited.store(op.unwrap_or(NONE), Ordering::Relaxed);
    }
}
