//! The table of functions exported by Outboard's `libcuda.so.1`.

use std::{
    cell::Cell,
    ffi::{c_char, c_void},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use outboard_api::{
    CUresult,
    activity::{ACTIVITY_TABLE, ACTIVITY_VERSION, Hooks, Numbers, Table},
    cuda::{CUcontext, CUfunction, CUgraphNode},
};
use outboard_wire::doc::{self, Activities};

use crate::{log, status::Status};

outboard_driver::functions! {
    struct Calls { cuGetExportTable }
}

/// Returns the table. Each call tries again until it is found, since a program may load the driver
/// late.
pub(crate) fn table() -> Result<&'static Table, Status> {
    static TABLE: OnceLock<&'static Table> = OnceLock::new();
    static SAID: AtomicBool = AtomicBool::new(false);
    if is_forked() {
        return Err(Status::NOT_INITIALIZED);
    }
    if let Some(table) = TABLE.get() {
        return Ok(table);
    }
    match find() {
        Ok(table) => Ok(TABLE.get_or_init(|| table)),
        Err(why) => {
            log::warn_once(&SAID, format_args!("nothing is profiled: {why}"));
            Err(Status::NOT_INITIALIZED)
        }
    }
}

fn find() -> Result<&'static Table, &'static str> {
    // SAFETY: loading the driver runs its initialisers, as the program's own loading does.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return Err("there is no libcuda.so.1");
    }
    // SAFETY: the handle is of an open library, and `Calls` gives each name its declared type.
    let calls = unsafe { Calls::find(|name| libc::dlsym(handle, name.as_ptr())) }
        .map_err(|_| "libcuda.so.1 has no cuGetExportTable")?;
    let mut table = std::ptr::null();
    // SAFETY: the driver reads an id of sixteen bytes, and writes one pointer to a local variable.
    let result = unsafe {
        (calls.cuGetExportTable)(&mut table, (&ACTIVITY_TABLE as *const [u8; 16]).cast())
    };
    // SAFETY: only Outboard's driver answers this id, with a table that is never freed.
    let table = unsafe { table.cast::<Table>().as_ref() };
    match table.filter(|_| result == CUresult::CUDA_SUCCESS) {
        None => Err("libcuda.so.1 is not Outboard's; do not preload this libcupti.so.13"),
        Some(table) if table.version != ACTIVITY_VERSION => {
            Err("libcuda.so.1 is of another release of Outboard")
        }
        Some(table) => Ok(table),
    }
}

/// Returns true in a child of a process that profiled: the child has no session of its own.
pub(crate) fn is_forked() -> bool {
    static OWNER: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    match OWNER.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => false,
        Err(owner) => owner != pid,
    }
}

/// Sets or removes the hooks that libcuda calls.
pub(crate) fn attach(hooks: Option<&'static Hooks>) -> Result<(), Status> {
    let hooks = hooks.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the hooks are static.
    unsafe { (table()?.attach)(hooks) };
    Ok(())
}

/// Starts the given kinds on the server. Returns the source of its times, and why there are none.
pub(crate) fn enable(kinds: u32, kept_bytes_max: u64) -> Result<(u8, String), Status> {
    let (mut source, mut reason) = (0, Vec::new());
    // SAFETY: outputs; the reason is taken while the call runs.
    let result = unsafe {
        let reason = (&raw mut reason).cast();
        (table()?.enable)(kinds, kept_bytes_max, &mut source, reason, collect)
    };
    done("asking the server for its times", result)?;
    Ok((source, String::from_utf8_lossy(&reason).into_owned()))
}

/// Reads the server's clock.
pub(crate) fn clock() -> Result<u64, Status> {
    let mut now_ns = 0;
    // SAFETY: the client's function writes one number, to a local variable.
    let result = unsafe { (table()?.clock)(&mut now_ns) };
    done("asking the server for its clock", result)?;
    Ok(now_ns)
}

/// Whether an answer is awaited that did not come in time: the next call of [`take`] gets it.
static LATE: AtomicBool = AtomicBool::new(false);

/// Whether what [`take`] returns next is older than the question; false when asked again.
pub(crate) fn is_late() -> bool {
    LATE.swap(false, Ordering::Relaxed)
}

/// Takes records of finished work from the server.
pub(crate) fn take(flags: u32, activities_max: u32) -> Result<Activities, Status> {
    let mut document: Vec<u8> = Vec::new();
    // SAFETY: the document is taken while the call runs.
    let result =
        unsafe { (table()?.take)(flags, activities_max, (&raw mut document).cast(), collect) };
    if result == CUresult::CUDA_ERROR_TIMEOUT {
        LATE.store(true, Ordering::Relaxed);
    }
    done("taking the server's times", result)?;
    doc::from_bytes(&document).map_err(|error| {
        log::warn(format_args!("the server's times cannot be read: {error}"));
        Status::UNKNOWN
    })
}

