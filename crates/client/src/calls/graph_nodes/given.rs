//! Parameters of nodes as programs give them: one function for each record or value of CUDA's.
//! Calls that add and change nodes are generated, and name the function in their declaration.
//!
//! The unsafe ones have one contract: `params` must be NULL, or a record of the type named, whose
//! arrays have as many entries as it says. The driver API asks it of its callers.

#![allow(clippy::missing_safety_doc, clippy::unnecessary_wraps)]

use std::{ffi::c_void, sync::Arc};

use outboard_api::{
    CUresult,
    argument::Argument as _,
    cuda::{
        CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
        CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr, CUevent, CUgraph,
    },
    enums::*,
};

use super::work::NodeSpec;
use crate::{
    calls::{
        In,
        graph::record,
        graph_params::{ConditionalParams, CopyNodeParams, MemsetNodeParams, NodeParams, widened},
    },
    log,
    state::{AllocParams, Driver, MemOpsRecord},
};

type Given = Result<NodeSpec, CUresult>;

pub(crate) fn empty(_: &Driver) -> Given {
    Ok(NodeSpec::Empty)
}

pub(crate) fn child(driver: &Driver, child: CUgraph) -> Given {
    Ok(NodeSpec::Child(driver.wire_graph(child)?))
}

pub(crate) fn event_record(_: &Driver, event: CUevent) -> Given {
    Ok(NodeSpec::Event { event, wait: false })
}

pub(crate) fn event_wait(_: &Driver, event: CUevent) -> Given {
    Ok(NodeSpec::Event { event, wait: true })
}

pub(crate) fn free(_: &Driver, address: CUdeviceptr) -> Given {
    Ok(NodeSpec::Free(address))
}

