//! Processes that use a device: those of the server's machine, with their numbers there.

use outboard_wire::doc::NvmlProcess;

use super::*;
use crate::types::{NO_INSTANCE, VALUE_NOT_AVAILABLE, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t};

macro_rules! lists {
    ($($name:ident: $record:ty = $field:ident, $fill:ident;)*) => {
        $(
            pub(crate) unsafe fn $name(device: nvmlDevice_t, count: *mut u32, infos: *mut $record) -> Result {
                let found = Device::find(device, Age::Now)?;
                // SAFETY: the caller's count, and as many records.
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
/// `count` is null or readable and writable; `records` is null or has room for `count` records.
pub(crate) unsafe fn put_list<T>(
    processes: &[NvmlProcess],
    count: *mut u32,
    records: *mut T,
    fill: impl Fn(&NvmlProcess) -> T,
) -> Result {
    check(count)?;
    // SAFETY: `check` refused null; the caller's count is readable, as NVML asks of it.
    let room = unsafe { count.read_unaligned() } as usize;
    // SAFETY: the same count is writable, as NVML asks of the caller.
    unsafe { put(count, processes.len() as u32)? };
    if processes.is_empty() {
        return Ok(());
    }
    if room < processes.len() {
        return Err(nvmlReturn_t::INSUFFICIENT_SIZE);
    }
    check(records)?;
    for (index, process) in processes.iter().enumerate() {
        // SAFETY: `index` is below `room`.
        unsafe { put(records.add(index), fill(process))? };
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