/// Returns the numbers of an object of kind `what` and of its context (0: the current one). If the
/// server has no numbers, the handles serve as such: they tell objects apart as well.
pub(crate) fn number(what: u32, context: usize, object: usize) -> Result<Numbers, Status> {
    let mut numbers = Numbers::default();
    let table = table()?;
    // SAFETY: the client's function writes to a local record; it looks handles up and follows none.
    let result = own(|| unsafe {
        (table.number)(
            what,
            context as *mut c_void,
            object as *mut c_void,
            &mut numbers,
        )
    });
    match result {
        CUresult::CUDA_SUCCESS => Ok(numbers),
        CUresult::CUDA_ERROR_NOT_SUPPORTED => Ok(Numbers {
            context: context as u32,
            object: object as u64,
        }),
        CUresult::CUDA_ERROR_INVALID_CONTEXT | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED => {
            Err(Status::INVALID_CONTEXT)
        }
        other => {
            log::debug(format_args!(
                "the number of object {object:#x} of kind {what}: {other:?}"
            ));
            Err(Status::INVALID_PARAMETER)
        }
    }
}

thread_local! {
    /// Set while the thread is in a driver call that this library makes.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this library makes the driver call at hand, so that nobody is told of it.
pub(crate) fn is_own() -> bool {
    IS_OWN.get()
}

fn own<R>(call: impl FnOnce() -> R) -> R {
    let outer = IS_OWN.replace(true);
    let result = call();
    IS_OWN.set(outer);
    result
}

outboard_driver::functions! {
    /// Functions that are looked up once the program has loaded the driver.
    struct Questions {
        ;
        optional cuCtxGetDevice_v2, cuFuncGetName, cuGraphNodeGetType, cuPointerGetAttribute
    }
}

/// Returns the driver's functions, if it is loaded.
fn questions() -> Option<&'static Questions> {
    static QUESTIONS: OnceLock<Option<Questions>> = OnceLock::new();
    table().ok()?;
    let found = QUESTIONS.get_or_init(|| {
        // SAFETY: the driver is loaded, or there would be no table.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        // SAFETY: the handle is of an open library, and each name has its declared type.
        unsafe { Questions::find(|name| libc::dlsym(handle, name.as_ptr())) }.ok()
    });
    found.as_ref()
}

/// Returns the device of a context; 0 is the current context.
pub(crate) fn device(context: usize) -> Result<u32, Status> {
    let get = questions().and_then(|driver| driver.cuCtxGetDevice_v2);
    let get = get.ok_or(Status::NOT_INITIALIZED)?;
    let mut device = 0;
    // SAFETY: the driver writes one number, to a local variable; it looks the handle up only.
    match own(|| unsafe { get(&mut device, CUcontext(context)) }) {
        CUresult::CUDA_SUCCESS => Ok(device.cast_unsigned()),
        _ => Err(Status::INVALID_CONTEXT),
    }
}

/// Returns the name of a function or kernel, or NULL.
pub(crate) fn function_name(handle: usize) -> *const c_char {
    let mut name = std::ptr::null();
    if let Some(get) = questions().and_then(|driver| driver.cuFuncGetName) {
        // SAFETY: the driver writes one pointer, to a local variable; it looks the handle up only.
        own(|| unsafe { get(&mut name, CUfunction(handle)) });
    }
    name
}

/// Returns the `CUgraphNodeType` of a node, 0 if it is unknown.
pub(crate) fn node_type(node: *mut c_void) -> u32 {
    let mut kind = 0;
    if let Some(get) = questions().and_then(|driver| driver.cuGraphNodeGetType) {
        // SAFETY: an output; the handle is only looked up.
        own(|| unsafe { get(CUgraphNode(node as usize), &mut kind) });
    }
    kind
}

/// Returns the status and the value of `cuPointerGetAttribute`.
pub(crate) fn pointer_attribute(attribute: u32, address: u64) -> (CUresult, u32) {
    let mut value = 0u32;
    let Some(get) = questions().and_then(|driver| driver.cuPointerGetAttribute) else {
        return (CUresult::CUDA_ERROR_NOT_INITIALIZED, 0);
    };
    // SAFETY: room for the answer; the address is only looked up.
    let status = own(|| unsafe { get((&raw mut value).cast(), attribute, address) });
    (status, value)
}

/// Returns the name of a driver call.
pub(crate) fn call_name(number: u32) -> Option<&'static str> {
    let mut len = 0;
    let name = (table().ok()?.call_name)(number, &mut len);
    if name.is_null() {
        return None;
    }
    // SAFETY: a name in libcuda, which is never freed.
    let bytes = unsafe { std::slice::from_raw_parts(name, len) };
    std::str::from_utf8(bytes).ok()
}

unsafe extern "C" fn collect(into: *mut c_void, bytes: *const u8, len: usize) {
    if len > 0 && !bytes.is_null() {
        // SAFETY: `into` is the vector of the waiting caller above; the bytes are libcuda's.
        unsafe {
            (*into.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, len));
        }
    }
}

fn done(what: &str, result: CUresult) -> Result<(), Status> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    match result {
        CUresult::CUDA_ERROR_TIMEOUT => log::warn(format_args!(
            "{what}: it has not answered in time; is it stopped, or stuck?"
        )),
        _ => log::warn(format_args!("{what}: {result}")),
    }
    Err(match result {
        CUresult::CUDA_ERROR_NOT_INITIALIZED => Status::NOT_INITIALIZED,
        CUresult::CUDA_ERROR_NOT_SUPPORTED => Status::NOT_SUPPORTED,
        _ => Status::UNKNOWN,
    })
}
