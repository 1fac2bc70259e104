//! `cuGetExportTable`: the driver's private tables, as far as CUDA runtimes are known to use them.
//! Slot 0 holds the table's size in bytes, except in CONTEXT_LOCAL_STORAGE, which has no size.

use std::{
    ffi::{c_char, c_int, c_void},
    sync::OnceLock,
};

use outboard_api::{
    CUresult,
    activity::{ACTIVITY_TABLE, RUNTIME_CALLS},
    cuda::{CUcontext, CUdevice, CUfunction, CUmodule, CUstream, CUuuid},
    enums::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
    net::NET_TABLE,
};
use outboard_wire::{doc::DeviceCard, messages};
use parking_lot::Mutex;

use super::{Out, cuCtxGetCurrent, cuCtxGetId, cuModuleLoadData, cuStreamGetId};
use crate::{
    activity, integrity, log, net,
    state::{
        context_storage::{Destroy, Stored, storage},
        current_context, driver, driver_of_device, drivers, on_handle,
    },
};

type FunctionSlot = *const c_void;

/// A table of function addresses, not written after its creation.
struct PrivateTable(Vec<FunctionSlot>);

// SAFETY: addresses of functions, which live for ever, and one number; nothing is written.
unsafe impl Sync for PrivateTable {}
// SAFETY: no address belongs to the thread that made the table.
unsafe impl Send for PrivateTable {}

const CUDART_INTERFACE: u128 = 0x6bd5_fb6c_5bf4_e74a_8987_d939_12fd_9df9;
const TOOLS_RUNTIME_HOOKS: u128 = 0xa094_798c_2e74_2e74_93f2_0800_200c_0a66;
const TOOLS_TLS: u128 = 0x42d8_5a81_23f6_cb47_8298_f6e7_8a3a_ecdc;
const CONTEXT_LOCAL_STORAGE: u128 = 0xc693_336e_1121_df11_a8c3_68f3_55d8_9593;
const CONTEXT_CHECKS: u128 = 0x263e_8860_7cd2_6143_92f6_bbd5_006d_fa7e;
const INTEGRITY_CHECK: u128 = 0xd408_2055_bde6_704b_8d34_ba12_3c66_e1f2;
const CLUSTER_TOPOLOGY: u128 = 0x1734_dc26_800d_4745_8726_c0f1_e7dd_8bca;
const CTX_STREAM_ID: u128 = 0x2131_8c60_9714_3248_8ca6_41ff_7324_c8f2;
/// Refused without a message: each runtime asks for the first (logging), each NVRTC for the second,
/// and both work without.
const NOT_NEEDED: [u128; 2] = [
    0xf8cf_f951_2146_8b4e_b9e2_fb46_9e7c_0dd9,
    0xda91_51d3_3ae6_cc41_a5c0_4f26_d533_e328,
];
/// Requested only by NVIDIA's CUPTI: of CUDA 12.8 and 13.2, and of 13.0.
const CUPTI: [u128; 2] = [
    0x7cb6_3f9b_9ca4_8e42_a484_beb6_6e6a_ed7f,
    0x2c8e_0ad8_0710_ab4e_90dd_5471_9fe5_f74b,
];
const MODULE_ITERATOR: u128 = 0x6e16_3fbe_b958_444d_835c_e182_aff1_991e;

/// Returns the table of an id; NULL and an error for an unserved id, so that no caller jumps to a
/// random address.
pub(crate) fn find(id: &CUuuid) -> Result<*const c_void, CUresult> {
    static TABLES: OnceLock<Vec<(u128, PrivateTable)>> = OnceLock::new();
    if id.bytes == ACTIVITY_TABLE {
        return Ok((&raw const activity::TABLE).cast());
    }
    if id.bytes == NET_TABLE {
        return Ok((&raw const net::TABLE).cast());
    }
    let id = u128::from_be_bytes(id.bytes);
    if id == CLUSTER_TOPOLOGY && !has_clusters() {
        return Err(CUresult::CUDA_ERROR_NOT_FOUND);
    }
    let table = TABLES
        .get_or_init(make)
        .iter()
        .find(|(known, _)| *known == id);
    match table {
        Some((_, table)) => Ok(table.0.as_ptr().cast()),
        None => {
            name_once(id);
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        }
    }
}

