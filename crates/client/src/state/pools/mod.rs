//! Memory pools: device memory allocated and freed in stream order.
//!
//! A pool takes chunks of device memory from the server and allocates blocks from them by itself. A
//! block freed in a stream can be reused at once in the same stream, whose order keeps the old use
//! before the new one. Any other stream gets it only after the free is known to be complete: after
//! the end of a wait for the free's stream, or for its whole context, that began after the free.
//!
//! To know that, frees are numbered. A wait notes the number of the next free before it asks the
//! server. When the reply has arrived, all frees with lower numbers in the streams waited for are
//! complete.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice},
    enums::*,
};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;

use super::device_memory::{CHUNK_BYTES, Chunk};
use crate::session::Group;

/// Smallest chunk that a pool takes from the server, in bytes.
pub(crate) const POOL_CHUNK_BYTES: u64 = 32 << 20;
/// Alignment and granularity of blocks, in bytes.
const BLOCK_ALIGN_BYTES: u64 = 512;

/// The stream in which a block was freed. The legacy stream of every context is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    pub(crate) context: usize,
    pub(crate) stream: u64,
}

/// The work that a wait was for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scope {
    Stream(Owner),
    Context(CUcontext),
}

impl Scope {
    fn covers(&self, owner: &Owner) -> bool {
        match self {
            Scope::Stream(stream) => stream == owner,
            Scope::Context(context) => context.0 == owner.context,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct FreeBlock {
    bytes: u64,
    /// The stream that alone may reuse it so far, and the number of its last free. `None`: any
    /// stream may.
    pending: Option<(Owner, u64)>,
}

pub(crate) struct Pool {
    pub(crate) device: CUdevice,
    /// Most bytes that the program allows; `u64::MAX` by default.
    bytes_max: u64,
    chunks: BTreeMap<u64, u64>,
    free: BTreeMap<u64, FreeBlock>,
    /// The free blocks by owner and size.
    by_size: BTreeMap<Option<Owner>, BTreeSet<(u64, u64)>>,
    live: FxHashMap<u64, u64>,
    /// `cuMemPoolDestroy` was called: the pool is removed with its last block.
    pub(crate) destroyed: bool,
    release_threshold: u64,
    reuse: [u32; 3],
    reserved: u64,
    reserved_high: u64,
    used: u64,
    used_high: u64,
    /// Access of other devices, if it was set.
    pub(crate) access: FxHashMap<CUdevice, u32>,
    /// The kinds of handles that it may be exported as.
    pub(crate) handle_types: u32,
    /// Its number in all processes, once it was exported or imported.
    pub(crate) id: Option<PoolId>,
    /// A pool of another process: nothing is allocated from it here.
    pub(crate) is_imported: bool,
    /// The memory that contains each of its blocks here, by the block's address.
    pub(crate) imports: FxHashMap<u64, Chunk>,
}

pub(crate) const POOL_ID_BYTES: usize = 12;
/// A random number that names a pool in all processes.
pub(crate) type PoolId = [u8; POOL_ID_BYTES];

impl Pool {
    pub(crate) fn new(device: CUdevice, bytes_max: u64) -> Pool {
        Pool {
            device,
            bytes_max: if bytes_max == 0 { u64::MAX } else { bytes_max },
            chunks: BTreeMap::new(),
            free: BTreeMap::new(),
            by_size: BTreeMap::new(),
            live: FxHashMap::default(),
            destroyed: false,
            release_threshold: 0,
            reuse: [1; 3],
            reserved: 0,
            reserved_high: 0,
            used: 0,
            used_high: 0,
            access: FxHashMap::default(),
            handle_types: CU_MEM_HANDLE_TYPE_NONE,
            id: None,
            is_imported: false,
            imports: FxHashMap::default(),
        }
    }

    /// Creates a pool of another process.
    pub(crate) fn imported(device: CUdevice, id: PoolId) -> Pool {
        Pool {
            id: Some(id),
            is_imported: true,
            handle_types: CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            ..Pool::new(device, 0)
        }
    }

    /// Returns the bytes that a block of this size takes.
    pub(crate) fn block_bytes(bytes: u64) -> Result<u64, CUresult> {
        match bytes {
            0 => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            _ => bytes
                .checked_next_multiple_of(BLOCK_ALIGN_BYTES)
                .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    /// Returns the chunk sizes to try for a block that no free block can hold, best first.
    pub(crate) fn chunk_sizes(&self, block_bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let least = block_bytes.checked_next_multiple_of(CHUNK_BYTES);
        let room = self.bytes_max - self.reserved.min(self.bytes_max);
        let sizes = [
            least.map(|l| l.max(POOL_CHUNK_BYTES)),
            least.filter(|l| *l < POOL_CHUNK_BYTES),
        ];
        sizes
            .into_iter()
            .flatten()
            .filter(move |bytes| *bytes <= room)
    }

    pub(crate) fn add_chunk(&mut self, chunk: Chunk) {
        self.chunks.insert(chunk.base, chunk.bytes);
        self.reserved += chunk.bytes;
        self.reserved_high = self.reserved_high.max(self.reserved);
        self.insert_free(
            chunk.base,
            FreeBlock {
                bytes: chunk.bytes,
                pending: None,
            },
        );
    }

    /// Allocates a block for use in a stream: first from blocks that the stream itself freed, then
    /// from those any stream may use.
    pub(crate) fn take(&mut self, bytes: u64, stream: Owner) -> Option<u64> {
        let fits = |set: Option<&BTreeSet<(u64, u64)>>| {
            set.and_then(|s| s.range((bytes, 0)..).next().copied())
        };
        let (found, base) =
            fits(self.by_size.get(&Some(stream))).or_else(|| fits(self.by_size.get(&None)))?;
        let block = self.remove_free(base)?;
        if found > bytes {
            self.insert_free(
                base + bytes,
                FreeBlock {
                    bytes: found - bytes,
                    pending: block.pending,
                },
            );
        }
        self.live.insert(base, bytes);
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        Some(base)
    }

    /// Frees a block. `pending` is the stream and the number of the free; `None` if all use is
    /// over.
    pub(crate) fn give(&mut self, base: u64, pending: Option<(Owner, u64)>) -> Option<()> {
        let bytes = self.live.remove(&base)?;
        self.used -= bytes;
        self.coalesce(base, FreeBlock { bytes, pending });
        Some(())
    }

    /// Notes the end of a wait: blocks in its scope that were freed before it began may be used by
    /// any stream.
    pub(crate) fn complete(&mut self, scope: Scope, before: u64) {
        let done: Vec<u64> = self
            .by_size
            .iter()
            .filter(|(owner, _)| owner.is_some_and(|o| scope.covers(&o)))
            .flat_map(|(_, set)| set.iter().map(|(_, base)| *base))
            .filter(|base| {
                self.free
                    .get(base)
                    .and_then(|b| b.pending)
                    .is_some_and(|(_, number)| number < before)
            })
            .collect();
        for base in done {
            // A block handled before may have absorbed it.
            if let Some(block) = self.remove_free(base) {
                self.coalesce(
                    base,
                    FreeBlock {
                        bytes: block.bytes,
                        pending: None,
                    },
                );
            }
        }
    }

    /// Releases chunks without a used or pending block, until at most `keep` bytes are reserved.
    /// The server must unmap them.
    pub(crate) fn release_above(&mut self, keep: u64) -> Vec<Chunk> {
        let mut released = Vec::new();
        if self.reserved <= keep {
            return released;
        }
        let idle = |(base, bytes): (&u64, &u64)| {
            let free = self.free.get(base)?;
            (free.pending.is_none() && free.bytes == *bytes).then_some(Chunk {
                base: *base,
                bytes: *bytes,
            })
        };
        let candidates: Vec<Chunk> = self.chunks.iter().filter_map(idle).collect();
        for chunk in candidates {
            if self.reserved <= keep {
                break;
            }
            self.remove_free(chunk.base);
            self.chunks.remove(&chunk.base);
            self.reserved -= chunk.bytes;
            released.push(chunk);
        }
        released
    }

    /// Releases the chunks that a wait releases.
    pub(crate) fn release_after_wait(&mut self) -> Vec<Chunk> {
        let keep = if self.destroyed {
            0
        } else {
            self.release_threshold
        };
        self.release_above(keep)
    }

    /// Releases everything: its device's primary context is gone.
    pub(crate) fn clear(&mut self) -> Vec<Chunk> {
        let chunks = self
            .chunks
            .iter()
            .map(|(base, bytes)| Chunk {
                base: *base,
                bytes: *bytes,
            })
            .collect();
        self.chunks.clear();
        self.free.clear();
        self.by_size.clear();
        self.live.clear();
        (self.reserved, self.used) = (0, 0);
        chunks
    }

    /// Returns whether a destroyed pool can be removed.
    pub(crate) fn is_over(&self) -> bool {
        self.destroyed && self.chunks.is_empty() && self.imports.is_empty()
    }

    /// Returns the streams with frees not known to be complete, of blocks at least this large.
    pub(crate) fn pending_owners(&self, bytes: u64) -> Vec<Owner> {
        let large = |(owner, set): (&Option<Owner>, &BTreeSet<(u64, u64)>)| {
            owner.filter(|_| set.range((bytes, 0)..).next().is_some())
        };
        self.by_size.iter().filter_map(large).collect()
    }

    fn coalesce(&mut self, mut base: u64, mut block: FreeBlock) {
        let Some((&chunk, &chunk_bytes)) = self.chunks.range(..=base).next_back() else {
            return;
        };
        let owner = |b: &FreeBlock| b.pending.map(|(o, _)| o);
        let before = self
            .free
            .range(chunk..base)
            .next_back()
            .map(|(start, b)| (*start, *b));
        if let Some((start, b)) =
            before.filter(|(start, b)| start + b.bytes == base && owner(b) == owner(&block))
        {
            self.remove_free(start);
            (base, block) = (start, merged(b, block));
        }
        let after = self.free.get(&(base + block.bytes)).copied();
        if let Some(b) =
            after.filter(|b| base + block.bytes < chunk + chunk_bytes && owner(b) == owner(&block))
        {
            self.remove_free(base + block.bytes);
            block = merged(block, b);
        }
        self.insert_free(base, block);
    }

    fn insert_free(&mut self, base: u64, block: FreeBlock) {
        self.by_size
            .entry(block.pending.map(|(o, _)| o))
            .or_default()
            .insert((block.bytes, base));
        self.free.insert(base, block);
    }

    fn remove_free(&mut self, base: u64) -> Option<FreeBlock> {
        let block = self.free.remove(&base)?;
        let owner = block.pending.map(|(o, _)| o);
        if let Some(set) = self.by_size.get_mut(&owner) {
            set.remove(&(block.bytes, base));
            if set.is_empty() {
                self.by_size.remove(&owner);
            }
        }
        Some(block)
    }

    /// `cuMemPoolGetAttribute`: a value of 4 bytes for the reuse policies, of 8 otherwise.
    pub(crate) fn attribute(&self, attribute: u32) -> Result<PoolValue, CUresult> {
        Ok(match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
                ..=CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                PoolValue::Int(self.reuse[attribute as usize - 1])
            }
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => PoolValue::Long(self.release_threshold),
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => PoolValue::Long(self.reserved),
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => PoolValue::Long(self.reserved_high),
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => PoolValue::Long(self.used),
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => PoolValue::Long(self.used_high),
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        })
    }

    /// `cuMemPoolSetAttribute`. Reuse policies only permit more reuse than happens here, so they
    /// are just stored.
    pub(crate) fn set_attribute(
        &mut self,
        attribute: u32,
        read: impl Fn(bool) -> u64,
    ) -> Result<(), CUresult> {
        match attribute {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
                ..=CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                self.reuse[attribute as usize - 1] = u32::from(read(false) != 0);
            }
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => self.release_threshold = read(true),
            // High-water marks can be reset to the present values.
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if read(true) == 0 => {
                self.reserved_high = self.reserved
            }
            CU_MEMPOOL_ATTR_USED_MEM_HIGH if read(true) == 0 => self.used_high = self.used,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
        Ok(())
    }
}

fn merged(a: FreeBlock, b: FreeBlock) -> FreeBlock {
    let pending = match (a.pending, b.pending) {
        (Some((owner, first)), Some((_, second))) => Some((owner, first.max(second))),
        _ => None,
    };
    FreeBlock {
        bytes: a.bytes + b.bytes,
        pending,
    }
}

/// The value of a pool's attribute, by its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PoolValue {
    Int(u32),
    Long(u64),
}

/// All pools of the process.
#[derive(Default)]
pub(crate) struct Pools {
    table: Mutex<PoolTable>,
    /// Number of the next free.
    next_free: AtomicU64,
    /// Whether there ever was a pool; without one, waits skip the table.
    used: AtomicBool,
}

#[derive(Default)]
pub(crate) struct PoolTable {
    pub(crate) pools: FxHashMap<u64, Pool>,
    pub(crate) default_of: FxHashMap<CUdevice, u64>,
    pub(crate) current_of: FxHashMap<CUdevice, u64>,
    /// Pending queries whether frees are complete: the number below which they prove frees
    /// complete, and the reply.
    pub(crate) asked: FxHashMap<Owner, (u64, Arc<Group>)>,
}

impl Pools {
    pub(crate) fn lock(&self) -> MutexGuard<'_, PoolTable> {
        self.used.store(true, Ordering::Release);
        self.table.lock()
    }

    pub(crate) fn in_use(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Returns a mark before a wait begins: frees with lower numbers come before it.
    pub(crate) fn mark(&self) -> u64 {
        self.next_free.load(Ordering::Acquire)
    }

    /// Returns the number of a free. Taken after everything that used the block was sent.
    pub(crate) fn number_free(&self) -> u64 {
        self.next_free.fetch_add(1, Ordering::AcqRel)
    }
}

impl PoolTable {
    /// Returns the default pool of a device, created at its first use.
    pub(crate) fn default_pool(&mut self, device: CUdevice, mint: impl FnOnce() -> u64) -> u64 {
        if let Some(handle) = self.default_of.get(&device) {
            return *handle;
        }
        let handle = mint();
        self.pools.insert(handle, Pool::new(device, 0));
        self.default_of.insert(device, handle);
        handle
    }

    pub(crate) fn current_pool(&mut self, device: CUdevice, mint: impl FnOnce() -> u64) -> u64 {
        match self.current_of.get(&device) {
            Some(handle) => *handle,
            None => self.default_pool(device, mint),
        }
    }

    /// Returns a pool that the program may still use.
    pub(crate) fn get(&mut self, handle: u64) -> Result<&mut Pool, CUresult> {
        self.pools
            .get_mut(&handle)
            .filter(|p| !p.destroyed)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}
