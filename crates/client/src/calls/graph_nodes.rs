//! Nodes of graphs that programs build by hand: added, changed, queried. `work` converts a node's
//! parameters, once for added and for changed nodes.

mod learned;
mod work;

use std::{ffi::c_void, sync::Arc};

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
        CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr, CUevent, CUgraph,
        CUgraphEdgeData, CUgraphExec, CUgraphNode,
    },
    enums::*,
};
use outboard_wire::{codec::id_bytes, doc::NodeWork, messages};

use self::work::*;
use super::{
    Done,
    graph::{edge_list, node_ids, record},
    graph_params::{
        AllocParams, ConditionalParams, CopyNodeParams, KERNEL_V1_BYTES, MemsetNodeParams,
        NodeParams, widened,
    },
    put,
};
use crate::{
    log,
    state::{Driver, HandleKind, MemOpsRecord, NodeRecord, StreamRef, driver},
};

/// Arguments that place a new node in a graph.
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

/// Adds a node. As in CUDA, the place is checked before the node's work.
///
/// # Safety
/// The pointers in `spot` are as the driver API requires.
unsafe fn add_node(spot: &Spot, work: impl FnOnce(&Driver) -> Result<NodeSpec, CUresult>) -> Done {
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
    let node = driver.handles.mint(HandleKind::Node);
    driver.check_memory_work(graph, &work)?;
    if edges.is_empty() {
        driver.add(graph, node, &id_bytes(&dependencies), &work)?;
    } else {
        // Edges with data are added after the node exists.
        driver.add(graph, node, &[], &work)?;
        let to = vec![node; dependencies.len()];
        driver.add_dependencies(graph, &dependencies, &to, &edges)?;
    }
    driver.graphs.learn(graph, node, work.record());
    driver.added(graph, &work);
    // SAFETY: as above.
    unsafe { put(spot.out, CUgraphNode(node as usize)) }
}

/// Changes the work of a graph's node. Executable graphs made before keep their work.
fn set_node(node: CUgraphNode, work: impl FnOnce(&Driver) -> Result<NodeSpec, CUresult>) -> Done {
    let driver = driver()?;
    let number = driver.wire_node(node)?;
    let graph = driver.graphs.graph_of(number)?;
    let work = work(driver)?;
    driver.check_same_way(number, &work)?;
    driver.set(0, number, &work)?;
    driver.graphs.learn(graph, number, work.record());
    Ok(())
}

impl Driver {
    /// Refuses changes that the server cannot make: only a copy of pageable memory is a child graph
    /// there.
    fn check_same_way(&self, node: u64, work: &NodeSpec) -> Done {
        let was = matches!(
            self.graphs.record(node)?,
            NodeRecord::Copy { pageable: true, .. }
        );
        let (is_copy, is) = match work {
            NodeSpec::Copy { .. } => (true, false),
            NodeSpec::Pageable { .. } => (true, true),
            _ => (false, false),
        };
        if is_copy && was != is {
            log::warn(
                "a graph's copy of pageable memory that becomes one of other memory, or the reverse, is not supported",
            );
            if let NodeSpec::Pageable { child, .. } = work {
                self.drop_graph(*child)?;
            }
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        Ok(())
    }

    /// Refuses graphs that allocate as children, and frees of memory that no graph allocates.
    fn check_memory_work(&self, graph: u64, work: &NodeSpec) -> Done {
        match work {
            NodeSpec::Child(child)
                if self.graph_memory.is_in(*child) || self.graphs.has_conditions(*child) =>
            {
                Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
            }
            NodeSpec::Free(address) => self.graph_memory.frees(graph, *address),
            _ => Ok(()),
        }
    }

    /// Records objects and memory that a new node brings into its graph.
    fn added(&self, graph: u64, work: &NodeSpec) {
        match work {
            NodeSpec::Child(child) => self.user_objects.inherit(graph, *child),
            NodeSpec::Alloc(alloc) => {
                self.graph_memory.allocates(
                    graph,
                    alloc.address,
                    alloc.bytes as u64,
                    alloc.location,
                );
            }
            NodeSpec::Conditional { bodies, .. } => {
                for body in bodies {
                    self.handle_graph(*body);
                }
            }
            _ => {}
        }
    }
}

fn set_exec_node(
    exec: CUgraphExec,
    node: CUgraphNode,
    work: impl FnOnce(&Driver) -> Result<NodeSpec, CUresult>,
) -> Done {
    let driver = driver()?;
    let (exec, node) = (driver.wire_graphexec(exec)?, driver.wire_node(node)?);
    let work = work(driver)?;
    driver.check_same_way(node, &work)?;
    driver.set(exec, node, &work)
}

pub(crate) unsafe fn cuGraphAddEmptyNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |_| {
            Ok(NodeSpec::Empty)
        })
    }
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
            Ok(NodeSpec::Child(driver.wire_graph(child)?))
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
            Ok(NodeSpec::Event { event, wait: false })
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
            Ok(NodeSpec::Event { event, wait: true })
        })
    }
}

