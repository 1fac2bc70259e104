//! Start and end times of work, kept for a profiler that asks for them.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::{
    schedule::State,
    stream::{ContextId, StreamId},
    work::{Launch, Work},
};

/// The call, stream and node that a piece of work belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The number given to [`super::Gpu::of_call`].
    pub call: u32,
    pub context: Option<ContextId>,
    pub stream: Option<StreamId>,
    /// The executable graph and the node in it; 0 outside a graph.
    pub graph: u64,
    pub node: u64,
}

/// A finished piece of work.
#[derive(Clone, Debug)]
pub struct Done {
    pub about: About,
    pub start: Instant,
    pub end: Instant,
    pub what: Finished,
}

#[derive(Clone, Debug)]
pub enum Finished {
    Launch(Launch),
    /// A copy between two addresses of the memory.
    Copy {
        dst: u64,
        src: u64,
        bytes: u64,
    },
    Upload {
        bytes: u64,
    },
    Download {
        bytes: u64,
    },
    Set {
        bytes: u64,
        value: u32,
    },
    /// An event, at the end of the piece.
    EventRecorded,
}

impl Finished {
    pub(super) fn of(work: &Work) -> Option<Finished> {
        let bytes = |extent: &super::Extent| extent.bytes().unwrap_or(0);
        Some(match work {
            // The parameters are dropped: for a million launches they would be gigabytes, and no
            // profiler asks for them.
            Work::Launch(launch, _) => Finished::Launch(Launch {
                params: Arc::default(),
                ..launch.clone()
            }),
            Work::Copy(copy) => Finished::Copy {
                dst: copy.dst.address,
                src: copy.src.address,
                bytes: bytes(&copy.extent),
            },
            Work::Upload(_, extent, _) => Finished::Upload {
                bytes: bytes(extent),
            },
            Work::Download(_, extent, _) => Finished::Download {
                bytes: bytes(extent),
            },
            Work::Set(set) => Finished::Set {
                bytes: set.rows().map_or(0, |(_, extent)| bytes(&extent)),
                value: set.value,
            },
            Work::Record(_) => Finished::EventRecorded,
            _ => return None,
        })
    }
}

/// The records kept.
#[derive(Default)]
pub(super) struct Activity {
    is_kept: bool,
    /// Whether records of events are kept too.
    with_events: bool,
    /// Records kept until they are taken; further ones are only counted.
    done_max: usize,
    /// Attribution of the work that is being submitted.
    pub(super) now: About,
    done: VecDeque<Done>,
    dropped: u64,
}

impl Activity {
    /// Returns the attribution of a new task, if it is to be timed.
    pub(super) fn about(&self, context: Option<ContextId>, work: &Work) -> Option<About> {
        let is_timed = match work {
            Work::Launch(..)
            | Work::Copy(_)
            | Work::Set(_)
            | Work::Upload(..)
            | Work::Download(..) => self.is_kept,
            Work::Record(_) => self.is_kept && self.with_events,
            _ => false,
        };
        is_timed.then_some(About {
            context,
            ..self.now
        })
    }

    pub(super) fn add(&mut self, done: Done) {
        match self.done.len() < self.done_max {
            true => self.done.push_back(done),
            false => self.dropped += 1,
        }
    }
}

impl State {
    /// Times work submitted from now on and keeps at most `max` records; `None` stops timing.
    pub(super) fn keep_activity(&mut self, max: Option<usize>, with_events: bool) {
        self.activity.is_kept = max.is_some();
        self.activity.with_events = with_events;
        // Work that was submitted before still finishes, and keeps the old limit.
        self.activity.done_max = max.unwrap_or(self.activity.done_max);
    }

    /// Sets the call number of work submitted from now on.
    pub(super) fn of_call(&mut self, call: u32) {
        self.activity.now.call = call;
    }

    /// Returns at most `max` records, the oldest first; the number dropped since the last call; and
    /// whether more are left.
    pub(super) fn take_activity(&mut self, max: usize) -> (Vec<Done>, u64, bool) {
        let activity = &mut self.activity;
        let len = activity.done.len().min(max);
        let done = activity.done.drain(..len).collect();
        let dropped = std::mem::take(&mut activity.dropped);
        (done, dropped, !activity.done.is_empty())
    }
}
