//! Calls of the CUDA driver of this process, if the program has loaded one: allocations, and their
//! handles for other processes.

use std::ops::Range;

use libloading::os::unix::{Library, RTLD_NOW, Symbol};

/// `RTLD_NOLOAD`: a library that is not there already stays so.
const NOT_ANEW: i32 = 4;
const LIBRARY: &str = "libcuda.so.1";
const SUCCESS: i32 = 0;

/// Bytes of `CUipcMemHandle`.
pub(crate) const HANDLE_BYTES: usize = 64;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const PEER_ACCESS: u32 = 1;

/// `CUipcMemHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Handle([u8; HANDLE_BYTES]);

type GetAddressRange = unsafe extern "C" fn(*mut u64, *mut usize, u64) -> i32;
type GetHandle = unsafe extern "C" fn(*mut Handle, u64) -> i32;
type OpenHandle = unsafe extern "C" fn(*mut u64, Handle, u32) -> i32;
type CloseHandle = unsafe extern "C" fn(u64) -> i32;

/// Returns the driver, if this process has loaded it.
fn loaded() -> Option<Library> {
    // SAFETY: a library that is loaded already runs no code now.
    unsafe { Library::open(Some(LIBRARY), RTLD_NOW | NOT_ANEW) }.ok()
}

fn done(call: &str, status: i32) -> Result<(), String> {
    match status {
        SUCCESS => Ok(()),
        error => Err(format!("{call}: error {error}")),
    }
}

fn missing(call: &str) -> String {
    format!("{call}: {LIBRARY} is not loaded, or has no such function")
}

/// Returns the allocation of GPU memory that has this address; `None` if there is none.
pub(crate) fn range_of(address: u64) -> Option<Range<u64>> {
    let library = loaded()?;
    // SAFETY: the driver's function of this name has this type.
    let call: Symbol<GetAddressRange> =
        unsafe { library.get(b"cuMemGetAddressRange_v2\0") }.ok()?;
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: both places are there.
    let status = unsafe { call(&raw mut base, &raw mut bytes, address) };
    (status == SUCCESS).then(|| base..base + bytes as u64)
}

/// Returns a handle of an allocation, for another process.
pub(crate) fn handle_of(base: u64) -> Result<[u8; HANDLE_BYTES], String> {
    const CALL: &str = "cuIpcGetMemHandle";
    let library = loaded().ok_or_else(|| missing(CALL))?;
    // SAFETY: the driver's function of this name has this type.
    let call: Symbol<GetHandle> =
        unsafe { library.get(CALL.as_bytes()) }.map_err(|_| missing(CALL))?;
    let mut handle = Handle([0; HANDLE_BYTES]);
    // SAFETY: the place is there.
    done(CALL, unsafe { call(&raw mut handle, base) }).map(|()| handle.0)
}

/// Maps another process's memory in the context of this thread. Returns its address.
pub(crate) fn open(handle: &[u8; HANDLE_BYTES]) -> Result<u64, String> {
    const CALL: &str = "cuIpcOpenMemHandle_v2";
    let library = loaded().ok_or_else(|| missing(CALL))?;
    // SAFETY: the driver's function of this name has this type.
    let call: Symbol<OpenHandle> =
        unsafe { library.get(CALL.as_bytes()) }.map_err(|_| missing(CALL))?;
    let mut address = 0;
    // SAFETY: the place is there, and the driver checks the handle.
    let status = unsafe { call(&raw mut address, Handle(*handle), PEER_ACCESS) };
    done(CALL, status).map(|()| address)
}

/// Unmaps what [`open`] has mapped, which no kernel uses any more.
pub(crate) fn close(address: u64) {
    let Some(library) = loaded() else { return };
    // SAFETY: the driver's function of this name has this type.
    if let Ok(call) = unsafe { library.get::<CloseHandle>(b"cuIpcCloseMemHandle\0") } {
        // SAFETY: an address that the driver gave.
        unsafe { call(address) };
    }
}
