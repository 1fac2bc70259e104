//! Activity of the GPU for a client that profiles, from this machine's CUPTI, which is loaded at the
//! first request.
//!
//! CUPTI calls back when this thread enters a driver call that starts work, and says the number that the work will bear. The
//! number of the client's call is noted beside it, so that records find their call. Work of the server's own has none.
//!
//! CUPTI belongs to the process, which serves one session: what is here is the process's too.

use std::{
    cell::Cell,
    collections::VecDeque,
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    ptr, slice,
    sync::OnceLock,
};

use outboard_wire::{
    doc::{
        ACTIVITY_COPIES, ACTIVITY_CUPTI, ACTIVITY_KERNELS, ACTIVITY_MEMSETS, ACTIVITY_NONE,
        Activities, Activity, ActivityWhat,
    },
    messages,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Nvidia;
use crate::{
    activity::{ACTIVITIES_KEPT_MAX, ACTIVITIES_PER_ANSWER_MAX, now_ns, taken},
    device::{Cx, Failure},
};

/// Names CUPTI's library, where it would not be found.
const VARIABLE: &str = "OUTBOARD_CUPTI";
const NAMES: [&str; 2] = ["libcupti.so.13", "libcupti.so.12"];
/// Below a CUDA toolkit.
const IN_TOOLKIT: [&str; 3] = ["targets/x86_64-linux/lib", "extras/CUPTI/lib64", "lib64"];
/// Exported by the library that takes CUPTI's place in clients.
const OUR_MARK: &CStr = c"outboard_cupti";

const BUFFER_BYTES: usize = 4 << 20;
const BUFFER_ALIGN: usize = 8;
/// Driver calls whose client's call is remembered; the oldest are forgotten.
const CALLS_MAX: usize = 1 << 21;
/// `CUPTI_CB_DOMAIN_DRIVER_API`, `CUPTI_API_ENTER`; CUPTI numbers some 850 functions of the driver.
const DRIVER_API: u32 = 1;
const API_ENTER: u32 = 0;
const FUNCTIONS_MAX: u32 = 4096;
/// Beginnings of names of driver functions that start work.
const STARTS_WORK: [&str; 4] = ["cuLaunch", "cuMemcpy", "cuMemset", "cuGraphLaunch"];
/// `CUPTI_ACTIVITY_KIND_*`.
const MEMCPY: u32 = 1;
const MEMSET: u32 = 2;
const KERNEL: u32 = 10;
const KINDS: [(u32, u32); 3] = [
    (ACTIVITY_KERNELS, KERNEL),
    (ACTIVITY_COPIES, MEMCPY),
    (ACTIVITY_MEMSETS, MEMSET),
];

type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const Called);
type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Next = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int;
type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

/// The beginning of `CUpti_CallbackData`.
#[repr(C)]
struct Called {
    site: u32,
    function_name: *const c_char,
    function_params: *const c_void,
    function_result: *mut c_void,
    symbol_name: *const c_char,
    context: *mut c_void,
    context_number: u32,
    correlation_data: *mut u64,
    correlation: u32,
}

/// CUPTI's functions, as `cupti.h` declares them.
struct Cupti {
    enable: unsafe extern "C" fn(u32) -> c_int,
    disable: unsafe extern "C" fn(u32) -> c_int,
    flush: unsafe extern "C" fn(u32) -> c_int,
    next: Next,
    enable_callback: unsafe extern "C" fn(u32, *mut c_void, u32, u32) -> c_int,
    subscriber: usize,
    /// Numbers of the functions that start work.
    functions: Vec<u32>,
}

/// CUPTI once it was asked for, or why there is none.
static CUPTI: Mutex<Option<Result<Cupti, String>>> = Mutex::new(None);
/// CUPTI's walk through a buffer, for `complete`, which may run while the functions are locked.
static NEXT: OnceLock<Next> = OnceLock::new();
static KEPT: Mutex<Kept> = Mutex::new(Kept {
    calls: VecDeque::new(),
    done: VecDeque::new(),
    dropped: 0,
});

thread_local! {
    /// The number of the client's call whose message this thread executes; 0 for none.
    static CALL: Cell<u32> = const { Cell::new(0) };
}

struct Kept {
    /// CUPTI's number of a driver call, ascending, and the client's call.
    calls: VecDeque<(u32, u32)>,
    done: VecDeque<Done>,
    dropped: u64,
}