fn host_work(host: &CUDA_HOST_NODE_PARAMS) -> Result<NodeSpec, CUresult> {
    if host.func.is_none() {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    } else {
        Ok(NodeSpec::Host(*host))
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
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuGraphHostNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    set_node(node, |_| unsafe { host_work(record(params.cast())?) })
}

pub(crate) unsafe fn cuGraphExecHostNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |_| unsafe { host_work(record(params.cast())?) })
}

fn event_of(node: CUgraphNode, out: *mut CUevent) -> Done {
    match recorded(node)? {
        // SAFETY: NULL or the caller's.
        NodeRecord::Event(event) => unsafe { put(out, event) },
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuGraphEventRecordNodeGetEvent(node: CUgraphNode, out: *mut CUevent) -> Done {
    event_of(node, out)
}

pub(crate) unsafe fn cuGraphEventWaitNodeGetEvent(node: CUgraphNode, out: *mut CUevent) -> Done {
    event_of(node, out)
}

pub(crate) unsafe fn cuGraphEventRecordNodeSetEvent(node: CUgraphNode, event: CUevent) -> Done {
    set_node(node, |_| Ok(NodeSpec::Event { event, wait: false }))
}

pub(crate) unsafe fn cuGraphEventWaitNodeSetEvent(node: CUgraphNode, event: CUevent) -> Done {
    set_node(node, |_| Ok(NodeSpec::Event { event, wait: true }))
}

pub(crate) unsafe fn cuGraphExecEventRecordNodeSetEvent(
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Done {
    set_exec_node(exec, node, |_| Ok(NodeSpec::Event { event, wait: false }))
}

pub(crate) unsafe fn cuGraphExecEventWaitNodeSetEvent(
    exec: CUgraphExec,
    node: CUgraphNode,
    event: CUevent,
) -> Done {
    set_exec_node(exec, node, |_| Ok(NodeSpec::Event { event, wait: true }))
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
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuGraphMemsetNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    set_node(node, |driver| unsafe {
        driver.memset_work(record(params.cast())?, CUcontext::NULL)
    })
}

pub(crate) unsafe fn cuGraphMemcpyNodeGetParams(
    node: CUgraphNode,
    params: *mut CUDA_MEMCPY3D,
) -> Done {
    match recorded(node)? {
        // SAFETY: see the module's contract.
        NodeRecord::Copy { copy, .. } => unsafe { put(params, copy) },
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuGraphMemcpyNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_MEMCPY3D,
) -> Done {
    // SAFETY: see the module's contract.
    set_node(node, |driver| unsafe {
        driver.copy_work(record(params.cast())?, CUcontext::NULL)
    })
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
        Ok(NodeSpec::Child(driver.wire_graph(child)?))
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

pub(crate) unsafe fn cuGraphKernelNodeSetParams_v2(
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    set_node(node, |driver| unsafe {
        driver.kernel_work(record(params.cast())?)
    })
}

pub(crate) unsafe fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const c_void) -> Done {
    // SAFETY: see the module's contract.
    set_node(node, |driver| unsafe {
        driver.kernel_work(&widened(params)?)
    })
}

/// `CUkernelNodeAttrValue`
type AttributeValue = [u8; 64];

pub(crate) unsafe fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: u32,
    out: *mut c_void,
) -> Done {
    let driver = driver()?;
    let message = messages::GraphNodeAttribute {
        node: driver.wire_node(node)?,
        attribute,
    };
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let value = driver.call(&message, |reply| AttributeValue::try_from(&reply.value[..]))?;
    let value = value.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
    // SAFETY: see the module's contract.
    unsafe { put(out.cast(), value) }
}

pub(crate) unsafe fn cuGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: u32,
    value: *const c_void,
) -> Done {
    let driver = driver()?;
    let node = driver.wire_node(node)?;
    // SAFETY: see the module's contract.
    let value: &AttributeValue = unsafe { record(value)? };
    let message = messages::GraphNodeSetAttribute {
        node,
        attribute,
        value,
    };
    driver.call(&message, |_| ())
}

fn kernel_params(node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
    match recorded(node)? {
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
                ..CUDA_KERNEL_NODE_PARAMS::EMPTY
            })
        }
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
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
    // SAFETY: copies the fields that both records have into the caller's.
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
    driver()?.learned(node)
}

