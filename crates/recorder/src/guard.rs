//! Records every call between the program and the driver.

use std::ffi::c_char;

use outboard_api::{
    CUresult,
    cuda::{CU_STREAM_PER_THREAD, CUlaunchConfig, CUstream},
    decl::Class,
};
use outboard_trace::{
    live::{self, Made, Subject},
    nvtx,
};

use crate::{
    call_table::{CALLS, Cost, Role},
    cupti, driver,
    events::{self, What},
};

/// A call of the program, to be made and recorded.
pub(crate) struct Passed<S, D, C, W, T> {
    /// Index into [`CALLS`].
    pub(crate) number: usize,
    pub(crate) subject: S,
    /// Runs before the call, and is not part of it.
    pub(crate) delay: D,
    pub(crate) call: C,
    /// The stream of the work that the call starts, and the work.
    pub(crate) work: W,
    /// The cost of remoting the call; computed after it.
    pub(crate) cost: T,
}

/// Makes a call of the driver and records it.
#[inline]
pub(crate) fn pass(
    passed: Passed<
        impl FnOnce() -> Subject,
        impl FnOnce(),
        impl FnOnce() -> CUresult,
        (Option<CUstream>, impl FnOnce() -> Option<What>),
        impl FnOnce() -> Cost,
    >,
) -> CUresult {
    let Passed { number, call, .. } = passed;
    let Some(live) = live::begin(CALLS.len()).filter(|_| !cupti::is_inside()) else {
        (passed.delay)();
        return call();
    };
    let about = live.numbered(&(passed.subject)());
    let (name, _, role) = CALLS[number];
    (passed.delay)();
    let (stream, what) = passed.work;
    let mut begun = None;
    match role {
        Role::StartsWork => {
            cupti::call_begins();
            begun = events::work_begins(live, stream);
        }
        Role::EndsContext if events::is_on() => events::context_ends(live),
        _ => {}
    }
    let start = live.now();
    let result = call();
    let end = live.now();
    let correlation = match (begun, role) {
        (Some(begun), _) => events::work_ends(live, begun, about.stream, result, what()),
        (None, Role::StartsWork) => cupti::call_ends(),
        (None, _) => 0,
    };
    let cost = match (passed.cost)() {
        // The client refuses at the call what the driver refuses there, and sends nothing.
        cost if result != CUresult::CUDA_SUCCESS && cost.class != Class::Synchronous => Cost::NONE,
        cost => cost,
    };
    let made = Made {
        server: 0,
        start,
        end,
        class: cost.class,
        request_bytes: cost.request_bytes,
        response_bytes: cost.response_bytes,
        about,
        correlation,
        status: result.0,
    };
    live.call(number, name, &made);
    match role {
        Role::Init if result == CUresult::CUDA_SUCCESS => {
            driver::is_there();
            cupti::driver_is_open();
        }
        Role::Waits if events::is_on() => events::waited(live),
        Role::EndsModule if events::is_on() => events::module_ends(),
        _ => {}
    }
    result
}

/// Returns the stream argument of a `_ptsz` call, whose null stream is the thread's own.
pub(crate) fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() {
        CU_STREAM_PER_THREAD
    } else {
        stream
    }
}

/// Returns the stream of a launch's configuration.
pub(crate) fn stream_of(config: *const CUlaunchConfig) -> Option<CUstream> {
    // SAFETY: NULL, or a configuration, by the driver API's manual.
    unsafe { config.as_ref() }.map(|config| config.stream)
}

/// Marks a range that the program names. For `outboard.mark` of the Python module.
///
/// # Safety
/// `name` must be NULL or a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outboard_mark(name: *const c_char, is_end: i32) {
    // SAFETY: NULL or a C string, by this function's contract.
    unsafe { live::mark(name, is_end != 0, CALLS.len()) };
}

/// Replaces NVTX's functions. NVTX loads this library if `NVTX_INJECTION64_PATH` names it, and
/// calls this function first.
///
/// # Safety
/// `get_table` must be NVTX's function: NVTX calls this.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub(crate) unsafe extern "C" fn InitializeInjectionNvtx2(
    get_table: Option<nvtx::GetExportTable>,
) -> i32 {
    // SAFETY: NVTX's function, by this function's contract.
    unsafe { nvtx::initialize(get_table, CALLS.len()) }
}
