//! Stream-ordered allocation from memory pools, managed by the client alone (`state/pools`). The
//! server only maps chunks. `properties` has the calls about pools themselves.

mod properties;
mod shared;

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice, CUdeviceptr, CUmemoryPool, CUstream},
};
use outboard_wire::messages;

pub(crate) use self::{properties::*, shared::*};
use super::{Done, In, Out, Untyped};
use crate::{
    session::{Group, Sink},
    state::{
        AllocationKind, Chunk, Driver, HandleKind, Owner, Pool, PoolTable, Scope, StreamRef,
        driver, wire_context,
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
        self.handles.mint(HandleKind::Pool)
    }

    /// Returns the mark to take before a wait, and to pass to `pools_waited` after it.
    pub(crate) fn pools_mark(&self) -> u64 {
        self.pools.mark()
    }

    /// Notes the end of a wait that began at `mark`. Frees before the mark are complete, and pools
    /// release the memory above their release threshold.
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

    /// Drops the pools of a device whose primary context was reset. Returns the memory that the
    /// server must unmap.
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
        // Other streams may have finished with memory that they freed. Known answers are used
        // without waiting, and new queries are sent for the next time.
        self.look_at_frees(table, handle, bytes)?;
        if let Some(base) = table.get(handle)?.take(bytes, owner) {
            return Ok(base);
        }
        match self.grow(table, handle, bytes, owner) {
            // Before an allocation fails, everything that was freed is waited for.
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

    /// Adds a chunk to a pool, and allocates the block from it.
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
            let Ok(chunk) = self.memory.lock().take_chunk(chunk_bytes, device) else {
                continue;
            };
            let mapped = self.submit_allocation(
                context,
                &messages::MemMap {
                    va: chunk.base,
                    len: chunk.bytes,
                },
            );
            match mapped {
                Ok(()) => {}
                Err(error) => {
                    self.memory.lock().give_chunk(chunk, device);
                    match error {
                        // A smaller chunk may fit.
                        CUresult::CUDA_ERROR_OUT_OF_MEMORY => continue,
                        error => return Err(error),
                    }
                }
            }
            pool.add_chunk(chunk);
            return pool.take(bytes, owner).ok_or(CUresult::CUDA_ERROR_UNKNOWN);
        }
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Asks the server, without waiting, whether streams are done with blocks that they freed. Uses
    /// earlier answers.
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

    /// Asks whether all work of a stream is done; `None` if the stream no longer exists.
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

    /// Waits until every free is complete, and releases all unused memory of pools.
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
            // If the context is gone, so is its work.
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

    /// Releases unused memory of pools after an allocation failed. Returns whether there was any.
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
        // The lock is held until the message is sent, so that memory is unmapped before its
        // addresses are reused.
        let mut memory = self.memory.lock();
        for chunk in chunks {
            // A lost session has unmapped everything.
            let _ = self.unmap(context, *chunk);
            memory.give_chunk(*chunk, device);
        }
    }

    /// Returns a context of a device in the form of messages: the current one, or the primary one.
    pub(crate) fn context_of_device(&self, device: CUdevice) -> Result<u64, CUresult> {
        match self.contexts.current() {
            Ok(current) if current.device == device => Ok(wire_context()),
            _ => {
                let primary = self.contexts.primary(device)?;
                self.retain_on_server(primary)?;
                Ok(primary.handle.0 as u64)
            }
        }
    }

    /// Frees a pool's block, in the order of `stream`, or with `None` at once, when all use is
    /// over.
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

    /// `cuMemFree` of a pool's block, once all work that may use it is done.
    pub(crate) fn pool_free_now(&self, base: u64, handle: u64) -> Done {
        self.pool_free(base, handle, None)?;
        // After this wait memory above the release threshold is released. It completes no other
        // frees.
        self.pools_waited(Scope::Context(CUcontext::NULL), 0);
        Ok(())
    }
}

pub(crate) fn cuMemAllocAsync(
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    stream: CUstream,
) -> Done {
    allocate(address, bytes, None, stream)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Done {
    allocate(address, bytes, Some(pool.0 as u64), stream)
}

fn allocate(
    address: Out<'_, CUdeviceptr>,
    bytes: usize,
    pool: Option<u64>,
    stream: CUstream,
) -> Done {
    let driver = driver()?;
    address.check()?;
    let stream = driver.stream(stream)?;
    if bytes == 0 {
        return address.put(0);
    }
    if stream.is_capturing() {
        return address.put(driver.capture_allocation(&stream, bytes)?);
    }
    address.put(driver.pool_allocate(bytes as u64, pool, &stream)?)
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
            // There is work to wait for again: a later wait must reach the server.
            driver.session.number(stream.work());
            Ok(())
        }
        Some(AllocationKind::Graph) => {
            driver.session.number(stream.work());
            driver.graph_free(address)
        }
        Some(AllocationKind::Imported(handle)) => driver.free_imported(address, handle),
        // The server unmaps the memory after the work that was sent before.
        Some(AllocationKind::Plain) => driver.release(address),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
