//! Launches: checks the launch as the driver does, and sends it.

use std::{ffi::c_void, sync::atomic::Ordering};

use outboard_api::{
    CUresult,
    cuda::{CUdevice, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream},
    enums::*,
};
use outboard_wire::messages;
use parking_lot::RwLockReadGuard;

use super::{
    Done, Out,
    arguments::Arguments,
    launch_attributes::{attribute_bytes, each, need_checks},
};
use crate::{
    context::Context,
    observe::conditions,
    state::{
        Contexts, Driver, HeldLaunch, HostMemory, Kernel, StreamRef, driver, pop_context,
        push_context,
    },
    thread,
};

const WARP_THREADS: u32 = 32;
/// Granularity of a warp's registers, on every GPU since Kepler.
const WARP_REGISTERS_UNIT: u32 = 256;

#[derive(Clone, Copy)]
pub(crate) struct LaunchShape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// Refuses a cluster with a dimension of 0, unless all three are 0 (no cluster), and a grid that
/// does not consist of whole clusters.
fn check_clusters(attributes: &[u8], grid: [u32; 3]) -> Done {
    for (id, [x, y, z, ..]) in each(attributes) {
        let cluster = [x, y, z];
        if id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || cluster == [0; 3] {
            continue;
        }
        let whole = |(grid, cluster): (&u32, &u32)| grid.checked_rem(*cluster) == Some(0);
        if !grid.iter().zip(&cluster).all(whole) {
            return Err(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
        }
    }
    Ok(())
}

impl Driver {
    /// Reports every error that the driver would report at the call.
    pub(crate) fn check_launch(&self, kernel: &Kernel, shape: LaunchShape) -> Done {
        self.check_launch_in(self.contexts.current()?, kernel, shape)
    }

    #[inline(always)]
    fn check_launch_in(&self, context: &Context, kernel: &Kernel, shape: LaunchShape) -> Done {
        let limits = &context.limits;
        if !fits(shape.grid, &limits.grid_max) || !fits(shape.block, &limits.block_max) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let [x, y, z] = shape.block.map(u64::from);
        // No device allows blocks so large that this product wraps.
        let threads = x.wrapping_mul(y).wrapping_mul(z);
        if threads > u64::from(limits.threads_max) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if kernel.surely_takes(threads, shape.shared_bytes) {
            return Ok(());
        }
        self.check_attributes(context, kernel, threads, shape.shared_bytes)
    }

    #[cold]
    fn check_attributes(
        &self,
        context: &Context,
        kernel: &Kernel,
        threads: u64,
        shared_bytes: u32,
    ) -> Done {
        let most = kernel.attribute(self, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        if i128::from(threads) > i128::from(most) {
            return Err(self.too_many_threads(context, kernel, most)?);
        }
        if shared_bytes > 0 {
            let most = kernel.attribute(self, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)?;
            if i64::from(shared_bytes) > i64::from(most) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        Ok(())
    }

    /// Returns the error of a block with more than `most` threads. The driver reports an invalid
    /// value if the kernel was compiled for `most`, and missing resources if its registers suffice
    /// for no more.
    fn too_many_threads(
        &self,
        context: &Context,
        kernel: &Kernel,
        most: i32,
    ) -> Result<CUresult, CUresult> {
        let registers = kernel.attribute(self, CU_FUNC_ATTRIBUTE_NUM_REGS)?;
        let all = self.attribute(context.device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
        let warp_registers =
            (registers.max(1).unsigned_abs() * WARP_THREADS).next_multiple_of(WARP_REGISTERS_UNIT);
        let by_registers = all.unsigned_abs() / warp_registers * WARP_THREADS;
        Ok(if most.unsigned_abs() < by_registers {
            CUresult::CUDA_ERROR_INVALID_VALUE
        } else {
            CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        })
    }

    /// Opens mirrors of memory that arguments point to and the server does not see, and updates all
    /// mirrors. The caller sends the work while it holds the result. `stream` is that of work that
    /// runs now; `is_kept` means that the work may run again without naming its memory again.
    #[inline]
    pub(crate) fn make_arguments_visible(
        &self,
        params: &[u8],
        stream: Option<&StreamRef>,
        is_kept: impl FnOnce() -> bool,
    ) -> Result<Option<RwLockReadGuard<'_, ()>>, CUresult> {
        if !HostMemory::any_private() {
            return Ok(None);
        }
        let named = self.open_named_in(params, is_kept)?;
        match stream {
            Some(stream) => self.push_for_work(stream)?,
            None => self.push_visible()?,
        }
        Ok(named)
    }

    /// Opens mirrors of memory that arguments point to and the server does not see.
    #[inline]
    fn open_named_in(
        &self,
        params: &[u8],
        is_kept: impl FnOnce() -> bool,
    ) -> Result<Option<RwLockReadGuard<'_, ()>>, CUresult> {
        match HostMemory::may_name_private(params).next() {
            Some(_) => self.open_named(params, is_kept()),
            None => Ok(None),
        }
    }

    /// Handles a refused launch: it ends the capture of its stream.
    #[cold]
    fn refused(&self, stream: &StreamRef, error: CUresult) -> CUresult {
        if let Some(capture) = self.capture_of(stream) {
            capture.spoil();
        }
        error
    }

    #[inline(always)]
    fn launch(
        &self,
        arguments: Arguments<'_>,
        shape: LaunchShape,
        stream: &StreamRef,
        attributes: &[u8],
    ) -> Done {
        if self.session.progress.is_wait_due() {
            return self.launch_awaited(arguments, shape, stream, attributes);
        }
        self.launch_as::<false>(arguments, shape, stream, attributes)
    }

    /// Launches what a wait is expected after.
    #[cold]
    #[inline(never)]
    fn launch_awaited(
        &self,
        arguments: Arguments<'_>,
        shape: LaunchShape,
        stream: &StreamRef,
        attributes: &[u8],
    ) -> Done {
        self.launch_as::<true>(arguments, shape, stream, attributes)
    }

    #[inline(always)]
    fn launch_as<const AWAITED: bool>(
        &self,
        arguments: Arguments<'_>,
        shape: LaunchShape,
        stream: &StreamRef,
        attributes: &[u8],
    ) -> Done {
        let thread = thread::here();
        let kernel = arguments.kernel;
        let context = match Contexts::current_of(&thread) {
            Ok(context) => context,
            Err(error) => return self.launch_without(error, arguments, shape, stream, attributes),
        };
        if kernel
            .context
            .is_some_and(|own| own != stream.stream().context)
        {
            return Err(self.refused(stream, CUresult::CUDA_ERROR_INVALID_HANDLE));
        }
        if let Err(error) = self.check_launch_in(context, kernel, shape) {
            return Err(self.refused(stream, error));
        }
        self.keep_pace(stream)?;
        if HostMemory::any_private() {
            let private = HostMemory::private_bounds();
            // The last mirror may be closed while earlier launches are held.
            if self.has_mirrors() || conditions::are_held() {
                return self.launch_visible(arguments, shape, stream, attributes);
            }
            if let Some(watched) = arguments.watched(private) {
                let message = launch_message(kernel, shape, stream, attributes, watched);
                return match self.submit_work::<AWAITED, _>(&thread, stream, &message) {
                    Ok(()) => Ok(()),
                    // Nothing was sent because of that, or nothing can be sent any more.
                    Err(_) if arguments.may_name(private) => {
                        self.launch_visible(arguments, shape, stream, attributes)
                    }
                    Err(error) => Err(error),
                };
            }
            if arguments.may_name(private) {
                return self.launch_visible(arguments, shape, stream, attributes);
            }
        }
        let message = launch_message(kernel, shape, stream, attributes, arguments);
        self.submit_work::<AWAITED, _>(&thread, stream, &message)
    }

    /// Launches in clusters, with events that are recorded before the kernel is done, or before an
    /// expected wait.
    #[cold]
    #[inline(never)]
    fn launch_checked(
        &self,
        arguments: Arguments<'_>,
        shape: LaunchShape,
        stream: &StreamRef,
        attributes: &[u8],
    ) -> Done {
        check_clusters(attributes, shape.grid)?;
        let events = self.events_of_launch(attributes, stream)?;
        self.launch(arguments, shape, stream, attributes)?;
        for event in &events {
            event.recorded_within(stream.stream().capture.load(Ordering::Acquire));
        }
        Ok(())
    }

    /// Launches after the host memory that the arguments name was made visible to the server.
    #[inline(never)]
    fn launch_visible(
        &self,
        arguments: Arguments<'_>,
        shape: LaunchShape,
        stream: &StreamRef,
        attributes: &[u8],
    ) -> Done {
        let params = arguments.gather()?;
        let kernel = arguments.kernel;
        let _named = self.open_named_in(&params, || stream.is_capturing())?;
        let held = || HeldLaunch {
            context: stream.context(),
            stream: stream.clone(),
            kernel: kernel.wire,
            grid: shape.grid,
            block: shape.block,
            shared_bytes: shape.shared_bytes,
            params: params.as_slice().into(),
        };
        if attributes.is_empty() && self.hold(stream, params.len(), held)? {
            return Ok(());
        }
        self.push_for_work(stream)?;
        let message = launch_message(kernel, shape, stream, attributes, &params[..]);
        self.submit_to(stream, &message)
    }

    /// Launches in the stream's context while the thread has none; the default stream has no
    /// context then, which is `error`.
    #[cold]
    #[inline(never)]
    fn launch_without(
        &self,
        error: CUresult,
        arguments: Arguments<'_>,
        shape: LaunchShape,
        stream: &StreamRef,
        attributes: &[u8],
    ) -> Done {
        match stream {
            StreamRef::Own(own) if error == CUresult::CUDA_ERROR_INVALID_CONTEXT => {
                push_context(self.contexts.get(own.context)?);
            }
            _ => return Err(error),
        }
        let launched = self.launch(arguments, shape, stream, attributes);
        pop_context().map(drop).and(launched)
    }
}

#[inline(always)]
fn launch_message<'a, C>(
    kernel: &Kernel,
    shape: LaunchShape,
    stream: &StreamRef,
    attributes: &'a [u8],
    params: C,
) -> messages::Launch<'a, C> {
    let [grid_x, grid_y, grid_z] = shape.grid;
    let [block_x, block_y, block_z] = shape.block;
    messages::Launch {
        kernel: kernel.wire,
        stream: stream.wire(),
        grid_x,
        grid_y,
        grid_z,
        block_x,
        block_y,
        block_z,
        shared_bytes: shape.shared_bytes,
        attributes,
        params,
    }
}