pub(crate) fn host(_: &Driver, params: In<'_, CUDA_HOST_NODE_PARAMS>) -> Given {
    let host = params.get()?;
    match host.func {
        Some(_) => Ok(NodeSpec::Host(host)),
        None => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

/// Sets memory in the current context.
pub(crate) fn memset(driver: &Driver, params: In<'_, CUDA_MEMSET_NODE_PARAMS>) -> Given {
    memset_in(driver, params, CUcontext::NULL)
}

pub(crate) fn memset_in(
    driver: &Driver,
    params: In<'_, CUDA_MEMSET_NODE_PARAMS>,
    context: CUcontext,
) -> Given {
    driver.memset_work(&params.get()?, context)
}

/// Copies in the current context.
pub(crate) fn copy(driver: &Driver, params: In<'_, CUDA_MEMCPY3D>) -> Given {
    copy_in(driver, params, CUcontext::NULL)
}

pub(crate) fn copy_in(driver: &Driver, params: In<'_, CUDA_MEMCPY3D>, context: CUcontext) -> Given {
    driver.copy_work(&params.get()?, context)
}

pub(crate) unsafe fn kernel(driver: &Driver, params: In<'_, CUDA_KERNEL_NODE_PARAMS>) -> Given {
    // SAFETY: the record's arrays are as the module's contract says of `params`.
    unsafe { driver.kernel_work(&params.get()?) }
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`
pub(crate) unsafe fn kernel_v1(driver: &Driver, params: *const c_void) -> Given {
    // SAFETY: `params` and its arrays are as the module's contract says.
    unsafe { driver.kernel_work(&widened(params)?) }
}

pub(crate) unsafe fn mem_ops(
    driver: &Driver,
    params: In<'_, CUDA_BATCH_MEM_OP_NODE_PARAMS>,
) -> Given {
    // SAFETY: the record's array is as the module's contract says of `params`.
    unsafe { driver.mem_ops_work(&params.get()?) }
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`
pub(crate) fn alloc(driver: &Driver, params: &AllocParams) -> Given {
    Ok(NodeSpec::Alloc(driver.graph_memory_of(params)?))
}

/// `CUgraphNodeParams`: a type, and the parameters of that type.
///
/// # Safety
/// `node` must be NULL or a `CUgraphNodeParams`, whose parameters have the type that it names.
pub(crate) unsafe fn any(driver: &Driver, node: *mut c_void) -> Result<NodeSpec, CUresult> {
    // SAFETY: NULL or a `CUgraphNodeParams`, by this function's contract.
    let node: &NodeParams = unsafe { record(node)? };
    let params = node.params.as_ptr().cast::<c_void>();
    if node.reserved0 != [0; 3] || node.reserved2 != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let handle = node.params[0] as usize;
    match node.kind {
        // SAFETY: the kind says that the parameters are of this type.
        CU_GRAPH_NODE_TYPE_KERNEL => unsafe { kernel(driver, In::from_c(params.cast())) },
        CU_GRAPH_NODE_TYPE_MEMCPY => {
            // SAFETY: the kind says that the parameters are of this type.
            let copy: &CopyNodeParams = unsafe { record(params)? };
            if copy.flags != 0 || copy.reserved != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            driver.copy_work(&copy.copy, copy.context)
        }
        CU_GRAPH_NODE_TYPE_MEMSET => {
            // SAFETY: the kind says that the parameters are of this type.
            let memset: &MemsetNodeParams = unsafe { record(params)? };
            driver.memset_work(&memset.memset, memset.context)
        }
        // SAFETY: the kind says that the parameters are of this type.
        CU_GRAPH_NODE_TYPE_HOST => host(driver, unsafe { In::from_c(params.cast()) }),
        CU_GRAPH_NODE_TYPE_GRAPH => match node.params[1] as u32 {
            CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => child(driver, CUgraph(handle)),
            CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => {
                Ok(NodeSpec::Moved(driver.wire_graph(CUgraph(handle))?))
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        },
        CU_GRAPH_NODE_TYPE_EMPTY => empty(driver),
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => event_wait(driver, CUevent(handle)),
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => event_record(driver, CUevent(handle)),
        // SAFETY: the kind says that the parameters are of this type.
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => unsafe { mem_ops(driver, In::from_c(params.cast())) },
        CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            // SAFETY: the kind says that the parameters are of this type.
            driver.conditional_work(unsafe { record(params)? })
        }
        // SAFETY: the kind says that the parameters are of this type.
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => alloc(driver, unsafe { record(params)? }),
        CU_GRAPH_NODE_TYPE_MEM_FREE => free(driver, node.params[0]),
        other => {
            log::warn(match other {
                CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL | CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT => {
                    "graph nodes of external semaphores are not supported"
                }
                _ => "graph nodes of a type that CUDA 13.0 has not are not supported",
            });
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
    }
}

impl Driver {
    /// # Safety
    /// `params.params` must be NULL or have `params.count` entries.
    unsafe fn mem_ops_work(
        &self,
        params: &CUDA_BATCH_MEM_OP_NODE_PARAMS,
    ) -> Result<NodeSpec, CUresult> {
        /// The driver's own limit.
        const OPS_MAX: u32 = 256;
        let count = params.count;
        if params.params.is_null() || count == 0 || count > OPS_MAX || params.flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not NULL, so it has `count` entries by this function's contract.
        let ops = unsafe { std::slice::from_raw_parts(params.params, count as usize) };
        for op in ops {
            if op.operation != CU_STREAM_MEM_OP_BARRIER {
                self.device_address(op.address)?;
            }
        }
        let context = self.node_context(params.ctx)?;
        let record = MemOpsRecord::new(ops, params.ctx, context, params.flags);
        Ok(NodeSpec::MemOps(Arc::new(record)))
    }

    fn conditional_work(&self, params: &ConditionalParams) -> Result<NodeSpec, CUresult> {
        /// Most graphs of one conditional node.
        const BODIES_MAX: u32 = 1 << 12;
        let allowed = match params.kind {
            CU_GRAPH_COND_TYPE_IF => 1..=2,
            CU_GRAPH_COND_TYPE_WHILE => 1..=1,
            CU_GRAPH_COND_TYPE_SWITCH => 1..=BODIES_MAX,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        if !allowed.contains(&params.size) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        Ok(NodeSpec::Conditional {
            handle: params.handle,
            kind: params.kind,
            bodies: (0..params.size).map(|_| self.mint_graph()).collect(),
            context: self.node_context(params.context)?,
        })
    }

    /// Allocates the memory of a node.
    pub(super) fn graph_memory_of(&self, params: &AllocParams) -> Result<AllocParams, CUresult> {
        const DEVICE: u32 = 1;
        if params.handle_types != 0 || params.bytes == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if params.allocation_type == CU_MEM_ALLOCATION_TYPE_MANAGED {
            log::warn("graph nodes that allocate managed memory are not supported");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if params.allocation_type != CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.card(params.location)
            .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if params.location_type != DEVICE || params.location != self.contexts.current()?.device {
            log::warn("graph nodes that allocate on another device or the host are not supported");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let address = self.graph_allocate(params.bytes as u64)?;
        Ok(AllocParams { address, ..*params })
    }
}
