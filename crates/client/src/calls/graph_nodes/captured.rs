//! Parameters of captured nodes, asked of the server once for each node.

use std::sync::Arc;

use outboard_api::{
    CUresult,
    cuda::{CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraphNode},
};
use outboard_wire::messages;

use crate::{
    calls::graph_params::no_kernel,
    state::{Driver, KernelRecord, Kind, NodeRecord},
};

impl Driver {
    /// A kernel node that was captured or cloned. The driver's error for one of another kind.
    pub(super) fn learn_kernel(&self, node: CUgraphNode) -> Result<Arc<KernelRecord>, CUresult> {
        let number = self.wire_node(node)?;
        let graph = self.graphs.graph_of(number)?;
        let question = messages::GraphKernelParams { node: number };
        let (kernel, params, shape) = self.call(&question, |reply| {
            let shape = CUDA_KERNEL_NODE_PARAMS {
                grid_dim_x: reply.grid_x,
                grid_dim_y: reply.grid_y,
                grid_dim_z: reply.grid_z,
                block_dim_x: reply.block_x,
                block_dim_y: reply.block_y,
                block_dim_z: reply.block_z,
                shared_mem_bytes: reply.shared_bytes,
                ..no_kernel()
            };
            (reply.kernel, reply.params.to_vec(), shape)
        })?;
        let func = CUfunction(Kind::Kernel.tag(kernel) as usize);
        let kernel = self.libraries.kernel(func)?;
        if params.len() < kernel.param_bytes as usize {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        }
        let shape = CUDA_KERNEL_NODE_PARAMS { func, ..shape };
        let record = Arc::new(KernelRecord::new(&shape, kernel, &params));
        self.graphs
            .learn(graph, number, NodeRecord::Kernel(record.clone()));
        Ok(record)
    }
}
