//! The table of functions exported by Outboard's `libcuda.so.1`.

use std::{
    ffi::c_void,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use outboard_api::{
    CUresult,
    activity::{ACTIVITY_TABLE, ACTIVITY_VERSION, Hooks, Table},
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
    // SAFETY: an open library.
    let calls = unsafe { Calls::find(|name| libc::dlsym(handle, name.as_ptr())) }
        .map_err(|_| "libcuda.so.1 has no cuGetExportTable")?;
    let mut table = std::ptr::null();
    // SAFETY: an output and an id.
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
pub(crate) fn enable(kinds: u32) -> Result<(u8, String), Status> {
    let (mut source, mut reason) = (0, Vec::new());
    // SAFETY: outputs; the reason is taken while the call runs.
    let result =
        unsafe { (table()?.enable)(kinds, &mut source, (&raw mut reason).cast(), collect) };
    done("asking the server for its times", result)?;
    Ok((source, String::from_utf8_lossy(&reason).into_owned()))
}

/// Reads the server's clock.
pub(crate) fn clock() -> Result<u64, Status> {
    let mut now_ns = 0;
    // SAFETY: an output.
    let result = unsafe { (table()?.clock)(&mut now_ns) };
    done("asking the server for its clock", result)?;
    Ok(now_ns)
}

/// Takes records of finished work from the server.
pub(crate) fn take(flags: u32, activities_max: u32) -> Result<Activities, Status> {
    let mut document: Vec<u8> = Vec::new();
    // SAFETY: the document is taken while the call runs.
    let result =
        unsafe { (table()?.take)(flags, activities_max, (&raw mut document).cast(), collect) };
    done("taking the server's times", result)?;
    doc::from_bytes(&document).map_err(|error| {
        log::warn(format_args!("the server's times cannot be read: {error}"));
        Status::UNKNOWN
    })
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
    log::warn(format_args!("{what}: {result}"));
    Err(match result {
        CUresult::CUDA_ERROR_NOT_INITIALIZED => Status::NOT_INITIALIZED,
        CUresult::CUDA_ERROR_NOT_SUPPORTED => Status::NOT_SUPPORTED,
        _ => Status::UNKNOWN,
    })
}
