//! Launches: gathers arguments by the kernel's parameter table, checks the launch as the driver
//! does, and sends it.

use std::{ffi::c_void, sync::atomic::Ordering};

use outboard_api::{
    CUresult,
    cuda::{CUdevice, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream},
    enums::*,
};
use outboard_wire::{Content, EncodeError, Room, Writer, messages};
use parking_lot::RwLockReadGuard;
use smallvec::SmallVec;

use super::{
    Done, Out,
    launch_attributes::{attribute_bytes, each, need_checks},
};
use crate::{
    context::Context,
    state::{
        Contexts, Driver, HostMemory, Kernel, PARAM_BYTES_MAX, PrivateBounds, StreamRef, driver,
        pop_context, push_context,
    },
    thread,
};

/// Longest parameter buffer kept on the stack, in bytes.
const SMALL_BYTES: usize = 512;
const WARP_THREADS: u32 = 32;
/// Granularity of a warp's registers, on every GPU since Kepler.
const WARP_REGISTERS_UNIT: u32 = 256;

/// `CU_LAUNCH_PARAM_*`, the keys of the `extra` array.
const EXTRA_END: usize = 0;
pub(super) const EXTRA_BUFFER_POINTER: usize = 1;
pub(super) const EXTRA_BUFFER_SIZE: usize = 2;

#[derive(Clone, Copy)]
pub(crate) struct LaunchShape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// Packed arguments of a launch.
type Params = SmallVec<[u8; SMALL_BYTES]>;

/// The arguments of a launch in the program's memory, which are packed straight into the message.
#[derive(Clone, Copy)]
pub(crate) struct Arguments<'k> {
    kernel: &'k Kernel,
    given: Given,
}

#[derive(Clone, Copy)]
enum Given {
    /// `kernelParams`: a pointer to each argument.
    Each(*const *const u8),
    /// `extra`: a packed buffer of this length, at most the kernel's.
    Packed(*const u8, usize),
}

