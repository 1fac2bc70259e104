//! Interface between the client's `libcuda.so.1` and `liboutboard_net.so`, whose endpoints may be
//! where the GPU is: a table of functions, which `cuGetExportTable` returns for an id that no
//! driver of NVIDIA's has.

use crate::CUresult;

/// The table's id.
pub const NET_TABLE: [u8; 16] = *b"outboard.net.h.1";
/// Version of [`Table`]; both libraries must have the same one.
pub const NET_VERSION: u64 = 2;
/// Values of [`Table::place`], and of an endpoint.
pub const PLACE_PROGRAM: u32 = 0;
pub const PLACE_SERVER: u32 = 1;

#[repr(C)]
pub struct Table {
    pub version: u64,
    /// Returns 1 if the GPU's server has a copy of the program's memory, 0 if both have the same
    /// memory or nothing was started yet, and 2 if the program has several servers.
    pub place: extern "C" fn() -> u32,
    /// Returns 1 if the server has a copy of some of these bytes of the program's, though it has
    /// the same memory elsewhere: a kernel does not see what is written there while it runs.
    pub is_copied: extern "C" fn(address: u64, bytes: u64) -> u32,
    /// Notes that an endpoint at this place has memory of the program's from now on, or, if
    /// `is_kept` is 0, no longer: calls of CUDA that are against it fail meanwhile.
    pub keep: extern "C" fn(address: u64, bytes: u64, place: u32, is_kept: u32),
    /// Has the session's server execute a call.
    pub call: unsafe extern "C" fn(request: *mut Request) -> CUresult,
    /// Writes the address by which other servers find the session's, `bytes_max` at most. Returns
    /// its length; 0 if they cannot.
    pub address: unsafe extern "C" fn(at: *mut u8, bytes_max: usize) -> usize,
}

/// A call and room for its answer: documents of `outboard_wire`, which libcuda passes on.
#[repr(C)]
#[derive(Debug)]
pub struct Request {
    pub endpoint: u32,
    /// Bytes of memory at `address` that the call is about; 0 if it is about none. The program and
    /// the server have them at one address afterwards.
    pub bytes: u64,
    pub address: u64,
    pub call: *const u8,
    pub call_bytes: usize,
    pub answer: *mut u8,
    pub answer_bytes_max: usize,
    /// Set to the length of the answer.
    pub answer_bytes: usize,
}
