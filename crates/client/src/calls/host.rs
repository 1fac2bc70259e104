//! Pinned and registered host memory.

use std::{collections::BTreeSet, ffi::c_void};

use outboard_api::{CUresult, cuda::CUdeviceptr};
use parking_lot::Mutex;

use super::{Done, Out};
use crate::{
    adapter,
    state::{Driver, driver},
};

const HOSTALLOC_PORTABLE: u32 = 1;
const HOSTALLOC_DEVICEMAP: u32 = 2;
const HOSTALLOC_WRITECOMBINED: u32 = 4;
const HOSTREGISTER_DEVICEMAP: u32 = 2;
const HOSTREGISTER_IOMEMORY: u32 = 4;
/// Portable, device map, read only. I/O memory cannot be registered over a network.
const HOSTREGISTER_KNOWN: u32 = 1 | HOSTREGISTER_DEVICEMAP | 8;

/// Doorbells of the adapter in software that are registered as I/O memory. They lie in pinned
/// memory, which kernels reach already.
static DOORBELLS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

pub(crate) fn cuMemAllocHost_v2(address: Out<'_, *mut c_void>, bytes: usize) -> Done {
    // With unified addressing all pinned memory is portable and mapped.
    cuMemHostAlloc(address, bytes, 0)
}

pub(crate) fn cuMemHostAlloc(address: Out<'_, *mut c_void>, bytes: usize, flags: u32) -> Done {
    let known = HOSTALLOC_PORTABLE | HOSTALLOC_DEVICEMAP | HOSTALLOC_WRITECOMBINED;
    let driver = driver()?;
    driver.contexts.current()?;
    if address.is_null() || flags & !known != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if bytes == 0 {
        return address.put(std::ptr::null_mut());
    }
    let base = driver.host_allocate(bytes as u64, flags)?;
    if flags & HOSTALLOC_DEVICEMAP != 0 {
        driver.make_reachable(base).inspect_err(|_| {
            let _ = driver.host_free(base);
        })?;
    }
    address.put(base as *mut c_void)
}

pub(crate) unsafe fn cuMemFreeHost(address: *mut c_void) -> Done {
    let driver = driver()?;
    if address.is_null() {
        return Ok(());
    }
    if driver.is_managed(address as u64) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver.may_unpin("cuMemFreeHost", address as u64)?;
    driver.free_after_work(|| driver.host_free(address as u64))
}

pub(crate) unsafe fn cuMemHostRegister_v2(address: *mut c_void, bytes: usize, flags: u32) -> Done {
    let driver = driver()?;
    if flags & HOSTREGISTER_IOMEMORY != 0 && adapter::is_there() {
        return register_doorbell(driver, address as u64, bytes as u64);
    }
    if flags & !HOSTREGISTER_KNOWN != 0 {
        return Err(if flags & HOSTREGISTER_IOMEMORY != 0 {
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        } else {
            CUresult::CUDA_ERROR_INVALID_VALUE
        });
    }
    driver.host_register(address as u64, bytes as u64, flags)?;
    // Looked up after it is registered: an endpoint that takes it meanwhile refuses it.
    let may = driver.may_register(address as u64, bytes as u64);
    let made = may.and_then(|()| match flags & HOSTREGISTER_DEVICEMAP {
        0 => Ok(()),
        _ => driver.make_reachable(address as u64),
    });
    if let Err(error) = made {
        let _ = driver.host_unregister(address as u64);
        return Err(error);
    }
    Ok(())
}

/// Takes a doorbell of the adapter in software. Other I/O memory is not reached.
fn register_doorbell(driver: &Driver, address: u64, bytes: u64) -> Done {
    let host = driver.host.read();
    let range = host.find(address).filter(|range| {
        let end = address.checked_add(bytes);
        !range.is_registered() && end.is_some_and(|end| end <= range.base + range.bytes)
    });
    if range.is_none() {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    match DOORBELLS.lock().insert(address) {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
    }
}

pub(crate) unsafe fn cuMemHostUnregister(address: *mut c_void) -> Done {
    let driver = driver()?;
    if DOORBELLS.lock().remove(&(address as u64)) {
        return Ok(());
    }
    driver.may_unpin("cuMemHostUnregister", address as u64)?;
    driver.free_after_work(|| driver.host_unregister(address as u64))
}

pub(crate) unsafe fn cuMemHostGetDevicePointer_v2(
    address: Out<'_, CUdeviceptr>,
    host: *mut c_void,
    flags: u32,
) -> Done {
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver()?.make_reachable(host as u64)?;
    // The mirror has the same address.
    address.put(host as u64)
}

pub(crate) fn cuMemHostGetFlags(flags: Out<'_, u32>, host: *mut c_void) -> Done {
    let found = driver()?.host.read().find(host as u64).map(|r| {
        if r.is_registered() {
            r.flags
        } else {
            r.flags | HOSTALLOC_DEVICEMAP
        }
    });
    flags.put(found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)
}
