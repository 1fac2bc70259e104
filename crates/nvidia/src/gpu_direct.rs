//! GPUDirect RDMA: whether adapters can use the GPU's memory in place, how they find it, and when
//! kernels see what adapters wrote.

use std::{
    ffi::c_int,
    os::fd::{FromRawFd, OwnedFd},
    path::Path,
    ptr,
};

use outboard_api::{
    CUresult,
    enums::{
        CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
    },
};
use outboard_device::{Cx, Failure, Pending, Wait, Way};
use outboard_link::{DeviceMemory, GpuMemory, Reach};
use outboard_wire::messages;

use super::{
    Nvidia,
    board::{NOT_WANTED, WatchedMark},
    table::{Driver, Refused},
};

/// `CUmemRangeHandleType`.
const CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD: u32 = 1;
/// `CUGPUDirectRDMAWritesOrdering`: which devices see an adapter's writes without a flush.
const CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: i32 = 100;
const CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES: i32 = 200;
/// `CUflushGPUDirectRDMAWritesOptions`: the flush is a call of the driver.
const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST: i32 = 1;
const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX: u32 = 0;
const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER: u32 = 100;
const CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES: u32 = 200;

/// Kernel modules that give an adapter's driver the GPU's addresses, the newer one first.
const PEER_MODULES: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

/// The session's settings for GPUDirect.
#[derive(Default)]
pub(super) struct GpuDirect {
    /// Whether memory is allocated so that adapters can use it.
    pub(super) is_wanted: bool,
    /// Scope of the flush that makes an adapter's writes visible to kernels; `None` if no flush is
    /// needed.
    flush_to: Option<u32>,
}

impl GpuDirect {
    /// Fails if an adapter's writes need a flush before kernels see them.
    pub(super) fn sees_writes(&self) -> Result<(), String> {
        match self.flush_to {
            None => Ok(()),
            Some(_) => Err("the driver orders an adapter's writes by a flush alone \
                 (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING), and kernels that run would not \
                 surely see them"
                .into()),
        }
    }
}

impl Driver {
    /// Asks the driver for a device's [`Facts`].
    fn gpu_direct_facts(&self, ordinal: i32) -> Facts {
        let attribute = |attribute| self.cuDeviceGetAttribute(attribute, ordinal).unwrap_or(0);
        Facts {
            maps: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0,
            dma_buf: attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
            peers: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0,
            ordering: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
            flushes: attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
        }
    }

    /// Exports mapped memory as a dma-buf.
    fn dma_buf(&self, address: u64, len: usize) -> Result<OwnedFd, Refused> {
        let mut fd: c_int = -1;
        // SAFETY: `fd` has room for the descriptor that a handle of this type is; the driver checks
        // the range.
        unsafe {
            self.cuMemGetHandleForAddressRange(
                ptr::from_mut(&mut fd).cast(),
                address,
                len as u64,
                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                0,
            )
        }?;
        // SAFETY: the driver has just made the descriptor for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// A device's attributes for GPUDirect.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// Whether memory of `cuMemCreate` can be made for adapters.
    maps: bool,
    dma_buf: bool,
    peers: bool,
    ordering: i32,
    flushes: i32,
}

impl Facts {
    /// Returns the ways in which adapters may use the device's memory, and the flush that their
    /// writes need. `is_shared` says that other devices of the session use the memory too.
    fn judge(
        self,
        wanted: GpuMemory,
        has_peer_module: bool,
        is_shared: bool,
    ) -> Result<(Vec<Way>, Option<u32>), String> {
        if !self.maps {
            return Err("the GPU lets no adapter at memory of cuMemCreate \
                 (CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED is 0)"
                .into());
        }
        let (enough, scope) = match is_shared {
            true => (
                CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES,
                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES,
            ),
            false => (
                CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            ),
        };
        let flush_to = (self.ordering < enough).then_some(scope);
        if flush_to.is_some() && self.flushes & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST == 0 {
            return Err(
                "kernels would not surely see what an adapter has written: the driver \
                 neither orders such writes nor flushes them"
                    .into(),
            );
        }
        let mut ways = Vec::new();
        if self.dma_buf && matches!(wanted, GpuMemory::Auto | GpuMemory::DmaBuf) {
            ways.push(Way::DmaBuf);
        }
        // A user who names peermem gets it without the check for its kernel module.
        let is_asked_for = wanted == GpuMemory::Peermem;
        if is_asked_for || wanted == GpuMemory::Auto && self.peers && has_peer_module {
            ways.push(Way::Address);
        }
        if ways.is_empty() {
            return Err(
                "the driver makes no dma-buf of it (CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0: \
                 NVIDIA's open kernel modules and Linux 5.12 are needed), or none is wanted, and \
                 nvidia-peermem is not loaded (modprobe nvidia-peermem)"
                    .into(),
            );
        }
        Ok((ways, flush_to))
    }
}

/// Describes the ways in which adapters may use this machine's GPUs' memory, for `outboard doctor`.
pub(super) fn report(driver: &Driver) -> Result<String, String> {
    let count = driver
        .cuDeviceGetCount()
        .map_err(|refused| Failure::from(refused).to_string())?;
    let mut said = Vec::new();
    for ordinal in 0..count {
        let facts = driver.gpu_direct_facts(ordinal);
        let (ways, flush) = facts.judge(GpuMemory::Auto, has_peer_module(), count > 1)?;
        let ways: Vec<&str> = ways.into_iter().map(Way::name).collect();
        let flush = match flush {
            Some(_) => ", with a flush behind each copy",
            None => "",
        };
        said.push(format!(
            "GPU {ordinal} by {}{flush}",
            ways.join(", else by ")
        ));
    }
    match said.is_empty() {
        true => Err("the driver finds no device".into()),
        false => Ok(said.join("; ")),
    }
}

fn has_peer_module() -> bool {
    let module = |name| Path::new("/sys/module").join(name).exists();
    PEER_MODULES.into_iter().any(module)
}

impl Nvidia {
    pub(super) fn expose_memory(&mut self, wanted: GpuMemory) -> Result<Vec<Way>, String> {
        let is_shared = self.devices.len() > 1;
        let mut common: Option<Vec<Way>> = None;
        let mut flush_to = None;
        for gpu in &self.devices {
            let facts = self.driver.gpu_direct_facts(gpu.ordinal);
            let (ways, flush) = facts.judge(wanted, has_peer_module(), is_shared)?;
            flush_to = flush_to.max(flush);
            match &mut common {
                Some(common) => common.retain(|way| ways.contains(way)),
                None => common = Some(ways),
            }
        }
        let ways = common.filter(|ways| !ways.is_empty());
        let ways = ways.ok_or("the GPUs have no way in common")?;
        self.gpu_direct = GpuDirect {
            is_wanted: true,
            flush_to,
        };
        Ok(ways)
    }

