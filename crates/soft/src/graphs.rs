//! Graphs: their nodes under the client's numbers, the nodes' work, and executable graphs.

use std::borrow::Cow;

use outboard_api::{CUresult, enums::*};
use outboard_device::{Cx, Failure};
use outboard_ptx::device::{
    BY_KERNELS, Body, ConditionalKind, Copy, Edge, EventId, ExecId, GraphId, NodeId, Op, Rows, Set,
    UpdateError,
};
use outboard_wire::{
    codec,
    doc::{self, BoxEnd, ConditionalWork, CopyBox, KernelWork, MemsetWork, NodeWork},
    messages,
};

use super::{
    Soft,
    launch::LaunchShape,
    streams::mem_ops,
    wait::{failure, invalid},
};

/// A node that the client has a handle of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    graph: GraphId,
    node: NodeId,
}

const _: () = assert!(BY_KERNELS == CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH as u64);

/// Edges in one reply. Three lists of this size fit into a frame.
const HANDLES_MAX: u32 = 1 << 15;

/// Launch attributes that a kernel node may have.
const NODE_ATTRIBUTES: &[u32] = &[
    CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
    CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
    CU_LAUNCH_ATTRIBUTE_PRIORITY,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
    CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
    CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
];

fn known_attribute(attribute: u32) -> Result<(), Failure> {
    if LAUNCH_ATTRIBUTES_OF_EDGES.contains(&attribute) {
        return Err(invalid(format!("attribute {attribute} of a kernel node")));
    }
    match NODE_ATTRIBUTES.contains(&attribute) {
        true => Ok(()),
        false => Err(Failure::unsupported(&format!(
            "launch attribute {attribute} of a kernel node"
        ))),
    }
}

fn node_work(bytes: &[u8]) -> Result<NodeWork, Failure> {
    doc::from_bytes(bytes).map_err(|e| invalid(format!("what a node does: {e}")))
}

/// Encodes edge data; empty if every edge is a plain dependency.
pub(super) fn edge_bytes(edges: &[Edge]) -> Vec<u8> {
    match edges.iter().all(|edge| *edge == Edge::default()) {
        true => Vec::new(),
        false => edges.concat(),
    }
}

