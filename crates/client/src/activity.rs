//! The interface for the `libcupti.so.13` beside this library: it is called at the begin and end of
//! calls, and can ask for the work of the server's device. Nothing is reported and nothing is asked
//! until that library attaches its hooks.
//!
//! While hooks are attached every message of a call bears the call's number
//! (`wire::frame::of_call`), by which the server relates each piece of work to its call.

use std::{
    ffi::c_void,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
    time::{Duration, Instant},
};

use outboard_api::{
    CUresult,
    activity::{
        ACTIVITY_VERSION, DriverCall, Hooks, NUMBER_CONTEXT, NUMBER_GRAPH, NUMBER_GRAPH_EXEC,
        NUMBER_GRAPH_NODE, NUMBER_STREAM, Numbers, RUNTIME_CALLS, RuntimeCall, Table, Take,
    },
    cuda::{CUcontext, CUgraph, CUgraphExec, CUgraphNode, CUstream},
};
use outboard_wire::{
    Op, frame,
    limits::{ACTIVITY_ANSWER_MS_MAX, ACTIVITY_ENABLE_MS_MAX},
    messages::{ActivityClock, ActivityEnable, ActivityNumber, ActivityTake},
};
use parking_lot::Mutex;

use crate::{
    calls,
    entry::CALLS,
    guard,
    session::{Group, Session, Sink},
    state::{driver, wire_context},
    thread,
};

static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(ptr::null_mut());

/// The words that CUDA runtimes test before they report a call. libcupti writes them.
static mut RUNTIME: [u32; RUNTIME_CALLS] = [0; RUNTIME_CALLS];

/// A call that is being reported.
pub(crate) struct Begun {
    call: DriverCall,
    /// The number of the call that made this call.
    outer: u32,
}

fn hooks() -> Option<&'static Hooks> {
    // SAFETY: NULL, or hooks that stay valid for ever.
    unsafe { HOOKS.load(Ordering::Acquire).as_ref() }
}

/// Begins a call.
///
/// # Safety
/// `params` is valid until [`end`] has returned.
#[cold]
pub(crate) unsafe fn begin(number: usize, params: *const c_void) -> Option<Begun> {
    let hooks = hooks()?;
    let mut call = DriverCall {
        number: number as u32,
        result: CUresult::CUDA_SUCCESS,
        params,
        context: current(),
        correlation_data: 0,
    };
    // SAFETY: the record outlives the hook.
    let number = unsafe { (hooks.driver_begins)(&mut call) };
    let outer = thread::here().call.replace(number);
    Some(Begun { call, outer })
}

/// Returns the thread's current context, or NULL.
fn current() -> *mut c_void {
    let context = thread::here().context.get();
    context.map_or(ptr::null_mut(), |context| context.handle.0 as *mut c_void)
}

/// Ends a call.
#[cold]
pub(crate) fn end(begun: Begun, result: CUresult) {
    thread::here().call.set(begun.outer);
    if let Some(hooks) = hooks() {
        let mut call = DriverCall {
            result,
            context: current(),
            ..begun.call
        };
        // SAFETY: as above.
        unsafe { (hooks.driver_ends)(&mut call) };
    }
}

/// Returns the number of the current call, for threads that help with it.
pub(crate) fn call() -> u32 {
    thread::here().call.get()
}

/// Marks a thread that helps with another thread's call, until this is dropped.
pub(crate) struct Helping {
    outer: u32,
}

pub(crate) fn help(call: u32) -> Helping {
    Helping {
        outer: thread::here().call.replace(call),
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        thread::here().call.set(self.outer);
    }
}

/// Returns the context of a message, with the number of the current call if calls have numbers.
#[inline]
pub(crate) fn tagged(context: u64) -> u64 {
    match guard::is_profiled() {
        true => frame::of_call(context, thread::here().call.get()),
        false => context,
    }
}

/// Returns the words and their count, for `TOOLS_RUNTIME_HOOKS`.
pub(crate) fn runtime_words() -> *mut c_void {
    (&raw mut RUNTIME).cast()
}

/// `TOOLS_RUNTIME_HOOKS[1]`: called by a CUDA runtime at the begin and end of each call whose word
/// is set.
pub(crate) unsafe extern "C" fn runtime(cbid: u32, call: *mut RuntimeCall) {
    if let Some(hooks) = hooks() {
        // SAFETY: the runtime's arguments, passed on unchanged.
        unsafe { (hooks.runtime)(cbid, call) };
    }
}

pub(crate) static TABLE: Table = Table {
    version: ACTIVITY_VERSION,
    attach,
    call_name,
    runtime_calls: (&raw mut RUNTIME).cast(),
    enable,
    clock,
    number,
    take,
};

unsafe extern "C" fn attach(hooks: *const Hooks) {
    HOOKS.store(hooks.cast_mut(), Ordering::Release);
    guard::mark_profiled(!hooks.is_null());
}

