//! Nodes of graphs that programs build by hand: added, changed, queried. The calls for one kind of
//! node are generated from their declarations: `given` reads the kind's parameters, `kept` returns
//! them. `work` converts them for the server.

pub(crate) mod given;
pub(crate) mod kept;
mod learned;
mod work;

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode},
};
use outboard_wire::{codec::id_bytes, doc::NodeWork, messages};

use self::work::*;
use super::{
    Done, In, InOut, Out, Untyped,
    graph::{edge_list, node_ids},
    graph_params::{ConditionalParams, NodeParams},
};
use crate::{
    log,
    state::{AllocParams, Driver, HandleKind, NodeRecord, StreamRef, driver},
};

/// Arguments that place a new node in a graph.
pub(crate) struct Spot<'c> {
    out: Out<'c, CUgraphNode>,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
}

impl<'c> Spot<'c> {
    pub(crate) fn plain(
        out: Out<'c, CUgraphNode>,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
    ) -> Spot<'c> {
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
/// `spot.after` and `spot.edges` must be NULL or have `spot.count` entries.
pub(crate) unsafe fn add_node(
    spot: &Spot<'_>,
    work: impl FnOnce(&Driver) -> Result<NodeSpec, CUresult>,
) -> Done {
    // SAFETY: the lists are as this function's contract says.
    unsafe { added_node(spot, work) }.map(drop)
}

/// Adds a node and returns its handle.
///
/// # Safety
/// As for [`add_node`].
unsafe fn added_node(
    spot: &Spot<'_>,
    work: impl FnOnce(&Driver) -> Result<NodeSpec, CUresult>,
) -> Result<CUgraphNode, CUresult> {
    let driver = driver()?;
    let graph = driver.wire_graph(spot.graph)?;
    // SAFETY: the lists are as this function's contract says.
    let (dependencies, edges) = unsafe {
        (
            node_ids(driver, spot.after, spot.count)?,
            edge_list(spot.edges, spot.count),
        )
    };
    spot.out.check()?;
    let work = work(driver)?;
    let node = driver.handles.mint(HandleKind::Node);
    driver
        .add_after(graph, node, &dependencies, &edges, &work)
        .inspect_err(|_| driver.drop_memory_of(&work))?;
    driver.graphs.learn(graph, node, work.record());
    driver.added(graph, &work);
    if let NodeSpec::Conditional { bodies, .. } = &work {
        for body in bodies {
            driver.handle_graph(*body);
            driver.graphs.is_inside(*body, node);
        }
    }
    spot.out.put(CUgraphNode(node as usize))?;
    Ok(CUgraphNode(node as usize))
}

/// Changes the work of a graph's node. Executable graphs made before keep their work.
pub(crate) fn set_node(
    node: CUgraphNode,
    work: impl FnOnce(&Driver) -> Result<NodeSpec, CUresult>,
) -> Done {
    let driver = driver()?;
    let number = driver.wire_node(node)?;
    let graph = driver.graphs.graph_of(number)?;
    let work = work(driver)?;
    driver.check_same_way(number, &work)?;
    if let NodeSpec::Child(child) = work {
        driver.check_child(graph, child)?;
    }
    driver.set(0, number, &work)?;
    driver.graphs.learn(graph, number, work.record());
    Ok(())
}

impl Driver {
    /// Adds a node after these, by edges with data if there are any.
    fn add_after(
        &self,
        graph: u64,
        node: u64,
        dependencies: &[u64],
        edges: &[CUgraphEdgeData],
        work: &NodeSpec,
    ) -> Done {
        self.check_memory_work(graph, work)?;
        self.add_checked(graph, node, dependencies, edges, work)
            .inspect_err(|_| {
                if let NodeSpec::Free(address) = work {
                    self.graph_memory.does_not_free(graph, *address);
                }
            })
    }

    fn add_checked(
        &self,
        graph: u64,
        node: u64,
        dependencies: &[u64],
        edges: &[CUgraphEdgeData],
        work: &NodeSpec,
    ) -> Done {
        if edges.is_empty() {
            return self.add(graph, node, &id_bytes(dependencies), work);
        }
        // Edges with data are added after the node exists.
        self.add(graph, node, &[], work)?;
        let to = vec![node; dependencies.len()];
        self.add_dependencies(graph, dependencies, &to, edges)
            .inspect_err(|_| {
                let _ = self.submit(&messages::CuGraphDestroyNode { h_node: node });
            })
    }

