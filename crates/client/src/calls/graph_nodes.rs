//! The nodes of graphs that programs build by hand: added, changed, asked for their parameters. What a node does is in
//! `work`, once for nodes that are added and for nodes that are changed.

mod captured;
mod work;

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
        CUcontext, CUevent, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode,
    },
    enums::*,
};
use outboard_wire::codec::id_bytes;

use self::work::*;
use super::{
    Done,
    graph::{edge_list, node_ids, record},
    graph_params::{
        CopyNodeParams, KERNEL_V1_BYTES, MemsetNodeParams, NodeParams, no_kernel, widened,
    },
    put,
};
use crate::{
    log,
    state::{Driver, Kind, NodeRecord, driver},
};

/// Where a new node goes.
struct Spot {
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
}

impl Spot {
    fn plain(
        out: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
    ) -> Spot {
        Spot {
            out,
            graph,
            after,
            edges: std::ptr::null(),
            count,
        }
    }
}

/// Adds a node. What it does is looked at after where it goes, as CUDA does.
///
/// # Safety
/// The spot's pointers are what the driver API asks of a caller.
unsafe fn add_node(spot: &Spot, work: impl FnOnce(&Driver) -> Result<Work, CUresult>) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(spot.graph)?;
    // SAFETY: the caller's promise.
    let (dependencies, edges) = unsafe {
        (
            node_ids(driver, spot.after, spot.count)?,
            edge_list(spot.edges, spot.count),
        )
    };
    if spot.out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let work = work(driver)?;
    let node = driver.handles.mint(Kind::Node);
    if edges.is_empty() {
        driver.add(graph, node, &id_bytes(&dependencies), &work)?;
    } else {
        // Edges that do more than order two nodes are added once the node is there.
        driver.add(graph, node, &[], &work)?;
        let to = vec![node; dependencies.len()];
        driver.add_dependencies(graph, &dependencies, &to, &edges)?;
    }
    driver.graphs.learn(graph, node, work.record());
    // SAFETY: as above.
    unsafe { put(spot.out, CUgraphNode(node as usize)) }
}

fn set_exec_node(
    exec: CUgraphExec,
    node: CUgraphNode,
    work: impl FnOnce(&Driver) -> Result<Work, CUresult>,
) -> Done {
    let driver = driver()?;
    let (exec, node) = (driver.wire_graphexec(exec)?, driver.wire_node(node)?);
    driver.set_exec(exec, node, &work(driver)?)
}

pub(crate) unsafe fn cuGraphAddEmptyNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { add_node(&Spot::plain(out, graph, after, count), |_| Ok(Work::Empty)) }
}

pub(crate) unsafe fn cuGraphAddChildGraphNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    child: CUgraph,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            Ok(Work::Child(driver.wire_graph(child)?))
        })
    }
}

pub(crate) unsafe fn cuGraphAddEventRecordNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |_| {
            Ok(Work::Event { event, wait: false })
        })
    }
}

pub(crate) unsafe fn cuGraphAddEventWaitNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |_| {
            Ok(Work::Event { event, wait: true })
        })
    }
}

fn host_work(host: &CUDA_HOST_NODE_PARAMS) -> Result<Work, CUresult> {
    if host.func.is_none() {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    } else {
        Ok(Work::Host(*host))
    }
}

pub(crate) unsafe fn cuGraphAddHostNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |_| {
            host_work(record(params.cast())?)
        })
    }
}

pub(crate) unsafe fn cuGraphHostNodeGetParams(
    node: CUgraphNode,
    params: *mut CUDA_HOST_NODE_PARAMS,
) -> Done {
    match recorded(node)? {
        // SAFETY: see the module's contract.
        NodeRecord::Host(host) => unsafe { put(params, host) },
        other => Err(not_recorded(&other, "cuGraphHostNodeGetParams")),
    }
}

pub(crate) unsafe fn cuGraphAddMemsetNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.memset_work(record(params.cast())?, context)
        })
    }
}

pub(crate) unsafe fn cuGraphExecMemsetNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.memset_work(record(params.cast())?, context)
    })
}

pub(crate) unsafe fn cuGraphMemsetNodeGetParams(
    node: CUgraphNode,
    params: *mut CUDA_MEMSET_NODE_PARAMS,
) -> Done {
    match recorded(node)? {
        // SAFETY: see the module's contract.
        NodeRecord::Memset(memset) => unsafe { put(params, memset) },
        other => Err(not_recorded(&other, "cuGraphMemsetNodeGetParams")),
    }
}

pub(crate) unsafe fn cuGraphAddMemcpyNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.copy_work(record(params.cast())?, context)
        })
    }
}

