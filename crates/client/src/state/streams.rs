//! Streams and events: the work sent to them, the work known to be done, and their captures.

use std::{
    cell::RefCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUevent, CUstream},
    enums::CU_EVENT_INTERPROCESS,
};
use outboard_wire::messages;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::{Driver, HandleKind, current_context};
use crate::session::Group;

/// Counts work that was sent, and work that is known to be done. If they are equal, a wait need not
/// ask.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    submitted: AtomicU64,
    completed: AtomicU64,
    /// The last row of consecutive messages that are no work for the GPU: the marks before and
    /// after it.
    quiet: Mutex<(u64, u64)>,
}

impl Progress {
    #[inline]
    pub(crate) fn submit(&self) {
        self.submitted.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a message that is no work for the GPU.
    pub(crate) fn submit_quietly(&self) {
        let mark = self.submitted.fetch_add(1, Ordering::AcqRel) + 1;
        let mut quiet = self.quiet.lock();
        *quiet = match quiet.1 == mark - 1 {
            true => (quiet.0, mark),
            false => (mark - 1, mark),
        };
    }

    /// Returns the mark after all work for the GPU that was sent.
    pub(crate) fn work_mark(&self) -> u64 {
        let quiet = *self.quiet.lock();
        let mark = self.mark();
        if quiet.1 == mark { quiet.0 } else { mark }
    }

    /// Returns a mark, to be passed to `complete` once everything before it is done.
    pub(crate) fn mark(&self) -> u64 {
        self.submitted.load(Ordering::Acquire)
    }

    pub(crate) fn complete(&self, mark: u64) {
        self.completed.fetch_max(mark, Ordering::AcqRel);
    }

    /// Completes everything before `mark`, and `count` more if nothing else has been sent since.
    pub(crate) fn complete_alone(&self, mark: u64, count: u64) {
        self.complete(self.alone(mark, count));
    }

    /// Returns `mark + count` if exactly `count` items were sent after `mark`, otherwise `mark`.
    pub(crate) fn alone(&self, mark: u64, count: u64) -> u64 {
        match self.mark() == mark + count {
            true => mark + count,
            false => mark,
        }
    }

    pub(crate) fn is_complete(&self, mark: u64) -> bool {
        self.completed.load(Ordering::Acquire) >= mark
    }

    /// Returns the mark up to which work is known to be done; `u64::MAX` if all of it is.
    pub(crate) fn known(&self) -> u64 {
        if self.is_idle() {
            u64::MAX
        } else {
            self.completed.load(Ordering::Acquire)
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.completed.load(Ordering::Acquire) >= self.submitted.load(Ordering::Acquire)
    }
}

pub(crate) struct Stream {
    pub(crate) handle: u64,
    pub(crate) context: CUcontext,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) progress: Progress,
    /// For the legacy stream: the part of all work sent that is known to be done.
    pub(crate) everything: Progress,
    /// The capture that the stream takes part in; 0 for none.
    pub(crate) capture: AtomicU64,
    /// A query without a reply so far, and its mark.
    pub(crate) query: Mutex<Option<(u64, Arc<Group>)>>,
}

pub(crate) struct Event {
    pub(crate) handle: u64,
    pub(crate) context: CUcontext,
    pub(crate) flags: u32,
    /// Counts records of the event.
    pub(crate) progress: Progress,
    /// The stream in which it was last recorded, and the stream's mark at that time.
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
    /// Returns whether other processes may record it too.
    pub(crate) fn is_shared(&self) -> bool {
        self.flags & CU_EVENT_INTERPROCESS != 0
    }

    /// Forgets that a shared event is reached: only the server knows of other processes' records.
    pub(crate) fn doubt(&self) {
        if self.is_shared() {
            self.progress.submit();
        }
    }

    /// Completes the event if the work before its record is known to be done.
    pub(crate) fn settle(&self) {
        let mark = self.progress.mark();
        let reached = self
            .recorded
            .lock()
            .as_ref()
            .is_some_and(|(stream, sent)| stream.progress.is_complete(*sent));
        if reached {
            self.progress.complete(mark);
        }
    }

    /// Marks the event as reached, and the work before it in its stream as done.
    pub(crate) fn reached(&self, mark: u64) {
        self.progress.complete(mark);
        // If it was recorded again meanwhile, its mark is of later work.
        if self.progress.mark() == mark
            && let Some((stream, sent)) = self.recorded.lock().as_ref()
        {
            stream.progress.complete(*sent);
        }
    }
}

impl StreamRef {
    /// Returns the number in messages.
    pub(crate) fn wire(&self) -> u64 {
        match self {
            StreamRef::Legacy(_) => 0,
            StreamRef::Own(stream) => stream.handle,
        }
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.stream().progress
    }

    pub(crate) fn stream(&self) -> &Arc<Stream> {
        match self {
            StreamRef::Legacy(stream) | StreamRef::Own(stream) => stream,
        }
    }

    pub(crate) fn is_legacy(&self) -> bool {
        matches!(self, StreamRef::Legacy(_))
    }

