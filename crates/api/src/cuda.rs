//! CUDA's own types: handles, and the records that the client reads or sends unchanged. Layouts are
//! those of `cuda.h` 13.0 on x86-64; the sizes are checked below.

use std::ffi::{c_char, c_int, c_uint, c_void};

macro_rules! opaque_handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        /// Opaque to programs; here a number made by the client.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub usize);

        impl $name {
            pub const NULL: $name = $name(0);
            pub fn is_null(self) -> bool { self.0 == 0 }
        }
    )*};
}

opaque_handles! {
    CUcontext; CUmodule; CUlibrary; CUfunction; CUkernel; CUstream; CUevent; CUgraph; CUgraphExec; CUgraphNode;
    CUmemoryPool; CUarray; CUmipmappedArray; CUlinkState; CUtexref; CUsurfref; CUgreenCtx; CUuserObject;
}

/// `CU_STREAM_LEGACY`: the default stream that waits for all blocking streams.
pub const CU_STREAM_LEGACY: CUstream = CUstream(1);
/// `CU_STREAM_PER_THREAD`: the calling thread's own default stream.
pub const CU_STREAM_PER_THREAD: CUstream = CUstream(2);

pub type CUdevice = c_int;
pub type CUdeviceptr = u64;
pub type CUtexObject = u64;
pub type CUsurfObject = u64;
pub type CUmemGenericAllocationHandle = u64;
pub type CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
pub type CUstreamCallback =
    Option<unsafe extern "C" fn(stream: CUstream, status: c_uint, user_data: *mut c_void)>;
pub type CUoccupancyB2DSize = Option<unsafe extern "C" fn(block_size: c_int) -> usize>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CUuuid {
    pub bytes: [u8; 16],
}

/// `CUipcMemHandle`, which programs pass on unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CUipcMemHandle {
    pub reserved: [u8; 64],
}

/// `CUipcEventHandle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CUipcEventHandle {
    pub reserved: [u8; 64],
}

/// `CUdevprop`, which the deprecated `cuDeviceGetProperties` fills.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct CUdevprop {
    pub max_threads_per_block: c_int,
    pub max_threads_dim: [c_int; 3],
    pub max_grid_size: [c_int; 3],
    pub shared_mem_per_block: c_int,
    pub total_constant_memory: c_int,
    pub simd_width: c_int,
    pub mem_pitch: c_int,
    pub regs_per_block: c_int,
    pub clock_rate: c_int,
    pub texture_align: c_int,
}

/// `CUDA_MEMCPY2D_v2`; pitches, x and widths in bytes, y and heights in rows.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUDA_MEMCPY2D {
    pub src_x_in_bytes: usize,
    pub src_y: usize,
    pub src_memory_type: c_uint,
    pub src_host: *const c_void,
    pub src_device: CUdeviceptr,
    pub src_array: CUarray,
    pub src_pitch: usize,
    pub dst_x_in_bytes: usize,
    pub dst_y: usize,
    pub dst_memory_type: c_uint,
    pub dst_host: *mut c_void,
    pub dst_device: CUdeviceptr,
    pub dst_array: CUarray,
    pub dst_pitch: usize,
    pub width_in_bytes: usize,
    pub height: usize,
}

