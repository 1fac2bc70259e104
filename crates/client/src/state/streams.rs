//! Streams and events: the work sent to them, the work known to be done, and their captures.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUevent},
    enums::{CU_EVENT_INTERPROCESS, CU_STREAM_NON_BLOCKING},
};
use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard, RwLock};
use rustc_hash::FxHashMap;

use crate::session::{Group, Numbered, Progress};

/// Counts of an event's records, and of those known to be reached.
#[derive(Debug, Default)]
pub(crate) struct Records {
    made: AtomicU64,
    reached: AtomicU64,
}

impl Records {
    pub(crate) fn add(&self) {
        self.made.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    pub(crate) fn reach(&self, record: u64) {
        self.reached.fetch_max(record, Ordering::AcqRel);
    }

    /// The record up to which all are known to be reached.
    pub(crate) fn reached(&self) -> &AtomicU64 {
        &self.reached
    }

    pub(crate) fn is_reached(&self, record: u64) -> bool {
        self.reached.load(Ordering::Acquire) >= record
    }
}

pub(crate) struct Stream {
    /// The number in messages; 0 for a legacy stream.
    pub(crate) handle: u64,
    pub(crate) context: CUcontext,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    /// Each act in the legacy stream waits for all earlier work of the context's blocking streams,
    /// so what is done there up to a number is done in those, too.
    pub(crate) progress: Progress,
    /// The capture that the stream takes part in; 0 for none.
    pub(crate) capture: AtomicU64,
    /// A query without a reply so far, and its mark.
    pub(crate) query: Mutex<Option<(u64, Arc<Group>)>>,
    /// It has waited for an event of any stream, for a word, or in a graph that may do so.
    pub(crate) follows: AtomicBool,
    /// Pieces of work sent while a host function was registered, since a call last waited for that.
    pub(crate) behind: AtomicU32,
    /// Number of the last copy to the device whose bytes the call took and before which all work
    /// that it waits for was done, or was such copies: while nothing was sent after it, a wait for
    /// the stream is one for copies that the program cannot see.
    pub(crate) taken: AtomicU64,
    /// The last copy into pinned memory of the program's, if its reply tells as much as that of a
    /// fence after it: its number, and its reply.
    pub(crate) brought: Mutex<Option<(u64, Arc<Group>)>>,
}

pub(crate) struct Event {
    pub(crate) handle: u64,
    pub(crate) context: CUcontext,
    pub(crate) flags: u32,
    pub(crate) records: Records,
    /// The stream in which it was last recorded, and the number of the record's message.
    pub(crate) recorded: Mutex<Option<(Arc<Stream>, u64)>>,
    /// The capture in which it was last recorded; 0 for none.
    pub(crate) capture: AtomicU64,
    pub(crate) query: Mutex<Option<(u64, Arc<Group>)>>,
    /// It was queried since it was last recorded.
    pub(crate) watched: AtomicBool,
}

/// A resolved stream argument.
#[derive(Clone)]
pub(crate) enum StreamRef {
    /// The default stream that waits for all blocking streams.
    Legacy(Arc<Stream>),
    Own(Arc<Stream>),
}

impl Event {
    /// Returns the context in messages.
    pub(crate) fn wire_context(&self) -> u64 {
        self.context.0 as u64
    }

    /// Returns whether other processes may record it too.
    pub(crate) fn is_shared(&self) -> bool {
        self.flags & CU_EVENT_INTERPROCESS != 0
    }

    /// Forgets that a shared event is reached: only the server knows of other processes' records.
    pub(crate) fn doubt(&self) {
        if self.is_shared() {
            self.records.add();
        }
    }

    /// Notes a record that a kernel makes while it runs, as part of a capture if there is one. No
    /// stream tells when it is reached.
    pub(crate) fn recorded_within(&self, capture: u64) {
        self.capture.store(capture, Ordering::Release);
        *self.recorded.lock() = None;
        self.records.add();
    }

    /// Completes the event if the work before its record is known to be done.
    pub(crate) fn settle(&self) {
        let record = self.records.made();
        let reached = self
            .recorded
            .lock()
            .as_ref()
            .is_some_and(|(stream, sent)| stream.progress.is_complete(*sent));
        if reached {
            self.records.reach(record);
        }
    }