pub(crate) unsafe fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: *mut CUgraph) -> Done {
    let driver = driver()?;
    let number = driver.wire_node(node)?;
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // To the program a copy of pageable memory is not a child graph.
    if let NodeRecord::Copy { .. } = driver.graphs.record(number)? {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let message = messages::GraphChild {
        node: number,
        graph: driver.mint_graph(),
    };
    let graph = driver.call(&message, |reply| reply.graph)?;
    // SAFETY: see the module's contract.
    unsafe { put(out, driver.handle_graph(graph)) }
}

pub(crate) unsafe fn cuGraphConditionalHandleCreate(
    out: *mut c_void,
    graph: CUgraph,
    context: CUcontext,
    initial: u32,
    flags: u32,
) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    if out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let context = driver.node_context(context)?;
    let message = messages::GraphConditional {
        graph,
        initial,
        flags,
    };
    let handle = driver
        .session
        .call(context, &message, |reply| reply.handle)?;
    // SAFETY: see the module's contract.
    unsafe { put(out.cast::<u64>(), handle) }
}

/// Converts the parameters of a node of any type.
///
/// # Safety
/// The parameters have the type that the record names.
unsafe fn any_work(driver: &Driver, node: *const c_void) -> Result<NodeSpec, CUresult> {
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
            Ok(NodeSpec::Child(driver.wire_graph(CUgraph(handle))?))
        }
        CU_GRAPH_NODE_TYPE_EMPTY => Ok(NodeSpec::Empty),
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => Ok(NodeSpec::Event {
            event: CUevent(handle),
            wait: true,
        }),
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => Ok(NodeSpec::Event {
            event: CUevent(handle),
            wait: false,
        }),
        CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
            // SAFETY: as above.
            driver.mem_ops_work(unsafe { record(params)? })
        }
        CU_GRAPH_NODE_TYPE_CONDITIONAL => {
            // SAFETY: as above.
            driver.conditional_work(unsafe { record(params)? })
        }
        // SAFETY: as above.
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => driver.alloc_work(unsafe { record(params)? }),
        CU_GRAPH_NODE_TYPE_MEM_FREE => Ok(NodeSpec::Free(node.params[0])),
        other => {
            log::warn(match other {
                CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL | CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT => {
                    "graph nodes of external semaphores are not supported"
                }
                CU_GRAPH_NODE_TYPE_GRAPH => "child graphs that move are not supported",
                _ => "graph nodes of a type that CUDA 13.0 has not are not supported",
            });
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
    let spot = Spot {
        out,
        graph,
        after,
        edges,
        count,
    };
    // SAFETY: see the module's contract.
    unsafe { add_node(&spot, |driver| any_work(driver, params))? };
    // SAFETY: as above; the record was read before, and has outputs for some types of nodes.
    unsafe { put_outputs(*out, params) }
}

/// Writes the outputs of a new node: an address, or the graphs of a condition.
///
/// # Safety
/// `params` is a `CUgraphNodeParams` of the node's type.
unsafe fn put_outputs(node: CUgraphNode, params: *mut c_void) -> Done {
    let driver = driver()?;
    // SAFETY: the caller's promise.
    let params = unsafe { params.cast::<NodeParams>().as_mut() };
    let Some(params) = params else { return Ok(()) };
    let fields = params.params.as_mut_ptr();
    match driver.graphs.record(node.0 as u64)? {
        NodeRecord::Alloc(alloc) => {
            // SAFETY: the fields hold a record of this type.
            unsafe { (*fields.cast::<AllocParams>()).address = alloc.address };
        }
        NodeRecord::Conditional(bodies) => {
            // SAFETY: as above. The array stays as long as the node is known.
            unsafe { (*fields.cast::<ConditionalParams>()).bodies = bodies.as_ptr() };
        }
        _ => {}
    }
    Ok(())
}

pub(crate) unsafe fn cuGraphNodeSetParams(node: CUgraphNode, params: *mut c_void) -> Done {
    // SAFETY: see the module's contract.
    set_node(node, |driver| unsafe { any_work(driver, params) })
}

