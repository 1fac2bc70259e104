//! The device's methods that the session calls by itself, without a message.

use std::sync::Arc;

use outboard_api::{
    CUresult,
    enums::{
        CU_DEVICE_ATTRIBUTE_MAX, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
        CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    },
};
use outboard_device::{Cx, Failure, Host, MemoryInUse, Pending, Printed, Rooms, Way};
use outboard_link::{DeviceMemory, GpuMemory, Granted, Segment};
use outboard_net::{Registered, remote::Borrower};
use outboard_wire::{
    doc::{DeviceCard, NVML_NOW},
    messages,
};

use super::{
    Nvidia, activity,
    memory::{Window, properties},
    nvml::{self, Nvml},
    owned::ContextHold,
    streams::STREAM_LEGACY,
};

/// Device memory that the driver needs beside the client's: modules, local memory, printf buffers.
const RESERVE_BYTES: u64 = 256 << 20;

impl Host for Nvidia {
    fn room(&mut self, len: usize) -> Option<Box<dyn Segment>> {
        self.slot_for_data(len)
    }

    fn grantable(&mut self, len: usize) -> Option<Box<dyn Granted>> {
        self.slot_for_grant(len)
    }

    fn expose(&mut self, wanted: GpuMemory) -> Result<Vec<Way>, String> {
        self.expose_memory(wanted)
    }

    fn sees_writes(&self) -> Result<(), String> {
        self.gpu_direct.sees_writes()
    }

    fn mapping(&self, address: u64, len: u64) -> Option<(u64, u64)> {
        self.memory.mapping(address, len)
    }

    fn reach(&mut self, address: u64, len: u64, way: Way) -> Result<DeviceMemory, Failure> {
        self.reach_memory(address, len, way)
    }

    fn mark(&mut self, cx: &mut Cx<'_>, stream: u64) -> Result<Pending, Failure> {
        self.mark_in(cx, stream)
    }

    fn rooms(&self) -> Option<Arc<dyn Rooms>> {
        Some(self.data_connection_rooms())
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        self.cards(0)?;
        self.reserve_window(0)?;
        tracing::debug!(bytes = self.context_bytes, "what a context takes");
        // Without NVML everything else still works.
        if let Err(failure) = self.nvml() {
            tracing::debug!(%failure, "no NVML");
        }
        Ok(())
    }

    fn nvml_facts(&mut self) -> Result<Vec<u8>, Failure> {
        self.nvml_document(NVML_NOW)
    }

    fn cards(&mut self, workers_to_come: u32) -> Result<Vec<DeviceCard>, Failure> {
        if self.cards.is_empty() {
            self.cards = (0..self.devices.len())
                .map(|i| self.card(i))
                .collect::<Result<_, _>>()?;
        }
        let mut cards = self.cards.clone();
        for (device, card) in cards.iter_mut().enumerate() {
            card.quota_bytes = self.quota_bytes(device, card, workers_to_come)?;
        }
        Ok(cards)
    }

    fn memory_in_use(&self) -> Option<MemoryInUse> {
        Some(self.in_use.clone())
    }

    fn driver_version(&mut self) -> u32 {
        self.driver
            .cuDriverGetVersion()
            .map_or(0, i32::unsigned_abs)
    }

    fn of_call(&mut self, call: u32) {
        activity::of_call(call);
    }

    fn reserve_window(&mut self, number: u8) -> Result<(u64, u64), Failure> {
        if let Some(window) = self.memory.window.as_ref().filter(|w| w.number == number) {
            return Ok(window.range());
        }
        self.enter_base()?;
        // A spare reserves one before it knows its client's number.
        self.memory.window = None;
        let window = Window::reserve(&self.driver, number)?;
        let range = window.range();
        self.memory.window = Some(window);
        Ok(range)
    }

    fn take_printed(&mut self, out: &mut Printed, lost: bool) {
        if lost {
            // A synchronising call makes the driver write which assertion failed. It returns at
            // once, with the fault, which is already known.
            let _ = self.driver.cuCtxSynchronize();
            if let Some(complaints) = &self.complaints {
                complaints.take(&mut out.stderr);
            }
        }
        if let Some(printed) = &self.printed
            && (self.printing.is_news() || lost)
        {
            printed.take(&mut out.stdout);
        }
        // The session calls this before every reply to a wait, so it is a good time to free
        // deferred objects.
        self.reap();
    }

    fn take_host_calls(&mut self, out: &mut Vec<(u64, CUresult)>) {
        self.host_calls.take(out);
    }

    fn take_host_pages(&mut self, changed: &mut dyn FnMut(u64, &[u8])) {
        self.host.take_changed(changed);
    }

    fn lend(&mut self, address: u64, len: u64, _: Borrower) -> Result<Registered, Failure> {
        self.host.lend(address, len).map(Registered::from)
    }

