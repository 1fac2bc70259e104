//! Activity of the GPU for a client that profiles, from this machine's CUPTI, which is loaded at
//! the first request.
//!
//! CUPTI calls back when this thread enters a driver call that starts work, and says the number
//! that the work will bear. The number of the client's call is noted beside it, so that records
//! find their call. Work of the server's own has none.
//!
//! CUPTI belongs to the process, which serves one session: what is here is the process's too.

use std::{
    cell::Cell,
    collections::VecDeque,
    ffi::{CStr, CString, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

use outboard_api::{
    CUresult,
    activity::{NUMBER_CONTEXT, NUMBER_GRAPH, NUMBER_GRAPH_EXEC, NUMBER_GRAPH_NODE, NUMBER_STREAM},
    cupti_records::{
        API_ENTER, CONCURRENT_KERNEL, CUDA_EVENT, Called, CudaEventView, KernelView, MEMCPY,
        MEMCPY2, MEMSET, MemcpyView, MemsetView, PeerView, is_known,
    },
};
use outboard_device::{
    Cx, Failure,
    activity::{ACTIVITIES_PER_ANSWER_MAX, kept_max, now_ns, taken},
};
use outboard_driver::cupti_buffers::{Complete, Next, Request, lend, take_back};
use outboard_wire::{
    doc::{
        ACTIVITY_COPIES, ACTIVITY_CUPTI, ACTIVITY_EVENTS, ACTIVITY_KERNELS, ACTIVITY_MEMSETS,
        ACTIVITY_NONE, ACTIVITY_PEER_COPIES, Activities, Activity, ActivityWhat,
    },
    messages,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{Nvidia, table::STARTS_WORK};

/// Names CUPTI's library, where it would not be found.
const VARIABLE: &str = "OUTBOARD_CUPTI";
const NAMES: [&str; 2] = ["libcupti.so.13", "libcupti.so.12"];
/// Below a CUDA toolkit.
const IN_TOOLKIT: [&str; 3] = ["targets/x86_64-linux/lib", "extras/CUPTI/lib64", "lib64"];
/// Exported by the library that takes CUPTI's place in clients.
const OUR_MARK: &CStr = c"outboard_cupti";

const BUFFER_BYTES: usize = 4 << 20;
/// Driver calls whose client's call is remembered; the oldest are forgotten.
const CALLS_MAX: usize = 1 << 21;
/// `CUPTI_CB_DOMAIN_DRIVER_API`; CUPTI numbers some 850 functions of the driver.
const DRIVER_API: u32 = 1;
const FUNCTIONS_MAX: u32 = 4096;
const KINDS: [(u32, u32); 5] = [
    (ACTIVITY_KERNELS, CONCURRENT_KERNEL),
    (ACTIVITY_COPIES, MEMCPY),
    (ACTIVITY_PEER_COPIES, MEMCPY2),
    (ACTIVITY_MEMSETS, MEMSET),
    (ACTIVITY_EVENTS, CUDA_EVENT),
];

type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const Called);
/// CUPTI's functions, as `cupti.h` declares them.
struct Cupti {
    enable: unsafe extern "C" fn(u32) -> c_int,
    disable: unsafe extern "C" fn(u32) -> c_int,
    flush: unsafe extern "C" fn(u32) -> c_int,
    next: Next,
    enable_callback: unsafe extern "C" fn(u32, *mut c_void, u32, u32) -> c_int,
    /// `cuptiActivityEnableCudaEventDeviceTimestamps`, since CUDA 12.8.
    event_times: Option<unsafe extern "C" fn(u8) -> c_int>,
    numbers: Numbers,
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
    done_max: 0,
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
    /// Records kept until they are taken; further ones are only counted.
    done_max: usize,
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
        let cupti = cupti.get_or_insert_with(opened);
        if m.kinds != 0 {
            KEPT.lock().done_max = kept_max(m.kept_bytes_max, size_of::<Done>());
        }
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

    pub(super) fn activity_number(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::ActivityNumber,
    ) -> Result<messages::ActivityNumberReply, Failure> {
        self.enter(cx)?;
        let context = self.context(cx.context)?.hold.handle.raw();
        let object = match m.what {
            NUMBER_CONTEXT => context,
            NUMBER_STREAM => self.peek_stream(m.object)?.raw(),
            NUMBER_GRAPH => self.real_graph(m.object)?.raw(),
            NUMBER_GRAPH_EXEC => self.real_graphexec(m.object)?.raw(),
            NUMBER_GRAPH_NODE => self.real_node(m.object)?.raw(),
            what => return Err(no_number(&format!("{what} is no kind of object"))),
        };
        let mut cupti = CUPTI.lock();
        let cupti = cupti.get_or_insert_with(opened);
        let cupti = cupti.as_ref().map_err(|why| no_number(why))?;
        // SAFETY: live handles of this session, of the driver.
        let found = unsafe { cupti.numbers.of(m.what, context, object) };
        let (context, number) = found.map_err(|why| no_number(&why))?;
        Ok(messages::ActivityNumberReply { context, number })
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
    fn add(&mut self, done: Done) {
        match self.done.len() < self.done_max {
            true => self.done.push_back(done),
            false => self.dropped += 1,
        }
    }

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

fn no_number(why: &str) -> Failure {
    Failure::new(CUresult::CUDA_ERROR_NOT_SUPPORTED, why)
}

/// CUPTI's functions that return the numbers in its records; older versions lack some.
struct Numbers {
    context: Option<unsafe extern "C" fn(usize, *mut u32) -> c_int>,
    stream: Option<unsafe extern "C" fn(usize, usize, u8, *mut u32) -> c_int>,
    graph: Option<unsafe extern "C" fn(usize, *mut u32) -> c_int>,
    graph_exec: Option<unsafe extern "C" fn(usize, *mut u32) -> c_int>,
    graph_node: Option<unsafe extern "C" fn(usize, *mut u64) -> c_int>,
}

impl Numbers {
    /// # Safety
    /// `handle` must be an open CUPTI.
    unsafe fn find(handle: *mut c_void) -> Numbers {
        // SAFETY: functions of the types of their fields, as `cupti_activity.h` declares them.
        unsafe {
            Numbers {
                context: function(handle, c"cuptiGetContextId").ok(),
                stream: function(handle, c"cuptiGetStreamIdEx").ok(),
                graph: function(handle, c"cuptiGetGraphId").ok(),
                graph_exec: function(handle, c"cuptiGetGraphExecId").ok(),
                graph_node: function(handle, c"cuptiGetGraphNodeId").ok(),
            }
        }
    }

    /// Returns the numbers of a context and of an object in it.
    ///
    /// # Safety
    /// Both are live handles of the driver, and the object is of kind `what`.
    unsafe fn of(&self, what: u32, context: usize, object: usize) -> Result<(u32, u64), String> {
        let missing = || String::from("this machine's CUPTI has no function for it");
        let (mut number, mut short, mut long) = (0, 0, 0);
        // SAFETY: the caller's promise; outputs.
        unsafe {
            let of_context = self.context.ok_or_else(missing)?;
            done("cuptiGetContextId", of_context(context, &mut number))?;
            let (name, status) = match what {
                NUMBER_CONTEXT => ("cuptiGetContextId", of_context(context, &mut short)),
                NUMBER_STREAM => {
                    let of = self.stream.ok_or_else(missing)?;
                    ("cuptiGetStreamIdEx", of(context, object, 0, &mut short))
                }
                NUMBER_GRAPH => {
                    let of = self.graph.ok_or_else(missing)?;
                    ("cuptiGetGraphId", of(object, &mut short))
                }
                NUMBER_GRAPH_EXEC => {
                    let of = self.graph_exec.ok_or_else(missing)?;
                    ("cuptiGetGraphExecId", of(object, &mut short))
                }
                _ => {
                    let of = self.graph_node.ok_or_else(missing)?;
                    ("cuptiGetGraphNodeId", of(object, &mut long))
                }
            };
            done(name, status)?;
        }
        Ok((number, long.max(short.into())))
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
    /// `self` must hold CUPTI's functions.
    unsafe fn choose(&self, kinds: u32) -> Result<(), String> {
        let subscriber = self.subscriber as *mut c_void;
        let on = u32::from(kinds != 0);
        // SAFETY: CUPTI's functions, by this function's contract, and numbers.
        unsafe {
            for function in &self.functions {
                let status = (self.enable_callback)(on, subscriber, DRIVER_API, *function);
                done("cuptiEnableCallback", status)?;
            }
            // Without it a CUPTI's records of events have no times, and are shorter.
            let kinds = match self.event_times {
                Some(times) if kinds & ACTIVITY_EVENTS != 0 => {
                    done("cuptiActivityEnableCudaEventDeviceTimestamps", times(1))?;
                    kinds
                }
                Some(_) => kinds,
                None => kinds & !ACTIVITY_EVENTS,
            };
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

/// Opens CUPTI and logs the outcome.
fn opened() -> Result<Cupti, String> {
    // SAFETY: NVIDIA's library, or the one that the user named.
    let opened = unsafe { open() };
    match &opened {
        Ok(_) => tracing::info!("this session profiles, by CUPTI"),
        Err(why) => tracing::warn!("this session profiles in vain: {why}"),
    }
    opened
}

/// # Safety
/// The library found must be NVIDIA's CUPTI.
unsafe fn open() -> Result<Cupti, String> {
    let handle = load()?;
    // SAFETY: the library is NVIDIA's CUPTI, by this function's contract, and stays open.
    unsafe {
        check_version(handle)?;
        let mut cupti = Cupti::find(handle)?;
        let _ = NEXT.set(cupti.next);
        cupti.subscriber = subscribed(handle)?;
        cupti.functions = functions_that_start_work(handle)?;
        Ok(cupti)
    }
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
        false => Err(format!("records of CUPTI {number} are not known")),
    }
}

impl Cupti {
    /// Finds the functions that are called while a client profiles.
    ///
    /// # Safety
    /// `handle` must be an open CUPTI.
    unsafe fn find(handle: *mut c_void) -> Result<Cupti, String> {
        let event_times = c"cuptiActivityEnableCudaEventDeviceTimestamps";
        // SAFETY: functions of the types of their fields, as `cupti.h` declares them.
        unsafe {
            Ok(Cupti {
                enable: function(handle, c"cuptiActivityEnable")?,
                disable: function(handle, c"cuptiActivityDisable")?,
                flush: function(handle, c"cuptiActivityFlushAll")?,
                next: function(handle, c"cuptiActivityGetNextRecord")?,
                enable_callback: function(handle, c"cuptiEnableCallback")?,
                event_times: function(handle, event_times).ok(),
                numbers: Numbers::find(handle),
                subscriber: 0,
                functions: Vec::new(),
            })
        }
    }
}

/// Has CUPTI take the server's clock and buffers, and call back at driver calls. Returns the
/// subscriber.
///
/// # Safety
/// `handle` must be an open CUPTI.
unsafe fn subscribed(handle: *mut c_void) -> Result<usize, String> {
    type Clock = unsafe extern "C" fn(unsafe extern "C" fn() -> u64) -> c_int;
    type Register = unsafe extern "C" fn(Request, Complete) -> c_int;
    type Subscribe = unsafe extern "C" fn(*mut *mut c_void, Callback, *mut c_void) -> c_int;
    let mut subscriber = ptr::null_mut();
    // SAFETY: functions of these types, as `cupti.h` declares them; a local variable for an output.
    unsafe {
        let clock: Clock = function(handle, c"cuptiActivityRegisterTimestampCallback")?;
        let register: Register = function(handle, c"cuptiActivityRegisterCallbacks")?;
        let subscribe: Subscribe = function(handle, c"cuptiSubscribe")?;
        done("cuptiActivityRegisterTimestampCallback", clock(timestamp))?;
        let status = register(lend::<BUFFER_BYTES>, complete);
        done("cuptiActivityRegisterCallbacks", status)?;
        let status = subscribe(&mut subscriber, called, ptr::null_mut());
        done("cuptiSubscribe", status)?;
    }
    Ok(subscriber as usize)
}

/// Returns CUPTI's numbers of the driver functions that start work.
///
/// # Safety
/// `handle` must be an open CUPTI.
unsafe fn functions_that_start_work(handle: *mut c_void) -> Result<Vec<u32>, String> {
    type Name = unsafe extern "C" fn(u32, u32, *mut *const c_char) -> c_int;
    // SAFETY: the function's type, as `cupti.h` declares it.
    let name: Name = unsafe { function(handle, c"cuptiGetCallbackName") }?;
    let starts_work = |number: &u32| {
        let mut found = ptr::null();
        // SAFETY: a local variable for the output, which is a string that CUPTI keeps.
        unsafe {
            name(DRIVER_API, *number, &mut found) == 0
                && !found.is_null()
                && CStr::from_ptr(found).to_str().is_ok_and(starts_work)
        }
    };
    Ok((1..FUNCTIONS_MAX).filter(starts_work).collect())
}

/// True if a driver function of this name, of any version or form, starts work.
fn starts_work(name: &str) -> bool {
    STARTS_WORK.iter().any(|known| stem(known) == stem(name))
}

/// Returns a function's name without the suffixes of its form and version.
fn stem(name: &str) -> &str {
    let forms = ["_ptsz", "_ptds"];
    let plain = forms.iter().find_map(|form| name.strip_suffix(form));
    let plain = plain.unwrap_or(name);
    match plain.rsplit_once("_v") {
        Some((stem, version)) if version.bytes().all(|b| b.is_ascii_digit()) => stem,
        _ => plain,
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
    // SAFETY: the loader runs the initialisers of NVIDIA's library, or of the one that the user
    // named.
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

unsafe extern "C" fn complete(
    _context: *mut c_void,
    _stream: u32,
    buffer: *mut u8,
    _bytes: usize,
    valid_bytes: usize,
) {
    let keep = |record: &[u8]| {
        if let Some(done) = parse(record) {
            KEPT.lock().add(done);
        }
    };
    // SAFETY: a buffer of `lend`, which CUPTI has filled.
    unsafe { take_back::<BUFFER_BYTES>(NEXT.get().copied(), buffer, valid_bytes, keep) };
}

/// Parses the record at the beginning of `record`. Returns none for other kinds and cut records.
fn parse(record: &[u8]) -> Option<Done> {
    match KernelView(record).kind()? {
        CONCURRENT_KERNEL => parse_kernel(KernelView(record)),
        MEMCPY => parse_copy(MemcpyView(record)),
        MEMCPY2 => parse_peer(PeerView(record)),
        CUDA_EVENT => parse_event(CudaEventView(record)),
        MEMSET => parse_memset(MemsetView(record)),
        _ => None,
    }
}

/// Reads the fields that every record of work has from a view of it, and adds `what`.
macro_rules! done {
    ($record:ident, $name:expr, $what:expr) => {
        Some(Done {
            correlation: $record.correlationId()?,
            name: $name,
            activity: Activity {
                call: 0,
                device: $record.deviceId()?,
                context: $record.contextId()?,
                stream: $record.streamId()?,
                start_ns: $record.start()?,
                end_ns: $record.end()?,
                graph: $record.graphId()?,
                graph_node: $record.graphNodeId()?,
                what: $what,
            },
        })
    };
}

fn parse_copy(copy: MemcpyView<'_>) -> Option<Done> {
    let what = ActivityWhat::Copy {
        bytes: copy.bytes()?,
        kind: copy.copyKind()?,
        source: copy.srcKind()?,
        destination: copy.dstKind()?,
        flags: copy.flags()?,
    };
    done!(copy, 0, what)
}

fn parse_peer(copy: PeerView<'_>) -> Option<Done> {
    let what = ActivityWhat::PeerCopy {
        bytes: copy.bytes()?,
        kind: copy.copyKind()?,
        source: copy.srcKind()?,
        destination: copy.dstKind()?,
        flags: copy.flags()?,
        source_device: copy.srcDeviceId()?,
        source_context: copy.srcContextId()?,
        destination_device: copy.dstDeviceId()?,
        destination_context: copy.dstContextId()?,
    };
    done!(copy, 0, what)
}

fn parse_event(event: CudaEventView<'_>) -> Option<Done> {
    let at_ns = event.deviceTimestamp()?;
    Some(Done {
        correlation: event.correlationId()?,
        name: 0,
        activity: Activity {
            call: 0,
            device: event.deviceId()?,
            context: event.contextId()?,
            stream: event.streamId()?,
            start_ns: at_ns,
            end_ns: at_ns,
            graph: 0,
            graph_node: 0,
            what: ActivityWhat::EventRecorded,
        },
    })
}

fn parse_memset(set: MemsetView<'_>) -> Option<Done> {
    let what = ActivityWhat::Memset {
        bytes: set.bytes()?,
        value: set.value()?,
        memory: set.memoryKind()? as u8,
        flags: set.flags()? as u8,
    };
    done!(set, 0, what)
}

fn parse_kernel(kernel: KernelView<'_>) -> Option<Done> {
    let what = ActivityWhat::Kernel {
        name: 0,
        grid: [kernel.gridX()?, kernel.gridY()?, kernel.gridZ()?],
        block: [kernel.blockX()?, kernel.blockY()?, kernel.blockZ()?],
        cluster: [kernel.clusterX()?, kernel.clusterY()?, kernel.clusterZ()?],
        static_shared_bytes: kernel.staticSharedMemory()?,
        dynamic_shared_bytes: kernel.dynamicSharedMemory()?,
        shared_executed_bytes: kernel.sharedMemoryExecuted()?,
        registers: kernel.registersPerThread()?,
        local_bytes_per_thread: kernel.localMemoryPerThread()?,
        local_bytes_total: kernel.localMemoryTotal()?.into(),
        launch_type: kernel.launchType()?,
        grid_id: kernel.gridId()?,
    };
    done!(kernel, kernel.name()? as usize, what)
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
    fn calls_that_start_work_are_known_in_every_form() {
        for name in [
            "cuLaunchKernel_ptsz",
            "cuLaunchKernelEx",
            "cuMemcpy_v2",
            "cuMemcpyHtoDAsync_v2_ptsz",
            "cuMemsetD8_v2_ptds",
            "cuMemsetD2D32Async",
            "cuGraphLaunch",
            "cuEventRecordWithFlags_ptsz",
        ] {
            assert!(starts_work(name), "{name}");
        }
        for name in ["cuEventQuery", "cuMemAlloc_v2", "cuGraphInstantiate_v2", ""] {
            assert!(!starts_work(name), "{name}");
        }
    }

    #[test]
    fn a_record_that_is_cut_is_none() {
        for (kind, len) in [
            (CONCURRENT_KERNEL, 188),
            (MEMCPY, 76),
            (MEMCPY2, 84),
            (CUDA_EVENT, 48),
            (MEMSET, 76),
        ] {
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
            done_max: 4,
            dropped: 2,
        };
        // The last one finds no room.
        for correlation in [10, 11, 12, 12, 12] {
            let bytes = record(248, &[(0, 4, 10), (40, 4, 3), (92, 4, correlation)]);
            kept.add(parse(&bytes).unwrap());
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