/// A record; its name is CUPTI's string, which it keeps.
struct Done {
    correlation: u32,
    name: usize,
    activity: Activity,
}

/// The messages to come are of this call.
pub(super) fn of_call(call: u32) {
    CALL.set(call);
}

impl Nvidia {
    pub(super) fn activity_enable(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::ActivityEnable,
    ) -> Result<messages::ActivityEnableReply<'static>, Failure> {
        self.enter_base()?;
        let mut cupti = CUPTI.lock();
        let cupti = cupti.get_or_insert_with(|| {
            // SAFETY: NVIDIA's library, or the one that the user named.
            let opened = unsafe { open() };
            match &opened {
                Ok(_) => tracing::info!("this session profiles, by CUPTI"),
                Err(why) => tracing::warn!("this session profiles in vain: {why}"),
            }
            opened
        });
        let chosen = cupti.as_ref().map_err(String::clone).and_then(|cupti| {
            // SAFETY: CUPTI's functions.
            unsafe { cupti.choose(m.kinds) }
        });
        let (source, reason) = match chosen {
            Ok(()) => (ACTIVITY_CUPTI, String::new()),
            Err(why) => (ACTIVITY_NONE, why),
        };
        Ok(messages::ActivityEnableReply {
            source,
            reason: reason.into_bytes().into(),
        })
    }

    pub(super) fn activity_clock(
        &mut self,
        _cx: &mut Cx<'_>,
        _m: &messages::ActivityClock,
    ) -> Result<messages::ActivityClockReply, Failure> {
        Ok(messages::ActivityClockReply { now_ns: now_ns() })
    }

    pub(super) fn activity_take(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::ActivityTake,
    ) -> Result<messages::ActivityTakeReply<'static>, Failure> {
        let is_empty = KEPT.lock().done.is_empty();
        if is_empty && let Some(Ok(cupti)) = &*CUPTI.lock() {
            // SAFETY: CUPTI's function; it hands all that is done to `complete`.
            let status = unsafe { (cupti.flush)(m.flags & 1) };
            if status != 0 {
                tracing::warn!(status, "cuptiActivityFlushAll");
            }
        }
        let ordinals: Vec<i32> = self.devices.iter().map(|gpu| gpu.ordinal).collect();
        taken(&KEPT.lock().take(m.activities_max, &ordinals))
    }
}

impl Kept {
    /// Work of the client's, the oldest first.
    fn take(&mut self, max: u32, ordinals: &[i32]) -> Activities {
        let max = max.min(ACTIVITIES_PER_ANSWER_MAX) as usize;
        let mut out = Activities {
            dropped: std::mem::take(&mut self.dropped),
            ..Activities::default()
        };
        let mut names = FxHashMap::default();
        while out.done.len() < max
            && let Some(done) = self.done.pop_front()
        {
            let found = self
                .calls
                .binary_search_by_key(&done.correlation, |(correlation, _)| *correlation);
            // The server's own.
            let Ok(at) = found else { continue };
            let mut activity = done.activity;
            activity.call = self.calls[at].1;
            let device = ordinals
                .iter()
                .position(|ordinal| ordinal.unsigned_abs() == activity.device);
            activity.device = device.unwrap_or_default() as u32;
            if let ActivityWhat::Kernel { name, .. } = &mut activity.what {
                *name = *names.entry(done.name).or_insert_with(|| {
                    out.names.push(text(done.name));
                    out.names.len() as u32 - 1
                });
            }
            out.done.push(activity);
        }
        out.more = !self.done.is_empty();
        out
    }
}

/// CUPTI's string.
fn text(name: usize) -> String {
    match name {
        0 => String::new(),
        // SAFETY: a string that CUPTI keeps.
        _ => unsafe { CStr::from_ptr(name as *const c_char) }
            .to_string_lossy()
            .into_owned(),
    }
}

impl Cupti {
    /// # Safety
    /// CUPTI's functions.
    unsafe fn choose(&self, kinds: u32) -> Result<(), String> {
        let subscriber = self.subscriber as *mut c_void;
        let on = u32::from(kinds != 0);
        // SAFETY: the caller's promise.
        unsafe {
            for function in &self.functions {
                let status = (self.enable_callback)(on, subscriber, DRIVER_API, *function);
                done("cuptiEnableCallback", status)?;
            }
            for (bit, kind) in KINDS {
                match kinds & bit != 0 {
                    true => done("cuptiActivityEnable", (self.enable)(kind))?,
                    // One that was never enabled is refused.
                    false => drop((self.disable)(kind)),
                }
            }
        }
        Ok(())
    }
}

