//! The management library's answers about the session's devices.

use std::{
    env,
    ffi::{CStr, CString, OsString, c_char, c_void},
    mem::MaybeUninit,
};

use libloading::os::unix::Library;
use outboard_api::CUresult;
use outboard_device::Failure;
use outboard_wire::doc::{
    self, NVML_FIELDS, NVML_LINK_FIELDS, NVML_SAMPLES, NvmlDevice, NvmlField, NvmlMemory, NvmlPci,
    NvmlProcess, NvmlSnapshot,
};

use super::table::{Driver, open_library, symbol_address};

/// Names the management library, if the loader would find the wrong one.
const LIBRARY_VARIABLE: &str = "OUTBOARD_NVML";
const LIBRARY: &str = "libnvidia-ml.so.1";
const STRING_BYTES: usize = 96;
/// `NVML_ERROR_INVALID_ARGUMENT`.
pub(super) const INVALID_ARGUMENT: u32 = 2;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
pub(super) const FUNCTION_NOT_FOUND: u32 = 13;
/// `NVML_ERROR_UNKNOWN`.
const UNKNOWN: u32 = 999;
/// Version of `nvmlMemory_v2_t`: its size, with the number 2 in the upper byte.
const MEMORY_V2_VERSION: u32 = size_of::<MemoryV2>() as u32 | 2 << 24;
/// `NVML_TEMPERATURE_THRESHOLD_COUNT`.
const TEMPERATURE_THRESHOLDS: u32 = 8;
const PROCESSES_MAX: u32 = 256;
pub(super) const NVLINKS_MAX: u32 = 18;
/// `NVML_VALUE_NOT_AVAILABLE`.
const NOT_AVAILABLE: u64 = u64::MAX;

pub(super) type DeviceHandle = *mut c_void;

/// `nvmlPciInfo_t`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PciInfo {
    bus_id_legacy: [c_char; 16],
    domain: u32,
    bus: u32,
    device: u32,
    device_id: u32,
    subsystem_id: u32,
    bus_id: [c_char; 32],
}

impl PciInfo {
    pub(super) fn fill(&self, pci: &mut NvmlPci) {
        pci.domain = self.domain;
        pci.bus = self.bus;
        pci.device = self.device;
        pci.bus_id = text(&self.bus_id);
        pci.device_id = self.device_id;
        pci.subsystem_id = self.subsystem_id;
    }
}

/// `nvmlPciInfoExt_v1_t`.
#[repr(C)]
struct PciInfoExt {
    version: u32,
    /// Domain, bus, device, and the ids of device and subsystem.
    place: [u32; 5],
    class: [u32; 2],
    bus_id: [c_char; 32],
}

/// `nvmlSystemDriverBranchInfo_v1_t`.
#[repr(C)]
struct BranchInfo {
    version: u32,
    branch: [c_char; 80],
}

/// `nvmlMemory_v2_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `nvmlProcessInfo_v2_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct ProcessInfo {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

/// `nvmlFieldValue_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct FieldValue {
    field: u32,
    scope: u32,
    timestamp: i64,
    latency_us: i64,
    value_type: u32,
    status: u32,
    value: u64,
}

const _: () = {
    assert!(size_of::<FieldValue>() == 40);
    assert!(size_of::<PciInfo>() == 68);
    assert!(size_of::<PciInfoExt>() == 64);
    assert!(size_of::<MemoryV2>() == 40);
    assert!(size_of::<ProcessInfo>() == 24);
};

/// The machine's GPUs through the management library. No context is made.
pub struct Monitor {
    nvml: Nvml,
    /// Ordered by the driver's numbers.
    uuids: Vec<String>,
}