impl<'k> Arguments<'k> {
    /// Takes the arguments of a launch from `kernelParams` or `extra`.
    ///
    /// # Safety
    /// `params` must be NULL or have a pointer for each parameter of the kernel, each to an
    /// argument of the parameter's size. `extra` must be NULL or pairs of key and value up to the
    /// end key. Both must stay so for as long as the result is used.
    #[inline(always)]
    pub(crate) unsafe fn new(
        kernel: &'k Kernel,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<Self, CUresult> {
        let given = match (params.is_null(), extra.is_null()) {
            (_, true) if !params.is_null() || kernel.params.is_empty() => {
                Given::Each(params.cast_const().cast())
            }
            // SAFETY: pairs of keys and values, as this function's contract says.
            (true, false) => unsafe { packed(kernel, extra)? },
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        Ok(Arguments { kernel, given })
    }

    /// Packs the arguments into memory of this process.
    pub(crate) fn gather(&self) -> Result<Params, CUresult> {
        let mut params = Params::from_elem(0, self.len());
        match self.put(&mut Writer::new(&mut params)) {
            Ok(()) => Ok(params),
            Err(_) => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Returns whether the arguments may name an address within `bounds`.
    #[inline(always)]
    fn may_name(&self, bounds: PrivateBounds) -> bool {
        match self.given {
            // SAFETY: one pointer for each parameter, each NULL or to an argument of the
            // parameter's size, as the contract of `new` says.
            Given::Each(first) => unsafe { any_may_name(&self.kernel.params, first, bounds) },
            Given::Packed(..) => true,
        }
    }
}

/// Returns whether an aligned word of the packed arguments may be an address within `bounds`, and
/// true if only packing can tell. Two arguments of four bytes may be one word; shorter ones are
/// not joined.
///
/// # Safety
/// `next` must have a pointer for each of `params`, which are offsets and sizes, and each pointer
/// must be NULL or have as many bytes as that size.
#[inline(always)]
unsafe fn any_may_name(
    params: &[(u32, u32)],
    mut next: *const *const u8,
    bounds: PrivateBounds,
) -> bool {
    let (mut low, mut low_end) = (0, 0);
    for &(offset, size) in params {
        let (mut at, end) = (offset, offset + size);
        // SAFETY: one pointer for each parameter.
        let mut argument = unsafe { *next };
        // SAFETY: a parameter was left, so this is at most one past the last.
        next = unsafe { next.add(1) };
        if argument.is_null() || size > 4 && !at.is_multiple_of(4) {
            return true;
        }
        // Most arguments are pointers.
        if at.is_multiple_of(8) && size == 8 {
            // SAFETY: the argument has this size.
            if bounds.may_contain(unsafe { argument.cast::<u64>().read_unaligned() }) {
                return true;
            }
            continue;
        }
        // SAFETY: the argument has `end - at` bytes left, of which each step reads at most those.
        unsafe {
            if size >= 4 && !at.is_multiple_of(8) {
                let high = u64::from(argument.cast::<u32>().read_unaligned());
                if low_end == at && bounds.may_contain(high << 32 | low) {
                    return true;
                }
                (argument, at) = (argument.add(4), at + 4);
            }
            while end - at >= 8 {
                if bounds.may_contain(argument.cast::<u64>().read_unaligned()) {
                    return true;
                }
                (argument, at) = (argument.add(8), at + 8);
            }
            if end - at >= 4 {
                low = u64::from(argument.cast::<u32>().read_unaligned());
                low_end = at + 4;
            }
        }
    }
    false
}

impl Content for Arguments<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.kernel.param_bytes as usize
    }

    #[inline(always)]
    fn put(&self, room: &mut impl Room) -> Result<(), EncodeError> {
        let room = room.take(self.len())?;
        let mut next = match self.given {
            Given::Each(first) => first,
            Given::Packed(buffer, len) => {
                // A buffer may end before the parameters do, as NCCL's do: the kernel must not use
                // the rest.
                // SAFETY: the room has the length of all parameters, and `len` is at most that; the
                // program's buffer has `len` bytes.
                unsafe {
                    room.write_bytes(0, self.len());
                    room.copy_from_nonoverlapping(buffer, len);
                }
                return Ok(());
            }
        };
        if self.kernel.has_gaps {
            // SAFETY: the room has this length.
            unsafe { room.write_bytes(0, self.len()) };
        }
        for &(offset, size) in &self.kernel.params {
            // SAFETY: one pointer for each parameter of the kernel, each to an argument of the
            // parameter's size; and the room's length is the end of the last parameter.
            unsafe {
                let argument = *next;
                next = next.add(1);
                if argument.is_null() {
                    return Err(EncodeError::NoContent);
                }
                let room = room.add(offset as usize);
                match size {
                    8 => room
                        .cast::<[u8; 8]>()
                        .write(argument.cast::<[u8; 8]>().read()),
                    4 => room
                        .cast::<[u8; 4]>()
                        .write(argument.cast::<[u8; 4]>().read()),
                    _ => room.copy_from_nonoverlapping(argument, size as usize),
                }
            }
        }
        Ok(())
    }
}

/// Reads the `extra` array of a launch.
///
/// # Safety
/// It has pairs of keys and values, up to the end key.
#[cold]
unsafe fn packed(kernel: &Kernel, extra: *mut *mut c_void) -> Result<Given, CUresult> {
    const KEYS_MAX: usize = 8;
    let (mut buffer, mut len) = (std::ptr::null::<u8>(), None);
    let mut ended = false;
    for pair in 0..KEYS_MAX {
        // SAFETY: the end key has not come, so there is another pair.
        let key = unsafe { *extra.add(2 * pair) } as usize;
        if key == EXTRA_END {
            ended = true;
            break;
        }
        // SAFETY: a key other than the end has a value after it.
        let value = unsafe { *extra.add(2 * pair + 1) };
        match key {
            EXTRA_BUFFER_POINTER => buffer = value.cast(),
            EXTRA_BUFFER_SIZE if !value.is_null() => {
                // SAFETY: a pointer to a size, as this key asks.
                len = Some(unsafe { *value.cast::<usize>() })
            }
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    match len {
        Some(len) if ended && len <= PARAM_BYTES_MAX && (len == 0 || !buffer.is_null()) => {
            Ok(Given::Packed(buffer, len.min(kernel.param_bytes as usize)))
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
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
    /// mirrors. The caller sends the work while it holds the result. `is_kept` means that the work
    /// may run again without naming its memory again.
    #[inline]
    pub(crate) fn make_arguments_visible(
        &self,
        params: &[u8],
        is_kept: impl FnOnce() -> bool,
    ) -> Result<Option<RwLockReadGuard<'_, ()>>, CUresult> {
        if !HostMemory::any_private() {
            return Ok(None);
        }
        if HostMemory::may_name_private(params).next().is_some() {
            return self.open_named(params, is_kept());
        }
        self.push_visible()?;
        Ok(None)
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
        if HostMemory::any_private()
            && (self.has_mirrors() || arguments.may_name(HostMemory::private_bounds()))
        {
            return self.launch_visible(arguments, shape, stream, attributes);
        }
        let message = launch_message(kernel, shape, stream, attributes, arguments);
        self.submit_as(&thread, stream.work(), &message).map(drop)
    }

    /// Launches in clusters, or with events that are recorded before the kernel is done.
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
        let _named = self.make_arguments_visible(&params, || stream.is_capturing())?;
        let message = launch_message(arguments.kernel, shape, stream, attributes, &params[..]);
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
    if need_checks(attributes) {
        return driver.launch_checked(arguments, shape, &stream, attributes);
    }
    driver.launch(arguments, shape, &stream, attributes)
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

    /// Packs arguments of these sizes, each at its offset, and lists the aligned words.
    fn words_of(params: &[(u32, u32)], arguments: &[Vec<u8>]) -> Vec<u64> {
        let end = params.iter().map(|(offset, size)| offset + size).max();
        let mut packed = vec![0; end.unwrap_or(0) as usize];
        for ((offset, size), argument) in params.iter().zip(arguments) {
            packed[*offset as usize..(offset + size) as usize].copy_from_slice(argument);
        }
        let words = packed.as_chunks::<8>().0.iter();
        words.map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Parameters as a compiler lays them out, whose alignments are at least four.
    fn some_params(random: &mut impl FnMut(u32) -> u32) -> Vec<(u32, u32)> {
        let mut at = 0u32;
        let sizes = [4, 4, 8, 8, 12, 16, 20, 24, 36, 40];
        let param = |_| {
            let size = sizes[random(sizes.len() as u32) as usize];
            let align = if size % 8 == 0 && random(4) > 0 { 8 } else { 4 };
            let offset = at.next_multiple_of(align);
            at = offset + size;
            (offset, size)
        };
        (0..6).map(param).collect()
    }

    #[test]
    fn arguments_are_looked_at_as_if_they_were_packed() {
        let mut seed = 1u64;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((seed >> 33) as u32) % below
        };
        let bounds = PrivateBounds::of(0x3800_0000_0000, 0x10_0000);
        let (mut named, mut unnamed) = (0, 0);
        for _ in 0..20_000 {
            let params = some_params(&mut random);
            let mut argument = |size: u32| (0..size).map(|_| random(256) as u8).collect();
            let mut arguments: Vec<Vec<u8>> = params.iter().map(|p| argument(p.1)).collect();
            if random(2) == 0 {
                put_address(&params, &mut arguments, &mut random);
            }
            let pointers: Vec<_> = arguments.iter().map(|a| a.as_ptr()).collect();
            let expected = words_of(&params, &arguments)
                .iter()
                .any(|word| bounds.may_contain(*word));
            // SAFETY: a pointer for each parameter, each to an argument of its size.
            let found = unsafe { any_may_name(&params, pointers.as_ptr(), bounds) };
            assert_eq!(found, expected, "{params:?}");
            *(if found { &mut named } else { &mut unnamed }) += 1;
        }
        assert!(named > 5_000 && unnamed > 5_000, "{named} {unnamed}");
    }

    /// Writes an address within the bounds at a random word, which may be parts of two arguments.
    fn put_address(
        params: &[(u32, u32)],
        arguments: &mut [Vec<u8>],
        random: &mut impl FnMut(u32) -> u32,
    ) {
        let end = params.iter().map(|(offset, size)| offset + size).max();
        let word = random(end.unwrap_or(8) / 8) * 8;
        let address = (0x3800_0000_0000 + u64::from(random(0x10_0000))).to_le_bytes();
        for ((offset, size), argument) in params.iter().zip(arguments) {
            for (at, byte) in (word..).zip(address) {
                if (*offset..offset + size).contains(&at) {
                    argument[(at - offset) as usize] = byte;
                }
            }
        }
    }

    #[test]
    fn a_missing_argument_is_left_to_packing() {
        let bounds = PrivateBounds::of(0x3800_0000_0000, 0x1000);
        let value = 1u64;
        let pointers = [(&raw const value).cast::<u8>(), std::ptr::null()];
        // SAFETY: a pointer for each parameter, or NULL.
        assert!(unsafe { any_may_name(&[(0, 8), (8, 8)], pointers.as_ptr(), bounds) });
    }
}
