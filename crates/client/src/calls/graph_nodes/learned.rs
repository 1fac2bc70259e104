//! Parameters of nodes that the program did not create itself: captured and cloned ones. The server
//! is asked once for each.

use std::sync::Arc;

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent,
        CUfunction, CUgraphNode, CUkernel, CUstreamBatchMemOpParams,
    },
    enums::*,
};
use outboard_wire::{
    doc::{self, BoxEnd, CopyBox, KernelWork, NodeWork},
    messages,
};

use crate::{
    calls::copy::MemoryKind,
    state::{
        Driver, HandleKind, KernelRecord, MemOpsRecord, NodeRecord, host_functions, wire_context,
    },
};

impl Driver {
    /// Returns the parameters of a node. A node of a kind without parameters gives the driver's
    /// error.
    pub(super) fn learned(&self, node: CUgraphNode) -> Result<NodeRecord, CUresult> {
        let number = self.wire_node(node)?;
        match self.graphs.record(number)? {
            NodeRecord::Unknown => {}
            known => return Ok(known),
        }
        let graph = self.graphs.graph_of(number)?;
        let work = self.call(&messages::GraphWork { node: number }, |reply| {
            doc::from_bytes::<NodeWork>(&reply.work)
        })?;
        let record = match work.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)? {
            NodeWork::Kernel(kernel) => NodeRecord::Kernel(self.learned_kernel(&kernel)?),
            NodeWork::Memset(set) => NodeRecord::Memset(CUDA_MEMSET_NODE_PARAMS {
                dst: set.dst,
                pitch: set.pitch as usize,
                value: set.value,
                element_size: set.element_size,
                width: set.width as usize,
                height: set.height as usize,
            }),
            NodeWork::Copy(copy) => NodeRecord::Copy {
                copy: self.copy_record(&copy),
                pageable: false,
            },
            NodeWork::Host(call) => NodeRecord::Host(
                host_functions::function_of(call).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?,
            ),
            NodeWork::RecordEvent(event) | NodeWork::WaitEvent(event) => {
                NodeRecord::Event(CUevent(event as usize))
            }
            NodeWork::MemOps(records) => NodeRecord::MemOps(Arc::new(learned_ops(&records))),
            NodeWork::Empty
            | NodeWork::Child(_)
            | NodeWork::Moved(_)
            | NodeWork::Conditional(_) => {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        };
        self.graphs.learn(graph, number, record.clone());
        Ok(record)
    }

    fn learned_kernel(&self, work: &KernelWork) -> Result<Arc<KernelRecord>, CUresult> {
        let kernel = self.libraries.by_wire(work.kernel)?;
        let func = CUfunction(kernel.handle());
        if work.params.len() < kernel.param_bytes as usize {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        }
        let ([grid_dim_x, grid_dim_y, grid_dim_z], [block_dim_x, block_dim_y, block_dim_z]) =
            (work.grid, work.block);
        // Programs know a module's kernel as a function, and a library's as a kernel.
        let module = HandleKind::Module.tag(kernel.library) as usize;
        let of_module = self.libraries.get(module)?.context.is_some();
        let (func, kern) = match of_module {
            true => (func, CUkernel::NULL),
            false => (CUfunction::NULL, CUkernel(func.0)),
        };
        let shape = CUDA_KERNEL_NODE_PARAMS {
            func,
            kern,
            grid_dim_x,
            grid_dim_y,
            grid_dim_z,
            block_dim_x,
            block_dim_y,
            block_dim_z,
            shared_mem_bytes: work.shared_bytes,
            ..CUDA_KERNEL_NODE_PARAMS::EMPTY
        };
        Ok(Arc::new(KernelRecord::new(&shape, kernel, &work.params)))
    }

    /// Converts a copy to the program's record. Memory that is not the device's is the host's.
    pub(in crate::calls) fn copy_record(&self, copy: &CopyBox) -> CUDA_MEMCPY3D {
        let end = |end: BoxEnd| match end {
            BoxEnd::Pitched {
                address,
                pitch_bytes,
                height,
            } => match self.memory_kind(address, 1) {
                Ok(MemoryKind::Device) => (CU_MEMORYTYPE_DEVICE, 0, address, pitch_bytes, height),
                _ => (CU_MEMORYTYPE_HOST, address, 0, pitch_bytes, height),
            },
            BoxEnd::Array { .. } | BoxEnd::Packed => (CU_MEMORYTYPE_ARRAY, 0, 0, 0, 0),
        };
        let (src_kind, src_host, src_device, src_pitch, src_height) = end(copy.src);
        let (dst_kind, dst_host, dst_device, dst_pitch, dst_height) = end(copy.dst);
        CUDA_MEMCPY3D {
            src_x_in_bytes: copy.src_x as usize,
            src_y: copy.src_y as usize,
            src_z: copy.src_z as usize,
            src_lod: 0,
            src_memory_type: src_kind,
            src_host: std::ptr::with_exposed_provenance(src_host as usize),
            src_device,
            src_array: array_of(copy.src),
            reserved0: 0,
            src_pitch: src_pitch as usize,
            src_height: src_height as usize,
            dst_x_in_bytes: copy.dst_x as usize,
            dst_y: copy.dst_y as usize,
            dst_z: copy.dst_z as usize,
            dst_lod: 0,
            dst_memory_type: dst_kind,
            dst_host: std::ptr::with_exposed_provenance_mut(dst_host as usize),
            dst_device,
            dst_array: array_of(copy.dst),
            reserved1: 0,
            dst_pitch: dst_pitch as usize,
            dst_height: dst_height as usize,
            width_in_bytes: copy.width as usize,
            height: copy.height as usize,
            depth: copy.depth as usize,
        }
    }
}

fn array_of(end: BoxEnd) -> outboard_api::cuda::CUarray {
    match end {
        BoxEnd::Array { array } => outboard_api::cuda::CUarray(array as usize),
        _ => outboard_api::cuda::CUarray::NULL,
    }
}

fn learned_ops(records: &[u8]) -> MemOpsRecord {
    let (records, _) = records.as_chunks::<{ size_of::<CUstreamBatchMemOpParams>() }>();
    // SAFETY: the array has the record's length; every value of its bytes is valid.
    let read = |bytes: &[u8; size_of::<CUstreamBatchMemOpParams>()]| unsafe {
        bytes
            .as_ptr()
            .cast::<CUstreamBatchMemOpParams>()
            .read_unaligned()
    };
    let ops: Vec<CUstreamBatchMemOpParams> = records.iter().map(read).collect();
    MemOpsRecord::new(&ops, CUcontext::NULL, wire_context(), 0)
}
