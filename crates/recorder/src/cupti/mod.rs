//! Times of the GPU's work, by CUPTI: found where the program has it, asked for kernels, copies and memsets.
//!
//! Around calls that start work CUPTI is told a number of ours, which comes back with the work. Run against a stand-in for
//! CUPTI (`tests/fake_cupti.c`); not yet on a GPU.

mod records;

use std::{
    cell::Cell,
    collections::HashMap,
    ffi::{CStr, CString, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Instant,
};

use outboard_trace::{GpuTimes, GpuWork, Record, Work, live};
use parking_lot::Mutex;

use self::records::{Activity, Done};
use crate::driver::say;

/// Names CUPTI, where it would not be found; `off` for none.
const VARIABLE: &str = "OUTBOARD_CUPTI";
const NAMES: [&str; 2] = ["libcupti.so.13", "libcupti.so.12"];
/// From the folder of a loaded CUDA runtime, as toolkits and Python packages have it.
const BESIDE_RUNTIME: [&str; 3] = [".", "../../cuda_cupti/lib", "../extras/CUPTI/lib64"];
const BUFFER_BYTES: usize = 1 << 20;
const BUFFER_ALIGN: usize = 8;
/// `CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0`, `CUPTI_ACTIVITY_FLAG_FLUSH_FORCED`.
const CUSTOM0: u32 = 3;
const FLUSH_FORCED: u32 = 1;
/// Work whose call is not known yet, and calls whose work is not.
const WAITING_MAX: usize = 1 << 16;

type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// CUPTI's functions.
struct Cupti {
    push: unsafe extern "C" fn(u32, u64) -> c_int,
    pop: unsafe extern "C" fn(u32, *mut u64) -> c_int,
    flush: unsafe extern "C" fn(u32) -> c_int,
    next: unsafe extern "C" fn(*mut u8, usize, *mut *const u8) -> c_int,
    /// To be added to CUPTI's times, modulo 2^64.
    offset_ns: u64,
}

static CUPTI: OnceLock<Cupti> = OnceLock::new();
static IS_ON: AtomicBool = AtomicBool::new(false);
/// CUPTI was called at all.
static IS_USED: AtomicBool = AtomicBool::new(false);
static NEXT: AtomicU32 = AtomicU32::new(1);
static WAITING: Mutex<Option<Waiting>> = Mutex::new(None);

thread_local! {
    /// The thread is in a call of ours to CUPTI, which calls the driver itself: that is none of the program's calls.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether what the thread calls now is CUPTI's doing.
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

#[derive(Default)]
struct Waiting {
    /// Our numbers by CUPTI's.
    calls: HashMap<u32, u64>,
    work: Vec<(Done, u32)>,
}

/// Begins, where there is a CUPTI that is known.
pub(crate) fn start() {
    if CUPTI.get().is_some() || std::env::var_os(VARIABLE).is_some_and(|value| value == "off") {
        return;
    }
    IS_USED.store(true, Ordering::Relaxed);
    let Some(handle) = inside(open) else { return };
    // SAFETY: CUPTI's functions have these types.
    match inside(|| unsafe { begin(handle) }) {
        Ok(()) => {
            IS_ON.store(true, Ordering::Release);
            // Registered behind CUPTI's own, so that it runs before them.
            // SAFETY: a function of this library, which is never unloaded.
            unsafe { libc::atexit(at_exit) };
            if let Some(live) = live::live() {
                live.know(|about| about.gpu_times = GpuTimes::Cupti);
            }
        }
        Err(why) => say(format_args!("no times of the GPU are recorded: {why}")),
    }
}

unsafe fn begin(handle: *mut c_void) -> Result<(), String> {
    let find = |name: &CStr| -> Result<*mut c_void, String> {
        // SAFETY: an open library.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        match found.is_null() {
            true => Err(format!("CUPTI has no {}", name.to_string_lossy())),
            false => Ok(found),
        }
    };
    let done = |what: &str, status: c_int| match status {
        0 => Ok(()),
        status => Err(format!("{what} answers {status}")),
    };
    // SAFETY: functions of these types, as `cupti_activity.h` declares them.
    unsafe {
        let version: unsafe extern "C" fn(*mut u32) -> c_int =
            std::mem::transmute(find(c"cuptiGetVersion")?);
        let mut number = 0;
        done("cuptiGetVersion", version(&mut number))?;
        if !records::is_known(number) {
            return Err(format!(
                "the records of CUPTI version {number} are not known"
            ));
        }
        let register: unsafe extern "C" fn(Request, Complete) -> c_int =
            std::mem::transmute(find(c"cuptiActivityRegisterCallbacks")?);
        let enable: unsafe extern "C" fn(u32) -> c_int =
            std::mem::transmute(find(c"cuptiActivityEnable")?);
        let timestamp: unsafe extern "C" fn(*mut u64) -> c_int =
            std::mem::transmute(find(c"cuptiGetTimestamp")?);
        let cupti = Cupti {
            push: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32, u64) -> c_int>(
                find(c"cuptiActivityPushExternalCorrelationId")?,
            ),
            pop: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32, *mut u64) -> c_int>(
                find(c"cuptiActivityPopExternalCorrelationId")?,
            ),
            flush: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32) -> c_int>(find(
                c"cuptiActivityFlushAll",
            )?),
            next: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(*mut u8, usize, *mut *const u8) -> c_int,
            >(find(c"cuptiActivityGetNextRecord")?),
            offset_ns: offset_ns(timestamp)?,
        };
        let _ = CUPTI.set(cupti);
        done(
            "cuptiActivityRegisterCallbacks",
            register(request, complete),
        )?;
        for kind in [
            records::EXTERNAL_CORRELATION,
            records::CONCURRENT_KERNEL,
            records::MEMCPY,
            records::MEMSET,
        ] {
            done("cuptiActivityEnable", enable(kind))?;
        }
    }
    Ok(())
}

