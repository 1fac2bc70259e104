//! Times of the GPU's work from CUPTI, which is searched for in the program's surroundings and
//! asked for kernels, copies and memsets.
//!
//! CUPTI calls us at the entry of calls that start work, with the number that the work will carry.
//! Records with the same information (external correlation) come only with records of API calls,
//! which would add one record per launch.

mod records;

use std::{
    cell::Cell,
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use outboard_api::cupti_records::{API_ENTER, CONCURRENT_KERNEL, Called, MEMCPY, MEMSET, is_known};
use outboard_driver::cupti_buffers::{Complete, Next, Request, lend, take_back};
use outboard_trace::{GpuTimes, GpuWork, Record, Work, live};

use self::records::Done;
use crate::{
    call_table::{CALLS, Role},
    driver::say,
    events,
};

/// Variable that names CUPTI if it would not be found.
const VARIABLE: &str = "OUTBOARD_CUPTI";
/// Values of that variable: events instead of CUPTI, and no times at all.
const OFF: &str = "off";
const NO_TIMES: &str = "none";
const NAMES: [&str; 2] = ["libcupti.so.13", "libcupti.so.12"];
/// CUPTI's folders relative to that of a loaded CUDA runtime, in toolkits and Python packages.
const BESIDE_RUNTIME: [&str; 3] = [".", "../../cuda_cupti/lib", "../extras/CUPTI/lib64"];
const BUFFER_BYTES: usize = 1 << 20;
/// `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`, `CUPTI_CB_DOMAIN_DRIVER_API`.
const FLUSH_FORCED: u32 = 1;
const DRIVER_API: u32 = 1;
/// CUPTI numbers the driver's functions; there are some 800.
const CALLBACKS_MAX: u32 = 4096;

type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const Called);
/// CUPTI's functions.
struct Cupti {
    flush: unsafe extern "C" fn(u32) -> c_int,
    next: Next,
    /// Added to CUPTI's times, modulo 2^64.
    offset_ns: u64,
}

static CUPTI: OnceLock<Cupti> = OnceLock::new();
static IS_ON: AtomicBool = AtomicBool::new(false);
/// True once CUPTI was called.
static IS_USED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// True while the thread is in a call of ours to CUPTI, which calls the driver itself: such
    /// calls are not the program's.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The number of the work that this thread's call starts.
    static CORRELATION: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if CUPTI makes the thread's present call.
#[inline]
pub(crate) fn is_inside() -> bool {
    IS_USED.load(Ordering::Relaxed) && IS_INSIDE.get()
}

fn inside<R>(call: impl FnOnce() -> R) -> R {
    let outer = IS_INSIDE.replace(true);
    let result = call();
    IS_INSIDE.set(outer);
    result
}

/// Starts timing now or after the untimed iterations. Called once the driver is open.
pub(crate) fn driver_is_open() {
    match untimed() {
        0 => choose(),
        _ => live::on_iteration(|number| {
            if number > untimed() {
                choose();
            }
        }),
    }
}

/// Starts CUPTI, or otherwise events.
fn choose() {
    match start() {
        Started::On | Started::Unwanted => {}
        Started::None => events::start(),
    }
}

/// Returns the number of iterations before the GPU is timed.
fn untimed() -> u32 {
    static UNTIMED: OnceLock<u32> = OnceLock::new();
    *UNTIMED.get_or_init(|| {
        let given = std::env::var(live::UNTIMED_VARIABLE).ok();
        given.and_then(|text| text.parse().ok()).unwrap_or(0)
    })
}

/// Result of starting CUPTI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Started {
    On,
    /// There is no CUPTI, or an unknown one, or it is not wanted.
    None,
    /// No times of any kind are wanted.
    Unwanted,
}

/// Starts CUPTI if there is one of a known version.
fn start() -> Started {
    if IS_ON.load(Ordering::Relaxed) {
        return Started::On;
    }
    match std::env::var_os(VARIABLE) {
        Some(value) if value == OFF => return Started::None,
        Some(value) if value == NO_TIMES => return Started::Unwanted,
        _ => {}
    }
    if CUPTI.get().is_some() || IS_USED.swap(true, Ordering::Relaxed) {
        return Started::None;
    }
    let Some(handle) = inside(open) else {
        return Started::None;
    };
    // SAFETY: the handle is of an open CUPTI.
    match inside(|| unsafe { begin(handle) }) {
        Ok(()) => {
            IS_ON.store(true, Ordering::Release);
            // Registered after CUPTI's own, so that it runs before them.
            // SAFETY: a function of this library, which is never unloaded.
            unsafe { libc::atexit(at_exit) };
            if let Some(live) = live::live() {
                live.know(|about| about.gpu_times = GpuTimes::Cupti);
            }
            Started::On
        }
        Err(why) => {
            say(format_args!(
                "CUPTI does not tell the times of the GPU: {why}"
            ));
            Started::None
        }
    }
}

