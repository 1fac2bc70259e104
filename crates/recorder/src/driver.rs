//! The real driver: opened by name, with its functions in the table through which ours jump.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    io::Write as _,
    os::unix::ffi::OsStrExt,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicPtr, Ordering},
    },
};

use outboard_api::CUresult;
use outboard_trace::{Device, live};

/// Variable that names the driver.
pub(crate) const VARIABLE: &str = "OUTBOARD_DRIVER";
const NAME_BYTES: usize = 256;

static HANDLE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

static EXPORTS: OnceLock<Exports> = OnceLock::new();

/// The address of an exported function.
#[derive(Clone, Copy)]
pub(crate) struct Export(pub(crate) *const c_void);

// SAFETY: the address of a function, never written through.
unsafe impl Sync for Export {}
// SAFETY: a function belongs to no thread.
unsafe impl Send for Export {}

/// This library's functions by their symbols, and the driver's in the same order.
#[derive(Clone, Copy)]
pub(crate) struct Exports {
    pub(crate) ours: &'static [(&'static CStr, Export)],
    pub(crate) slots: &'static [AtomicPtr<c_void>],
}

/// Opens the driver and fills the table's slots.
pub(crate) fn load(exports: Exports) {
    let _ = EXPORTS.set(exports);
    let Some(name) = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()) else {
        return say(format_args!(
            "{VARIABLE} names no driver; start the program with `outboard run --local --record FILE -- PROGRAM`"
        ));
    };
    let Ok(path) = CString::new(name.as_bytes()) else {
        return say(format_args!("{VARIABLE} is no file name"));
    };
    // SAFETY: the loader runs the initialisers of the library that the user named.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: the message of the call that failed, or null.
        let why = unsafe { libc::dlerror().as_ref() }
            // SAFETY: a C string of the loader's.
            .map(|why| unsafe { CStr::from_ptr(why) }.to_string_lossy());
        // The loader's text names the file, if there is one.
        return match why {
            Some(why) => say(format_args!("the driver cannot be loaded: {why}")),
            None => say(format_args!("{} cannot be loaded", name.display())),
        };
    }
    for ((symbol, ours), slot) in exports.ours.iter().zip(exports.slots) {
        // SAFETY: a library that is open, for good.
        let real = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
        if real.cast_const() == ours.0 {
            return say(format_args!(
                "{} is this library itself, not a driver",
                name.display()
            ));
        }
        if !real.is_null() {
            slot.store(real, Ordering::Relaxed);
        }
    }
    HANDLE.store(handle, Ordering::Release);
}

/// Called in place of a function that the driver does not have.
pub(crate) extern "C" fn missing<const SLOT: usize>() -> CUresult {
    if HANDLE.load(Ordering::Acquire).is_null() {
        return CUresult::CUDA_ERROR_NO_DEVICE;
    }
    static SAID: [AtomicBool; 1024] = [const { AtomicBool::new(false) }; 1024];
    if !SAID[SLOT % SAID.len()].swap(true, Ordering::Relaxed) {
        let symbol = exports().and_then(|exports| exports.ours.get(SLOT));
        let symbol = symbol.map_or(c"such function", |(symbol, _)| symbol);
        say(format_args!(
            "the driver has no {}",
            symbol.to_string_lossy()
        ));
    }
    CUresult::CUDA_ERROR_NOT_FOUND
}

/// Returns the functions of both, once the driver was opened.
pub(crate) fn exports() -> Option<&'static Exports> {
    EXPORTS.get()
}

/// Returns the driver's function of a name, or null if it has none.
pub(crate) fn function(name: &CStr) -> *mut c_void {
    let handle = HANDLE.load(Ordering::Acquire);
    if handle.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a library that stays open.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

outboard_driver::functions! {
    struct Questions {
        ;
        optional cuDriverGetVersion, cuDeviceGetCount, cuDeviceGetName, cuDeviceTotalMem_v2
    }
}

/// Describes the devices to the recording, after `cuInit` has succeeded.
pub(crate) fn is_there() {
    let Some(live) = live::live() else { return };
    // SAFETY: the driver's functions, by their names.
    let Ok(driver) = (unsafe { Questions::find(function) }) else {
        return;
    };
    let mut version: c_int = 0;
    let mut count: c_int = 0;
    // SAFETY: the driver's functions write one number each, to local variables.
    unsafe {
        if let Some(ask) = driver.cuDriverGetVersion {
            ask(&mut version);
        }
        if let Some(ask) = driver.cuDeviceGetCount {
            ask(&mut count);
        }
    }
    let devices = (0..count).map(|number| device(&driver, number)).collect();
    live.know(|about| {
        about.driver_version = u32::try_from(version).unwrap_or(0);
        about.devices = devices;
    });
}

fn device(driver: &Questions, number: c_int) -> Device {
    let mut name = [0 as c_char; NAME_BYTES];
    let mut memory_bytes = 0usize;
    // SAFETY: each answer is written to a local variable, and the name's length is passed. The
    // name ends with a 0 at its last byte at the latest.
    let name = unsafe {
        if let Some(ask) = driver.cuDeviceGetName {
            ask(name.as_mut_ptr(), NAME_BYTES as c_int - 1, number);
        }
        if let Some(ask) = driver.cuDeviceTotalMem_v2 {
            ask(&mut memory_bytes, number);
        }
        CStr::from_ptr(name.as_ptr())
    };
    Device {
        name: name.to_string_lossy().into_owned(),
        memory_bytes: memory_bytes as u64,
    }
}

pub(crate) fn say(what: impl std::fmt::Display) {
    // stderr may be closed; eprintln! would panic.
    let _ = writeln!(std::io::stderr(), "outboard: {what}");
}
