//! Graphs: nodes as the client numbers them, what they do, and instantiated graphs.

use std::borrow::Cow;

use outboard_api::enums::*;
use outboard_ptx::device::{ExecId, GraphId, NodeId, Op, Set, UpdateError};
use outboard_wire::{codec, messages};

use super::{
    Soft,
    launch::Shape,
    wait::{failure, invalid},
};
use crate::device::{Cx, Failure};

/// A node of a graph that the client has a handle of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    graph: GraphId,
    node: NodeId,
}

/// Edges in one answer. Three answers of this size fit into a frame.
const HANDLES_MAX: u32 = 1 << 15;

impl Soft {
    /// A node handle's own graph has to be the graph of the call.
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

    /// The client's handle of a node; a node it has not seen yet gets the next fresh number.
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

    /// As many handles as the client has room for, and how many there are.
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

    fn exec(&self, id: u64) -> Result<ExecId, Failure> {
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
            | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        if m.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
            return Err(Failure::unsupported("graphs launched by kernels"));
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
        for (a, b) in graph.edges().take(m.edges_max.min(HANDLES_MAX) as usize) {
            from.push(self.node_handle(id, a, &mut fresh)?);
            to.push(self.node_handle(id, b, &mut fresh)?);
        }
        Ok(messages::GraphEdgesReply {
            count,
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
        let nodes = self
            .gpu
            .neighbours(graph, node, m.dependents != 0)
            .map_err(failure)?;
        let (count, nodes) = self.node_list(graph, &nodes, m.first_node, m.nodes_max)?;
        let nodes = Cow::Owned(nodes);
        Ok(messages::GraphNodeNeighboursReply { count, nodes })
    }

    pub(super) fn graph_exec_update(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphExecUpdate,
    ) -> Result<messages::GraphExecUpdateReply, Failure> {
        let (exec, graph) = (self.exec(m.exec)?, self.graph(m.graph)?);
        let result = match self.gpu.update_exec(exec, graph).map_err(failure)? {
            Ok(()) => CU_GRAPH_EXEC_UPDATE_SUCCESS,
            Err(UpdateError::TopologyChanged) => CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED,
            Err(UpdateError::NodeTypeChanged) => CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED,
        };
        Ok(messages::GraphExecUpdateReply { result })
    }

    pub(super) fn graph_add_dependencies(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddDependencies<'_>,
    ) -> Result<(), Failure> {
        if m.edges.iter().any(|byte| *byte != 0) {
            return Err(Failure::unsupported("programmatic graph edges"));
        }
        let graph = self.graph(m.graph)?;
        let (from, to) = (self.nodes(graph, m.from)?, self.nodes(graph, m.to)?);
        if from.len() != to.len() {
            return Err(invalid(format!(
                "edges from {} nodes to {}",
                from.len(),
                to.len()
            )));
        }
        let edges: Vec<_> = from.into_iter().zip(to).collect();
        self.gpu.add_edges(graph, &edges).map_err(failure)
    }

    pub(super) fn graph_add_empty(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddEmpty<'_>,
    ) -> Result<(), Failure> {
        self.add_node(m.graph, m.node, m.dependencies, Op::Empty)
    }

    pub(super) fn graph_add_child(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddChild<'_>,
    ) -> Result<(), Failure> {
        let child = self.gpu.graph(self.graph(m.child)?).map_err(failure)?;
        self.add_node(m.graph, m.node, m.dependencies, Op::Child(Box::new(child)))
    }

    pub(super) fn graph_add_event(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddEvent<'_>,
    ) -> Result<(), Failure> {
        let event = *self.events.get(m.event)?;
        let op = match m.wait {
            0 => Op::RecordEvent(event),
            _ => Op::WaitEvent(event),
        };
        self.add_node(m.graph, m.node, m.dependencies, op)
    }

    pub(super) fn graph_add_host(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddHost<'_>,
    ) -> Result<(), Failure> {
        self.add_node(m.graph, m.node, m.dependencies, Op::Host(m.call))
    }

    pub(super) fn graph_add_memset(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddMemset<'_>,
    ) -> Result<(), Failure> {
        let set = Set {
            dst: m.dst,
            pitch_bytes: m.pitch,
            value: m.value,
            element_bytes: m.element_size,
            width: m.width,
            height: m.height,
        };
        self.add_node(m.graph, m.node, m.dependencies, Op::Set(set))
    }

    pub(super) fn graph_add_copy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddCopy<'_>,
    ) -> Result<(), Failure> {
        let copy = self.box_copy(m.desc)?;
        self.add_node(m.graph, m.node, m.dependencies, Op::Copy(copy))
    }

    pub(super) fn graph_add_kernel(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphAddKernel<'_>,
    ) -> Result<(), Failure> {
        let shape = Shape {
            grid: [m.grid_x, m.grid_y, m.grid_z],
            block: [m.block_x, m.block_y, m.block_z],
            shared_bytes: m.shared_bytes,
            cooperative: false,
        };
        let launch = self.prepare(m.kernel, shape, m.params)?;
        self.add_node(m.graph, m.node, m.dependencies, Op::Launch(launch))
    }

    pub(super) fn graph_kernel_params(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphKernelParams,
    ) -> Result<messages::GraphKernelParamsReply<'static>, Failure> {
        let Node { graph, node } = *self.nodes.get(m.node)?;
        let Op::Launch(launch) = self.gpu.node_op(graph, node).map_err(failure)? else {
            return Err(invalid("the parameters of a node that is no kernel"));
        };
        let kernel = self
            .kernel_of(&launch.code)
            .ok_or_else(|| Failure::unsupported("a node of a kernel whose module is gone"))?;
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
        Ok(messages::GraphKernelParamsReply {
            kernel,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes: launch.shared_bytes,
            params: launch.params.to_vec().into(),
        })
    }

