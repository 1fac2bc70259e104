//! Calls of the CUDA driver of this process, if the program has loaded one: allocations, and their
//! handles for other processes.

use std::{
    ffi::{c_int, c_uint, c_ulonglong, c_void},
    ops::Range,
    os::fd::{FromRawFd, OwnedFd},
    ptr::{self, NonNull},
};

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

type GetExportTable = unsafe extern "C" fn(*mut *const c_void, *const [u8; 16]) -> i32;
type GetAddressRange = unsafe extern "C" fn(*mut u64, *mut usize, u64) -> i32;
type GetHandle = unsafe extern "C" fn(*mut Handle, u64) -> i32;
type OpenHandle = unsafe extern "C" fn(*mut u64, Handle, u32) -> i32;
type CloseHandle = unsafe extern "C" fn(u64) -> i32;
type GetBuffer = unsafe extern "C" fn(*mut c_int, u64, usize, c_uint, c_ulonglong) -> i32;
type GetContext = unsafe extern "C" fn(*mut *mut c_void) -> i32;
type RegisterHost = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> i32;
type UnregisterHost = unsafe extern "C" fn(*mut c_void) -> i32;
type AllocateHost = unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> i32;
type FreeHost = unsafe extern "C" fn(*mut c_void) -> i32;
type GetPointer = unsafe extern "C" fn(*mut u64, *mut c_void, c_uint) -> i32;

/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const BUFFER: c_uint = 1;
const POINTER: &str = "cuMemHostGetDevicePointer_v2";
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
const ALREADY: i32 = 712;
/// `CU_MEMHOSTREGISTER_PORTABLE` and `_DEVICEMAP`, and `_IOMEMORY`.
const FOR_ALL: c_uint = 1 | 2;
const OF_DEVICE: c_uint = 4;

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

/// Returns a table of functions that the driver of this process has under an id.
pub(crate) fn export_table(id: &[u8; 16]) -> Option<*const c_void> {
    let library = loaded()?;
    // SAFETY: the driver's function of this name has this type.
    let call: Symbol<GetExportTable> = unsafe { library.get(b"cuGetExportTable\0") }.ok()?;
    let mut table = ptr::null();
    // SAFETY: both places are there.
    let status = unsafe { call(&raw mut table, id) };
    (status == SUCCESS && !table.is_null()).then_some(table)
}