/// `CUDA_MEMCPY3D_v2`; `CUDA_MEMCPY3D_PEER` has contexts in place of the reserved words.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUDA_MEMCPY3D {
    pub src_x_in_bytes: usize,
    pub src_y: usize,
    pub src_z: usize,
    pub src_lod: usize,
    pub src_memory_type: c_uint,
    pub src_host: *const c_void,
    pub src_device: CUdeviceptr,
    pub src_array: CUarray,
    pub reserved0: usize,
    pub src_pitch: usize,
    pub src_height: usize,
    pub dst_x_in_bytes: usize,
    pub dst_y: usize,
    pub dst_z: usize,
    pub dst_lod: usize,
    pub dst_memory_type: c_uint,
    pub dst_host: *mut c_void,
    pub dst_device: CUdeviceptr,
    pub dst_array: CUarray,
    pub reserved1: usize,
    pub dst_pitch: usize,
    pub dst_height: usize,
    pub width_in_bytes: usize,
    pub height: usize,
    pub depth: usize,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUDA_ARRAY_DESCRIPTOR {
    pub width: usize,
    pub height: usize,
    pub format: c_uint,
    pub num_channels: c_uint,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUDA_ARRAY3D_DESCRIPTOR {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: c_uint,
    pub num_channels: c_uint,
    pub flags: c_uint,
}

/// One attribute of a launch, a stream or a kernel node: 64 bytes of value at offset 8.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct CUlaunchAttribute {
    pub id: c_uint,
    pub pad: [u8; 4],
    pub value: [u8; 64],
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUlaunchConfig {
    pub grid_dim_x: c_uint,
    pub grid_dim_y: c_uint,
    pub grid_dim_z: c_uint,
    pub block_dim_x: c_uint,
    pub block_dim_y: c_uint,
    pub block_dim_z: c_uint,
    pub shared_mem_bytes: c_uint,
    pub stream: CUstream,
    pub attrs: *mut CUlaunchAttribute,
    pub num_attrs: c_uint,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CUmemLocation {
    pub kind: c_uint,
    pub id: c_int,
}

/// Attributes of copies of a batch.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct CUmemcpyAttributes {
    pub src_access_order: c_uint,
    pub src_loc_hint: CUmemLocation,
    pub dst_loc_hint: CUmemLocation,
    pub flags: c_uint,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUmemAllocationProp {
    pub kind: c_uint,
    pub requested_handle_types: c_uint,
    pub location: CUmemLocation,
    pub win32_handle_meta_data: *mut c_void,
    pub compression_type: u8,
    pub gpu_direct_rdma_capable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUmemAccessDesc {
    pub location: CUmemLocation,
    pub flags: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct CUmemPoolProps {
    pub alloc_type: c_uint,
    pub handle_types: c_uint,
    pub location: CUmemLocation,
    pub win32_security_attributes: *mut c_void,
    pub max_size: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    pub func: CUfunction,
    pub grid_dim_x: c_uint,
    pub grid_dim_y: c_uint,
    pub grid_dim_z: c_uint,
    pub block_dim_x: c_uint,
    pub block_dim_y: c_uint,
    pub block_dim_z: c_uint,
    pub shared_mem_bytes: c_uint,
    pub kernel_params: *mut *mut c_void,
    pub extra: *mut *mut c_void,
    pub kern: CUkernel,
    pub ctx: CUcontext,
}

impl CUDA_KERNEL_NODE_PARAMS {
    pub const EMPTY: CUDA_KERNEL_NODE_PARAMS = CUDA_KERNEL_NODE_PARAMS {
        func: CUfunction::NULL,
        grid_dim_x: 0,
        grid_dim_y: 0,
        grid_dim_z: 0,
        block_dim_x: 0,
        block_dim_y: 0,
        block_dim_z: 0,
        shared_mem_bytes: 0,
        kernel_params: std::ptr::null_mut(),
        extra: std::ptr::null_mut(),
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    };
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    pub dst: CUdeviceptr,
    pub pitch: usize,
    pub value: c_uint,
    pub element_size: c_uint,
    pub width: usize,
    pub height: usize,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUDA_HOST_NODE_PARAMS {
    pub func: CUhostFn,
    pub user_data: *mut c_void,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUDA_GRAPH_INSTANTIATE_PARAMS {
    pub flags: u64,
    pub upload_stream: CUstream,
    pub err_node_out: CUgraphNode,
    pub result_out: c_uint,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUgraphExecUpdateResultInfo {
    pub result: c_uint,
    pub error_node: CUgraphNode,
    pub error_from_node: CUgraphNode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CUgraphEdgeData {
    pub from_port: u8,
    pub to_port: u8,
    pub kind: u8,
    pub reserved: [u8; 5],
}

/// `CUctxCreateParams`: the parameters that `cuCtxCreate_v4` adds.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CUctxCreateParams {
    pub exec_affinity_params: *mut c_void,
    pub num_exec_affinity_params: c_int,
    pub cig_params: *mut c_void,
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
    pub ctx: CUcontext,
    pub count: u32,
    pub params: *mut CUstreamBatchMemOpParams,
    pub flags: u32,
}

/// `CUstreamBatchMemOpParams`: a union, padded to 48 bytes; the operation is the first word of
/// every member.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CUstreamBatchMemOpParams {
    pub operation: c_uint,
    pub pad: u32,
    pub address: CUdeviceptr,
    pub value: u64,
    pub flags: c_uint,
    pub pad2: u32,
    pub alias: CUdeviceptr,
    pub pad3: u64,
}

/// The 128-byte descriptor that Hopper's copy engine reads.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct CUtensorMap {
    pub opaque: [u64; 16],
}

/// A name out of a C string that CUDA fills.
pub type Name = c_char;

const _: () = {
    assert!(size_of::<CUDA_MEMCPY2D>() == 128);
    assert!(size_of::<CUDA_MEMCPY3D>() == 200);
    assert!(size_of::<CUDA_ARRAY_DESCRIPTOR>() == 24);
    assert!(size_of::<CUDA_ARRAY3D_DESCRIPTOR>() == 40);
    assert!(size_of::<CUlaunchAttribute>() == 72);
    assert!(size_of::<CUlaunchConfig>() == 56);
    assert!(size_of::<CUmemAllocationProp>() == 32);
    assert!(size_of::<CUmemAccessDesc>() == 12);
    assert!(size_of::<CUmemPoolProps>() == 88);
    assert!(size_of::<CUDA_KERNEL_NODE_PARAMS>() == 72);
    assert!(size_of::<CUDA_MEMSET_NODE_PARAMS>() == 40);
    assert!(size_of::<CUDA_HOST_NODE_PARAMS>() == 16);
    assert!(size_of::<CUDA_GRAPH_INSTANTIATE_PARAMS>() == 32);
    assert!(size_of::<CUgraphExecUpdateResultInfo>() == 24);
    assert!(size_of::<CUgraphEdgeData>() == 8);
    assert!(size_of::<CUctxCreateParams>() == 24);
    assert!(size_of::<CUstreamBatchMemOpParams>() == 48);
    assert!(size_of::<CUDA_BATCH_MEM_OP_NODE_PARAMS>() == 32);
    assert!(size_of::<CUtensorMap>() == 128);
    assert!(size_of::<CUdevprop>() == 56);
};
