//! NVML's answers about a server's devices at one moment. `None` if the driver refuses the
//! question.

use serde::{Deserialize, Serialize};

/// A snapshot of facts that do not change (names, sizes, limits), from any time.
pub const NVML_FACTS: u32 = 0;
/// A snapshot that has also what changes (clocks, memory in use, processes), as it is now.
pub const NVML_NOW: u32 = 1;
/// A snapshot that has also what is measured over a time: a PCIe counter takes 20 ms.
pub const NVML_SAMPLES: u32 = 2;

/// The reply to `nvml_snapshot`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlSnapshot {
    /// `nvmlSystemGetDriverVersion`: "580.159.04".
    pub driver_version: String,
    /// `nvmlSystemGetNVMLVersion`: "13.580.159.04".
    pub nvml_version: String,
    /// `nvmlSystemGetCudaDriverVersion`: 13000 is 13.0.
    pub cuda_version: i32,
    /// The session's devices, in the order of its `CUdevice` ordinals.
    pub devices: Vec<NvmlDevice>,
    /// `nvmlSystemGetDriverBranch`: "r580_00".
    pub driver_branch: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlDevice {
    pub name: String,
    /// With its prefix: "GPU-6fb2...".
    pub uuid: String,
    pub serial: Option<String>,
    pub board_part_number: Option<String>,
    pub vbios_version: Option<String>,
    /// `nvmlBrandType_t`.
    pub brand: Option<u32>,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: Option<u32>,
    pub compute_capability: (i32, i32),
    pub cores: Option<u32>,
    /// The number in `/dev/nvidia<minor>`.
    pub minor_number: Option<u32>,
    pub board_id: Option<u32>,
    pub multi_gpu_board: Option<u32>,
    /// Number of the GPU's socket on its baseboard.
    pub module_id: Option<u32>,

    pub pci: NvmlPci,
    pub memory: NvmlMemory,
    /// BAR1 window: total, free, used bytes.
    pub bar1_bytes: Option<(u64, u64, u64)>,
    pub memory_bus_bits: Option<u32>,

    /// Per cent of the last sample period.
    pub utilization_gpu: Option<u32>,
    pub utilization_memory: Option<u32>,
    /// Per cent, and the sample period in microseconds.
    pub utilization_encoder: Option<(u32, u32)>,
    pub utilization_decoder: Option<(u32, u32)>,

    pub temperature_celsius: Option<u32>,
    /// By `nvmlTemperatureThresholds_t`.
    pub temperature_thresholds_celsius: Vec<Option<u32>>,
    pub fan_percent: Option<u32>,
    pub fans: Option<u32>,
    pub power_milliwatts: Option<u32>,
    pub power_limit_milliwatts: Option<u32>,
    pub power_limit_default_milliwatts: Option<u32>,
    pub power_limit_enforced_milliwatts: Option<u32>,
    /// Least, greatest.
    pub power_limit_range_milliwatts: Option<(u32, u32)>,
    pub energy_millijoules: Option<u64>,
    /// `nvmlPstates_t`: 0 to 15.
    pub performance_state: Option<u32>,
    /// All that the device has, the fastest first.
    pub performance_states: Vec<u32>,
    /// `nvmlClocksEventReasons` bits.
    pub clock_event_reasons: Option<u64>,
    /// By `nvmlClockType_t`: graphics, SM, memory, video; MHz.
    pub clocks_mhz: [Option<u32>; 4],
    pub clocks_max_mhz: [Option<u32>; 4],
    pub clocks_application_mhz: [Option<u32>; 4],

    /// Current, pending; 0 disabled, 1 enabled.
    pub ecc_mode: Option<(u32, u32)>,
    /// Uncorrected errors since the last boot, and in all.
    pub ecc_uncorrected: (Option<u64>, Option<u64>),
    pub ecc_corrected: (Option<u64>, Option<u64>),
    /// Current, pending.
    pub mig_mode: Option<(u32, u32)>,
    /// `nvmlComputeMode_t`.
    pub compute_mode: Option<u32>,
    pub persistence_mode: Option<u32>,
    pub display_mode: Option<u32>,
    pub display_active: Option<u32>,
    pub accounting_mode: Option<u32>,
    /// `nvmlGpuVirtualizationMode_t`.
    pub virtualization_mode: Option<u32>,
    /// GSP firmware; `None` if the GPU runs without it.
    pub gsp_firmware_version: Option<String>,
    /// Processes with a CUDA context on the device.
    pub processes_compute: Vec<NvmlProcess>,
    pub processes_graphics: Vec<NvmlProcess>,
    /// Clients of a Multi-Process Service.
    pub processes_mps: Vec<NvmlProcess>,
    /// Most devices into which MIG could divide it.
    pub mig_devices_max: Option<u32>,
    /// The answer of `nvmlDeviceValidateInforom`: 0 if the infoROM is intact.
    pub inforom_status: Option<u32>,
    /// Links that are up.
    pub nvlinks_active: u32,
    /// By link number, up to the last one that the driver knows.
    pub nvlinks: Vec<NvmlLink>,
    /// By the number of the other device, the device itself included.
    pub peers: Vec<NvmlPeer>,
    /// `nvmlDeviceGetGpuFabricInfoV`; `None` if the GPU belongs to no fabric.
    pub fabric: Option<NvmlFabric>,
    /// CPUs near the device, as bits of 64-bit words; the NUMA nodes follow in the same form.
    pub cpu_affinity: Option<Vec<u64>>,
    pub memory_affinity: Option<Vec<u64>>,
    /// The answers of `nvmlDeviceGetFieldValues` to [`NVML_FIELDS`] and [`NVML_LINK_FIELDS`], less
    /// those that the driver refuses.
    pub fields: Vec<NvmlField>,
}