/// Returns true if this process has loaded a driver, and this thread has no current context of it.
pub(crate) fn is_without_context() -> bool {
    loaded().is_some_and(|library| !has_context(&library))
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

/// Memory of another process that is mapped here, at this address, until this is dropped. No kernel
/// uses it any more then.
#[derive(Debug)]
pub(crate) struct Opened(pub(crate) u64);

impl Drop for Opened {
    fn drop(&mut self) {
        let Some(library) = loaded() else { return };
        // SAFETY: the driver's function of this name has this type.
        if let Ok(call) = unsafe { library.get::<CloseHandle>(b"cuIpcCloseMemHandle\0") } {
            // SAFETY: an address that the driver gave.
            unsafe { call(self.0) };
        }
    }
}

/// Maps another process's memory in the context of this thread.
pub(crate) fn open(handle: &[u8; HANDLE_BYTES]) -> Result<Opened, String> {
    const CALL: &str = "cuIpcOpenMemHandle_v2";
    let library = loaded().ok_or_else(|| missing(CALL))?;
    // SAFETY: the driver's function of this name has this type.
    let call: Symbol<OpenHandle> =
        unsafe { library.get(CALL.as_bytes()) }.map_err(|_| missing(CALL))?;
    let mut address = 0;
    // SAFETY: the place is there, and the driver checks the handle.
    let status = unsafe { call(&raw mut address, Handle(*handle), PEER_ACCESS) };
    done(CALL, status).map(|()| Opened(address))
}

/// Returns a dma-buf of a GPU's memory.
pub(crate) fn buffer_of(address: u64, bytes: u64) -> Result<OwnedFd, String> {
    const CALL: &str = "cuMemGetHandleForAddressRange";
    let library = loaded().ok_or_else(|| missing(CALL))?;
    // SAFETY: the driver's function of this name has this type.
    let call: Symbol<GetBuffer> =
        unsafe { library.get(CALL.as_bytes()) }.map_err(|_| missing(CALL))?;
    let mut descriptor = -1;
    // SAFETY: the place is there, and the driver checks the range.
    let status = unsafe { call(&raw mut descriptor, address, bytes as usize, BUFFER, 0) };
    done(CALL, status)?;
    // SAFETY: the driver has opened it for the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Allocates zeroed memory of this process that kernels reach; none without a current context.
pub(crate) fn pin(bytes: usize) -> Option<NonNull<u8>> {
    let library = loaded().filter(has_context)?;
    // SAFETY: the driver's function of this name has this type.
    let call: Symbol<AllocateHost> = unsafe { library.get(b"cuMemHostAlloc\0") }.ok()?;
    let mut at = ptr::null_mut();
    // SAFETY: the place is there.
    let status = unsafe { call(&raw mut at, bytes, FOR_ALL) };
    let at = NonNull::new(at.cast::<u8>()).filter(|_| status == SUCCESS)?;
    // SAFETY: as many bytes, which nobody else has yet.
    unsafe { at.write_bytes(0, bytes) };
    Some(at)
}

/// Frees what [`pin`] has allocated.
///
/// # Safety
///
/// Nobody uses it any more.
pub(crate) unsafe fn unpin(at: NonNull<u8>) {
    let Some(library) = loaded() else { return };
    // SAFETY: the driver's function of this name has this type.
    if let Ok(call) = unsafe { library.get::<FreeHost>(b"cuMemFreeHost\0") } {
        // SAFETY: allocated by the driver, and not used any more.
        unsafe { call(at.as_ptr().cast()) };
    }
}

/// A page of a device, at whose addresses kernels store, too.
#[derive(Debug)]
pub(crate) struct DevicePage(u64);

impl DevicePage {
    /// Registers a page for the GPUs of this process; none without a current context, nor of a
    /// page that is the driver's already, as a stand-in's may be.
    pub(crate) fn register(address: u64, bytes: usize) -> Result<Option<DevicePage>, String> {
        const CALL: &str = "cuMemHostRegister_v2";
        let Some(library) = loaded().filter(has_context) else {
            return Ok(None);
        };
        // SAFETY: the driver's functions of these names have these types.
        let (call, pointer) = unsafe {
            let call = library.get::<RegisterHost>(CALL.as_bytes());
            let pointer = library.get::<GetPointer>(POINTER.as_bytes());
            (
                call.map_err(|_| missing(CALL))?,
                pointer.map_err(|_| missing(POINTER))?,
            )
        };
        let at = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the page is mapped, and stays so until it is unregistered.
        let register = |flags| unsafe { call(at, bytes, flags) };
        let status = register(FOR_ALL | OF_DEVICE);
        if status != SUCCESS {
            // A page of a stand-in is no device's, and is refused as one.
            match register(FOR_ALL) {
                SUCCESS => {}
                ALREADY => return same_address(pointer, address).map(|()| None),
                _ => {
                    let hint =
                        "a real adapter's doorbells need the driver's option PeerMappingOverride=1";
                    let failed = done(CALL, status).map(|()| None);
                    return failed.map_err(|why| format!("{why}; {hint}"));
                }
            }
        }
        let page = DevicePage(address);
        same_address(pointer, address).map(|()| Some(page))
    }
}

/// Checks that GPUs have a registered page where this process has it.
fn same_address(pointer: Symbol<GetPointer>, address: u64) -> Result<(), String> {
    let at = ptr::with_exposed_provenance_mut(address as usize);
    let mut seen = 0;
    // SAFETY: the place is there.
    done(POINTER, unsafe { pointer(&raw mut seen, at, 0) })?;
    match seen == address {
        true => Ok(()),
        false => Err(format!("{POINTER}: GPUs have the page at another address")),
    }
}

impl Drop for DevicePage {
    fn drop(&mut self) {
        let Some(library) = loaded() else { return };
        // SAFETY: the driver's function of this name has this type.
        if let Ok(call) = unsafe { library.get::<UnregisterHost>(b"cuMemHostUnregister\0") } {
            let at = ptr::with_exposed_provenance_mut(self.0 as usize);
            // SAFETY: registered, and no kernel uses it any more.
            unsafe { call(at) };
        }
    }
}

fn has_context(library: &Library) -> bool {
    let mut context = ptr::null_mut();
    // SAFETY: the driver's function of this name has this type.
    let call = unsafe { library.get::<GetContext>(b"cuCtxGetCurrent\0") };
    // SAFETY: the place is there.
    call.is_ok_and(|call| unsafe { call(&raw mut context) } == SUCCESS) && !context.is_null()
}
