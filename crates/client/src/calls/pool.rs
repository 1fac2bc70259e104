//! Stream-ordered allocation from memory pools, kept wholly in the client (`state/pools.rs`). The server only maps chunks.
//! What programs do with pools themselves is in `properties`.

mod properties;
mod shared;

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice, CUdeviceptr, CUmemoryPool, CUstream},
};
use outboard_wire::messages;

pub(crate) use self::{properties::*, shared::*};
use super::{Done, put};
use crate::{
    session::{Group, Sink},
    state::{
        AllocationKind, Chunk, Driver, Kind, Owner, Pool, PoolTable, Scope, StreamRef, driver,
        wire_context,
    },
};

fn owner_of(stream: &StreamRef) -> Owner {
    Owner {
        context: stream.stream().context.0,
        stream: stream.stream().handle,
    }
}

impl Driver {
    fn mint_pool_handle(&self) -> u64 {
        self.handles.mint(Kind::Pool)
    }

    /// Taken before a wait; passed to `pools_waited` when it has ended.
    pub(crate) fn pools_mark(&self) -> u64 {
        self.pools.mark()
    }

    /// A wait that began at `mark` has ended: frees before it are complete, and pools give back what is above their
    /// release threshold.
    pub(crate) fn pools_waited_for_stream(&self, stream: &StreamRef, mark: u64) {
        self.pools_waited(Scope::Stream(owner_of(stream)), mark);
    }

    pub(crate) fn pools_waited_for_context(&self, context: CUcontext, mark: u64) {
        self.pools_waited(Scope::Context(context), mark);
    }

    fn pools_waited(&self, scope: Scope, mark: u64) {
        if !self.pools.in_use() {
            return;
        }
        let mut table = self.pools.lock();
        for pool in table.pools.values_mut() {
            pool.complete(scope, mark);
            let released = pool.release_after_wait();
            let device = pool.device;
            self.unmap_chunks(device, &released);
        }
        table.pools.retain(|_, p| !p.is_over());
    }

    /// The device's primary context is gone, and with it all that lay in its pools.
    pub(crate) fn pools_reset(&self, device: CUdevice) -> Vec<Chunk> {
        if !self.pools.in_use() {
            return Vec::new();
        }
        let mut table = self.pools.lock();
        let mut chunks = Vec::new();
        for pool in table.pools.values_mut().filter(|p| p.device == device) {
            chunks.extend(pool.clear());
        }
        table.pools.retain(|_, p| !p.is_over());
        let mut memory = self.memory.lock();
        for chunk in &chunks {
            for block in memory.within(chunk.base, chunk.bytes) {
                memory.disown(block.base);
            }
            memory.give_chunk(*chunk, device);
        }
        chunks
    }

    fn pool_allocate(
        &self,
        bytes: u64,
        pool: Option<u64>,
        stream: &StreamRef,
    ) -> Result<u64, CUresult> {
        self.session.check()?;
        let owner = owner_of(stream);
        let device = self.contexts.get(CUcontext(owner.context))?.device;
        let block_bytes = Pool::block_bytes(bytes)?;
        let mut table = self.pools.lock();
        let handle = match pool {
            Some(handle) => handle,
            None => table.current_pool(device, || self.mint_pool_handle()),
        };
        if table.get(handle)?.is_imported {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let base = self.pool_block(&mut table, handle, block_bytes, owner)?;
        let device = table.get(handle)?.device;
        let context = self.primary_context(device)?;
        self.memory
            .lock()
            .adopt(base, bytes, context, device, AllocationKind::Pool(handle));
        Ok(base)
    }

    fn pool_block(
        &self,
        table: &mut PoolTable,
        handle: u64,
        bytes: u64,
        owner: Owner,
    ) -> Result<u64, CUresult> {
        if let Some(base) = table.get(handle)?.take(bytes, owner) {
            return Ok(base);
        }
        // Other streams may have finished with what they freed: looked at without waiting, asked for the next time.
        self.look_at_frees(table, handle, bytes)?;
        if let Some(base) = table.get(handle)?.take(bytes, owner) {
            return Ok(base);
        }
        match self.grow(table, handle, bytes, owner) {
            // Before memory is refused, all that was freed is waited for.
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                self.reclaim(table)?;
                match table.get(handle)?.take(bytes, owner) {
                    Some(base) => Ok(base),
                    None => self.grow(table, handle, bytes, owner),
                }
            }
            grown => grown,
        }
    }

