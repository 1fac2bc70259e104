//! Devices. The answers come from their cards.

use std::ffi::c_char;

use outboard_api::{
    CUresult,
    cuda::{CUdevice, CUdevprop, CUuuid},
    enums::*,
};
use outboard_wire::{doc::PeerCard, messages};

use super::{Done, Out, Text, put_name};
use crate::adapter;
use crate::state::{Driver, driver, driver_of_device, drivers};

/// `CUdevice_P2PAttribute`.
const CU_DEVICE_P2P_ATTRIBUTES: std::ops::RangeInclusive<u32> = 1..=5;

/// `CUflushGPUDirectRDMAWritesOptions`, `CUGPUDirectRDMAWritesOrdering`.
const FLUSHED_BY_HOST: i32 = 1;
const ORDERED_FOR_OWNER: i32 = 100;

pub(crate) fn cuDeviceGet(device: Out<'_, CUdevice>, ordinal: i32) -> Done {
    driver_of_device(ordinal)?;
    device.put(ordinal)
}

pub(crate) fn cuDeviceGetCount(count: Out<'_, i32>) -> Done {
    driver()?;
    let all: usize = drivers().iter().map(|driver| driver.cards().len()).sum();
    count.put(all as i32)
}

pub(crate) unsafe fn cuDeviceGetName(name: *mut c_char, len: i32, device: CUdevice) -> Done {
    // SAFETY: NULL or room for `len` bytes: the driver API asks it of its callers.
    unsafe { put_name(name, len, &driver()?.card(device)?.name) }
}

pub(crate) fn cuDeviceGetUuid(uuid: Out<'_, CUuuid>, device: CUdevice) -> Done {
    uuid.put(CUuuid {
        bytes: driver()?.card(device)?.uuid,
    })
}

pub(crate) fn cuDeviceGetUuid_v2(uuid: Out<'_, CUuuid>, device: CUdevice) -> Done {
    cuDeviceGetUuid(uuid, device)
}

