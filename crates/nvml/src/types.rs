//! NVML's types, laid out as in nvml.h.
#![allow(non_camel_case_types)]

use std::{
    ffi::{CStr, c_char},
    fmt,
};

use outboard_api::argument::RefusesNull;

impl RefusesNull for nvmlReturn_t {
    const NULL_ARGUMENT: nvmlReturn_t = nvmlReturn_t::INVALID_ARGUMENT;
}

/// Result of a call of this library.
pub(crate) type Result<T = ()> = std::result::Result<T, nvmlReturn_t>;

macro_rules! returns {
    ($($name:ident = $value:literal $text:literal;)*) => {
        /// `nvmlReturn_t`. Unknown numbers are kept.
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[must_use]
        pub struct nvmlReturn_t(pub u32);

        impl nvmlReturn_t {
            $(pub const $name: nvmlReturn_t = nvmlReturn_t($value);)*

            /// The text that `nvmlErrorString` returns.
            pub(crate) fn text(self) -> &'static CStr {
                match self.0 {
                    $($value => $text,)*
                    _ => c"an error code that NVML does not have",
                }
            }

            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

returns! {
    SUCCESS = 0 c"Success";
    UNINITIALIZED = 1 c"Uninitialized";
    INVALID_ARGUMENT = 2 c"Invalid Argument";
    NOT_SUPPORTED = 3 c"Not Supported";
    NO_PERMISSION = 4 c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5 c"Already Initialized";
    NOT_FOUND = 6 c"Not Found";
    INSUFFICIENT_SIZE = 7 c"Insufficient Size";
    INSUFFICIENT_POWER = 8 c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9 c"Driver Not Loaded";
    TIMEOUT = 10 c"Timeout";
    IRQ_ISSUE = 11 c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12 c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13 c"Function Not Found";
    CORRUPTED_INFOROM = 14 c"Corrupted infoROM";
    GPU_IS_LOST = 15 c"GPU is lost";
    RESET_REQUIRED = 16 c"GPU requires reset";
    OPERATING_SYSTEM = 17 c"The operating system has blocked the request";
    LIB_RM_VERSION_MISMATCH = 18 c"RM has detected an NVML/RM version mismatch";
    IN_USE = 19 c"In use by another client";
    MEMORY = 20 c"Insufficient Memory";
    NO_DATA = 21 c"No data";
    VGPU_ECC_NOT_SUPPORTED = 22 c"The requested vGPU operation is not available because ECC is enabled";
    INSUFFICIENT_RESOURCES = 23 c"Insufficient Resources";
    FREQ_NOT_SUPPORTED = 24 c"Frequency Not Supported";
    ARGUMENT_VERSION_MISMATCH = 25 c"Argument Version Mismatch";
    DEPRECATED = 26 c"Deprecated";
    NOT_READY = 27 c"System Not Ready";
    GPU_NOT_FOUND = 28 c"No GPUs Found";
    INVALID_STATE = 29 c"Invalid State";
    RESET_TYPE_NOT_SUPPORTED = 30 c"Reset Type Not Supported";
    UNKNOWN = 999 c"Unknown Error";
}

impl fmt::Display for nvmlReturn_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.0) {
            (Some(name), 0) => write!(f, "NVML_{name}"),
            (Some(name), _) => write!(f, "NVML_ERROR_{name}"),
            (None, code) => write!(f, "nvmlReturn_t {code}"),
        }
    }
}

/// A device of the server: its index, in the form of a pointer that must not be followed.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvmlDevice_t(pub usize);

/// A set of events: its number, in the form of a pointer that must not be followed.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvmlEventSet_t(pub usize);

/// Event of a device. Programs that call `nvmlEventSetWait` have room for this much alone: the
/// instances came with its second version.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlEventData_v1_t {
    pub device: nvmlDevice_t,
    pub event_type: u64,
    pub event_data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlEventData_t {
    pub v1: nvmlEventData_v1_t,
    pub gpu_instance_id: u32,
    pub compute_instance_id: u32,
}

