//! Activity of the software GPU for a profiler: its own execution, timed.

use std::{borrow::Cow, time::Instant};

use outboard_api::{
    CUresult,
    activity::{NUMBER_CONTEXT, NUMBER_GRAPH, NUMBER_GRAPH_EXEC, NUMBER_GRAPH_NODE, NUMBER_STREAM},
};
use outboard_device::{
    Cx, Failure,
    activity::{ACTIVITIES_PER_ANSWER_MAX, kept_max, now_ns, taken},
};
use outboard_ptx::device::{Done, Finished, Launch, StreamId};
use outboard_wire::{
    doc::{
        ACTIVITY_COPIES, ACTIVITY_EVENTS, ACTIVITY_KERNELS, ACTIVITY_MEMSETS, ACTIVITY_SOFT,
        Activities, Activity, ActivityWhat,
    },
    messages,
};
use rustc_hash::FxHashMap;

use super::Soft;

/// CUPTI's numbers: the null stream of a first context, and the streams that programs make.
const STREAM_NULL: u32 = 7;
const STREAM_MADE: u32 = 13;
const STREAM_STEP: u32 = 4;
/// `CUPTI_ACTIVITY_MEMCPY_KIND_*`.
const TO_DEVICE: u8 = 1;
const TO_HOST: u8 = 2;
const ON_DEVICE: u8 = 8;
const ON_HOST: u8 = 9;
/// `CUPTI_ACTIVITY_MEMORY_KIND_*`.
const PAGEABLE: u8 = 1;
const PINNED: u8 = 2;
const DEVICE: u8 = 3;
const FLAG_ASYNC: u8 = 1;
/// The pieces looked at to fill one answer, where the client wants few of their kinds.
const LOOKED_AT_MAX: usize = ACTIVITIES_PER_ANSWER_MAX as usize;

/// State kept beside the times themselves.
#[derive(Default)]
pub(super) struct Kept {
    /// The kinds asked for, and those that are told of: all that were asked for since none was.
    wanted: u32,
    told: u32,
    /// One moment on both clocks.
    base: Option<(Instant, u64)>,
    streams: FxHashMap<u64, u32>,
    contexts: FxHashMap<u64, u32>,
}

impl Kept {
    fn context_number(&mut self, context: u64) -> u32 {
        let next = self.contexts.len() as u32 + 1;
        *self.contexts.entry(context).or_insert(next)
    }

    /// Returns the number of a stream in the context whose null stream is `legacy`.
    fn stream_number(&mut self, stream: StreamId, legacy: StreamId) -> u32 {
        let made = STREAM_MADE.saturating_add(STREAM_STEP * self.streams.len() as u32);
        match stream == legacy {
            true => STREAM_NULL,
            false => *self.streams.entry(stream.number()).or_insert(made),
        }
    }
}