    pub(crate) fn is_capturing(&self) -> bool {
        self.stream().capture.load(Ordering::Acquire) != 0
    }
}

#[derive(Default)]
pub(crate) struct Streams {
    streams: RwLock<FxHashMap<u64, Arc<Stream>>>,
    events: RwLock<FxHashMap<u64, Arc<Event>>>,
    legacy: RwLock<FxHashMap<usize, Arc<Stream>>>,
    /// Counts destroyed streams: what a thread remembers is valid while this is unchanged.
    gone: AtomicU64,
}

/// A stream argument that was resolved before.
struct Remembered {
    argument: CUstream,
    context: Option<CUcontext>,
    gone: u64,
    stream: StreamRef,
}

thread_local! {
    /// The stream of the thread's last call: most calls name the same one.
    static LAST: RefCell<Option<Remembered>> = const { RefCell::new(None) };
    /// The thread's own default stream in each context.
    static PER_THREAD: RefCell<FxHashMap<usize, Arc<Stream>>> = RefCell::default();
}

impl Streams {
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

    /// Returns a stream of the program by its number.
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<Stream>> {
        self.streams.read().get(&handle).cloned()
    }

    pub(crate) fn remove(&self, stream: &Stream) {
        self.streams.write().remove(&stream.handle);
        self.gone.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn insert_event(&self, handle: u64, context: CUcontext, flags: u32) {
        let event = Event {
            handle,
            context,
            flags,
            progress: Progress::default(),
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

    /// Returns the streams of a context with work not known to be done, and each one's mark.
    pub(crate) fn busy_in(&self, context: CUcontext) -> Vec<(Arc<Stream>, u64)> {
        let (own, legacy) = (self.streams.read(), self.legacy.read());
        own.values()
            .chain(legacy.get(&context.0))
            .filter(|s| s.context == context && !s.progress.is_idle())
            .map(|s| (s.clone(), s.progress.mark()))
            .collect()
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

    /// Removes the streams and events of a context that is gone.
    pub(crate) fn remove_context(&self, context: CUcontext) {
        self.streams.write().retain(|_, s| s.context != context);
        self.events.write().retain(|_, e| e.context != context);
        self.legacy.write().remove(&context.0);
        self.gone.fetch_add(1, Ordering::Release);
    }

    /// Returns the default stream of a context, if it has been used.
    pub(crate) fn legacy_of(&self, context: CUcontext) -> Option<Arc<Stream>> {
        self.legacy.read().get(&context.0).cloned()
    }

    fn legacy(&self, context: CUcontext) -> Arc<Stream> {
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
        everything: Progress::default(),
        capture: AtomicU64::new(0),
        query: Mutex::new(None),
    }
}

impl Driver {
    /// Resolves a stream argument: one of the program's streams, or a default one.
    #[inline(always)]
    pub(crate) fn stream(&self, stream: CUstream) -> Result<StreamRef, CUresult> {
        let context = current_context().ok();
        // Read before the tables, so that a stream destroyed meanwhile is not remembered as
        // existing.
        let gone = self.streams.gone.load(Ordering::Acquire);
        let last = LAST.try_with(|last| match &*last.borrow() {
            Some(last)
                if last.argument == stream && last.gone == gone && last.context == context =>
            {
                Some(last.stream.clone())
            }
            _ => None,
        });
        match last {
            Ok(Some(known)) => Ok(known),
            _ => self.look_up_stream(stream, context, gone),
        }
    }

    #[cold]
    fn look_up_stream(
        &self,
        argument: CUstream,
        context: Option<CUcontext>,
        gone: u64,
    ) -> Result<StreamRef, CUresult> {
        let stream = self.resolve_stream(argument)?;
        let remembered = Remembered {
            argument,
            context,
            gone,
            stream: stream.clone(),
        };
        // Dropped outside the closure: it may be the last reference to its stream.
        let _before = LAST.try_with(|last| last.replace(Some(remembered)));
        Ok(stream)
    }

    fn resolve_stream(&self, stream: CUstream) -> Result<StreamRef, CUresult> {
        if stream.is_null() || stream == CU_STREAM_LEGACY {
            return Ok(StreamRef::Legacy(self.streams.legacy(current_context()?)));
        }
        if stream == CU_STREAM_PER_THREAD {
            return self.per_thread_stream().map(StreamRef::Own);
        }
        let known = self.streams.streams.read().get(&(stream.0 as u64)).cloned();
        known
            .map(StreamRef::Own)
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    }

    fn per_thread_stream(&self) -> Result<Arc<Stream>, CUresult> {
        let context = current_context()?;
        let own = PER_THREAD
            .try_with(|p| p.borrow().get(&context.0).cloned())
            .ok()
            .flatten();
        if let Some(stream) = own.filter(|s| self.streams.streams.read().contains_key(&s.handle)) {
            return Ok(stream);
        }
        let handle = self.handles.mint(HandleKind::Stream);
        self.submit(&messages::StreamCreate {
            stream: handle,
            flags: 0,
            priority: 0,
        })?;
        let stream = self.streams.insert(handle, context, 0, 0);
        let _ = PER_THREAD.try_with(|p| p.borrow_mut().insert(context.0, stream.clone()));
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn what_is_no_work_is_not_waited_for() {
        let progress = Progress::default();
        progress.submit();
        progress.submit_quietly();
        progress.submit_quietly();
        assert_eq!((progress.mark(), progress.work_mark()), (3, 1));
        assert!(!progress.is_complete(progress.work_mark()));
        progress.complete(1);
        assert!(progress.is_complete(progress.work_mark()) && !progress.is_idle());
        // Later messages are work.
        progress.submit();
        assert_eq!(progress.work_mark(), 4);
        progress.submit_quietly();
        assert_eq!(progress.work_mark(), 4);
        progress.complete(5);
        assert!(progress.is_idle());
    }
}
