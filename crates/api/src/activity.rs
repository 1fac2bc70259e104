//! Interface between the client's `libcuda.so.1` and the `libcupti.so.13` beside it: a table of
//! functions, which `cuGetExportTable` returns for an id that no driver of NVIDIA's has.

use std::ffi::{c_char, c_void};

use crate::CUresult;

/// The table's id.
pub const ACTIVITY_TABLE: [u8; 16] = *b"outboardActivity";
/// Version of [`Table`] and [`Hooks`]; both libraries must have the same one.
pub const ACTIVITY_VERSION: u64 = 1;
/// Numbers of runtime calls that a CUDA runtime asks about, each with a word in
/// [`Table::runtime_calls`].
pub const RUNTIME_CALLS: usize = 1024;

/// Functions of libcupti that libcuda calls, from any thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hooks {
    /// Called when the driver call of this number begins; returns the number that its work is to
    /// carry.
    pub driver_begins: extern "C" fn(number: u32, token: *mut u64) -> u32,
    /// Called when it ends; `token` is what `driver_begins` wrote.
    pub driver_ends: extern "C" fn(number: u32, token: u64, result: CUresult),
    /// Called when a CUDA runtime's call begins or ends.
    pub runtime: unsafe extern "C" fn(cbid: u32, call: *mut RuntimeCall),
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

/// Functions of libcuda that libcupti calls. None may be called from a hook.
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
        source: *mut u8,
        reason: *mut c_void,
        take: Take,
    ) -> CUresult,
    /// Reads the server's clock.
    pub clock: unsafe extern "C" fn(now_ns: *mut u64) -> CUresult,
    /// Passes a document of work to `take`.
    pub take: unsafe extern "C" fn(
        flags: u32,
        activities_max: u32,
        opaque: *mut c_void,
        take: Take,
    ) -> CUresult,
}

// SAFETY: addresses of functions, and of words that are only accessed atomically.
unsafe impl Sync for Table {}

/// Receives bytes that are valid during the call.
pub type Take = unsafe extern "C" fn(opaque: *mut c_void, bytes: *const u8, len: usize);
