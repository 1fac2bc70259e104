//! Parameters of nodes as programs get them: one function for each record of CUDA's, made of what
//! is kept about the node. `None` for a node of another kind. Calls that read nodes are generated,
//! and name the function in their declaration.

use outboard_api::cuda::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUevent,
};

use crate::{
    calls::graph_params::KERNEL_V1_BYTES,
    state::{AllocParams, NodeRecord},
};

pub(crate) fn host(node: NodeRecord) -> Option<CUDA_HOST_NODE_PARAMS> {
    match node {
        NodeRecord::Host(host) => Some(host),
        _ => None,
    }
}

pub(crate) fn event(node: NodeRecord) -> Option<CUevent> {
    match node {
        NodeRecord::Event(event) => Some(event),
        _ => None,
    }
}

pub(crate) fn memset(node: NodeRecord) -> Option<CUDA_MEMSET_NODE_PARAMS> {
    match node {
        NodeRecord::Memset(memset) => Some(memset),
        _ => None,
    }
}

pub(crate) fn copy(node: NodeRecord) -> Option<CUDA_MEMCPY3D> {
    match node {
        NodeRecord::Copy { copy, .. } => Some(copy),
        _ => None,
    }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`
pub(crate) fn alloc(node: NodeRecord) -> Option<AllocParams> {
    match node {
        NodeRecord::Alloc(params) => Some(params),
        _ => None,
    }
}

pub(crate) fn free(node: NodeRecord) -> Option<CUdeviceptr> {
    match node {
        NodeRecord::Free(address) => Some(address),
        _ => None,
    }
}

pub(crate) fn mem_ops(node: NodeRecord) -> Option<CUDA_BATCH_MEM_OP_NODE_PARAMS> {
    let NodeRecord::MemOps(ops) = node else {
        return None;
    };
    // The array stays as long as the node is known.
    Some(CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: ops.named_context,
        count: ops.ops().len() as u32,
        params: ops.ops().as_ptr().cast_mut(),
        flags: ops.flags,
    })
}

pub(crate) fn kernel(node: NodeRecord) -> Option<CUDA_KERNEL_NODE_PARAMS> {
    let NodeRecord::Kernel(kernel) = node else {
        return None;
    };
    let ([grid_dim_x, grid_dim_y, grid_dim_z], [block_dim_x, block_dim_y, block_dim_z]) =
        (kernel.grid, kernel.block);
    Some(CUDA_KERNEL_NODE_PARAMS {
        func: kernel.func,
        kern: kernel.kern,
        grid_dim_x,
        grid_dim_y,
        grid_dim_z,
        block_dim_x,
        block_dim_y,
        block_dim_z,
        shared_mem_bytes: kernel.shared_bytes,
        kernel_params: kernel.pointers(),
        ..CUDA_KERNEL_NODE_PARAMS::EMPTY
    })
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`: the first fields of the newer record.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct KernelV1([u8; KERNEL_V1_BYTES]);

pub(crate) fn kernel_v1(node: NodeRecord) -> Option<KernelV1> {
    let wide = kernel(node)?;
    let mut params = KernelV1([0; KERNEL_V1_BYTES]);
    // SAFETY: `wide` begins with the fields of the older record, which is plain data.
    unsafe {
        std::ptr::copy_nonoverlapping(
            (&raw const wide).cast(),
            params.0.as_mut_ptr(),
            KERNEL_V1_BYTES,
        )
    };
    Some(params)
}

const _: () = assert!(size_of::<KernelV1>() == KERNEL_V1_BYTES);
