//! What stands between the program and the driver at every call.

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

use crate::{cost::Cost, cupti, driver, entry::CALLS};

/// Makes a call of the driver's and puts it down. `cost` is asked for behind the call.
#[inline]
pub(crate) fn pass(
    number: usize,
    subject: impl FnOnce() -> Subject,
    call: impl FnOnce() -> CUresult,
    cost: impl FnOnce() -> Cost,
) -> CUresult {
    let Some(live) = live::begin(CALLS.len()).filter(|_| !cupti::is_inside()) else {
        return call();
    };
    let about = live.numbered(&subject());
    let (name, _, starts_work) = CALLS[number];
    if starts_work {
        cupti::call_begins();
    }
    let start = live.now();
    let result = call();
    let end = live.now();
    let correlation = match starts_work {
        true => cupti::call_ends(),
        false => 0,
    };
    let cost = match cost() {
        // The client refuses at the call what the driver refuses there, and sends nothing.
        cost if result != CUresult::CUDA_SUCCESS && cost.class != Class::Synchronous => Cost::NONE,
        cost => cost,
    };
    let made = Made {
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
    if name == "cuInit" && result == CUresult::CUDA_SUCCESS {
        driver::is_there();
        cupti::driver_is_open();
    }
    result
}

/// The stream argument of a `_ptsz` call: its null stream is the thread's own.
pub(crate) fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() {
        CU_STREAM_PER_THREAD
    } else {
        stream
    }
}

/// The stream of a launch's configuration.
pub(crate) fn stream_of(config: *const CUlaunchConfig) -> Option<CUstream> {
    // SAFETY: NULL, or the configuration of a caller who keeps to the driver API's manual.
    unsafe { config.as_ref() }.map(|config| config.stream)
}

/// The program names what it does. For `outboard.mark` of the Python module.
///
/// # Safety
/// `name` is NULL or a C string.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn outboard_mark(name: *const c_char, is_end: i32) {
    // SAFETY: the caller's promise.
    unsafe { live::mark(name, is_end != 0, CALLS.len()) };
}

/// NVTX loads this library where `NVTX_INJECTION64_PATH` names it, and begins with this call.
///
/// # Safety
/// Called by NVTX.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub(crate) unsafe extern "C" fn InitializeInjectionNvtx2(
    get_table: Option<nvtx::GetExportTable>,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { nvtx::initialize(get_table, CALLS.len()) }
}