    /// A chunk more, and the block out of it.
    fn grow(
        &self,
        table: &mut PoolTable,
        handle: u64,
        bytes: u64,
        owner: Owner,
    ) -> Result<u64, CUresult> {
        let pool = table.get(handle)?;
        let device = pool.device;
        let context = self.context_of_device(device)?;
        for chunk_bytes in pool.chunk_sizes(bytes) {
            let mut memory = self.memory.lock();
            let Ok(chunk) = memory.take_chunk(chunk_bytes, device) else {
                continue;
            };
            let mapped = self.submit_quietly(
                context,
                &messages::MemMap {
                    va: chunk.base,
                    len: chunk.bytes,
                },
            );
            if let Err(error) = mapped {
                memory.give_chunk(chunk, device);
                return Err(error);
            }
            drop(memory);
            pool.add_chunk(chunk);
            return pool.take(bytes, owner).ok_or(CUresult::CUDA_ERROR_UNKNOWN);
        }
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Asks the server, without waiting, whether streams are done with blocks that they freed; uses earlier answers.
    fn look_at_frees(&self, table: &mut PoolTable, handle: u64, bytes: u64) -> Done {
        let owners = table.get(handle)?.pending_owners(bytes);
        if owners.is_empty() {
            return Ok(());
        }
        self.session.poll();
        for owner in owners {
            match table.asked.get(&owner) {
                Some((mark, group)) if group.is_complete() => {
                    let (mark, succeeded) = (*mark, group.take().is_ok());
                    table.asked.remove(&owner);
                    if succeeded {
                        for pool in table.pools.values_mut() {
                            pool.complete(Scope::Stream(owner), mark);
                        }
                    }
                }
                Some(_) => {}
                None => {
                    let mark = self.pools.mark();
                    if let Some(group) = self.ask_stream(owner)? {
                        table.asked.insert(owner, (mark, group));
                    }
                }
            }
        }
        Ok(())
    }

    /// A question whether all that a stream was given is done; `None` where the stream is gone.
    fn ask_stream(&self, owner: Owner) -> Result<Option<std::sync::Arc<Group>>, CUresult> {
        let gone = owner.stream != 0 && self.streams.get(owner.stream).is_none();
        if gone || self.contexts.get(CUcontext(owner.context)).is_err() {
            return Ok(None);
        }
        let group = Group::new(1);
        self.session.ask(
            owner.context as u64,
            &messages::FenceStream {
                stream: owner.stream,
                slot: 0,
                value: 0,
            },
            &group,
            Sink::Group,
        )?;
        Ok(Some(group))
    }

    /// Waits until every free is complete, and gives back all that pools hold without use.
    fn reclaim(&self, table: &mut PoolTable) -> Done {
        let mark = self.pools.mark();
        let mut contexts: Vec<usize> = table
            .pools
            .values()
            .flat_map(|p| p.pending_owners(0))
            .map(|o| o.context)
            .collect();
        contexts.sort_unstable();
        contexts.dedup();
        for context in contexts {
            let context = CUcontext(context);
            // Where the context is gone its work is over.
            if self.contexts.get(context).is_ok() {
                let group = Group::new(1);
                self.session.ask(
                    context.0 as u64,
                    &messages::FenceContext { slot: 0, value: 0 },
                    &group,
                    Sink::Group,
                )?;
                self.session.wait(&group)?;
            }
            for pool in table.pools.values_mut() {
                pool.complete(Scope::Context(context), mark);
            }
        }
        for pool in table.pools.values_mut() {
            let released = pool.release_above(0);
            self.unmap_chunks(pool.device, &released);
        }
        Ok(())
    }

    /// Out of memory: whether pools had any to spare.
    pub(crate) fn reclaim_pools(&self) -> bool {
        if !self.pools.in_use() {
            return false;
        }
        self.reclaim(&mut self.pools.lock()).is_ok()
    }

    fn unmap_chunks(&self, device: CUdevice, chunks: &[Chunk]) {
        if chunks.is_empty() {
            return;
        }
        let Ok(context) = self.context_of_device(device) else {
            return;
        };
        // Unmapped before anybody else can be given the addresses: the lock is held until the message is sent.
        let mut memory = self.memory.lock();
        for chunk in chunks {
            // A session that is lost has unmapped everything.
            let _ = self.unmap(context, *chunk);
            memory.give_chunk(*chunk, device);
        }
    }

    /// A context of a device, as messages name it: the current one, or the primary one.
    pub(crate) fn context_of_device(&self, device: CUdevice) -> Result<u64, CUresult> {
        match self.contexts.current() {
            Ok(current) if current.device == device => Ok(wire_context()),
            _ => {
                let primary = self.contexts.primary(device)?;
                self.create_on_server(primary)?;
                Ok(primary.handle.0 as u64)
            }
        }
    }

    /// Takes a pool's block back. `stream`: in whose order; `None` where all use is over.
    fn pool_free(&self, base: u64, handle: u64, stream: Option<Owner>) -> Done {
        let mut table = self.pools.lock();
        let pool = table
            .pools
            .get_mut(&handle)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let pending = stream.map(|owner| (owner, self.pools.number_free()));
        pool.give(base, pending)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.memory.lock().disown(base);
        Ok(())
    }

    /// `cuMemFree` of a pool's block: all work that may use it is waited for, as on a local GPU.
    pub(crate) fn pool_free_now(&self, base: u64, handle: u64) -> Done {
        if self.contexts.current().is_ok() && !self.progress.is_idle() {
            self.synchronize_context()?;
        }
        self.pool_free(base, handle, None)?;
        // This was a wait, too: what is above the release threshold goes back. It proves nothing more about other frees.
        self.pools_waited(Scope::Context(CUcontext::NULL), 0);
        Ok(())
    }
}

pub(crate) unsafe fn cuMemAllocAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { allocate(address, bytes, None, stream) }
}