/// What CUPTI's clock lacks to the recording's: CUPTI is asked between two looks at ours, which lie close together.
fn offset_ns(timestamp: unsafe extern "C" fn(*mut u64) -> c_int) -> Result<u64, String> {
    const TRIES: u32 = 10;
    let live = live::live().ok_or("nothing is recorded")?;
    let mut best = None;
    for _ in 0..TRIES {
        let mut theirs = 0;
        let before = live.writer().at(Instant::now());
        // SAFETY: room for the answer.
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

/// A call that starts work begins: the number by which its work will be known; 0 for none.
#[inline]
pub(crate) fn call_begins(stream: u32) -> u32 {
    if !IS_ON.load(Ordering::Relaxed) {
        return 0;
    }
    let Some(cupti) = CUPTI.get() else { return 0 };
    let number = match NEXT.fetch_add(1, Ordering::Relaxed) {
        0 => NEXT.fetch_add(1, Ordering::Relaxed),
        number => number,
    };
    // SAFETY: CUPTI's function; any number will do.
    inside(|| unsafe { (cupti.push)(CUSTOM0, u64::from(number) | u64::from(stream) << 32) });
    number
}

pub(crate) fn call_ends(number: u32) {
    if number == 0 {
        return;
    }
    if let Some(cupti) = CUPTI.get() {
        let mut last = 0;
        // SAFETY: as above, with room for the answer.
        inside(|| unsafe { (cupti.pop)(CUSTOM0, &mut last) });
    }
}

extern "C" fn at_exit() {
    if !IS_ON.swap(false, Ordering::AcqRel) {
        return;
    }
    if let Some(cupti) = CUPTI.get() {
        // SAFETY: CUPTI's function; it calls `complete` for all that it has.
        inside(|| unsafe { (cupti.flush)(FLUSH_FORCED) });
    }
    // What is known of no call is work all the same.
    let left = WAITING.lock().take().unwrap_or_default();
    for (done, name) in left.work {
        write(done, name, 0);
    }
}

unsafe extern "C" fn request(buffer: *mut *mut u8, size: *mut usize, records_max: *mut usize) {
    // SAFETY: memory that `complete` gets back; outputs of CUPTI's.
    unsafe {
        let memory = libc::aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES).cast::<u8>();
        buffer.write(memory);
        size.write(if memory.is_null() { 0 } else { BUFFER_BYTES });
        records_max.write(0);
    }
}

unsafe extern "C" fn complete(
    _context: *mut c_void,
    _stream: u32,
    buffer: *mut u8,
    _size: usize,
    valid_bytes: usize,
) {
    if let Some(cupti) = CUPTI.get().filter(|_| valid_bytes > 0 && !buffer.is_null()) {
        let mut record = ptr::null();
        let end = buffer as usize + valid_bytes;
        // SAFETY: a buffer of CUPTI's own records, which it walks itself.
        while unsafe { (cupti.next)(buffer, valid_bytes, &mut record) } == 0 && !record.is_null() {
            if (record as usize) < buffer as usize || record as usize + 4 > end {
                break;
            }
            // SAFETY: inside the buffer, checked above; records begin with their kind.
            let kind = unsafe { record.cast::<u32>().read_unaligned() };
            let Some(len) = records::len(kind).filter(|len| record as usize + len <= end) else {
                continue;
            };
            // SAFETY: inside the buffer, checked above.
            let bytes = unsafe { std::slice::from_raw_parts(record, len) };
            if let Some(activity) = records::parse(bytes) {
                take(activity);
            }
        }
    }
    // SAFETY: memory of `request`.
    unsafe { libc::free(buffer.cast()) };
}

fn take(activity: Activity) {
    let mut waiting = WAITING.lock();
    let waiting = waiting.get_or_insert_default();
    match activity {
        Activity::External { id, correlation } => {
            let work = std::mem::take(&mut waiting.work);
            let (now, later): (Vec<_>, Vec<_>) = work
                .into_iter()
                .partition(|(done, _)| done.correlation == correlation);
            waiting.work = later;
            for (done, name) in now {
                write(done, name, id);
            }
            if waiting.calls.len() >= WAITING_MAX {
                // The oldest are not known; their work has come or never will.
                waiting.calls.clear();
            }
            waiting.calls.insert(correlation, id);
        }
        Activity::Work(done) => {
            let Some(name) = name(&done) else { return };
            match waiting.calls.get(&done.correlation) {
                // A graph's launch starts much: its number is kept.
                Some(id) => write(done, name, *id),
                None if waiting.work.len() < WAITING_MAX => waiting.work.push((done, name)),
                None => write(done, name, 0),
            }
        }
    }
}

/// The number of the work's name.
fn name(done: &Done) -> Option<u32> {
    let writer = live::live()?.writer();
    if done.kind != GpuWork::Kernel || done.name == 0 {
        return Some(writer.name(done.kind.name()));
    }
    // SAFETY: CUPTI's string, which it keeps.
    let name = unsafe { CStr::from_ptr(done.name as *const _) };
    Some(writer.name(&name.to_string_lossy()))
}

fn write(done: Done, name: u32, id: u64) {
    let (Some(live), Some(cupti)) = (live::live(), CUPTI.get()) else {
        return;
    };
    let work = Work {
        kind: done.kind,
        name,
        device: done.device,
        // Ours, where the call is known.
        stream: if id == 0 {
            done.stream
        } else {
            (id >> 32) as u32
        },
        start_ns: done.start.wrapping_add(cupti.offset_ns),
        duration_ns: done.end.saturating_sub(done.start),
        bytes: done.bytes,
        correlation: id as u32,
    };
    live.writer().append(live.thread(), Record::Work(work));
}

/// CUPTI, wherever it is.
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
    // The version that fits the program's own runtime first.
    beside
        .filter(|path| path.exists())
        .chain(NAMES.iter().map(PathBuf::from))
        .find_map(|path| open_at(&path))
}

fn open_at(path: &Path) -> Option<*mut c_void> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the loader runs the initialisers of NVIDIA's library, or of the one that the user named.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    (!handle.is_null()).then_some(handle)
}

/// Where CUDA runtimes lie that the program has loaded.
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
