//! Calls about pools: creating, destroying, trimming, attributes, and the pool of a device.

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    argument::Argument as _,
    cuda::{CUdevice, CUmemAccessDesc, CUmemLocation, CUmemPoolProps, CUmemoryPool},
    enums::*,
};

use super::{Done, In, Out};
use crate::{
    log,
    state::{CHUNK_BYTES, Driver, Pool, PoolValue, driver},
};

pub(crate) fn cuMemPoolCreate(
    pool: Out<'_, CUmemoryPool>,
    properties: In<'_, CUmemPoolProps>,
) -> Done {
    let driver = driver()?;
    let properties = properties.get()?;
    pool.check()?;
    let device = device_of(driver, &properties.location, properties.alloc_type)?;
    match properties.handle_types {
        CU_MEM_HANDLE_TYPE_NONE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {}
        // These exist only on Windows.
        CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT => {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        _ => {
            log::warn("cuMemPoolCreate: pools can be shared as POSIX file descriptors alone");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
    }
    let handle = driver.mint_pool_handle();
    let max_bytes = (properties.max_size as u64).checked_next_multiple_of(CHUNK_BYTES);
    // Memory comes in chunks, so a smaller limit still allows one.
    let mut created = Pool::new(device, max_bytes.unwrap_or(u64::MAX));
    created.handle_types = properties.handle_types;
    driver.pools.lock().pools.insert(handle, created);
    pool.put(CUmemoryPool(handle as usize))
}

/// Returns the device of a location that can have pools.
fn device_of(
    driver: &Driver,
    location: &CUmemLocation,
    allocation_type: u32,
) -> Result<CUdevice, CUresult> {
    if allocation_type != CU_MEM_ALLOCATION_TYPE_PINNED
        && allocation_type != CU_MEM_ALLOCATION_TYPE_MANAGED
    {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if allocation_type != CU_MEM_ALLOCATION_TYPE_PINNED
        || location.kind != CU_MEM_LOCATION_TYPE_DEVICE
    {
        log::warn("memory pools in host or managed memory are not supported");
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    driver.card(location.id).map(|_| location.id)
}

pub(crate) fn cuMemPoolDestroy(pool: CUmemoryPool) -> Done {
    let driver = driver()?;
    let handle = pool.0 as u64;
    let mut table = driver.pools.lock();
    if table.default_of.values().any(|default| *default == handle) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let pool = table.get(handle)?;
    pool.destroyed = true;
    let (device, released) = (pool.device, pool.release_above(0));
    driver.unmap_chunks(device, &released);
    // Pools with memory that is in use, or not known to be complete, are removed later.
    table.pools.retain(|_, p| !p.is_over());
    table.current_of.retain(|_, current| *current != handle);
    Ok(())
}

pub(crate) fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> Done {
    let driver = driver()?;
    let mut table = driver.pools.lock();
    let pool = table.get(pool.0 as u64)?;
    refuse_import(pool)?;
    let (device, released) = (pool.device, pool.release_above(keep as u64));
    driver.unmap_chunks(device, &released);
    Ok(())
}

pub(crate) unsafe fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> Done {
    let driver = driver()?;
    let found = {
        let mut table = driver.pools.lock();
        let pool = table.get(pool.0 as u64)?;
        refuse_import(pool)?;
        pool.attribute(attribute)?
    };
    // SAFETY: NULL or an output of the attribute's type: the driver API asks it of its callers.
    unsafe {
        match found {
            PoolValue::Int(found) => Out::from_c(value.cast::<u32>()).put(found),
            PoolValue::Long(found) => Out::from_c(value.cast::<u64>()).put(found),
        }
    }
}

pub(crate) unsafe fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: u32,
    value: *mut c_void,
) -> Done {
    let driver = driver()?;
    if value.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: not NULL, and a value of the attribute's type: the driver API asks it of its callers.
    let read = |long: bool| unsafe {
        if long {
            *value.cast::<u64>()
        } else {
            u64::from(*value.cast::<u32>())
        }
    };
    let mut table = driver.pools.lock();
    let pool = table.get(pool.0 as u64)?;
    refuse_import(pool)?;
    pool.set_attribute(attribute, read)
}

/// Refuses queries of a pool of another process, whose contents are unknown here.
fn refuse_import(pool: &Pool) -> Done {
    match pool.is_imported {
        true => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        false => Ok(()),
    }
}

pub(crate) fn cuMemPoolGetAccess(
    flags: Out<'_, u32>,
    pool: CUmemoryPool,
    location: In<'_, CUmemLocation>,
) -> Done {
    let driver = driver()?;
    let device = device_of(driver, &location.get()?, CU_MEM_ALLOCATION_TYPE_PINNED)
        .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let mut table = driver.pools.lock();
    let pool = table.get(pool.0 as u64)?;
    let own = pool.device == device;
    let found = if own {
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    } else {
        pool.access.get(&device).copied().unwrap_or(0)
    };
    flags.put(found)
}

pub(crate) unsafe fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc,
    count: usize,
) -> Done {
    let driver = driver()?;
    if map.is_null() && count > 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut table = driver.pools.lock();
    let pool = table.get(pool.0 as u64)?;
    for index in 0..count {
        // SAFETY: not NULL, and of `count` entries: the driver API asks it of its callers.
        let desc = unsafe { &*map.add(index) };
        let device = device_of(driver, &desc.location, CU_MEM_ALLOCATION_TYPE_PINNED)?;
        match desc.flags {
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE => {}
            // A device keeps access to its own pool.
            CU_MEM_ACCESS_FLAGS_PROT_NONE if device == pool.device => {
                return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
            }
            CU_MEM_ACCESS_FLAGS_PROT_NONE => {}
            CU_MEM_ACCESS_FLAGS_PROT_READ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        let reaches = device == pool.device || driver.reaches(device, pool.device)?;
        if !reaches {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        pool.access.insert(device, desc.flags);
    }
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(pool: Out<'_, CUmemoryPool>, device: CUdevice) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let handle = driver
        .pools
        .lock()
        .default_pool(device, || driver.mint_pool_handle());
    pool.put(CUmemoryPool(handle as usize))
}

pub(crate) fn cuDeviceGetMemPool(pool: Out<'_, CUmemoryPool>, device: CUdevice) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let handle = driver
        .pools
        .lock()
        .current_pool(device, || driver.mint_pool_handle());
    pool.put(CUmemoryPool(handle as usize))
}

pub(crate) fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let mut table = driver.pools.lock();
    if table.get(pool.0 as u64)?.device != device {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    table.current_of.insert(device, pool.0 as u64);
    Ok(())
}

fn device_at(location: In<'_, CUmemLocation>, allocation_type: u32) -> Result<CUdevice, CUresult> {
    let location = location.get()?;
    device_of(driver()?, &location, allocation_type)
}

pub(crate) fn cuMemGetDefaultMemPool(
    pool: Out<'_, CUmemoryPool>,
    location: In<'_, CUmemLocation>,
    allocation_type: u32,
) -> Done {
    cuDeviceGetDefaultMemPool(pool, device_at(location, allocation_type)?)
}

pub(crate) fn cuMemGetMemPool(
    pool: Out<'_, CUmemoryPool>,
    location: In<'_, CUmemLocation>,
    allocation_type: u32,
) -> Done {
    cuDeviceGetMemPool(pool, device_at(location, allocation_type)?)
}

pub(crate) fn cuMemSetMemPool(
    location: In<'_, CUmemLocation>,
    allocation_type: u32,
    pool: CUmemoryPool,
) -> Done {
    cuDeviceSetMemPool(device_at(location, allocation_type)?, pool)
}
