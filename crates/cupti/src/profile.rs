//! Enables the kinds of records that the program asks for, with the server, libcuda and the CUDA
//! runtimes.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use outboard_api::{activity::RUNTIME_CALLS, cupti_records as records};
use outboard_wire::doc::{
    ACTIVITY_COPIES, ACTIVITY_EVENTS, ACTIVITY_KERNELS, ACTIVITY_MEMSETS, ACTIVITY_NONE,
    ACTIVITY_NUMBERS, ACTIVITY_PEER_COPIES,
};

use crate::{
    buffers,
    callbacks::{self, DOMAIN_RUNTIME},
    clock, driver,
    entry::{DRIVER, RUNTIME},
    hooks::HOOKS,
    known::{KINDS as KIND_NAMES, name},
    log,
    status::Status,
    taken::take,
    wanted::{
        ASKED, DRIVER_OFF, EVENTS_TIMED, KINDS, RUNTIME_OFF, WANTED, are_events_timed, is_set,
        wants,
    },
};

/// The served kinds. Those whose records come from the server have their bits of the request.
const SERVED: [(u32, u32); 11] = [
    (records::MEMCPY, ACTIVITY_COPIES),
    (records::MEMCPY2, ACTIVITY_PEER_COPIES),
    (records::MEMSET, ACTIVITY_MEMSETS),
    (records::KERNEL, ACTIVITY_KERNELS),
    (records::CONCURRENT_KERNEL, ACTIVITY_KERNELS),
    (records::DRIVER, 0),
    (records::RUNTIME, 0),
    (records::OVERHEAD, 0),
    (records::CUDA_EVENT, ACTIVITY_NUMBERS),
    (records::SYNCHRONIZATION, ACTIVITY_NUMBERS),
    (records::EXTERNAL_CORRELATION, 0),
];

/// Memory for records on the server until they are taken; 0 is the server's own maximum.
static KEPT_BYTES_MAX: AtomicU64 = AtomicU64::new(0);

/// Enables or disables records of a kind.
pub(crate) fn enable(kind: u32, on: bool) -> Result<(), Status> {
    let wanted = WANTED.get(kind as usize).ok_or(Status::INVALID_KIND)?;
    if !SERVED.iter().any(|(served, _)| *served == kind) {
        static SAID: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];
        if on && let Some(said) = SAID.get(kind as usize) {
            log::warn_once(
                said,
                format_args!(
                    "cuptiActivityEnable: CUPTI_ACTIVITY_KIND_{} is not supported",
                    KIND_NAMES.get(kind as usize).unwrap_or(&"unknown")
                ),
            );
        }
        return Err(Status::NOT_SUPPORTED);
    }
    driver::table()?;
    wanted.store(on, Ordering::Relaxed);
    apply()
}

/// Applies the enabled kinds to the server, libcuda and the CUDA runtimes.
fn apply() -> Result<(), Status> {
    let mut kinds = SERVED
        .iter()
        .filter(|(kind, _)| wants(*kind))
        .fold(0, |kinds, (_, bit)| kinds | bit);
    if are_events_timed() {
        kinds |= ACTIVITY_EVENTS;
    }
    let mut asked = ASKED.lock();
    if asked.unwrap_or(0) != kinds {
        let (source, reason) = driver::enable(kinds, KEPT_BYTES_MAX.load(Ordering::Relaxed))?;
        if kinds != 0 && asked.is_none_or(|before| before == 0) {
            clock::compare()?;
        }
        *asked = Some(kinds);
        static SAID: AtomicBool = AtomicBool::new(false);
        if kinds != 0 && source == ACTIVITY_NONE {
            log::warn_once(
                &SAID,
                format_args!("calls are profiled, the GPU's work is not: {reason}"),
            );
        }
    }
    drop(asked);
    let is_called_back = callbacks::any();
    let any = SERVED.iter().any(|(kind, _)| wants(*kind));
    driver::attach((any || is_called_back).then_some(&HOOKS))?;
    choose_runtime_calls(is_called_back)
}

/// Sets the words that tell CUDA runtimes which calls to report.
fn choose_runtime_calls(is_called_back: bool) -> Result<(), Status> {
    let words = driver::table()?.runtime_calls;
    // The work of a call has the number of the call.
    let numbers = wants(records::RUNTIME) || wants(records::EXTERNAL_CORRELATION);
    for cbid in 1..RUNTIME_CALLS as u32 {
        let known = name(RUNTIME, cbid).is_some();
        let wanted = known
            && (numbers && !is_set(&RUNTIME_OFF, cbid)
                || is_called_back && callbacks::wants(DOMAIN_RUNTIME, cbid));
        // SAFETY: an array of libcuda's with a word per call, never freed; runtimes read it at any
        // time.
        unsafe { AtomicU32::from_ptr(words.add(cbid as usize)) }
            .store(u32::from(wanted), Ordering::Relaxed);
    }
    Ok(())
}

/// Enables or disables records of one call of the driver or the runtime.
pub(crate) fn enable_call(domain: u32, cbid: u32, on: bool) -> Result<(), Status> {
    let (flags, known) = match domain {
        DOMAIN_RUNTIME => (&RUNTIME_OFF, name(RUNTIME, cbid)),
        _ => (&DRIVER_OFF, name(DRIVER, cbid)),
    };
    let flag = flags.get(cbid as usize).filter(|_| known.is_some());
    flag.ok_or(Status::INVALID_PARAMETER)?
        .store(!on, Ordering::Relaxed);
    match domain == DOMAIN_RUNTIME && wants(records::RUNTIME) {
        true => apply(),
        false => Ok(()),
    }
}

/// Ends the subscription and its callbacks.
pub(crate) fn unsubscribe() -> Result<(), Status> {
    callbacks::unsubscribe()?;
    apply()
}

/// Enables or disables the subscriber's callback for one call of a domain, or for all.
pub(crate) fn call_back(domain: u32, cbid: Option<u32>, on: bool) -> Result<(), Status> {
    callbacks::choose(domain, cbid, on)?;
    apply()
}

/// Sets the memory limit of records on the server, which applies from the next kind that is
/// enabled.
pub(crate) fn keep_bytes(max: u64) {
    KEPT_BYTES_MAX.store(max, Ordering::Relaxed);
}

/// Sets whether records of events bear the time at which the GPU passed the event.
pub(crate) fn time_events(on: bool) -> Result<(), Status> {
    driver::table()?;
    EVENTS_TIMED.store(on, Ordering::Relaxed);
    apply()
}

/// Ends everything that was enabled.
pub(crate) fn finalize() -> Result<(), Status> {
    let taken = take(1);
    for wanted in &WANTED {
        wanted.store(false, Ordering::Relaxed);
    }
    callbacks::forget();
    EVENTS_TIMED.store(false, Ordering::Relaxed);
    for flag in DRIVER_OFF.iter().chain(&RUNTIME_OFF) {
        flag.store(false, Ordering::Relaxed);
    }
    buffers::flush();
    taken.and(apply())
}
