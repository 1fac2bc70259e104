//! What the client's `libcuda.so.1` and the `libcupti.so.13` beside it tell each other: a table of functions, found by
//! `cuGetExportTable` under an id that no driver of NVIDIA's has.

use std::ffi::{c_char, c_void};

use crate::CUresult;

/// The table's id.
pub const ACTIVITY_TABLE: [u8; 16] = *b"outboardActivity";
/// The form of [`Table`] and [`Hooks`]; both libraries must have the same.
pub const ACTIVITY_VERSION: u64 = 1;
/// Numbers of runtime calls that a CUDA runtime asks about, a word each in [`Table::runtime_calls`].
pub const RUNTIME_CALLS: usize = 1024;

/// What libcupti has libcuda call. All of it may be called by any thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Hooks {
    /// A driver call of this number begins; the answer is the number that its work is to bear.
    pub driver_begins: extern "C" fn(number: u32, token: *mut u64) -> u32,
    /// It ends; `token` is what its beginning wrote.
    pub driver_ends: extern "C" fn(number: u32, token: u64, result: CUresult),
    /// A CUDA runtime's call begins or ends.
    pub runtime: unsafe extern "C" fn(cbid: u32, call: *mut RuntimeCall),
}

/// What a CUDA runtime tells of a call, at its beginning and its end.
#[repr(C)]
pub struct RuntimeCall {
    pub bytes: u64,
    pub context_uid: u64,
    pub unknown: [u64; 2],
    /// A word of the call's own, the same at both ends.
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

/// What libcuda does for libcupti. No function may be called from a hook.
#[repr(C)]
pub struct Table {
    pub version: u64,
    /// Has the hooks called from now on, or none. They stay valid for ever.
    pub attach: unsafe extern "C" fn(hooks: *const Hooks),
    /// The name of the driver call of a number; NULL behind the last.
    pub call_name: extern "C" fn(number: u32, len: *mut usize) -> *const u8,
    /// A word for each runtime call: not 0, and CUDA runtimes tell of it.
    pub runtime_calls: *mut u32,
    /// Has the server keep work of these kinds; where its times come from, and a reason where there are none.
    pub enable: unsafe extern "C" fn(
        kinds: u32,
        source: *mut u8,
        reason: *mut c_void,
        take: Take,
    ) -> CUresult,
    /// The server's clock.
    pub clock: unsafe extern "C" fn(now_ns: *mut u64) -> CUresult,
    /// Hands a document of work to `take`.
    pub take: unsafe extern "C" fn(
        flags: u32,
        activities_max: u32,
        opaque: *mut c_void,
        take: Take,
    ) -> CUresult,
}

// SAFETY: addresses of functions and of words that are only touched atomically.
unsafe impl Sync for Table {}

/// Receives bytes that are there for the length of the call.
pub type Take = unsafe extern "C" fn(opaque: *mut c_void, bytes: *const u8, len: usize);
