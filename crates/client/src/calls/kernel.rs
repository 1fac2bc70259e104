//! Kernels and functions: names, parameters, attributes, occupancy.

use std::ffi::{c_char, c_void};

use outboard_api::{
    CUresult,
    cuda::{
        CUdevice, CUfunction, CUkernel, CUlaunchConfig, CUlibrary, CUmodule, CUoccupancyB2DSize,
    },
    enums::*,
};
use outboard_wire::messages;

use super::{Done, put, put_optional};
use crate::state::{Driver, HandleKind, Kernel, driver};

/// Numbers of the queries of `occupancy` messages.
const QUERY_BLOCKS: u32 = 0;
const QUERY_SHARED: u32 = 1;
const QUERY_CLUSTERS: u32 = 2;
const QUERY_CLUSTER_SIZE: u32 = 3;

pub(crate) unsafe fn cuKernelGetFunction(function: *mut CUfunction, kernel: CUkernel) -> Done {
    let kernel = driver()?.libraries.kernel(CUfunction(kernel.0))?;
    // The two are one handle here: the driver accepts a CUkernel as a CUfunction too.
    // SAFETY: see the module's contract.
    unsafe { put(function, CUfunction(kernel.handle())) }
}

pub(crate) unsafe fn cuKernelGetLibrary(library: *mut CUlibrary, kernel: CUkernel) -> Done {
    let kernel = driver()?.libraries.kernel(CUfunction(kernel.0))?;
    // SAFETY: see the module's contract.
    unsafe {
        put(
            library,
            CUlibrary(HandleKind::Library.tag(kernel.library) as usize),
        )
    }
}

pub(crate) unsafe fn cuFuncGetModule(module: *mut CUmodule, function: CUfunction) -> Done {
    let kernel = driver()?.libraries.kernel(function)?;
    // SAFETY: see the module's contract.
    unsafe {
        put(
            module,
            CUmodule(HandleKind::Module.tag(kernel.library) as usize),
        )
    }
}

pub(crate) unsafe fn cuFuncGetName(name: *mut *const c_char, function: CUfunction) -> Done {
    if function.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let kernel = driver()?.libraries.kernel(function)?;
    // SAFETY: see the module's contract. The name lives as long as the process.
    unsafe { put(name, kernel.name.as_ptr()) }
}

pub(crate) unsafe fn cuKernelGetName(name: *mut *const c_char, kernel: CUkernel) -> Done {
    // SAFETY: see the module's contract.
    unsafe { cuFuncGetName(name, CUfunction(kernel.0)) }
}

pub(crate) unsafe fn cuFuncGetParamInfo(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Done {
    let kernel = driver()?.libraries.kernel(function)?;
    let (at, len) = *kernel
        .params
        .get(index)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: see the module's contract.
    unsafe {
        put(offset, at as usize)?;
        put_optional(size, len as usize);
    }
    Ok(())
}

pub(crate) unsafe fn cuKernelGetParamInfo(
    kernel: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Done {
    // Unlike the form for functions, as the driver does.
    driver()?.contexts.current()?;
    // SAFETY: see the module's contract.
    unsafe { cuFuncGetParamInfo(CUfunction(kernel.0), index, offset, size) }
}

pub(crate) unsafe fn cuFuncIsLoaded(state: *mut u32, function: CUfunction) -> Done {
    driver()?.libraries.kernel(function)?;
    // SAFETY: see the module's contract.
    unsafe { put(state, CU_FUNCTION_LOADING_STATE_LOADED) }
}

pub(crate) unsafe fn cuFuncGetAttribute(
    value: *mut i32,
    attribute: u32,
    function: CUfunction,
) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    if value.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: see the module's contract.
    unsafe { put(value, kernel.attribute(driver, attribute)?) }
}

pub(crate) unsafe fn cuKernelGetAttribute(
    value: *mut i32,
    attribute: u32,
    kernel: CUkernel,
    device: CUdevice,
) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let kernel = driver.libraries.kernel(CUfunction(kernel.0))?;
    if value.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: see the module's contract.
    unsafe { put(value, kernel.attribute_on(driver, device, attribute)?) }
}

pub(crate) unsafe fn cuFuncSetAttribute(function: CUfunction, attribute: u32, value: i32) -> Done {
    let driver = driver()?;
    driver
        .libraries
        .kernel(function)?
        .set_attribute(driver, attribute, value)
}

pub(crate) unsafe fn cuKernelSetAttribute(
    attribute: u32,
    value: i32,
    kernel: CUkernel,
    device: CUdevice,
) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    driver
        .libraries
        .kernel(CUfunction(kernel.0))?
        .set_attribute_on(driver, device, attribute, value)
}

/// Accepts the preference, which does not change results. A library's kernel takes it for all
/// devices.
pub(crate) unsafe fn cuKernelSetCacheConfig(
    kernel: CUkernel,
    _config: u32,
    device: CUdevice,
) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    driver.libraries.kernel(CUfunction(kernel.0)).map(|_| ())
}

