//! The software GPU's device card: the attributes of its compute capability, as far as they mean
//! anything to a program.

use outboard_api::enums::*;
use outboard_wire::doc::{DeviceCard, PeerCard};

use super::{BOARD_BYTES, Capability, memory::GRANULARITY_BYTES, streams::PRIORITIES};

/// The device's name, by which programs tell it from a GPU.
pub const NAME: &str = "Outboard software GPU";
pub(super) const WARP_THREADS: u32 = 32;
pub(super) const BLOCK_THREADS_MAX: u32 = 1024;
pub(super) const BLOCK_EXTENT_MAX: [u32; 3] = [1024, 1024, 64];
pub(super) const GRID_EXTENT_MAX: [u32; 3] = [0x7fff_ffff, 0xffff, 0xffff];
/// Shared memory of a block that has not opted in to more. This and what follows are from the CUDA
/// C++ Programming Guide, "Technical Specifications per Compute Capability".
pub(super) const SHARED_BYTES: u32 = 48 << 10;
pub(super) const SM_REGISTERS: u32 = 64 << 10;
pub(super) const BLOCK_REGISTERS: u32 = 64 << 10;
pub(super) const CONSTANT_BYTES: u32 = 64 << 10;
/// Alignment of a texture's memory, and of its row pitch, in bytes.
pub(super) const TEXTURE_ALIGNMENT: i32 = 512;
pub(super) const TEXTURE_PITCH_ALIGNMENT: i32 = 32;
/// Texels of a texture of linear memory, and layers of an array, at most.
pub(super) const TEXTURE_1D_LINEAR_MAX: i32 = 1 << 28;
pub(super) const LAYERS_MAX: i32 = 2048;
/// Faces of layered cubes at most, six for each cube.
const CUBE_LAYERS_MAX: i32 = 2_046;
/// Clock rate at which a cycle of `%clock64` is a nanosecond, the unit that the interpreter counts.
pub(super) const CLOCK_KHZ: i32 = 1_000_000;

/// A device among those of its session, and among those of its machine.
pub(super) struct Of {
    pub(super) ordinal: usize,
    pub(super) devices: usize,
    pub(super) number: usize,
    pub(super) board: [u8; BOARD_BYTES],
}

pub(super) fn uuid(board: &[u8; BOARD_BYTES], number: usize) -> [u8; 16] {
    let mut uuid = [b'0'; 16];
    uuid[..BOARD_BYTES].copy_from_slice(board);
    uuid[14] += (number / 10) as u8;
    uuid[15] += (number % 10) as u8;
    uuid
}

/// Makes the card of a device.
pub(super) fn card(
    of: &Of,
    memory_bytes: u64,
    threads: usize,
    capability: Capability,
) -> DeviceCard {
    let &Of {
        ordinal,
        devices,
        number,
        ref board,
    } = of;
    let mut attributes = vec![None; CU_DEVICE_ATTRIBUTE_MAX as usize];
    for (attribute, value) in attribute_values(number, threads, capability) {
        if let Some(place) = attributes.get_mut(attribute as usize) {
            *place = Some(value);
        }
    }
    DeviceCard {
        name: NAME.into(),
        uuid: uuid(board, number),
        luid: [0; 8],
        memory_bytes,
        quota_bytes: memory_bytes,
        attributes,
        pci_domain: 0,
        pci_bus: 0,
        pci_device: number as u32,
        stream_priorities: PRIORITIES,
        granularity_bytes: (GRANULARITY_BYTES, GRANULARITY_BYTES),
        peers: (0..devices).map(|other| peer(ordinal, other)).collect(),
    }
}

/// Describes access to another device's memory. All devices of a session share one memory, so
/// everything is possible that is possible with a device's own.
fn peer(ordinal: usize, other: usize) -> PeerCard {
    if ordinal == other {
        return PeerCard::default();
    }
    let attributes = [
        (CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 0),
        (CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 1),
        (CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 1),
        (CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, 1),
        (
            CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED,
            0,
        ),
    ];
    let mut answers = vec![None; attributes.len() + 1];
    for (attribute, value) in attributes {
        answers[attribute as usize] = Some(value);
    }
    PeerCard {
        can_access: true,
        attributes: answers,
        atomics: Vec::new(),
    }
}