/// Returns whether each dimension is from 1 to its maximum. It is not a loop, since every launch
/// runs it.
#[inline(always)]
fn fits([x, y, z]: [u32; 3], [x_max, y_max, z_max]: &[u32; 3]) -> bool {
    // Zero wraps to the largest number.
    let fits = |dim: u32, max: u32| dim.wrapping_sub(1) < max;
    fits(x, *x_max) && fits(y, *y_max) && fits(z, *z_max)
}

#[inline(always)]
pub(crate) unsafe fn cuLaunchKernel(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    let kernel = driver.libraries.kernel(function)?;
    let shape = LaunchShape {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
    };
    // SAFETY: the arrays suit the kernel's parameters: the driver API asks it of its callers.
    let arguments = unsafe { Arguments::new(kernel, params, extra)? };
    driver.launch(arguments, shape, &stream, &[])
}

#[inline(always)]
pub(crate) unsafe fn cuLaunchKernelEx(
    config: *const CUlaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    let driver = driver()?;
    // SAFETY: NULL, or a configuration that the program leaves unchanged until the call returns.
    let config = unsafe { config.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let stream = driver.work_stream(config.stream)?;
    let kernel = driver.libraries.kernel(function)?;
    let shape = LaunchShape {
        grid: [config.grid_dim_x, config.grid_dim_y, config.grid_dim_z],
        block: [config.block_dim_x, config.block_dim_y, config.block_dim_z],
        shared_bytes: config.shared_mem_bytes,
    };
    // SAFETY: as many attributes as the configuration says: the driver API asks it of its callers.
    let attributes = unsafe { attribute_bytes(config)? };
    // SAFETY: the arrays suit the kernel's parameters: the driver API asks it of its callers.
    let arguments = unsafe { Arguments::new(kernel, params, extra)? };
    if need_checks(attributes) || driver.session.progress.is_wait_due() {
        return driver.launch_checked(arguments, shape, &stream, attributes);
    }
    driver.launch_as::<false>(arguments, shape, &stream, attributes)
}

pub(crate) unsafe fn cuLaunchCooperativeKernel(
    function: CUfunction,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared_bytes: u32,
    stream: CUstream,
    params: *mut *mut c_void,
) -> Done {
    let driver = driver()?;
    let resolved = driver.work_stream(stream)?;
    let kernel = driver.libraries.kernel(function)?;
    let device: CUdevice = driver.contexts.current()?.device;
    if driver.attribute(device, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH) == 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let shape = LaunchShape {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared_bytes,
    };
    driver.check_launch(kernel, shape)?;
    check_cooperative(driver, function, &shape, device)?;
    let mut attribute = [0u8; size_of::<CUlaunchAttribute>()];
    attribute[0] = CU_LAUNCH_ATTRIBUTE_COOPERATIVE as u8;
    attribute[8] = 1;
    // SAFETY: the array suits the kernel's parameters: the driver API asks it of its callers.
    let arguments = unsafe { Arguments::new(kernel, params, std::ptr::null_mut())? };
    driver.launch(arguments, shape, &resolved, &attribute)
}

/// Refuses a cooperative grid if not all of its blocks can be resident at once.
fn check_cooperative(
    driver: &Driver,
    function: CUfunction,
    shape: &LaunchShape,
    device: CUdevice,
) -> Done {
    let threads: u32 = shape.block.iter().product();
    let mut resident = 0;
    super::cuOccupancyMaxActiveBlocksPerMultiprocessor(
        Out::of(&mut resident),
        function,
        threads as i32,
        shape.shared_bytes as usize,
    )?;
    let room =
        resident as u64 * driver.attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) as u64;
    let blocks = shape.grid.iter().map(|d| u64::from(*d)).product::<u64>();
    if blocks > room {
        Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_made_of_whole_clusters() {
        let check = |kind: u32, cluster: [u32; 3], grid| {
            let mut attributes = vec![0; 2 * size_of::<CUlaunchAttribute>()];
            let record = &mut attributes[size_of::<CUlaunchAttribute>()..];
            record[..4].copy_from_slice(&kind.to_le_bytes());
            for (at, dimension) in [8, 12, 16].into_iter().zip(cluster) {
                record[at..at + 4].copy_from_slice(&dimension.to_le_bytes());
            }
            check_clusters(&attributes, grid)
        };
        // Results of an H100's driver (580.159.04).
        let refused = Err(CUresult::CUDA_ERROR_INVALID_CLUSTER_SIZE);
        let clusters = |cluster| check(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cluster, [4, 1, 1]);
        assert_eq!(clusters([0, 0, 0]), Ok(()));
        assert_eq!(clusters([1, 1, 1]), Ok(()));
        assert_eq!(clusters([2, 1, 1]), Ok(()));
        assert_eq!(clusters([0, 1, 1]), refused);
        assert_eq!(clusters([2, 1, 0]), refused);
        assert_eq!(clusters([3, 1, 1]), refused);
        let other = check(CU_LAUNCH_ATTRIBUTE_PRIORITY, [3, 0, 0], [4, 1, 1]);
        assert_eq!(other, Ok(()));
    }
}
