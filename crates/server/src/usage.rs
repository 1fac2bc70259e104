//! Reports of a session's usage, from its worker to the supervisor.

use std::time::{Duration, Instant};

use outboard_budget::LEASE_STEP_BYTES;
use outboard_device::MemoryInUse;
use outboard_session::Pulse;
use outboard_wire::{
    doc::{Doing, Usage},
    heartbeat::Activity,
};
use tracing::debug;

use super::{admission::Report, control::Control, limits};

/// Sends a report as long as something changes, and one more, by which the rates become 0.
pub(super) struct UsageReports {
    memory: Option<MemoryInUse>,
    sent: Option<Usage>,
    was_change: bool,
    next_at: Instant,
}

impl UsageReports {
    pub(super) fn new(memory: Option<MemoryInUse>) -> UsageReports {
        UsageReports {
            memory,
            sent: None,
            was_change: true,
            next_at: Instant::now(),
        }
    }

    /// Returns how long nothing is to be sent.
    pub(super) fn left(&self) -> Duration {
        self.next_at.saturating_duration_since(Instant::now())
    }

    /// Sends a report if it is time and there is something to tell.
    pub(super) fn look(&mut self, pulse: &Pulse, control: &Control) {
        if !self.left().is_zero() {
            return;
        }
        self.next_at = Instant::now() + Duration::from_millis(limits::USAGE_MS);
        self.send(pulse, control);
    }

    /// Sends a report if there is something to tell.
    pub(super) fn send(&mut self, pulse: &Pulse, control: &Control) {
        outboard_budget::settle();
        let usage = usage(pulse, self.memory.as_ref());
        let is_change = self.sent.as_ref() != Some(&usage);
        if is_change || self.was_change {
            // A supervisor that does not read misses this one.
            match control.send_if_room(&Report::Usage(Box::new(usage.clone()))) {
                Ok(()) => self.sent = Some(usage),
                Err(error) => debug!(%error, "a report that the supervisor does not get"),
            }
        }
        self.was_change = is_change;
    }
}

fn usage(pulse: &Pulse, memory: Option<&MemoryInUse>) -> Usage {
    let stats = pulse.stats();
    let total = stats.total();
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let doing = match (pulse.read().1, pulse.awaited()) {
        (Activity::Idle, _) => Doing::AwaitsClient,
        (Activity::AwaitsData, _) => Doing::AwaitsData,
        (Activity::Busy, Some(message)) => Doing::AwaitsGpu(message.into()),
        (Activity::Busy, None) => Doing::Busy,
    };
    Usage {
        messages: total.calls,
        failures: total.failures,
        received_bytes: total.received_bytes,
        sent_bytes: total.sent_bytes,
        executing_ns: ns(total.executing),
        waits: stats.wait_counts().iter().sum(),
        waiting_ns: ns(total.waiting),
        wait_counts: stats.wait_counts().to_vec(),
        memory_bytes: memory.map(MemoryInUse::read).unwrap_or_default(),
        // In whole steps: an idle worker has nothing to report.
        host_memory_bytes: outboard_budget::used().next_multiple_of(LEASE_STEP_BYTES),
        memory_refusals: outboard_budget::refused(),
        doing,
    }
}