/// Has CUPTI time kernels, copies and memsets, and call back at the calls that start them.
///
/// # Safety
/// `handle` must be an open CUPTI.
unsafe fn begin(handle: *mut c_void) -> Result<(), String> {
    type Register = unsafe extern "C" fn(Request, Complete) -> c_int;
    type Enable = unsafe extern "C" fn(u32) -> c_int;
    // SAFETY: an open CUPTI, by this function's contract; functions of these types, as
    // `cupti_activity.h` declares them.
    unsafe {
        check_version(handle)?;
        let register: Register = function(handle, c"cuptiActivityRegisterCallbacks")?;
        let enable: Enable = function(handle, c"cuptiActivityEnable")?;
        let cupti = Cupti {
            flush: function(handle, c"cuptiActivityFlushAll")?,
            next: function(handle, c"cuptiActivityGetNextRecord")?,
            offset_ns: offset_ns(function(handle, c"cuptiGetTimestamp")?)?,
        };
        let _ = CUPTI.set(cupti);
        let status = register(lend::<BUFFER_BYTES>, complete);
        done("cuptiActivityRegisterCallbacks", status)?;
        subscribe(handle)?;
        for kind in [CONCURRENT_KERNEL, MEMCPY, MEMSET] {
            done("cuptiActivityEnable", enable(kind))?;
        }
    }
    Ok(())
}

/// Finds one of CUPTI's functions.
///
/// # Safety
/// `handle` must be an open library, and `F` the type of its function of that name.
unsafe fn function<F: Copy>(handle: *mut c_void, name: &CStr) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library, by this function's contract, and a name with its NUL.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if found.is_null() {
        return Err(format!("CUPTI has no {}", name.to_string_lossy()));
    }
    // SAFETY: a function of this type, by this function's contract; a pointer, as asserted above.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

fn done(what: &str, status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        status => Err(format!("{what} answers {status}")),
    }
}

/// Refuses a CUPTI whose records are not known.
///
/// # Safety
/// `handle` must be an open CUPTI.
unsafe fn check_version(handle: *mut c_void) -> Result<(), String> {
    type Version = unsafe extern "C" fn(*mut u32) -> c_int;
    let mut number = 0;
    // SAFETY: the function's type, as `cupti.h` declares it, and a local variable for its output.
    unsafe {
        let version: Version = function(handle, c"cuptiGetVersion")?;
        done("cuptiGetVersion", version(&mut number))?;
    }
    match is_known(number) {
        true => Ok(()),
        false => Err(format!(
            "the records of CUPTI version {number} are not known"
        )),
    }
}

/// Has CUPTI call back at the driver's functions that start work.
///
/// # Safety
/// `handle` must be an open CUPTI.
unsafe fn subscribe(handle: *mut c_void) -> Result<(), String> {
    type Subscribe = unsafe extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> c_int;
    type CallbackName = unsafe extern "C" fn(u32, u32, *mut *const c_char) -> c_int;
    type EnableCallback = unsafe extern "C" fn(u32, *mut c_void, u32, u32) -> c_int;
    // SAFETY: functions of these types, as `cupti_callbacks.h` declares them; their outputs are
    // local variables, and names are strings that CUPTI keeps.
    unsafe {
        let subscribe: Subscribe = function(handle, c"cuptiSubscribe")?;
        let callback_name: CallbackName = function(handle, c"cuptiGetCallbackName")?;
        let enable_callback: EnableCallback = function(handle, c"cuptiEnableCallback")?;
        let mut subscriber = ptr::null_mut();
        let status = subscribe(&mut subscriber, called, ptr::null_mut());
        done("cuptiSubscribe", status)?;
        for number in 1..CALLBACKS_MAX {
            let mut name = ptr::null();
            if callback_name(DRIVER_API, number, &mut name) != 0 || name.is_null() {
                continue;
            }
            if starts_work(&CStr::from_ptr(name).to_string_lossy()) {
                let status = enable_callback(1, subscriber, DRIVER_API, number);
                done("cuptiEnableCallback", status)?;
            }
        }
    }
    Ok(())
}

/// Returns the difference between the recording's clock and CUPTI's: CUPTI is asked between two
/// looks at ours, of which the closest pair counts.
fn offset_ns(timestamp: unsafe extern "C" fn(*mut u64) -> c_int) -> Result<u64, String> {
    const TRIES: u32 = 10;
    let live = live::live().ok_or("nothing is recorded")?;
    let mut best = None;
    for _ in 0..TRIES {
        let mut theirs = 0;
        let before = live.writer().at(Instant::now());
        // SAFETY: CUPTI's function writes one number, to a local variable.
        let status = unsafe { timestamp(&mut theirs) };
        let after = live.writer().at(Instant::now());
        if status != 0 {
            return Err(format!("cuptiGetTimestamp answers {status}"));
        }
        let (width, ours) = (after - before, before + (after - before) / 2);
        if best.is_none_or(|(narrowest, _)| width < narrowest) {
            best = Some((width, ours.wrapping_sub(theirs)));
        }
    }
    best.map(|(_, offset)| offset).ok_or_else(String::new)
}

