//! Code between the program and every call: stops panics, notices forks, counts calls.

use std::{
    cell::Cell,
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use outboard_api::{
    CUresult,
    cuda::{
        CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUdevice, CUlaunchConfig, CUmemAllocationProp,
        CUmemLocation, CUmemPoolProps, CUstream,
    },
    enums::CU_MEM_LOCATION_TYPE_DEVICE,
};
use outboard_trace::live::Subject;

use super::{
    conditions::{self, FORKED, HELD, PROFILED, RECORDED, SEVERAL, TIMED, UNUSUAL, is_recorded},
    optimise, profile,
    profile::Begun,
    record,
    record::RecordedCall,
    servers::{self, Named, Selected},
    stats, times,
};
use crate::{
    call_table::{CALLS, IS_AFTER_HELD},
    log, thread,
};

/// Runs one call. `subject` is only evaluated if calls are recorded, `params` only if they are
/// profiled; `named`, the arguments that name something of a server, only if there are several.
#[inline]
pub(crate) fn enter<P: Copy, const NAMED: usize>(
    number: usize,
    named: impl FnOnce() -> [Named; NAMED],
    subject: impl FnOnce() -> Subject,
    params: impl FnOnce() -> P,
    call: impl FnOnce() -> Result<(), CUresult>,
) -> CUresult {
    // Launches that another thread has just sent for this one count as sent.
    let unusual = UNUSUAL.load(Ordering::Acquire);
    if unusual & (FORKED | HELD) != 0
        && let Err(error) = before_call(unusual, IS_AFTER_HELD[number])
    {
        return error;
    }
    let thread = thread::here();
    let mut told_params = MaybeUninit::<P>::uninit();
    // Without a destructor here, a call that nothing observes pays for none.
    let mut place = MaybeUninit::uninit();
    let observed = match unusual {
        0 => None,
        _ => Some(place.write(Observed {
            selected: (unusual & SEVERAL != 0).then(|| servers::select(&named())),
            outer: optimise::begin(number),
            start: (unusual & TIMED != 0).then(times::begin),
            recorded: match unusual & RECORDED != 0 {
                true => record::begin(&subject()),
                false => None,
            },
            told: match unusual & PROFILED != 0 {
                // SAFETY: the parameters stay on this frame until after `profile::end`.
                true => unsafe {
                    profile::begin(
                        number,
                        std::ptr::from_ref(told_params.write(params())).cast(),
                    )
                },
                false => None,
            },
        })),
    };
    // A panic must not cross into C. The state is guarded by locks that do not poison, and stays
    // consistent because tables are changed in single steps.
    let result = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => {
            log::warn(format_args!(
                "{}: a defect in Outboard stopped this call",
                CALLS[number].0
            ));
            CUresult::CUDA_ERROR_UNKNOWN
        }
    };
    if result != CUresult::CUDA_SUCCESS && log::debugging() {
        log::debug(format_args!("{} -> {result}", CALLS[number].0));
    }
    match observed {
        None => _ = stats::end(&thread, number),
        Some(observed) => observed.end(number, result),
    }
    result
}

/// Refuses a call in a forked child, and sends what is held back before others.
#[cold]
fn before_call(unusual: u8, is_after_held: bool) -> Result<(), CUresult> {
    if unusual & FORKED != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    if is_after_held && unusual & HELD != 0 {
        conditions::send_held();
    }
    Ok(())
}

/// A call in a process where calls are observed, or where they may be for several servers.
struct Observed {
    /// The call's server stays selected until the end.
    selected: Option<Option<Selected>>,
    outer: usize,
    start: Option<Instant>,
    recorded: Option<RecordedCall>,
    told: Option<Begun>,
}

impl Observed {
    /// Ends all that the call began.
    #[cold]
    fn end(&mut self, number: usize, result: CUresult) {
        optimise::finish(self.outer);
        let thread = thread::here();
        thread.has_looked.set(false);
        let kind = stats::end(&thread, number);
        if let Some(start) = self.start {
            times::end(number, kind, start);
        }
        if let Some(recorded) = self.recorded.take() {
            record::end(number, kind, recorded, result);
        }
        if let Some(told) = self.told.take() {
            profile::end(told, result);
        }
        self.selected = None;
    }
}

