//! Device addresses. The client allocates them inside the window that both sides have reserved, and
//! counts them against the quota.
//!
//! Large allocations get ranges of their own. Small ones share chunks of 2 MiB, the granularity of
//! physical memory, as with the real driver. The server only knows chunks.

mod ranges;
#[cfg(test)]
mod tests;
mod window;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdevice},
    enums::{
        CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ,
        CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    },
};
use outboard_wire::handshake::ServerWelcome;

use self::{ranges::Ranges, window::Reserved};
use crate::log;

/// Size of a chunk: the granularity of physical memory, in bytes.
pub(crate) const CHUNK_BYTES: u64 = 2 << 20;
/// Largest allocation that shares a chunk.
const SMALL_BYTES_MAX: u64 = 1 << 20;
/// Alignment of allocations: cudaMalloc promises 256, the driver gives 512.
const ALIGN_BYTES: u64 = 512;

/// The devices that may use mapped memory: a bit for each, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Access {
    read: u64,
    write: u64,
}

impl Access {
    fn is_none(self) -> bool {
        self.read == 0
    }

    /// Returns `CUmemAccess_flags` of a device.
    pub(crate) fn of(self, device: CUdevice) -> u32 {
        let bit = 1_u64.checked_shl(device.unsigned_abs()).unwrap_or(0);
        match (self.read & bit != 0, self.write & bit != 0) {
            (_, true) => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            (true, false) => CU_MEM_ACCESS_FLAGS_PROT_READ,
            (false, false) => CU_MEM_ACCESS_FLAGS_PROT_NONE,
        }
    }