type Attributes<'a> = &'a [(u32, i32)];

const NO: i32 = 0;
const YES: i32 = 1;

/// Lists every attribute of CUDA 13.0. Numbers missing here are reserved, and a driver refuses
/// them.
fn attribute_values(ordinal: usize, threads: usize, capability: Capability) -> Vec<(u32, i32)> {
    let of_device = of_device(ordinal);
    let of_capability = of_capability(threads, capability);
    let all: [Attributes<'_>; 14] = [
        &of_device,
        &of_capability,
        SIZES,
        RESOURCES,
        CLOCKS_AND_BUSES,
        LOCATION,
        CONCURRENCY,
        LAUNCHES,
        MEMORY,
        HOST_MEMORY,
        STREAM_OPERATIONS,
        PEERS,
        TEXTURES,
        SURFACES,
    ];
    all.concat()
}

/// Lists the attributes that tell the session's devices apart.
fn of_device(ordinal: usize) -> [(u32, i32); 2] {
    [
        (CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, ordinal as i32),
        (CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID, ordinal as i32),
    ]
}

/// Lists the resources of blocks and multiprocessors: those of the capability, so that occupancy is
/// what programs expect. A multiprocessor is a thread of the host.
fn of_capability(threads: usize, capability: Capability) -> [(u32, i32); 8] {
    let facts = capability.facts();
    [
        (
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            facts.major as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            facts.minor as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            i32::try_from(threads).unwrap_or(i32::MAX),
        ),
        (
            CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR,
            facts.sm_threads as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR,
            facts.sm_blocks as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            facts.shared_optin_bytes as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            facts.sm_shared_bytes as i32,
        ),
        (
            CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
            facts.shared_reserved_bytes as i32,
        ),
    ]
}

/// Sizes of launches.
const SIZES: Attributes<'static> = &[
    (
        CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
        BLOCK_THREADS_MAX as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
        BLOCK_EXTENT_MAX[0] as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
        BLOCK_EXTENT_MAX[1] as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z,
        BLOCK_EXTENT_MAX[2] as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
        GRID_EXTENT_MAX[0] as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
        GRID_EXTENT_MAX[1] as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z,
        GRID_EXTENT_MAX[2] as i32,
    ),
    (CU_DEVICE_ATTRIBUTE_WARP_SIZE, WARP_THREADS as i32),
];

/// Resources of blocks that no capability changes.
const RESOURCES: Attributes<'static> = &[
    (
        CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
        SHARED_BYTES as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK,
        BLOCK_REGISTERS as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR,
        SM_REGISTERS as i32,
    ),
    (
        CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY,
        CONSTANT_BYTES as i32,
    ),
];

/// Clocks and buses: nominal values, because there are none.
const CLOCKS_AND_BUSES: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_CLOCK_RATE, CLOCK_KHZ),
    (CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, CLOCK_KHZ),
    (CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 64),
    (CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20),
    (CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2),
    (CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, YES),
    (CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, YES),
    (CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 0),
    (CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE, 0),
];

/// Location and modes: it is no PCI device.
const LOCATION: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 0),
    (CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0),
    (CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID, 0),
    (CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID, 0),
    (CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD, NO),
    (CU_DEVICE_ATTRIBUTE_INTEGRATED, NO),
    (CU_DEVICE_ATTRIBUTE_TCC_DRIVER, NO),
    (CU_DEVICE_ATTRIBUTE_ECC_ENABLED, NO),
    (
        CU_DEVICE_ATTRIBUTE_COMPUTE_MODE,
        CU_COMPUTEMODE_DEFAULT as i32,
    ),
    (CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, NO),
    (CU_DEVICE_ATTRIBUTE_MPS_ENABLED, NO),
    (CU_DEVICE_ATTRIBUTE_NUMA_CONFIG, 0),
    (CU_DEVICE_ATTRIBUTE_NUMA_ID, -1),
    (CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0),
];

