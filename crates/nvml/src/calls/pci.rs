//! PCI Express.

use outboard_wire::doc::NvmlPci;

use super::*;
use crate::types::{
    nvmlPciInfo_t, nvmlPciInfo_v1_t, nvmlPciInfo_v2_t, nvmlPciInfoExt_t, struct_version,
};

/// `nvmlPcieUtilCounter_t`.
const TRANSMITTED: u32 = 0;
const RECEIVED: u32 = 1;

/// Fills the first version of the record, for programs of NVML 1.
pub(crate) unsafe fn nvmlDeviceGetPciInfo(device: nvmlDevice_t, pci: *mut nvmlPciInfo_t) -> Result {
    let found = Device::find(device, Age::Any)?;
    // SAFETY: the record of this call is of the first version: NVML asks it of its callers.
    let out: Out<'_, nvmlPciInfo_v1_t> = unsafe { Out::from_c(pci.cast()) };
    out.put(first_version(&found.get()?.pci))
}

pub(crate) unsafe fn nvmlDeviceGetPciInfo_v2(
    device: nvmlDevice_t,
    pci: *mut nvmlPciInfo_t,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    let of = &found.get()?.pci;
    let info = nvmlPciInfo_v2_t {
        v1: first_version(of),
        pci_sub_system_id: of.subsystem_id,
        reserved: [0; 4],
    };
    // SAFETY: the record of this call is of the second version: NVML asks it of its callers.
    let out: Out<'_, nvmlPciInfo_v2_t> = unsafe { Out::from_c(pci.cast()) };
    out.put(info)
}

pub(crate) fn nvmlDeviceGetPciInfo_v3(device: nvmlDevice_t, pci: Out<'_, nvmlPciInfo_t>) -> Result {
    let found = Device::find(device, Age::Any)?;
    pci.put(record(&found.get()?.pci))
}

pub(crate) fn nvmlDeviceGetPciInfoExt(
    device: nvmlDevice_t,
    pci: Versioned<'_, nvmlPciInfoExt_t>,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    let pci = pci.of(struct_version::<nvmlPciInfoExt_t>(1))?;
    let of = &found.get()?.pci;
    let (base_class, sub_class) = known(of.class)?;
    pci.put(nvmlPciInfoExt_t {
        version: struct_version::<nvmlPciInfoExt_t>(1),
        domain: of.domain,
        bus: of.bus,
        device: of.device,
        pci_device_id: of.device_id,
        pci_sub_system_id: of.subsystem_id,
        base_class,
        sub_class,
        bus_id: array(&of.bus_id),
    })
}

pub(crate) fn nvmlDeviceGetPcieThroughput(
    device: nvmlDevice_t,
    counter: u32,
    value: Out<'_, u32>,
) -> Result {
    let found = Device::find(device, Age::Sampled)?;
    value.check()?;
    let answer = found.get()?.pci.throughput_kilobytes_per_s;
    let answer = match counter {
        TRANSMITTED => answer.map(|(transmitted, _)| transmitted),
        RECEIVED => answer.map(|(_, received)| received),
        _ => return Err(nvmlReturn_t::INVALID_ARGUMENT),
    };
    value.put(known(answer)?)
}

/// Fills the third version of the record.
pub(super) fn record(of: &NvmlPci) -> nvmlPciInfo_t {
    nvmlPciInfo_t {
        legacy: first_version(of),
        pci_sub_system_id: of.subsystem_id,
        bus_id: array(&of.bus_id),
    }
}

/// Fills the first version of the record. Its domain has four digits, as in all versions before the
/// third.
fn first_version(pci: &NvmlPci) -> nvmlPciInfo_v1_t {
    let bus_id = format!("{:04X}:{:02X}:{:02X}.0", pci.domain, pci.bus, pci.device);
    nvmlPciInfo_v1_t {
        bus_id: array(&bus_id),
        domain: pci.domain,
        bus: pci.bus,
        device: pci.device,
        pci_device_id: pci.device_id,
    }
}