    pub(crate) fn set(&mut self, device: CUdevice, flags: u32) {
        let bit = 1_u64.checked_shl(device.unsigned_abs()).unwrap_or(0);
        self.read &= !bit;
        self.write &= !bit;
        if flags != CU_MEM_ACCESS_FLAGS_PROT_NONE {
            self.read |= bit;
        }
        if flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
            self.write |= bit;
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AllocationKind {
    /// `cuMemAlloc`
    Plain,
    /// `cuMemAllocAsync`, from this pool
    Pool(u64),
    /// A graph's, by one of its nodes
    Graph,
    /// An address range of `cuMemAddressReserve`
    Reserved,
    /// `cuMemMap` inside one
    Mapped { allocation: u64, access: Access },
    /// A variable of a module
    Global,
    /// `cuIpcOpenMemHandle`
    Foreign,
    /// `cuMemPoolImportPointer`, into this pool
    Imported(u64),
}

impl AllocationKind {
    /// Returns true for allocations that have memory of their own, freed with them.
    pub(crate) fn is_freed_alone(self) -> bool {
        matches!(self, AllocationKind::Plain | AllocationKind::Graph)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) context: CUcontext,
    pub(crate) device: CUdevice,
    pub(crate) kind: AllocationKind,
    /// Result of `CU_POINTER_ATTRIBUTE_BUFFER_ID`: unique in the process.
    pub(crate) number: u64,
}

impl Allocation {
    /// Returns whether the memory may be used: mapped memory may not before `cuMemSetAccess` allows
    /// it.
    pub(crate) fn may_be_used(&self) -> bool {
        !matches!(self.kind, AllocationKind::Mapped { access, .. } if access.is_none())
    }
}

/// Memory that the server must map for an allocation, or unmap after a free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

pub(crate) struct DeviceMemory {
    window: Ranges,
    window_base: u64,
    window_end: u64,
    allocations: BTreeMap<u64, Allocation>,
    reserved: BTreeMap<u64, Allocation>,
    /// Memory of modules that the server was asked about. Variables known by name lie inside it.
    of_modules: BTreeMap<u64, Allocation>,
    /// Addresses between which all allocations and memory of modules have lain so far: most host
    /// memory lies elsewhere, and is not searched for.
    extent: Range<u64>,
    small: BTreeMap<u64, SmallChunk>,
    devices: Vec<Usage>,
    next_number: u64,
    /// The server must see every allocation: [`ServerWelcome::exact_memory`].
    exact: bool,
    /// The limit of this process's addresses, if it makes the window smaller and the user has not
    /// been told.
    untold_limit: Option<u64>,
}

struct Usage {
    /// The program's number.
    device: CUdevice,
    quota: u64,
    used: u64,
}

struct SmallChunk {
    device: CUdevice,
    context: CUcontext,
    free: Ranges,
    /// Ranges freed while work that may use them was under way: mark of the work, address, bytes.
    /// Marks grow, but for threads that free at the same time.
    deferred_frees: VecDeque<(u64, u64, u64)>,
    live: usize,
}

impl SmallChunk {
    /// Reuses ranges that no work under way can use any more. A range behind one that has to wait
    /// longer waits with it, so that an allocation does not look at all of them.
    fn settle(&mut self, completed: u64) {
        while let Some(&(mark, base, bytes)) = self.deferred_frees.front()
            && mark <= completed
        {
            self.free.give(base, bytes);
            self.deferred_frees.pop_front();
        }
    }
}

/// Returns the entry whose bytes contain an address.
#[inline(always)]
fn holding(entries: &BTreeMap<u64, Allocation>, address: u64) -> Option<&Allocation> {
    let (_, entry) = entries.range(..=address).next_back()?;
    (address - entry.base < entry.bytes).then_some(entry)
}

impl DeviceMemory {
    /// Reserves the server's window in this process, or less of it under a limit of addresses, so
    /// that nothing else is mapped there: an address in it is certainly device memory.
    /// `numbers` are the program's of the server's devices; numbers of allocations begin after
    /// `first`.
    pub(crate) fn reserve(
        welcome: &ServerWelcome,
        numbers: impl Fn(usize) -> CUdevice,
        first: u64,
    ) -> Result<DeviceMemory, String> {
        let (base, bytes) = (welcome.window_base, welcome.window_bytes);
        if bytes == 0 || base % CHUNK_BYTES != 0 || base.checked_add(bytes).is_none() {
            return Err(format!(
                "the server offers an unusable address window ({bytes:#x} bytes at {base:#x})"
            ));
        }
        let Reserved { bytes, limit } = window::reserve(base, bytes)?;
        Ok(DeviceMemory {
            window: Ranges::new(base, bytes),
            window_base: base,
            window_end: base + bytes,
            allocations: BTreeMap::new(),
            reserved: BTreeMap::new(),
            of_modules: BTreeMap::new(),
            extent: Range {
                start: u64::MAX,
                end: 0,
            },
            small: BTreeMap::new(),
            devices: welcome
                .devices
                .iter()
                .enumerate()
                .map(|(local, d)| Usage {
                    device: numbers(local),
                    // A limit of addresses is one of memory.
                    quota: limit.map_or(d.quota_bytes, |_| d.quota_bytes.min(bytes)),
                    used: 0,
                })
                .collect(),
            next_number: first + 1,
            exact: welcome.exact_memory,
            untold_limit: limit,
        })
    }

    /// Allocates an address range of at least `bytes`. Also returns the chunk that the server must
    /// map for it, if any. `completed` is the mark up to which work is known to be done.
    pub(crate) fn allocate(
        &mut self,
        bytes: u64,
        context: CUcontext,
        device: CUdevice,
        kind: AllocationKind,
        completed: u64,
    ) -> Result<(u64, Option<Chunk>), CUresult> {
        if bytes == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if self.exact {
            let chunk = self.take_exact(bytes, device)?;
            self.insert(chunk.base, bytes, context, device, kind);
            return Ok((chunk.base, Some(chunk)));
        }
        if bytes <= SMALL_BYTES_MAX {
            return self.allocate_small(bytes, context, device, kind, completed);
        }
        let rounded = bytes
            .checked_next_multiple_of(CHUNK_BYTES)
            .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let chunk = self.take_chunk(rounded, device)?;
        self.insert(chunk.base, bytes, context, device, kind);
        Ok((chunk.base, Some(chunk)))
    }

    /// Allocates exactly these bytes, followed by a chunk of unused addresses.
    fn take_exact(&mut self, bytes: u64, device: CUdevice) -> Result<Chunk, CUresult> {
        let guarded = bytes
            .checked_next_multiple_of(CHUNK_BYTES)
            .and_then(|rounded| rounded.checked_add(CHUNK_BYTES))
            .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        self.charge(device, bytes)?;
        match self.take_from_window(guarded) {
            Some(base) => Ok(Chunk { base, bytes }),
            None => {
                self.refund(device, bytes);
                Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
            }
        }
    }

    fn allocate_small(
        &mut self,
        bytes: u64,
        context: CUcontext,
        device: CUdevice,
        kind: AllocationKind,
        completed: u64,
    ) -> Result<(u64, Option<Chunk>), CUresult> {
        let rounded = bytes.next_multiple_of(ALIGN_BYTES);
        let fitting = self
            .small
            .values_mut()
            .filter(|c| c.device == device && c.context == context);
        for chunk in fitting {
            chunk.settle(completed);
            if let Some(base) = chunk.free.take(rounded, ALIGN_BYTES) {
                chunk.live += 1;
                self.insert(base, bytes, context, device, kind);
                return Ok((base, None));
            }
        }
        let chunk = self.take_chunk(CHUNK_BYTES, device)?;
        let mut free = Ranges::new(chunk.base, chunk.bytes);
        let base = free
            .take(rounded, ALIGN_BYTES)
            .ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        self.small.insert(
            chunk.base,
            SmallChunk {
                device,
                context,
                free,
                deferred_frees: VecDeque::new(),
                live: 1,
            },
        );
        self.insert(base, bytes, context, device, kind);
        Ok((base, Some(chunk)))
    }

    pub(crate) fn take_chunk(&mut self, bytes: u64, device: CUdevice) -> Result<Chunk, CUresult> {
        self.charge(device, bytes)?;
        match self.take_from_window(bytes) {
            Some(base) => Ok(Chunk { base, bytes }),
            None => {
                self.refund(device, bytes);
                Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
            }
        }
    }

    fn take_from_window(&mut self, bytes: u64) -> Option<u64> {
        let taken = self.window.take(bytes, CHUNK_BYTES);
        if taken.is_none() {
            self.tell_limit();
        }
        taken
    }

    /// Says once why there is less device memory than the server has.
    fn tell_limit(&mut self) {
        if let Some(limit) = self.untold_limit.take() {
            let (kib, mib) = (limit >> 10, (self.window_end - self.window_base) >> 20);
            log::warn(format_args!(
                "the address space of this process is limited to {kib} KiB (ulimit -v): it has at most {mib} MiB of device memory"
            ));
        }
    }

    /// Allocates addresses for memory that counts against another session's quota.
    pub(crate) fn take_addresses(&mut self, bytes: u64) -> Result<Chunk, CUresult> {
        match self.take_from_window(bytes) {
            Some(base) => Ok(Chunk { base, bytes }),
            None => Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    pub(crate) fn give_addresses(&mut self, chunk: Chunk) {
        self.window.give(chunk.base, chunk.bytes);
    }

    /// Returns the addresses of a chunk to the window, and its bytes to the quota.
    pub(crate) fn give_chunk(&mut self, chunk: Chunk, device: CUdevice) {
        self.window.give(chunk.base, chunk.bytes);
        self.refund(device, chunk.bytes);
    }

    fn insert(
        &mut self,
        base: u64,
        bytes: u64,
        context: CUcontext,
        device: CUdevice,
        kind: AllocationKind,
    ) {
        let numbered = self.numbered(base, bytes, context, device, kind);
        self.extend(base, bytes);
        self.allocations.insert(base, numbered);
    }

    fn numbered(
        &mut self,
        base: u64,
        bytes: u64,
        context: CUcontext,
        device: CUdevice,
        kind: AllocationKind,
    ) -> Allocation {
        let number = self.next_number;
        self.next_number += 1;
        Allocation {
            base,
            bytes,
            context,
            device,
            kind,
            number,
        }
    }

    /// Frees an allocation of the program's or of a graph's, as [`free_if`](Self::free_if) does.
    pub(crate) fn free(
        &mut self,
        base: u64,
        sent: u64,
    ) -> Result<(Allocation, Option<Chunk>), CUresult> {
        self.free_if(AllocationKind::is_freed_alone, base, sent)
    }

    /// Frees an allocation of some kind. Returns the memory that the server must unmap, if any.
    /// `sent` is the mark of the work sent before, which may still use it.
    #[inline]
    pub(crate) fn free_if(
        &mut self,
        is_of: impl Fn(AllocationKind) -> bool,
        base: u64,
        sent: u64,
    ) -> Result<(Allocation, Option<Chunk>), CUresult> {
        let (allocation, chunk) = self.take_out(is_of, base, sent)?;
        if let Some(chunk) = chunk {
            self.give_freed(chunk, allocation.device);
        }
        Ok((allocation, chunk))
    }

    /// Frees an allocation; the memory that the server must unmap is not given back yet.
    #[inline]
    fn take_out(
        &mut self,
        is_of: impl Fn(AllocationKind) -> bool,
        base: u64,
        sent: u64,
    ) -> Result<(Allocation, Option<Chunk>), CUresult> {
        let allocation = *self
            .allocations
            .get(&base)
            .filter(|found| is_of(found.kind))
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.allocations.remove(&base);
        let bytes = allocation.bytes;
        let chunk = match self.exact {
            true => Some(Chunk { base, bytes }),
            false if bytes <= SMALL_BYTES_MAX => self.free_small(&allocation, sent),
            false => Some(Chunk {
                base,
                bytes: bytes.next_multiple_of(CHUNK_BYTES),
            }),
        };
        Ok((allocation, chunk))
    }

    /// Returns the bytes of freed memory to the quota, and its addresses to the window; exact ones
    /// are never reused, so that later use is detected.
    #[inline]
    pub(crate) fn give_freed(&mut self, chunk: Chunk, device: CUdevice) {
        if !self.exact {
            self.window.give(chunk.base, chunk.bytes);
        }
        self.refund(device, chunk.bytes);
    }

    /// Removes an allocation that the server has refused.
    pub(crate) fn forget(&mut self, base: u64) {
        // It is there, unless the context was destroyed meanwhile.
        let _ = self.free(base, 0);
    }

    fn free_small(&mut self, allocation: &Allocation, sent: u64) -> Option<Chunk> {
        let (start, chunk) = self.small.range_mut(..=allocation.base).next_back()?;
        chunk.deferred_frees.push_back((
            sent,
            allocation.base,
            allocation.bytes.next_multiple_of(ALIGN_BYTES),
        ));
        chunk.live -= 1;
        let start = *start;
        if chunk.live > 0 {
            return None;
        }
        self.small.remove(&start);
        Some(Chunk {
            base: start,
            bytes: CHUNK_BYTES,
        })
    }

    fn extend(&mut self, base: u64, bytes: u64) {
        let Range { start, end } = &mut self.extent;
        *start = base.min(*start);
        *end = base.saturating_add(bytes).max(*end);
    }

    /// Returns the allocation that contains an address.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<&Allocation> {
        if !self.extent.contains(&address) {
            return None;
        }
        match holding(&self.allocations, address) {
            None if !self.of_modules.is_empty() => self.find_of_modules(address),
            found => found,
        }
    }

    /// Returns the memory of a module that contains an address, if the server was asked about it.
    #[cold]
    pub(crate) fn find_of_modules(&self, address: u64) -> Option<&Allocation> {
        holding(&self.of_modules, address)
    }

    /// Returns the range of `cuMemAddressReserve` that contains an address.
    pub(crate) fn find_reserved(&self, address: u64) -> Option<&Allocation> {
        holding(&self.reserved, address)
    }

    /// Returns whether an address is in the window, and so device memory.
    pub(crate) fn in_window(&self, address: u64) -> bool {
        (self.window_base..self.window_end).contains(&address)
    }

    /// Reserves a range of addresses without memory.
    pub(crate) fn reserve_range(
        &mut self,
        bytes: u64,
        align: u64,
        wanted: u64,
    ) -> Result<u64, CUresult> {
        let base = (wanted != 0 && wanted.is_multiple_of(CHUNK_BYTES))
            .then(|| self.window.take_at(wanted, bytes))
            .flatten()
            .or_else(|| self.window.take(bytes, align.max(CHUNK_BYTES)))
            .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let range = self.numbered(base, bytes, CUcontext::NULL, 0, AllocationKind::Reserved);
        self.reserved.insert(base, range);
        Ok(base)
    }

    pub(crate) fn free_range(&mut self, base: u64, bytes: u64) -> Result<(), CUresult> {
        match self.reserved.get(&base) {
            Some(range)
                if range.bytes == bytes
                    && self.allocations.range(base..base + bytes).next().is_none() =>
            {
                self.reserved.remove(&base);
                self.window.give(base, bytes);
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Adds memory that does not come from `allocate`: a mapping inside a reserved range, or a
    /// variable of a module.
    pub(crate) fn adopt(
        &mut self,
        base: u64,
        bytes: u64,
        context: CUcontext,
        device: CUdevice,
        kind: AllocationKind,
    ) {
        self.insert(base, bytes, context, device, kind);
    }

    /// Adds memory of a module that the server was asked about.
    pub(crate) fn adopt_of_module(
        &mut self,
        base: u64,
        bytes: u64,
        context: CUcontext,
        device: CUdevice,
    ) {
        let memory = self.numbered(base, bytes, context, device, AllocationKind::Global);
        self.extend(base, bytes);
        self.of_modules.insert(base, memory);
    }

    /// Removes the memory of all modules: one is unloaded, and nobody knows which memory it had.
    /// That of the others is asked about again.
    pub(crate) fn forget_modules(&mut self) {
        self.of_modules.clear();
    }

    /// Removes memory that `adopt` added.
    pub(crate) fn disown(&mut self, base: u64) -> Option<Allocation> {
        self.allocations.remove(&base)
    }

    pub(crate) fn find_mut(&mut self, base: u64) -> Option<&mut Allocation> {
        self.allocations.get_mut(&base)
    }

    /// Returns the allocations that begin inside a range.
    pub(crate) fn within(&self, base: u64, bytes: u64) -> Vec<Allocation> {
        self.allocations
            .range(base..base.saturating_add(bytes))
            .map(|(_, a)| *a)
            .collect()
    }

    fn usage(&mut self, device: CUdevice) -> Option<&mut Usage> {
        self.devices.iter_mut().find(|usage| usage.device == device)
    }

    /// Counts memory against the quota.
    pub(crate) fn charge(&mut self, device: CUdevice, bytes: u64) -> Result<(), CUresult> {
        let usage = self
            .usage(device)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        if bytes > usage.quota.saturating_sub(usage.used) {
            self.tell_limit();
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        usage.used += bytes;
        Ok(())
    }

    pub(crate) fn refund(&mut self, device: CUdevice, bytes: u64) {
        if let Some(usage) = self.usage(device) {
            usage.used = usage.used.saturating_sub(bytes);
        }
    }

    /// Returns the rest of the quota.
    pub(crate) fn free_bytes(&self, device: CUdevice) -> u64 {
        self.devices
            .iter()
            .find(|usage| usage.device == device)
            .map_or(0, |u| u.quota.saturating_sub(u.used))
    }

    /// Frees everything that was allocated in a context. Returns the memory that the server must
    /// unmap, and that is given back after that ([`give_freed`](Self::give_freed)).
    pub(crate) fn free_context(&mut self, context: CUcontext) -> Vec<Chunk> {
        let bases: Vec<u64> = self
            .allocations
            .values()
            .filter(|a| a.context == context)
            .map(|a| a.base)
            .collect();
        self.forget_modules();
        let mut chunks = Vec::new();
        for base in bases {
            match self.take_out(AllocationKind::is_freed_alone, base, 0) {
                Ok((_, chunk)) => chunks.extend(chunk),
                Err(_) => {
                    self.disown(base);
                }
            }
        }
        chunks
    }
}
