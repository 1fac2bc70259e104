//! Device memory: the window, and memory mapped in it at addresses that the client chose.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use outboard_api::{
    CUresult,
    cuda::{CUmemAllocationProp, CUmemLocation},
    enums::{
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        CU_MEM_LOCATION_TYPE_DEVICE,
    },
};
use outboard_device::{Cx, Failure, Service};
use outboard_wire::messages;

use super::{
    Nvidia,
    addresses::Span,
    deferred_free::{Marks, Retired},
    host_calls,
    mapping::Mapping,
    owned::{Owned, given_back},
    table::{Driver, Refused, real},
};

/// Addresses for the first window, best first. Each is far from where Linux maps anything else, on
/// both sides.
const WINDOW_BASES: &[u64] = &[
    0x2000_0000_0000,
    0x1000_0000_0000,
    0x3000_0000_0000,
    0x4000_0000_0000,
];
/// Distance between windows of neighbouring numbers. The windows of all numbers at one base end
/// before the next base.
const WINDOW_STEP_BYTES: u64 = 2 << 40;
/// Lengths for the window, best first.
const WINDOW_BYTES: &[u64] = &[1 << 40, 1 << 38, 1 << 36];
/// How long mapping a range again may wait for work that still uses the range.
const SETTLE_MS_MAX: u64 = 10_000;
const SETTLE_POLL_US: u64 = 20;
/// How long that leaves a client unserved for which the work may wait.
const UNSERVED_US_MAX: u64 = 200;
/// Time after which an object whose range is wanted is released although the device is at work.
const RELEASE_BUSY_MS: u64 = if cfg!(test) { 50 } else { 5_000 };
/// Count of deferred frees above which each further one first releases those that are done.
const DEFERRED_FREES_MAX: usize = 64;

/// Physical memory of `cuMemCreate`, or of another session.
pub(super) struct Allocation {
    pub(super) memory: Arc<Owned<real::Allocation>>,
    pub(super) len: u64,
}

/// The address range in which the client places memory.
pub(super) struct Window {
    driver: Arc<Driver>,
    pub(super) number: u8,
    base: u64,
    len: u64,
}

impl Window {
    pub(super) fn reserve(driver: &Arc<Driver>, number: u8) -> Result<Window, Failure> {
        for len in WINDOW_BYTES {
            for first in WINDOW_BASES {
                let base = &(first + u64::from(number) * WINDOW_STEP_BYTES);
                // SAFETY: reserving touches no memory; the base is a hint.
                let reserved = unsafe { driver.cuMemAddressReserve(*len, 0, *base, 0) };
                let Ok(granted) = reserved else { continue };
                let window = Window {
                    driver: driver.clone(),
                    number,
                    base: granted,
                    len: *len,
                };
                if granted == *base {
                    return Ok(window);
                }
            }
        }
        Err(Failure::new(
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            "no address window for device memory: every range tried is in use in this process",
        ))
    }

    pub(super) fn range(&self) -> (u64, u64) {
        (self.base, self.len)
    }

    fn holds(&self, va: u64, len: u64) -> bool {
        va >= self.base
            && len > 0
            && va
                .checked_add(len)
                .is_some_and(|end| end <= self.base + self.len)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: this object reserved the range, and all mappings in it are gone.
        given_back(unsafe { self.driver.cuMemAddressFree(self.base, self.len) });
    }
}

#[derive(Default)]
pub(super) struct Memory {
    pub(super) window: Option<Window>,
    mapped: BTreeMap<u64, Mapping>,
}

impl Memory {
    /// Returns the mapping that holds all of these bytes.
    pub(super) fn mapping(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        self.holding(address, len)
            .map(|mapping| (mapping.va, mapping.len))
    }

    /// Returns the session's number of the device whose memory these bytes are.
    pub(super) fn device_of(&self, address: u64, len: u64) -> Option<usize> {
        self.holding(address, len)
            .map(|mapping| mapping.allocation.hold.device)
    }

    /// Returns base, length, device and physical memory of the `mem_map` mapping that holds an
    /// address.
    pub(super) fn exportable(&self, address: u64) -> Option<(u64, u64, usize, real::Allocation)> {
        let mapping = self.holding(address, 1).filter(|m| m.is_private)?;
        let device = mapping.allocation.hold.device;
        Some((mapping.va, mapping.len, device, mapping.allocation.handle()))
    }

