//! Times the GPU's work without CUPTI, with an event before each kernel, memset, copy and graph,
//! and one after it.
//!
//! Events that have passed are read a few at a time, at later launches and at waits; no thread
//! waits for one. No events are put into a stream that is being captured. A base is an event of our
//! own stream, passed between two looks at the recording's clock, and converts the GPU's time to
//! the recording's; a new one follows every second, so that elapsed times, which are floats, stay
//! exact.

mod driver;
mod what;

use std::{
    collections::{VecDeque, hash_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Instant,
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUevent, CUstream},
};
use outboard_trace::{
    GpuTimes, GpuWork, Record, Work,
    live::{self, Live},
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use self::driver::{Driver, SUCCESS};
pub(crate) use self::what::*;
use crate::driver::say;

/// Work whose times are not read yet, at most; further work is not timed.
const PENDING_MAX: usize = 1 << 16;
/// Times are read once per this many pieces of work, up to `READ_MAX` of them.
const READ_EVERY: u32 = 16;
const READ_MAX: usize = 32;
/// Times that are read at a wait, at most.
const READ_AT_WAIT_MAX: usize = 256;
/// Looks at an event of ours, of which the closest counts, and time in which it must have passed.
const BASE_TRIES: u32 = 5;
const BASE_NS_MAX: u64 = 2_000_000;
/// Time after which a new base is due.
const BASE_EVERY_NS: u64 = 1_000_000_000;
const NON_BLOCKING: u32 = 1;

static IS_ON: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<Option<EventTimes>> = Mutex::new(None);
static NEXT: AtomicU32 = AtomicU32::new(1);
static UNTIMED: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct EventTimes {
    contexts: FxHashMap<CUcontext, Context>,
    /// Names of kernels in the recording, by their handles.
    kernels: FxHashMap<usize, u32>,
    pending: usize,
}

struct Context {
    device: u32,
    /// Our own stream, for bases.
    stream: CUstream,
    base: Option<Arc<Base>>,
    base_tried_ns: u64,
    free: Vec<CUevent>,
    /// By the stream's number in the recording.
    pending: FxHashMap<u32, VecDeque<Pending>>,
}

/// An event whose time is known.
struct Base {
    event: CUevent,
    ns: u64,
}

struct Pending {
    start: CUevent,
    end: CUevent,
    base: Arc<Base>,
    kind: GpuWork,
    name: u32,
    bytes: u64,
    correlation: u32,
}

/// Work that is being put between two events.
pub(crate) struct Begun {
    context: CUcontext,
    stream: CUstream,
    start: CUevent,
    end: CUevent,
    base: Arc<Base>,
    correlation: u32,
}

/// Starts timing. Called after `cuInit` has succeeded, if there is no CUPTI.
pub(crate) fn start() {
    if IS_ON.load(Ordering::Relaxed) {
        return;
    }
    let Some(live) = live::live() else { return };
    if Driver::get().is_none() {
        return say("no times of the GPU are recorded: the driver has no events");
    }
    IS_ON.store(true, Ordering::Release);
    // SAFETY: a function of this library, which is never unloaded. It runs before the one that ends
    // the recording.
    unsafe { libc::atexit(at_exit) };
    live.know(|about| about.gpu_times = GpuTimes::Events);
}

#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Called before a call that starts work.
#[inline]
pub(crate) fn work_begins(live: &Live, stream: Option<CUstream>) -> Option<Begun> {
    match is_on() {
        true => begin(live, stream.unwrap_or(CUstream::NULL)),
        false => None,
    }
}

fn begin(live: &Live, stream: CUstream) -> Option<Begun> {
    let driver = Driver::get()?;
    let (mut is_capturing, mut current) = (0, CUcontext::NULL);
    // SAFETY: functions of these types with room for their answers; the stream is what the program
    // passed.
    let asked = unsafe {
        (driver.cuStreamIsCapturing)(stream, &mut is_capturing) == SUCCESS
            && (driver.cuCtxGetCurrent)(&mut current) == SUCCESS
    };
    // The default stream returns an error while another stream is captured.
    if !asked || is_capturing != 0 || current.is_null() {
        return None;
    }
    let (start, end, base) = take_events(driver, live, current)?;
    // Not under our lock: if the stream is full, the driver waits for work that another thread may
    // have yet to send.
    // SAFETY: an event of the current context, and the program's stream.
    let is_in_front = unsafe { (driver.cuEventRecord)(start, stream) } == SUCCESS;
    if !is_in_front {
        give_back(current, [start, end]);
        return None;
    }
    Some(Begun {
        context: current,
        stream,
        start,
        end,
        base,
        correlation: match NEXT.fetch_add(1, Ordering::Relaxed) {
            0 => NEXT.fetch_add(1, Ordering::Relaxed),
            number => number,
        },
    })
}

fn take_events(
    driver: &Driver,
    live: &Live,
    current: CUcontext,
) -> Option<(CUevent, CUevent, Arc<Base>)> {
    let mut state = STATE.lock();
    let state = state.get_or_insert_default();
    if state.pending >= PENDING_MAX {
        UNTIMED.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let context = match state.contexts.entry(current) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(Context::new(driver)?),
    };
    context.set_base(driver, live);
    let base = context.base.clone()?;
    Some((context.event(driver)?, context.event(driver)?, base))
}

/// Returns unused events. If the context is gone, its events are gone with it.
fn give_back(context: CUcontext, events: [CUevent; 2]) {
    if let Some(state) = STATE.lock().as_mut()
        && let Some(context) = state.contexts.get_mut(&context)
    {
        context.free.extend(events);
    }
}

/// Called after the call, which was on the stream with the number `stream`. Returns the number that
/// its work carries, 0 for none.
pub(crate) fn work_ends(
    live: &Live,
    begun: Begun,
    stream: u32,
    result: CUresult,
    what: Option<What>,
) -> u32 {
    let Some(driver) = Driver::get() else {
        return 0;
    };
    let what = what.filter(|_| result == CUresult::CUDA_SUCCESS);
    // SAFETY: an event of the stream's context, and the stream that the call was made on.
    let is_behind =
        what.is_some() && unsafe { (driver.cuEventRecord)(begun.end, begun.stream) } == SUCCESS;
    let Some(what) = what.filter(|_| is_behind) else {
        give_back(begun.context, [begun.start, begun.end]);
        return 0;
    };
    let mut state = STATE.lock();
    let Some(EventTimes {
        contexts,
        kernels,
        pending,
    }) = state.as_mut()
    else {
        return 0;
    };
    // Destroyed meanwhile, and its events with it.
    let Some(context) = contexts.get_mut(&begun.context) else {
        return 0;
    };
    *pending += 1;
    let name = match what.kind {
        GpuWork::Kernel => *kernels
            .entry(what.function)
            .or_insert_with(|| driver.kernel_name(live, what.function)),
        kind => live.writer().name(kind.name()),
    };
    context
        .pending
        .entry(stream)
        .or_default()
        .push_back(Pending {
            start: begun.start,
            end: begun.end,
            base: begun.base,
            kind: what.kind,
            name,
            bytes: what.bytes,
            correlation: begun.correlation,
        });
    if begun.correlation.is_multiple_of(READ_EVERY) {
        *pending -= context.read(driver, live, READ_MAX);
    }
    begun.correlation
}

/// Called after the program has waited for the GPU.
#[cold]
pub(crate) fn waited(live: &Live) {
    read_current(live, READ_AT_WAIT_MAX);
}

/// Called before a context may be destroyed: reads the times that are there. Our events of the
/// context are not used again, whatever happens to it.
#[cold]
pub(crate) fn context_ends(live: &Live) {
    read_all(live);
    if let Some(state) = STATE.lock().as_mut() {
        count_untimed(state.pending);
        state.pending = 0;
        state.contexts.clear();
        state.kernels.clear();
    }
}

/// Called when kernels are unloaded, whose handles may come again.
#[cold]
pub(crate) fn module_ends() {
    if let Some(state) = STATE.lock().as_mut() {
        state.kernels.clear();
    }
}

extern "C" fn at_exit() {
    // A forked child has neither a recording nor the driver.
    let Some(live) = live::live() else { return };
    IS_ON.store(false, Ordering::Release);
    read_all(live);
    if let Some(state) = STATE.lock().take() {
        count_untimed(state.pending);
    }
    let untimed = UNTIMED.load(Ordering::Relaxed);
    if untimed > 0 {
        say(format_args!(
            "the times of {untimed} kernels, copies and memsets are not in the recording: they had not ended, or were too many"
        ));
    }
}

fn count_untimed(count: usize) {
    UNTIMED.fetch_add(count as u64, Ordering::Relaxed);
}

fn read_current(live: &Live, max: usize) {
    let Some(driver) = Driver::get() else { return };
    let mut current = CUcontext::NULL;
    // SAFETY: the driver's function writes one handle, to a local variable.
    if unsafe { (driver.cuCtxGetCurrent)(&mut current) } != SUCCESS {
        return;
    }
    if let Some(state) = STATE.lock().as_mut()
        && let Some(context) = state.contexts.get_mut(&current)
    {
        state.pending = state
            .pending
            .saturating_sub(context.read(driver, live, max));
    }
}

fn read_all(live: &Live) {
    let Some(driver) = Driver::get() else { return };
    let mut state = STATE.lock();
    let Some(state) = state.as_mut() else { return };
    for (handle, context) in &mut state.contexts {
        // SAFETY: a context that has not been destroyed: `context_ends` would have removed it.
        unsafe {
            if (driver.cuCtxPushCurrent_v2)(*handle) != SUCCESS {
                continue;
            }
            let read = context.read(driver, live, usize::MAX);
            state.pending = state.pending.saturating_sub(read);
            let mut popped = CUcontext::NULL;
            (driver.cuCtxPopCurrent_v2)(&mut popped);
        }
    }
}

impl Context {
    /// Makes the state of the current context.
    fn new(driver: &Driver) -> Option<Context> {
        let (mut device, mut stream) = (0, CUstream::NULL);
        // SAFETY: functions of these types with room for their answers.
        let made = driver.relaxed(|| unsafe {
            (driver.cuCtxGetDevice)(&mut device) == SUCCESS
                && (driver.cuStreamCreate)(&mut stream, NON_BLOCKING) == SUCCESS
        });
        made.then(|| Context {
            device: u32::try_from(device).unwrap_or(0),
            stream,
            base: None,
            base_tried_ns: 0,
            free: Vec::new(),
            pending: FxHashMap::default(),
        })
    }

    fn event(&mut self, driver: &Driver) -> Option<CUevent> {
        if let Some(event) = self.free.pop() {
            return Some(event);
        }
        let mut event = CUevent::NULL;
        // SAFETY: the driver's function writes one handle, to a local variable.
        let result = driver.relaxed(|| unsafe { (driver.cuEventCreate)(&mut event, 0) });
        (result == SUCCESS).then_some(event)
    }

    /// Takes a new base if the last one is old.
    fn set_base(&mut self, driver: &Driver, live: &Live) {
        let now = now_ns(live);
        if self.base_tried_ns != 0 && now - self.base_tried_ns < BASE_EVERY_NS {
            return;
        }
        self.base_tried_ns = now;
        let mut best: Option<(u64, u64, CUevent)> = None;
        for _ in 0..BASE_TRIES {
            let Some(event) = self.event(driver) else {
                break;
            };
            let Some((before, after)) = pass(driver, live, event, self.stream) else {
                // The event may still pass, so it is not used again.
                break;
            };
            match best {
                Some((b, a, _)) if a - b <= after - before => self.free.push(event),
                last => {
                    self.free.extend(last.map(|(.., event)| event));
                    best = Some((before, after, event));
                }
            }
        }
        let Some((before, after, event)) = best else {
            return;
        };
        // The GPU's own time continues from the last base, as long as it stays within what our
        // clock allows.
        let since = self.base.as_ref().and_then(|last| {
            let ns = driver.elapsed_ns(last.event, event).ok()?;
            Some((last.ns + ns).clamp(before, after))
        });
        let ns = since.unwrap_or(before + (after - before) / 2);
        self.base = Some(Arc::new(Base { event, ns }));
    }

    /// Reads times of work that has ended; returns the number of works read.
    fn read(&mut self, driver: &Driver, live: &Live, max: usize) -> usize {
        driver.relaxed(|| self.read_relaxed(driver, live, max))
    }

    fn read_relaxed(&mut self, driver: &Driver, live: &Live, max: usize) -> usize {
        let mut read = 0;
        for (stream, pending) in &mut self.pending {
            while read < max
                && let Some(work) = pending.front()
            {
                let times = match driver.elapsed_ns(work.start, work.end) {
                    Err(CUresult::CUDA_ERROR_NOT_READY) => break,
                    Err(_) => None,
                    Ok(duration) => driver
                        .elapsed_ns(work.base.event, work.start)
                        .ok()
                        .map(|since| (work.base.ns + since, duration)),
                };
                match times {
                    Some((start_ns, duration_ns)) => {
                        self.free.extend([work.start, work.end]);
                        live.writer().append(Record::Work(Work {
                            kind: work.kind,
                            name: work.name,
                            device: self.device,
                            stream: *stream,
                            start_ns,
                            duration_ns,
                            bytes: work.bytes,
                            correlation: work.correlation,
                        }));
                    }
                    None => count_untimed(1),
                }
                if let Some(work) = pending.pop_front()
                    && let Some(base) = Arc::into_inner(work.base)
                {
                    // No other work refers to this base.
                    self.free.push(base.event);
                }
                read += 1;
            }
        }
        read
    }
}

/// Lets an event pass on an idle stream; returns the recording's time before and after it.
fn pass(driver: &Driver, live: &Live, event: CUevent, stream: CUstream) -> Option<(u64, u64)> {
    let before = now_ns(live);
    // SAFETY: an event and a stream of ours.
    if unsafe { (driver.cuEventRecord)(event, stream) } != SUCCESS {
        return None;
    }
    loop {
        // SAFETY: an event of ours, which is not destroyed before this returns.
        let result = driver.relaxed(|| unsafe { (driver.cuEventQuery)(event) });
        let after = now_ns(live);
        match result {
            CUresult::CUDA_SUCCESS => return Some((before, after)),
            CUresult::CUDA_ERROR_NOT_READY if after - before < BASE_NS_MAX => {
                std::hint::spin_loop();
            }
            _ => return None,
        }
    }
}

fn now_ns(live: &Live) -> u64 {
    live.writer().at(Instant::now())
}
