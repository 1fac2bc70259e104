//! When work was done, kept for a profiler that asks for it.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use super::{
    schedule::State,
    stream::{ContextId, StreamId},
    work::{Launch, Work},
};

/// Pieces of work that are kept until they are taken; those beyond are counted.
const DONE_MAX: usize = 1 << 20;

/// What a piece of work belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The number that [`super::Gpu::of_call`] was given.
    pub call: u32,
    pub context: Option<ContextId>,
    pub stream: Option<StreamId>,
    /// The instantiated graph and the node there; 0 outside a graph.
    pub graph: u64,
    pub node: u64,
}

/// A piece of work that is done.
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
    /// From one place of the memory to another, as addresses.
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
}

impl Finished {
    pub(super) fn of(work: &Work) -> Option<Finished> {
        let bytes = |extent: &super::Extent| extent.bytes().unwrap_or(0);
        Some(match work {
            // Without its parameters: kept for a million launches they are gigabytes, and nobody asks for them.
            Work::Launch(launch) => Finished::Launch(Launch {
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
            _ => return None,
        })
    }
}

/// What is kept.
#[derive(Default)]
pub(super) struct Activity {
    is_kept: bool,
    /// What is being submitted belongs to this.
    pub(super) now: About,
    done: VecDeque<Done>,
    dropped: u64,
}

impl Activity {
    /// What a new task belongs to, if it is to be timed.
    pub(super) fn about(&self, context: Option<ContextId>, work: &Work) -> Option<About> {
        let is_timed = self.is_kept
            && matches!(
                work,
                Work::Launch(_)
                    | Work::Copy(_)
                    | Work::Set(_)
                    | Work::Upload(..)
                    | Work::Download(..)
            );
        is_timed.then_some(About {
            context,
            ..self.now
        })
    }

    pub(super) fn add(&mut self, done: Done) {
        match self.done.len() < DONE_MAX {
            true => self.done.push_back(done),
            false => self.dropped += 1,
        }
    }
}

impl State {
    /// From now on work is timed, or no longer.
    pub(super) fn keep_activity(&mut self, is_kept: bool) {
        self.activity.is_kept = is_kept;
    }

    /// What is submitted next belongs to a call of this number.
    pub(super) fn of_call(&mut self, call: u32) {
        self.activity.now.call = call;
    }

    /// The work done, the oldest first, at most so much; how much was dropped since the last time, and whether more is left.
    pub(super) fn take_activity(&mut self, max: usize) -> (Vec<Done>, u64, bool) {
        let activity = &mut self.activity;
        let len = activity.done.len().min(max);
        let done = activity.done.drain(..len).collect();
        let dropped = std::mem::take(&mut activity.dropped);
        (done, dropped, !activity.done.is_empty())
    }
}