    /// Marks the event as reached, and the work before it in its stream as done.
    pub(crate) fn reached(&self, record: u64) {
        self.records.reach(record);
        // If it was recorded again meanwhile, the number is of later work.
        if self.records.made() == record
            && let Some((stream, sent)) = self.recorded.lock().as_ref()
        {
            stream.progress.complete(*sent);
        }
    }
}

impl Stream {
    /// Returns whether all its work is known to be done. What waits for the legacy stream of its
    /// context has waited for those that it waits for.
    fn is_known_done(&self, legacy: Option<&Stream>) -> bool {
        let last = self.progress.work_mark();
        let is_blocking = self.flags & CU_STREAM_NON_BLOCKING == 0;
        self.progress.is_complete(last)
            || is_blocking && legacy.is_some_and(|legacy| legacy.progress.is_complete(last))
    }
}

impl StreamRef {
    /// Returns how a message that is work for this stream is numbered.
    #[inline(always)]
    pub(crate) fn work(&self) -> Numbered<'_> {
        Numbered::Work(Some(self.progress()))
    }

    /// Returns the number in messages.
    pub(crate) fn wire(&self) -> u64 {
        self.stream().handle
    }

    /// Returns the context in messages.
    pub(crate) fn context(&self) -> u64 {
        self.stream().context.0 as u64
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.stream().progress
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        match self {
            StreamRef::Legacy(stream) | StreamRef::Own(stream) => stream,
        }
    }

    /// Returns whether work here may come after work of another stream, by its number.
    pub(crate) fn may_follow(&self, other: u64) -> bool {
        let own = self.stream();
        let is_blocking = own.flags & CU_STREAM_NON_BLOCKING == 0;
        own.handle == other || is_blocking || own.follows.load(Ordering::Acquire)
    }

    pub(crate) fn is_legacy(&self) -> bool {
        matches!(self, StreamRef::Legacy(_))
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.stream().capture.load(Ordering::Acquire) != 0
    }
}

/// Streams stay while this is held, and outside of captures that they are not part of.
pub(crate) type Held<'a> = ReentrantMutexGuard<'a, ()>;

#[derive(Default)]
pub(crate) struct Streams {
    streams: RwLock<FxHashMap<u64, Arc<Stream>>>,
    events: RwLock<FxHashMap<u64, Arc<Event>>>,
    legacy: RwLock<FxHashMap<usize, Arc<Stream>>>,
    /// Counts destroyed streams: what a thread remembers is valid while this is unchanged.
    gone: AtomicU64,
    /// By context, the number of the last work of streams that were destroyed before it was known
    /// to be done.
    left: Mutex<FxHashMap<usize, u64>>,
    /// Number of the last work of contexts that were destroyed before it was known to be done.
    left_by_contexts: AtomicU64,
    /// Held while streams of other threads are named to the server, and while one of them goes or
    /// becomes part of a capture.
    changes: ReentrantMutex<()>,
}

impl Streams {
    /// `first` is the number below which no object of the server has its number.
    pub(crate) fn of(first: u64) -> Streams {
        Streams {
            // Counts of different servers never agree.
            gone: AtomicU64::new(first),
            ..Streams::default()
        }
    }

    pub(crate) fn insert(
        &self,
        handle: u64,
        context: CUcontext,
        flags: u32,
        priority: i32,
    ) -> Arc<Stream> {
        let stream = Arc::new(new_stream(handle, context, flags, priority));
        self.streams.write().insert(handle, stream.clone());
        stream
    }