    pub(super) fn reach_memory(
        &mut self,
        address: u64,
        len: u64,
        way: Way,
    ) -> Result<DeviceMemory, Failure> {
        let wrong = || {
            let what = format!("{address:#x} and {len:#x} bytes are not of one mapping");
            Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, what)
        };
        let device = self.memory.device_of(address, len).ok_or_else(wrong)?;
        let len = usize::try_from(len).map_err(|_| wrong())?;
        let reach = match way {
            Way::Address => Reach::Address,
            Way::DmaBuf => {
                self.enter_device(device)?;
                Reach::DmaBuf(self.driver.dma_buf(address, len)?)
            }
        };
        // SAFETY: one mapping; the session ends the registration before it is unmapped. The program
        // uses it as plain bytes.
        Ok(unsafe { DeviceMemory::new(address, len, reach) })
    }

    /// Notes that the client's adapter has written these bytes. The message came after the bytes,
    /// but bytes reach the GPU by another path than this process. So if the driver asks for it,
    /// work submitted from now on sees them only after a flush.
    pub(super) fn copy_placed(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::CopyPlaced,
    ) -> Result<(), Failure> {
        self.known(m.dst, m.len)?;
        let Some(scope) = self.gpu_direct.flush_to else {
            return Ok(());
        };
        let device = self.memory.device_of(m.dst, m.len).unwrap_or(0);
        self.enter_device(device)?;
        let target = CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        Ok(self.driver.cuFlushGPUDirectRDMAWrites(target, scope)?)
    }

    /// Marks a point in a stream, which is polled until it is reached.
    pub(super) fn mark_in(&mut self, cx: &Cx<'_>, stream_id: u64) -> Result<Pending, Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(stream_id)?;
        self.refuse_capturing(stream, "a copy to the client's unshared memory")?;
        let hold = self.stream_hold(stream_id)?;
        let mark = self.watched_mark(&hold, stream, NOT_WANTED)?;
        Ok(Box::new(MarkWait(mark)))
    }

    fn enter_device(&mut self, device: usize) -> Result<(), Failure> {
        let hold = self.hold_of(device)?;
        self.current = None;
        Ok(self.driver.cuCtxSetCurrent(hold.handle)?)
    }
}

struct MarkWait(WatchedMark);

impl Wait for MarkWait {
    fn ready(&mut self) -> Result<bool, Failure> {
        self.0.reached()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Facts = Facts {
        maps: true,
        dma_buf: true,
        peers: true,
        ordering: CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER,
        flushes: CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST,
    };

    #[test]
    fn what_the_driver_says_decides_the_way() {
        let ways = |facts: Facts, wanted, module| facts.judge(wanted, module, false).map(|it| it.0);
        let (dma_buf, address) = (Way::DmaBuf, Way::Address);
        assert_eq!(
            ways(H200, GpuMemory::Auto, true),
            Ok(vec![dma_buf, address])
        );
        assert_eq!(ways(H200, GpuMemory::Auto, false), Ok(vec![dma_buf]));
        assert_eq!(ways(H200, GpuMemory::DmaBuf, true), Ok(vec![dma_buf]));
        assert_eq!(ways(H200, GpuMemory::Peermem, false), Ok(vec![address]));
        let closed = Facts {
            dma_buf: false,
            ..H200
        };
        assert_eq!(ways(closed, GpuMemory::Auto, true), Ok(vec![address]));
        for (facts, wanted) in [
            (closed, GpuMemory::Auto),
            (closed, GpuMemory::DmaBuf),
            (
                Facts {
                    maps: false,
                    ..H200
                },
                GpuMemory::Auto,
            ),
            (
                Facts {
                    maps: false,
                    ..H200
                },
                GpuMemory::Peermem,
            ),
        ] {
            assert!(ways(facts, wanted, false).is_err(), "{facts:?}");
        }
    }

    #[test]
    fn what_is_not_ordered_is_flushed_or_not_done() {
        let flush = |ordering, flushes, is_shared| {
            let facts = Facts {
                ordering,
                flushes,
                ..H200
            };
            let judged = facts.judge(GpuMemory::Auto, false, is_shared);
            judged.map(|it| it.1)
        };
        assert_eq!(flush(100, 0, false), Ok(None));
        assert_eq!(flush(200, 0, true), Ok(None));
        assert_eq!(flush(0, 1, false), Ok(Some(100)));
        // Another GPU reads the memory.
        assert_eq!(flush(100, 1, true), Ok(Some(200)));
        assert!(flush(0, 0, false).is_err());
        // A flush in a stream is not used here.
        assert!(flush(0, 2, false).is_err());
        assert!(flush(100, 0, true).is_err());
    }
}
