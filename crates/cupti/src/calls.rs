//! The functions that are served, as `cupti.h` declares them.
#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::{
    ffi::{c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};

use outboard_api::{
    activity::{NUMBER_CONTEXT, NUMBER_GRAPH, NUMBER_GRAPH_EXEC, NUMBER_GRAPH_NODE},
    argument, cupti_records as records,
};
use parking_lot::Mutex;

use crate::{
    buffers::{self, Complete, Request},
    call_stack::{self, EXTERNAL_KINDS},
    callbacks::{self, Callback, DOMAIN_DRIVER, DOMAIN_RESOURCE, DOMAIN_RUNTIME},
    clock::{self, Timestamp},
    driver,
    entry::{DRIVER, RUNTIME},
    known::{self, DOMAINS as DOMAIN_NAMES},
    log, objects, profile,
    status::Status,
    taken, wanted,
};

/// `CUPTI_API_VERSION` of CUDA 13.0, the version of the records written here.
const VERSION: u32 = 130_001;
/// Number of `CUPTI_ACTIVITY_ATTR_*` values that are stored.
const ATTRIBUTES: usize = 11;
/// `CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_SIZE`, `CUPTI_ACTIVITY_ATTR_DEVICE_BUFFER_POOL_LIMIT`, and
/// CUPTI's defaults: their product limits the memory for records that were not taken yet.
const DEVICE_BUFFER_SIZE: usize = 0;
const DEVICE_BUFFER_POOL_LIMIT: usize = 2;
const DEVICE_BUFFER_BYTES: usize = 3_200_000;
const DEVICE_BUFFERS: usize = 250;

static LAST_ERROR: AtomicU32 = AtomicU32::new(0);

/// Runs a function, and stops panics before they unwind into C.
fn enter(name: &str, body: impl FnOnce() -> Result<(), Status>) -> Status {
    let status = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => {
            log::warn(format_args!("{name} panicked: a bug of Outboard"));
            Status::UNKNOWN
        }
    };
    log::debug(format_args!("{name} answers {}", status.0));
    // Reaching the end of a buffer is not an error.
    if status != Status::MAX_LIMIT_REACHED {
        LAST_ERROR.store(status.0, Ordering::Relaxed);
    }
    status
}

