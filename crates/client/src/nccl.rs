//! A network for NCCL that says why there is none.
//!
//! NCCL's kernels wait for words in host memory that its own threads write, and its threads for
//! words that kernels write, while both run. That works where program and GPU have one memory. In
//! a mirror (`docs/host-memory.md`) each would wait for the other for ever. So `outboard run` names
//! this library as NCCL's plugin for networks if a server is not reached over shm, and NCCL gets an
//! error at the first connection between two GPUs that cannot reach each other.
//!
//! Of the plugin's functions (`ncclNet_v8_t`), NCCL calls those alone that come before a
//! connection.

use std::ffi::{c_char, c_int, c_void};

use crate::{
    log,
    state::{Driver, drivers},
};

const NCCL_SUCCESS: c_int = 0;
const NCCL_SYSTEM_ERROR: c_int = 2;
const NCCL_INVALID_USAGE: c_int = 5;
const NCCL_PTR_HOST: c_int = 1;

const NAME: &[u8; 9] = b"Outboard\0";
const WHY: &str = "NET/Outboard: NCCL's kernels wait for words in host memory while they run, which the GPU \
and this program share over shm only. A server here is reached over another link, so GPUs that do not reach each \
other cannot be used together (docs/design/several-servers.md)";

/// A function that refuses. Its arguments are the caller's, and are left alone.
type Refuses = extern "C" fn() -> c_int;

/// `ncclNet_v8_t`.
#[repr(C)]
pub(crate) struct Plugin {
    name: &'static [u8; 9],
    init: extern "C" fn(*const c_void) -> c_int,
    devices: unsafe extern "C" fn(*mut c_int) -> c_int,
    properties: unsafe extern "C" fn(c_int, *mut Properties) -> c_int,
    listen: extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> c_int,
    connect: extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> c_int,
    /// From `accept` to `irecvConsumed`.
    later: [Refuses; 13],
}

/// `ncclNetProperties_v8_t`.
#[repr(C)]
pub(crate) struct Properties {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    pointers: c_int,
    registration_is_global: c_int,
    speed_mbps: c_int,
    port: c_int,
    latency_us: f32,
    connections_max: c_int,
    receives_max: c_int,
    device_type: c_int,
    device_version: c_int,
}

const _: () = assert!(size_of::<Plugin>() == 19 * size_of::<usize>());
const _: () = assert!(size_of::<Properties>() == 64);

#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static ncclNetPlugin_v8: Plugin = Plugin {
    name: NAME,
    init,
    devices,
    properties,
    listen,
    connect: listen,
    later: [refuse; 13],
};

/// Leaves NCCL its own networks if all memory is shared.
extern "C" fn init(_logger: *const c_void) -> c_int {
    let servers = drivers();
    // None: NCCL has not begun with the driver, and `outboard run` has asked for this.
    let is_shared = |driver: &Driver| driver.session.shares_memory();
    match !servers.is_empty() && servers.iter().all(is_shared) {
        true => NCCL_SYSTEM_ERROR,
        false => NCCL_SUCCESS,
    }
}

unsafe extern "C" fn devices(count: *mut c_int) -> c_int {
    // SAFETY: NCCL gives room for a number.
    unsafe { count.write(1) };
    NCCL_SUCCESS
}

unsafe extern "C" fn properties(_: c_int, room: *mut Properties) -> c_int {
    let properties = Properties {
        name: NAME.as_ptr().cast(),
        pci_path: std::ptr::null(),
        guid: 0,
        pointers: NCCL_PTR_HOST,
        registration_is_global: 0,
        speed_mbps: 10_000,
        port: 0,
        latency_us: 0.0,
        connections_max: 65_536,
        receives_max: 1,
        device_type: 0,
        device_version: 0,
    };
    // SAFETY: NCCL gives room for the properties of this version.
    unsafe { room.write(properties) };
    NCCL_SUCCESS
}

/// Refuses to listen and to connect, and says why.
extern "C" fn listen(_: c_int, _: *mut c_void, _: *mut *mut c_void) -> c_int {
    log::warn(WHY);
    NCCL_INVALID_USAGE
}

extern "C" fn refuse() -> c_int {
    NCCL_INVALID_USAGE
}
