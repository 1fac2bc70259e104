//! Physical memory of `cuMemCreate`. It lives while a handle, a mapping or a descriptor refers to
//! it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use outboard_api::{
    CUresult,
    cuda::{CUdevice, CUmemAllocationProp},
};
use rustc_hash::FxHashMap;

pub(crate) struct Physical {
    pub(crate) device: CUdevice,
    pub(crate) bytes: u64,
    pub(crate) properties: CUmemAllocationProp,
    /// Number of `cuMemCreate` and `cuMemRetainAllocationHandle`, minus `cuMemRelease`.
    handles: u32,
    mappings: u32,
    /// Memory of another session, which counts against that session's quota.
    pub(crate) is_foreign: bool,
    /// This process's ends of the descriptors that name the memory to other processes.
    exports: Vec<OwnedFd>,
}

impl Physical {
    /// Returns whether any copy of a descriptor is still open in any process.
    fn is_exported(&mut self) -> bool {
        self.exports.retain(|ours| !is_hung_up(ours.as_fd()));
        !self.exports.is_empty()
    }
}

/// Returns whether the other end of a pair of sockets is closed for good.
fn is_hung_up(end: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: end.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: one record; the call does not wait.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 && poll.revents & libc::POLLHUP != 0 }
}

// SAFETY: the properties' pointer is never followed; it is always NULL.
unsafe impl Send for Physical {}

#[derive(Default)]
pub(crate) struct VirtualMemory {
    physical: FxHashMap<u64, Physical>,
}

impl VirtualMemory {
    pub(crate) fn create(
        &mut self,
        handle: u64,
        device: CUdevice,
        bytes: u64,
        properties: CUmemAllocationProp,
    ) {
        self.physical.insert(
            handle,
            Physical {
                device,
                bytes,
                properties,
                handles: 1,
                mappings: 0,
                is_foreign: false,
                exports: Vec::new(),
            },
        );
    }

    /// Adds memory of another session.
    pub(crate) fn adopt(
        &mut self,
        handle: u64,
        device: CUdevice,
        bytes: u64,
        properties: CUmemAllocationProp,
    ) {
        self.create(handle, device, bytes, properties);
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.is_foreign = true;
        }
    }

    /// Adds a descriptor, which names this memory while the other end of `ours` is open anywhere.
    pub(crate) fn export(&mut self, handle: u64, ours: OwnedFd) {
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.exports.push(ours);
        }
    }

    /// Removes memory that only descriptors kept and whose descriptors are all closed.
    pub(crate) fn take_forgotten(&mut self) -> Vec<(u64, Physical)> {
        self.physical
            .extract_if(|_, p| {
                p.handles == 0 && p.mappings == 0 && !p.exports.is_empty() && !p.is_exported()
            })
            .collect()
    }

    /// Returns memory that the program has a handle of.
    pub(crate) fn get(&self, handle: u64) -> Result<&Physical, CUresult> {
        self.physical
            .get(&handle)
            .filter(|p| p.handles > 0)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns the properties given at creation, while a handle or a mapping exists.
    pub(crate) fn properties(&self, handle: u64) -> Option<&CUmemAllocationProp> {
        self.physical.get(&handle).map(|p| &p.properties)
    }

    pub(crate) fn retain(&mut self, handle: u64) -> Result<(), CUresult> {
        let physical = self
            .physical
            .get_mut(&handle)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        physical.handles += 1;
        Ok(())
    }

    /// Releases a handle. Returns the memory if that was its last use.
    pub(crate) fn release(&mut self, handle: u64) -> Result<Option<Physical>, CUresult> {
        let physical = self
            .physical
            .get_mut(&handle)
            .filter(|p| p.handles > 0)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        physical.handles -= 1;
        Ok(self.take_unused(handle))
    }

    pub(crate) fn map(&mut self, handle: u64) {
        if let Some(physical) = self.physical.get_mut(&handle) {
            physical.mappings += 1;
        }
    }

    /// Removes a mapping. Returns the memory if that was its last use.
    pub(crate) fn unmap(&mut self, handle: u64) -> Option<Physical> {
        let physical = self.physical.get_mut(&handle)?;
        physical.mappings = physical.mappings.saturating_sub(1);
        self.take_unused(handle)
    }

    fn take_unused(&mut self, handle: u64) -> Option<Physical> {
        let unused = self
            .physical
            .get_mut(&handle)
            .is_some_and(|p| p.handles == 0 && p.mappings == 0 && !p.is_exported());
        if unused {
            self.physical.remove(&handle)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_api::cuda::CUmemLocation;

    fn created(handle: u64) -> VirtualMemory {
        let properties = CUmemAllocationProp {
            kind: 1,
            requested_handle_types: 0,
            location: CUmemLocation { kind: 1, id: 0 },
            win32_handle_meta_data: std::ptr::null_mut(),
            compression_type: 0,
            gpu_direct_rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let mut memory = VirtualMemory::default();
        memory.create(handle, 0, 4096, properties);
        memory
    }

    #[test]
    fn a_mapping_keeps_released_memory() {
        let mut m = created(7);
        m.map(7);
        assert!(m.release(7).expect("held").is_none());
        assert!(m.get(7).is_err(), "no handle is left");
        assert!(m.release(7).is_err(), "released twice");
        assert!(m.unmap(7).is_some_and(|p| p.bytes == 4096));
        assert!(m.retain(7).is_err());
    }

    #[test]
    fn a_handle_keeps_unmapped_memory() {
        let mut m = created(7);
        m.map(7);
        m.map(7);
        assert!(m.unmap(7).is_none());
        assert!(m.unmap(7).is_none());
        assert!(m.get(7).is_ok());
        assert!(m.release(7).expect("held").is_some());
    }

    #[test]
    fn a_handle_comes_back_from_a_mapping() {
        let mut m = created(7);
        m.map(7);
        assert!(m.release(7).expect("held").is_none());
        m.retain(7).expect("mapped");
        assert!(m.unmap(7).is_none());
        assert!(m.get(7).is_ok());
        assert!(m.release(7).expect("held").is_some());
    }
}