    fn holding(&self, address: u64, len: u64) -> Option<&Mapping> {
        let (va, mapping) = self.mapped.range(..=address).next_back()?;
        let end = address.checked_add(len)?;
        (end <= va + mapping.len).then_some(mapping)
    }

    /// Unmaps everything, then frees the window.
    pub(super) fn clear(&mut self) {
        self.mapped.clear();
        self.window = None;
    }
}

impl Nvidia {
    pub(super) fn mem_map(&mut self, cx: &mut Cx<'_>, m: &messages::MemMap) -> Result<(), Failure> {
        self.enter(cx)?;
        self.in_window(m.va, m.len)?;
        let device = self.context(cx.context)?.device;
        if let Some((mapping, marks)) = self.deferred_frees.take_mapping(m.va, m.len) {
            if mapping.allocation.hold.device == device {
                let settled = self.await_marks(cx.service, &marks);
                if settled.is_ok() {
                    return self.keep_mapping(mapping);
                }
                self.rebury(mapping, marks);
                return settled;
            }
            self.rebury(mapping, marks);
        }
        self.vacate(cx.service, m.va, m.len)?;
        let allocation = Arc::new(self.create_allocation(cx.service, device, m.len)?);
        let mut mapping = Mapping::new(&self.driver, &allocation, m.va, m.len, 0)?;
        mapping.is_private = true;
        self.give_access(device, m.va, m.len)?;
        self.keep_mapping(mapping)
    }

    /// Maps another session's memory.
    pub(super) fn map_foreign(
        &mut self,
        service: &mut Service<'_>,
        device: usize,
        allocation: Arc<Owned<real::Allocation>>,
        va: u64,
        len: u64,
    ) -> Result<(), Failure> {
        self.in_window(va, len)?;
        self.vacate(service, va, len)?;
        let mapping = Mapping::new(&self.driver, &allocation, va, len, 0)?;
        self.give_access(device, va, len)?;
        self.keep_mapping(mapping)
    }

    pub(super) fn mem_unmap(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::MemUnmap,
    ) -> Result<(), Failure> {
        self.unmap(m.va, m.len)
    }

