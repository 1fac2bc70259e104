//! Calls about the library itself and the system.

use super::*;
use crate::types::{nvmlSystemDriverBranchInfo_t, nvmlUuid, struct_version};

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

/// Returns the name of the driver's branch. `length` limits the text, as in calls that take a
/// buffer, though the record has room for 80 bytes.
pub(crate) unsafe fn nvmlSystemGetDriverBranch(
    info: *mut nvmlSystemDriverBranchInfo_t,
    length: u32,
) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    let version = struct_version::<nvmlSystemDriverBranchInfo_t>(1);
    // SAFETY: the caller's record, which starts with its version.
    unsafe { check_version(info.cast(), version)? };
    let Some(branch) = &snapshot.content.driver_branch else {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    };
    // SAFETY: the caller's record, of this version.
    unsafe {
        let room = &raw mut (*info).branch;
        let bytes = (length as usize).min(size_of_val(&*room));
        put_text(room.cast(), bytes, branch)
    }
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