    fn set_exec_node(&mut self, exec: u64, node: u64, op: Op) -> Result<(), Failure> {
        let (exec, node) = (self.exec(exec)?, self.nodes.get(node)?.node);
        self.gpu.set_exec_node(exec, node, op).map_err(failure)
    }

    pub(super) fn graph_exec_set_kernel(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphExecSetKernel<'_>,
    ) -> Result<(), Failure> {
        let shape = Shape {
            grid: [m.grid_x, m.grid_y, m.grid_z],
            block: [m.block_x, m.block_y, m.block_z],
            shared_bytes: m.shared_bytes,
            cooperative: false,
        };
        let launch = self.prepare(m.kernel, shape, m.params)?;
        self.set_exec_node(m.exec, m.node, Op::Launch(launch))
    }

    pub(super) fn graph_exec_set_memset(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphExecSetMemset,
    ) -> Result<(), Failure> {
        let set = Set {
            dst: m.dst,
            pitch_bytes: m.pitch,
            value: m.value,
            element_bytes: m.element_size,
            width: m.width,
            height: m.height,
        };
        self.set_exec_node(m.exec, m.node, Op::Set(set))
    }

    pub(super) fn graph_exec_set_copy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphExecSetCopy<'_>,
    ) -> Result<(), Failure> {
        let copy = self.box_copy(m.desc)?;
        self.set_exec_node(m.exec, m.node, Op::Copy(copy))
    }

    pub(super) fn graph_exec_set_child(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphExecSetChild,
    ) -> Result<(), Failure> {
        let child = self.gpu.graph(self.graph(m.child)?).map_err(failure)?;
        self.set_exec_node(m.exec, m.node, Op::Child(Box::new(child)))
    }

    pub(super) fn graph_dot(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::GraphDot,
    ) -> Result<messages::GraphDotReply<'static>, Failure> {
        let graph = self.gpu.graph(self.graph(m.graph)?).map_err(failure)?;
        // Any flag of CUgraphDebugDot_flags asks for more than the nodes' kinds.
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

    pub(super) fn cu_graph_clone(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphClone,
    ) -> Result<(), Failure> {
        let graph = self.graph(m.original_graph)?;
        let clone = self.gpu.clone_graph(graph).map_err(failure)?;
        self.adopt_graph(m.ph_graph_clone, clone)
    }

    pub(super) fn cu_graph_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphDestroy,
    ) -> Result<(), Failure> {
        let graph = self.graph(m.h_graph)?;
        self.gpu.destroy_graph(graph).map_err(failure)?;
        self.graphs.remove(m.h_graph)?;
        let handles: Vec<u64> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.graph == graph)
            .map(|(id, _)| id)
            .collect();
        for id in handles {
            let node = self.nodes.remove(id)?;
            self.node_handles.remove(&node.node);
        }
        Ok(())
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

    pub(super) fn cu_graph_node_get_type(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::CuGraphNodeGetType,
    ) -> Result<messages::CuGraphNodeGetTypeReply, Failure> {
        let Node { graph, node } = *self.nodes.get(m.h_node)?;
        let node_type = match self.gpu.node_op(graph, node).map_err(failure)? {
            Op::Launch(_) => CU_GRAPH_NODE_TYPE_KERNEL,
            Op::Copy(_) => CU_GRAPH_NODE_TYPE_MEMCPY,
            Op::Set(_) => CU_GRAPH_NODE_TYPE_MEMSET,
            Op::Host(_) => CU_GRAPH_NODE_TYPE_HOST,
            Op::Child(_) => CU_GRAPH_NODE_TYPE_GRAPH,
            Op::Empty => CU_GRAPH_NODE_TYPE_EMPTY,
            Op::WaitEvent(_) => CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Op::RecordEvent(_) => CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Op::Value(_) => CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
        };
        Ok(messages::CuGraphNodeGetTypeReply { node_type })
    }

    /// Instantiated graphs are ready as they are.
    pub(super) fn cu_graph_upload(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuGraphUpload,
    ) -> Result<(), Failure> {
        self.exec(m.h_graph)?;
        self.stream(cx, m.h_stream).map(|_| ())
    }
}
