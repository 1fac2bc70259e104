//! CUDA IPC on the software device: memory and events of one session in another, each in its own
//! worker process.
//!
//! Shared memory is an anonymous file that both map. A shared event is a page of two words that
//! both map: the number of records asked for, and the number done.

use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_device::{
    Cx, Failure, Pending, Wait,
    office::{EVENT_BYTES, Export, UUID_BYTES},
    session_exports::{ForeignMemory, SessionExports, other_device},
};
use outboard_ptx::device::{Action, Fence, Gpu, Op, Physical, ValueOp};
use outboard_wire::messages;
use rustc_hash::FxHashMap;

use super::{
    Soft,
    memory::{Allocation, Charge, Mapped},
    wait::{failure, invalid},
};

/// How long an export waits for work that may use the memory. Only this and `host.rs` wait.
const SETTLE_MS_MAX: u64 = 10_000;
const PAGE_BYTES: usize = 4096;

/// Memory and events that this session shares.
#[derive(Default)]
pub(super) struct Shares {
    pub(super) exports: SessionExports,
    /// Events shared with other sessions, by the client's numbers.
    events: FxHashMap<u64, Arc<SharedEvent>>,
    /// States of destroyed events, with fences for the work that may still use them.
    leaving: Vec<(Fence, Arc<SharedEvent>)>,
}

/// The state of a shared event, in memory mapped by several processes.
struct SharedEvent {
    page: *mut AtomicU64,
    file: OwnedFd,
}

// SAFETY: all access to the page is through atomics, and it stays mapped until this is dropped.
unsafe impl Send for SharedEvent {}
// SAFETY: all access to the page is through atomics.
unsafe impl Sync for SharedEvent {}

impl SharedEvent {
    fn map(file: OwnedFd) -> Result<SharedEvent, Failure> {
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(system("the page of a shared event"));
        }
        let page = page.cast();
        Ok(SharedEvent { page, file })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: `index` is 0 or 1, inside a page that stays mapped as long as `self`.
        unsafe { &*self.page.add(index) }
    }

    fn asked(&self) -> &AtomicU64 {
        self.word(0)
    }

    fn done(&self) -> &AtomicU64 {
        self.word(1)
    }

    fn address(&self) -> u64 {
        self.page as u64
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        // SAFETY: `map` mapped the page with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.page.cast(), PAGE_BYTES) };
    }
}

/// A wait for an event's records, in this process and in others.
struct SharedWait {
    here: Pending,
    state: Arc<SharedEvent>,
    target: u64,
}

impl Wait for SharedWait {
    fn ready(&mut self) -> Result<bool, Failure> {
        Ok(self.here.ready()? && self.state.done().load(Ordering::Acquire) >= self.target)
    }
}

impl Shares {
    pub(super) fn withdraw_event(&mut self, gpu: &Gpu, event: u64) {
        self.exports.withdraw_event(event);
        if let Some(state) = self.events.remove(&event) {
            self.leaving.push((gpu.fence_all(), state));
        }
        for (mut fence, state) in std::mem::take(&mut self.leaving) {
            match fence.ready() {
                Ok(false) => self.leaving.push((fence, state)),
                _ => drop(gpu.unregister_host(state.address())),
            }
        }
    }

    /// Marks all records as done when the session ends, because a wait in another process would
    /// otherwise never end.
    pub(super) fn end(&mut self) {
        for state in self.events.values() {
            let asked = state.asked().load(Ordering::Acquire);
            state.done().fetch_max(asked, Ordering::AcqRel);
        }
    }

    /// Returns the operation that a record of a shared event adds to its stream.
    pub(super) fn record_op(&self, event: u64) -> Option<Op> {
        let state = self.events.get(&event)?;
        let value = state.asked().fetch_add(1, Ordering::AcqRel) + 1;
        Some(done_op(state, value, Action::Raise))
    }