    pub(super) fn allocation_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::AllocationCreate,
    ) -> Result<(), Failure> {
        self.enter_base()?;
        self.real_device(m.device)?;
        let allocation = self.create_allocation(cx.service, m.device as usize, m.len)?;
        let memory = Arc::new(allocation);
        let len = m.len;
        self.allocations
            .insert(m.allocation, Allocation { memory, len })
    }

    pub(super) fn allocation_release(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::AllocationRelease,
    ) -> Result<(), Failure> {
        self.ipc.withdraw_allocation(m.allocation);
        // Mappings keep the memory alive.
        self.allocations.remove(m.allocation).map(drop)
    }

    pub(super) fn allocation_map(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::AllocationMap,
    ) -> Result<(), Failure> {
        self.enter_base()?;
        self.in_window(m.va, m.len)?;
        self.vacate(cx.service, m.va, m.len)?;
        let allocation = self.allocations.get(m.allocation)?.memory.clone();
        let mapping = Mapping::new(&self.driver, &allocation, m.va, m.len, m.offset)?;
        self.keep_mapping(mapping)
    }

    pub(super) fn allocation_unmap(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::AllocationUnmap,
    ) -> Result<(), Failure> {
        self.unmap(m.va, m.len)
    }

    pub(super) fn allocation_access(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::AllocationAccess,
    ) -> Result<(), Failure> {
        self.enter_base()?;
        self.in_window(m.va, m.len)?;
        let span = self.known(m.va, m.len)?;
        let device = self.real_device(m.device)?;
        Ok(self.driver.set_access(span, device, m.flags)?)
    }

    /// Releases deferred frees that the GPU no longer uses. Called whenever the session has time. A
    /// release that waits for the device is put off until nothing is at work: a kernel may wait
    /// for a word, or for a function, of the client, whom this thread serves.
    pub(super) fn reap(&mut self) {
        if self.deferred_frees.is_empty() {
            return;
        }
        let is_idle =
            self.deferred_frees.any_waits() && !self.host_calls.is_outstanding() && self.is_idle();
        self.release(is_idle);
    }

    /// Releases deferred frees that the GPU no longer uses; those that wait for the device too, if
    /// it is idle.
    fn release(&mut self, is_idle: bool) {
        let mut deferred_frees = std::mem::take(&mut self.deferred_frees);
        deferred_frees.mark(|| self.busy_marks());
        deferred_frees.reap(is_idle);
        self.deferred_frees = deferred_frees;
    }

    pub(super) fn in_window(&self, va: u64, len: u64) -> Result<(), Failure> {
        let window = self.memory.window.as_ref();
        if window.is_some_and(|w| w.holds(va, len)) {
            return Ok(());
        }
        Err(Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            format!("{va:#x} and {len:#x} bytes are not in this session's window"),
        ))
    }

    fn create_allocation(
        &mut self,
        service: &mut Service<'_>,
        device: usize,
        len: u64,
    ) -> Result<Owned<real::Allocation>, Failure> {
        let charge = match self.in_use.charge(device, len) {
            Ok(charge) => charge,
            // Deferred frees are charged until they are released.
            Err(_) => {
                self.release(false);
                self.in_use.charge(device, len)?
            }
        };
        let mut properties = properties(self.devices[device].ordinal);
        properties.gpu_direct_rdma_capable = self.gpu_direct.is_wanted.into();
        let (ordinal, can_share) = (
            self.devices[device].ordinal,
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        );
        // So that it can be exported to other processes later, as memory of `cuMemAlloc` can.
        if self
            .driver
            .cuDeviceGetAttribute(can_share, ordinal)
            .is_ok_and(|can| can != 0)
        {
            properties.requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        }
        let created = match self.driver.cuMemCreate(len, &properties, 0) {
            Err(refused) if refused.status == CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                self.create_after_frees(service, len, &properties, refused)?
            }
            created => created?,
        };
        let hold = self.hold_of(device)?;
        let owned = Owned::new(&hold, created, |driver, handle| driver.cuMemRelease(handle));
        Ok(owned.charged(charge))
    }

    /// Makes an allocation for which there was no room, as soon as deferred frees that are released
    /// make some, or pools whose copies are over. Gives up when none is left whose end could be
    /// seen.
    fn create_after_frees(
        &mut self,
        service: &mut Service<'_>,
        len: u64,
        properties: &CUmemAllocationProp,
        refused: Refused,
    ) -> Result<real::Allocation, Failure> {
        let taken = |device: &mut Nvidia| (device.deferred_frees.len(), device.trim_pools());
        let (mut before, mut created) = (taken(self), Err(refused));
        if !self.pools.is_empty() {
            created = self.driver.cuMemCreate(len, properties, 0);
        }
        let start = Instant::now();
        while created.is_err() {
            self.reap();
            let now = taken(self);
            if now.0 < before.0 || now.1 < before.1 {
                created = self.driver.cuMemCreate(len, properties, 0);
            } else if self.deferred_frees.is_any_marked() || now.1 > 0 && self.pools.are_used() {
                self.settle(service, start)?;
                std::thread::sleep(Duration::from_micros(SETTLE_POLL_US));
            } else {
                break;
            }
            before = now;
        }
        Ok(created?)
    }

    fn give_access(&self, device: usize, va: u64, len: u64) -> Result<(), Refused> {
        // SAFETY: the caller has just mapped the range.
        let span = unsafe { Span::new_unchecked(va, len) };
        for device in self.reachable(device) {
            self.driver.set_access(
                span,
                device,
                outboard_api::enums::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            )?;
        }
        Ok(())
    }

    fn keep_mapping(&mut self, mapping: Mapping) -> Result<(), Failure> {
        if !self.addresses.insert(mapping.va, mapping.len) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("{:#x} is mapped already", mapping.va),
            ));
        }
        self.memory.mapped.insert(mapping.va, mapping);
        Ok(())
    }

    /// Defers the unmapping of the mappings that make up exactly this range.
    fn unmap(&mut self, va: u64, len: u64) -> Result<(), Failure> {
        let end = va.saturating_add(len);
        let inside: Vec<(u64, u64)> = self
            .memory
            .mapped
            .range(va..end)
            .map(|(start, mapping)| (*start, mapping.len))
            .collect();
        let exact = inside.first().is_some_and(|(start, _)| *start == va)
            && inside.last().is_some_and(|(start, len)| start + len == end);
        if !exact {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("{va:#x} and {len:#x} bytes are not what was mapped"),
            ));
        }
        if self.deferred_frees.len() >= DEFERRED_FREES_MAX {
            self.reap();
        }
        let marks = self.busy_marks();
        for (start, _) in inside {
            if let Some(mapping) = self.memory.mapped.remove(&start) {
                self.addresses.remove(start);
                self.ipc.withdraw_memory(start);
                let range = Some((mapping.va, mapping.len));
                self.deferred_frees
                    .push(Retired::Mapping(mapping), range, marks.clone());
            }
        }
        Ok(())
    }

    /// Waits until no deferred free holds part of a range, within a time limit.
    pub(super) fn vacate(
        &mut self,
        service: &mut Service<'_>,
        va: u64,
        len: u64,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        while self.holds_freed(service, va, len)? {
            self.settle(service, start)?;
            std::thread::sleep(Duration::from_micros(SETTLE_POLL_US));
        }
        Ok(())
    }

    /// Whether deferred frees hold part of a range, after a look at them. Those that have waited
    /// for an idle device for long are released anyway.
    pub(super) fn holds_freed(
        &mut self,
        service: &mut Service<'_>,
        va: u64,
        len: u64,
    ) -> Result<bool, Failure> {
        if !self.deferred_frees.overlaps(va, len) {
            return Ok(false);
        }
        self.reap();
        let is_old = |age| self.deferred_frees.is_any_older(age);
        if !self.host_calls.is_outstanding() && is_old(Duration::from_millis(RELEASE_BUSY_MS)) {
            self.release_busy(service)?;
        }
        Ok(self.deferred_frees.overlaps(va, len))
    }

    /// Releases deferred frees that the GPU no longer uses and for whose release the driver waits
    /// for the device.
    fn release_busy(&mut self, service: &mut Service<'_>) -> Result<(), Failure> {
        let mut retired = self.deferred_frees.take_waiting();
        if retired.is_empty() {
            return Ok(());
        }
        let current = self.base.handle;
        let release = |_: &Driver| {
            retired.clear();
            Ok(())
        };
        let (driver, device) = self.aside();
        let released = host_calls::aside(driver, current, device, service, release);
        // Without a thread for the wait nothing was released.
        self.deferred_frees.put_back(retired);
        Ok(released?)
    }

    /// Waits for the last work on memory that is to be used again, as the real `cuMemFree` does.
    fn await_marks(&mut self, service: &mut Service<'_>, marks: &Marks) -> Result<(), Failure> {
        let start = Instant::now();
        while !marks.iter().all(|mark| mark.reached().unwrap_or(true)) {
            self.settle(service, start)?;
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Takes one turn of a wait that began at `since` for work that uses freed memory: serves the
    /// client if the work may wait for it. Fails at the time limit, or if the client has left.
    fn settle(&mut self, service: &mut Service<'_>, since: Instant) -> Result<(), Failure> {
        let waited = since.elapsed();
        let refused = |why| Err(Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, why));
        if waited > Duration::from_millis(SETTLE_MS_MAX) {
            return refused(format!(
                "memory that was freed is still in use after {SETTLE_MS_MAX} ms"
            ));
        }
        let (_, mut device) = self.aside();
        let is_unserved = waited > Duration::from_micros(UNSERVED_US_MAX);
        if is_unserved && device.may_wait_for_client() && !device.serve(service) {
            return refused(
                "memory that was freed is still in use, and the client has left".into(),
            );
        }
        Ok(())
    }

    fn rebury(&mut self, mapping: Mapping, marks: Marks) {
        let range = Some((mapping.va, mapping.len));
        self.deferred_frees
            .push(Retired::Mapping(mapping), range, Some(marks));
    }
}

pub(super) fn properties(ordinal: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requested_handle_types: 0,
        location: CUmemLocation {
            kind: CU_MEM_LOCATION_TYPE_DEVICE,
            id: ordinal,
        },
        win32_handle_meta_data: std::ptr::null_mut(),
        compression_type: 0,
        gpu_direct_rdma_capable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}
