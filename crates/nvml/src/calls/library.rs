//! Calls about the library itself and the system.

use super::*;
use crate::{private, types::nvmlUuid};

pub(crate) unsafe fn nvmlInit_v2() -> Result {
    session::init()
}

/// Ignores the flags, which choose the behaviour without GPUs and whether to attach to them.
pub(crate) unsafe fn nvmlInitWithFlags(_flags: u32) -> Result {
    session::init()
}

pub(crate) unsafe fn nvmlShutdown() -> Result {
    session::shutdown()
}

pub(crate) unsafe fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    result.text().as_ptr()
}

pub(crate) unsafe fn nvmlInternalGetExportTable(
    table: *mut *const std::ffi::c_void,
    id: *const nvmlUuid,
) -> Result {
    if id.is_null() {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    // SAFETY: null was refused; the caller passes an id of sixteen readable bytes.
    let id = unsafe { id.read_unaligned() };
    // SAFETY: the caller's pointer.
    unsafe { put(table, private::table(&id)?) }
}

pub(crate) unsafe fn nvmlSystemGetDriverVersion(version: *mut c_char, length: u32) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    // SAFETY: the caller's buffer.
    unsafe { put_text(version, length as usize, &snapshot.content.driver_version) }
}

pub(crate) unsafe fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: u32) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    // SAFETY: the caller's buffer.
    unsafe { put_text(version, length as usize, &snapshot.content.nvml_version) }
}

pub(crate) unsafe fn nvmlSystemGetCudaDriverVersion(version: *mut i32) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    // SAFETY: the caller's pointer.
    unsafe { put(version, snapshot.content.cuda_version) }
}

/// Returns the name of a process on the server's machine.
pub(crate) unsafe fn nvmlSystemGetProcessName(pid: u32, name: *mut c_char, length: u32) -> Result {
    let snapshot = session::snapshot(Age::Now)?;
    check(name)?;
    let mut all = snapshot
        .content
        .devices
        .iter()
        .flat_map(|d| d.processes_compute.iter().chain(&d.processes_graphics));
    let process = all.find(|p| p.pid == pid).ok_or(nvmlReturn_t::NOT_FOUND)?;
    let found = process.name.as_deref().ok_or(nvmlReturn_t::NOT_FOUND)?;
    // SAFETY: the caller's buffer.
    unsafe { put_text(name, length as usize, found) }
}

/// Counts S-class units: none, a session has GPUs only.
pub(crate) unsafe fn nvmlUnitGetCount(count: *mut u32) -> Result {
    session::snapshot(Age::Any)?;
    // SAFETY: the caller's pointer.
    unsafe { put(count, 0) }
}