/// Logs each missing private table that a library asks for, once.
fn name_once(id: u128) {
    const NAMED_MAX: usize = 64;
    static NAMED: Mutex<Vec<u128>> = Mutex::new(Vec::new());
    let mut named = NAMED.lock();
    if NOT_NEEDED.contains(&id) || named.contains(&id) || named.len() == NAMED_MAX {
        return;
    }
    named.push(id);
    if CUPTI.contains(&id) {
        log::warn(
            "NVIDIA's own CUPTI finds no GPU here. `outboard run` puts Outboard's libcupti.so.13 in its place, which \
             serves programs of CUDA 13 (torch.profiler); programs of CUDA 12 cannot be profiled",
        );
        return;
    }
    log::warn(format_args!(
        "the driver's private table {} is not supported",
        spelled(id)
    ));
}

/// Formats a UUID as usual: `6e163fbe-b958-444d-835c-e182aff1991e`.
fn spelled(id: u128) -> String {
    let digits = format!("{id:032x}");
    [0..8, 8..12, 12..16, 16..20, 20..32]
        .map(|part| &digits[part])
        .join("-")
}

/// Returns whether the device has clusters, which came with compute capability 9.
fn has_clusters() -> bool {
    driver().is_ok_and(|d| d.attribute(0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= 9)
}

/// Number of a function's slot in its table.
type Filled = (usize, FunctionSlot);

/// Each table that begins with its size: id, number of slots, and the slots that are served.
const SIZED: &[(u128, usize, &[Filled])] = &[
    (
        CUDART_INTERFACE,
        13,
        &[
            (1, cudart_load_module as FunctionSlot),
            (2, cudart_primary_context as FunctionSlot),
            (6, cudart_load_module as FunctionSlot),
            (7, ignore as FunctionSlot),
            (8, cudart_load_module as FunctionSlot),
            (12, succeed as FunctionSlot),
        ],
    ),
    (
        TOOLS_RUNTIME_HOOKS,
        7,
        &[
            (1, activity::runtime as FunctionSlot),
            (2, hooks_buffer_large as FunctionSlot),
            (3, ignore as FunctionSlot),
            (4, ignore as FunctionSlot),
            (5, ignore as FunctionSlot),
            (6, hooks_buffer_small as FunctionSlot),
        ],
    ),
    (TOOLS_TLS, 3, &[(2, tls_current_context as FunctionSlot)]),
    (
        CONTEXT_CHECKS,
        15,
        &[
            (2, checks_context as FunctionSlot),
            (3, checks_zero as FunctionSlot),
        ],
    ),
    (
        INTEGRITY_CHECK,
        3,
        &[
            (1, integrity_value as FunctionSlot),
            (2, succeed as FunctionSlot),
        ],
    ),
    (
        CLUSTER_TOPOLOGY,
        17,
        &[
            (4, topology_get as FunctionSlot),
            (13, topology_free as FunctionSlot),
        ],
    ),
    (
        CTX_STREAM_ID,
        93,
        &[
            (4, stream_id_context as FunctionSlot),
            (39, stream_id_of_private as FunctionSlot),
            (51, stream_id_private as FunctionSlot),
        ],
    ),
    (
        MODULE_ITERATOR,
        99,
        &[(7, module_functions as FunctionSlot)],
    ),
];

fn make() -> Vec<(u128, PrivateTable)> {
    let sized = |(id, slots, filled): &(u128, usize, &[Filled])| {
        let mut table = vec![refuse as FunctionSlot; *slots];
        table[0] = (slots * size_of::<FunctionSlot>()) as FunctionSlot;
        for (slot, function) in *filled {
            table[*slot] = *function;
        }
        (*id, PrivateTable(table))
    };
    let storage = PrivateTable(vec![
        storage_put as FunctionSlot,
        storage_delete as FunctionSlot,
        storage_get as FunctionSlot,
        refuse as FunctionSlot,
    ]);
    let sized = SIZED.iter().map(sized);
    sized.chain([(CONTEXT_LOCAL_STORAGE, storage)]).collect()
}

/// Fills every slot that was never seen to be called.
extern "C" fn refuse() -> CUresult {
    log::warn("a function of a private driver table that is not served was called");
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

extern "C" fn ignore() {}

extern "C" fn succeed() -> CUresult {
    CUresult::CUDA_SUCCESS
}

/// CUDART_INTERFACE[2]: returns the device's primary context, without making it active.
extern "C" fn cudart_primary_context(out: Out<'_, CUcontext>, device: CUdevice) -> CUresult {
    answer(|| {
        out.check()?;
        driver()?;
        out.put(driver_of_device(device)?.primary_context(device)?)
    })
}

/// CUDART_INTERFACE[1], [6], [8]: loads a module from a fatbin wrapper or header.
unsafe extern "C" fn cudart_load_module(
    module: Out<'_, CUmodule>,
    image: *const c_void,
) -> CUresult {
    // SAFETY: the runtime passes an image that `cuModuleLoadData` accepts, or NULL.
    answer(|| unsafe { cuModuleLoadData(module, image) })
}

/// TOOLS_RUNTIME_HOOKS[2]: returns a word for each call of the runtime, which the runtime tests
/// before it reports the call to slot 1.
extern "C" fn hooks_buffer_large(buffer: Out<'_, *mut c_void>, bytes: Out<'_, usize>) {
    buffer.put_optional(activity::runtime_words());
    bytes.put_optional(RUNTIME_CALLS);
}

/// TOOLS_RUNTIME_HOOKS[6]: returns a smaller buffer, which the runtime may write to.
extern "C" fn hooks_buffer_small(buffer: Out<'_, *mut c_void>, bytes: Out<'_, usize>) {
    static mut BUFFER: [u64; 8] = [0; 8];
    buffer.put_optional((&raw mut BUFFER).cast());
    bytes.put_optional(14);
}

/// TOOLS_TLS[2]: returns the current context.
extern "C" fn tls_current_context(out: Out<'_, CUcontext>) -> CUresult {
    answer(|| cuCtxGetCurrent(out))
}

/// CONTEXT_CHECKS[2]
extern "C" fn checks_context(
    _context: CUcontext,
    first: Out<'_, u32>,
    second: Out<'_, *mut c_void>,
) -> CUresult {
    first.put_optional(0);
    second.put_optional(std::ptr::null_mut());
    CUresult::CUDA_SUCCESS
}

/// CONTEXT_CHECKS[3]
extern "C" fn checks_zero() -> u32 {
    0
}

/// INTEGRITY_CHECK[1]
extern "C" fn integrity_value(version: u32, unix_seconds: u64, out: Out<'_, [u64; 2]>) -> CUresult {
    answer(|| {
        out.check()?;
        let address = |id: u128| {
            find(&CUuuid {
                bytes: id.to_be_bytes(),
            })
            .map(|t| t as u64)
        };
        let addresses = integrity::Addresses {
            cudart_interface: address(CUDART_INTERFACE)?,
            integrity_check: address(INTEGRITY_CHECK)?,
            function: integrity_value as FunctionSlot as u64,
        };
        // Called before cuInit too; the public calls then report no device, and so does this.
        // The program's order may mix the devices of several servers.
        let mut devices: Vec<(CUdevice, DeviceCard)> = Vec::new();
        for driver in drivers() {
            let cards = driver.cards().iter().cloned().enumerate();
            devices.extend(cards.map(|(local, card)| (driver.devices.program(local), card)));
        }
        devices.sort_by_key(|(number, _)| *number);
        let devices: Vec<DeviceCard> = devices.into_iter().map(|(_, card)| card).collect();
        out.put(integrity::value(version, unix_seconds, addresses, &devices))
    })
}

/// CTX_STREAM_ID[4]: does the work of cuCtxGetId.
extern "C" fn stream_id_context(context: CUcontext, out: Out<'_, u64>) -> CUresult {
    answer(|| {
        let _selected = on_handle(context.0 as u64);
        cuCtxGetId(context, out)
    })
}

/// CTX_STREAM_ID[51]: returns a private name for a stream; here the stream itself.
extern "C" fn stream_id_private(
    _context: CUcontext,
    stream: CUstream,
    out: Out<'_, *mut c_void>,
    _flags: c_int,
) -> CUresult {
    answer(|| out.put(stream.0 as *mut c_void))
}

/// CTX_STREAM_ID[39]: returns the number of a privately named stream.
extern "C" fn stream_id_of_private(
    _context: CUcontext,
    private: *mut c_void,
    out: Out<'_, u64>,
) -> CUresult {
    answer(|| cuStreamGetId(CUstream(private as usize), out))
}

type EachFunction =
    Option<unsafe extern "C" fn(opaque: *mut c_void, function: CUfunction, name: *const c_char)>;

/// MODULE_ITERATOR[7]: passes each function of a module and its name to `each`, and returns their
/// number. cuFFT gets a module's only kernel this way, without its name, and refuses any count but
/// 1.
unsafe extern "C" fn module_functions(
    _context: CUcontext,
    module: CUmodule,
    each: EachFunction,
    opaque: *mut c_void,
) -> u64 {
    let mut count = 0;
    let done = answer(|| {
        let _selected = on_handle(module.0 as u64);
        let library = driver()?.libraries.get(module.0)?;
        let each = each.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        for kernel in &library.kernels {
            // SAFETY: the library's function for this `opaque`; the name is ours.
            unsafe { each(opaque, CUfunction(kernel.handle()), kernel.name.as_ptr()) };
            count += 1;
        }
        Ok(())
    });
    if done != CUresult::CUDA_SUCCESS {
        log::debug(format_args!("the functions of a module: {done}"));
    }
    count
}

/// CLUSTER_TOPOLOGY[4]: returns two arrays with one byte for each pair of multiprocessors: its
/// group, and its place in the group.
extern "C" fn topology_get(groups: Out<'_, *mut c_void>, ranks: Out<'_, *mut c_void>) -> CUresult {
    answer(|| {
        groups.check()?;
        ranks.check()?;
        let (first, second) = driver()?.call(&messages::ClusterTopology {}, |reply| {
            (c_copy(&reply.groups), c_copy(&reply.ranks))
        })?;
        groups.put(first)?;
        ranks.put(second)?;
        if first.is_null() || second.is_null() {
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        } else {
            Ok(())
        }
    })
}

/// Returns a copy that C code can free.
fn c_copy(bytes: &[u8]) -> *mut c_void {
    // SAFETY: malloc returns NULL, or room for all of `bytes`.
    unsafe {
        let copy = libc::malloc(bytes.len().max(1));
        if !copy.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy.cast::<u8>(), bytes.len());
        }
        copy
    }
}

