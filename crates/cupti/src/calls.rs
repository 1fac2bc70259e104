//! The functions that are served, as `cupti.h` declares them.
#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::{
    ffi::{c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use crate::{
    buffers::{self, Complete, Request},
    clock::{self, Timestamp},
    driver,
    entry::{DRIVER, RUNTIME},
    hooks::{self, EXTERNAL_KINDS},
    log,
    profile::{self, Callback},
    records,
    status::Status,
};

/// `CUPTI_API_VERSION` of CUDA 13.0, the version of the records written here.
const VERSION: u32 = 130_001;
const DOMAIN_DRIVER: u32 = 1;
const DOMAIN_RESOURCE: u32 = 3;
/// Number of `CUPTI_ACTIVITY_ATTR_*` values that are stored. They tune buffers on the GPU, which do
/// not exist here.
const ATTRIBUTES: usize = 11;

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

/// Writes an output parameter of the program's call.
///
/// # Safety
/// `to` is NULL or valid for writes.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Status> {
    if to.is_null() {
        return Err(Status::INVALID_PARAMETER);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiGetVersion(version: *mut u32) -> Status {
    // SAFETY: the program's output.
    enter("cuptiGetVersion", || unsafe { put(version, VERSION) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiGetResultString(
    result: u32,
    text: *mut *const c_char,
) -> Status {
    enter("cuptiGetResultString", || {
        let name = Status(result).name();
        // SAFETY: the program's output.
        unsafe { put(text, name.unwrap_or(c"<unknown>").as_ptr()) }?;
        name.map(|_| ()).ok_or(Status::INVALID_PARAMETER)
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiGetLastError() -> Status {
    Status(LAST_ERROR.swap(0, Ordering::Relaxed))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiGetTimestamp(timestamp: *mut u64) -> Status {
    enter("cuptiGetTimestamp", || {
        // SAFETY: the program's output.
        unsafe { put(timestamp, clock::program()) }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiGetCallbackName(
    domain: u32,
    cbid: u32,
    name: *mut *const c_char,
) -> Status {
    enter("cuptiGetCallbackName", || {
        let names = match domain {
            DOMAIN_DRIVER => DRIVER,
            hooks::DOMAIN_RUNTIME => RUNTIME,
            _ => return Err(Status::INVALID_PARAMETER),
        };
        let found = hooks::name(names, cbid).ok_or(Status::INVALID_PARAMETER)?;
        // SAFETY: the program's output; the names are never freed.
        unsafe { put(name, found.as_ptr()) }
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
        profile::enable_call(hooks::DOMAIN_RUNTIME, cbid, enable != 0)
    })
}

/// Accepts the setting. There are no records of events here, so none lacks its time.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityEnableCudaEventDeviceTimestamps(enable: u8) -> Status {
    not_kept("cuptiActivityEnableCudaEventDeviceTimestamps", enable)
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
        let taken = profile::take(flags);
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
pub(crate) unsafe extern "C" fn cuptiActivityGetNumDroppedRecords(
    _context: *mut c_void,
    _stream: u32,
    dropped: *mut usize,
) -> Status {
    enter("cuptiActivityGetNumDroppedRecords", || {
        if dropped.is_null() {
            return Err(Status::INVALID_PARAMETER);
        }
        // SAFETY: the program's output.
        unsafe { put(dropped, buffers::take_dropped()) }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiActivityPushExternalCorrelationId(kind: u32, id: u64) -> Status {
    enter("cuptiActivityPushExternalCorrelationId", || {
        let known = kind as usize;
        match known != 0 && known < EXTERNAL_KINDS {
            true if hooks::push(known, id) => Ok(()),
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
        let id = hooks::pop(kind as usize).ok_or(Status::QUEUE_EMPTY)?;
        if !last_id.is_null() {
            // SAFETY: the program's output.
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
        // SAFETY: the program's record of an attribute.
        let (kept, len) = unsafe { attribute_at(attribute, bytes, value) }?;
        let mut word = [0; size_of::<usize>()];
        // SAFETY: the program's `len` bytes, at most a word.
        unsafe { std::ptr::copy_nonoverlapping(value.cast(), word.as_mut_ptr(), len) };
        kept.store(usize::from_ne_bytes(word), Ordering::Relaxed);
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
        // SAFETY: the program's record of an attribute.
        let (kept, len) = unsafe { attribute_at(attribute, bytes, value) }?;
        let word = kept.load(Ordering::Relaxed).to_ne_bytes();
        // SAFETY: the program's `len` bytes, at most a word.
        unsafe { std::ptr::copy_nonoverlapping(word.as_ptr(), value.cast(), len) };
        Ok(())
    })
}

/// Returns the storage of an attribute, and the length in bytes of the program's value.
///
/// # Safety
/// `bytes` is NULL or valid, and `value` has the length that it gives.
unsafe fn attribute_at(
    attribute: u32,
    bytes: *mut usize,
    value: *mut c_void,
) -> Result<(&'static AtomicUsize, usize), Status> {
    // SAFETY: the caller's promise.
    let len = unsafe { bytes.as_ref() }.ok_or(Status::INVALID_PARAMETER)?;
    if value.is_null() || *len == 0 || *len > size_of::<usize>() {
        return Err(Status::INVALID_PARAMETER);
    }
    let kept = ATTRIBUTE_VALUES.get(attribute as usize);
    Ok((kept.ok_or(Status::INVALID_PARAMETER)?, *len))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiGetThreadIdType(to: *mut u32) -> Status {
    enter("cuptiGetThreadIdType", || {
        // SAFETY: the program's output.
        unsafe { put(to, profile::thread_id_type().into()) }
    })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiSetThreadIdType(to: u32) -> Status {
    enter("cuptiSetThreadIdType", || match to {
        0 | 1 => {
            profile::set_thread_id_type(to as u8);
            Ok(())
        }
        _ => Err(Status::INVALID_PARAMETER),
    })
}

/// Handle of the one subscriber that CUPTI allows.
static SUBSCRIBER: u8 = 0;

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuptiSubscribe(
    subscriber: *mut *mut c_void,
    callback: Option<Callback>,
    user: *mut c_void,
) -> Status {
    enter("cuptiSubscribe", || {
        let callback = callback.filter(|_| !subscriber.is_null());
        profile::subscribe(callback.ok_or(Status::INVALID_PARAMETER)?, user)?;
        // SAFETY: the program's output.
        unsafe { put(subscriber, (&raw const SUBSCRIBER).cast_mut().cast()) }
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
        if domain == DOMAIN_RESOURCE {
            // PyTorch subscribes to the end of contexts in order to end its profile first. Here it
            // loses nothing without: a context ends after the program's work is done, and its
            // records are kept.
            log::debug(format_args!("callbacks for resources never come ({cbid})"));
            return Ok(());
        }
        check_domain(domain, enable)?;
        profile::call_back(Some(cbid), enable != 0)
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
        profile::call_back(None, enable != 0)
    })
}

/// Accepts only calls of the runtime: callbacks read a call's arguments, which are available for no
/// other domain.
fn check_domain(domain: u32, enable: u32) -> Result<(), Status> {
    const DOMAINS: usize = 7;
    static SAID: [AtomicBool; DOMAINS] = [const { AtomicBool::new(false) }; DOMAINS];
    if domain == hooks::DOMAIN_RUNTIME {
        return Ok(());
    }
    let said = SAID.get(domain as usize).filter(|_| domain != 0);
    let said = said.ok_or(Status::INVALID_PARAMETER)?;
    if enable != 0 {
        log::warn_once(
            said,
            format_args!("cuptiEnableCallback: callbacks of domain {domain} are not supported"),
        );
    }
    Err(Status::NOT_SUPPORTED)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn cuptiFinalize() -> Status {
    enter("cuptiFinalize", profile::finalize)
}
