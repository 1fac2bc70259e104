//! Calls of the driver and of CUDA runtimes: each gets its number at its begin and its record at
//! its end.
//!
//! GPU work has the number of the outermost call: the runtime's, if the program called the runtime.

use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_void},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use outboard_api::{
    CUresult,
    activity::{Hooks, RuntimeCall},
};

use crate::{
    buffers, clock, copies, driver,
    entry::DRIVER,
    log, profile,
    records::{self, Api, ExternalCorrelation},
};

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
const API_ENTER: u32 = 0;
pub(crate) const DOMAIN_RUNTIME: u32 = 2;

static LAST_CALL: AtomicU32 = AtomicU32::new(0);

/// A call that a thread is executing.
#[derive(Clone, Copy)]
struct Frame {
    /// The runtime's number of the call; 0 for a call of the driver.
    cbid: u32,
    call: u32,
    start: u64,
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

extern "C" fn driver_begins(_number: u32, _token: *mut u64) -> u32 {
    enter(0)
}

extern "C" fn driver_ends(number: u32, _token: u64, result: CUresult) {
    let Some((frame, is_outermost)) = leave(0) else {
        return;
    };
    let Some(cbid) = driver_cbid(number) else {
        return;
    };
    // CUPTI reports driver calls that the program makes, but not those that a runtime makes for it.
    if is_outermost {
        write(frame, records::DRIVER, cbid, result.0, is_outermost);
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
            call_back(cbid, call, number);
        }
        return;
    }
    let Some((frame, is_outermost)) = leave(cbid) else {
        return;
    };
    // SAFETY: as above.
    unsafe { call_back(cbid, call, frame.call) };
    // SAFETY: the runtime's result, if it has one.
    let result = unsafe { call.result.as_ref() }.copied().unwrap_or(0);
    write(
        frame,
        records::RUNTIME,
        cbid,
        result.cast_unsigned(),
        is_outermost,
    );
    profile::call_ended();
}

/// `CUpti_CallbackData`.
#[repr(C)]
struct Called {
    site: u32,
    name: *const c_char,
    params: *const c_void,
    result: *mut c_void,
    symbol: *const c_char,
    context: *mut c_void,
    context_uid: u32,
    correlation_data: *mut u64,
    correlation: u32,
}

const _: () = assert!(size_of::<Called>() == 72);

/// Calls the program's subscriber, if it subscribed to this call.
///
/// # Safety
/// `call` is a runtime's record of a call.
unsafe fn call_back(cbid: u32, call: &RuntimeCall, number: u32) {
    let Some((function, user)) = profile::subscriber(cbid) else {
        return;
    };
    let called = Called {
        site: call.site,
        name: call.name,
        params: call.params,
        result: call.result.cast(),
        symbol: std::ptr::null(),
        context: call.context,
        context_uid: call.context_uid as u32,
        correlation_data: call.correlation_data,
        correlation: number,
    };
    // SAFETY: the program's function of this type.
    unsafe {
        function(
            user as *mut c_void,
            DOMAIN_RUNTIME,
            cbid,
            (&raw const called).cast(),
        );
    }
}

/// Writes the records that the program has enabled of a call that has ended.
fn write(frame: Frame, kind: u32, cbid: u32, result: u32, is_outermost: bool) {
    let is_wanted = match kind {
        records::DRIVER => profile::wants_driver(cbid),
        _ => profile::wants_runtime(cbid),
    };
    // The program's pushed numbers belong to all work with this call's number, even if the call
    // itself needs no record.
    if is_outermost && profile::wants(records::EXTERNAL_CORRELATION) {
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
                kind: records::EXTERNAL_CORRELATION,
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

/// Returns CUPTI's number of libcuda's driver call `number`.
fn driver_cbid(number: u32) -> Option<u32> {
    static CBIDS: OnceLock<Vec<Option<u32>>> = OnceLock::new();
    let cbids = CBIDS.get_or_init(|| {
        let found: Vec<Option<u32>> = (0..)
            .map_while(driver::call_name)
            .map(|name| {
                let known = DRIVER
                    .iter()
                    .find(|(_, known)| known.to_bytes() == name.as_bytes());
                known.map(|(number, _)| *number)
            })
            .collect();
        log::debug(format_args!("{} driver calls are told of", found.len()));
        found
    });
    cbids.get(number as usize).copied().flatten()
}

/// Returns the name of a traced function.
pub(crate) fn name(domain: &[(u32, &'static CStr)], cbid: u32) -> Option<&'static CStr> {
    let at = domain.binary_search_by_key(&cbid, |(number, _)| *number);
    at.ok().map(|at| domain[at].1)
}