    fn can_fence_early(&mut self, context: u64, stream: Option<u64>) -> bool {
        self.captures.is_empty()
            && !self.printing.is_due()
            && !self.host.is_watched()
            && (stream.is_some_and(|stream| stream > STREAM_LEGACY)
                || self.orders_nothing(context, stream.is_some()))
    }

    fn awaits_host_calls(&self) -> bool {
        self.host_calls.is_outstanding()
    }
}

impl Nvidia {
    pub(super) fn nvml_snapshot(
        &mut self,
        _cx: &mut Cx<'_>,
        m: &messages::NvmlSnapshot,
    ) -> Result<messages::NvmlSnapshotReply<'static>, Failure> {
        Ok(messages::NvmlSnapshotReply {
            document: self.nvml_document(m.detail)?.into(),
        })
    }

    fn nvml_document(&mut self, detail: u32) -> Result<Vec<u8>, Failure> {
        let ordinals = self.devices.iter().map(|gpu| gpu.ordinal);
        let uuids = nvml::uuids(&self.driver, ordinals)?;
        nvml::document(&nvml::snapshot(self.nvml()?, &uuids, detail)?)
    }

    /// Returns the management library. It is loaded at the first call, because starting it is slow.
    fn nvml(&mut self) -> Result<&Nvml, Failure> {
        match &mut self.nvml {
            Some(nvml) => Ok(nvml),
            empty => Ok(empty.insert(Nvml::load()?)),
        }
    }

    /// Returns the memory that a session starting now may allocate, in bytes.
    fn quota_bytes(
        &mut self,
        device: usize,
        card: &DeviceCard,
        workers_to_come: u32,
    ) -> Result<u64, Failure> {
        if device > 0
            && let Some(bytes) = self.memory_bytes
        {
            return Ok(bytes.min(card.memory_bytes));
        }
        // Always asked for the first device: it may have been lost since it was opened, which this
        // call detects.
        let free = self.free_bytes(device, &card.uuid)?;
        if let Some(bytes) = self.memory_bytes {
            return Ok(bytes.min(card.memory_bytes));
        }
        // Workers have their context on the first device.
        let contexts = match device {
            0 => self.context_bytes.saturating_mul(workers_to_come.into()),
            _ => 0,
        };
        Ok(free.saturating_sub(RESERVE_BYTES).saturating_sub(contexts))
    }

    /// Returns a device's card without its quota.
    fn card(&mut self, device: usize) -> Result<DeviceCard, Failure> {
        let ordinal = self.real_device(device as i32)?;
        let uuid = self.driver.cuDeviceGetUuid_v2(ordinal)?.bytes;
        let memory_bytes = self.driver.cuDeviceTotalMem_v2(ordinal)?;
        let attributes: Vec<Option<i32>> = (0..CU_DEVICE_ATTRIBUTE_MAX)
            .map(|attribute| self.driver.cuDeviceGetAttribute(attribute, ordinal).ok())
            .collect();
        let number = |attribute: u32| {
            attributes
                .get(attribute as usize)
                .copied()
                .flatten()
                .unwrap_or(0)
                .unsigned_abs()
        };
        let (pci_domain, pci_bus, pci_device) = (
            number(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
            number(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
            number(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID),
        );
        let granularity = |option| {
            self.driver
                .cuMemGetAllocationGranularity(&properties(ordinal), option)
        };
        let granularity_bytes = (
            granularity(CU_MEM_ALLOC_GRANULARITY_MINIMUM)?,
            granularity(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?,
        );
        // Equal on every device that supports stream priorities.
        self.enter_base()?;
        let stream_priorities = self.driver.cuCtxGetStreamPriorityRange()?;
        Ok(DeviceCard {
            name: self.driver.device_name(ordinal)?,
            uuid,
            // Only Windows has LUIDs.
            luid: self.driver.device_luid(ordinal).unwrap_or_default(),
            memory_bytes,
            quota_bytes: 0,
            attributes,
            pci_domain,
            pci_bus,
            pci_device,
            stream_priorities,
            granularity_bytes,
            peers: self.peer_cards(device),
        })
    }

    /// Returns the free memory, if possible without making a context, which takes a third of a
    /// second.
    fn free_bytes(&mut self, device: usize, uuid: &[u8; 16]) -> Result<u64, Failure> {
        if device == 0 {
            self.enter_base()?;
            return Ok(self.driver.cuMemGetInfo_v2()?.0);
        }
        if let Ok(nvml) = self.nvml()
            && let Some(free) = nvml::free_bytes(nvml, &nvml::uuid_text(uuid))
        {
            return Ok(free);
        }
        let ordinal = self.real_device(device as i32)?;
        let hold = ContextHold::primary(&self.driver, device, ordinal)?;
        self.driver.cuCtxSetCurrent(hold.handle)?;
        let free = self.driver.cuMemGetInfo_v2();
        self.enter_base()?;
        Ok(free?.0)
    }
}