impl Soft {
    pub(super) fn activity_enable(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::ActivityEnable,
    ) -> Result<messages::ActivityEnableReply<'static>, Failure> {
        // A profile ends kind by kind; what was submitted before is still wanted.
        let kept = &mut self.activity;
        kept.told = match (kept.wanted, m.kinds) {
            (0, 1..) => m.kinds,
            _ => kept.told | m.kinds,
        };
        kept.wanted = m.kinds;
        self.activity
            .base
            .get_or_insert_with(|| (Instant::now(), now_ns()));
        let kept_max = kept_max(m.kept_bytes_max, size_of::<Done>());
        self.gpu.keep_activity(
            (m.kinds != 0).then_some(kept_max),
            m.kinds & ACTIVITY_EVENTS != 0,
        );
        Ok(messages::ActivityEnableReply {
            source: ACTIVITY_SOFT,
            reason: Cow::Borrowed(&[]),
        })
    }

    pub(super) fn activity_clock(
        &mut self,
        _: &mut Cx<'_>,
        _: &messages::ActivityClock,
    ) -> Result<messages::ActivityClockReply, Failure> {
        Ok(messages::ActivityClockReply { now_ns: now_ns() })
    }

    pub(super) fn activity_number(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::ActivityNumber,
    ) -> Result<messages::ActivityNumberReply, Failure> {
        let known = self.context(cx.context)?;
        let (context, legacy) = (known.id.number(), known.legacy);
        let number = match m.what {
            NUMBER_CONTEXT => self.activity.context_number(context).into(),
            NUMBER_STREAM => {
                let stream = self.stream(cx, m.object)?;
                self.activity.stream_number(stream, legacy).into()
            }
            NUMBER_GRAPH => self.graph(m.object)?.number(),
            NUMBER_GRAPH_EXEC => self.exec(m.object)?.number(),
            NUMBER_GRAPH_NODE => self.node_number(m.object)?,
            what => {
                return Err(Failure::new(
                    CUresult::CUDA_ERROR_INVALID_VALUE,
                    format!("{what} is no kind of object that has a number"),
                ));
            }
        };
        Ok(messages::ActivityNumberReply {
            context: self.activity.context_number(context),
            number,
        })
    }

    pub(super) fn activity_take(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::ActivityTake,
    ) -> Result<messages::ActivityTakeReply<'static>, Failure> {
        let max = (m.activities_max as usize).min(LOOKED_AT_MAX);
        let (done, dropped, more) = self.gpu.take_activity(max);
        let mut out = Activities {
            dropped,
            more,
            ..Activities::default()
        };
        let mut names = FxHashMap::default();
        for done in &done {
            let activity = self.activity_of(done, &mut names, &mut out.names);
            out.done.extend(activity);
        }
        taken(&out)
    }

    /// A piece of work as the client is told it, unless it is of a kind that nobody wants.
    fn activity_of(
        &mut self,
        done: &Done,
        numbers: &mut FxHashMap<String, u32>,
        names: &mut Vec<String>,
    ) -> Option<Activity> {
        let (wanted, what) = self.described(&done.what, numbers, names);
        // The server's own work, for answers and words that the client watches, is of no call.
        if self.activity.told & wanted == 0 || done.about.call == 0 {
            return None;
        }
        let context = done.about.context?.number();
        let stream = done.about.stream?;
        let found = self
            .contexts
            .iter()
            .find(|(_, known)| known.id.number() == context);
        let device = found.map_or(0, |(_, known)| known.device as u32);
        let legacy = found.map(|(_, known)| known.legacy);
        let kept = &mut self.activity;
        let (base, base_ns) = kept.base?;
        let at_ns = |at: Instant| {
            let since = at.saturating_duration_since(base).as_nanos();
            base_ns.wrapping_add(u64::try_from(since).unwrap_or(u64::MAX))
        };
        let context = kept.context_number(context);
        let stream = kept.stream_number(stream, legacy.unwrap_or(stream));
        Some(Activity {
            call: done.about.call,
            device,
            context,
            stream,
            start_ns: at_ns(done.start),
            end_ns: at_ns(done.end),
            graph: done.about.graph as u32,
            graph_node: done.about.node,
            what,
        })
    }

    /// Describes a piece of work, and says of which kind it is. Kernels' names are numbered.
    fn described(
        &self,
        done: &Finished,
        numbers: &mut FxHashMap<String, u32>,
        names: &mut Vec<String>,
    ) -> (u32, ActivityWhat) {
        match done {
            Finished::Launch(launch) => {
                let name = launch.code.name();
                let next = names.len() as u32;
                let number = *numbers.entry(name.to_string()).or_insert_with(|| {
                    names.push(name.to_string());
                    next
                });
                (ACTIVITY_KERNELS, kernel(launch, number))
            }
            Finished::Copy { dst, src, bytes } => {
                (ACTIVITY_COPIES, self.copy_between(*dst, *src, *bytes))
            }
            Finished::Upload { bytes } => {
                (ACTIVITY_COPIES, copy(*bytes, TO_DEVICE, PAGEABLE, DEVICE))
            }
            Finished::Download { bytes } => {
                (ACTIVITY_COPIES, copy(*bytes, TO_HOST, DEVICE, PAGEABLE))
            }
            Finished::EventRecorded => (ACTIVITY_EVENTS, ActivityWhat::EventRecorded),
            Finished::Set { bytes, value } => {
                let what = ActivityWhat::Memset {
                    bytes: *bytes,
                    value: *value,
                    memory: DEVICE,
                    flags: FLAG_ASYNC,
                };
                (ACTIVITY_MEMSETS, what)
            }
        }
    }

    /// A copy between addresses: those outside the window are the client's.
    fn copy_between(&self, dst: u64, src: u64, bytes: u64) -> ActivityWhat {
        let (base, len) = self.gpu.memory().window();
        let on_device = |address: u64| address.wrapping_sub(base) < len;
        match (on_device(src), on_device(dst)) {
            (true, true) => copy(bytes, ON_DEVICE, DEVICE, DEVICE),
            (false, true) => copy(bytes, TO_DEVICE, PINNED, DEVICE),
            (true, false) => copy(bytes, TO_HOST, DEVICE, PINNED),
            (false, false) => copy(bytes, ON_HOST, PINNED, PINNED),
        }
    }
}

/// Describes a kernel's run; what only a real GPU has is 0.
fn kernel(launch: &Launch, name: u32) -> ActivityWhat {
    let signed = |extent: [u32; 3]| extent.map(|n| n as i32);
    ActivityWhat::Kernel {
        name,
        grid: signed(launch.grid),
        block: signed(launch.block),
        cluster: [0; 3],
        static_shared_bytes: 0,
        dynamic_shared_bytes: launch.shared_bytes as i32,
        shared_executed_bytes: launch.shared_bytes,
        registers: 0,
        local_bytes_per_thread: 0,
        local_bytes_total: 0,
        launch_type: u8::from(launch.cooperative),
        grid_id: 0,
    }
}

fn copy(bytes: u64, kind: u8, source: u8, destination: u8) -> ActivityWhat {
    ActivityWhat::Copy {
        bytes,
        kind,
        source,
        destination,
        flags: FLAG_ASYNC,
    }
}