/// An output of an exported function: NULL or valid for a write, as CUPTI asks of its callers.
type Out<'c, T> = argument::Out<'c, T, Status>;

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetVersion(version: Out<'_, u32>) -> Status {
    enter("cuptiGetVersion", || version.put(VERSION))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetResultString(result: u32, text: Out<'_, *const c_char>) -> Status {
    enter("cuptiGetResultString", || {
        let name = Status(result).name();
        text.put(name.unwrap_or(c"<unknown>").as_ptr())?;
        name.map(|_| ()).ok_or(Status::INVALID_PARAMETER)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetLastError() -> Status {
    Status(LAST_ERROR.swap(0, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetTimestamp(timestamp: Out<'_, u64>) -> Status {
    enter("cuptiGetTimestamp", || timestamp.put(clock::program()))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetCallbackName(
    domain: u32,
    cbid: u32,
    name: Out<'_, *const c_char>,
) -> Status {
    enter("cuptiGetCallbackName", || {
        let names = match domain {
            DOMAIN_DRIVER => DRIVER,
            DOMAIN_RUNTIME => RUNTIME,
            _ => return Err(Status::INVALID_PARAMETER),
        };
        let found = known::name(names, cbid).ok_or(Status::INVALID_PARAMETER)?;
        // The names are never freed.
        name.put(found.as_ptr())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiActivityRegisterCallbacks(
    request: Option<Request>,
    complete: Option<Complete>,
) -> Status {
    enter("cuptiActivityRegisterCallbacks", || {
        let callbacks = request.zip(complete).ok_or(Status::INVALID_PARAMETER)?;
        driver::table()?;
        buffers::register(callbacks.0, callbacks.1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiActivityRegisterTimestampCallback(
    timestamp: Option<Timestamp>,
) -> Status {
    enter("cuptiActivityRegisterTimestampCallback", || {
        driver::table()?;
        clock::register(timestamp);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityEnable(kind: u32) -> Status {
    enter("cuptiActivityEnable", || profile::enable(kind, true))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityDisable(kind: u32) -> Status {
    enter("cuptiActivityDisable", || profile::enable(kind, false))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityEnableDriverApi(cbid: u32, enable: u8) -> Status {
    enter("cuptiActivityEnableDriverApi", || {
        profile::enable_call(DOMAIN_DRIVER, cbid, enable != 0)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityEnableRuntimeApi(cbid: u32, enable: u8) -> Status {
    enter("cuptiActivityEnableRuntimeApi", || {
        profile::enable_call(DOMAIN_RUNTIME, cbid, enable != 0)
    })
}

/// Has records of events bear the time at which the GPU passed the event.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityEnableCudaEventDeviceTimestamps(enable: u8) -> Status {
    enter("cuptiActivityEnableCudaEventDeviceTimestamps", || {
        profile::time_events(enable != 0)
    })
}

/// Accepts the setting. The fields stay 0: when the server queued a launch says nothing about the
/// program.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityEnableLatencyTimestamps(enable: u8) -> Status {
    not_kept("cuptiActivityEnableLatencyTimestamps", enable)
}

/// Accepts a setting that changes nothing while it is off, and reports once that it cannot be
/// turned on.
fn not_kept(name: &'static str, enable: u8) -> Status {
    static SAID: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    enter(name, || {
        if enable == 0 {
            return Ok(());
        }
        let mut said = SAID.lock();
        if !said.contains(&name) {
            said.push(name);
            log::warn(format_args!("{name} is not supported"));
        }
        Err(Status::NOT_SUPPORTED)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityFlushAll(flags: u32) -> Status {
    enter("cuptiActivityFlushAll", || {
        driver::table()?;
        if !buffers::is_registered() {
            return Err(Status::INVALID_PARAMETER);
        }
        if buffers::is_in_callback() {
            log::warn(format_args!(
                "cuptiActivityFlushAll cannot be called by the functions for buffers"
            ));
            return Err(Status::INVALID_OPERATION);
        }
        let taken = taken::take(flags);
        // Records that were taken go to the program even if taking more failed.
        buffers::flush();
        taken
    })
}

/// Accepts the period. Buffers are returned when they are full and when the program asks, so at
/// most later.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityFlushPeriod(period_ms: u32) -> Status {
    not_kept("cuptiActivityFlushPeriod", u8::from(period_ms != 0))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiActivityGetNextRecord(
    buffer: *mut u8,
    valid_bytes: usize,
    record: *mut *mut u8,
) -> Status {
    enter("cuptiActivityGetNextRecord", || {
        if buffer.is_null() || record.is_null() {
            return Err(Status::INVALID_PARAMETER);
        }
        let whole = |at: usize| -> Option<usize> {
            let kind_end = at.checked_add(size_of::<u32>())?;
            if kind_end > valid_bytes {
                return None;
            }
            // SAFETY: inside the buffer that the program names, checked above.
            let kind = unsafe { buffer.add(at).cast::<u32>().read_unaligned() };
            records::len(kind).filter(|len| at.checked_add(*len).is_some_and(|e| e <= valid_bytes))
        };
        // SAFETY: the program's pointer: NULL for the first record, else the value that the last
        // call wrote.
        let last = unsafe { record.read() };
        let at = match last.is_null() {
            true => 0,
            false => {
                let at = (last as usize).wrapping_sub(buffer as usize);
                at + whole(at).ok_or(Status::INVALID_PARAMETER)?
            }
        };
        whole(at).ok_or(Status::MAX_LIMIT_REACHED)?;
        // SAFETY: inside the buffer, checked above; the program's output.
        unsafe { record.write(buffer.add(at)) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityGetNumDroppedRecords(
    _context: *mut c_void,
    _stream: u32,
    dropped: Out<'_, usize>,
) -> Status {
    enter("cuptiActivityGetNumDroppedRecords", || {
        dropped.check()?;
        dropped.put(buffers::take_dropped())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) -> Status {
    enter("cuptiActivityPushExternalCorrelationId", || {
        let known = kind as usize;
        match known != 0 && known < EXTERNAL_KINDS {
            true if call_stack::push(known, id) => Ok(()),
            true => Err(Status::OUT_OF_MEMORY),
            false => Err(Status::INVALID_PARAMETER),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiActivityPopExternalCorrelationId(
    kind: u32,
    last_id: *mut u64,
) -> Status {
    enter("cuptiActivityPopExternalCorrelationId", || {
        if kind == 0 || kind as usize >= EXTERNAL_KINDS {
            return Err(Status::INVALID_PARAMETER);
        }
        let id = call_stack::pop(kind as usize).ok_or(Status::QUEUE_EMPTY)?;
        if !last_id.is_null() {
            // SAFETY: NULL or an output: CUPTI asks it of its callers.
            unsafe { last_id.write(id) };
        }
        Ok(())
    })
}

static ATTRIBUTE_VALUES: [AtomicUsize; ATTRIBUTES] = [const { AtomicUsize::new(0) }; ATTRIBUTES];

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiActivitySetAttribute(
    attribute: u32,
    bytes: *mut usize,
    value: *mut c_void,
) -> Status {
    enter("cuptiActivitySetAttribute", || {
        // SAFETY: NULL or a value of the length given: CUPTI asks it of its callers.
        let (kept, len) = unsafe { attribute_at(attribute, bytes, value) }?;
        let mut word = [0; size_of::<usize>()];
        // SAFETY: the program's `len` bytes, at most a word.
        unsafe { std::ptr::copy_nonoverlapping(value.cast(), word.as_mut_ptr(), len) };
        kept.store(usize::from_ne_bytes(word), Ordering::Relaxed);
        keep_bytes();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiActivityGetAttribute(
    attribute: u32,
    bytes: *mut usize,
    value: *mut c_void,
) -> Status {
    enter("cuptiActivityGetAttribute", || {
        // SAFETY: NULL or a value of the length given: CUPTI asks it of its callers.
        let (kept, len) = unsafe { attribute_at(attribute, bytes, value) }?;
        let word = kept.load(Ordering::Relaxed).to_ne_bytes();
        // SAFETY: the program's `len` bytes, at most a word.
        unsafe { std::ptr::copy_nonoverlapping(word.as_ptr(), value.cast(), len) };
        Ok(())
    })
}

/// Applies the memory limit for records that were not taken yet, if the program has set one.
fn keep_bytes() {
    let value =
        |attribute: usize, otherwise| match ATTRIBUTE_VALUES[attribute].load(Ordering::Relaxed) {
            0 => (false, otherwise),
            set => (true, set),
        };
    let (bytes_set, bytes) = value(DEVICE_BUFFER_SIZE, DEVICE_BUFFER_BYTES);
    let (buffers_set, buffers) = value(DEVICE_BUFFER_POOL_LIMIT, DEVICE_BUFFERS);
    if bytes_set || buffers_set {
        profile::keep_bytes(bytes.saturating_mul(buffers) as u64);
    }
}

/// Returns the storage of an attribute, and the length in bytes of the program's value.
///
/// # Safety
/// `bytes` must be NULL or valid, and `value` have the length that it gives.
unsafe fn attribute_at(
    attribute: u32,
    bytes: *mut usize,
    value: *mut c_void,
) -> Result<(&'static AtomicUsize, usize), Status> {
    // SAFETY: NULL or a length, by this function's contract.
    let len = unsafe { bytes.as_ref() }.ok_or(Status::INVALID_PARAMETER)?;
    if value.is_null() || *len == 0 || *len > size_of::<usize>() {
        return Err(Status::INVALID_PARAMETER);
    }
    let kept = ATTRIBUTE_VALUES.get(attribute as usize);
    Ok((kept.ok_or(Status::INVALID_PARAMETER)?, *len))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetThreadIdType(to: Out<'_, u32>) -> Status {
    enter("cuptiGetThreadIdType", || {
        to.put(wanted::thread_id_type().into())
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiSetThreadIdType(to: u32) -> Status {
    enter("cuptiSetThreadIdType", || match to {
        0 | 1 => {
            wanted::set_thread_id_type(to as u8);
            Ok(())
        }
        _ => Err(Status::INVALID_PARAMETER),
    })
}

/// Handle of the one subscriber that CUPTI allows.
static SUBSCRIBER: u8 = 0;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiSubscribe(
    subscriber: Out<'_, *mut c_void>,
    callback: Option<Callback>,
    user: *mut c_void,
) -> Status {
    enter("cuptiSubscribe", || {
        let callback = callback.filter(|_| !subscriber.is_null());
        callbacks::subscribe(callback.ok_or(Status::INVALID_PARAMETER)?, user)?;
        subscriber.put((&raw const SUBSCRIBER).cast_mut().cast())
    })
}

fn check_subscriber(subscriber: *mut c_void) -> Result<(), Status> {
    match subscriber.cast_const().cast() == &raw const SUBSCRIBER {
        true => Ok(()),
        false => Err(Status::INVALID_PARAMETER),
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiUnsubscribe(subscriber: *mut c_void) -> Status {
    enter("cuptiUnsubscribe", || {
        check_subscriber(subscriber)?;
        profile::unsubscribe()
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiEnableCallback(
    enable: u32,
    subscriber: *mut c_void,
    domain: u32,
    cbid: u32,
) -> Status {
    enter("cuptiEnableCallback", || {
        check_subscriber(subscriber)?;
        check_domain(domain, enable)?;
        profile::call_back(domain, Some(cbid), enable != 0)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiEnableDomain(
    enable: u32,
    subscriber: *mut c_void,
    domain: u32,
) -> Status {
    enter("cuptiEnableDomain", || {
        check_subscriber(subscriber)?;
        check_domain(domain, enable)?;
        profile::call_back(domain, None, enable != 0)
    })
}

/// Accepts calls of the driver and the runtime, and resources. Of those only graphs are reported:
/// PyTorch subscribes to the end of contexts in order to end its profile first, and loses nothing
/// without, since a context ends after the program's work is done and its records are kept.
fn check_domain(domain: u32, enable: u32) -> Result<(), Status> {
    const DOMAINS: usize = 7;
    static SAID: [AtomicBool; DOMAINS] = [const { AtomicBool::new(false) }; DOMAINS];
    if matches!(domain, DOMAIN_DRIVER | DOMAIN_RUNTIME | DOMAIN_RESOURCE) {
        return Ok(());
    }
    let said = SAID.get(domain as usize).filter(|_| domain != 0);
    let said = said.ok_or(Status::INVALID_PARAMETER)?;
    if enable != 0 {
        log::warn_once(
            said,
            format_args!(
                "cuptiEnableCallback: CUPTI_CB_DOMAIN_{} is not supported",
                DOMAIN_NAMES.get(domain as usize).unwrap_or(&"unknown")
            ),
        );
    }
    Err(Status::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiFinalize() -> Status {
    enter("cuptiFinalize", profile::finalize)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetDeviceId(context: *mut c_void, id: Out<'_, u32>) -> Status {
    enter("cuptiGetDeviceId", || {
        id.put(driver::device(context as usize)?)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetContextId(context: *mut c_void, id: Out<'_, u32>) -> Status {
    enter("cuptiGetContextId", || {
        let found = driver::number(NUMBER_CONTEXT, context as usize, context as usize)?;
        id.put(found.context)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetStreamId(
    context: *mut c_void,
    stream: *mut c_void,
    id: Out<'_, u32>,
) -> Status {
    enter("cuptiGetStreamId", || {
        let found = objects::stream(context as usize, stream as usize)?;
        id.put(found.object as u32)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetStreamIdEx(
    context: *mut c_void,
    stream: *mut c_void,
    is_per_thread: u8,
    id: Out<'_, u32>,
) -> Status {
    enter("cuptiGetStreamIdEx", || {
        let stream = match stream.is_null() && is_per_thread != 0 {
            true => objects::PER_THREAD,
            false => stream as usize,
        };
        let found = objects::stream(context as usize, stream)?;
        id.put(found.object as u32)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetGraphId(graph: *mut c_void, id: Out<'_, u32>) -> Status {
    enter("cuptiGetGraphId", || {
        // CUPTI takes an executable graph too, as XLA's profiler passes them.
        let found = driver::number(NUMBER_GRAPH, 0, graph as usize)
            .or_else(|_| driver::number(NUMBER_GRAPH_EXEC, 0, graph as usize))?;
        id.put(found.object as u32)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetGraphExecId(exec: *mut c_void, id: Out<'_, u32>) -> Status {
    enter("cuptiGetGraphExecId", || {
        let found = driver::number(NUMBER_GRAPH_EXEC, 0, exec as usize)?;
        id.put(found.object as u32)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetGraphNodeId(node: *mut c_void, id: Out<'_, u64>) -> Status {
    enter("cuptiGetGraphNodeId", || {
        let found = driver::number(NUMBER_GRAPH_NODE, 0, node as usize)?;
        id.put(found.object)
    })
}
