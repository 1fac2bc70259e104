//! CUPTI's activity records, field by field as `cupti_activity.h` of CUDA 13.0 declares them. Later
//! versions of CUDA 13 have appended fields: each record is written with the length of the longest
//! version, and zeros there.
#![allow(non_snake_case)]

use std::ffi::c_char;

/// `CUPTI_ACTIVITY_KIND_*`.
pub const MEMCPY: u32 = 1;
pub const MEMSET: u32 = 2;
pub const KERNEL: u32 = 3;
pub const DRIVER: u32 = 4;
pub const RUNTIME: u32 = 5;
pub const CONCURRENT_KERNEL: u32 = 10;
pub const OVERHEAD: u32 = 17;
pub const EXTERNAL_CORRELATION: u32 = 39;

/// Fields of 8 bytes are at the offsets that the compiler gives them; all records are packed to 8.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident ($len:literal) { $($field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name { $(pub $field: $type,)* }

        impl $name {
            /// The fields of the header of CUDA 13.0: name, offset, bytes.
            pub const FIELDS: &'static [(&'static str, usize, usize)] = &[
                $((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$type>()),)*
            ];
        }

        // SAFETY: plain numbers and addresses without padding between them, see the assertion.
        unsafe impl Record for $name { const BYTES: usize = $len; }

        const _: () = {
            assert!(size_of::<$name>() <= $len && $len % 8 == 0);
            assert!(0 $(+ size_of::<$type>())* == size_of::<$name>());
        };)*
    };
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

records! {
    /// `CUpti_ActivityKernel10`
    Kernel (248) {
        kind: u32, cacheConfig: u8, sharedMemoryConfig: u8, registersPerThread: u16,
        partitionedGlobalCacheRequested: u32, partitionedGlobalCacheExecuted: u32,
        start: u64, end: u64, completed: u64, deviceId: u32, contextId: u32, streamId: u32,
        gridX: i32, gridY: i32, gridZ: i32, blockX: i32, blockY: i32, blockZ: i32,
        staticSharedMemory: i32, dynamicSharedMemory: i32, localMemoryPerThread: u32,
        localMemoryTotal: u32, correlationId: u32, gridId: i64, name: *const c_char,
        reserved0: u64, queued: u64, submitted: u64, launchType: u8,
        isSharedMemoryCarveoutRequested: u8, sharedMemoryCarveoutRequested: u8, padding: u8,
        sharedMemoryExecuted: u32, graphNodeId: u64, shmemLimitConfig: u32, graphId: u32,
        pAccessPolicyWindow: u64, channelID: u32, channelType: u32, clusterX: u32, clusterY: u32,
        clusterZ: u32, clusterSchedulingPolicy: u32, localMemoryTotal_v2: u64,
        maxPotentialClusterSize: u32, maxActiveClusters: u32, isDeviceLaunched: u8,
        padding3: [u8; 7],
    }
    /// `CUpti_ActivityMemcpy6`
    Memcpy (112) {
        kind: u32, copyKind: u8, srcKind: u8, dstKind: u8, flags: u8, bytes: u64, start: u64,
        end: u64, deviceId: u32, contextId: u32, streamId: u32, correlationId: u32,
        runtimeCorrelationId: u32, pad: u32, reserved0: u64, graphNodeId: u64, graphId: u32,
        channelID: u32, channelType: u32, isDeviceLaunched: u8, pad2: [u8; 3], copyCount: u64,
    }
    /// `CUpti_ActivityMemset4`
    Memset (104) {
        kind: u32, value: u32, bytes: u64, start: u64, end: u64, deviceId: u32, contextId: u32,
        streamId: u32, correlationId: u32, flags: u16, memoryKind: u16, pad: u32, reserved0: u64,
        graphNodeId: u64, graphId: u32, channelID: u32, channelType: u32, isDeviceLaunched: u8,
        pad2: [u8; 3],
    }
    /// `CUpti_ActivityAPI`
    Api (40) {
        kind: u32, cbid: u32, start: u64, end: u64, processId: u32, threadId: u32,
        correlationId: u32, returnValue: u32,
    }
    /// `CUpti_ActivityExternalCorrelation`
    ExternalCorrelation (24) {
        kind: u32, externalKind: u32, externalId: u64, correlationId: u32, reserved: u32,
    }
    /// `CUpti_ActivityOverhead3`
    Overhead (56) {
        kind: u32, overheadKind: u32, objectKind: u32, processId: u32, threadId: u32, objectPad: u32,
        start: u64, end: u64, correlationId: u32, reserved0: u32, overheadData: u64,
    }
}

/// Returns the length of the record of a kind, or `None` for a kind that is never written.
pub(crate) fn len(kind: u32) -> Option<usize> {
    Some(match kind {
        CONCURRENT_KERNEL | KERNEL => Kernel::BYTES,
        MEMCPY => Memcpy::BYTES,
        MEMSET => Memset::BYTES,
        DRIVER | RUNTIME => Api::BYTES,
        EXTERNAL_CORRELATION => ExternalCorrelation::BYTES,
        OVERHEAD => Overhead::BYTES,
        _ => return None,
    })
}
