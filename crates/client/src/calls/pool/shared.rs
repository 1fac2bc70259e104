//! Pools of other processes. A pool travels as a descriptor, and its blocks as records with their
//! location.

use std::{
    ffi::{c_int, c_void},
    os::fd::IntoRawFd,
};

use outboard_api::{
    CUresult,
    cuda::{CUdevice, CUdeviceptr, CUmemoryPool},
    enums::*,
};

use super::{Done, In, Out, Untyped};
use crate::{
    calls::{
        foreign_block::{BLOCK_BYTES, ForeignBlock, TICKET_BYTES},
        shareable::{POOL_MARK, borrowed, descriptor, ticket_of},
    },
    log,
    state::{AllocationKind, Driver, POOL_ID_BYTES, Pool, PoolId, driver},
};

const RECORD_MARK: [u8; 4] = *b"OBPP";
const RECORD_BYTES: usize = RECORD_MARK.len() + POOL_ID_BYTES + BLOCK_BYTES;
const _: () = assert!(RECORD_BYTES == 64);

fn record_of(pool: &PoolId, block: &ForeignBlock) -> Vec<u8> {
    [&RECORD_MARK[..], pool, &block.write()].concat()
}

/// Reads a record that another process made. Nothing in it is to be trusted.
fn block_of(record: &[u8; RECORD_BYTES]) -> Option<(PoolId, ForeignBlock)> {
    let rest = record.strip_prefix(&RECORD_MARK)?;
    let (pool, rest) = rest.split_first_chunk::<POOL_ID_BYTES>()?;
    Some((*pool, ForeignBlock::read(rest.first_chunk()?)?))
}

/// Returns a number that no other pool has.
fn fresh_id() -> Result<PoolId, CUresult> {
    let mut id = [0; POOL_ID_BYTES];
    // SAFETY: `id` has `id.len()` bytes.
    let got = unsafe { libc::getrandom(id.as_mut_ptr().cast(), id.len(), 0) };
    match usize::try_from(got) {
        Ok(POOL_ID_BYTES) => Ok(id),
        _ => Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM),
    }
}

/// Refuses kinds other than descriptors, the only form in which pools travel.
fn check_kind(call: &str, kind: u32, flags: u64) -> Done {
    if flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        log::warn(format_args!(
            "{call}: only POSIX file descriptors are supported"
        ));
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(())
}

