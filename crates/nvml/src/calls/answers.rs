//! Queries of a device whose result is one number.

use super::*;

/// `AGE NAME: TYPE = |device| answer`; `None` if the driver refused the query.
macro_rules! answers {
    ($($age:ident $name:ident: $ty:ty = |$device:ident| $answer:expr;)*) => {
        $(
            pub(crate) fn $name(device: nvmlDevice_t, out: Out<'_, $ty>) -> Result {
                let found = Device::find(device, Age::$age)?;
                out.check()?;
                let $device = found.get()?;
                let answer: Option<$ty> = $answer;
                out.put(known(answer)?)
            }
        )*
    };
}

answers! {
    Any nvmlDeviceGetBrand: u32 = |d| d.brand;
    Any nvmlDeviceGetArchitecture: u32 = |d| d.architecture;
    Any nvmlDeviceGetNumGpuCores: u32 = |d| d.cores;
    Any nvmlDeviceGetMinorNumber: u32 = |d| d.minor_number;
    Any nvmlDeviceGetModuleId: u32 = |d| d.module_id;
    Any nvmlDeviceGetBoardId: u32 = |d| d.board_id;
    Any nvmlDeviceGetMultiGpuBoard: u32 = |d| d.multi_gpu_board;
    Any nvmlDeviceGetMaxMigDeviceCount: u32 = |d| d.mig_devices_max;
    Any nvmlDeviceGetMemoryBusWidth: u32 = |d| d.memory_bus_bits;
    Any nvmlDeviceGetVirtualizationMode: u32 = |d| d.virtualization_mode;

    Now nvmlDeviceGetDisplayMode: u32 = |d| d.display_mode;
    Now nvmlDeviceGetDisplayActive: u32 = |d| d.display_active;
    Now nvmlDeviceGetPersistenceMode: u32 = |d| d.persistence_mode;
    Now nvmlDeviceGetAccountingMode: u32 = |d| d.accounting_mode;
    Now nvmlDeviceGetComputeMode: u32 = |d| d.compute_mode;
    Now nvmlDeviceGetPerformanceState: u32 = |d| d.performance_state;
    Now nvmlDeviceGetCurrentClocksEventReasons: u64 = |d| d.clock_event_reasons;

    Any nvmlDeviceGetMaxPcieLinkGeneration: u32 = |d| d.pci.link_generation_max;
    Any nvmlDeviceGetGpuMaxPcieLinkGeneration: u32 = |d| d.pci.link_generation_device_max;
    Any nvmlDeviceGetMaxPcieLinkWidth: u32 = |d| d.pci.link_width_max;
    Now nvmlDeviceGetCurrPcieLinkGeneration: u32 = |d| d.pci.link_generation;
    Now nvmlDeviceGetCurrPcieLinkWidth: u32 = |d| d.pci.link_width;
    Now nvmlDeviceGetPcieReplayCounter: u32 = |d| d.pci.replays;

    Any nvmlDeviceGetNumFans: u32 = |d| d.fans;
    Now nvmlDeviceGetFanSpeed: u32 = |d| d.fan_percent;
    Now nvmlDeviceGetPowerUsage: u32 = |d| d.power_milliwatts;
    Now nvmlDeviceGetPowerManagementLimit: u32 = |d| d.power_limit_milliwatts;
    Any nvmlDeviceGetPowerManagementDefaultLimit: u32 = |d| d.power_limit_default_milliwatts;
    Now nvmlDeviceGetEnforcedPowerLimit: u32 = |d| d.power_limit_enforced_milliwatts;
    Now nvmlDeviceGetTotalEnergyConsumption: u64 = |d| d.energy_millijoules;
    // Every handle of this library is a whole GPU.
    Any nvmlDeviceIsMigDeviceHandle: u32 = |_d| Some(0);
}

/// Queries whose result is two numbers.
macro_rules! pairs {
    ($($age:ident $name:ident: $ty:ty = |$device:ident| $answer:expr;)*) => {
        $(
            pub(crate) fn $name(
                device: nvmlDevice_t,
                first: Out<'_, $ty>,
                second: Out<'_, $ty>,
            ) -> Result {
                let found = Device::find(device, Age::$age)?;
                first.check()?;
                second.check()?;
                let $device = found.get()?;
                let answer: Option<($ty, $ty)> = $answer;
                let (a, b) = known(answer)?;
                first.put(a)?;
                second.put(b)
            }
        )*
    };
}

pairs! {
    Any nvmlDeviceGetCudaComputeCapability: i32 = |d| Some(d.compute_capability);
    Any nvmlDeviceGetPowerManagementLimitConstraints: u32 = |d| d.power_limit_range_milliwatts;
    Now nvmlDeviceGetEncoderUtilization: u32 = |d| d.utilization_encoder;
    Now nvmlDeviceGetDecoderUtilization: u32 = |d| d.utilization_decoder;
    Now nvmlDeviceGetEccMode: u32 = |d| d.ecc_mode;
    Now nvmlDeviceGetMigMode: u32 = |d| d.mig_mode;
}

/// Queries whose result is a text.
macro_rules! texts {
    ($($name:ident = |$device:ident| $answer:expr;)*) => {
        $(
            pub(crate) unsafe fn $name(device: nvmlDevice_t, out: *mut c_char, length: u32) -> Result {
                let found = Device::find(device, Age::Any)?;
                check(out)?;
                let $device = found.get()?;
                let answer: Option<&str> = $answer;
                // SAFETY: NULL or room for `length` bytes: NVML asks it of its callers.
                unsafe { put_text(out, length as usize, known(answer)?) }
            }
        )*
    };
}

texts! {
    nvmlDeviceGetName = |d| Some(&d.name);
    nvmlDeviceGetUUID = |d| Some(&d.uuid);
    nvmlDeviceGetSerial = |d| d.serial.as_deref();
    nvmlDeviceGetBoardPartNumber = |d| d.board_part_number.as_deref();
    nvmlDeviceGetVbiosVersion = |d| d.vbios_version.as_deref();
}

pub(crate) fn nvmlDeviceValidateInforom(device: nvmlDevice_t) -> Result {
    let found = Device::find(device, Age::Any)?;
    match found.get()?.inforom_status {
        Some(0) => Ok(()),
        Some(status) => Err(nvmlReturn_t(status)),
        None => Err(nvmlReturn_t::NOT_SUPPORTED),
    }
}

/// `NVML_GSP_FIRMWARE_VERSION_BUF_SIZE`: length of the one text buffer that the caller does not
/// state, in bytes.
const GSP_FIRMWARE_VERSION_BYTES: u32 = 0x40;

pub(crate) unsafe fn nvmlDeviceGetGspFirmwareVersion(
    device: nvmlDevice_t,
    version: *mut c_char,
) -> Result {
    let found = Device::find(device, Age::Any)?;
    let answer = known(found.get()?.gsp_firmware_version.as_deref())?;
    // SAFETY: NULL or room for so many bytes: NVML asks it of its callers.
    unsafe { put_text(version, GSP_FIRMWARE_VERSION_BYTES as usize, answer) }
}
