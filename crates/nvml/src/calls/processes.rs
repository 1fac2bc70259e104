//! Processes that use a device: those of the server's machine, with their numbers there.

use outboard_wire::doc::NvmlProcess;

use super::*;
use crate::types::{NO_INSTANCE, VALUE_NOT_AVAILABLE, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t};

macro_rules! lists {
    ($($name:ident: $record:ty = $field:ident, $fill:ident;)*) => {
        $(
            pub(crate) unsafe fn $name(
                device: nvmlDevice_t,
                count: InOut<'_, u32>,
                infos: *mut $record,
            ) -> Result {
                let found = Device::find(device, Age::Now)?;
                // SAFETY: NULL or room for `*count` records: NVML asks it of its callers.
                unsafe { put_list(&found.get()?.$field, count, infos, $fill) }
            }
        )*
    };
}

lists! {
    nvmlDeviceGetComputeRunningProcesses: nvmlProcessInfo_v1_t = processes_compute, version_1;
    nvmlDeviceGetComputeRunningProcesses_v2: nvmlProcessInfo_v2_t = processes_compute, version_2;
    nvmlDeviceGetGraphicsRunningProcesses: nvmlProcessInfo_v1_t = processes_graphics, version_1;
    nvmlDeviceGetGraphicsRunningProcesses_v2: nvmlProcessInfo_v2_t = processes_graphics, version_2;
    nvmlDeviceGetMPSComputeRunningProcesses: nvmlProcessInfo_v1_t = processes_mps, version_1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: nvmlProcessInfo_v2_t = processes_mps, version_2;
}

/// Fills the caller's array. `count` is its length before the call, and the length of the list
/// after it.
///
/// # Safety
/// `records` must be null or have room for as many records as `count` says.
pub(crate) unsafe fn put_list<T>(
    processes: &[NvmlProcess],
    count: InOut<'_, u32>,
    records: *mut T,
    fill: impl Fn(&NvmlProcess) -> T,
) -> Result {
    let room = count.get()? as usize;
    count.put(processes.len() as u32)?;
    if processes.is_empty() {
        return Ok(());
    }
    if room < processes.len() {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    check(records)?;
    for (index, process) in processes.iter().enumerate() {
        // SAFETY: not null, and `index` is below `room`.
        unsafe { records.add(index).write_unaligned(fill(process)) };
    }
    Ok(())
}

fn version_1(process: &NvmlProcess) -> nvmlProcessInfo_v1_t {
    nvmlProcessInfo_v1_t {
        pid: process.pid,
        used_gpu_memory: process.used_bytes.unwrap_or(VALUE_NOT_AVAILABLE),
    }
}

fn version_2(process: &NvmlProcess) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t {
        pid: process.pid,
        used_gpu_memory: process.used_bytes.unwrap_or(VALUE_NOT_AVAILABLE),
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
    }
}