/// Runs a call that answers in a forked child, too, if this is one. It is neither counted nor
/// recorded there. No part of [`enter`], which every call passes through.
pub(crate) fn in_child(call: impl FnOnce() -> Result<(), CUresult>) -> Option<CUresult> {
    if UNUSUAL.load(Ordering::Relaxed) & FORKED == 0 {
        return None;
    }
    let done = catch_unwind(AssertUnwindSafe(call));
    let done = done.unwrap_or(Err(CUresult::CUDA_ERROR_UNKNOWN));
    Some(done.err().unwrap_or(CUresult::CUDA_SUCCESS))
}

/// Runs an exported function that is not a call of the driver.
pub(crate) fn enter_own(name: &str, call: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    if let Err(error) = before_call(UNUSUAL.load(Ordering::Acquire), true) {
        return error;
    }
    let done = catch_unwind(AssertUnwindSafe(call));
    thread::here().has_looked.set(false);
    match done {
        Ok(done) => done.err().unwrap_or(CUresult::CUDA_SUCCESS),
        Err(_) => {
            log::warn(format_args!(
                "{name}: a defect in Outboard stopped this call"
            ));
            CUresult::CUDA_ERROR_UNKNOWN
        }
    }
}

/// Refuses a call that Outboard does not serve, and logs each name once.
pub(crate) fn unsupported(number: usize) -> CUresult {
    static SAID: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];
    let (word, bit) = (number / 64 % SAID.len(), 1u64 << (number % 64));
    if SAID[word].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        log::warn(format_args!("{} is not supported", CALLS[number].0));
    }
    stats::end(&thread::here(), number);
    if is_recorded() {
        record::refused(number, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

thread_local! {
    static PER_THREAD_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Returns the stream argument of a `_ptsz` call, whose null stream is the thread's own.
#[inline]
pub(crate) fn per_thread(stream: CUstream) -> CUstream {
    if stream.is_null() {
        CU_STREAM_PER_THREAD
    } else {
        stream
    }
}

/// Returns the stream of a launch's configuration.
pub(crate) fn stream_of(config: *const CUlaunchConfig) -> Option<CUstream> {
    // SAFETY: NULL or a configuration: the driver API asks it of its callers.
    unsafe { config.as_ref() }.map(|config| config.stream)
}

/// Returns the device of a place; -1 if it is none.
pub(crate) fn device_at(location: *const CUmemLocation) -> CUdevice {
    // SAFETY: NULL or a location: the driver API asks it of its callers.
    match unsafe { location.as_ref() } {
        Some(location) if location.kind == CU_MEM_LOCATION_TYPE_DEVICE => location.id,
        _ => -1,
    }
}

/// Returns the device of physical memory; -1 if it is for none.
pub(crate) fn device_of(properties: *const CUmemAllocationProp) -> CUdevice {
    // SAFETY: NULL or properties: the driver API asks it of its callers.
    unsafe { properties.as_ref() }.map_or(-1, |properties| device_at(&properties.location))
}

/// Returns the device of a pool's memory; -1 if it is for none.
pub(crate) fn device_of_pool(properties: *const CUmemPoolProps) -> CUdevice {
    // SAFETY: NULL or properties: the driver API asks it of its callers.
    unsafe { properties.as_ref() }.map_or(-1, |properties| device_at(&properties.location))
}

/// Runs a `_ptsz` call that takes its stream in a configuration.
///
/// # Safety
/// `config` must be NULL or a configuration.
pub(crate) unsafe fn with_per_thread_config<R>(
    config: *const CUlaunchConfig,
    call: impl FnOnce(*const CUlaunchConfig) -> R,
) -> R {
    // SAFETY: NULL or a configuration, by this function's contract.
    match unsafe { config.as_ref() } {
        Some(given) if given.stream.is_null() => call(&CUlaunchConfig {
            stream: CU_STREAM_PER_THREAD,
            ..*given
        }),
        _ => call(config),
    }
}

/// Runs a `_ptds` call, whose default stream is the thread's own.
pub(crate) fn with_per_thread_default<R>(call: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            PER_THREAD_DEFAULT.set(self.0);
        }
    }
    let _reset = Reset(PER_THREAD_DEFAULT.replace(true));
    call()
}

/// Returns the stream of a call without a stream argument.
pub(crate) fn default_stream() -> CUstream {
    if PER_THREAD_DEFAULT.get() {
        CU_STREAM_PER_THREAD
    } else {
        CU_STREAM_LEGACY
    }
}