pub(crate) unsafe fn cuGraphExecMemcpyNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.copy_work(record(params.cast())?, context)
    })
}

pub(crate) unsafe fn cuGraphExecChildGraphNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> Done {
    set_exec_node(exec, node, |driver| {
        Ok(Work::Child(driver.wire_graph(child)?))
    })
}

pub(crate) unsafe fn cuGraphAddKernelNode_v2(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.kernel_work(record(params.cast())?)
        })
    }
}

pub(crate) unsafe fn cuGraphAddKernelNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const c_void,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.kernel_work(&widened(params)?)
        })
    }
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams_v2(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.kernel_work(record(params.cast())?)
    })
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const c_void,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.kernel_work(&widened(params)?)
    })
}

fn kernel_params(node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
    let recorded = match recorded(node)? {
        NodeRecord::Unknown => NodeRecord::Kernel(driver()?.learn_kernel(node)?),
        recorded => recorded,
    };
    match recorded {
        NodeRecord::Kernel(kernel) => {
            let ([grid_dim_x, grid_dim_y, grid_dim_z], [block_dim_x, block_dim_y, block_dim_z]) =
                (kernel.grid, kernel.block);
            Ok(CUDA_KERNEL_NODE_PARAMS {
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
                ..no_kernel()
            })
        }
        other => Err(not_recorded(&other, "cuGraphKernelNodeGetParams")),
    }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams_v2(
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { put(params, kernel_params(node)?) }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut c_void) -> Done {
    if params.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let wide = kernel_params(node)?;
    // SAFETY: the fields that both records have, into the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(
            (&raw const wide).cast::<u8>(),
            params.cast::<u8>(),
            KERNEL_V1_BYTES,
        )
    };
    Ok(())
}

fn recorded(node: CUgraphNode) -> Result<NodeRecord, CUresult> {
    driver()?.graphs.record(node.0 as u64)
}

/// A question about a node of another kind, or about one that was captured.
fn not_recorded(record: &NodeRecord, call: &str) -> CUresult {
    match record {
        NodeRecord::Unknown => {
            log::warn(format_args!(
                "{call} is not supported for a node that was captured, cloned or is of another kind"
            ));
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        }
        _ => CUresult::CUDA_ERROR_INVALID_VALUE,
    }
}

/// The parameters of any kind of node.
///
/// # Safety
/// The parameters are those of the type that the record names.
unsafe fn any_work(driver: &Driver, node: *const c_void) -> Result<Work, CUresult> {
    // SAFETY: the caller's promise, here and below.
    let node: &NodeParams = unsafe { record(node)? };
    let params = node.params.as_ptr().cast::<c_void>();
    if node.reserved0 != [0; 3] || node.reserved2 != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let handle = node.params[0] as usize;
    match node.kind {
        // SAFETY: as above.
        CU_GRAPH_NODE_TYPE_KERNEL => unsafe { driver.kernel_work(record(params)?) },
        CU_GRAPH_NODE_TYPE_MEMCPY => {
            // SAFETY: as above.
            let copy: &CopyNodeParams = unsafe { record(params)? };
            if copy.flags != 0 || copy.reserved != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            driver.copy_work(&copy.copy, copy.context)
        }
        CU_GRAPH_NODE_TYPE_MEMSET => {
            // SAFETY: as above.
            let memset: &MemsetNodeParams = unsafe { record(params)? };
            driver.memset_work(&memset.memset, memset.context)
        }
        // SAFETY: as above.
        CU_GRAPH_NODE_TYPE_HOST => unsafe { host_work(record(params)?) },
        CU_GRAPH_NODE_TYPE_GRAPH if node.params[1] as u32 == 0 => {
            Ok(Work::Child(driver.wire_graph(CUgraph(handle))?))
        }
        CU_GRAPH_NODE_TYPE_EMPTY => Ok(Work::Empty),
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => Ok(Work::Event {
            event: CUevent(handle),
            wait: true,
        }),
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => Ok(Work::Event {
            event: CUevent(handle),
            wait: false,
        }),
        other => {
            log::warn(format_args!(
                "graph nodes of type {other} are not supported"
            ));
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
    }
}

pub(crate) unsafe fn cuGraphAddNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *mut c_void,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { cuGraphAddNode_v2(out, graph, after, std::ptr::null(), count, params) }
}

pub(crate) unsafe fn cuGraphAddNode_v2(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    params: *mut c_void,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(
            &Spot {
                out,
                graph,
                after,
                edges,
                count,
            },
            |driver| any_work(driver, params),
        )
    }
}

pub(crate) unsafe fn cuGraphExecNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *mut c_void,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe { any_work(driver, params) })
}