/// Decodes the data of `count` edges; none stands for plain dependencies.
pub(super) fn edge_data(bytes: &[u8], count: usize) -> Result<Vec<Edge>, Failure> {
    let (records, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || !records.is_empty() && records.len() != count {
        return Err(invalid(format!(
            "{} bytes of data of {count} edges",
            bytes.len()
        )));
    }
    let mut edges = records.to_vec();
    edges.resize(count, Edge::default());
    Ok(edges)
}

/// Describes a copy within memory for a message. An array's rows appear under addresses that no
/// program knows.
fn box_from(copy: &Copy) -> CopyBox {
    let end = |rows: &Rows| BoxEnd::Pitched {
        address: rows.address,
        pitch_bytes: rows.pitch_bytes,
        height: rows.slice_rows,
    };
    CopyBox {
        src: end(&copy.src),
        src_x: 0,
        src_y: 0,
        src_z: 0,
        dst: end(&copy.dst),
        dst_x: 0,
        dst_y: 0,
        dst_z: 0,
        width: copy.extent.width,
        height: copy.extent.height,
        depth: copy.extent.depth,
    }
}

impl Soft {
    /// Decodes node handles. Each node must belong to the call's graph.
    pub(super) fn nodes(&self, graph: GraphId, bytes: &[u8]) -> Result<Vec<NodeId>, Failure> {
        codec::ids(bytes)
            .map(|id| {
                let node = self.nodes.get(id)?;
                if node.graph != graph {
                    return Err(invalid(format!("node {id:#x} belongs to another graph")));
                }
                Ok(node.node)
            })
            .collect()
    }

    /// Returns the client's handle of a node. A node that the client has not seen gets the next
    /// fresh number.
    fn node_handle(
        &mut self,
        graph: GraphId,
        node: NodeId,
        fresh: &mut u64,
    ) -> Result<u64, Failure> {
        if let Some(id) = self.node_handles.get(&node) {
            return Ok(*id);
        }
        let id = *fresh;
        self.bind_node(id, graph, node)?;
        *fresh += 1;
        Ok(id)
    }

    fn bind_node(&mut self, id: u64, graph: GraphId, node: NodeId) -> Result<(), Failure> {
        self.nodes.insert(id, Node { graph, node })?;
        self.node_handles.insert(node, id);
        Ok(())
    }

    /// Returns the number of nodes, and as many handles as the client has room for.
    pub(super) fn node_list(
        &mut self,
        graph: GraphId,
        nodes: &[NodeId],
        first: u64,
        max: u32,
    ) -> Result<(u64, Vec<u8>), Failure> {
        let mut fresh = first;
        let shown = nodes.iter().take(max.min(HANDLES_MAX) as usize);
        let handles = shown
            .map(|node| self.node_handle(graph, *node, &mut fresh))
            .collect::<Result<Vec<_>, _>>()?;
        Ok((nodes.len() as u64, codec::id_bytes(&handles)))
    }

    pub(super) fn graph(&self, id: u64) -> Result<GraphId, Failure> {
        self.graphs.get(id).copied()
    }

    /// Returns the number that records use for a node.
    pub(super) fn node_number(&self, id: u64) -> Result<u64, Failure> {
        Ok(self.nodes.get(id)?.node.number())
    }

    pub(super) fn exec(&self, id: u64) -> Result<ExecId, Failure> {
        self.execs.get(id).copied()
    }

    fn add_node(
        &mut self,
        graph: u64,
        node: u64,
        dependencies: &[u8],
        op: Op,
    ) -> Result<(), Failure> {
        let graph = self.graph(graph)?;
        let deps = self.nodes(graph, dependencies)?;
        let id = self.gpu.add_node(graph, op, &deps).map_err(failure)?;
        self.bind_node(node, graph, id).inspect_err(|_| {
            let _ = self.gpu.remove_node(graph, id);
        })
    }

    pub(super) fn graph_instantiate(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphInstantiate,
    ) -> Result<messages::GraphInstantiateReply, Failure> {
        const KNOWN: u32 = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
            | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
            | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH
            | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        let by_kernels = m.flags & BY_KERNELS != 0;
        if by_kernels && m.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0 {
            return Err(invalid(
                "a graph that kernels launch and that frees its memory",
            ));
        }
        if m.flags & !u64::from(KNOWN) != 0 {
            return Err(invalid(format!("graph instantiation flags {:#x}", m.flags)));
        }
        let context = self.context(cx.context)?.id;
        let graph = self.graph(m.graph)?;
        let exec = self
            .gpu
            .instantiate(context, graph, m.flags)
            .map_err(failure)?;
        self.execs.insert(m.exec, exec).inspect_err(|_| {
            let _ = self.gpu.destroy_exec(exec);
        })?;
        Ok(messages::GraphInstantiateReply {
            status: CUDA_GRAPH_INSTANTIATE_SUCCESS,
            device_handle: if by_kernels { exec.handle() } else { 0 },
        })
    }

    pub(super) fn graph_launch(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphLaunch,
    ) -> Result<(), Failure> {
        let (exec, stream) = (self.exec(m.exec)?, self.stream(cx, m.stream)?);
        self.touched = true;
        self.gpu.launch_graph(exec, stream).map_err(failure)
    }

    pub(super) fn graph_nodes(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphNodes,
    ) -> Result<messages::GraphNodesReply<'static>, Failure> {
        let id = self.graph(m.graph)?;
        let graph = self.gpu.graph(id).map_err(failure)?;
        let nodes: Vec<NodeId> = match m.roots_only {
            0 => graph.nodes().collect(),
            _ => graph.roots().collect(),
        };
        let (count, nodes) = self.node_list(id, &nodes, m.first_node, m.nodes_max)?;
        let nodes = Cow::Owned(nodes);
        Ok(messages::GraphNodesReply { count, nodes })
    }

    pub(super) fn graph_edges(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphEdges,
    ) -> Result<messages::GraphEdgesReply<'static>, Failure> {
        let id = self.graph(m.graph)?;
        let graph = self.gpu.graph(id).map_err(failure)?;
        let count = graph.edges().count() as u64;
        let (mut from, mut to, mut fresh) = (Vec::new(), Vec::new(), m.first_node);
        let mut edges = Vec::new();
        for (a, b, edge) in graph.edges().take(m.edges_max.min(HANDLES_MAX) as usize) {
            from.push(self.node_handle(id, a, &mut fresh)?);
            to.push(self.node_handle(id, b, &mut fresh)?);
            edges.push(edge);
        }
        Ok(messages::GraphEdgesReply {
            count,
            edges: Cow::Owned(edge_bytes(&edges)),
            from: Cow::Owned(codec::id_bytes(&from)),
            to: Cow::Owned(codec::id_bytes(&to)),
        })
    }

    pub(super) fn graph_node_neighbours(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphNodeNeighbours,
    ) -> Result<messages::GraphNodeNeighboursReply<'static>, Failure> {
        let Node { graph, node } = *self.nodes.get(m.node)?;
        let neighbours = self
            .gpu
            .neighbours(graph, node, m.dependents != 0)
            .map_err(failure)?;
        let (nodes, mut edges): (Vec<_>, Vec<_>) = neighbours.into_iter().unzip();
        edges.truncate(m.nodes_max.min(HANDLES_MAX) as usize);
        let (count, nodes) = self.node_list(graph, &nodes, m.first_node, m.nodes_max)?;
        Ok(messages::GraphNodeNeighboursReply {
            count,
            nodes: Cow::Owned(nodes),
            edges: Cow::Owned(edge_bytes(&edges)),
        })
    }

    pub(super) fn graph_exec_update(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphExecUpdate,
    ) -> Result<messages::GraphExecUpdateReply, Failure> {
        let (exec, graph) = (self.exec(m.exec)?, self.graph(m.graph)?);
        let failed = match self.gpu.update_exec(exec, graph).map_err(failure)? {
            Ok(()) => {
                return Ok(messages::GraphExecUpdateReply {
                    result: CU_GRAPH_EXEC_UPDATE_SUCCESS,
                    error_node: 0,
                    error_from_node: 0,
                });
            }
            Err(failed) => failed,
        };
        let result = match failed.error {
            UpdateError::TopologyChanged => CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
            UpdateError::NodeTypeChanged => CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED,
            UpdateError::ParametersChanged => CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED,
        };
        let mut fresh = m.first_node;
        let error_node = match failed.node {
            Some(node) => self.node_handle(graph, node, &mut fresh)?,
            None => 0,
        };
        Ok(messages::GraphExecUpdateReply {
            result,
            error_node,
            error_from_node: 0,
        })
    }

    pub(super) fn graph_add_dependencies(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddDependencies<'_>,
    ) -> Result<(), Failure> {
        let edges = self.edge_list(m.graph, m.from, m.to, m.edges)?;
        self.gpu
            .add_edges(self.graph(m.graph)?, &edges)
            .map_err(failure)
    }

    pub(super) fn graph_remove_dependencies(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphRemoveDependencies<'_>,
    ) -> Result<(), Failure> {
        let edges = self.edge_list(m.graph, m.from, m.to, m.edges)?;
        self.gpu
            .remove_edges(self.graph(m.graph)?, &edges)
            .map_err(failure)
    }

    fn edge_list(
        &self,
        graph: u64,
        from: &[u8],
        to: &[u8],
        edges: &[u8],
    ) -> Result<Vec<(NodeId, NodeId, Edge)>, Failure> {
        let graph = self.graph(graph)?;
        let (from, to) = (self.nodes(graph, from)?, self.nodes(graph, to)?);
        if from.len() != to.len() {
            return Err(invalid(format!(
                "edges from {} nodes to {}",
                from.len(),
                to.len()
            )));
        }
        let kinds = edge_data(edges, from.len())?;
        Ok(from
            .into_iter()
            .zip(to)
            .zip(kinds)
            .map(|((from, to), edge)| (from, to, edge))
            .collect())
    }

    pub(super) fn graph_add(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAdd<'_>,
    ) -> Result<(), Failure> {
        let work = node_work(m.work)?;
        if let NodeWork::Conditional(conditional) = work {
            return self.add_conditional(m, &conditional);
        }
        if let NodeWork::Moved(child) = work {
            return self.add_moved(m, child);
        }
        let op = self.op(work)?;
        self.add_node(m.graph, m.node, m.dependencies, op)
    }

    fn add_moved(&mut self, m: &messages::GraphAdd<'_>, child: u64) -> Result<(), Failure> {
        let (graph, child) = (self.graph(m.graph)?, self.graph(child)?);
        let deps = self.nodes(graph, m.dependencies)?;
        let node = self.gpu.add_moved(graph, child, &deps).map_err(failure)?;
        self.bind_node(m.node, graph, node)
    }

    fn add_conditional(
        &mut self,
        m: &messages::GraphAdd<'_>,
        conditional: &ConditionalWork,
    ) -> Result<(), Failure> {
        let graph = self.graph(m.graph)?;
        let deps = self.nodes(graph, m.dependencies)?;
        if !self.conditions.take(conditional.handle, graph) {
            return Err(invalid(
                "a condition's handle that is none of this graph, or in use",
            ));
        }
        let kind = match conditional.kind {
            CU_GRAPH_COND_TYPE_IF => ConditionalKind::If,
            CU_GRAPH_COND_TYPE_WHILE => ConditionalKind::While,
            CU_GRAPH_COND_TYPE_SWITCH => ConditionalKind::Switch,
            other => return Err(invalid(format!("a conditional node of type {other}"))),
        };
        let shape = (conditional.handle, kind, conditional.bodies.len());
        let (node, bodies) = self
            .gpu
            .add_conditional(graph, shape, &deps)
            .inspect_err(|_| self.conditions.give_back(conditional.handle, graph))
            .map_err(failure)?;
        self.bind_node(m.node, graph, node)?;
        for (id, body) in conditional.bodies.iter().zip(bodies) {
            self.graphs.insert(*id, body)?;
        }
        Ok(())
    }

    pub(super) fn graph_conditional(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphConditional,
    ) -> Result<messages::GraphConditionalReply, Failure> {
        let graph = self.graph(m.graph)?;
        if m.flags & !CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
            return Err(invalid(format!("flags {:#x} of a condition", m.flags)));
        }
        let handle = self.conditions.make(&self.gpu, graph)?;
        if m.flags & CU_GRAPH_COND_ASSIGN_DEFAULT != 0 {
            self.gpu
                .set_default(graph, handle, m.initial)
                .map_err(failure)?;
        }
        Ok(messages::GraphConditionalReply { handle })
    }

    /// Translates a node's work for the device.
    fn op(&mut self, work: NodeWork) -> Result<Op, Failure> {
        Ok(match work {
            NodeWork::Empty => Op::Empty,
            NodeWork::Kernel(kernel) => {
                let shape = LaunchShape {
                    grid: kernel.grid,
                    block: kernel.block,
                    shared_bytes: kernel.shared_bytes,
                    cooperative: false,
                };
                Op::Launch(self.prepare(kernel.kernel, shape, &kernel.params)?)
            }
            NodeWork::Memset(set) => Op::Set(Set {
                dst: set.dst,
                pitch_bytes: set.pitch,
                value: set.value,
                element_bytes: set.element_size,
                width: set.width,
                height: set.height,
            }),
            NodeWork::Copy(copy) => Op::Copy(self.box_of(&copy)?),
            NodeWork::Host(call) => Op::Host(call),
            NodeWork::Child(child) => {
                let child = self.gpu.graph(self.graph(child)?).map_err(failure)?;
                Op::Child(Body::Fixed(Box::new(child)))
            }
            NodeWork::RecordEvent(event) => Op::RecordEvent(*self.events.get(event)?),
            NodeWork::WaitEvent(event) => Op::WaitEvent(*self.events.get(event)?),
            NodeWork::MemOps(records) => Op::Batch(mem_ops(&records)?.into()),
            NodeWork::Conditional(_) => {
                return Err(invalid("a conditional node cannot be changed"));
            }
            NodeWork::Moved(_) => return Err(invalid("only a new node can own a graph")),
        })
    }

    pub(super) fn graph_set(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphSet<'_>,
    ) -> Result<(), Failure> {
        let op = self.op(node_work(m.work)?)?;
        let Node { graph, node } = *self.nodes.get(m.node)?;
        match m.exec {
            0 => self.gpu.set_node(graph, node, op),
            exec => self.gpu.set_exec_node(self.exec(exec)?, node, op),
        }
        .map_err(failure)
    }

    pub(super) fn graph_work(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphWork,
    ) -> Result<messages::GraphWorkReply<'static>, Failure> {
        let Node { graph, node } = *self.nodes.get(m.node)?;
        let work = match self.gpu.node_op(graph, node).map_err(failure)? {
            Op::Launch(launch) => NodeWork::Kernel(KernelWork {
                kernel: self.kernel_of(&launch.code).ok_or_else(|| {
                    Failure::unsupported("a node of a kernel whose module is gone")
                })?,
                grid: launch.grid,
                block: launch.block,
                shared_bytes: launch.shared_bytes,
                params: launch.params.to_vec(),
            }),
            Op::Set(set) => NodeWork::Memset(MemsetWork {
                dst: set.dst,
                pitch: set.pitch_bytes,
                value: set.value,
                element_size: set.element_bytes,
                width: set.width,
                height: set.height,
            }),
            Op::Copy(copy) => NodeWork::Copy(box_from(&copy)),
            Op::Host(call) => NodeWork::Host(call),
            Op::Empty => NodeWork::Empty,
            Op::RecordEvent(event) => NodeWork::RecordEvent(self.event_number(event)?),
            Op::WaitEvent(event) => NodeWork::WaitEvent(self.event_number(event)?),
            Op::Value(_) | Op::Batch(_) | Op::Child(_) | Op::Conditional(_) => {
                return Err(Failure::unsupported("the parameters of such a node"));
            }
        };
        let work = doc::to_bytes(&work)
            .map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, e.to_string()))?;
        Ok(messages::GraphWorkReply {
            work: Cow::Owned(work),
        })
    }

    fn event_number(&self, event: EventId) -> Result<u64, Failure> {
        let mut events = self.events.iter();
        let found = events.find(|(_, known)| **known == event);
        found
            .map(|(number, _)| number)
            .ok_or_else(|| invalid("a node's event that is gone"))
    }

    pub(super) fn graph_child(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphChild,
    ) -> Result<messages::GraphChildReply, Failure> {
        let Node { graph, node } = *self.nodes.get(m.node)?;
        let child = self.gpu.open_child(graph, node).map_err(failure)?;
        let known = self.graphs.iter().find(|(_, id)| **id == child);
        let known = known.map(|(number, _)| number);
        if known.is_none() {
            self.graphs.insert(m.graph, child)?;
        }
        Ok(messages::GraphChildReply {
            graph: known.unwrap_or(m.graph),
        })
    }

    pub(super) fn graph_find_in_clone(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphFindInClone,
    ) -> Result<messages::GraphFindInCloneReply, Failure> {
        let (node, clone) = (self.nodes.get(m.node)?.node, self.graph(m.clone)?);
        let found = self.gpu.find_in_clone(node, clone).map_err(failure)?;
        let found = found.ok_or_else(|| invalid("the graph is no clone of the node's"))?;
        let mut fresh = m.first_node;
        let node = self.node_handle(clone, found, &mut fresh)?;
        Ok(messages::GraphFindInCloneReply { node })
    }

    pub(super) fn graph_node_attribute(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphNodeAttribute,
    ) -> Result<messages::GraphNodeAttributeReply<'static>, Failure> {
        let Node { graph, node } = *self.nodes.get(m.node)?;
        known_attribute(m.attribute)?;
        let Op::Launch(launch) = self.gpu.node_op(graph, node).map_err(failure)? else {
            return Err(invalid("an attribute of a node that is no kernel"));
        };
        let kept = self.gpu.node_attribute(graph, node, m.attribute);
        let value = kept.map_err(failure)?.unwrap_or_else(|| {
            let mut value = [0; 64];
            value[0] =
                u8::from(m.attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && launch.cooperative);
            value
        });
        Ok(messages::GraphNodeAttributeReply {
            value: Cow::Owned(value.to_vec()),
        })
    }

    pub(super) fn graph_node_set_attribute(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphNodeSetAttribute<'_>,
    ) -> Result<(), Failure> {
        let Node { graph, node } = *self.nodes.get(m.node)?;
        known_attribute(m.attribute)?;
        let value: [u8; 64] = m
            .value
            .try_into()
            .map_err(|_| invalid("an attribute's value that has not 64 bytes"))?;
        if m.attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE {
            let Op::Launch(mut launch) = self.gpu.node_op(graph, node).map_err(failure)? else {
                return Err(invalid("an attribute of a node that is no kernel"));
            };
            launch.cooperative = value[0] != 0;
            self.gpu
                .set_node(graph, node, Op::Launch(launch))
                .map_err(failure)?;
        }
        self.gpu
            .set_node_attribute(graph, node, Some((m.attribute, value)))
            .map_err(failure)
    }

    pub(super) fn cu_graph_kernel_node_copy_attributes(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphKernelNodeCopyAttributes,
    ) -> Result<(), Failure> {
        let (to, from) = (*self.nodes.get(m.dst)?, *self.nodes.get(m.src)?);
        self.gpu
            .set_node_attribute(to.graph, to.node, None)
            .map_err(failure)?;
        for attribute in NODE_ATTRIBUTES {
            let value = self.gpu.node_attribute(from.graph, from.node, *attribute);
            if let Some(value) = value.map_err(failure)? {
                self.gpu
                    .set_node_attribute(to.graph, to.node, Some((*attribute, value)))
                    .map_err(failure)?;
            }
        }
        Ok(())
    }

    pub(super) fn graph_dot(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphDot,
    ) -> Result<messages::GraphDotReply<'static>, Failure> {
        let graph = self.gpu.graph(self.graph(m.graph)?).map_err(failure)?;
        // Any flag of `CUgraphDebugDot_flags` asks for more than the nodes' kinds.
        let text = graph.dot(m.flags != 0).into_bytes();
        Ok(messages::GraphDotReply {
            text: Cow::Owned(text),
        })
    }

    pub(super) fn cu_graph_create(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphCreate,
    ) -> Result<(), Failure> {
        if m.flags != 0 {
            return Err(invalid(format!("graph flags {:#x}", m.flags)));
        }
        let graph = self.gpu.create_graph().map_err(failure)?;
        self.adopt_graph(m.ph_graph, graph)
    }

    fn adopt_graph(&mut self, id: u64, graph: GraphId) -> Result<(), Failure> {
        self.graphs.insert(id, graph).inspect_err(|_| {
            let _ = self.gpu.destroy_graph(graph);
        })
    }

    pub(super) fn graph_clone(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphClone,
    ) -> Result<(), Failure> {
        let graph = self.graph(m.graph)?;
        let clone = self.gpu.clone_graph(graph).map_err(failure)?;
        self.adopt_graph(m.clone, clone)
    }

    pub(super) fn cu_graph_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphDestroy,
    ) -> Result<(), Failure> {
        let graph = self.graph(m.h_graph)?;
        self.gpu.destroy_graph(graph).map_err(failure)?;
        self.graphs.remove(m.h_graph)?;
        self.forget_gone();
        Ok(())
    }

    /// Removes graphs that were destroyed together with another graph or a node, and their nodes.
    fn forget_gone(&mut self) {
        let gpu = &self.gpu;
        self.graphs.retain(|graph| gpu.has_graph(*graph));
        let handles = &mut self.node_handles;
        self.nodes.retain(|node| {
            let stays = gpu.has_graph(node.graph);
            if !stays {
                handles.remove(&node.node);
            }
            stays
        });
        self.conditions.forget_gone(|graph| gpu.has_graph(graph));
    }

    pub(super) fn cu_graph_destroy_node(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphDestroyNode,
    ) -> Result<(), Failure> {
        let Node { graph, node } = *self.nodes.get(m.h_node)?;
        self.gpu.remove_node(graph, node).map_err(failure)?;
        self.nodes.remove(m.h_node)?;
        self.node_handles.remove(&node);
        self.forget_gone();
        Ok(())
    }

    pub(super) fn cu_graph_exec_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphExecDestroy,
    ) -> Result<(), Failure> {
        let exec = self.execs.remove(m.h_graph_exec)?;
        self.gpu.destroy_exec(exec).map_err(failure)
    }

    pub(super) fn cu_graph_exec_get_flags(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphExecGetFlags,
    ) -> Result<messages::CuGraphExecGetFlagsReply, Failure> {
        let flags = self
            .gpu
            .exec_flags(self.exec(m.h_graph_exec)?)
            .map_err(failure)?;
        Ok(messages::CuGraphExecGetFlagsReply { flags })
    }

    pub(super) fn cu_graph_node_get_enabled(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphNodeGetEnabled,
    ) -> Result<messages::CuGraphNodeGetEnabledReply, Failure> {
        let (exec, node) = (self.exec(m.h_graph_exec)?, self.nodes.get(m.h_node)?.node);
        let enabled = self.gpu.exec_node_enabled(exec, node).map_err(failure)?;
        Ok(messages::CuGraphNodeGetEnabledReply {
            is_enabled: u32::from(enabled),
        })
    }

    pub(super) fn cu_graph_node_set_enabled(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphNodeSetEnabled,
    ) -> Result<(), Failure> {
        let (exec, node) = (self.exec(m.h_graph_exec)?, self.nodes.get(m.h_node)?.node);
        self.gpu
            .enable_exec_node(exec, node, m.is_enabled != 0)
            .map_err(failure)
    }

    pub(super) fn graph_node_type(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphNodeType,
    ) -> Result<messages::GraphNodeTypeReply, Failure> {
        let Node { graph, node } = *self.nodes.get(m.node)?;
        let node_type = match self.gpu.node_op(graph, node).map_err(failure)? {
            Op::Launch(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            Op::Copy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
            Op::Set(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            Op::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
            Op::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            Op::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            Op::WaitEvent(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Op::RecordEvent(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Op::Value(_) | Op::Batch(_) => CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Op::Conditional(_) => CU_GRAPH_NODE_TYPE_CONDITIONAL,
        };
        Ok(messages::GraphNodeTypeReply { node_type })
    }

    /// Does nothing but check its handles: executable graphs need no upload.
    pub(super) fn cu_graph_upload(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuGraphUpload,
    ) -> Result<(), Failure> {
        self.exec(m.h_graph)?;
        self.stream(cx, m.h_stream).map(|_| ())
    }
}
