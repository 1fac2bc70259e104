//! Stream captures under way, and the calls that they forbid.
//!
//! The server captures in relaxed mode, since one thread there serves all threads of the program.
//! The client knows what a capture forbids: its thread, its mode, the streams that take part, and
//! whether an error has invalidated it.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUgraphEdgeData, CUgraphNode, CUstream},
    enums::*,
};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use super::{Driver, Resolved, StreamRef, streams::Event};

type Done = Result<(), CUresult>;

/// A capture that has begun and not ended.
pub(crate) struct Capture {
    /// Number of the capture, unique in the process and never 0.
    pub(crate) id: u64,
    /// The stream on which it began and must end.
    pub(crate) origin: u64,
    /// Number of the graph that it creates or extends.
    pub(crate) graph: u64,
    /// The graph existed before: it stays if the capture fails.
    pub(crate) adds: bool,
    pub(crate) context: CUcontext,
    mode: u32,
    thread: u64,
    spoiled: AtomicBool,
    /// The server has ended it.
    closed: AtomicBool,
    /// The last result for each stream: programs have pointers into it.
    answers: Mutex<FxHashMap<u64, Answer>>,
}

/// The arrays that a result of `cuStreamGetCaptureInfo` points to.
struct Answer {
    nodes: Box<[CUgraphNode]>,
    edges: Box<[CUgraphEdgeData]>,
}

impl Capture {
    pub(crate) fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }

    pub(crate) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }

    /// Takes the duty to end it on the server; returns whether nobody had it before.
    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Returns whether this thread may end the capture. Only relaxed captures may end in a thread
    /// other than the one that began them.
    pub(crate) fn may_end_here(&self) -> bool {
        self.mode == CU_STREAM_CAPTURE_MODE_RELAXED || self.thread == this_thread()
    }

    /// Keeps a result until the stream is queried again or the capture ends. Edges that are missing
    /// only order two nodes. Without nodes there are no arrays.
    pub(crate) fn keep_answer(
        &self,
        stream: u64,
        nodes: Vec<CUgraphNode>,
        mut edges: Vec<CUgraphEdgeData>,
    ) -> (*const CUgraphNode, *const CUgraphEdgeData) {
        if nodes.is_empty() {
            return (std::ptr::null(), std::ptr::null());
        }
        edges.resize(nodes.len(), CUgraphEdgeData::default());
        let answer = Answer {
            nodes: nodes.into(),
            edges: edges.into(),
        };
        let pointers = (answer.nodes.as_ptr(), answer.edges.as_ptr());
        self.answers.lock().insert(stream, answer);
        pointers
    }
}

#[derive(Default)]
pub(crate) struct Captures {
    open: AtomicUsize,
    next: AtomicU64,
    all: RwLock<FxHashMap<u64, Arc<Capture>>>,
}

/// The parameters of a new capture.
pub(crate) struct Beginning {
    pub(crate) origin: u64,
    pub(crate) context: CUcontext,
    pub(crate) mode: u32,
    pub(crate) graph: u64,
    pub(crate) adds: bool,
}

impl Captures {
    /// `first` is the number below which no capture of the server has its number.
    pub(crate) fn of(first: u64) -> Captures {
        Captures {
            next: AtomicU64::new(first),
            ..Captures::default()
        }
    }

