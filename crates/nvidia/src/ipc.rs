//! CUDA IPC and shareable memory: exports of this session through its office.

use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::Arc,
};

use outboard_api::{CUresult, cuda::CUipcEventHandle, enums::*};
use outboard_device::{
    Cx, Failure,
    office::{EVENT_BYTES, Export},
    session_exports::{ForeignMemory, other_device},
};
use outboard_wire::messages;

use super::{
    Nvidia,
    memory::Allocation,
    owned::Owned,
    streams::Event,
    table::{Driver, Refused, real},
};

impl Nvidia {
    pub(super) fn ipc_export_memory(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcExportMemory,
    ) -> Result<messages::IpcExportMemoryReply<'static>, Failure> {
        self.enter(cx)?;
        let (base, len, device, memory) = self.memory.exportable(m.va).ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("{:#x} is no memory of cuMemAlloc", m.va),
            )
        })?;
        let (driver, ordinal) = (&self.driver, self.devices[device].ordinal);
        let ticket = self
            .ipc
            .memory_ticket(base, || driver.export(memory, len, ordinal))?;
        Ok(messages::IpcExportMemoryReply {
            ticket: ticket.into(),
            base,
            len,
        })
    }

    pub(super) fn ipc_open_memory(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcOpenMemory<'_>,
    ) -> Result<messages::IpcOpenMemoryReply, Failure> {
        self.enter(cx)?;
        let opened = self.ipc.open_memory(m)?;
        let (device, memory) = self.import(&opened)?;
        self.map_foreign(cx.service, device, memory, m.va, opened.len)?;
        Ok(messages::IpcOpenMemoryReply {
            device: device as u32,
        })
    }

    pub(super) fn ipc_export_allocation(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcExportAllocation,
    ) -> Result<messages::IpcExportAllocationReply<'static>, Failure> {
        self.enter(cx)?;
        let allocation = self.allocations.get(m.allocation)?;
        let (memory, len) = (allocation.memory.handle(), allocation.len);
        let ordinal = self.devices[allocation.memory.hold.device].ordinal;
        let driver = &self.driver;
        let export = || driver.export(memory, len, ordinal);
        let ticket = self.ipc.allocation_ticket(m.allocation, export)?;
        Ok(messages::IpcExportAllocationReply {
            ticket: ticket.into(),
        })
    }

    pub(super) fn ipc_open_allocation(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcOpenAllocation<'_>,
    ) -> Result<messages::IpcOpenAllocationReply, Failure> {
        self.enter(cx)?;
        let opened = self.ipc.open_allocation(m.ticket)?;
        let (device, memory) = self.import(&opened)?;
        let len = opened.len;
        self.allocations
            .insert(m.allocation, Allocation { memory, len })?;
        Ok(messages::IpcOpenAllocationReply {
            device: device as u32,
            len,
        })
    }

    /// Imports the physical memory behind a descriptor; returns the session's number of its device
    /// and the memory.
    fn import(
        &mut self,
        opened: &ForeignMemory,
    ) -> Result<(usize, Arc<Owned<real::Allocation>>), Failure> {
        let mut uuids = self.devices.iter().map(|gpu| {
            let uuid = self.driver.cuDeviceGetUuid_v2(gpu.ordinal);
            uuid.is_ok_and(|uuid| uuid.bytes == opened.device)
        });
        let device = uuids.position(|is_it| is_it).ok_or_else(other_device)?;
        drop(uuids);
        let hold = self.hold_of(device)?;
        let handle = self.driver.import_memory(&opened.file)?;
        let owned = Owned::new(&hold, handle, |driver, handle| driver.cuMemRelease(handle));
        Ok((device, Arc::new(owned)))
    }

    pub(super) fn ipc_export_event(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcExportEvent,
    ) -> Result<messages::IpcExportEventReply<'static>, Failure> {
        self.enter(cx)?;
        let event = self.real_event(m.event)?;
        let driver = &self.driver;
        let ticket = self.ipc.event_ticket(m.event, || {
            let mut handle = CUipcEventHandle {
                reserved: [0; EVENT_BYTES],
            };
            // SAFETY: `handle` has room for the answer.
            unsafe { driver.cuIpcGetEventHandle(&mut handle, event) }?;
            Ok(Export::Event {
                handle: handle.reserved,
                state: None,
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
        self.enter(cx)?;
        let handle = self.ipc.open_event(m.ticket)?.handle;
        let handle = CUipcEventHandle { reserved: handle };
        let mut event = real::Event::NULL;
        // SAFETY: `event` has room for the answer; the handle is one that the driver gave another
        // worker of this server.
        unsafe { self.driver.cuIpcOpenEventHandle(&mut event, handle) }?;
        let owned = Owned::new(self.current_hold(), event, |driver, event| {
            driver.cuEventDestroy_v2(event)
        });
        self.events.insert(m.event, Event::shared(owned))
    }
}

impl Driver {
    /// Exports physical memory of the device with this ordinal.
    fn export(&self, memory: real::Allocation, len: u64, ordinal: i32) -> Result<Export, Failure> {
        Ok(Export::Memory {
            file: self.export_memory(memory)?,
            len,
            device: self.cuDeviceGetUuid_v2(ordinal)?.bytes,
        })
    }

    fn export_memory(&self, memory: real::Allocation) -> Result<OwnedFd, Refused> {
        let mut fd: std::ffi::c_int = -1;
        // SAFETY: `fd` has room for the descriptor that a handle of this type is.
        unsafe {
            self.cuMemExportToShareableHandle(
                (&raw mut fd).cast(),
                memory,
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                0,
            )
        }?;
        // SAFETY: the driver has just made the descriptor for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn import_memory(&self, file: &OwnedFd) -> Result<real::Allocation, Refused> {
        let mut memory = real::Allocation::NULL;
        let fd = file.as_raw_fd() as usize as *mut std::ffi::c_void;
        // SAFETY: a handle of this type is the descriptor itself, which the driver does not keep.
        unsafe {
            self.cuMemImportFromShareableHandle(
                &mut memory,
                fd,
                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            )
        }?;
        Ok(memory)
    }
}
