//! CUDA IPC and shareable memory: exports of this session through its office.

use std::{
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::Arc,
};

use outboard_api::{CUresult, cuda::CUipcEventHandle, enums::*};
use outboard_device::{
    Cx, Failure,
    office::{EVENT_BYTES, Export, Office, UUID_BYTES},
};
use outboard_wire::messages;
use rustc_hash::FxHashMap;

use super::{
    Nvidia,
    memory::Allocation,
    owned::Owned,
    streams::Event,
    table::{Driver, Refused, real},
};

/// The exports of this session.
#[derive(Default)]
pub(super) struct Ipc {
    office: Office,
    /// Numbers of mapped memory, by its address.
    memory: FxHashMap<u64, u64>,
    /// Numbers of allocations, by the client's numbers.
    allocations: FxHashMap<u64, u64>,
    /// Numbers of events, by the client's numbers.
    events: FxHashMap<u64, u64>,
}

impl Ipc {
    /// Withdraws the export of memory that is no longer mapped.
    pub(super) fn withdraw_memory(&mut self, va: u64) {
        if let Some(number) = self.memory.remove(&va) {
            self.office.remove(number);
        }
    }

    pub(super) fn withdraw_allocation(&mut self, allocation: u64) {
        if let Some(number) = self.allocations.remove(&allocation) {
            self.office.remove(number);
        }
    }

    pub(super) fn withdraw_event(&mut self, event: u64) {
        if let Some(number) = self.events.remove(&event) {
            self.office.remove(number);
        }
    }
}

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
        let number = match self.ipc.memory.get(&base) {
            Some(number) => *number,
            None => {
                let ordinal = self.devices[device].ordinal;
                let export = Export::Memory {
                    file: self.driver.export_memory(memory)?,
                    len,
                    device: self.driver.cuDeviceGetUuid_v2(ordinal)?.bytes,
                };
                let number = self.ipc.office.add(export)?;
                self.ipc.memory.insert(base, number);
                number
            }
        };
        Ok(messages::IpcExportMemoryReply {
            ticket: self.ipc.office.ticket(number)?.into(),
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
        let wrong = |why| Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, why);
        let found = match m.own {
            0 => self.ipc.office.redeem(m.ticket)?,
            _ => self.ipc.office.redeem_any(m.ticket)?,
        };
        let Export::Memory { file, len, device } = found else {
            return Err(wrong(
                "an IPC handle of an event where one of memory is wanted",
            ));
        };
        if len != m.len {
            return Err(wrong("an IPC handle names memory of another length"));
        }
        let (device, memory) = self.import(&file, &device)?;
        self.map_foreign(device, memory, m.va, len)?;
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
        let number = match self.ipc.allocations.get(&m.allocation) {
            Some(number) => *number,
            None => {
                let allocation = self.allocations.get(m.allocation)?;
                let ordinal = self.devices[allocation.memory.hold.device].ordinal;
                let export = Export::Memory {
                    file: self.driver.export_memory(allocation.memory.handle())?,
                    len: allocation.len,
                    device: self.driver.cuDeviceGetUuid_v2(ordinal)?.bytes,
                };
                let number = self.ipc.office.add(export)?;
                self.ipc.allocations.insert(m.allocation, number);
                number
            }
        };
        Ok(messages::IpcExportAllocationReply {
            ticket: self.ipc.office.ticket(number)?.into(),
        })
    }

    pub(super) fn ipc_open_allocation(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcOpenAllocation<'_>,
    ) -> Result<messages::IpcOpenAllocationReply, Failure> {
        self.enter(cx)?;
        let Export::Memory { file, len, device } = self.ipc.office.redeem_any(m.ticket)? else {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                "a descriptor of an event where one of memory is wanted",
            ));
        };
        let (device, memory) = self.import(&file, &device)?;
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
        file: &OwnedFd,
        device: &[u8; UUID_BYTES],
    ) -> Result<(usize, Arc<Owned<real::Allocation>>), Failure> {
        let mut uuids = self.devices.iter().map(|gpu| {
            let uuid = self.driver.cuDeviceGetUuid_v2(gpu.ordinal);
            uuid.is_ok_and(|uuid| uuid.bytes == *device)
        });
        let device = uuids.position(|is_it| is_it).ok_or_else(|| {
            Failure::new(
                CUresult::CUDA_ERROR_INVALID_DEVICE,
                "memory of a device that this session does not have",
            )
        })?;
        drop(uuids);
        let hold = self.hold_of(device)?;
        let handle = self.driver.import_memory(file)?;
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
        let number = match self.ipc.events.get(&m.event) {
            Some(number) => *number,
            None => {
                let mut handle = CUipcEventHandle {
                    reserved: [0; EVENT_BYTES],
                };
                // SAFETY: `handle` has room for the answer.
                unsafe { self.driver.cuIpcGetEventHandle(&mut handle, event) }?;
                let number = self.ipc.office.add(Export::Event {
                    handle: handle.reserved,
                    state: None,
                })?;
                self.ipc.events.insert(m.event, number);
                number
            }
        };
        Ok(messages::IpcExportEventReply {
            ticket: self.ipc.office.ticket(number)?.into(),
        })
    }

    pub(super) fn ipc_open_event(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::IpcOpenEvent<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let Export::Event { handle, .. } = self.ipc.office.redeem(m.ticket)? else {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                "an IPC handle of memory where one of an event is wanted",
            ));
        };
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