fn done(what: &str, status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        status => Err(format!("{what} of this machine's CUPTI answers {status}")),
    }
}

/// `CUPTI_API_VERSION`s whose records are known: those of CUDA 11.8 to 13.5.
fn is_known(version: u32) -> bool {
    matches!(version, 18..=28 | 130_000..=130_599)
}

/// # Safety
/// The library found must be NVIDIA's CUPTI.
unsafe fn open() -> Result<Cupti, String> {
    let handle = load()?;
    let find = |name: &CStr| -> Result<*mut c_void, String> {
        // SAFETY: an open library.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        match found.is_null() {
            true => Err(format!("CUPTI has no {}", name.to_string_lossy())),
            false => Ok(found),
        }
    };
    // SAFETY: functions of these types, as `cupti.h` declares them.
    unsafe {
        let version: unsafe extern "C" fn(*mut u32) -> c_int =
            std::mem::transmute(find(c"cuptiGetVersion")?);
        let mut number = 0;
        done("cuptiGetVersion", version(&mut number))?;
        if !is_known(number) {
            return Err(format!("records of CUPTI {number} are not known"));
        }
        let timestamps: unsafe extern "C" fn(unsafe extern "C" fn() -> u64) -> c_int =
            std::mem::transmute(find(c"cuptiActivityRegisterTimestampCallback")?);
        let register: unsafe extern "C" fn(Request, Complete) -> c_int =
            std::mem::transmute(find(c"cuptiActivityRegisterCallbacks")?);
        let subscribe: unsafe extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> c_int =
            std::mem::transmute(find(c"cuptiSubscribe")?);
        let name: unsafe extern "C" fn(u32, u32, *mut *const c_char) -> c_int =
            std::mem::transmute(find(c"cuptiGetCallbackName")?);
        let mut cupti = Cupti {
            enable: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32) -> c_int>(find(
                c"cuptiActivityEnable",
            )?),
            disable: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32) -> c_int>(find(
                c"cuptiActivityDisable",
            )?),
            flush: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32) -> c_int>(find(
                c"cuptiActivityFlushAll",
            )?),
            next: std::mem::transmute::<*mut c_void, Next>(find(c"cuptiActivityGetNextRecord")?),
            enable_callback: std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(u32, *mut c_void, u32, u32) -> c_int,
            >(find(c"cuptiEnableCallback")?),
            subscriber: 0,
            functions: Vec::new(),
        };
        let _ = NEXT.set(cupti.next);
        done(
            "cuptiActivityRegisterTimestampCallback",
            timestamps(timestamp),
        )?;
        done(
            "cuptiActivityRegisterCallbacks",
            register(request, complete),
        )?;
        let mut subscriber = ptr::null_mut();
        done(
            "cuptiSubscribe",
            subscribe(&mut subscriber, called, ptr::null_mut()),
        )?;
        cupti.subscriber = subscriber as usize;
        for number in 1..FUNCTIONS_MAX {
            let mut found = ptr::null();
            if name(DRIVER_API, number, &mut found) == 0 && !found.is_null() {
                let found = CStr::from_ptr(found).to_bytes();
                if STARTS_WORK.iter().any(|n| found.starts_with(n.as_bytes())) {
                    cupti.functions.push(number);
                }
            }
        }
        Ok(cupti)
    }
}

/// CUPTI, where the user says, where toolkits have it, or where the loader finds it.
fn load() -> Result<*mut c_void, String> {
    let given = std::env::var_os(VARIABLE).filter(|given| !given.is_empty());
    let places: Vec<PathBuf> = match &given {
        Some(given) => vec![given.into()],
        None => in_toolkits()
            .into_iter()
            .chain(NAMES.map(PathBuf::from))
            .collect(),
    };
    let found = places.iter().find_map(|path| load_at(path));
    found.ok_or_else(|| match given {
        Some(given) => format!("{VARIABLE}={} is no CUPTI", Path::new(&given).display()),
        None => format!(
            "there is no {} on the server's machine (looked for in CUDA_HOME, /usr/local/cuda and \
             LD_LIBRARY_PATH; {VARIABLE} of the server may name it)",
            NAMES[0]
        ),
    })
}