    /// Returns whether there is any capture. Everything else is checked only then.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    pub(crate) fn begin(&self, beginning: Beginning) -> Arc<Capture> {
        let Beginning {
            origin,
            context,
            mode,
            graph,
            adds,
        } = beginning;
        let capture = Arc::new(Capture {
            id: self.next.fetch_add(1, Ordering::Relaxed) + 1,
            origin,
            graph,
            adds,
            context,
            mode,
            thread: this_thread(),
            spoiled: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            answers: Mutex::default(),
        });
        self.all.write().insert(capture.id, capture.clone());
        self.open.fetch_add(1, Ordering::AcqRel);
        capture
    }

    pub(crate) fn end(&self, id: u64) {
        if self.all.write().remove(&id).is_some() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Capture>> {
        self.all.read().get(&id).cloned()
    }

    /// Invalidates a capture after an error: it cannot produce a graph any more.
    pub(crate) fn spoil(&self, id: u64) {
        if let Some(capture) = self.get(id) {
            capture.spoil();
        }
    }

    /// Returns whether a capture into a graph is under way.
    pub(crate) fn any_into(&self, graph: u64) -> bool {
        let all = self.all.read();
        all.values().any(|capture| capture.graph == graph)
    }

    /// Returns the captures into a graph.
    pub(crate) fn of_graph(&self, graph: u64) -> Vec<Arc<Capture>> {
        let all = self.all.read();
        let captures = all.values().filter(|capture| capture.graph == graph);
        captures.cloned().collect()
    }

    /// Removes the captures of a context that is gone.
    pub(crate) fn remove_context(&self, context: CUcontext) {
        let gone: Vec<u64> = self
            .all
            .read()
            .values()
            .filter(|c| c.context == context)
            .map(|c| c.id)
            .collect();
        for id in gone {
            self.end(id);
        }
    }

    /// Checks a call that captures do not record but captured work may depend on, such as an
    /// allocation. The modes of the calling thread and of the captures decide whether it is
    /// allowed; if not, it invalidates the captures that forbid it.
    pub(crate) fn check_unsafe(&self) -> Done {
        let mode = thread_mode();
        if mode == CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let thread = this_thread();
        let forbids = |capture: &Capture| match capture.thread == thread {
            true => capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED,
            false => {
                mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                    && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL
            }
        };
        self.refuse(forbids)
    }

    /// Refuses a call that conflicts with every capture of a context, in any mode.
    pub(crate) fn check_context(&self, context: CUcontext) -> Done {
        self.refuse(|capture| capture.context == context)
    }

    fn refuse(&self, forbids: impl Fn(&Capture) -> bool) -> Done {
        let mut refused = Ok(());
        for capture in self.all.read().values().filter(|c| forbids(c)) {
            capture.spoil();
            refused = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        refused
    }
}

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(CU_STREAM_CAPTURE_MODE_GLOBAL) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

fn thread_mode() -> u32 {
    MODE.try_with(Cell::get)
        .unwrap_or(CU_STREAM_CAPTURE_MODE_GLOBAL)
}

/// `cuThreadExchangeStreamCaptureMode`: returns the calling thread's previous mode.
pub(crate) fn exchange_thread_mode(mode: u32) -> u32 {
    MODE.try_with(|m| m.replace(mode)).unwrap_or(mode)
}

/// Returns a number for the calling thread, never used again.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    THREAD
        .try_with(|thread| {
            if thread.get() == 0 {
                thread.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            thread.get()
        })
        .unwrap_or(0)
}

impl Driver {
    /// Resolves the stream argument of a call that gives the stream work.
    #[inline(always)]
    pub(crate) fn work_stream(&self, stream: CUstream) -> Result<Resolved, CUresult> {
        let stream = self.stream(stream)?;
        if self.captures.any() {
            self.check_usable(&stream)?;
        }
        Ok(stream)
    }

    /// Resolves the stream argument of a call that waits for the stream or queries it: captured
    /// work never completes.
    #[inline]
    pub(crate) fn awaited_stream(&self, stream: CUstream) -> Result<Resolved, CUresult> {
        let stream = self.stream(stream)?;
        if self.captures.any() {
            self.check_usable(&stream)?;
            self.refuse_captured(&stream)?;
        }
        Ok(stream)
    }

    /// Refuses a call that cannot become part of a graph.
    pub(crate) fn refuse_captured(&self, stream: &StreamRef) -> Done {
        match self.capture_of(stream) {
            Some(capture) => {
                capture.spoil();
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    #[cold]
    pub(crate) fn check_usable(&self, stream: &StreamRef) -> Done {
        if stream.is_legacy() {
            return self.check_legacy(stream, true);
        }
        match self.capture_of(stream) {
            Some(capture) if capture.is_spoiled() => {
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
            }
            _ => Ok(()),
        }
    }

    /// Refuses the legacy stream while a blocking stream captures, since it depends on all of them.
    fn check_legacy(&self, legacy: &StreamRef, spoils: bool) -> Done {
        let mut result = Ok(());
        for stream in self.streams.of_context(legacy.stream().context) {
            let id = stream.capture.load(Ordering::Acquire);
            if id == 0 || stream.flags & CU_STREAM_NON_BLOCKING != 0 {
                continue;
            }
            result = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
            if spoils {
                self.captures.spoil(id);
            }
        }
        result
    }

    /// Returns the capture that a stream takes part in.
    pub(crate) fn capture_of(&self, stream: &StreamRef) -> Option<Arc<Capture>> {
        match stream.stream().capture.load(Ordering::Acquire) {
            0 => None,
            id => self.captures.get(id),
        }
    }

    /// `CUstreamCaptureStatus`
    pub(crate) fn capture_status(&self, stream: &StreamRef) -> Result<u32, CUresult> {
        if !self.captures.any() {
            return Ok(CU_STREAM_CAPTURE_STATUS_NONE);
        }
        if stream.is_legacy() {
            self.check_legacy(stream, false)?;
        }
        Ok(match self.capture_of(stream) {
            None => CU_STREAM_CAPTURE_STATUS_NONE,
            Some(capture) if capture.is_spoiled() => CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            Some(_) => CU_STREAM_CAPTURE_STATUS_ACTIVE,
        })
    }

    /// Makes a stream part of a capture if it waits for an event that was recorded in the capture.
    pub(crate) fn join_capture(&self, stream: &StreamRef, event: &Event, external: bool) -> Done {
        let recorded_in = event.capture.load(Ordering::Acquire);
        let own = stream.stream().capture.load(Ordering::Acquire);
        let Some(capture) = self.captures.get(recorded_in) else {
            if own == 0 || external || event.records.made() == 0 {
                return Ok(());
            }
            self.captures.spoil(own);
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
        };
        if capture.is_spoiled() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if stream.is_legacy() {
            capture.spoil();
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        if own == 0 {
            self.settle_staging();
        }
        match self.streams.enter_capture(stream.stream(), recorded_in) {
            Err(other) if other != recorded_in => {
                capture.spoil();
                self.captures.spoil(other);
                Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)
            }
            _ => Ok(()),
        }
    }

    /// Refuses to wait for or query an event that was recorded in a capture.
    pub(crate) fn refuse_captured_event(&self, event: &Event) -> Done {
        match event.capture.load(Ordering::Acquire) {
            0 => Ok(()),
            id => {
                self.captures.spoil(id);
                Err(CUresult::CUDA_ERROR_CAPTURED_EVENT)
            }
        }
    }

    /// Removes a capture; no stream and no event takes part in it any more.
    pub(crate) fn forget_capture(&self, capture: &Capture) {
        self.streams.end_capture(capture.id);
        self.captures.end(capture.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: CUcontext = CUcontext(1);
    const REFUSED: Done = Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);

    fn begin(captures: &Captures, mode: u32) -> Arc<Capture> {
        captures.begin(Beginning {
            origin: 7,
            context: HERE,
            mode,
            graph: 9,
            adds: false,
        })
    }

    /// Makes an unsafe call in another thread that has the given mode.
    fn elsewhere(captures: &Captures, mode: u32) -> Done {
        let call = || {
            exchange_thread_mode(mode);
            captures.check_unsafe()
        };
        std::thread::scope(|scope| scope.spawn(call).join().expect("no panic"))
    }

    #[test]
    fn a_global_capture_forbids_unsafe_calls_in_all_threads_that_are_global() {
        let captures = Captures::default();
        assert_eq!(captures.check_unsafe(), Ok(()));
        let capture = begin(&captures, CU_STREAM_CAPTURE_MODE_GLOBAL);
        assert_eq!(elsewhere(&captures, CU_STREAM_CAPTURE_MODE_RELAXED), Ok(()));
        assert_eq!(
            elsewhere(&captures, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
            Ok(())
        );
        assert!(!capture.is_spoiled());
        assert_eq!(elsewhere(&captures, CU_STREAM_CAPTURE_MODE_GLOBAL), REFUSED);
        assert!(capture.is_spoiled());
        captures.end(capture.id);
        assert_eq!(captures.check_unsafe(), Ok(()));
        assert!(!captures.any());
    }

    #[test]
    fn a_thread_local_capture_forbids_unsafe_calls_in_its_own_thread() {
        let captures = Captures::default();
        let capture = begin(&captures, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        assert_eq!(elsewhere(&captures, CU_STREAM_CAPTURE_MODE_GLOBAL), Ok(()));
        assert!(!capture.is_spoiled());
        let before = exchange_thread_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
        assert_eq!(captures.check_unsafe(), Ok(()));
        assert_eq!(exchange_thread_mode(before), CU_STREAM_CAPTURE_MODE_RELAXED);
        assert_eq!(captures.check_unsafe(), REFUSED);
        assert!(capture.is_spoiled());
    }

    #[test]
    fn a_relaxed_capture_forbids_only_what_waits_for_its_context() {
        let captures = Captures::default();
        let capture = begin(&captures, CU_STREAM_CAPTURE_MODE_RELAXED);
        assert_eq!(captures.check_unsafe(), Ok(()));
        assert_eq!(elsewhere(&captures, CU_STREAM_CAPTURE_MODE_GLOBAL), Ok(()));
        assert_eq!(captures.check_context(CUcontext(2)), Ok(()));
        assert!(!capture.is_spoiled());
        assert_eq!(captures.check_context(HERE), REFUSED);
        assert!(capture.is_spoiled());
    }

    #[test]
    fn captures_but_relaxed_ones_end_in_their_own_thread() {
        let captures = Captures::default();
        for (mode, elsewhere) in [
            (CU_STREAM_CAPTURE_MODE_GLOBAL, false),
            (CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false),
            (CU_STREAM_CAPTURE_MODE_RELAXED, true),
        ] {
            let capture = begin(&captures, mode);
            assert!(capture.may_end_here());
            let there = std::thread::scope(|scope| {
                scope
                    .spawn(|| capture.may_end_here())
                    .join()
                    .expect("no panic")
            });
            assert_eq!(there, elsewhere, "mode {mode}");
        }
    }

    #[test]
    fn ids_are_never_used_again_and_contexts_take_their_captures_along() {
        let captures = Captures::default();
        let first = begin(&captures, CU_STREAM_CAPTURE_MODE_GLOBAL);
        captures.end(first.id);
        captures.end(first.id);
        let second = begin(&captures, CU_STREAM_CAPTURE_MODE_GLOBAL);
        assert_ne!(first.id, second.id);
        captures.remove_context(CUcontext(2));
        assert!(captures.any());
        captures.remove_context(HERE);
        assert!(!captures.any());
        assert!(captures.get(second.id).is_none());
    }

    #[test]
    fn answers_stay_where_they_are_until_the_next_one() {
        let captures = Captures::default();
        let capture = begin(&captures, CU_STREAM_CAPTURE_MODE_GLOBAL);
        let programmatic = CUgraphEdgeData {
            from_port: 1,
            kind: 1,
            ..CUgraphEdgeData::default()
        };
        let found = vec![CUgraphNode(3), CUgraphNode(4)];
        let (nodes, edges) = capture.keep_answer(7, found, vec![programmatic]);
        capture.keep_answer(8, vec![CUgraphNode(5)], Vec::new());
        let none = capture.keep_answer(7, Vec::new(), Vec::new());
        assert!(none.0.is_null() && none.1.is_null());
        // SAFETY: two entries each, kept by the capture.
        let (nodes, edges) = unsafe {
            (
                std::slice::from_raw_parts(nodes, 2),
                std::slice::from_raw_parts(edges, 2),
            )
        };
        assert_eq!(nodes, [CUgraphNode(3), CUgraphNode(4)]);
        assert_eq!(edges, [programmatic, CUgraphEdgeData::default()]);
    }
}
