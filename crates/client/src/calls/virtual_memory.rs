//! Virtual memory management: the client reserves address ranges and accounts for physical memory,
//! the server maps.

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{
        CUcontext, CUdevice, CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp,
        CUmemGenericAllocationHandle, CUmemLocation,
    },
    enums::*,
};
use outboard_wire::messages;

use super::{Done, In, Out};
use crate::{
    log,
    state::{
        Access, Allocation, AllocationKind, CHUNK_BYTES, DeviceMemory, Driver, HandleKind,
        Physical, driver,
    },
};

/// Smallest granularity of address ranges, in bytes: the host's pages.
const RANGE_BYTES: u64 = 4096;

/// Physical memory and its mappings belong to no context: the calls need none that is current.
const NO_CONTEXT: u64 = 0;

impl Driver {
    /// Returns the device of requested physical memory, and its granularity.
    fn device_of_properties(
        &self,
        properties: &CUmemAllocationProp,
    ) -> Result<(CUdevice, u64), CUresult> {
        if properties.kind != CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        match properties.location.kind {
            CU_MEM_LOCATION_TYPE_DEVICE => {}
            // NCCL tries host memory, and continues without it.
            CU_MEM_LOCATION_TYPE_HOST_NUMA => {
                log::warn("cuMemCreate in host memory is not supported");
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        let card = self.card(properties.location.id)?;
        Ok((properties.location.id, card.granularity_bytes.0.max(1)))
    }

    /// Releases physical memory after its last use.
    pub(super) fn give_back(
        &self,
        memory: &mut DeviceMemory,
        handle: u64,
        physical: &Physical,
    ) -> Done {
        if !physical.is_foreign {
            memory.refund(physical.device, physical.bytes);
        }
        self.submit_in(
            NO_CONTEXT,
            &messages::AllocationRelease { allocation: handle },
        )
    }
}

fn is_host(properties: &CUmemAllocationProp) -> bool {
    properties.kind == CU_MEM_ALLOCATION_TYPE_PINNED
        && matches!(
            properties.location.kind,
            CU_MEM_LOCATION_TYPE_HOST
                | CU_MEM_LOCATION_TYPE_HOST_NUMA
                | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        )
}

/// Returns the mappings that make up exactly a range.
fn mappings(memory: &DeviceMemory, base: u64, bytes: u64) -> Result<Vec<Allocation>, CUresult> {
    let found = memory.within(base, bytes);
    let mut at = base;
    for mapping in &found {
        if mapping.base != at || !matches!(mapping.kind, AllocationKind::Mapped { .. }) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        at += mapping.bytes;
    }
    if found.is_empty() || base.checked_add(bytes) != Some(at) {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    } else {
        Ok(found)
    }
}

pub(crate) unsafe fn cuMemAddressReserve(
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    align: usize,
    wanted: CUdeviceptr,
    flags: u64,
) -> Done {
    let driver = driver()?;
    let bytes = bytes as u64;
    let sound = bytes > 0
        && bytes.is_multiple_of(RANGE_BYTES)
        && (align == 0 || align.is_power_of_two())
        && flags == 0;
    if address.is_null() || !sound {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let base = driver
        .memory
        .lock()
        .reserve_range(bytes, align as u64, wanted)?;
    address.put(base)
}

pub(crate) unsafe fn cuMemAddressFree(address: CUdeviceptr, bytes: usize) -> Done {
    driver()?.memory.lock().free_range(address, bytes as u64)
}

pub(crate) fn cuMemGetAllocationGranularity(
    granularity: Out<'_, usize>,
    properties: In<'_, CUmemAllocationProp>,
    option: u32,
) -> Done {
    let driver = driver()?;
    let properties = &properties.get()?;
    let (device, least) = match is_host(properties) {
        // Programs ask for the granularity first, and are refused when they allocate. Host memory
        // has the same granularity.
        true => (
            driver.contexts.current().map_or(0, |c| c.device),
            CHUNK_BYTES,
        ),
        false => driver.device_of_properties(properties)?,
    };
    let bytes = match option {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM => least,
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED => driver.card(device)?.granularity_bytes.1.max(least),
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    granularity.put(bytes as usize)
}

pub(crate) fn cuMemCreate(
    handle: Out<'_, CUmemGenericAllocationHandle>,
    bytes: usize,
    properties: In<'_, CUmemAllocationProp>,
    flags: u64,
) -> Done {
    let driver = driver()?;
    let properties = &properties.get()?;
    let (device, granularity) = driver.device_of_properties(properties)?;
    let bytes = bytes as u64;
    if handle.is_null() || bytes == 0 || !bytes.is_multiple_of(granularity) || flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    match properties.requested_handle_types {
        CU_MEM_HANDLE_TYPE_NONE | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {}
        // These exist only on Windows.
        CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT => {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        _ => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
    // Compression is a hint. The program can query what was granted.
    let granted = CUmemAllocationProp {
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        ..*properties
    };
    driver.forget_closed_exports()?;
    let allocation = driver.handles.mint(HandleKind::Allocation);
    driver.charge_physical(device, bytes)?;
    let create = messages::AllocationCreate {
        allocation,
        device: driver.devices.server(device)?,
        len: bytes,
    };
    let created = match driver.welcome.confirms_memory {
        false => driver.submit_in(NO_CONTEXT, &create),
        true => driver.session.call(NO_CONTEXT, &create, |_| ()),
    };
    created.inspect_err(|_| driver.memory.lock().refund(device, bytes))?;
    let mut table = driver.virtual_memory.lock();
    table.create(allocation, device, bytes, granted);
    handle.put(allocation)
}

impl Driver {
    fn charge_physical(&self, device: CUdevice, bytes: u64) -> Done {
        let charged = self.memory.lock().charge(device, bytes);
        match charged {
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) if self.reclaim_pools() => {
                self.memory.lock().charge(device, bytes)
            }
            other => other,
        }
    }
}

pub(crate) fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Done {
    let driver = driver()?;
    let mut table = driver.virtual_memory.lock();
    match table.release(handle)? {
        Some(physical) => driver.give_back(&mut driver.memory.lock(), handle, &physical),
        None => Ok(()),
    }
}

pub(crate) unsafe fn cuMemMap(
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Done {
    let driver = driver()?;
    let bytes = bytes as u64;
    let mut table = driver.virtual_memory.lock();
    let physical = table.get(handle)?;
    let device = physical.device;
    // All devices of a server have the same granularity; a hidden one has no card.
    let granularity = driver
        .cards()
        .first()
        .map_or(1, |c| c.granularity_bytes.0.max(1));
    let aligned = address.is_multiple_of(granularity) && bytes.is_multiple_of(granularity);
    // The driver accepts only offset 0.
    if bytes == 0 || offset != 0 || flags != 0 || !aligned || bytes > physical.bytes {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut memory = driver.memory.lock();
    let inside = memory
        .find_reserved(address)
        .is_some_and(|r| bytes <= r.base + r.bytes - address);
    if !inside || memory.find(address).is_some() || !memory.within(address, bytes).is_empty() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let map = messages::AllocationMap {
        allocation: handle,
        va: address,
        len: bytes,
        offset: 0,
    };
    driver.submit_in(NO_CONTEXT, &map)?;
    table.map(handle);
    // Mapped memory belongs to no context.
    memory.adopt(
        address,
        bytes,
        CUcontext::NULL,
        device,
        AllocationKind::Mapped {
            allocation: handle,
            access: Access::default(),
        },
    );
    Ok(())
}

pub(crate) unsafe fn cuMemUnmap(address: CUdeviceptr, bytes: usize) -> Done {
    let driver = driver()?;
    let mut table = driver.virtual_memory.lock();
    // The lock is held until the message is sent, so that memory is unmapped before its addresses
    // are mapped again.
    let mut memory = driver.memory.lock();
    let found = mappings(&memory, address, bytes as u64)?;
    let (va, len) = (address, bytes as u64);
    let unmap = messages::AllocationUnmap { va, len };
    driver.conceal(va, len, || driver.submit_in(NO_CONTEXT, &unmap))?;
    for mapping in found {
        memory.disown(mapping.base);
        let AllocationKind::Mapped { allocation, .. } = mapping.kind else {
            continue;
        };
        if let Some(physical) = table.unmap(allocation) {
            driver.give_back(&mut memory, allocation, &physical)?;
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuMemSetAccess(
    address: CUdeviceptr,
    bytes: usize,
    descs: *const CUmemAccessDesc,
    count: usize,
) -> Done {
    let driver = driver()?;
    if descs.is_null() || count == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let mut memory = driver.memory.lock();
    let found = mappings(&memory, address, bytes as u64)?;
    for index in 0..count {
        // SAFETY: `count` records of the caller's.
        let desc = unsafe { &*descs.add(index) };
        if desc.location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
            log::warn("cuMemSetAccess for the host is not supported");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        driver
            .card(desc.location.id)
            .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if !matches!(
            desc.flags,
            CU_MEM_ACCESS_FLAGS_PROT_NONE
                | CU_MEM_ACCESS_FLAGS_PROT_READ
                | CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        ) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (device, flags) = (desc.location.id, desc.flags);
        for mapping in &found {
            if device != mapping.device && !driver.reaches(device, mapping.device)? {
                return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
            }
        }
        for mapping in &found {
            let (va, len) = (mapping.base, mapping.bytes);
            let message = messages::AllocationAccess {
                va,
                len,
                device: driver.devices.server(device)?,
                flags,
            };
            driver.conceal(va, len, || driver.submit_in(NO_CONTEXT, &message))?;
            if let Some(Allocation {
                kind: AllocationKind::Mapped { access, .. },
                ..
            }) = memory.find_mut(va)
            {
                access.set(device, flags);
            }
        }
    }
    Ok(())
}

pub(crate) fn cuMemGetAccess(
    flags: Out<'_, u64>,
    location: In<'_, CUmemLocation>,
    address: CUdeviceptr,
) -> Done {
    let driver = driver()?;
    let location = location.get()?;
    let is_host = matches!(
        location.kind,
        CU_MEM_LOCATION_TYPE_HOST | CU_MEM_LOCATION_TYPE_HOST_NUMA
    );
    if !is_host && location.kind != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    if !is_host {
        driver.card(location.id)?;
    }
    let found = driver
        .memory
        .lock()
        .find(address)
        .copied()
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let may = match found.kind {
        AllocationKind::Mapped { access, .. } if !is_host => access.of(location.id),
        // The driver's answer for memory that was not mapped by hand, whatever its real access.
        _ => CU_MEM_ACCESS_FLAGS_PROT_NONE,
    };
    flags.put(u64::from(may))
}

pub(crate) unsafe fn cuMemRetainAllocationHandle(
    handle: Out<'_, CUmemGenericAllocationHandle>,
    address: *mut c_void,
) -> Done {
    let driver = driver()?;
    handle.check()?;
    let mut table = driver.virtual_memory.lock();
    let kind = driver.memory.lock().find(address as u64).map(|a| a.kind);
    let Some(AllocationKind::Mapped { allocation, .. }) = kind else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    table.retain(allocation)?;
    handle.put(allocation)
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    properties: Out<'_, CUmemAllocationProp>,
    handle: CUmemGenericAllocationHandle,
) -> Done {
    let found = driver()?.virtual_memory.lock().get(handle)?.properties;
    properties.put(found)
}