/// Work that may run at the same time.
const CONCURRENCY: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, YES),
    (CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
    (CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, YES),
    (CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, YES),
    (CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, YES),
];

/// Launches beyond plain grids.
const LAUNCHES: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, YES),
    (CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH, NO),
    (CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, NO),
    (CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, NO),
    (CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, NO),
    (CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT, 1),
];

/// Device memory.
const MEMORY: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, YES),
    (CU_DEVICE_ATTRIBUTE_MAX_PITCH, i32::MAX),
    (CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, YES),
    (CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, YES),
    (CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, NO),
    (CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, NO),
    (
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        YES,
    ),
    (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED, NO),
    (
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED,
        NO,
    ),
    (CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, NO),
    (CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, NO),
    (CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, 0),
    (CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_MAXIMUM_LENGTH, 0),
];

/// Memory of the host.
const HOST_MEMORY: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, YES),
    (CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, YES),
    (CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, NO),
    (
        CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        YES,
    ),
    (CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, NO),
    (
        CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED,
        NO,
    ),
    (CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, NO),
    (CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, NO),
    (CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST, NO),
    (CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, NO),
    (
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        NO,
    ),
    (
        CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        NO,
    ),
    (CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, NO),
    (CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED, NO),
    (CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, NO),
    (
        CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        NO,
    ),
    (CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED, NO),
];

/// Waits and writes of streams.
const STREAM_OPERATIONS: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, YES),
    (CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, YES),
    (CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1, YES),
    (CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, YES),
    (CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, YES),
    (CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, NO),
];

/// Peers and other processes.
const PEERS: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, NO),
    (
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        NO,
    ),
    (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, 0),
    (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 0),
    (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, NO),
    (CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, YES),
    (CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED, NO),
    (CU_DEVICE_ATTRIBUTE_D3D12_CIG_SUPPORTED, NO),
    (CU_DEVICE_ATTRIBUTE_VULKAN_CIG_SUPPORTED, NO),
];

/// Arrays and textures.
const TEXTURES: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, TEXTURE_ALIGNMENT),
    (
        CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT,
        TEXTURE_PITCH_ALIGNMENT,
    ),
    (CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED, NO),
    (
        CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
        NO,
    ),
    (CU_DEVICE_ATTRIBUTE_CAN_TEX2D_GATHER, YES),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131_072),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH,
        32_768,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH,
        TEXTURE_1D_LINEAR_MAX,
    ),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32_768),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS,
        LAYERS_MAX,
    ),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131_072),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65_536),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131_072),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65_000),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH,
        2_097_120,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH,
        32_768,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT,
        32_768,
    ),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH, 32_768),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT, 32_768),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32_768),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32_768),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS,
        LAYERS_MAX,
    ),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16_384),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16_384),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16_384),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, 0),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE, 0),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE, 0),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, 32_768),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH,
        32_768,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS,
        CUBE_LAYERS_MAX,
    ),
];

/// Surfaces.
const SURFACES: Attributes<'static> = &[
    (CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, 32_768),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, 131_072),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, 65_536),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, 16_384),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT, 16_384),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH, 16_384),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, 32_768),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS,
        LAYERS_MAX,
    ),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH, 32_768),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT, 32_768),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS,
        LAYERS_MAX,
    ),
    (CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, 32_768),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH,
        32_768,
    ),
    (
        CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS,
        CUBE_LAYERS_MAX,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_has_a_value_and_only_one() {
        let mut seen: Vec<u32> = attribute_values(0, 2, Capability::default())
            .into_iter()
            .map(|(a, _)| a)
            .collect();
        seen.sort_unstable();
        let all: Vec<u32> = (1..CU_DEVICE_ATTRIBUTE_MAX).collect();
        assert_eq!(seen, all);
    }
}
