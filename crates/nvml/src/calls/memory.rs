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

pub(crate) fn nvmlDeviceGetMemoryInfo(
    device: nvmlDevice_t,
    memory: Out<'_, nvmlMemory_t>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    let of = found.get()?.memory;
    let info = nvmlMemory_t {
        total: of.total_bytes,
        free: of.free_bytes,
        // This version of the record counts reserved memory as used.
        used: of.used_bytes.saturating_add(of.reserved_bytes.unwrap_or(0)),
    };
    memory.put(info)
}

pub(crate) fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: Versioned<'_, nvmlMemory_v2_t>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    let version = struct_version::<nvmlMemory_v2_t>(2);
    let memory = memory.of(version)?;
    let of = found.get()?.memory;
    let info = nvmlMemory_v2_t {
        version,
        total: of.total_bytes,
        reserved: known(of.reserved_bytes)?,
        free: of.free_bytes,
        used: of.used_bytes,
    };
    memory.put(info)
}

pub(crate) fn nvmlDeviceGetBAR1MemoryInfo(
    device: nvmlDevice_t,
    bar1: Out<'_, nvmlBAR1Memory_t>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    bar1.check()?;
    let (total, free, used) = known(found.get()?.bar1_bytes)?;
    let info = nvmlBAR1Memory_t {
        bar1_total: total,
        bar1_free: free,
        bar1_used: used,
    };
    bar1.put(info)
}

pub(crate) fn nvmlDeviceGetUtilizationRates(
    device: nvmlDevice_t,
    rates: Out<'_, nvmlUtilization_t>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    rates.check()?;
    let of = found.get()?;
    let info = nvmlUtilization_t {
        gpu: known(of.utilization_gpu)?,
        memory: known(of.utilization_memory)?,
    };
    rates.put(info)
}

pub(crate) fn nvmlDeviceGetTotalEccErrors(
    device: nvmlDevice_t,
    error_type: u32,
    counter_type: u32,
    count: Out<'_, u64>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    count.check()?;
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
    count.put(known(answer)?)
}

pub(crate) fn nvmlDeviceGetRemappedRows(
    device: nvmlDevice_t,
    correctable: Out<'_, u32>,
    uncorrectable: Out<'_, u32>,
    pending: Out<'_, u32>,
    failed: Out<'_, u32>,
) -> Result {
    let found = Device::find(device, Age::Now)?;
    let outs = [correctable, uncorrectable, pending, failed];
    for out in outs {
        out.check()?;
    }
    let mut answers = [0; 4];
    for (answer, id) in answers.iter_mut().zip(REMAPPED_FIELDS) {
        let field = found.get()?.fields.iter().find(|f| f.id == id);
        *answer = known(field)?.bits as u32;
    }
    for (out, answer) in outs.into_iter().zip(answers) {
        out.put(answer)?;
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
        // SAFETY: not NULL, and of `count` records that may be written: NVML asks it of callers.
        let record: InOut<'_, nvmlFieldValue_t> = unsafe { InOut::from_c(values.add(index)) };
        let mut value = record.get()?;
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
        record.put(value)?;
    }
    Ok(())
}
