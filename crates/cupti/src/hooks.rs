//! Calls of the driver and of CUDA runtimes: each gets its number at its begin and its record at
//! its end.
//!
//! GPU work has the number of the outermost call: the runtime's, if the program called the runtime.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicU32, Ordering},
};

use outboard_api::{
    activity::{DriverCall, Hooks, RuntimeCall},
    cupti_records::{
        API_ENTER, API_EXIT, Api, DRIVER, EXTERNAL_CORRELATION, ExternalCorrelation, RUNTIME,
    },
};

use crate::{buffers, callbacks, clock, copies, driver, known::known, profile, waits};

pub(crate) static HOOKS: Hooks = Hooks {
    driver_begins,
    driver_ends,
    runtime,
};

/// Deepest nesting of calls in a thread; deeper calls have no records.
const DEPTH_MAX: usize = 64;
/// Most external numbers of one kind that a thread has pushed and not popped.
const PUSHED_MAX: usize = 1 << 20;
/// Upper bound of `CUpti_ExternalCorrelationKind`.
pub(crate) const EXTERNAL_KINDS: usize = 8;

static LAST_CALL: AtomicU32 = AtomicU32::new(0);

/// A call that a thread is executing.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// The runtime's number of the call; 0 for a call of the driver.
    cbid: u32,
    pub(crate) call: u32,
    pub(crate) start: u64,
}

#[derive(Default)]
struct Thread {
    frames: Vec<Frame>,
    pushed: [Vec<u64>; EXTERNAL_KINDS],
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Runs `look` on the thread's own state. Returns `None` if that state is in use or has been
/// dropped.
fn here<R>(look: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    THREAD
        .try_with(|thread| {
            thread
                .try_borrow_mut()
                .ok()
                .map(|mut thread| look(&mut thread))
        })
        .ok()
        .flatten()
}

/// Returns a new call number, never 0, which means no call.
fn next_call() -> u32 {
    match LAST_CALL.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
        0 => next_call(),
        call => call,
    }
}

/// Begins a call and returns its number.
fn enter(cbid: u32) -> u32 {
    let start = clock::program();
    here(|thread| {
        let call = match thread.frames.first() {
            Some(outer) => outer.call,
            None => next_call(),
        };
        if thread.frames.len() < DEPTH_MAX {
            thread.frames.push(Frame { cbid, call, start });
        }
        call
    })
    .unwrap_or(0)
}

/// Ends a call. Also returns whether it was the outermost.
fn leave(cbid: u32) -> Option<(Frame, bool)> {
    here(|thread| {
        let at = thread.frames.iter().rposition(|frame| frame.cbid == cbid)?;
        let frame = thread.frames[at];
        // Drops nested calls whose end was never reported.
        thread.frames.truncate(at);
        Some((frame, at == 0))
    })
    .flatten()
}

unsafe extern "C" fn driver_begins(call: *mut DriverCall) -> u32 {
    // SAFETY: libcuda's record, which outlives this function.
    let Some(call) = (unsafe { call.as_mut() }) else {
        return 0;
    };
    if driver::is_own() {
        return 0;
    }
    let number = enter(0);
    if let Some(known) = known(call.number) {
        // SAFETY: as above.
        unsafe {
            callbacks::driver(known, call, API_ENTER, number);
            callbacks::graph(known, call, API_ENTER);
        }
    }
    number
}

unsafe extern "C" fn driver_ends(call: *mut DriverCall) {
    // SAFETY: libcuda's record, which outlives this function.
    let Some(call) = (unsafe { call.as_mut() }) else {
        return;
    };
    if driver::is_own() {
        return;
    }
    let Some((frame, is_outermost)) = leave(0) else {
        return;
    };
    let Some(known) = known(call.number) else {
        return;
    };
    // SAFETY: as above.
    unsafe {
        waits::ended(known.what, call, &frame);
        callbacks::graph(known, call, API_EXIT);
        callbacks::driver(known, call, API_EXIT, frame.call);
    }
    // CUPTI reports driver calls that the program makes, but not those that a runtime makes for it.
    if is_outermost {
        write(frame, DRIVER, known.cbid, call.result.0, is_outermost);
        profile::call_ended();
    }
}

/// Called by a CUDA runtime at the begin and the end of each of its calls.
unsafe extern "C" fn runtime(cbid: u32, call: *mut RuntimeCall) {
    // SAFETY: the runtime's record, valid while this function runs.
    let Some(call) = (unsafe { call.as_ref() }) else {
        return;
    };
    if (call.bytes as usize) < size_of::<RuntimeCall>() {
        return;
    }
    if call.site == API_ENTER {
        let number = enter(cbid);
        // SAFETY: as above.
        unsafe {
            copies::note(cbid, call.params, number);
            callbacks::runtime(cbid, call, number);
        }
        return;
    }
    let Some((frame, is_outermost)) = leave(cbid) else {
        return;
    };
    // SAFETY: as above.
    unsafe { callbacks::runtime(cbid, call, frame.call) };
    // SAFETY: the runtime's result, if it has one.
    let result = unsafe { call.result.as_ref() }.copied().unwrap_or(0);
    write(frame, RUNTIME, cbid, result.cast_unsigned(), is_outermost);
    profile::call_ended();
}

/// Writes the records that the program has enabled of a call that has ended.
fn write(frame: Frame, kind: u32, cbid: u32, result: u32, is_outermost: bool) {
    let is_wanted = match kind {
        DRIVER => profile::wants_driver(cbid),
        _ => profile::wants_runtime(cbid),
    };
    // The program's pushed numbers belong to all work with this call's number, even if the call
    // itself needs no record.
    if is_outermost && profile::wants(EXTERNAL_CORRELATION) {
        write_external(frame.call);
    }
    if !is_wanted {
        return;
    }
    // SAFETY: only returns the thread's number.
    let thread = unsafe { libc::gettid() };
    buffers::write(&Api {
        kind,
        cbid,
        start: frame.start,
        end: clock::program(),
        processId: std::process::id(),
        threadId: profile::thread_number(thread),
        correlationId: frame.call,
        returnValue: result,
    });
}

fn write_external(call: u32) {
    let tops = here(|thread| {
        let mut tops = [None; EXTERNAL_KINDS];
        for (top, pushed) in tops.iter_mut().zip(&thread.pushed) {
            *top = pushed.last().copied();
        }
        tops
    });
    for (kind, id) in tops.into_iter().flatten().enumerate() {
        if let Some(id) = id {
            buffers::write(&ExternalCorrelation {
                kind: EXTERNAL_CORRELATION,
                externalKind: kind as u32,
                externalId: id,
                correlationId: call,
                reserved: 0,
            });
        }
    }
}

/// Pushes a number of the program's. Returns false if the thread has too many.
pub(crate) fn push(kind: usize, id: u64) -> bool {
    here(|thread| match thread.pushed.get_mut(kind) {
        Some(pushed) if pushed.len() < PUSHED_MAX => {
            pushed.push(id);
            true
        }
        _ => false,
    })
    .unwrap_or(false)
}

/// Pops the number that was pushed last.
pub(crate) fn pop(kind: usize) -> Option<u64> {
    here(|thread| thread.pushed.get_mut(kind)?.pop()).flatten()
}
