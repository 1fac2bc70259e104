//! Device memory: the client chooses its addresses, the server maps it.

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdeviceptr, CUstream},
    enums::*,
};
use outboard_wire::messages;

use super::{Done, Out, copy::MemoryKind};
use crate::{
    observe::stats,
    session::Numbered,
    state::{AllocationKind, Chunk, Driver, driver, wire_context},
};

impl Driver {
    pub(crate) fn allocate(&self, bytes: u64, kind: AllocationKind) -> Result<u64, CUresult> {
        let context = self.contexts.current()?;
        // A small allocation may send nothing, so a lost context is noticed here.
        self.session.check()?;
        let allocate = || {
            // Another thread's allocation may be a part of the chunk, and be used at once.
            let _mapping = self.mapping.lock();
            let allocated = self.memory.lock().allocate(
                bytes,
                context.handle,
                context.device,
                kind,
                self.session.progress.known(),
            );
            let (base, chunk) = allocated?;
            match chunk {
                Some(chunk) => self.map_chunk(base, chunk).map(|()| base),
                None => Ok(base),
            }
        };
        match allocate() {
            // Unused memory of pools, and memory freed while the GPU was busy, become available.
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                self.reclaim_pools();
                self.synchronize_context()?;
                allocate()
            }
            allocated => allocated,
        }
    }

    /// Has the server map the chunk of a new allocation.
    fn map_chunk(&self, base: u64, chunk: Chunk) -> Done {
        let (va, len) = (chunk.base, chunk.bytes);
        let mapped = self.submit_allocation(wire_context(), &messages::MemMap { va, len });
        mapped.inspect_err(|_| self.memory.lock().forget(base))
    }

    /// Has the server unmap memory.
    pub(crate) fn unmap(&self, context: u64, chunk: Chunk) -> Done {
        let (va, len) = (chunk.base, chunk.bytes);
        let unmap = messages::MemUnmap { va, len };
        let numbered = Numbered::Quietly(None);
        self.session.check_in(0)?;
        stats::sent();
        // Sent though the context may have been lost just now: its memory is free here.
        self.conceal(va, len, || self.session.submit(numbered, context, &unmap))
            .map(drop)
    }

    pub(crate) fn release(&self, base: u64) -> Done {
        self.release_if(|kind| kind == AllocationKind::Plain, base)
    }

    /// Frees memory of a graph. Memory that has its address since it went is left alone.
    pub(crate) fn release_of_graph(&self, base: u64) -> Done {
        self.release_if(|kind| kind == AllocationKind::Graph, base)
    }

    #[inline]
    fn release_if(&self, is_of: impl Fn(AllocationKind) -> bool, base: u64) -> Done {
        // The lock is held until the message is sent, so that memory is unmapped before its
        // addresses are reused.
        let mut memory = self.memory.lock();
        let owner = || memory.find(base).map_or(0, |found| found.context.0 as u64);
        self.session.check_of(owner)?;
        let (allocation, chunk) = memory.free_if(is_of, base, self.session.progress.mark())?;
        match chunk {
            Some(chunk) => self.unmap(allocation.context.0 as u64, chunk),
            None => Ok(()),
        }
    }
}