pub(crate) unsafe fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { allocate(address, bytes, Some(pool.0 as u64), stream) }
}

/// # Safety
/// `address` is NULL or valid for a write.
unsafe fn allocate(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: Option<u64>,
    stream: CUstream,
) -> Done {
    let driver = driver()?;
    if address.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let stream = driver.stream(stream)?;
    if bytes == 0 {
        // SAFETY: the caller's promise.
        return unsafe { put(address, 0) };
    }
    if stream.is_capturing() {
        // SAFETY: the caller's promise.
        return unsafe { put(address, driver.capture_allocation(&stream, bytes)?) };
    }
    // SAFETY: the caller's promise.
    unsafe { put(address, driver.pool_allocate(bytes as u64, pool, &stream)?) }
}

pub(crate) unsafe fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> Done {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    if address == 0 {
        return Ok(());
    }
    driver.session.check()?;
    if stream.is_capturing() {
        return driver.capture_free(&stream, address);
    }
    let kind = driver
        .memory
        .lock()
        .find(address)
        .filter(|a| a.base == address)
        .map(|a| a.kind);
    match kind {
        Some(AllocationKind::Pool(handle)) => {
            driver.pool_free(address, handle, Some(owner_of(&stream)))?;
            // There is something to wait for again: a wait after this must reach the server.
            stream.progress().submit();
            driver.progress.submit();
            Ok(())
        }
        Some(AllocationKind::Graph) => {
            stream.progress().submit();
            driver.progress.submit();
            driver.graph_free(address)
        }
        Some(AllocationKind::Imported(handle)) => driver.free_imported(address, handle),
        // The server lets go of memory when what was sent before is done with it.
        Some(AllocationKind::Plain) => driver.release(address),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