/// CLUSTER_TOPOLOGY[13]: frees both arrays.
unsafe extern "C" fn topology_free(groups: *mut c_void, ranks: *mut c_void) -> CUresult {
    // SAFETY: the library passes what `topology_get` allocated, each once, or NULL.
    unsafe {
        libc::free(groups);
        libc::free(ranks);
    }
    CUresult::CUDA_SUCCESS
}

/// Returns the context of an argument; NULL and -1 mean the current one.
fn storage_context(context: CUcontext) -> Result<usize, CUresult> {
    match context.0 {
        0 | usize::MAX => current_context().map(|c| c.0),
        other => Ok(other),
    }
}

/// CONTEXT_LOCAL_STORAGE[0]
unsafe extern "C" fn storage_put(
    context: CUcontext,
    key: *mut c_void,
    value: *mut c_void,
    destroy: Destroy,
) -> CUresult {
    answer(|| {
        storage().lock().insert(
            (storage_context(context)?, key as usize),
            Stored { value, destroy },
        );
        Ok(())
    })
}

/// CONTEXT_LOCAL_STORAGE[1]
extern "C" fn storage_delete(context: CUcontext, key: *mut c_void) -> CUresult {
    answer(|| {
        let removed = storage()
            .lock()
            .remove(&(storage_context(context)?, key as usize));
        removed.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
    })
}

/// CONTEXT_LOCAL_STORAGE[2]
extern "C" fn storage_get(
    value: Out<'_, *mut c_void>,
    context: CUcontext,
    key: *mut c_void,
) -> CUresult {
    answer(|| {
        value.check()?;
        let storage = storage().lock();
        let stored = storage
            .get(&(storage_context(context)?, key as usize))
            .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        value.put(stored.value)
    })
}

/// Does the work of `guard::enter` for functions without a declaration.
fn answer(call: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(error)) => error,
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_named_as_uuids_are_written() {
        assert_eq!(
            spelled(CUDART_INTERFACE),
            "6bd5fb6c-5bf4-e74a-8987-d93912fd9df9"
        );
    }
}
