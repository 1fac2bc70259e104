//! The private table that nvidia-smi gets from `nvmlInternalGetExportTable`.
//!
//! NVIDIA does not document it. NVIDIA's own mock of NVML, whose authors watched nvidia-smi 580,
//! published what is used here (github.com/NVIDIA/k8s-test-infra,
//! pkg/gpu/mocknvml/bridge/internal.go): the table's id; that its first word is its size in bytes;
//! entry 81, a device by its index, without which nvidia-smi lists no device; entries 213 to 215,
//! the lists of processes. Observed here with nvidia-smi 580: entry 26 receives every line that is
//! about to be printed (a format, the name of the stream, the line), for a log that is not kept;
//! processes of entry 213 are printed as type C, compute. Every other entry returns
//! `NVML_ERROR_NOT_SUPPORTED`, and logs its number.

use std::{
    ffi::{c_char, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
};

use outboard_wire::doc::NvmlProcess;

use crate::{
    calls::{self, Device, InOut, Out, without_nul},
    log,
    session::{self, Age},
    types::{NO_INSTANCE, Result, VALUE_NOT_AVAILABLE, nvmlDevice_t, nvmlReturn_t, nvmlUuid},
};

/// The GUID 6c3efec4-8fc9-4e6c-a327-ee696e12f7c4 in its byte order in memory.
const NVIDIA_SMI: nvmlUuid = [
    0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
];
/// The lists of processes. Entry 215 lists MPS clients.
const COMPUTE_PROCESSES: usize = 213;
const GRAPHICS_PROCESSES: usize = 214;

/// Returns the table of an id.
pub(crate) fn table(id: &nvmlUuid) -> Result<*const c_void> {
    if *id == NVIDIA_SMI {
        return Ok(SLOTS.as_ptr().cast());
    }
    name_once(id);
    Err(nvmlReturn_t::NOT_SUPPORTED)
}

/// Reports once each private table that a program asked for and did not get.
fn name_once(id: &nvmlUuid) {
    const NAMED_MAX: usize = 64;
    static NAMED: Mutex<Vec<nvmlUuid>> = Mutex::new(Vec::new());
    let Ok(mut named) = NAMED.lock() else { return };
    if named.contains(id) || named.len() == NAMED_MAX {
        return;
    }
    named.push(*id);
    log::warn(format_args!(
        "the private table {} is not supported",
        spelled(id)
    ));
}

/// Formats a GUID as usual. In memory its first three numbers are little-endian.
fn spelled(id: &nvmlUuid) -> String {
    let [a0, a1, a2, a3, b0, b1, c0, c1, rest @ ..] = *id;
    let (a, b, c) = (
        u32::from_le_bytes([a0, a1, a2, a3]),
        u16::from_le_bytes([b0, b1]),
        u16::from_le_bytes([c0, c1]),
    );
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{a:08x}-{b:04x}-{c:04x}-{}-{}", &rest[..4], &rest[4..])
}

/// An entry: the size of the table, or a function.
#[repr(transparent)]
struct Slot(*const c_void);

// SAFETY: a number or the address of a function, which lives for ever.
unsafe impl Sync for Slot {}

impl Slot {
    const fn bytes(bytes: usize) -> Slot {
        Slot(std::ptr::without_provenance(bytes))
    }

    const fn function(function: *const ()) -> Slot {
        Slot(function.cast())
    }
}

include!(concat!(env!("OUT_DIR"), "/slots.rs"));

const NAME_BYTES_MAX: usize = 4096;

/// One process, as nvidia-smi reads it.
#[repr(C)]
struct ProcessRecord {
    pid: u32,
    used_gpu_memory: u64,
    gpu_instance_id: u32,
    compute_instance_id: u32,
    protected_memory: u64,
    name: [c_char; NAME_BYTES_MAX],
}

const _: () = {
    assert!(size_of::<ProcessRecord>() == 4128);
    assert!(std::mem::offset_of!(ProcessRecord, name) == 32);
};

/// An entry of unknown purpose. It reads none of its arguments.
extern "C" fn unknown<const SLOT: usize>() -> nvmlReturn_t {
    if !session::is_initialised() {
        return nvmlReturn_t::UNINITIALIZED;
    }
    log::debug(format_args!(
        "entry {SLOT} of nvidia-smi's table is not supported"
    ));
    nvmlReturn_t::NOT_SUPPORTED
}

/// Entry 26: receives each line that nvidia-smi prints. The line is dropped.
extern "C" fn printed_line() -> nvmlReturn_t {
    nvmlReturn_t::SUCCESS
}

extern "C" fn handle_by_index(index: u32, device: Out<'_, nvmlDevice_t>) -> nvmlReturn_t {
    guard(|| calls::nvmlDeviceGetHandleByIndex_v2(index, device))
}

unsafe extern "C" fn processes<const SLOT: usize>(
    device: nvmlDevice_t,
    count: InOut<'_, u32>,
    processes: *mut ProcessRecord,
) -> nvmlReturn_t {
    guard(|| {
        let found = Device::find(device, Age::Now)?;
        let found = found.get()?;
        let list = match SLOT {
            COMPUTE_PROCESSES => &found.processes_compute,
            GRAPHICS_PROCESSES => &found.processes_graphics,
            _ => &found.processes_mps,
        };
        // SAFETY: null or room for `*count` records: nvidia-smi passes arrays of this type.
        unsafe { calls::put_list(list, count, processes, process) }
    })
}

fn process(of: &NvmlProcess) -> ProcessRecord {
    let mut name = [0; NAME_BYTES_MAX];
    let text = without_nul(of.name.as_deref().unwrap_or_default());
    for (to, from) in name.iter_mut().zip(text).take(NAME_BYTES_MAX - 1) {
        *to = *from as c_char;
    }
    ProcessRecord {
        pid: of.pid,
        used_gpu_memory: of.used_bytes.unwrap_or(VALUE_NOT_AVAILABLE),
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
        protected_memory: 0,
        name,
    }
}

fn guard(body: impl FnOnce() -> Result) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => nvmlReturn_t::SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => nvmlReturn_t::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_named_as_guids_are_written() {
        assert_eq!(spelled(&NVIDIA_SMI), "6c3efec4-8fc9-4e6c-a327-ee696e12f7c4");
    }
}
