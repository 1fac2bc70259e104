//! Waits of the client for points in streams, and for its events.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    board::WatchedMark,
    owned::{Mark, Owned, ready},
    printed::Due,
    table::real,
};
use outboard_device::{Failure, Wait};

/// Waits for several marks.
pub(super) struct MarksWait {
    marks: Vec<WatchedMark>,
    /// Marks of streams that were destroyed, which other waits have too.
    orphans: Vec<Arc<Mark>>,
    /// Text that kernels may have printed before.
    printed: Option<Due>,
    legacy_end: Option<LegacyEnd>,
}

/// The work of a context's default stream that is done at the end of a wait.
pub(super) struct LegacyEnd {
    pub(super) done: Arc<AtomicU64>,
    pub(super) works: u64,
}

impl MarksWait {
    pub(super) fn new(
        marks: Vec<WatchedMark>,
        printed: Option<Due>,
        legacy_end: Option<LegacyEnd>,
    ) -> MarksWait {
        MarksWait {
            marks,
            orphans: Vec::new(),
            printed,
            legacy_end,
        }
    }

    pub(super) fn with_orphans(self, orphans: Vec<Arc<Mark>>) -> MarksWait {
        MarksWait { orphans, ..self }
    }
}

impl Wait for MarksWait {
    fn ready(&mut self) -> Result<bool, Failure> {
        while let Some(mark) = self.marks.last() {
            if !mark.reached()? {
                return Ok(false);
            }
            if self.printed.is_some() {
                mark.mark().synchronize()?;
            }
            self.marks.pop();
        }
        while let Some(mark) = self.orphans.last() {
            if !mark.reached()? {
                return Ok(false);
            }
            if self.printed.is_some() {
                mark.synchronize()?;
            }
            self.orphans.pop();
        }
        if let Some(due) = &self.printed {
            due.done();
        }
        if let Some(end) = &self.legacy_end {
            end.done.fetch_max(end.works, Ordering::Relaxed);
        }
        Ok(true)
    }
}

/// Waits for an event of the client. It holds the real event, so a later record uses a new one
/// (`streams.rs`).
pub(super) struct EventWait {
    event: Arc<Owned<real::Event>>,
    printed: Option<Due>,
}

impl EventWait {
    pub(super) fn new(event: Arc<Owned<real::Event>>, printed: Option<Due>) -> EventWait {
        EventWait { event, printed }
    }
}

impl Wait for EventWait {
    fn ready(&mut self) -> Result<bool, Failure> {
        let driver = &self.event.hold.driver;
        let reached = ready(driver.cuEventQuery(self.event.handle()))?;
        if reached && let Some(due) = &self.printed {
            driver.cuEventSynchronize(self.event.handle())?;
            due.done();
        }
        Ok(reached)
    }
}
