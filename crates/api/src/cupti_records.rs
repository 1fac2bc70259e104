//! CUPTI's records, field by field as `cupti_activity.h` and `cupti_callbacks.h` of CUDA 13.0
//! declare them. `libcupti.so.13` writes them; the recorder and the server read those of NVIDIA's
//! CUPTI.
//!
//! Later versions of CUDA append fields and move none: one declaration serves all versions that
//! [`is_known`] accepts. `libcupti.so.13` writes each record with the length of the longest version
//! of CUDA 13, and zeros there. A reader gets `None` for a field past the end of a shorter record.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_void};

/// `CUPTI_ACTIVITY_KIND_*`.
pub const MEMCPY: u32 = 1;
pub const MEMSET: u32 = 2;
pub const KERNEL: u32 = 3;
pub const DRIVER: u32 = 4;
pub const RUNTIME: u32 = 5;
pub const CONCURRENT_KERNEL: u32 = 10;
pub const OVERHEAD: u32 = 17;
pub const MEMCPY2: u32 = 22;
pub const CUDA_EVENT: u32 = 36;
pub const SYNCHRONIZATION: u32 = 38;
pub const EXTERNAL_CORRELATION: u32 = 39;

/// Returns whether records of this `CUPTI_API_VERSION` have these layouts: CUDA 11.8 to 13.5.
pub fn is_known(version: u32) -> bool {
    matches!(version, 18..=28 | 130_000..=130_599)
}

/// `CUpti_CallbackData`.
#[repr(C)]
#[derive(Debug)]
pub struct Called {
    pub site: u32,
    pub name: *const c_char,
    pub params: *const c_void,
    pub result: *mut c_void,
    pub symbol: *const c_char,
    pub context: *mut c_void,
    pub context_uid: u32,
    pub correlation_data: *mut u64,
    pub correlation: u32,
}

const _: () = assert!(size_of::<Called>() == 72);

/// `CUPTI_API_ENTER`, `CUPTI_API_EXIT`: values of [`Called::site`].
pub const API_ENTER: u32 = 0;
pub const API_EXIT: u32 = 1;

/// `CUpti_ResourceData`.
#[repr(C)]
#[derive(Debug)]
pub struct Resource {
    pub context: *mut c_void,
    pub stream: *mut c_void,
    pub descriptor: *const c_void,
}

/// `CUpti_GraphData`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct GraphData {
    pub graph: *mut c_void,
    pub original_graph: *mut c_void,
    pub node: *mut c_void,
    pub original_node: *mut c_void,
    pub node_type: u32,
    pub dependency: *mut c_void,
    pub exec: *mut c_void,
}

/// A record in the layout that programs read.
///
/// # Safety
/// The type has no padding.
pub unsafe trait Record: Copy {
    /// Length in bytes, with the fields that later versions append.
    const BYTES: usize;

    fn bytes(&self) -> &[u8] {
        // SAFETY: no padding, the implementor's promise.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// Type of a field that a view reads.
pub trait Field: Sized {
    fn read(bytes: &[u8], at: usize) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Field for $number {
            fn read(bytes: &[u8], at: usize) -> Option<Self> {
                bytes.get(at..)?.first_chunk().map(|bytes| <$number>::from_le_bytes(*bytes))
            }
        })*
    };
}

numbers! { u8 u16 u32 u64 i32 i64 }

impl<const LEN: usize> Field for [u8; LEN] {
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        bytes.get(at..)?.first_chunk().copied()
    }
}

/// Declares each record as a struct to write and a view to read. Fields of 8 bytes are at the
/// offsets that the compiler gives them; all records are packed to 8.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident $view:ident ($len:literal) { $($field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $name { $(pub $field: $type,)* }

        impl $name {
            /// The fields of the header of CUDA 13.0: name, offset, bytes.
            pub const FIELDS: &'static [(&'static str, usize, usize)] = &[
                $((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()),)*
            ];
        }

        // SAFETY: plain numbers without padding between them, see the assertion.
        unsafe impl Record for $name { const BYTES: usize = $len; }

        const _: () = {
            assert!(size_of::<$name>() <= $len && $len % 8 == 0);
            assert!(0 $(+ size_of::<$type>())* == size_of::<$name>());
        };

        /// Reads a record from its bytes.
        #[derive(Debug, Clone, Copy)]
        pub struct $view<'a>(pub &'a [u8]);

        impl $view<'_> {
            $(pub fn $field(&self) -> Option<$type> {
                Field::read(self.0, std::mem::offset_of!($name, $field))
            })*
        })*
    };
}

