//! Memory, ECC, utilisation, field values.

use super::*;
use crate::types::{
    nvmlBAR1Memory_t, nvmlFieldValue_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlUtilization_t,
    struct_version,
};

/// `nvmlMemoryErrorType_t`.
const CORRECTED: u32 = 0;
const UNCORRECTED: u32 = 1;
/// `nvmlEccCounterType_t`.
const VOLATILE: u32 = 0;
const AGGREGATE: u32 = 1;
/// `NVML_FI_DEV_REMAPPED_*`: by correctable errors, by uncorrectable ones, pending, failed.
const REMAPPED_FIELDS: [u32; 4] = [142, 143, 144, 145];

pub(crate) unsafe fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    let of = found.get()?.memory;
    let info = nvmlMemory_t {
        total: of.total_bytes,
        free: of.free_bytes,
        // This version of the record counts reserved memory as used.
        used: of.used_bytes.saturating_add(of.reserved_bytes.unwrap_or(0)),
    };
    // SAFETY: the caller's record.
    unsafe { put(memory, info) }
}

pub(crate) unsafe fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    let version = struct_version::<nvmlMemory_v2_t>(2);
    // SAFETY: the caller's record, which starts with its version.
    unsafe { check_version(memory.cast(), version)? };
    let of = found.get()?.memory;
    let info = nvmlMemory_v2_t {
        version,
        total: of.total_bytes,
        reserved: known(of.reserved_bytes)?,
        free: of.free_bytes,
        used: of.used_bytes,
    };
    // SAFETY: the caller's record, of this version.
    unsafe { put(memory, info) }
}

pub(crate) unsafe fn nvmlDeviceGetBAR1MemoryInfo(
    device: nvmlDevice_t,
    bar1: *mut nvmlBAR1Memory_t,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    check(bar1)?;
    let (total, free, used) = known(found.get()?.bar1_bytes)?;
    let info = nvmlBAR1Memory_t {
        bar1_total: total,
        bar1_free: free,
        bar1_used: used,
    };
    // SAFETY: the caller's record.
    unsafe { put(bar1, info) }
}

pub(crate) unsafe fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    rates: *mut nvmlUtilization_t,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    check(rates)?;
    let of = found.get()?;
    let info = nvmlUtilization_t {
        gpu: known(of.utilization_gpu)?,
        memory: known(of.utilization_memory)?,
    };
    // SAFETY: the caller's record.
    unsafe { put(rates, info) }
}

pub(crate) unsafe fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    error_type: u32,
    counter_type: u32,
    count: *mut u64,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    check(count)?;
    let of = found.get()?;
    let counters = match error_type {
        CORRECTED => of.ecc_corrected,
        UNCORRECTED => of.ecc_uncorrected,
        _ => return Err(nvmlReturn_t::INVALID_ARGUMENT),
    };
    let answer = match counter_type {
        VOLATILE => counters.0,
        AGGREGATE => counters.1,
        _ => return Err(nvmlReturn_t::INVALID_ARGUMENT),
    };
    // SAFETY: the caller's pointer.
    unsafe { put(count, known(answer)?) }
}

pub(crate) unsafe fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    correctable: *mut u32,
    uncorrectable: *mut u32,
    pending: *mut u32,
    failed: *mut u32,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    let outs = [correctable, uncorrectable, pending, failed];
    for out in outs {
        check(out)?;
    }
    let mut answers = [0; 4];
    for (answer, id) in answers.iter_mut().zip(REMAPPED_FIELDS) {
        let field = found.get()?.fields.iter().find(|f| f.id == id);
        *answer = known(field)?.bits as u32;
    }
    for (out, answer) in outs.into_iter().zip(answers) {
        // SAFETY: the caller's pointer.
        unsafe { put(out, answer)? };
    }
    Ok(())
}

/// Writes a result for each field; the call succeeds even if no field does.
pub(crate) unsafe fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: i32,
    values: *mut nvmlFieldValue_t,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    check(values)?;
    let count = usize::try_from(count).map_err(|_| nvmlReturn_t::INVALID_ARGUMENT)?;
    if count == 0 {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    for index in 0..count {
        // SAFETY: the caller's array has this many records.
        let at = unsafe { values.add(index) };
        // SAFETY: as above.
        let mut value = unsafe { at.read_unaligned() };
        let field = found
            .get()?
            .fields
            .iter()
            .find(|f| f.id == value.field_id && f.scope == value.scope_id);
        match field {
            Some(field) => {
                value.timestamp = found.snapshot.taken_us;
                value.latency_usec = 0;
                value.value_type = field.value_type;
                value.value = field.bits;
                value.nvml_return = nvmlReturn_t::SUCCESS;
            }
            None => value.nvml_return = nvmlReturn_t::NOT_SUPPORTED,
        }
        // SAFETY: as above.
        unsafe { at.write_unaligned(value) };
    }
    Ok(())
}

/// Checks the version at the start of a caller's record.
///
/// # Safety
/// `record` is null or readable.
pub(super) unsafe fn check_version(record: *const u32, version: u32) -> Result {
    if record.is_null() {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    // SAFETY: null was refused, and the caller promised that the version is readable.
    match unsafe { record.read_unaligned() } == version {
        true => Ok(()),
        false => Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH),
    }
}