/// Returns true if a driver function of this name, in any version, may start work that is recorded.
fn starts_work(name: &str) -> bool {
    let name = ["_ptsz", "_ptds"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name);
    CALLS
        .iter()
        .any(|(known, _, role)| *role == Role::StartsWork && *known == name)
}

/// Called by CUPTI when the thread has entered a call.
unsafe extern "C" fn called(_: *mut c_void, _: u32, _: u32, called: *const Called) {
    // SAFETY: CUPTI's record of a driver call, there for as long as this function runs.
    let Some(called) = (unsafe { called.as_ref() }) else {
        return;
    };
    if called.site == API_ENTER {
        let _ = CORRELATION.try_with(|correlation| {
            // Of nested calls, the outer one counts.
            if correlation.get() == 0 {
                correlation.set(called.correlation);
            }
        });
    }
}

/// Called before a call that starts work.
#[inline]
pub(crate) fn call_begins() {
    if IS_ON.load(Ordering::Relaxed) {
        CORRELATION.set(0);
    }
}

/// Called after it; returns the number that its work carries, 0 for none.
#[inline]
pub(crate) fn call_ends() -> u32 {
    match IS_ON.load(Ordering::Relaxed) {
        true => CORRELATION.get(),
        false => 0,
    }
}

extern "C" fn at_exit() {
    // A forked child has no recording, and CUPTI's locks may be held by threads of its parent.
    if !IS_ON.swap(false, Ordering::AcqRel) || live::live().is_none() {
        return;
    }
    if let Some(cupti) = CUPTI.get() {
        // SAFETY: CUPTI's function; it calls `complete` for all that it has.
        inside(|| unsafe { (cupti.flush)(FLUSH_FORCED) });
    }
}

unsafe extern "C" fn complete(
    _context: *mut c_void,
    _stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid_bytes: usize,
) {
    let next = CUPTI.get().map(|cupti| cupti.next);
    let record = |bytes: &[u8]| {
        if let Some(done) = records::parse(bytes) {
            write(&done);
        }
    };
    // SAFETY: a buffer of `lend`, which CUPTI has filled.
    unsafe { take_back::<BUFFER_BYTES>(next, buffer, valid_bytes, record) };
}

/// Returns the number of the work's name.
fn name(done: &Done) -> Option<u32> {
    let writer = live::live()?.writer();
    if done.kind != GpuWork::Kernel || done.name == 0 {
        return Some(writer.name(done.kind.name()));
    }
    // SAFETY: CUPTI's string, which it keeps.
    let name = unsafe { CStr::from_ptr(done.name as *const _) };
    Some(writer.name(&name.to_string_lossy()))
}

fn write(done: &Done) {
    let (Some(live), Some(cupti)) = (live::live(), CUPTI.get()) else {
        return;
    };
    let Some(name) = name(done) else { return };
    let work = Work {
        kind: done.kind,
        name,
        device: done.device,
        stream: done.stream,
        start_ns: done.start.wrapping_add(cupti.offset_ns),
        duration_ns: done.end.saturating_sub(done.start),
        bytes: done.bytes,
        correlation: done.correlation,
    };
    live.writer().append_patiently(Record::Work(work));
}

/// Opens CUPTI, wherever it is.
fn open() -> Option<*mut c_void> {
    let given = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    if let Some(given) = given {
        let handle = open_at(Path::new(&given));
        if handle.is_none() {
            say(format_args!(
                "{VARIABLE}={} cannot be loaded",
                given.display()
            ));
        }
        return handle;
    }
    let folders = runtime_folders();
    let beside = NAMES.iter().flat_map(|name| {
        folders
            .iter()
            .flat_map(move |folder| BESIDE_RUNTIME.map(|way| folder.join(way).join(name)))
    });
    // First the version that fits the program's own runtime.
    beside
        .filter(|path| path.exists())
        .chain(NAMES.iter().map(PathBuf::from))
        .find_map(|path| open_at(&path))
}

fn open_at(path: &Path) -> Option<*mut c_void> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the loader runs the initialisers of NVIDIA's library, or of the one that the user
    // named.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!handle.is_null()).then_some(handle)
}

/// Returns the folders of the CUDA runtimes that the program has loaded.
fn runtime_folders() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut folders: Vec<PathBuf> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default();
            name.as_bytes().starts_with(b"libcudart.so")
        })
        .filter_map(|path| path.parent().map(Path::to_path_buf))
        .collect();
    folders.dedup();
    folders
}