records! {
    /// `CUpti_ActivityKernel10`. `Kernel9` of CUDA 12 has its fields to `localMemoryTotal_v2`.
    Kernel KernelView (248) {
        kind: u32, cacheConfig: u8, sharedMemoryConfig: u8, registersPerThread: u16,
        partitionedGlobalCacheRequested: u32, partitionedGlobalCacheExecuted: u32,
        start: u64, end: u64, completed: u64, deviceId: u32, contextId: u32, streamId: u32,
        gridX: i32, gridY: i32, gridZ: i32, blockX: i32, blockY: i32, blockZ: i32,
        staticSharedMemory: i32, dynamicSharedMemory: i32, localMemoryPerThread: u32,
        localMemoryTotal: u32, correlationId: u32, gridId: i64, name: u64,
        reserved0: u64, queued: u64, submitted: u64, launchType: u8,
        isSharedMemoryCarveoutRequested: u8, sharedMemoryCarveoutRequested: u8, padding: u8,
        sharedMemoryExecuted: u32, graphNodeId: u64, shmemLimitConfig: u32, graphId: u32,
        pAccessPolicyWindow: u64, channelID: u32, channelType: u32, clusterX: u32, clusterY: u32,
        clusterZ: u32, clusterSchedulingPolicy: u32, localMemoryTotal_v2: u64,
        maxPotentialClusterSize: u32, maxActiveClusters: u32, isDeviceLaunched: u8,
        padding3: [u8; 7],
    }
    /// `CUpti_ActivityMemcpy6`. `Memcpy5` of CUDA 12 has its fields to `pad2`.
    Memcpy MemcpyView (112) {
        kind: u32, copyKind: u8, srcKind: u8, dstKind: u8, flags: u8, bytes: u64, start: u64,
        end: u64, deviceId: u32, contextId: u32, streamId: u32, correlationId: u32,
        runtimeCorrelationId: u32, pad: u32, reserved0: u64, graphNodeId: u64, graphId: u32,
        channelID: u32, channelType: u32, isDeviceLaunched: u8, pad2: [u8; 3], copyCount: u64,
    }
    /// `CUpti_ActivityMemcpyPtoP4`
    Peer PeerView (96) {
        kind: u32, copyKind: u8, srcKind: u8, dstKind: u8, flags: u8, bytes: u64, start: u64,
        end: u64, deviceId: u32, contextId: u32, streamId: u32, srcDeviceId: u32,
        srcContextId: u32, dstDeviceId: u32, dstContextId: u32, correlationId: u32,
        reserved0: u64, graphNodeId: u64, graphId: u32, channelID: u32, channelType: u32,
        tail: u32,
    }
    /// `CUpti_ActivityMemset4`, the same in CUDA 12.
    Memset MemsetView (104) {
        kind: u32, value: u32, bytes: u64, start: u64, end: u64, deviceId: u32, contextId: u32,
        streamId: u32, correlationId: u32, flags: u16, memoryKind: u16, pad: u32, reserved0: u64,
        graphNodeId: u64, graphId: u32, channelID: u32, channelType: u32, isDeviceLaunched: u8,
        pad2: [u8; 3],
    }
    /// `CUpti_ActivityAPI`
    Api ApiView (40) {
        kind: u32, cbid: u32, start: u64, end: u64, processId: u32, threadId: u32,
        correlationId: u32, returnValue: u32,
    }
    /// `CUpti_ActivityExternalCorrelation`
    ExternalCorrelation ExternalCorrelationView (24) {
        kind: u32, externalKind: u32, externalId: u64, correlationId: u32, reserved: u32,
    }
    /// `CUpti_ActivityOverhead3`
    Overhead OverheadView (56) {
        kind: u32, overheadKind: u32, objectKind: u32, processId: u32, threadId: u32, objectPad: u32,
        start: u64, end: u64, correlationId: u32, reserved0: u32, overheadData: u64,
    }
    /// `CUpti_ActivitySynchronization2`
    Synchronization SynchronizationView (56) {
        kind: u32, type_: u32, start: u64, end: u64, correlationId: u32, contextId: u32,
        streamId: u32, cudaEventId: u32, cudaEventSyncId: u64, returnValue: u32, pad: u32,
    }
    /// `CUpti_ActivityCudaEvent2`; `CudaEvent3` of CUDA 13.5 is longer.
    CudaEvent CudaEventView (80) {
        kind: u32, correlationId: u32, contextId: u32, streamId: u32, eventId: u32, pad: u32,
        deviceId: u32, pad2: u32, reserved0: u64, deviceTimestamp: u64, cudaEventSyncId: u64,
    }
}

/// Returns the length of the records of a kind, or none if `libcupti.so.13` never writes that kind.
pub fn len(kind: u32) -> Option<usize> {
    Some(match kind {
        CONCURRENT_KERNEL | KERNEL => Kernel::BYTES,
        MEMCPY => Memcpy::BYTES,
        MEMCPY2 => Peer::BYTES,
        MEMSET => Memset::BYTES,
        DRIVER | RUNTIME => Api::BYTES,
        EXTERNAL_CORRELATION => ExternalCorrelation::BYTES,
        OVERHEAD => Overhead::BYTES,
        SYNCHRONIZATION => Synchronization::BYTES,
        CUDA_EVENT => CudaEvent::BYTES,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_reads_what_was_written_as_far_as_the_record_goes() {
        let written = CudaEvent {
            kind: CUDA_EVENT,
            correlationId: 1,
            contextId: 2,
            streamId: 3,
            eventId: 4,
            pad: 0,
            deviceId: 5,
            pad2: 0,
            reserved0: 0,
            deviceTimestamp: 6,
            cudaEventSyncId: 7,
        };
        let bytes = written.bytes();
        let view = CudaEventView(bytes);
        assert_eq!((view.kind(), view.streamId()), (Some(CUDA_EVENT), Some(3)));
        assert_eq!(view.cudaEventSyncId(), Some(7));
        let cut = CudaEventView(&bytes[..bytes.len() - 1]);
        assert_eq!(
            (cut.deviceTimestamp(), cut.cudaEventSyncId()),
            (Some(6), None)
        );
    }

    #[test]
    fn versions_before_and_after_are_not_known() {
        assert!(is_known(28) && is_known(130_500) && !is_known(17) && !is_known(140_000));
    }
}
