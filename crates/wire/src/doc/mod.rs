//! Documents inside messages: records with many fields that are rarely asked for.

mod activity;
mod graph;
mod net;
mod nvml;
mod status;
mod tensor_map;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use activity::*;
pub use graph::*;
pub use net::*;
pub use nvml::*;
pub use status::*;
pub use tensor_map::*;

/// Everything that the client answers by itself about one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct DeviceCard {
    pub name: String,
    pub uuid: [u8; 16],
    pub luid: [u8; 8],
    pub memory_bytes: u64,
    /// Device memory leased to this session: the most it may allocate.
    pub quota_bytes: u64,
    /// By `CUdevice_attribute` number; `None` if the driver refuses the question.
    pub attributes: Vec<Option<i32>>,
    pub pci_domain: u32,
    pub pci_bus: u32,
    pub pci_device: u32,
    /// `cuCtxGetStreamPriorityRange`: least, greatest.
    pub stream_priorities: (i32, i32),
    /// Granularity of `cuMemCreate`: minimum, recommended.
    pub granularity_bytes: (u64, u64),
    /// By the number of the other device; the device's own entry grants nothing.
    pub peers: Vec<PeerCard>,
}

/// Access that one device has to the memory of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct PeerCard {
    /// The answer of `cuDeviceCanAccessPeer`.
    pub can_access: bool,
    /// By `CUdevice_P2PAttribute` number; `None` if the driver refuses the question.
    pub attributes: Vec<Option<i32>>,
    /// The answer of `cuDeviceGetP2PAtomicCapabilities`, by `CUatomicOperation`; empty if the
    /// driver has no such call.
    pub atomics: Vec<u32>,
}

/// Content of a loaded library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct LibraryCard {
    pub kernels: Vec<KernelCard>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCard {
    pub name: String,
    /// Offset and size of each parameter in the parameter buffer, in order.
    pub params: Vec<(u32, u32)>,
    /// Bounds within which a launch need not wait for the kernel's attributes; 0 if the image does
    /// not say.
    pub bounds: LaunchBounds,
}

/// Threads and memory that every driver grants a kernel, however it computes the exact limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct LaunchBounds {
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block, as long as no attribute was set.
    pub dynamic_shared_bytes: u32,
}

/// The options of `cuModuleLoadDataEx`, `cuLibraryLoadData` and `cuLinkCreate` that have a meaning
/// on another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct JitOptions {
    /// `CUjit_option` and its value, for options whose value is a number.
    pub numbers: Vec<(u32, u32)>,
    pub info_log_bytes: u32,
    pub error_log_bytes: u32,
}

/// One end of a box copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BoxEnd {
    /// The rows travel with the message, packed.
    Packed,
    /// Memory at an address that is valid on both sides.
    Pitched {
        address: u64,
        pitch_bytes: u64,
        height: u64,
    },
    Array {
        array: u64,
    },
}

/// `CUDA_MEMCPY3D` with handles for pointers; `x` and `width` in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyBox {
    pub src: BoxEnd,
    pub src_x: u64,
    pub src_y: u64,
    pub src_z: u64,
    pub dst: BoxEnd,
    pub dst_x: u64,
    pub dst_y: u64,
    pub dst_z: u64,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

/// Encodes a document as a byte field.
pub fn to_bytes<T: Serialize>(document: &T) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_stdvec(document)
}

/// Decodes a document from a byte field.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    postcard::from_bytes(bytes)
}
