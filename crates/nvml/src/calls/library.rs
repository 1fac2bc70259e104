//! Calls about the library itself and the system.

use super::*;
use crate::types::{nvmlSystemDriverBranchInfo_t, nvmlUuid, struct_version};

pub(crate) fn nvmlInit_v2() -> Result {
    session::init()
}

/// Ignores the flags, which choose the behaviour without GPUs and whether to attach to them.
pub(crate) fn nvmlInitWithFlags(_flags: u32) -> Result {
    session::init()
}

pub(crate) fn nvmlShutdown() -> Result {
    session::shutdown()
}

pub(crate) unsafe fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    result.text().as_ptr()
}

pub(crate) fn nvmlInternalGetExportTable(
    table: Out<'_, *const std::ffi::c_void>,
    id: In<'_, nvmlUuid>,
) -> Result {
    let id = id.get()?;
    table.put(private::table(&id)?)
}

pub(crate) unsafe fn nvmlSystemGetDriverVersion(version: *mut c_char, length: u32) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    // SAFETY: NULL or room for `length` bytes: NVML asks it of its callers.
    unsafe { put_text(version, length as usize, &snapshot.content.driver_version) }
}

/// Returns the name of the driver's branch. `length` limits the text, as in calls that take a
/// buffer, though the record has room for 80 bytes.
pub(crate) fn nvmlSystemGetDriverBranch(
    info: Versioned<'_, nvmlSystemDriverBranchInfo_t>,
    length: u32,
) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    let version = struct_version::<nvmlSystemDriverBranchInfo_t>(1);
    let info = info.of(version)?;
    let Some(branch) = &snapshot.content.driver_branch else {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    };
    let mut record = info.get()?;
    let room = record.branch.len().min(length as usize);
    if without_nul(branch).len() >= room {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    record.branch = array(branch);
    info.put(record)
}

pub(crate) unsafe fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: u32) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    // SAFETY: NULL or room for `length` bytes: NVML asks it of its callers.
    unsafe { put_text(version, length as usize, &snapshot.content.nvml_version) }
}

pub(crate) fn nvmlSystemGetCudaDriverVersion(version: Out<'_, i32>) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    version.put(snapshot.content.cuda_version)
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
    // SAFETY: NULL or room for `length` bytes: NVML asks it of its callers.
    unsafe { put_text(name, length as usize, found) }
}

/// Counts S-class units: none, a session has GPUs only.
pub(crate) fn nvmlUnitGetCount(count: Out<'_, u32>) -> Result {
    session::snapshot(Age::Any)?;
    count.put(0)
}
