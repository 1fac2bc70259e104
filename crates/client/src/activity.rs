//! The interface for the `libcupti.so.13` beside this library: it attaches its hooks
//! (`observe/profile.rs`), and asks for the work of the server's device. Nothing is reported and
//! nothing is asked until then.

use std::{
    ffi::c_void,
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use outboard_api::{
    CUresult,
    activity::{
        ACTIVITY_VERSION, Hooks, NUMBER_CONTEXT, NUMBER_GRAPH, NUMBER_GRAPH_EXEC,
        NUMBER_GRAPH_NODE, NUMBER_STREAM, Numbers, RUNTIME_CALLS, RuntimeCall, Table, Take,
    },
    cuda::{CUcontext, CUgraph, CUgraphExec, CUgraphNode, CUstream},
};
use outboard_wire::{
    Op,
    limits::{ACTIVITY_ANSWER_MS_MAX, ACTIVITY_ENABLE_MS_MAX},
    messages::{ActivityClock, ActivityEnable, ActivityNumber, ActivityTake},
};
use parking_lot::Mutex;

use crate::{
    call_table::CALLS,
    log,
    observe::{
        conditions, guard,
        profile::{self, hooks},
    },
    process,
    session::{Group, Session, Sink},
    state::{are_several, driver, wire_context},
};

/// The words that CUDA runtimes test before they report a call. libcupti writes them.
static mut RUNTIME: [u32; RUNTIME_CALLS] = [0; RUNTIME_CALLS];

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
    // What was launched before is no call that is reported.
    conditions::send_held();
    profile::attach(hooks);
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
        process::start()?;
        let asked = ActivityEnable {
            kinds,
            kept_bytes_max,
        };
        let session = driver()?.session;
        if are_several() {
            log::warn("the work of several servers' GPUs cannot be profiled together");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
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