impl Driver {
    /// Returns the answer to an occupancy query. The server is asked once, since the answer never
    /// changes.
    fn occupancy(
        &self,
        kernel: &Kernel,
        query: u32,
        block_size: i32,
        shared_bytes: u64,
        flags: u32,
        config: &[u8],
    ) -> Result<u64, CUresult> {
        let key = (query, block_size, shared_bytes, flags, config.to_vec());
        if let Some(value) = kernel.occupancy.lock().get(&key) {
            return Ok(*value);
        }
        let message = messages::Occupancy {
            query,
            kernel: kernel.wire,
            block_size,
            shared_bytes,
            flags,
            config,
        };
        let value = self.call(&message, |reply| reply.value)?;
        kernel.occupancy.lock().insert(key, value);
        Ok(value)
    }
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut i32,
    function: CUfunction,
    block_size: i32,
    shared_bytes: usize,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
            blocks,
            function,
            block_size,
            shared_bytes,
            0,
        )
    }
}

pub(crate) unsafe fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut i32,
    function: CUfunction,
    block_size: i32,
    shared_bytes: usize,
    flags: u32,
) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    if blocks.is_null() || block_size <= 0 || flags & !CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let value = driver.occupancy(
        kernel,
        QUERY_BLOCKS,
        block_size,
        shared_bytes as u64,
        flags,
        &[],
    )?;
    // SAFETY: see the module's contract.
    unsafe { put(blocks, value as i32) }
}

pub(crate) unsafe fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: *mut usize,
    function: CUfunction,
    blocks: i32,
    block_size: i32,
) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    if bytes.is_null() || blocks <= 0 || block_size <= 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let value = driver.occupancy(kernel, QUERY_SHARED, block_size, blocks as u64, 0, &[])?;
    // SAFETY: see the module's contract.
    unsafe { put(bytes, value as usize) }
}

/// Returns a launch configuration in the form of occupancy messages: dimensions and bytes of shared
/// memory, then the attributes.
///
/// # Safety
/// `config` is a configuration of the caller's.
unsafe fn packed(config: &CUlaunchConfig) -> Result<Vec<u8>, CUresult> {
    let words = [
        config.grid_dim_x,
        config.grid_dim_y,
        config.grid_dim_z,
        config.block_dim_x,
        config.block_dim_y,
        config.block_dim_z,
        config.shared_mem_bytes,
    ];
    let mut out: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    // SAFETY: the caller's promise.
    out.extend_from_slice(unsafe { super::launch_attributes::attribute_bytes(config)? });
    Ok(out)
}

unsafe fn cluster_query(
    query: u32,
    out: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    // SAFETY: NULL or a configuration of the caller's.
    let config = unsafe { config.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: as above.
    let value = driver.occupancy(kernel, query, 0, 0, 0, &unsafe { packed(config)? })?;
    // SAFETY: see the module's contract.
    unsafe { put(out, value as i32) }
}

pub(crate) unsafe fn cuOccupancyMaxActiveClusters(
    clusters: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { cluster_query(QUERY_CLUSTERS, clusters, function, config) }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialClusterSize(
    size: *mut i32,
    function: CUfunction,
    config: *const CUlaunchConfig,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { cluster_query(QUERY_CLUSTER_SIZE, size, function, config) }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    limit: i32,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        cuOccupancyMaxPotentialBlockSizeWithFlags(
            grid,
            block,
            function,
            shared_of,
            shared_bytes,
            limit,
            0,
        )
    }
}

/// Finds the block size with the most resident threads, as the driver does: of two equal ones the
/// larger.
pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut i32,
    block: *mut i32,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    limit: i32,
    flags: u32,
) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    let device = driver.contexts.current()?.device;
    let warp = driver
        .attribute(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE)
        .max(1);
    let multiprocessors = driver.attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let threads_max = kernel.attribute(driver, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    let most = if limit > 0 {
        limit.min(threads_max)
    } else {
        threads_max
    };
    let (mut best, mut best_threads) = ((0, 0), 0);
    let mut size = (most + warp - 1) / warp * warp;
    while size > 0 {
        let threads = size.min(most);
        let shared = match shared_of {
            // SAFETY: the program's own function.
            Some(shared_of) => unsafe { shared_of(threads) },
            None => shared_bytes,
        };
        let blocks =
            driver.occupancy(kernel, QUERY_BLOCKS, threads, shared as u64, flags, &[])? as i32;
        if threads * blocks > best_threads {
            best_threads = threads * blocks;
            best = (threads, blocks);
        }
        size -= warp;
    }
    // SAFETY: see the module's contract.
    unsafe {
        put(grid, best.1 * multiprocessors)?;
        put(block, best.0)
    }
}

pub(crate) unsafe fn cuLibraryGetUnifiedFunction(
    _function: *mut *mut c_void,
    library: CUlibrary,
    _symbol: *const c_char,
) -> Done {
    driver()?.libraries.get(library.0)?;
    // There are none without managed memory.
    Err(CUresult::CUDA_ERROR_NOT_FOUND)
}