/// Where toolkits have CUPTI, those that are there.
fn in_toolkits() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = ["CUDA_HOME", "CUDA_PATH"]
        .iter()
        .filter_map(|name| std::env::var_os(name).map(PathBuf::from))
        .collect();
    roots.push("/usr/local/cuda".into());
    let more = std::fs::read_dir("/usr/local").into_iter().flatten();
    let mut more: Vec<PathBuf> = more
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().unwrap_or_default();
            name.as_bytes().starts_with(b"cuda-")
        })
        .collect();
    // The newest first.
    more.sort();
    roots.extend(more.into_iter().rev());
    let folders = roots
        .iter()
        .flat_map(|root| IN_TOOLKIT.map(|below| root.join(below)));
    let files: Vec<PathBuf> = folders
        .flat_map(|folder| NAMES.map(|name| folder.join(name)))
        .collect();
    files.into_iter().filter(|path| path.exists()).collect()
}

fn load_at(path: &Path) -> Option<*mut c_void> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the loader runs the initialisers of NVIDIA's library, or of the one that the user named.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: an open library. Ours, for clients, is none that could be asked here.
    let is_ours = unsafe { !libc::dlsym(handle, OUR_MARK.as_ptr()).is_null() };
    (!is_ours).then_some(handle)
}

unsafe extern "C" fn timestamp() -> u64 {
    now_ns()
}

/// CUPTI says that a thread enters or leaves a driver call.
unsafe extern "C" fn called(_: *mut c_void, _: u32, _: u32, called: *const Called) {
    // SAFETY: CUPTI's record of the call, there for as long as this function runs.
    let Some(called) = (unsafe { called.as_ref() }) else {
        return;
    };
    let call = CALL.try_with(Cell::get).unwrap_or(0);
    if called.site != API_ENTER || call == 0 {
        return;
    }
    let mut kept = KEPT.lock();
    if kept.calls.len() >= CALLS_MAX {
        kept.calls.pop_front();
    }
    kept.calls.push_back((called.correlation, call));
}

unsafe extern "C" fn request(buffer: *mut *mut u8, bytes: *mut usize, records_max: *mut usize) {
    // SAFETY: memory that `complete` gets back; outputs of CUPTI's.
    unsafe {
        let memory = libc::aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES).cast::<u8>();
        buffer.write(memory);
        bytes.write(if memory.is_null() { 0 } else { BUFFER_BYTES });
        records_max.write(0);
    }
}

unsafe extern "C" fn complete(
    _context: *mut c_void,
    _stream: u32,
    buffer: *mut u8,
    _bytes: usize,
    valid_bytes: usize,
) {
    if let Some(next) = NEXT.get().filter(|_| valid_bytes > 0 && !buffer.is_null()) {
        let mut record = ptr::null_mut();
        let end = buffer as usize + valid_bytes;
        // SAFETY: a buffer of CUPTI's own records, which it walks itself.
        while unsafe { next(buffer, valid_bytes, &mut record) } == 0 && !record.is_null() {
            if (record as usize) < buffer as usize || record as usize >= end {
                break;
            }
            // SAFETY: inside the buffer, checked above.
            let bytes = unsafe { slice::from_raw_parts(record, end - record as usize) };
            if let Some(done) = parse(bytes) {
                let mut kept = KEPT.lock();
                match kept.done.len() < ACTIVITIES_KEPT_MAX {
                    true => kept.done.push_back(done),
                    false => kept.dropped += 1,
                }
            }
        }
    }
    // SAFETY: memory of `request`.
    unsafe { libc::free(buffer.cast()) };
}

/// Numbers at offsets of a record.
struct At<'a>(&'a [u8]);

impl At<'_> {
    fn u8(&self, at: usize) -> Option<u8> {
        self.0.get(at).copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    fn u32(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.0.get(at..)?.first_chunk()?))
    }

    fn i32(&self, at: usize) -> Option<i32> {
        self.u32(at).map(u32::cast_signed)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        Some(u64::from_le_bytes(*self.0.get(at..)?.first_chunk()?))
    }
}