/// `CU_STREAM_WAIT_VALUE_*`: the comparison (2 bits), and whether to flush remote writes.
pub(crate) const WAIT_VALUE_FLAGS: u32 = 3 | 1 << 30;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`
pub(crate) const WRITE_VALUE_FLAGS: u32 = 1;

/// Checks a word that a stream writes or waits for: its alignment and the flags. A word that is
/// written lets work go that may read what the program wrote to mirrors before.
pub(crate) fn check_word(address: CUdeviceptr, bytes: u64, flags: u32, known: u32) -> Done {
    match address.is_multiple_of(bytes) && flags & !known == 0 {
        true if known == WRITE_VALUE_FLAGS => driver()?.push_visible(),
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

impl Driver {
    /// Checks a memset as the driver does at the call: aligned, within one allocation, rows that do
    /// not overlap. Returns the kind of memory, or nothing if there is nothing to set.
    #[inline]
    pub(crate) fn check_memset(
        &self,
        address: CUdeviceptr,
        element: u64,
        pitch: u64,
        [width, height]: [u64; 2],
        stream: Option<CUstream>,
    ) -> Result<Option<MemoryKind>, CUresult> {
        if width == 0 || height == 0 {
            return self.contexts.current().map(|_| None);
        }
        // Without a context, that is the error. It is determined last, since every memset passes
        // here.
        let wrong = |error| self.contexts.current().err().unwrap_or(error);
        let row = width.checked_mul(element);
        let bytes = match height {
            1 => row,
            _ => row
                .filter(|row| pitch >= *row && pitch.is_multiple_of(element))
                .and_then(|row| pitch.checked_mul(height - 1)?.checked_add(row)),
        };
        let bytes = bytes
            .filter(|_| address.is_multiple_of(element))
            .ok_or_else(|| wrong(CUresult::CUDA_ERROR_INVALID_VALUE))?;
        let refused = match self.memory_kind(address, bytes) {
            Ok(MemoryKind::Device) => {
                self.keep_pace_of_memset(stream)?;
                return Ok(Some(MemoryKind::Device));
            }
            Ok(kind @ (MemoryKind::Shared | MemoryKind::Pinned)) => {
                return self.device_address(address).map(|_| Some(kind));
            }
            Ok(MemoryKind::Pageable) => wrong(CUresult::CUDA_ERROR_INVALID_VALUE),
            Err(error) => wrong(error),
        };
        self.take_while_captured(stream, refused)
    }

    /// Accepts any address in a captured memset: cuDNN captures memsets that it never runs.
    #[cold]
    #[inline(never)]
    fn take_while_captured(
        &self,
        stream: Option<CUstream>,
        refused: CUresult,
    ) -> Result<Option<MemoryKind>, CUresult> {
        let stream = stream.ok_or(refused)?;
        match self.capture_of(&*self.stream(stream)?) {
            Some(capture) if !capture.is_spoiled() => Ok(Some(MemoryKind::Device)),
            _ => Err(refused),
        }
    }

    /// Ends a memset without a stream: one of host memory returns only when it is done (CUDA's
    /// "API synchronization behavior").
    #[inline]
    pub(crate) fn end_memset(&self, memory: MemoryKind) -> Done {
        match memory {
            MemoryKind::Device => Ok(()),
            _ => self.synchronize_stream(&*self.stream(CUstream::NULL)?),
        }
    }
}

pub(crate) unsafe fn cuMemAlloc_v2(address: Out<'_, CUdeviceptr>, bytes: usize) -> Done {
    let driver = driver()?;
    driver.contexts.current()?;
    address.check()?;
    let base = driver.allocate(bytes as u64, AllocationKind::Plain)?;
    address.put(base)
}

pub(crate) unsafe fn cuMemAllocPitch_v2(
    address: Out<'_, CUdeviceptr>,
    pitch: Out<'_, usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Done {
    /// Alignment of rows by `cuMemAllocPitch` of a real driver, in bytes.
    const PITCH_BYTES: usize = 512;
    if address.is_null()
        || pitch.is_null()
        || width == 0
        || height == 0
        || !matches!(element, 4 | 8 | 16)
    {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let row = width
        .checked_next_multiple_of(PITCH_BYTES)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let bytes = row
        .checked_mul(height)
        .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let base = driver()?.allocate(bytes as u64, AllocationKind::Plain)?;
    pitch.put(row)?;
    address.put(base)
}

pub(crate) unsafe fn cuMemFree_v2(address: CUdeviceptr) -> Done {
    let driver = driver()?;
    if address == 0 {
        return Ok(());
    }
    let kind = driver
        .memory
        .lock()
        .find(address)
        .filter(|a| a.base == address)
        .map(|a| a.kind);
    driver.free_after_work(|| match kind {
        Some(AllocationKind::Pool(pool)) => driver.pool_free_now(address, pool),
        Some(AllocationKind::Graph) => driver.graph_free(address),
        Some(AllocationKind::Imported(pool)) => driver.free_imported(address, pool),
        None if driver.is_managed(address) => driver.free_managed(address),
        _ => driver.release(address),
    })
}

pub(crate) fn cuMemGetInfo_v2(free: Out<'_, usize>, total: Out<'_, usize>) -> Done {
    let driver = driver()?;
    let device = driver.contexts.current()?.device;
    free.put_optional(driver.memory.lock().free_bytes(device) as usize);
    total.put_optional(driver.card(device)?.memory_bytes as usize);
    Ok(())
}

pub(crate) unsafe fn cuMemGetAddressRange_v2(
    base: Out<'_, CUdeviceptr>,
    bytes: Out<'_, usize>,
    address: CUdeviceptr,
) -> Done {
    let driver = driver()?;
    driver.contexts.current()?;
    let found = look_up(driver, address)?.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    base.put_optional(found.base);
    bytes.put_optional(found.bytes as usize);
    Ok(())
}

/// The facts known about a pointer.
struct Pointer {
    context: CUcontext,
    device: i32,
    host: bool,
    managed: bool,
    base: u64,
    bytes: u64,
    number: u64,
    mapped: bool,
    pool: u64,
    /// Whether `cuIpcGetMemHandle` accepts it.
    has_old_handle: bool,
}

impl Driver {
    /// Returns the kinds of handles that memory at an address can be exported as.
    fn handle_types(&self, address: u64) -> u32 {
        let kind = self.memory.lock().find(address).map(|a| a.kind);
        match kind {
            Some(AllocationKind::Pool(pool)) => {
                let table = self.pools.lock();
                table.pools.get(&pool).map_or(0, |p| p.handle_types)
            }
            Some(AllocationKind::Mapped { allocation, .. }) => {
                let table = self.virtual_memory.lock();
                table
                    .properties(allocation)
                    .map_or(0, |p| p.requested_handle_types)
            }
            _ => 0,
        }
    }
}

/// Returns what is known about a pointer. Of one that nobody here knows, the server is asked.
fn look_up(driver: &Driver, address: u64) -> Result<Option<Pointer>, CUresult> {
    match known(driver, address) {
        None if driver.learn_variable(address)? => Ok(known(driver, address)),
        found => Ok(found),
    }
}

fn known(driver: &Driver, address: u64) -> Option<Pointer> {
    if let Some(a) = driver.memory.lock().find(address) {
        let pool = match a.kind {
            AllocationKind::Pool(pool) | AllocationKind::Imported(pool) => pool,
            _ => 0,
        };
        return Some(Pointer {
            context: a.context,
            device: a.device,
            host: false,
            managed: false,
            base: a.base,
            bytes: a.bytes,
            number: a.number,
            mapped: true,
            pool,
            has_old_handle: a.kind == AllocationKind::Plain,
        });
    }
    if let Some(r) = driver.host.read().find(address) {
        let device = driver.contexts.get(r.context).map_or(0, |c| c.device);
        return Some(Pointer {
            context: r.context,
            device,
            host: true,
            managed: r.advices().is_some(),
            base: r.base,
            bytes: r.bytes,
            number: r.number | 1 << 40,
            mapped: true,
            pool: 0,
            has_old_handle: false,
        });
    }
    None
}

/// Writes one pointer attribute to `out`, with the attribute's type.
///
/// # Safety
/// `out` must be NULL or valid for a write of the attribute's type.
unsafe fn attribute(driver: &Driver, out: *mut c_void, attribute: u32, address: u64) -> Done {
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let pointer = look_up(driver, address)?.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: not NULL; the types are those that the attribute's documentation names.
    unsafe {
        match attribute {
            CU_POINTER_ATTRIBUTE_CONTEXT => out.cast::<CUcontext>().write(pointer.context),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                out.cast::<u32>()
                    .write(if pointer.host && !pointer.managed {
                        CU_MEMORYTYPE_HOST
                    } else {
                        CU_MEMORYTYPE_DEVICE
                    });
            }
            CU_POINTER_ATTRIBUTE_DEVICE_POINTER => {
                // Opens no mirror: PyTorch queries this for all pinned memory. The GPU gets access
                // when work names the memory.
                out.cast::<u64>().write(address);
            }
            CU_POINTER_ATTRIBUTE_HOST_POINTER if pointer.host => out.cast::<u64>().write(address),
            CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => out
                .cast::<u32>()
                .write(u32::from(driver.sync_memops.contains(pointer.number))),
            CU_POINTER_ATTRIBUTE_BUFFER_ID => out.cast::<u64>().write(pointer.number),
            CU_POINTER_ATTRIBUTE_IS_MANAGED => {
                out.cast::<u32>().write(u32::from(pointer.managed));
            }
            CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
                out.cast::<u32>().write(u32::from(pointer.has_old_handle));
            }
            CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => out
                .cast::<u32>()
                .write(u32::from(crate::adapter::is_there())),
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => out.cast::<i32>().write(pointer.device),
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => out.cast::<u64>().write(pointer.base),
            CU_POINTER_ATTRIBUTE_RANGE_SIZE => out.cast::<usize>().write(pointer.bytes as usize),
            CU_POINTER_ATTRIBUTE_MAPPED => out.cast::<u32>().write(u32::from(pointer.mapped)),
            CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => out
                .cast::<u64>()
                .write(u64::from(driver.handle_types(address))),
            // Read and write.
            CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => out.cast::<u32>().write(3),
            CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => out.cast::<u64>().write(pointer.pool),
            CU_POINTER_ATTRIBUTE_MAPPING_SIZE => out.cast::<usize>().write(pointer.bytes as usize),
            CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => out.cast::<u64>().write(pointer.base),
            CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => out.cast::<u64>().write(pointer.number),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuPointerGetAttribute(
    data: *mut c_void,
    which: u32,
    address: CUdeviceptr,
) -> Done {
    // SAFETY: NULL or an output of the attribute's type: the driver API asks it of its callers.
    unsafe { attribute(driver()?, data, which, address) }
}

pub(crate) unsafe fn cuPointerGetAttributes(
    count: u32,
    which: *mut u32,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> Done {
    let driver = driver()?;
    if which.is_null() || data.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let is_known = look_up(driver, address)?.is_some();
    for index in 0..count as usize {
        // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
        let (which, out) = unsafe { (*which.add(index), *data.add(index)) };
        if out.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // Unlike `cuPointerGetAttribute`, this call returns zeros for a pointer that CUDA does not
        // know.
        let written = if is_known {
            // SAFETY: the entry of `data` has the type of the attribute in `which`.
            unsafe { attribute(driver, out, which, address) }
        } else {
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        };
        if written.is_err() {
            // SAFETY: not NULL, and of the type of the attribute in `which`.
            unsafe { zero(out, which) }?;
        }
    }
    Ok(())
}

/// Writes the value of an attribute that a pointer does not have.
///
/// # Safety
/// `out` must be valid for a write of the attribute's type.
unsafe fn zero(out: *mut c_void, which: u32) -> Done {
    const DEVICE_ORDINAL_NONE: i32 = -2;
    // SAFETY: the attribute's type is the one that its documentation names.
    unsafe {
        match which {
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => out.cast::<i32>().write(DEVICE_ORDINAL_NONE),
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE
            | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
            | CU_POINTER_ATTRIBUTE_IS_MANAGED
            | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
            | CU_POINTER_ATTRIBUTE_MAPPED
            | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS
            | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => out.cast::<u32>().write(0),
            1..=CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => out.cast::<u64>().write(0),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
    Ok(())
}

/// Sets `SYNC_MEMOPS`, the only settable attribute. Copies here are at least as synchronous as it
/// requires.
pub(crate) unsafe fn cuPointerSetAttribute(
    value: *const c_void,
    which: u32,
    address: CUdeviceptr,
) -> Done {
    let driver = driver()?;
    if value.is_null() || which != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let pointer = look_up(driver, address)?.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    // SAFETY: this attribute's value is an unsigned int; not NULL, as checked above.
    let on = unsafe { value.cast::<u32>().read_unaligned() } != 0;
    let is_alive =
        |number, address| known(driver, address).is_some_and(|found| found.number == number);
    driver
        .sync_memops
        .set(pointer.number, pointer.base, on, is_alive);
    Ok(())
}