pub(crate) unsafe fn cuGraphExecNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *mut c_void,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe { any_work(driver, params) })
}

impl Driver {
    fn mem_ops_work(&self, params: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Result<NodeSpec, CUresult> {
        /// The driver's own limit.
        const OPS_MAX: u32 = 256;
        let count = params.count;
        if params.params.is_null() || count == 0 || count > OPS_MAX || params.flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: `count` records of the program's.
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

    fn alloc_work(&self, params: &AllocParams) -> Result<NodeSpec, CUresult> {
        const PINNED: u32 = 1;
        const DEVICE: u32 = 1;
        if params.allocation_type != PINNED || params.handle_types != 0 || params.bytes == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        self.card(params.location)
            .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if params.location_type != DEVICE || params.location != self.contexts.current()?.device {
            log::warn("graph nodes that allocate on another device or the host are not supported");
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let address = self.graph_allocate(params.bytes as u64)?;
        Ok(NodeSpec::Alloc(AllocParams { address, ..*params }))
    }

    /// `cuMemAllocAsync` in a capture: adds a node that allocates.
    pub(crate) fn capture_allocation(
        &self,
        stream: &StreamRef,
        bytes: usize,
    ) -> Result<u64, CUresult> {
        let params = AllocParams {
            allocation_type: 1,
            handle_types: 0,
            location_type: 1,
            location: self.contexts.current()?.device,
            pool: [0; 9],
            access: std::ptr::null(),
            access_count: 0,
            bytes,
            address: 0,
        };
        let NodeSpec::Alloc(params) = self.alloc_work(&params)? else {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        };
        let captured = self.capture_node(stream, &NodeWork::Empty, NodeRecord::Alloc(params));
        match captured {
            Ok((graph, _)) => {
                self.added(graph, &NodeSpec::Alloc(params));
                Ok(params.address)
            }
            Err(error) => {
                self.release(params.address)?;
                Err(error)
            }
        }
    }

    /// `cuMemFreeAsync` in a capture: adds a node that frees a graph's allocation.
    pub(crate) fn capture_free(&self, stream: &StreamRef, address: u64) -> Done {
        let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        let capture = self.capture_of(stream).ok_or(invalidated)?;
        self.graph_memory.frees(capture.graph, address)?;
        self.capture_node(stream, &NodeWork::Empty, NodeRecord::Free(address))
            .map(|_| ())
    }
}

pub(crate) unsafe fn cuGraphAddBatchMemOpNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.mem_ops_work(record(params.cast())?)
        })
    }
}

pub(crate) unsafe fn cuGraphBatchMemOpNodeGetParams(
    node: CUgraphNode,
    out: *mut CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Done {
    let NodeRecord::MemOps(ops) = recorded(node)? else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    let params = CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: ops.named_context,
        count: ops.ops().len() as u32,
        params: ops.ops().as_ptr().cast_mut(),
        flags: ops.flags,
    };
    // SAFETY: see the module's contract.
    unsafe { put(out, params) }
}

pub(crate) unsafe fn cuGraphBatchMemOpNodeSetParams(
    node: CUgraphNode,
    params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    set_node(node, |driver| unsafe {
        driver.mem_ops_work(record(params.cast())?)
    })
}

pub(crate) unsafe fn cuGraphExecBatchMemOpNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.mem_ops_work(record(params.cast())?)
    })
}

pub(crate) unsafe fn cuGraphAddMemAllocNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *mut c_void,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.alloc_work(record(params)?)
        })?;
        if let NodeRecord::Alloc(made) = recorded(*out)? {
            (*params.cast::<AllocParams>()).address = made.address;
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuGraphMemAllocNodeGetParams(node: CUgraphNode, out: *mut c_void) -> Done {
    match recorded(node)? {
        // SAFETY: see the module's contract.
        NodeRecord::Alloc(params) => unsafe { put(out.cast(), params) },
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) unsafe fn cuGraphAddMemFreeNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    address: CUdeviceptr,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |_| {
            Ok(NodeSpec::Free(address))
        })
    }
}

pub(crate) unsafe fn cuGraphMemFreeNodeGetParams(node: CUgraphNode, out: *mut CUdeviceptr) -> Done {
    match recorded(node)? {
        // SAFETY: see the module's contract.
        NodeRecord::Free(address) => unsafe { put(out, address) },
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}
