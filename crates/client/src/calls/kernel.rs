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

use super::{Done, In, Out};
use crate::state::{Driver, HandleKind, Kernel, driver};

/// Numbers of the queries of `occupancy` messages.
const QUERY_BLOCKS: u32 = 0;
const QUERY_SHARED: u32 = 1;
const QUERY_CLUSTERS: u32 = 2;
const QUERY_CLUSTER_SIZE: u32 = 3;

pub(crate) fn cuKernelGetFunction(function: Out<'_, CUfunction>, kernel: CUkernel) -> Done {
    let kernel = driver()?.libraries.kernel(CUfunction(kernel.0))?;
    // The two are one handle here: the driver accepts a CUkernel as a CUfunction too.
    function.put(CUfunction(kernel.handle()))
}

pub(crate) fn cuKernelGetLibrary(library: Out<'_, CUlibrary>, kernel: CUkernel) -> Done {
    let kernel = driver()?.libraries.kernel(CUfunction(kernel.0))?;
    library.put(CUlibrary(HandleKind::Library.tag(kernel.library) as usize))
}

pub(crate) fn cuFuncGetModule(module: Out<'_, CUmodule>, function: CUfunction) -> Done {
    let kernel = driver()?.libraries.kernel(function)?;
    module.put(CUmodule(HandleKind::Module.tag(kernel.library) as usize))
}

pub(crate) fn cuFuncGetName(name: Out<'_, *const c_char>, function: CUfunction) -> Done {
    if function.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let kernel = driver()?.libraries.kernel(function)?;
    // The name lives as long as the process.
    name.put(kernel.name.as_ptr())
}

pub(crate) fn cuKernelGetName(name: Out<'_, *const c_char>, kernel: CUkernel) -> Done {
    cuFuncGetName(name, CUfunction(kernel.0))
}

pub(crate) fn cuFuncGetParamInfo(
    function: CUfunction,
    index: usize,
    offset: Out<'_, usize>,
    size: Out<'_, usize>,
) -> Done {
    let kernel = driver()?.libraries.kernel(function)?;
    let (at, len) = *kernel
        .params
        .get(index)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    offset.put(at as usize)?;
    size.put_optional(len as usize);
    Ok(())
}

pub(crate) fn cuKernelGetParamInfo(
    kernel: CUkernel,
    index: usize,
    offset: Out<'_, usize>,
    size: Out<'_, usize>,
) -> Done {
    // Unlike the form for functions, as the driver does.
    driver()?.contexts.current()?;
    cuFuncGetParamInfo(CUfunction(kernel.0), index, offset, size)
}

pub(crate) fn cuFuncIsLoaded(state: Out<'_, u32>, function: CUfunction) -> Done {
    driver()?.libraries.kernel(function)?;
    state.put(CU_FUNCTION_LOADING_STATE_LOADED)
}

pub(crate) fn cuFuncGetAttribute(
    value: Out<'_, i32>,
    attribute: u32,
    function: CUfunction,
) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    value.check()?;
    value.put(kernel.attribute(driver, attribute)?)
}

pub(crate) fn cuKernelGetAttribute(
    value: Out<'_, i32>,
    attribute: u32,
    kernel: CUkernel,
    device: CUdevice,
) -> Done {
    let driver = driver()?;
    driver.card(device)?;
    let kernel = driver.libraries.kernel(CUfunction(kernel.0))?;
    value.check()?;
    value.put(kernel.attribute_on(driver, device, attribute)?)
}

pub(crate) fn cuFuncSetAttribute(function: CUfunction, attribute: u32, value: i32) -> Done {
    let driver = driver()?;
    driver
        .libraries
        .kernel(function)?
        .set_attribute(driver, attribute, value)
}

pub(crate) fn cuKernelSetAttribute(
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
pub(crate) fn cuKernelSetCacheConfig(kernel: CUkernel, _config: u32, device: CUdevice) -> Done {
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

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<'_, i32>,
    function: CUfunction,
    block_size: i32,
    shared_bytes: usize,
) -> Done {
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks,
        function,
        block_size,
        shared_bytes,
        0,
    )
}

pub(crate) fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: Out<'_, i32>,
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
    blocks.put(value as i32)
}

pub(crate) fn cuOccupancyAvailableDynamicSMemPerBlock(
    bytes: Out<'_, usize>,
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
    bytes.put(value as usize)
}

/// Returns a launch configuration in the form of occupancy messages: dimensions and bytes of shared
/// memory, then the attributes.
///
/// # Safety
/// `config.attrs` must have `config.num_attrs` entries.
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
    // SAFETY: the attributes are as this function's contract says.
    out.extend_from_slice(unsafe { super::launch_attributes::attribute_bytes(config)? });
    Ok(out)
}

/// # Safety
/// The attributes of `config` must be as many as it says.
unsafe fn cluster_query(
    query: u32,
    out: Out<'_, i32>,
    function: CUfunction,
    config: In<'_, CUlaunchConfig>,
) -> Done {
    let driver = driver()?;
    let kernel = driver.libraries.kernel(function)?;
    // SAFETY: the attributes are as this function's contract says.
    let config = unsafe { packed(&config.get()?)? };
    let value = driver.occupancy(kernel, query, 0, 0, 0, &config)?;
    out.put(value as i32)
}

pub(crate) unsafe fn cuOccupancyMaxActiveClusters(
    clusters: Out<'_, i32>,
    function: CUfunction,
    config: In<'_, CUlaunchConfig>,
) -> Done {
    // SAFETY: the driver API asks its caller for a configuration with that many attributes.
    unsafe { cluster_query(QUERY_CLUSTERS, clusters, function, config) }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialClusterSize(
    size: Out<'_, i32>,
    function: CUfunction,
    config: In<'_, CUlaunchConfig>,
) -> Done {
    // SAFETY: the driver API asks its caller for a configuration with that many attributes.
    unsafe { cluster_query(QUERY_CLUSTER_SIZE, size, function, config) }
}

pub(crate) unsafe fn cuOccupancyMaxPotentialBlockSize(
    grid: Out<'_, i32>,
    block: Out<'_, i32>,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared_bytes: usize,
    limit: i32,
) -> Done {
    // SAFETY: the function is the program's, as there.
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
    grid: Out<'_, i32>,
    block: Out<'_, i32>,
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
            // SAFETY: the program's own function, which takes any block size.
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
    grid.put(best.1 * multiprocessors)?;
    block.put(best.0)
}

pub(crate) fn cuLibraryGetUnifiedFunction(
    _function: *mut *mut c_void,
    library: CUlibrary,
    _symbol: *const c_char,
) -> Done {
    driver()?.libraries.get(library.0)?;
    // There are none without managed memory.
    Err(CUresult::CUDA_ERROR_NOT_FOUND)
}
