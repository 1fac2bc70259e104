//! The records that the program has enabled. Calls look here at their begins and ends.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use outboard_api::cupti_records as records;
use parking_lot::Mutex;

/// Upper bound of `CUpti_ActivityKind`.
pub(crate) const KINDS: usize = 64;
/// Upper bound of CUPTI's numbers of calls.
const CALLS: usize = 1024;

pub(crate) static WANTED: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];
/// Calls for which the program has disabled records.
pub(crate) static DRIVER_OFF: [AtomicBool; CALLS] = [const { AtomicBool::new(false) }; CALLS];
pub(crate) static RUNTIME_OFF: [AtomicBool; CALLS] = [const { AtomicBool::new(false) }; CALLS];
/// Records of events bear the time at which the GPU passed them.
pub(crate) static EVENTS_TIMED: AtomicBool = AtomicBool::new(false);
static THREAD_ID_TYPE: AtomicU8 = AtomicU8::new(0);
/// The kinds last requested from the server. Locked during a request, so that requests of two
/// threads keep their order.
pub(crate) static ASKED: Mutex<Option<u32>> = Mutex::new(None);

pub(crate) fn wants(kind: u32) -> bool {
    WANTED
        .get(kind as usize)
        .is_some_and(|wanted| wanted.load(Ordering::Relaxed))
}

pub(crate) fn wants_driver(cbid: u32) -> bool {
    wants(records::DRIVER) && !is_set(&DRIVER_OFF, cbid)
}

pub(crate) fn wants_runtime(cbid: u32) -> bool {
    wants(records::RUNTIME) && !is_set(&RUNTIME_OFF, cbid)
}

pub(crate) fn is_set(flags: &[AtomicBool], cbid: u32) -> bool {
    flags
        .get(cbid as usize)
        .is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Returns whether records of events are written, with the time at which the GPU passed the event.
pub(crate) fn are_events_timed() -> bool {
    EVENTS_TIMED.load(Ordering::Relaxed)
        && (wants(records::CUDA_EVENT) || wants(records::SYNCHRONIZATION))
}

pub(crate) fn thread_id_type() -> u8 {
    THREAD_ID_TYPE.load(Ordering::Relaxed)
}

pub(crate) fn set_thread_id_type(to: u8) {
    THREAD_ID_TYPE.store(to, Ordering::Relaxed);
}

/// Returns the number of the calling thread in records: its number in the system, or the low half
/// of its `pthread_t`.
pub(crate) fn thread_number(tid: libc::pid_t) -> u32 {
    const BY_SYSTEM: u8 = 1;
    match thread_id_type() {
        BY_SYSTEM => tid.cast_unsigned(),
        // SAFETY: only returns the thread's handle.
        _ => unsafe { libc::pthread_self() as u32 },
    }
}