    /// Returns the operation that a wait for a shared event adds to its stream, unless all records
    /// asked for are done.
    pub(super) fn wait_op(&self, event: u64) -> Option<Op> {
        let state = self.events.get(&event)?;
        let value = state.asked().load(Ordering::Acquire);
        let is_done = state.done().load(Ordering::Acquire) >= value;
        (!is_done).then(|| done_op(state, value, Action::WaitGreaterOrEqual))
    }

    /// Extends a wait for an event by the records that other processes asked for.
    pub(super) fn with_others(&self, event: u64, here: Pending) -> Pending {
        match self.events.get(&event) {
            None => here,
            Some(state) => Box::new(SharedWait {
                here,
                target: state.asked().load(Ordering::Acquire),
                state: state.clone(),
            }),
        }
    }
}

fn done_op(state: &SharedEvent, value: u64, action: Action) -> Op {
    Op::Value(ValueOp {
        address: state.address() + size_of::<AtomicU64>() as u64,
        value,
        wide: true,
        action,
    })
}

fn system(what: &str) -> Failure {
    let error = std::io::Error::last_os_error();
    let status = CUresult::CUDA_ERROR_OPERATING_SYSTEM;
    Failure::new(status, format!("{what}: {error}"))
}

/// Makes a file of one zeroed page that other processes can map.
fn page() -> Result<OwnedFd, Failure> {
    // SAFETY: the name is a literal with its NUL; the flags are plain bits.
    let fd = unsafe { libc::memfd_create(c"shared event".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(system("the page of a shared event"));
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: ftruncate touches no memory; the descriptor is open.
    match unsafe { libc::ftruncate(file.as_raw_fd(), PAGE_BYTES as i64) } {
        0 => Ok(file),
        _ => Err(system("the page of a shared event")),
    }
}

/// Exports an allocation by a copy of its descriptor.
fn export_of(physical: &Physical, len: u64, device: [u8; UUID_BYTES]) -> Result<Export, Failure> {
    let copy = physical.file().try_clone_to_owned();
    Ok(Export::Memory {
        file: copy.map_err(|_| system("a descriptor of memory to share"))?,
        len,
        device,
    })
}

impl Soft {
    pub(super) fn ipc_export_memory(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::IpcExportMemory,
    ) -> Result<messages::IpcExportMemoryReply<'static>, Failure> {
        let found = self.mapped.range(..=m.va).next_back();
        let (base, len, device) = found
            .filter(|(base, mapped)| m.va - **base < mapped.bytes)
            .map(|(base, mapped)| (*base, mapped.bytes, mapped.charge.device))
            .ok_or_else(|| invalid(format!("{:#x} is no memory of cuMemAlloc", m.va)))?;
        let physical = self.share(base)?;
        let uuid = self.uuid(device);
        let export = || export_of(&physical, len, uuid);
        let ticket = self.shares.exports.memory_ticket(base, export)?;
        Ok(messages::IpcExportMemoryReply {
            ticket: ticket.into(),
            base,
            len,
        })
    }

    /// Replaces the memory mapped at `base` with memory that other processes can map, keeping its
    /// contents.
    fn share(&mut self, base: u64) -> Result<Physical, Failure> {
        if let Some(physical) = self.mapped.get(&base).and_then(|m| m.shared.clone()) {
            return Ok(physical);
        }
        let start = Instant::now();
        let physical = loop {
            if let Some(physical) = self.gpu.share(base).map_err(failure)? {
                break physical;
            }
            if start.elapsed() > Duration::from_millis(SETTLE_MS_MAX) {
                return Err(Failure::new(
                    CUresult::CUDA_ERROR_NOT_READY,
                    format!("work of {SETTLE_MS_MAX} ms still uses memory that is to be shared"),
                ));
            }
            thread::sleep(Duration::from_micros(100));
        };
        if let Some(mapped) = self.mapped.get_mut(&base) {
            mapped.shared = Some(physical.clone());
        }
        Ok(physical)
    }

    fn uuid(&self, device: usize) -> [u8; UUID_BYTES] {
        super::card::uuid(&self.options.board, self.numbers[device])
    }

    /// Returns the device with this UUID.
    fn device_of(&self, uuid: [u8; UUID_BYTES]) -> Result<usize, Failure> {
        let mut devices = 0..self.used_bytes.len();
        devices
            .find(|device| self.uuid(*device) == uuid)
            .ok_or_else(other_device)
    }

    pub(super) fn ipc_open_memory(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::IpcOpenMemory<'_>,
    ) -> Result<messages::IpcOpenMemoryReply, Failure> {
        let ForeignMemory { file, len, device } = self.shares.exports.open_memory(m)?;
        let device = self.device_of(device)?;
        let physical = Physical::from_file(file, len);
        self.gpu
            .map_physical(m.va, len, &physical, 0)
            .map_err(failure)?;
        let mapped = Mapped {
            bytes: len,
            charge: Charge::foreign(device),
            shared: Some(physical),
        };
        self.mapped.insert(m.va, mapped);
        Ok(messages::IpcOpenMemoryReply {
            device: device as u32,
        })
    }

    pub(super) fn ipc_export_allocation(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::IpcExportAllocation,
    ) -> Result<messages::IpcExportAllocationReply<'static>, Failure> {
        let allocation = self.live_allocation(m.allocation)?;
        let (physical, device) = (allocation.physical.clone(), allocation.charge.device);
        let uuid = self.uuid(device);
        let export = || export_of(&physical, physical.bytes(), uuid);
        let exports = &mut self.shares.exports;
        let ticket = exports.allocation_ticket(m.allocation, export)?;
        Ok(messages::IpcExportAllocationReply {
            ticket: ticket.into(),
        })
    }

    pub(super) fn ipc_open_allocation(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::IpcOpenAllocation<'_>,
    ) -> Result<messages::IpcOpenAllocationReply, Failure> {
        let opened = self.shares.exports.open_allocation(m.ticket)?;
        let ForeignMemory { file, len, device } = opened;
        let device = self.device_of(device)?;
        let allocation = Allocation::foreign(Physical::from_file(file, len), device);
        self.allocations.insert(m.allocation, allocation)?;
        Ok(messages::IpcOpenAllocationReply {
            device: device as u32,
            len,
        })
    }

    pub(super) fn ipc_export_event(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::IpcExportEvent,
    ) -> Result<messages::IpcExportEventReply<'static>, Failure> {
        let shared = self.shares.events.get(&m.event);
        let ticket = self.shares.exports.event_ticket(m.event, || {
            let shared = shared.ok_or_else(|| invalid("an event for one process alone"))?;
            let file = shared.file.try_clone();
            Ok(Export::Event {
                handle: [0; EVENT_BYTES],
                state: Some(file.map_err(|_| system("a descriptor of a shared event"))?),
            })
        })?;
        Ok(messages::IpcExportEventReply {
            ticket: ticket.into(),
        })
    }

    pub(super) fn ipc_open_event(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcOpenEvent<'_>,
    ) -> Result<(), Failure> {
        let state = self.shares.exports.open_event(m.ticket)?.state;
        let file = state.ok_or_else(|| invalid("an event of another kind of device"))?;
        let context = self.context(cx.context)?.id;
        let event = self.gpu.create_event(context, false).map_err(failure)?;
        self.events.insert(m.event, event)?;
        self.keep_state(m.event, file)
    }

    /// Makes the state of a new event that processes will share.
    pub(super) fn create_state(&mut self, event: u64) -> Result<(), Failure> {
        self.keep_state(event, page()?)
    }

    /// Maps the state of a shared event, and lets streams use it.
    fn keep_state(&mut self, event: u64, file: OwnedFd) -> Result<(), Failure> {
        let state = Arc::new(SharedEvent::map(file)?);
        // SAFETY: the page stays mapped until it is unregistered and everything submitted before
        // that is done.
        unsafe { self.gpu.register_host(state.address(), PAGE_BYTES as u64) }.map_err(failure)?;
        self.shares.events.insert(event, state);
        Ok(())
    }
}