    /// Returns how many streams have been destroyed, as a number of this server's.
    pub(crate) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Acquire)
    }

    /// Returns a stream of the program by its number.
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<Stream>> {
        self.streams.read().get(&handle).cloned()
    }

    /// Keeps streams from going and from becoming part of a capture. What is submitted meanwhile
    /// reaches the server before either.
    pub(crate) fn hold(&self) -> Held<'_> {
        self.changes.lock()
    }

    pub(crate) fn remove(&self, stream: &Stream) {
        let _held = self.hold();
        let last = stream.progress.work_mark();
        if !stream.progress.is_complete(last) {
            let mut left = self.left.lock();
            let known = left.entry(stream.context.0).or_default();
            *known = last.max(*known);
        }
        self.streams.write().remove(&stream.handle);
        self.gone.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn insert_event(&self, handle: u64, context: CUcontext, flags: u32) {
        let event = Event {
            handle,
            context,
            flags,
            records: Records::default(),
            recorded: Mutex::new(None),
            capture: AtomicU64::new(0),
            query: Mutex::new(None),
            watched: AtomicBool::new(false),
        };
        self.events.write().insert(handle, Arc::new(event));
    }

    pub(crate) fn remove_event(&self, event: &Event) {
        self.events.write().remove(&event.handle);
    }

    pub(crate) fn event(&self, event: CUevent) -> Result<Arc<Event>, CUresult> {
        self.events
            .read()
            .get(&(event.0 as u64))
            .cloned()
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    /// Makes a stream part of a capture, unless it takes part in one: then that is the error.
    pub(crate) fn enter_capture(&self, stream: &Stream, capture: u64) -> Result<(), u64> {
        let _held = self.hold();
        stream
            .capture
            .compare_exchange(0, capture, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }

    /// Ends a capture: no stream and no event takes part in it any more.
    pub(crate) fn end_capture(&self, capture: u64) {
        for stream in self
            .streams
            .read()
            .values()
            .chain(self.legacy.read().values())
        {
            let _ =
                stream
                    .capture
                    .compare_exchange(capture, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        for event in self.events.read().values() {
            let _ = event
                .capture
                .compare_exchange(capture, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Notes that a context's work is done up to a number.
    pub(crate) fn complete_in(&self, context: CUcontext, mark: u64) {
        self.left
            .lock()
            .retain(|of, last| *of != context.0 || *last > mark);
        let (own, legacy) = (self.streams.read(), self.legacy.read());
        let streams = own.values().chain(legacy.get(&context.0));
        for stream in streams.filter(|s| s.context == context) {
            stream.progress.complete(mark);
        }
    }

    /// Returns whether work of a context may still run: of its streams, or of streams that were
    /// destroyed. `session` are the numbers of the session.
    pub(crate) fn is_at_work(&self, context: CUcontext, session: &Progress) -> bool {
        if session.is_complete(session.work_mark()) {
            return false;
        }
        let legacy = self.legacy_of(context);
        let own = self.streams.read();
        let mut streams = own.values().chain(&legacy).filter(|s| s.context == context);
        self.left.lock().contains_key(&context.0)
            || !streams.all(|s| s.is_known_done(legacy.as_deref()))
    }

    /// Returns the streams of which work may still run; `None` if work of destroyed streams or
    /// contexts may.
    pub(crate) fn at_work(
        &self,
        contexts: &[CUcontext],
        session: &Progress,
    ) -> Option<Vec<Arc<Stream>>> {
        if session.is_complete(session.work_mark()) {
            return Some(Vec::new());
        }
        if !session.is_complete(self.left_by_contexts.load(Ordering::Acquire)) {
            return None;
        }
        let mut busy = Vec::new();
        for context in contexts {
            if self.left.lock().contains_key(&context.0) {
                return None;
            }
            let legacy = self.legacy_of(*context);
            let own = self.streams.read();
            let streams = own.values().chain(&legacy);
            let is_busy =
                |s: &&Arc<Stream>| s.context == *context && !s.is_known_done(legacy.as_deref());
            busy.extend(streams.filter(is_busy).cloned());
        }
        Some(busy)
    }

    /// Returns all streams of a context except the legacy one.
    pub(crate) fn of_context(&self, context: CUcontext) -> Vec<Arc<Stream>> {
        self.streams
            .read()
            .values()
            .filter(|s| s.context == context)
            .cloned()
            .collect()
    }

    /// Removes the streams and events of a context that is gone. `session` are the numbers of the
    /// session.
    pub(crate) fn remove_context(&self, context: CUcontext, session: &Progress) {
        let _held = self.hold();
        if self.is_at_work(context, session) {
            self.left_by_contexts
                .fetch_max(session.mark(), Ordering::AcqRel);
        }
        self.left.lock().remove(&context.0);
        self.streams.write().retain(|_, s| s.context != context);
        self.events.write().retain(|_, e| e.context != context);
        self.legacy.write().remove(&context.0);
        self.gone.fetch_add(1, Ordering::Release);
    }

    /// Returns the default stream of a context, if it has been used.
    pub(crate) fn legacy_of(&self, context: CUcontext) -> Option<Arc<Stream>> {
        self.legacy.read().get(&context.0).cloned()
    }

    pub(crate) fn legacy(&self, context: CUcontext) -> Arc<Stream> {
        if let Some(stream) = self.legacy.read().get(&context.0) {
            return stream.clone();
        }
        let mut legacy = self.legacy.write();
        legacy
            .entry(context.0)
            .or_insert_with(|| Arc::new(new_stream(0, context, 0, 0)))
            .clone()
    }
}

fn new_stream(handle: u64, context: CUcontext, flags: u32, priority: i32) -> Stream {
    Stream {
        handle,
        context,
        flags,
        priority,
        progress: Progress::default(),
        capture: AtomicU64::new(0),
        query: Mutex::new(None),
        follows: AtomicBool::new(false),
        behind: AtomicU32::new(0),
        taken: AtomicU64::new(0),
        brought: Mutex::new(None),
    }
}