pub(crate) fn cuMemPoolExportToShareableHandle(
    Untyped(shareable): Untyped<Out<'_, c_int>>,
    pool: CUmemoryPool,
    kind: u32,
    flags: u64,
) -> Done {
    let driver = driver()?;
    shareable.check()?;
    check_kind("cuMemPoolExportToShareableHandle", kind, flags)?;
    let (id, device) = {
        let mut table = driver.pools.lock();
        let pool = table.get(pool.0 as u64)?;
        if pool.handle_types & kind == 0 || pool.is_imported {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let id = match pool.id {
            Some(id) => id,
            None => *pool.id.insert(fresh_id()?),
        };
        (id, driver.devices.server(pool.device)?)
    };
    let mut ticket = [0; TICKET_BYTES];
    ticket[..POOL_ID_BYTES].copy_from_slice(&id);
    ticket[POOL_ID_BYTES..][..4].copy_from_slice(&device.to_ne_bytes());
    let (theirs, _) = descriptor(POOL_MARK, &ticket).map_err(|error| {
        log::warn(format_args!(
            "cuMemPoolExportToShareableHandle: a pair of sockets: {error}"
        ));
        CUresult::CUDA_ERROR_OPERATING_SYSTEM
    })?;
    shareable.put(theirs.into_raw_fd())
}

pub(crate) unsafe fn cuMemPoolImportFromShareableHandle(
    pool: Out<'_, CUmemoryPool>,
    os_handle: *mut c_void,
    kind: u32,
    flags: u64,
) -> Done {
    let driver = driver()?;
    pool.check()?;
    check_kind("cuMemPoolImportFromShareableHandle", kind, flags)?;
    // SAFETY: the program keeps a descriptor open until the call that it passes it to returns.
    let descriptor = unsafe { borrowed(os_handle)? };
    let ticket = ticket_of(POOL_MARK, descriptor).ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    let (id, rest) = ticket
        .split_first_chunk::<POOL_ID_BYTES>()
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let number = rest.first_chunk().map_or(0, |b| u32::from_ne_bytes(*b));
    let device = driver.devices.client(number)?;
    let handle = driver.mint_pool_handle();
    let imported = Pool::imported(device, *id);
    driver.pools.lock().pools.insert(handle, imported);
    pool.put(CUmemoryPool(handle as usize))
}

pub(crate) fn cuMemPoolExportPointer(
    Untyped(data): Untyped<Out<'_, [u8; RECORD_BYTES]>>,
    address: CUdeviceptr,
) -> Done {
    let driver = driver()?;
    data.check()?;
    let found = driver.memory.lock().find(address).copied();
    let block = found
        .filter(|block| block.base == address)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let AllocationKind::Pool(handle) = block.kind else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    let (id, device) = {
        let mut table = driver.pools.lock();
        let pool = table.get(handle)?;
        let shares = pool.handle_types != CU_MEM_HANDLE_TYPE_NONE;
        let id = match (pool.id, shares) {
            (Some(id), _) => id,
            (None, true) => *pool.id.insert(fresh_id()?),
            (None, false) => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        (id, pool.device)
    };
    let context = driver.context_of_device(device)?;
    let block = driver.export_block(context, block.base, block.bytes)?;
    let record = record_of(&id, &block);
    let record = <[u8; RECORD_BYTES]>::try_from(record);
    let record = record.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
    data.put(record)
}

impl Driver {
    /// Returns a context of a device in the form of messages: the current one if the program does
    /// not see the device.
    fn context_near(&self, device: CUdevice) -> Result<u64, CUresult> {
        self.context_of_device(device)
            .or_else(|_| Ok(self.contexts.current()?.handle.0 as u64))
    }

    /// Frees a block of another process's pool. This process's use ends in the order of the
    /// messages.
    pub(crate) fn free_imported(&self, address: u64, handle: u64) -> Done {
        let mut table = self.pools.lock();
        let pool = table
            .pools
            .get_mut(&handle)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let chunk = pool
            .imports
            .remove(&address)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let context = self.context_near(pool.device)?;
        // The lock is held until the message is sent, so that memory is unmapped before its
        // addresses are reused.
        let mut memory = self.memory.lock();
        memory.disown(address);
        memory.give_addresses(chunk);
        self.unmap(context, chunk)
    }
}

pub(crate) fn cuMemPoolImportPointer(
    address: Out<'_, CUdeviceptr>,
    pool: CUmemoryPool,
    Untyped(data): Untyped<In<'_, [u8; RECORD_BYTES]>>,
) -> Done {
    let driver = driver()?;
    address.check()?;
    let record = data.get()?;
    let (id, block) = block_of(&record).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let handle = pool.0 as u64;
    let mut table = driver.pools.lock();
    let pool = table.get(handle)?;
    if !pool.is_imported || pool.id != Some(id) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let device = pool.device;
    let context = match driver.primary_context(device) {
        Ok(context) => context,
        Err(_) => driver.contexts.current()?.handle,
    };
    let chunk = driver.map_block(driver.context_near(device)?, &block, 1)?.0;
    let base = chunk.base + block.offset;
    pool.imports.insert(base, chunk);
    driver.memory.lock().adopt(
        base,
        block.bytes,
        context,
        device,
        AllocationKind::Imported(handle),
    );
    address.put(base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::foreign_block::BLOCK;

    #[test]
    fn a_record_says_where_a_block_lies_and_is_marked() {
        let record = record_of(&[3; POOL_ID_BYTES], &BLOCK);
        let record: [u8; RECORD_BYTES] = record.try_into().expect("its length");
        assert_eq!(block_of(&record), Some(([3; POOL_ID_BYTES], BLOCK)));
        assert_eq!(block_of(&[0; RECORD_BYTES]), None);
    }
}