/// A record. The offsets are those of `cupti_activity.h` from CUDA 12.0 on (`CUpti_ActivityKernel9`, `Memcpy5`, `Memset4`):
/// what was added since came behind.
fn parse(record: &[u8]) -> Option<Done> {
    let at = At(record);
    match at.u32(0)? {
        KERNEL => parse_kernel(&at),
        kind @ (MEMCPY | MEMSET) => {
            let is_copy = kind == MEMCPY;
            Some(Done {
                correlation: at.u32(44)?,
                name: 0,
                activity: Activity {
                    call: 0,
                    device: at.u32(32)?,
                    context: at.u32(36)?,
                    stream: at.u32(40)?,
                    start_ns: at.u64(16)?,
                    end_ns: at.u64(24)?,
                    graph: at.u32(72)?,
                    graph_node: at.u64(64)?,
                    what: match is_copy {
                        true => ActivityWhat::Copy {
                            bytes: at.u64(8)?,
                            kind: at.u8(4)?,
                            source: at.u8(5)?,
                            destination: at.u8(6)?,
                            flags: at.u8(7)?,
                        },
                        false => ActivityWhat::Memset {
                            bytes: at.u64(8)?,
                            value: at.u32(4)?,
                            memory: at.u16(50)? as u8,
                            flags: at.u16(48)? as u8,
                        },
                    },
                },
            })
        }
        _ => None,
    }
}

fn parse_kernel(at: &At<'_>) -> Option<Done> {
    let three = |first: usize| Some([at.i32(first)?, at.i32(first + 4)?, at.i32(first + 8)?]);
    Some(Done {
        correlation: at.u32(92)?,
        name: at.u64(104)? as usize,
        activity: Activity {
            call: 0,
            device: at.u32(40)?,
            context: at.u32(44)?,
            stream: at.u32(48)?,
            start_ns: at.u64(16)?,
            end_ns: at.u64(24)?,
            graph: at.u32(156)?,
            graph_node: at.u64(144)?,
            what: ActivityWhat::Kernel {
                name: 0,
                grid: three(52)?,
                block: three(64)?,
                cluster: three(176)?.map(i32::cast_unsigned),
                static_shared_bytes: at.i32(76)?,
                dynamic_shared_bytes: at.i32(80)?,
                shared_executed_bytes: at.u32(140)?,
                registers: at.u16(6)?,
                local_bytes_per_thread: at.u32(84)?,
                local_bytes_total: at.u32(88)?.into(),
                launch_type: at.u8(136)?,
                grid_id: at.u64(96)?.cast_signed(),
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(len: usize, fields: &[(usize, usize, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (at, len, value) in fields {
            bytes[*at..at + len].copy_from_slice(&value.to_le_bytes()[..*len]);
        }
        bytes
    }

    #[test]
    fn a_record_that_is_cut_is_none() {
        for (kind, len) in [(KERNEL, 188), (MEMCPY, 76), (MEMSET, 76)] {
            let whole = record(248, &[(0, 4, kind.into())]);
            assert!(parse(&whole[..len]).is_some(), "{kind}");
            for short in 0..len {
                assert!(parse(&whole[..short]).is_none(), "{kind}: {short} bytes");
            }
        }
        assert!(parse(&record(64, &[(0, 4, 99)])).is_none());
    }

    #[test]
    fn only_the_clients_work_is_told_of_under_its_own_numbers() {
        let mut kept = Kept {
            calls: VecDeque::from([(10, 501), (12, 502)]),
            done: VecDeque::new(),
            dropped: 3,
        };
        for correlation in [10, 11, 12, 12] {
            let bytes = record(248, &[(0, 4, 10), (40, 4, 3), (92, 4, correlation)]);
            kept.done.extend(parse(&bytes));
        }
        let taken = kept.take(2, &[2, 3]);
        let calls = |taken: &Activities| taken.done.iter().map(|d| d.call).collect::<Vec<_>>();
        assert_eq!(
            (calls(&taken), taken.dropped, taken.more),
            (vec![501, 502], 3, true)
        );
        assert!(taken.done.iter().all(|done| done.device == 1));
        let rest = kept.take(9, &[2, 3]);
        assert_eq!(
            (calls(&rest), rest.dropped, rest.more),
            (vec![502], 0, false)
        );
    }
}