impl Monitor {
    /// Opens the library. `facts` is an earlier snapshot of the same devices, which saves loading
    /// the driver. `chosen` are the driver's numbers of the devices; by default all.
    pub fn open(facts: Option<&NvmlSnapshot>, chosen: Option<&[u32]>) -> Result<Monitor, Failure> {
        let uuids: Vec<String> = match facts {
            Some(facts) => facts.devices.iter().map(|d| d.uuid.clone()).collect(),
            None => {
                let driver = Driver::load()?;
                uuids(&driver, 0..driver.cuDeviceGetCount()?)?
            }
        };
        let is_chosen = |number: u32| chosen.is_none_or(|chosen| chosen.contains(&number));
        let of = uuids.into_iter().zip(0..);
        let uuids = of.filter(|(_, number)| is_chosen(*number));
        let uuids = uuids.map(|(uuid, _)| uuid).collect();
        Ok(Monitor {
            nvml: Nvml::load()?,
            uuids,
        })
    }

    pub fn document(&self, detail: u32) -> Result<Vec<u8>, Failure> {
        document(&self.snapshot(detail)?)
    }

    pub fn snapshot(&self, detail: u32) -> Result<NvmlSnapshot, Failure> {
        snapshot(&self.nvml, &self.uuids, detail)
    }
}

/// Returns the UUIDs of the driver's devices as NVML spells them.
pub(super) fn uuids(
    driver: &Driver,
    ordinals: impl Iterator<Item = i32>,
) -> Result<Vec<String>, Failure> {
    ordinals
        .map(|ordinal| Ok(uuid_text(&driver.cuDeviceGetUuid_v2(ordinal)?.bytes)))
        .collect()
}

pub(super) fn document(snapshot: &NvmlSnapshot) -> Result<Vec<u8>, Failure> {
    doc::to_bytes(snapshot).map_err(|error| {
        Failure::new(
            CUresult::CUDA_ERROR_UNKNOWN,
            format!("the NVML snapshot: {error}"),
        )
    })
}

/// Returns the current state of the devices with these UUIDs.
pub(super) fn snapshot(
    nvml: &Nvml,
    uuids: &[String],
    detail: u32,
) -> Result<NvmlSnapshot, Failure> {
    let devices = uuids
        .iter()
        .map(|uuid| {
            let handle = nvml.device(uuid).ok_or_else(|| {
                Failure::new(
                    CUresult::CUDA_ERROR_NOT_FOUND,
                    format!("{LIBRARY} does not know {uuid}"),
                )
            })?;
            Ok(NvmlDevice {
                peers: nvml.peers(handle, uuids),
                ..nvml.describe(handle, uuid, detail)
            })
        })
        .collect::<Result<_, Failure>>()?;
    Ok(NvmlSnapshot {
        driver_version: nvml
            .system_text("nvmlSystemGetDriverVersion")
            .unwrap_or_default(),
        nvml_version: nvml
            .system_text("nvmlSystemGetNVMLVersion")
            .unwrap_or_default(),
        cuda_version: nvml.cuda_version().unwrap_or_default(),
        devices,
        driver_branch: nvml.driver_branch(),
    })
}

/// Returns a device's free memory in bytes, if the library knows it.
pub(super) fn free_bytes(nvml: &Nvml, uuid: &str) -> Option<u64> {
    let handle = nvml.device(uuid)?;
    Some(nvml.memory(handle)?.free_bytes)
}

/// Spells a UUID as NVML and nvidia-smi do.
pub(super) fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::from("GPU-");
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Returns whether the environment names the management library.
pub fn is_named() -> bool {
    env::var_os(LIBRARY_VARIABLE).is_some_and(|name| !name.is_empty())
}

/// The loaded library; shut down when dropped.
pub(super) struct Nvml {
    library: Library,
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Some(function) = self.function::<unsafe extern "C" fn() -> u32>("nvmlShutdown") {
            // SAFETY: the function takes nothing, and this object has initialised the library.
            unsafe { function() };
        }
    }
}

