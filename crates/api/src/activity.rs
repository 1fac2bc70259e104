//! Interface between the client's `libcuda.so.1` and the `libcupti.so.13` beside it: a table of
//! functions, which `cuGetExportTable` returns for an id that no driver of NVIDIA's has.

use std::ffi::{c_char, c_void};

use crate::CUresult;

/// The table's id.
pub const ACTIVITY_TABLE: [u8; 16] = *b"outboardActivity";
/// Version of [`Table`] and [`Hooks`]; both libraries must have the same one.
pub const ACTIVITY_VERSION: u64 = 2;
/// Numbers of runtime calls that a CUDA runtime asks about, each with a word in
/// [`Table::runtime_calls`].
pub const RUNTIME_CALLS: usize = 1024;

/// Functions of libcupti that libcuda calls, from any thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Called when a driver call begins; returns the number that its work is to carry.
    pub driver_begins: unsafe extern "C" fn(call: *mut DriverCall) -> u32,
    /// Called when it ends, with the same record.
    pub driver_ends: unsafe extern "C" fn(call: *mut DriverCall),
    /// Called when a CUDA runtime's call begins or ends.
    pub runtime: unsafe extern "C" fn(cbid: u32, call: *mut RuntimeCall),
}

/// A driver call, at its beginning and its end.
#[repr(C)]
pub struct DriverCall {
    /// Number of the call in libcuda's table.
    pub number: u32,
    /// Valid at the end.
    pub result: CUresult,
    /// The call's parameters in order, laid out like CUPTI's `*_params` structs.
    pub params: *const c_void,
    /// The thread's current context, or NULL.
    pub context: *mut c_void,
    /// A word that a subscriber writes at the beginning and reads at the end.
    pub correlation_data: u64,
}

/// A CUDA runtime's description of a call, at its beginning and its end.
#[repr(C)]
pub struct RuntimeCall {
    pub bytes: u64,
    pub context_uid: u64,
    pub unknown: [u64; 2],
    /// A word of the call's own, the same one at both ends.
    pub correlation_data: *mut u64,
    pub result: *mut i32,
    pub name: *const c_char,
    pub params: *mut c_void,
    pub context: *mut c_void,
    pub stream: *mut c_void,
    pub cbid: u32,
    /// 0 at the beginning, 1 at the end.
    pub site: u32,
}

const _: () = {
    assert!(std::mem::offset_of!(RuntimeCall, correlation_data) == 0x20);
    assert!(std::mem::offset_of!(RuntimeCall, cbid) == 0x50);
};

/// Kinds of objects that [`Table::number`] looks up.
pub const NUMBER_CONTEXT: u32 = 0;
pub const NUMBER_STREAM: u32 = 1;
pub const NUMBER_GRAPH: u32 = 2;
pub const NUMBER_GRAPH_EXEC: u32 = 3;
pub const NUMBER_GRAPH_NODE: u32 = 4;

/// Functions of libcuda that libcupti calls. Called from a hook, their messages count as the hooked
/// call's.
#[repr(C)]
pub struct Table {
    pub version: u64,
    /// Sets the hooks that are called from now on, or none. They stay valid for ever.
    pub attach: unsafe extern "C" fn(hooks: *const Hooks),
    /// The name of the driver call with a number; NULL after the last.
    pub call_name: extern "C" fn(number: u32, len: *mut usize) -> *const u8,
    /// A word per runtime call: if it is not 0, CUDA runtimes report the call.
    pub runtime_calls: *mut u32,
    /// Has the server keep work of these kinds. Returns the source of its times, and a reason if
    /// there is none.
    pub enable: unsafe extern "C" fn(
        kinds: u32,
        kept_bytes_max: u64,
        source: *mut u8,
        reason: *mut c_void,
        take: Take,
    ) -> CUresult,
    /// Reads the server's clock.
    pub clock: unsafe extern "C" fn(now_ns: *mut u64) -> CUresult,
    /// Returns the numbers that the server's records use for an object and its context.
    pub number: unsafe extern "C" fn(
        what: u32,
        context: *mut c_void,
        object: *mut c_void,
        numbers: *mut Numbers,
    ) -> CUresult,
    /// Passes a document of work to `take`. After `CUDA_ERROR_TIMEOUT` the next call passes the
    /// late document.
    pub take: unsafe extern "C" fn(
        flags: u32,
        activities_max: u32,
        opaque: *mut c_void,
        take: Take,
    ) -> CUresult,
}

// SAFETY: addresses of functions, and of words that are only accessed atomically.
unsafe impl Sync for Table {}

/// Result of [`Table::number`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    pub context: u32,
    pub object: u64,
}

/// Receives bytes that are valid during the call.
pub type Take = unsafe extern "C" fn(opaque: *mut c_void, bytes: *const u8, len: usize);
