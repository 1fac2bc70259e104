//! The ends of a copy, and the kinds of memory that they lie in.

use outboard_api::CUresult;

use crate::state::{Allocation, Driver, HostMemory, Learned, driver};

/// The kind of memory at an address, as copies distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Device,
    /// Pinned host memory that the server sees at the same address: shared memory, or a mirror that
    /// stays open.
    Shared,
    /// Other pinned host memory.
    Pinned,
    Pageable,
}

/// One end of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyEnd {
    pub(super) address: u64,
    memory: EndMemory,
}

/// The memory of a copy's end, as far as the call tells.
#[derive(Debug, Clone, Copy)]
enum EndMemory {
    /// Classified already.
    Known(MemoryKind),
    /// The host's according to the call's name. Memory of the device that this process knows is
    /// taken too.
    Host,
    /// Any memory: it may be a variable that only the server knows.
    Any,
}

impl CopyEnd {
    #[inline(always)]
    pub(super) fn any(address: u64) -> CopyEnd {
        CopyEnd {
            address,
            memory: EndMemory::Any,
        }
    }

    #[inline(always)]
    pub(super) fn host(address: u64) -> CopyEnd {
        CopyEnd {
            address,
            memory: EndMemory::Host,
        }
    }

    pub(in crate::calls) fn known(address: u64, kind: MemoryKind) -> CopyEnd {
        CopyEnd {
            address,
            memory: EndMemory::Known(kind),
        }
    }

    /// Memory that must be device memory according to the call's name.
    #[inline(always)]
    pub(super) fn device(address: u64, bytes: usize) -> Result<CopyEnd, CUresult> {
        let kind = match bytes {
            0 => None,
            _ => driver()?.device_place(address, bytes as u64)?,
        };
        Ok(CopyEnd {
            address,
            memory: kind.map_or(EndMemory::Host, EndMemory::Known),
        })
    }

    #[inline(always)]
    pub(super) fn kind(self, driver: &Driver, bytes: usize) -> Result<MemoryKind, CUresult> {
        match self.memory {
            EndMemory::Known(kind) => Ok(kind),
            EndMemory::Any => driver.memory_kind(self.address, bytes as u64),
            EndMemory::Host => driver
                .known_kind(self.address, bytes as u64)
                .map(|kind| kind.unwrap_or(MemoryKind::Pageable)),
        }
    }
}

/// Returns the kind of a range that continues past the end of the host memory in which it begins:
/// pageable, if other such memory follows without a gap. What comes after it may be unmapped.
#[cold]
fn spans_ranges(host: &HostMemory, address: u64, bytes: u64) -> Result<MemoryKind, CUresult> {
    let end = address.checked_add(bytes);
    let end = end.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let mut at = address;
    for range in host.within(address, bytes) {
        if !range.contains(at) {
            break;
        }
        at = range.end_of_pages();
    }
    match at >= end {
        true => Ok(MemoryKind::Pageable),
        false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

impl Driver {
    /// Returns the kind of memory of a whole range. A range of device memory must lie inside one
    /// allocation. Of memory that nobody here knows, the server is asked.
    #[inline(always)]
    pub(crate) fn memory_kind(&self, address: u64, bytes: u64) -> Result<MemoryKind, CUresult> {
        match self.known_kind(address, bytes)? {
            Some(kind) => Ok(kind),
            None => self.unknown_kind(address, bytes),
        }
    }

    #[cold]
    fn unknown_kind(&self, address: u64, bytes: u64) -> Result<MemoryKind, CUresult> {
        let kind = match self.learn(address)? {
            Learned::Variable => self.known_kind(address, bytes)?,
            Learned::Program => None,
            // The program could not read it either.
            Learned::Nothing if bytes > 0 => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            Learned::Nothing => None,
        };
        Ok(kind.unwrap_or(MemoryKind::Pageable))
    }

    /// Returns the kind of memory that this process knows.
    fn known_kind(&self, address: u64, bytes: u64) -> Result<Option<MemoryKind>, CUresult> {
        {
            let memory = self.memory.lock();
            let fits = |a: &Allocation| bytes <= a.base + a.bytes - address;
            if let Some(a) = memory.find(address) {
                return if !a.may_be_used() {
                    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
                } else if fits(a) || memory.find_of_modules(address).is_some_and(fits) {
                    Ok(Some(MemoryKind::Device))
                } else {
                    self.spans_mappings(&memory, address, bytes).map(Some)
                };
            }
            if memory.in_window(address) || self.is_elsewhere(address) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        let host = self.host.read();
        let Some(range) = host.find(address) else {
            return Ok(None);
        };
        if bytes > range.base + range.bytes - address {
            return spans_ranges(&host, address, bytes).map(Some);
        }
        Ok(Some(match range.shared || range.mirror.stays_open() {
            true => MemoryKind::Shared,
            false => MemoryKind::Pinned,
        }))
    }

    /// Returns whether a range is covered by adjacent mappings, as programs make them with
    /// `cuMemMap`.
    fn spans_mappings(
        &self,
        memory: &crate::state::DeviceMemory,
        address: u64,
        bytes: u64,
    ) -> Result<MemoryKind, CUresult> {
        let end = address
            .checked_add(bytes)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let mut at = address;
        while at < end {
            let a = memory.find(at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
            if !matches!(a.kind, crate::state::AllocationKind::Mapped { .. }) || !a.may_be_used() {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            at = a.base + a.bytes;
        }
        Ok(MemoryKind::Device)
    }

    /// Refuses a range that the device cannot use. Returns the kind of its memory, unless this call
    /// has changed it.
    #[inline(always)]
    pub(in crate::calls) fn device_place(
        &self,
        address: u64,
        bytes: u64,
    ) -> Result<Option<MemoryKind>, CUresult> {
        // Variables of modules and mapped host memory count as device memory too.
        match self.memory_kind(address, bytes)? {
            kind @ (MemoryKind::Device | MemoryKind::Shared) => Ok(Some(kind)),
            MemoryKind::Pinned => self.make_visible(address).map(|()| None),
            MemoryKind::Pageable => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }
}