    /// Frees the memory of a node that allocates and was not added.
    fn drop_memory_of(&self, work: &NodeSpec) {
        if let NodeSpec::Alloc(alloc) = work {
            // A lost session has unmapped everything.
            let _ = self.release_of_graph(alloc.address);
        }
    }

    /// Refuses changes that the server cannot make: nodes that allocate or free are empty there,
    /// and only a copy of pageable memory is a child graph.
    fn check_same_way(&self, node: u64, work: &NodeSpec) -> Done {
        if let NodeSpec::Alloc(_) | NodeSpec::Free(_) = work {
            self.drop_memory_of(work);
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
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

    /// Refuses graphs that cannot be children, memory of graphs that moved, and frees of memory
    /// that no graph allocates.
    fn check_memory_work(&self, graph: u64, work: &NodeSpec) -> Done {
        match work {
            NodeSpec::Child(child) => self.check_child(graph, *child),
            NodeSpec::Moved(child) => self.check_moves(graph, *child),
            NodeSpec::Alloc(_) | NodeSpec::Free(_) if self.graphs.owner(graph).is_some() => {
                Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
            }
            NodeSpec::Free(address) => self.graph_memory.frees(graph, *address),
            _ => Ok(()),
        }
    }

    /// Refuses a child that cannot be cloned.
    fn check_child(&self, graph: u64, child: u64) -> Done {
        if graph == child {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let refused = self.graph_memory.is_in(child)
            || self.graphs.has_conditions(child)
            || self.graphs.owner(child).is_some();
        match refused {
            true => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            false => Ok(()),
        }
    }

    /// Refuses a child that is part of another graph already, or would be part of itself.
    fn check_moves(&self, graph: u64, child: u64) -> Done {
        if self.graphs.owner(child).is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let mut around = std::iter::successors(Some(graph), |at| self.graphs.owner(*at));
        match around.any(|at| at == child) {
            true => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            false => Ok(()),
        }
    }

    /// Records objects and memory that a new node brings into its graph.
    fn added(&self, graph: u64, work: &NodeSpec) {
        match work {
            NodeSpec::Child(child) => self.user_objects.inherit(graph, *child),
            NodeSpec::Moved(child) => {
                self.user_objects.inherit(graph, *child);
                self.graph_memory.moves(*child, graph);
                self.graphs.moves(*child, graph);
            }
            NodeSpec::Alloc(alloc) => {
                self.graph_memory.allocates(
                    graph,
                    alloc.address,
                    alloc.bytes as u64,
                    alloc.location,
                );
            }
            NodeSpec::Event { wait: true, .. } | NodeSpec::MemOps(_) => self.graphs.waits(),
            _ => {}
        }
    }
}

/// Writes the parameters of a node. A node of another kind has none of the type.
pub(crate) fn get_node<T>(
    node: CUgraphNode,
    out: Out<'_, T>,
    params: fn(NodeRecord) -> Option<T>,
) -> Done {
    let params = params(driver()?.learned(node)?).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    out.put(params)
}

/// Changes the work of an executable graph's node.
pub(crate) fn set_exec_node(
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

/// `CUkernelNodeAttrValue`
type AttributeValue = [u8; 64];

pub(crate) fn cuGraphKernelNodeGetAttribute(
    node: CUgraphNode,
    attribute: u32,
    Untyped(out): Untyped<Out<'_, AttributeValue>>,
) -> Done {
    let driver = driver()?;
    let message = messages::GraphNodeAttribute {
        node: driver.wire_node(node)?,
        attribute,
    };
    out.check()?;
    let value = driver.call(&message, |reply| AttributeValue::try_from(&reply.value[..]))?;
    let value = value.map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
    out.put(value)
}

pub(crate) fn cuGraphKernelNodeSetAttribute(
    node: CUgraphNode,
    attribute: u32,
    Untyped(value): Untyped<In<'_, AttributeValue>>,
) -> Done {
    let driver = driver()?;
    let node = driver.wire_node(node)?;
    let value = &value.get()?;
    let message = messages::GraphNodeSetAttribute {
        node,
        attribute,
        value,
    };
    driver.call(&message, |_| ())
}

pub(crate) fn cuGraphChildGraphNodeGetGraph(node: CUgraphNode, out: Out<'_, CUgraph>) -> Done {
    let driver = driver()?;
    let number = driver.wire_node(node)?;
    out.check()?;
    // To the program a copy of pageable memory is not a child graph.
    if let NodeRecord::Copy { .. } = driver.graphs.record(number)? {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let message = messages::GraphChild {
        node: number,
        graph: driver.mint_graph(),
    };
    let graph = driver.call(&message, |reply| reply.graph)?;
    let handle = driver.handle_graph(graph);
    driver.graphs.is_inside(graph, number);
    out.put(handle)
}

pub(crate) fn cuGraphConditionalHandleCreate(
    Untyped(out): Untyped<Out<'_, u64>>,
    graph: CUgraph,
    context: CUcontext,
    initial: u32,
    flags: u32,
) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    out.check()?;
    let context = driver.node_context(context)?;
    let message = messages::GraphConditional {
        graph,
        initial,
        flags,
    };
    let handle = driver
        .session
        .call(context, &message, |reply| reply.handle)?;
    out.put(handle)
}

pub(crate) unsafe fn cuGraphAddNode(
    out: Out<'_, CUgraphNode>,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *mut c_void,
) -> Done {
    // SAFETY: `after` has `count` entries, and `params` is NULL or a `CUgraphNodeParams`: the
    // driver API asks it of its callers.
    unsafe { cuGraphAddNode_v2(out, graph, after, std::ptr::null(), count, params) }
}

pub(crate) unsafe fn cuGraphAddNode_v2(
    out: Out<'_, CUgraphNode>,
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
    // SAFETY: the lists have `count` entries, and `params` is NULL or a `CUgraphNodeParams` that
    // may be written: the driver API asks it of its callers.
    unsafe {
        let node = added_node(&spot, |driver| given::any(driver, params))?;
        put_outputs(node, params)
    }
}

/// Writes the outputs of a new node: an address, or the graphs of a condition.
///
/// # Safety
/// `params` must be NULL or a `CUgraphNodeParams` of the node's type that may be written.
unsafe fn put_outputs(node: CUgraphNode, params: *mut c_void) -> Done {
    let driver = driver()?;
    // SAFETY: NULL or such a record, by this function's contract.
    let params = unsafe { params.cast::<NodeParams>().as_mut() };
    let Some(params) = params else { return Ok(()) };
    let fields = params.params.as_mut_ptr();
    match driver.graphs.record(node.0 as u64)? {
        NodeRecord::Alloc(alloc) => {
            // SAFETY: the node allocates, so its parameters are of this type.
            unsafe { (*fields.cast::<AllocParams>()).address = alloc.address };
        }
        NodeRecord::Conditional(bodies) => {
            // SAFETY: the node is a conditional one, so its parameters are of this type. The array
            // stays as long as the node is known.
            unsafe { (*fields.cast::<ConditionalParams>()).bodies = bodies.as_ptr() };
        }
        _ => {}
    }
    Ok(())
}

impl Driver {
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
        let params = self.graph_memory_of(&params)?;
        let captured = self.capture_node(stream, &NodeWork::Empty, NodeRecord::Alloc(params));
        match captured {
            Ok((graph, _)) => {
                self.added(graph, &NodeSpec::Alloc(params));
                Ok(params.address)
            }
            Err(error) => {
                self.drop_memory_of(&NodeSpec::Alloc(params));
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
            .inspect_err(|_| self.graph_memory.does_not_free(capture.graph, address))
            .map(drop)
    }
}

pub(crate) unsafe fn cuGraphAddMemAllocNode(
    out: Out<'_, CUgraphNode>,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    Untyped(params): Untyped<InOut<'_, AllocParams>>,
) -> Done {
    let spot = Spot::plain(out, graph, after, count);
    let given = |driver: &Driver| given::alloc(driver, &params.get()?);
    // SAFETY: `after` has `count` entries: the driver API asks it of its callers.
    let node = unsafe { added_node(&spot, given)? };
    if let NodeRecord::Alloc(made) = driver()?.learned(node)? {
        params.put(AllocParams {
            address: made.address,
            ..params.get()?
        })?;
    }
    Ok(())
}