impl Nvml {
    pub(super) fn load() -> Result<Nvml, Failure> {
        let name: OsString = env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| LIBRARY.into());
        Nvml::load_from(&name)
    }

    pub(super) fn load_from(name: &OsString) -> Result<Nvml, Failure> {
        let nvml = Nvml {
            library: open_library(name)?,
        };
        let function = nvml.function::<unsafe extern "C" fn() -> u32>("nvmlInit_v2");
        // SAFETY: the function takes nothing and may be called repeatedly.
        match function.map(|function| unsafe { function() }) {
            Some(0) => Ok(nvml),
            other => {
                // The library was not initialised, so there is nothing to shut down.
                let status = other.map_or("no nvmlInit_v2".into(), |s| format!("status {s}"));
                Err(Failure::new(
                    CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
                    format!("{LIBRARY} does not start: {status}"),
                ))
            }
        }
    }

    /// Returns a function. `F` must be the type of the function of this name in `nvml.h`.
    pub(super) fn function<F: Copy>(&self, name: &str) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let address = symbol_address(&self.library, name);
        if address.is_null() {
            return None;
        }
        // SAFETY: a function pointer has the size of a pointer, as asserted, and this one is not
        // null. By the contract above its type is `F`.
        Some(unsafe { std::mem::transmute_copy(&address) })
    }

    pub(super) fn device(&self, uuid: &str) -> Option<DeviceHandle> {
        self.device_or_status(uuid).ok()
    }

    /// Returns a device's handle, or why there is none.
    pub(super) fn device_or_status(&self, uuid: &str) -> Result<DeviceHandle, u32> {
        type Ask = unsafe extern "C" fn(*const c_char, *mut DeviceHandle) -> u32;
        let function = self.function::<Ask>("nvmlDeviceGetHandleByUUID");
        let function = function.ok_or(FUNCTION_NOT_FOUND)?;
        let uuid = CString::new(uuid).map_err(|_| INVALID_ARGUMENT)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: `uuid` ends with a NUL, and `handle` has room for the answer.
        match unsafe { function(uuid.as_ptr(), &mut handle) } {
            0 if !handle.is_null() => Ok(handle),
            0 => Err(UNKNOWN),
            status => Err(status),
        }
    }

    fn cuda_version(&self) -> Option<i32> {
        type Ask = unsafe extern "C" fn(*mut i32) -> u32;
        let function = self.function::<Ask>("nvmlSystemGetCudaDriverVersion_v2")?;
        let mut version = 0;
        // SAFETY: `version` has room for the answer.
        (unsafe { function(&mut version) } == 0).then_some(version)
    }

    fn system_text(&self, name: &str) -> Option<String> {
        type Ask = unsafe extern "C" fn(*mut c_char, u32) -> u32;
        let function = self.function::<Ask>(name)?;
        let mut room = [0; STRING_BYTES];
        // SAFETY: `room` has the length said.
        (unsafe { function(room.as_mut_ptr(), STRING_BYTES as u32) } == 0).then(|| text(&room))
    }

    fn driver_branch(&self) -> Option<String> {
        type Ask = unsafe extern "C" fn(*mut BranchInfo, u32) -> u32;
        let function = self.function::<Ask>("nvmlSystemGetDriverBranch")?;
        let mut info = BranchInfo {
            version: size_of::<BranchInfo>() as u32 | 1 << 24,
            branch: [0; 80],
        };
        // SAFETY: a record of the version said, and the length of its text.
        let status = unsafe { function(&mut info, info.branch.len() as u32) };
        (status == 0).then(|| text(&info.branch))
    }

    fn text(&self, device: DeviceHandle, name: &str) -> Option<String> {
        type Ask = unsafe extern "C" fn(DeviceHandle, *mut c_char, u32) -> u32;
        let function = self.function::<Ask>(name)?;
        let mut room = [0; STRING_BYTES];
        // SAFETY: `room` has the length said.
        (unsafe { function(device, room.as_mut_ptr(), STRING_BYTES as u32) } == 0)
            .then(|| text(&room))
    }

    /// Calls `nvmlReturn_t name(device, T *)`, where `T` is plain data of that size.
    fn one<T: Copy>(&self, device: DeviceHandle, name: &str) -> Option<T> {
        type Ask<T> = unsafe extern "C" fn(DeviceHandle, *mut T) -> u32;
        let function = self.function::<Ask<T>>(name)?;
        let mut value = MaybeUninit::zeroed();
        // SAFETY: `value` has room for the answer.
        if unsafe { function(device, value.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: plain numbers, zeroed before the library filled them.
        Some(unsafe { value.assume_init() })
    }

    fn number(&self, device: DeviceHandle, name: &str) -> Option<u32> {
        self.one(device, name)
    }

    /// Calls `nvmlReturn_t name(device, unsigned *, unsigned *)`.
    fn pair(&self, device: DeviceHandle, name: &str) -> Option<(u32, u32)> {
        type Ask = unsafe extern "C" fn(DeviceHandle, *mut u32, *mut u32) -> u32;
        let function = self.function::<Ask>(name)?;
        let (mut first, mut second) = (0, 0);
        // SAFETY: `first` and `second` have room for the answers.
        (unsafe { function(device, &mut first, &mut second) } == 0).then_some((first, second))
    }

    /// Calls `nvmlReturn_t name(device, selector, unsigned *)`.
    fn selected(&self, device: DeviceHandle, name: &str, selector: u32) -> Option<u32> {
        type Ask = unsafe extern "C" fn(DeviceHandle, u32, *mut u32) -> u32;
        let function = self.function::<Ask>(name)?;
        let mut value = 0;
        // SAFETY: `value` has room for the answer.
        (unsafe { function(device, selector, &mut value) } == 0).then_some(value)
    }

    /// Counts ECC errors of a kind, since the last boot or in all.
    fn ecc_errors(&self, device: DeviceHandle, kind: u32, counter: u32) -> Option<u64> {
        type Ask = unsafe extern "C" fn(DeviceHandle, u32, u32, *mut u64) -> u32;
        let function = self.function::<Ask>("nvmlDeviceGetTotalEccErrors")?;
        let mut count = 0;
        // SAFETY: `count` has room for the answer.
        (unsafe { function(device, kind, counter, &mut count) } == 0).then_some(count)
    }

    fn memory(&self, device: DeviceHandle) -> Option<NvmlMemory> {
        type Ask = unsafe extern "C" fn(DeviceHandle, *mut MemoryV2) -> u32;
        if let Some(function) = self.function::<Ask>("nvmlDeviceGetMemoryInfo_v2") {
            let mut memory = MemoryV2 {
                version: MEMORY_V2_VERSION,
                total: 0,
                reserved: 0,
                free: 0,
                used: 0,
            };
            // SAFETY: the record has the size that its version says.
            if unsafe { function(device, &mut memory) } == 0 {
                return Some(NvmlMemory {
                    total_bytes: memory.total,
                    free_bytes: memory.free,
                    used_bytes: memory.used,
                    reserved_bytes: Some(memory.reserved),
                });
            }
        }
        let [total_bytes, free_bytes, used_bytes] =
            self.one::<[u64; 3]>(device, "nvmlDeviceGetMemoryInfo")?;
        Some(NvmlMemory {
            total_bytes,
            free_bytes,
            used_bytes,
            reserved_bytes: None,
        })
    }

    fn pci(&self, device: DeviceHandle, detail: u32) -> NvmlPci {
        let info = self.one::<PciInfo>(device, "nvmlDeviceGetPciInfo_v3");
        // `nvmlPcieUtilCounter_t`: transmitted, received.
        let throughput = |counter| self.selected(device, "nvmlDeviceGetPcieThroughput", counter);
        let mut pci = NvmlPci {
            link_generation: self.number(device, "nvmlDeviceGetCurrPcieLinkGeneration"),
            link_generation_max: self.number(device, "nvmlDeviceGetMaxPcieLinkGeneration"),
            link_generation_device_max: self
                .number(device, "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
            link_width: self.number(device, "nvmlDeviceGetCurrPcieLinkWidth"),
            link_width_max: self.number(device, "nvmlDeviceGetMaxPcieLinkWidth"),
            throughput_kilobytes_per_s: match detail {
                // The library measures for 20 ms, twice.
                NVML_SAMPLES => throughput(0).zip(throughput(1)),
                _ => None,
            },
            replays: self.number(device, "nvmlDeviceGetPcieReplayCounter"),
            ..NvmlPci::default()
        };
        if let Some(info) = info {
            info.fill(&mut pci);
        }
        pci.class = self.class(device);
        pci
    }

    fn class(&self, device: DeviceHandle) -> Option<(u32, u32)> {
        type Ask = unsafe extern "C" fn(DeviceHandle, *mut PciInfoExt) -> u32;
        let function = self.function::<Ask>("nvmlDeviceGetPciInfoExt")?;
        let mut info = PciInfoExt {
            version: size_of::<PciInfoExt>() as u32 | 1 << 24,
            place: [0; 5],
            class: [0; 2],
            bus_id: [0; 32],
        };
        // SAFETY: a record of the version said.
        let status = unsafe { function(device, &mut info) };
        let [base, sub] = info.class;
        (status == 0).then_some((base, sub))
    }

    fn performance_states(&self, device: DeviceHandle) -> Vec<u32> {
        type Ask = unsafe extern "C" fn(DeviceHandle, *mut u32, u32) -> u32;
        const STATES: usize = 16;
        let name = "nvmlDeviceGetSupportedPerformanceStates";
        let Some(function) = self.function::<Ask>(name) else {
            return Vec::new();
        };
        let mut states = [u32::MAX; STATES];
        // SAFETY: `states` has the length said.
        let status = unsafe { function(device, states.as_mut_ptr(), size_of_val(&states) as u32) };
        let is_known = |state: &u32| status == 0 && (*state as usize) < STATES;
        states.into_iter().filter(is_known).collect()
    }

    /// Calls a function that answers only by its status.
    fn status(&self, device: DeviceHandle, name: &str) -> Option<u32> {
        type Ask = unsafe extern "C" fn(DeviceHandle) -> u32;
        let function = self.function::<Ask>(name)?;
        // SAFETY: `device` is a handle of this library.
        Some(unsafe { function(device) })
    }

    fn processes(&self, device: DeviceHandle, name: &str) -> Vec<NvmlProcess> {
        type Ask = unsafe extern "C" fn(DeviceHandle, *mut u32, *mut ProcessInfo) -> u32;
        let Some(function) = self.function::<Ask>(name) else {
            return Vec::new();
        };
        let none = ProcessInfo {
            pid: 0,
            used: 0,
            gpu_instance: 0,
            compute_instance: 0,
        };
        let mut found = vec![none; PROCESSES_MAX as usize];
        let mut count = PROCESSES_MAX;
        // SAFETY: `found` has room for `count` records.
        if unsafe { function(device, &mut count, found.as_mut_ptr()) } != 0 {
            return Vec::new();
        }
        found.truncate(count as usize);
        found
            .into_iter()
            .map(|process| NvmlProcess {
                pid: process.pid,
                used_bytes: (process.used != NOT_AVAILABLE).then_some(process.used),
                name: self.process_name(process.pid),
            })
            .collect()
    }

    fn fields(&self, device: DeviceHandle) -> Vec<NvmlField> {
        type Ask = unsafe extern "C" fn(DeviceHandle, i32, *mut FieldValue) -> u32;
        let Some(function) = self.function::<Ask>("nvmlDeviceGetFieldValues") else {
            return Vec::new();
        };
        let plain = NVML_FIELDS.iter().map(|field| (*field, 0));
        let of_links = (0..NVLINKS_MAX)
            .flat_map(|link| NVML_LINK_FIELDS.iter().map(move |field| (*field, link)));
        let mut values: Vec<FieldValue> = plain
            .chain(of_links)
            .map(|(field, scope)| FieldValue {
                field,
                scope,
                ..FieldValue::default()
            })
            .collect();
        // SAFETY: `values` has as many records as said.
        if unsafe { function(device, values.len() as i32, values.as_mut_ptr()) } != 0 {
            return Vec::new();
        }
        values
            .into_iter()
            .filter(|value| value.status == 0)
            .map(|value| NvmlField {
                id: value.field,
                scope: value.scope,
                value_type: value.value_type,
                bits: value.value,
            })
            .collect()
    }

    fn process_name(&self, pid: u32) -> Option<String> {
        type Ask = unsafe extern "C" fn(u32, *mut c_char, u32) -> u32;
        let function = self.function::<Ask>("nvmlSystemGetProcessName")?;
        let mut room = [0; 256];
        // SAFETY: `room` has the length said.
        (unsafe { function(pid, room.as_mut_ptr(), 256) } == 0).then(|| text(&room))
    }

    fn describe(&self, device: DeviceHandle, uuid: &str, detail: u32) -> NvmlDevice {
        let number = |name| self.number(device, name);
        let capability = self
            .pair(device, "nvmlDeviceGetCudaComputeCapability")
            .unwrap_or_default();
        let nvlinks = (0..NVLINKS_MAX)
            .filter(|link| self.selected(device, "nvmlDeviceGetNvLinkState", *link) == Some(1));
        NvmlDevice {
            name: self.text(device, "nvmlDeviceGetName").unwrap_or_default(),
            uuid: self
                .text(device, "nvmlDeviceGetUUID")
                .unwrap_or_else(|| uuid.into()),
            serial: self.text(device, "nvmlDeviceGetSerial"),
            board_part_number: self.text(device, "nvmlDeviceGetBoardPartNumber"),
            vbios_version: self.text(device, "nvmlDeviceGetVbiosVersion"),
            brand: number("nvmlDeviceGetBrand"),
            architecture: number("nvmlDeviceGetArchitecture"),
            compute_capability: (capability.0 as i32, capability.1 as i32),
            cores: number("nvmlDeviceGetNumGpuCores"),
            minor_number: number("nvmlDeviceGetMinorNumber"),
            board_id: number("nvmlDeviceGetBoardId"),
            multi_gpu_board: number("nvmlDeviceGetMultiGpuBoard"),
            module_id: number("nvmlDeviceGetModuleId"),
            pci: self.pci(device, detail),
            memory: self.memory(device).unwrap_or_default(),
            bar1_bytes: self
                .one::<[u64; 3]>(device, "nvmlDeviceGetBAR1MemoryInfo")
                .map(|[total, free, used]| (total, free, used)),
            memory_bus_bits: number("nvmlDeviceGetMemoryBusWidth"),
            mig_mode: self.pair(device, "nvmlDeviceGetMigMode"),
            compute_mode: number("nvmlDeviceGetComputeMode"),
            persistence_mode: number("nvmlDeviceGetPersistenceMode"),
            display_mode: number("nvmlDeviceGetDisplayMode"),
            display_active: number("nvmlDeviceGetDisplayActive"),
            accounting_mode: number("nvmlDeviceGetAccountingMode"),
            virtualization_mode: number("nvmlDeviceGetVirtualizationMode"),
            gsp_firmware_version: self.text(device, "nvmlDeviceGetGspFirmwareVersion"),
            mig_devices_max: number("nvmlDeviceGetMaxMigDeviceCount"),
            inforom_status: self.status(device, "nvmlDeviceValidateInforom"),
            nvlinks_active: nvlinks.count() as u32,
            nvlinks: self.links(device),
            fabric: self.fabric(device),
            cpu_affinity: self.cpu_affinity(device),
            memory_affinity: self.memory_affinity(device),
            peers: Vec::new(),
            fields: self.fields(device),
            ..self.measurements(device)
        }
    }

    /// Returns the part of a description that changes while the device works; the rest is empty.
    fn measurements(&self, device: DeviceHandle) -> NvmlDevice {
        let number = |name| self.number(device, name);
        let clocks = |name| [0, 1, 2, 3].map(|kind| self.selected(device, name, kind));
        let utilization = self.one::<[u32; 2]>(device, "nvmlDeviceGetUtilizationRates");
        NvmlDevice {
            utilization_gpu: utilization.map(|[gpu, _]| gpu),
            utilization_memory: utilization.map(|[_, memory]| memory),
            utilization_encoder: self.pair(device, "nvmlDeviceGetEncoderUtilization"),
            utilization_decoder: self.pair(device, "nvmlDeviceGetDecoderUtilization"),
            temperature_celsius: self.selected(device, "nvmlDeviceGetTemperature", 0),
            temperature_thresholds_celsius: (0..TEMPERATURE_THRESHOLDS)
                .map(|kind| self.selected(device, "nvmlDeviceGetTemperatureThreshold", kind))
                .collect(),
            fan_percent: number("nvmlDeviceGetFanSpeed"),
            fans: number("nvmlDeviceGetNumFans"),
            power_milliwatts: number("nvmlDeviceGetPowerUsage"),
            power_limit_milliwatts: number("nvmlDeviceGetPowerManagementLimit"),
            power_limit_default_milliwatts: number("nvmlDeviceGetPowerManagementDefaultLimit"),
            power_limit_enforced_milliwatts: number("nvmlDeviceGetEnforcedPowerLimit"),
            power_limit_range_milliwatts: self
                .pair(device, "nvmlDeviceGetPowerManagementLimitConstraints"),
            energy_millijoules: self.one(device, "nvmlDeviceGetTotalEnergyConsumption"),
            performance_state: number("nvmlDeviceGetPerformanceState"),
            performance_states: self.performance_states(device),
            clock_event_reasons: self
                .one(device, "nvmlDeviceGetCurrentClocksEventReasons")
                .or_else(|| self.one(device, "nvmlDeviceGetCurrentClocksThrottleReasons")),
            clocks_mhz: clocks("nvmlDeviceGetClockInfo"),
            clocks_max_mhz: clocks("nvmlDeviceGetMaxClockInfo"),
            clocks_application_mhz: clocks("nvmlDeviceGetApplicationsClock"),
            ecc_mode: self.pair(device, "nvmlDeviceGetEccMode"),
            ecc_uncorrected: (self.ecc_errors(device, 1, 0), self.ecc_errors(device, 1, 1)),
            ecc_corrected: (self.ecc_errors(device, 0, 0), self.ecc_errors(device, 0, 1)),
            processes_compute: self.processes(device, "nvmlDeviceGetComputeRunningProcesses_v3"),
            processes_graphics: self.processes(device, "nvmlDeviceGetGraphicsRunningProcesses_v3"),
            processes_mps: self.processes(device, "nvmlDeviceGetMPSComputeRunningProcesses_v3"),
            ..NvmlDevice::default()
        }
    }
}

/// Reads a C string from an array.
fn text(room: &[c_char]) -> String {
    let bytes: Vec<u8> = room.iter().map(|c| c.cast_unsigned()).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(
        |_| String::from_utf8_lossy(&bytes).into_owned(),
        |text| text.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_spelled_as_nvidia_smi_does() {
        let uuid: [u8; 16] = std::array::from_fn(|i| 0xa0 + i as u8);
        assert_eq!(uuid_text(&uuid), "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
    }

    #[test]
    fn strings_end_at_their_nul() {
        assert_eq!(text(&[b'a' as c_char, 0, b'b' as c_char]), "a");
        assert_eq!(text(&[b'a' as c_char; 2]), "aa");
    }
}