/// A set of events of the system, as [`nvmlEventSet_t`].
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct nvmlSystemEventSet_t(pub usize);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlSystemEventSetCreateRequest_t {
    pub version: u32,
    pub set: nvmlSystemEventSet_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlSystemEventSetFreeRequest_t {
    pub version: u32,
    pub set: nvmlSystemEventSet_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlSystemRegisterEventRequest_t {
    pub version: u32,
    pub event_types: u64,
    pub set: nvmlSystemEventSet_t,
}

/// Event of the system: a GPU that came or went.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlSystemEventData_v1_t {
    pub event_type: u64,
    /// The driver's id of the GPU: domain, bus and device in 16, 8 and 8 bits.
    pub gpu_id: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlSystemEventSetWaitRequest_t {
    pub version: u32,
    pub timeoutms: u32,
    pub set: nvmlSystemEventSet_t,
    pub data: *mut nvmlSystemEventData_v1_t,
    /// Events for which `data` has room.
    pub data_size: u32,
    pub num_event: u32,
}

/// The id of a private table.
pub type nvmlUuid = [u8; 16];

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlMemory_t {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlSystemDriverBranchInfo_t {
    pub version: u32,
    pub branch: [c_char; 80],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlMemory_v2_t {
    pub version: u32,
    pub total: u64,
    pub reserved: u64,
    pub free: u64,
    pub used: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlBAR1Memory_t {
    pub bar1_total: u64,
    pub bar1_free: u64,
    pub bar1_used: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlUtilization_t {
    pub gpu: u32,
    pub memory: u32,
}

/// Record of `nvmlDeviceGetPciInfo`: the first version of the type.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlPciInfo_v1_t {
    pub bus_id: [c_char; 16],
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device_id: u32,
}

/// Record of `nvmlDeviceGetPciInfo_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlPciInfo_v2_t {
    pub v1: nvmlPciInfo_v1_t,
    pub pci_sub_system_id: u32,
    pub reserved: [u32; 4],
}

/// Also `nvmlPciInfoExt_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlPciInfoExt_t {
    pub version: u32,
    pub domain: u32,
    pub bus: u32,
    pub device: u32,
    pub pci_device_id: u32,
    pub pci_sub_system_id: u32,
    pub base_class: u32,
    pub sub_class: u32,
    pub bus_id: [c_char; 32],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlPciInfo_t {
    pub legacy: nvmlPciInfo_v1_t,
    pub pci_sub_system_id: u32,
    pub bus_id: [c_char; 32],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlProcessInfo_v1_t {
    pub pid: u32,
    pub used_gpu_memory: u64,
}

/// Also `nvmlProcessInfo_t`, the record of the calls of version 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlProcessInfo_v2_t {
    pub pid: u32,
    pub used_gpu_memory: u64,
    pub gpu_instance_id: u32,
    pub compute_instance_id: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlTemperature_t {
    pub version: u32,
    pub sensor_type: u32,
    pub temperature: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlUUID_t {
    pub version: u32,
    pub type_: u32,
    /// 41 characters, or 16 bytes.
    pub value: [u8; 41],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlFieldValue_t {
    pub field_id: u32,
    pub scope_id: u32,
    /// Microseconds since 1970.
    pub timestamp: i64,
    /// Time that reading the value took, in microseconds.
    pub latency_usec: i64,
    pub value_type: u32,
    pub nvml_return: nvmlReturn_t,
    pub value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlGpuFabricInfo_t {
    pub cluster_uuid: [u8; 16],
    pub status: nvmlReturn_t,
    pub clique_id: u32,
    pub state: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlGpuFabricInfo_v2_t {
    pub version: u32,
    pub v1: nvmlGpuFabricInfo_t,
    pub health_mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct nvmlGpuFabricInfo_v3_t {
    pub v2: nvmlGpuFabricInfo_v2_t,
    pub health_summary: u8,
}

/// Record of the calls of the second and of the third version.
pub type nvmlGpuFabricInfoV_t = nvmlGpuFabricInfo_v2_t;

/// `NVML_STRUCT_VERSION`: a record's size and version, by which the library recognises the caller's
/// version.
pub const fn struct_version<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

/// `nvmlEventTypeXidCriticalError`.
pub const EVENT_XID: u64 = 8;
/// `nvmlSystemEventTypeGpuDriverUnbind`.
pub const SYSTEM_EVENT_UNBIND: u64 = 1;
/// `nvmlSystemEventTypeGpuDriverBind`.
pub const SYSTEM_EVENT_BIND: u64 = 2;
/// `eventData` of an error whose Xid is not known, by nvml.h.
pub const XID_UNKNOWN: u64 = 999;

/// `NVML_VALUE_NOT_AVAILABLE`.
pub const VALUE_NOT_AVAILABLE: u64 = u64::MAX;
/// The id of a GPU or compute instance if there is none.
pub const NO_INSTANCE: u32 = u32::MAX;

const _: () = {
    assert!(size_of::<nvmlDevice_t>() == size_of::<*const u8>());
    assert!(size_of::<nvmlMemory_t>() == 24);
    assert!(size_of::<nvmlEventData_v1_t>() == 24);
    assert!(size_of::<nvmlEventData_t>() == 32);
    assert!(struct_version::<nvmlSystemEventSetCreateRequest_t>(1) == 0x0100_0010);
    assert!(struct_version::<nvmlSystemEventSetFreeRequest_t>(1) == 0x0100_0010);
    assert!(struct_version::<nvmlSystemRegisterEventRequest_t>(1) == 0x0100_0018);
    assert!(struct_version::<nvmlSystemEventSetWaitRequest_t>(1) == 0x0100_0020);
    assert!(size_of::<nvmlSystemEventData_v1_t>() == 16);
    assert!(struct_version::<nvmlMemory_v2_t>(2) == 0x0200_0028);
    assert!(struct_version::<nvmlSystemDriverBranchInfo_t>(1) == 0x0100_0054);
    assert!(size_of::<nvmlBAR1Memory_t>() == 24);
    assert!(size_of::<nvmlUtilization_t>() == 8);
    assert!(size_of::<nvmlPciInfo_v1_t>() == 32);
    assert!(size_of::<nvmlPciInfo_v2_t>() == 52);
    assert!(size_of::<nvmlPciInfo_t>() == 68);
    assert!(struct_version::<nvmlPciInfoExt_t>(1) == 0x0100_0040);
    assert!(size_of::<nvmlProcessInfo_v1_t>() == 16);
    assert!(size_of::<nvmlProcessInfo_v2_t>() == 24);
    assert!(struct_version::<nvmlTemperature_t>(1) == 0x0100_000c);
    assert!(struct_version::<nvmlUUID_t>(1) == 0x0100_0034);
    assert!(size_of::<nvmlFieldValue_t>() == 40);
    assert!(struct_version::<nvmlGpuFabricInfo_v2_t>(2) == 0x0200_0024);
    assert!(struct_version::<nvmlGpuFabricInfo_v3_t>(3) == 0x0300_0028);
    assert!(std::mem::offset_of!(nvmlGpuFabricInfo_v2_t, health_mask) == 32);
    assert!(std::mem::offset_of!(nvmlFieldValue_t, value) == 32);
};