/// `nvmlReturn_t` of a question, and the value if that is 0.
pub type NvmlAnswer = (u32, u32);

/// `nvmlDeviceGetP2PStatus` is asked for the indices below this one; the last is the first that
/// nvml.h does not define.
pub const NVML_P2P_INDICES: u32 = 6;
/// `NVML_NVLINK_CAP_COUNT`.
pub const NVML_LINK_CAPABILITIES: u32 = 6;

/// One device as another one sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlPeer {
    /// `nvmlDeviceGetP2PStatus`, by index.
    pub p2p_status: Vec<NvmlAnswer>,
    /// `nvmlDeviceGetTopologyCommonAncestor`.
    pub ancestor: NvmlAnswer,
}

/// One NVLink of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlLink {
    /// 1: up.
    pub state: NvmlAnswer,
    pub version: NvmlAnswer,
    /// By `nvmlNvLinkCapability_t`.
    pub capabilities: Vec<NvmlAnswer>,
    /// `nvmlIntNvLinkDeviceType_t`.
    pub remote_type: NvmlAnswer,
    /// The device at the other end; its link's generation and width are not known.
    pub remote: Option<NvmlPci>,
}

/// `nvmlGpuFabricInfo_v3_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlFabric {
    pub cluster_uuid: [u8; 16],
    pub status: u32,
    pub clique: u32,
    pub state: u8,
    pub health_mask: u32,
    /// `None` if the driver knows only version 2 of the record.
    pub health_summary: Option<u8>,
}

/// The fields of a snapshot that every NVLink has (speed, state, version). The field's scope is the
/// link.
pub const NVML_LINK_FIELDS: &[u32] = &[164, 165, 166];

/// The fields of a snapshot: `NVML_FI_DEV_*` of nvml.h, all of scope 0.
pub const NVML_FIELDS: &[u32] = &[
    // ECC: mode and totals.
    1, 2, 3, 4, 5, 6, // Memory temperature, energy.
    82, 83, // NVLink: common speed, links present.
    90, 91, // PCIe replays and their rollovers.
    94, 95, // Remapped rows: correctable, uncorrectable, pending, failed.
    142, 143, 144, 145, // C2C links.
    170,
    // Power: average, instant, least, greatest, default and current limit; energy; requested limit.
    185, 186, 187, 188, 189, 190, 191, 192,
    // Distance to the temperature limits: shutdown, slowdown, memory, GPU.
    193, 194, 195, 196,
];

/// One answer of `nvmlDeviceGetFieldValues`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlField {
    pub id: u32,
    /// The link's number, for the fields that each link has.
    pub scope: u32,
    /// `nvmlValueType_t`: the member of `nvmlValue_t` that holds the value.
    pub value_type: u32,
    /// The eight bytes of `nvmlValue_t`.
    pub bits: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlPci {
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    /// As NVML spells it: "00000000:5D:00.0".
    pub bus_id: String,
    /// Device id in the upper 16 bits, vendor id in the lower.
    pub device_id: u32,
    pub subsystem_id: u32,
    /// Base class and subclass.
    pub class: Option<(u32, u32)>,
    pub link_generation: Option<u32>,
    pub link_generation_max: Option<u32>,
    /// Greatest generation of the GPU itself, whatever slot it is in.
    pub link_generation_device_max: Option<u32>,
    pub link_width: Option<u32>,
    pub link_width_max: Option<u32>,
    /// Kilobytes a second that the GPU sends and receives: measured for [`NVML_SAMPLES`].
    pub throughput_kilobytes_per_s: Option<(u32, u32)>,
    pub replays: Option<u32>,
}

/// `nvmlDeviceGetMemoryInfo` counts reserved memory as used; `_v2` counts it separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlMemory {
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Without reserved memory.
    pub used_bytes: u64,
    /// `None` if the driver has no `_v2`; `used_bytes` then includes it.
    pub reserved_bytes: Option<u64>,
}

/// A process of the server's machine; its number has no meaning on the client's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct NvmlProcess {
    pub pid: u32,
    pub used_bytes: Option<u64>,
    pub name: Option<String>,
}