extern "C" fn call_name(number: u32, len: *mut usize) -> *const u8 {
    let name = CALLS.get(number as usize).map_or("", |(name, _)| name);
    // SAFETY: libcupti's output.
    unsafe { len.write(name.len()) };
    match name.is_empty() {
        true => ptr::null(),
        false => name.as_ptr(),
    }
}

/// Runs a request of libcupti's.
fn answer(call: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    guard::enter_own("libcupti", call)
}

/// A question to the server whose answer nobody waits for without a bound.
struct Asked {
    group: Arc<Group>,
}

impl Asked {
    fn new<'a, M: Op<'a>>(session: &Session, message: &M) -> Result<Asked, CUresult> {
        let group = Group::new(1);
        session.ask(0, message, &group, Sink::Group)?;
        Ok(Asked { group })
    }

    /// Waits for the answer; returns `CUDA_ERROR_TIMEOUT` if it does not come in time.
    fn answer(&self, session: &Session, ms_max: u64) -> Result<Vec<u8>, CUresult> {
        let deadline = Instant::now() + Duration::from_millis(ms_max);
        session
            .wait_until(&self.group, deadline)
            .unwrap_or(Err(CUresult::CUDA_ERROR_TIMEOUT))
    }
}

unsafe extern "C" fn enable(
    kinds: u32,
    kept_bytes_max: u64,
    source: *mut u8,
    reason: *mut c_void,
    take: Take,
) -> CUresult {
    answer(|| {
        // SAFETY: a call without pointers.
        unsafe { calls::cuInit(0)? };
        let asked = ActivityEnable {
            kinds,
            kept_bytes_max,
        };
        let session = driver()?.session;
        let data = Asked::new(session, &asked)?.answer(session, ACTIVITY_ENABLE_MS_MAX)?;
        session.read_answer::<ActivityEnable, _>(&data, |reply| {
            let text = &reply.reason;
            // SAFETY: libcupti's outputs; the bytes are valid during the call.
            unsafe {
                source.write(reply.source);
                take(reason, text.as_ptr(), text.len());
            }
        })
    })
}

unsafe extern "C" fn clock(now_ns: *mut u64) -> CUresult {
    answer(|| {
        let session = driver()?.session;
        let data =
            Asked::new(session, &ActivityClock {})?.answer(session, ACTIVITY_ANSWER_MS_MAX)?;
        let now = session.read_answer::<ActivityClock, _>(&data, |reply| reply.now_ns)?;
        // SAFETY: libcupti's output.
        unsafe { now_ns.write(now) };
        Ok(())
    })
}

unsafe extern "C" fn number(
    what: u32,
    context: *mut c_void,
    object: *mut c_void,
    numbers: *mut Numbers,
) -> CUresult {
    answer(|| {
        let driver = driver()?;
        let context = match context.is_null() {
            true => wire_context(),
            false => driver.wire_context(CUcontext(context as usize))?,
        };
        let object = match what {
            NUMBER_CONTEXT => context,
            NUMBER_STREAM => driver.stream(CUstream(object as usize))?.wire(),
            NUMBER_GRAPH => driver.wire_graph(CUgraph(object as usize))?,
            NUMBER_GRAPH_EXEC => driver.wire_graphexec(CUgraphExec(object as usize))?,
            NUMBER_GRAPH_NODE => driver.wire_node(CUgraphNode(object as usize))?,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        let asked = ActivityNumber { what, object };
        let answered = driver.session.call(context, &asked, |reply| Numbers {
            context: reply.context,
            object: reply.number,
        })?;
        // SAFETY: libcupti's output.
        unsafe { numbers.write(answered) };
        Ok(())
    })
}

/// The work that was asked for and did not come in time: its answer holds records that the server
/// no longer has.
static LATE: Mutex<Option<Asked>> = Mutex::new(None);

unsafe extern "C" fn take(
    flags: u32,
    activities_max: u32,
    opaque: *mut c_void,
    take: Take,
) -> CUresult {
    answer(|| {
        let session = driver()?.session;
        let message = ActivityTake {
            flags,
            activities_max,
        };
        let late = LATE.lock().take();
        let asked = match late {
            Some(late) => late,
            None => Asked::new(session, &message)?,
        };
        let data = asked
            .answer(session, ACTIVITY_ANSWER_MS_MAX)
            .inspect_err(|error| {
                if *error == CUresult::CUDA_ERROR_TIMEOUT {
                    *LATE.lock() = Some(asked);
                }
            })?;
        session.read_answer::<ActivityTake, _>(&data, |reply| {
            let bytes = &reply.document;
            // SAFETY: the bytes are valid during the call.
            unsafe { take(opaque, bytes.as_ptr(), bytes.len()) };
        })
    })
}