pub(crate) unsafe fn cuDeviceGetLuid(
    _luid: *mut c_char,
    _mask: *mut u32,
    device: CUdevice,
) -> Done {
    driver()?.card(device)?;
    // LUIDs exist only on Windows: the driver refuses them here too.
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

pub(crate) fn cuDeviceTotalMem_v2(bytes: Out<'_, usize>, device: CUdevice) -> Done {
    bytes.put(driver()?.card(device)?.memory_bytes as usize)
}

pub(crate) fn cuDeviceGetAttribute(value: Out<'_, i32>, attribute: u32, device: CUdevice) -> Done {
    let driver = driver()?;
    let card = driver.card(device)?;
    // A feature that this library does not serve is absent, even if the device has it.
    let answer = match attribute {
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED => {
            i32::from(adapter::is_there())
        }
        // The adapter's copies are over before it says so.
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING if adapter::is_there() => {
            ORDERED_FOR_OWNER
        }
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS if adapter::is_there() => {
            FLUSHED_BY_HOST
        }
        CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY => 1,
        // Program and kernels may use managed memory at the same time if it is one memory for both.
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS => i32::from(driver.session.shares_memory()),
        // Pools are handed on as file descriptors, whose bit in the mask is 1, as other memory is.
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES => driver.attribute(
            device,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ),
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
        | CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES
        | CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST
        | CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK
        | CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED
        | CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED => 0,
        other => card
            .attributes
            .get(other as usize)
            .copied()
            .flatten()
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?,
    };
    value.put(answer)
}

pub(crate) fn cuDeviceGetProperties(properties: Out<'_, CUdevprop>, device: CUdevice) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let a = |attribute| driver.attribute(device, attribute);
    let answer = CUdevprop {
        max_threads_per_block: a(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        max_threads_dim: [
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
            CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
        ]
        .map(a),
        max_grid_size: [
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
            CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
        ]
        .map(a),
        shared_mem_per_block: a(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        total_constant_memory: a(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        simd_width: a(CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        mem_pitch: a(CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        regs_per_block: a(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        clock_rate: a(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        texture_align: a(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
    };
    properties.put(answer)
}

pub(crate) fn cuDeviceComputeCapability(
    major: Out<'_, i32>,
    minor: Out<'_, i32>,
    device: CUdevice,
) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    major.put(driver.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR))?;
    minor.put(driver.attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
}

pub(crate) unsafe fn cuDeviceGetPCIBusId(id: *mut c_char, len: i32, device: CUdevice) -> Done {
    let card = driver()?.card(device)?;
    let text = format!(
        "{:04X}:{:02X}:{:02X}.0",
        card.pci_domain, card.pci_bus, card.pci_device
    );
    if usize::try_from(len).unwrap_or(0) <= text.len() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: NULL or room for `len` bytes: the driver API asks it of its callers.
    unsafe { put_name(id, len, &text) }
}

pub(crate) fn cuDeviceGetByPCIBusId(device: Out<'_, CUdevice>, id: Text<'_>) -> Done {
    let text = id.get()?.to_string_lossy();
    let wanted = parse_bus_id(&text).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    driver()?;
    let found = drivers().iter().find_map(|driver| {
        let mut cards = driver.cards().iter();
        let local = cards.position(|c| (c.pci_domain, c.pci_bus, c.pci_device) == wanted)?;
        Some(driver.devices.program(local))
    });
    device.put(found.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?)
}

/// Parses `domain:bus:device.function`; the domain and the function are optional.
fn parse_bus_id(text: &str) -> Option<(u32, u32, u32)> {
    let hex = |s: &str| u32::from_str_radix(s, 16).ok();
    let without_function = text.split('.').next()?;
    match without_function.split(':').collect::<Vec<_>>()[..] {
        [domain, bus, device] => Some((hex(domain)?, hex(bus)?, hex(device)?)),
        [bus, device] => Some((0, hex(bus)?, hex(device)?)),
        _ => None,
    }
}

impl Driver {
    /// Returns what one device can do with another, which may be hidden.
    fn peer_card(&self, device: CUdevice, peer: CUdevice) -> Option<&PeerCard> {
        let local = self.devices.local(peer).ok()?;
        self.card(device).ok()?.peers.get(local)
    }

    /// Returns the server's facts about a pair of devices; `None` if they are of two servers.
    fn peer(&self, device: CUdevice, peer: CUdevice) -> Result<Option<&PeerCard>, CUresult> {
        driver_of_device(peer)?;
        Ok(driver_of_device(device)?.peer_card(device, peer))
    }

    /// Returns whether one device can use the memory of another, which may be hidden from the
    /// program.
    pub(super) fn reaches(&self, device: CUdevice, owner: CUdevice) -> Result<bool, CUresult> {
        self.card(device)?;
        let peer = self.peer_card(device, owner);
        Ok(peer.is_some_and(|p| p.can_access))
    }

    /// Returns whether one device can use the memory of another.
    pub(super) fn can_access(&self, device: CUdevice, peer: CUdevice) -> Result<bool, CUresult> {
        Ok(self.peer(device, peer)?.is_some_and(|p| p.can_access))
    }
}

pub(crate) fn cuDeviceCanAccessPeer(can: Out<'_, i32>, device: CUdevice, peer: CUdevice) -> Done {
    let answer = driver()?.can_access(device, peer)?;
    can.put(i32::from(answer))
}

pub(crate) fn cuDeviceGetP2PAttribute(
    value: Out<'_, i32>,
    attribute: u32,
    device: CUdevice,
    peer: CUdevice,
) -> Done {
    let driver = driver()?;
    value.check()?;
    let found = driver.peer(device, peer)?;
    if device == peer {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    let known = |peer: &PeerCard| peer.attributes.get(attribute as usize).copied().flatten();
    let answer = match found {
        Some(peer) => known(peer),
        // Between two servers there is nothing.
        None => (CU_DEVICE_P2P_ATTRIBUTES.contains(&attribute)).then_some(0),
    };
    value.put(answer.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)
}

pub(crate) unsafe fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: *mut u32,
    operations: *const u32,
    count: u32,
    device: CUdevice,
    peer: CUdevice,
) -> Done {
    let driver = driver()?;
    if capabilities.is_null() || operations.is_null() || count == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let found = driver.peer(device, peer)?;
    if device == peer {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    let known = found.map_or(&[][..], |p| &p.atomics);
    if known.is_empty() {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    for index in 0..count as usize {
        // SAFETY: not NULL, and of `count` entries: the driver API asks it of its callers.
        let operation = unsafe { *operations.add(index) };
        let answer = known
            .get(operation as usize)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        // SAFETY: not NULL, and room for `count` entries: the driver API asks it of its callers.
        unsafe { *capabilities.add(index) = *answer };
    }
    Ok(())
}

pub(crate) fn cuDeviceGetExecAffinitySupport(
    support: Out<'_, i32>,
    _kind: u32,
    device: CUdevice,
) -> Done {
    driver()?.card(device)?;
    support.put(0)
}

pub(crate) fn cuDeviceGetTexture1DLinearMaxWidth(
    width: Out<'_, usize>,
    format: u32,
    channels: u32,
    device: CUdevice,
) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let elements = driver.call(
        &messages::Texture1dWidthMax {
            format,
            channels,
            device: driver.devices.server(device)?,
        },
        |reply| reply.elements,
    )?;
    width.put(elements as usize)
}

pub(crate) fn cuFlushGPUDirectRDMAWrites(_target: u32, _scope: u32) -> Done {
    driver()?.contexts.current()?;
    match adapter::is_there() {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids() {
        assert_eq!(parse_bus_id("0000:3B:00.0"), Some((0, 0x3b, 0)));
        assert_eq!(parse_bus_id("3b:00"), Some((0, 0x3b, 0)));
        assert_eq!(parse_bus_id("nonsense"), None);
        assert_eq!(parse_bus_id(""), None);
    }
}
