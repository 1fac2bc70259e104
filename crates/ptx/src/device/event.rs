//! Events: points in streams, with the time at which they were reached.

use std::sync::Arc;

use super::{
    capture::CaptureId,
    error::{CaptureError, Error},
    graph::Dependencies,
    schedule::{State, TaskId},
    stream::ContextId,
    work::{Record, Work},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub(super) u64);

pub(super) struct Event {
    pub(super) context: ContextId,
    timing: bool,
    /// The last record. A new one changes what later waits wait for, never what earlier waits do.
    pub(super) last: Option<(TaskId, Arc<Record>)>,
    /// If the last record was captured: the capture, and what work after the event depends on.
    pub(super) captured: Option<(CaptureId, Dependencies)>,
}

impl State {
    pub(super) fn create_event(
        &mut self,
        context: ContextId,
        timing: bool,
    ) -> Result<EventId, Error> {
        self.context(context)?;
        let id = EventId(self.fresh());
        let event = Event {
            context,
            timing,
            last: None,
            captured: None,
        };
        self.events.insert(id, event);
        Ok(id)
    }

    pub(super) fn event(&self, id: EventId) -> Result<&Event, Error> {
        self.events.get(&id).ok_or(Error::InvalidHandle {
            kind: "event",
            id: id.0,
        })
    }

    /// Records the event after `deps`, as work of `context`.
    pub(super) fn record(
        &mut self,
        context: ContextId,
        priority: i32,
        deps: &[TaskId],
        id: EventId,
    ) -> Result<TaskId, Error> {
        self.event(id)?;
        let record = Arc::new(Record::default());
        let task = self.add(Some(context), priority, deps, Work::Record(record.clone()));
        if let Some(event) = self.events.get_mut(&id) {
            event.last = Some((task, record));
            event.captured = None;
        }
        Ok(task)
    }

    /// Returns the task that a wait for the event waits for now; `None` if it was never recorded.
    pub(super) fn event_task(&self, id: EventId) -> Result<Option<TaskId>, Error> {
        let event = self.event(id)?;
        if event.captured.is_some() {
            return Err(CaptureError::CapturedEvent.into());
        }
        Ok(event.last.as_ref().map(|(task, _)| *task))
    }

    /// Returns the time from one event to another, in milliseconds.
    pub(super) fn elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32, Error> {
        let mut times = [None; 2];
        for (time, id) in times.iter_mut().zip([start, end]) {
            let event = self.event(id)?;
            self.context(event.context)?;
            if event.captured.is_some() {
                return Err(CaptureError::CapturedEvent.into());
            }
            if !event.timing {
                return Err(Error::NoTime("created without timing"));
            }
            let (_, record) = event.last.as_ref().ok_or(Error::NoTime("never recorded"))?;
            *time = Some(*record.at.get().ok_or(Error::NotReady)?);
        }
        let [Some(start), Some(end)] = times else {
            return Err(Error::NotReady);
        };
        let ms = match end.checked_duration_since(start) {
            Some(after) => after.as_secs_f64(),
            None => -start.duration_since(end).as_secs_f64(),
        };
        Ok((ms * 1e3) as f32)
    }
}
