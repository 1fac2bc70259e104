//! Graphs, their nodes, and executable graphs.
//!
//! The driver creates handles itself for captured graphs and nodes. Each gets a number when the
//! client first hears of it, and is found by its handle afterwards.

use std::sync::Arc;

use outboard_api::{CUresult, cuda::CUgraphEdgeData, enums::*};
use outboard_device::{Cx, Failure, handle_table::HandleTable};
use outboard_wire::{
    codec::{id_bytes, ids},
    messages,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Nvidia,
    deferred_free::Retired,
    graph_calls::{EdgeList, Neighbours},
    host_calls,
    host_memory::PinnedPart,
    owned::{ContextHold, Owned, given_back},
    table::{Driver, real},
};

/// Encodes edge data for a message; empty if every edge is a plain dependency.
pub(super) fn edge_bytes(edges: &[CUgraphEdgeData]) -> Vec<u8> {
    if edges.iter().all(|e| *e == CUgraphEdgeData::default()) {
        return Vec::new();
    }
    let bytes = edges.iter().flat_map(|e| {
        let [a, b, c, d, f] = e.reserved;
        [e.from_port, e.to_port, e.kind, a, b, c, d, f]
    });
    bytes.collect()
}

/// Decodes the data of `count` edges; none if every edge is a plain dependency.
pub(super) fn edge_data(bytes: &[u8], count: usize) -> Result<Vec<CUgraphEdgeData>, Failure> {
    let (records, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || !records.is_empty() && records.len() != count {
        return Err(Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            format!("{} bytes of data of {count} edges", bytes.len()),
        ));
    }
    let edges = records.iter().map(
        |[from_port, to_port, kind, reserved @ ..]| CUgraphEdgeData {
            from_port: *from_port,
            to_port: *to_port,
            kind: *kind,
            reserved: *reserved,
        },
    );
    Ok(edges.collect())
}

/// Memory that captured copies read.
pub(super) type Memory = Vec<Arc<PinnedPart>>;

pub(super) struct Exec {
    owned: Owned<real::GraphExec>,
    pub(super) memory: Memory,
    /// True if it may copy from host memory to host memory, for which the driver's launch waits
    /// until all earlier work of its stream is done.
    pub(super) copies_on_host: bool,
}

struct Node {
    handle: real::Node,
    graph: real::Graph,
}

/// The position of a graph inside another.
#[derive(Clone, Copy)]
struct PartOf {
    graph: real::Graph,
    node: real::Node,
}

pub(super) struct Graphs {
    graphs: HandleTable<real::Graph>,
    pub(super) execs: HandleTable<Exec>,
    nodes: HandleTable<Node>,
    /// The first number of each graph.
    graph_ids: FxHashMap<real::Graph, u64>,
    node_ids: FxHashMap<real::Node, u64>,
    /// Memory read by copies that were captured into a graph, its clones or its children.
    memory: FxHashMap<real::Graph, Memory>,
    /// Graphs with a memset of memory outside the session; see [`super::captured`].
    pub(super) strays: FxHashSet<real::Graph>,
    /// Graphs inside nodes of other graphs; they are destroyed with those nodes.
    parts: FxHashMap<real::Graph, PartOf>,
    /// Graphs with a copy from host memory to host memory, in a node or in a child graph.
    pub(super) on_host: FxHashSet<real::Graph>,
    driver: Arc<Driver>,
}

impl Graphs {
    pub(super) fn new(driver: &Arc<Driver>) -> Graphs {
        Graphs {
            graphs: HandleTable::new("graph"),
            execs: HandleTable::new("instantiated graph"),
            nodes: HandleTable::new("graph node"),
            graph_ids: FxHashMap::default(),
            node_ids: FxHashMap::default(),
            memory: FxHashMap::default(),
            strays: FxHashSet::default(),
            parts: FxHashMap::default(),
            on_host: FxHashSet::default(),
            driver: driver.clone(),
        }
    }

    /// Binds a graph to a number. A graph that has one keeps it, and can be named by both.
    pub(super) fn bind(&mut self, id: u64, handle: real::Graph) -> Result<(), Failure> {
        if self.graphs.get(id).is_ok_and(|known| *known == handle) {
            return Ok(());
        }
        self.graphs.insert(id, handle)?;
        self.graph_ids.entry(handle).or_insert(id);
        Ok(())
    }

    /// Keeps memory alive for as long as the graph.
    pub(super) fn remember(&mut self, graph: real::Graph, memory: Memory) {
        if !memory.is_empty() {
            self.memory.entry(graph).or_default().extend(memory);
        }
    }

    pub(super) fn memory_of(&self, graph: real::Graph) -> Memory {
        self.memory.get(&graph).cloned().unwrap_or_default()
    }

    /// Returns the memory read by copies of a graph and of the graphs inside it.
    pub(super) fn memory_inside(&self, graph: real::Graph) -> Memory {
        let graphs = self.parts_of(graph).into_iter().chain([graph]);
        graphs.flat_map(|graph| self.memory_of(graph)).collect()
    }

    /// Notes that a graph copies from host memory to host memory. It counts as doing so for ever.
    pub(super) fn mark_on_host(&mut self, graph: real::Graph) {
        self.on_host.insert(graph);
    }

    /// Returns whether a graph, or one inside it, may copy from host memory to host memory.
    pub(super) fn copies_on_host(&self, graph: real::Graph) -> bool {
        if self.on_host.is_empty() {
            return false;
        }
        let mut graphs = self.parts_of(graph).into_iter().chain([graph]);
        graphs.any(|graph| self.on_host.contains(&graph))
    }

    pub(super) fn id_of(&self, handle: real::Graph) -> Option<u64> {
        self.graph_ids.get(&handle).copied()
    }

    /// Returns the numbers of nodes. Nodes without one get numbers from `first` on.
    pub(super) fn node_ids(
        &mut self,
        graph: real::Graph,
        handles: &[real::Node],
        first: u64,
    ) -> Result<Vec<u64>, Failure> {
        let mut ids = Vec::with_capacity(handles.len());
        for (i, handle) in handles.iter().enumerate() {
            let id = match self.node_ids.get(handle) {
                Some(id) => *id,
                None => {
                    let id = first.wrapping_add(i as u64);
                    self.bind_node(id, *handle, graph)?;
                    id
                }
            };
            ids.push(id);
        }
        Ok(ids)
    }

    pub(super) fn bind_node(
        &mut self,
        id: u64,
        handle: real::Node,
        graph: real::Graph,
    ) -> Result<(), Failure> {
        self.nodes.insert(id, Node { handle, graph })?;
        self.node_ids.insert(handle, id);
        Ok(())
    }

    /// Binds a graph inside a node to a number. The graph is destroyed with the node.
    pub(super) fn bind_part(
        &mut self,
        id: u64,
        part: real::Graph,
        (graph, node): (real::Graph, real::Node),
    ) -> Result<(), Failure> {
        self.bind(id, part)?;
        self.becomes_part(part, (graph, node));
        Ok(())
    }

    /// Records that a graph is inside a node, and is destroyed with it.
    pub(super) fn becomes_part(
        &mut self,
        part: real::Graph,
        (graph, node): (real::Graph, real::Node),
    ) {
        self.parts.insert(part, PartOf { graph, node });
    }

    pub(super) fn is_part(&self, graph: real::Graph) -> bool {
        self.parts.contains_key(&graph)
    }

    /// Returns the graphs inside this one, at any depth.
    pub(super) fn parts_of(&self, graph: real::Graph) -> Vec<real::Graph> {
        let mut found = Vec::new();
        let mut left = vec![graph];
        while let Some(outer) = left.pop() {
            let inner = self.parts.iter().filter(|(_, at)| at.graph == outer);
            let inner: Vec<_> = inner.map(|(part, _)| *part).collect();
            found.extend(&inner);
            left.extend(inner);
        }
        found
    }

    fn forget_parts_in(&mut self, node: real::Node) -> Memory {
        let inner = self.parts.iter().filter(|(_, at)| at.node == node);
        let inner: Vec<_> = inner.map(|(part, _)| *part).collect();
        let mut memory = Vec::new();
        for part in inner {
            for deeper in self.parts_of(part).into_iter().chain([part]) {
                self.parts.remove(&deeper);
                memory.extend(self.forget_handle(deeper));
            }
        }
        memory
    }

    /// Removes a graph, its nodes and the graphs inside it, because the driver will reuse their
    /// handles.
    pub(super) fn forget(&mut self, id: u64) -> Result<(real::Graph, Memory), Failure> {
        let handle = *self.graphs.get(id)?;
        if self.parts.contains_key(&handle) {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                "a graph inside another goes with it",
            ));
        }
        let mut memory = Vec::new();
        for part in self.parts_of(handle) {
            self.parts.remove(&part);
            memory.extend(self.forget_handle(part));
        }
        memory.extend(self.forget_handle(handle));
        Ok((handle, memory))
    }

    fn forget_handle(&mut self, handle: real::Graph) -> Memory {
        self.graphs.retain(|other| *other != handle);
        self.graph_ids.remove(&handle);
        self.strays.remove(&handle);
        self.on_host.remove(&handle);
        let node_ids = &mut self.node_ids;
        self.nodes.retain(|node| {
            let gone = node.graph == handle;
            if gone {
                node_ids.remove(&node.handle);
            }
            !gone
        });
        self.memory.remove(&handle).unwrap_or_default()
    }

    /// Leaks all graphs: at the end of a session the driver could wait for ever while destroying
    /// them.
    pub(super) fn abandon(&mut self) {
        self.execs.drain().for_each(std::mem::forget);
        self.graphs.drain().for_each(std::mem::forget);
        std::mem::forget(std::mem::take(&mut self.memory));
    }

    /// Drops the executable graphs of a context, and returns the memory that they read.
    pub(super) fn forget_context(&mut self, gone: &Arc<ContextHold>) -> Memory {
        let execs = self
            .execs
            .extract(|exec| Arc::ptr_eq(&exec.owned.hold, gone));
        execs.into_iter().flat_map(|exec| exec.memory).collect()
    }
}

impl Drop for Graphs {
    fn drop(&mut self) {
        self.execs.drain().for_each(drop);
        let mut destroyed = FxHashSet::default();
        for (_, graph) in self.graphs.drain() {
            if !self.parts.contains_key(&graph) && destroyed.insert(graph) {
                given_back(self.driver.cuGraphDestroy(graph));
            }
        }
    }
}

impl Nvidia {
    pub(super) fn graph_instantiate(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphInstantiate,
    ) -> Result<messages::GraphInstantiateReply, Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        self.graphs.check_runnable(graph)?;
        let memory = self.graphs.memory_inside(graph);
        // Uploading now would save time at the first launch, but is left to cuGraphUpload.
        let flags = m.flags & !u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
        let handle = self.driver.cuGraphInstantiateWithFlags(graph, flags)?;
        let owned = Owned::new(self.current_hold(), handle, |driver, handle| {
            driver.cuGraphExecDestroy(handle)
        });
        let exec = Exec {
            owned,
            memory,
            copies_on_host: self.graphs.copies_on_host(graph),
        };
        self.graphs.execs.insert(m.exec, exec)?;
        let by_kernels = m.flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0;
        Ok(messages::GraphInstantiateReply {
            status: 0,
            device_handle: if by_kernels { handle.raw() as u64 } else { 0 },
        })
    }

    pub(super) fn graph_launch(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphLaunch,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        let Exec {
            owned,
            copies_on_host,
            ..
        } = self.graphs.execs.get(m.exec)?;
        let (exec, copies_on_host) = (owned.handle(), *copies_on_host);
        if self.capturing(stream)? {
            return self.capture_launch(cx, m);
        }
        if copies_on_host {
            let current = self.context(cx.context)?.hold.handle;
            let launch = |driver: &Driver| driver.cuGraphLaunch(exec, stream);
            let (driver, device) = self.aside();
            host_calls::held_up(driver, current, device, cx.service, launch)?;
        } else {
            self.driver.cuGraphLaunch(exec, stream)?;
        }
        self.printing.launches_graph((cx.context, m.stream));
        let hold = self.stream_hold(m.stream)?;
        Ok(self.host_calls.launched(|| hold.mark(stream))?)
    }

    /// Captures the launch of a graph. The graph that is captured does all that the launched one
    /// does, later.
    fn capture_launch(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphLaunch,
    ) -> Result<(), Failure> {
        let stream = self.real_stream(m.stream)?;
        let Exec {
            owned,
            memory,
            copies_on_host,
        } = self.graphs.execs.get(m.exec)?;
        let capture = self.driver.capture(stream)?;
        self.driver.cuGraphLaunch(owned.handle(), stream)?;
        let memory = memory.clone();
        if *copies_on_host {
            self.graphs.mark_on_host(capture.graph);
        }
        if !memory.is_empty() {
            let captured = self.capture_memory.entry(capture.id).or_default();
            captured.extend(memory);
        }
        self.printing.launches_graph((cx.context, m.stream));
        Ok(())
    }

    pub(super) fn cu_graph_upload(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuGraphUpload,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.h_stream)?;
        let exec = self.real_graphexec(m.h_graph)?;
        Ok(self.driver.cuGraphUpload(exec, stream)?)
    }

    pub(super) fn cu_graph_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuGraphDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let (handle, memory) = self.graphs.forget(m.h_graph)?;
        self.bury_memory(memory);
        Ok(self.driver.cuGraphDestroy(handle)?)
    }

    pub(super) fn cu_graph_destroy_node(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuGraphDestroyNode,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let handle = self.real_node(m.h_node)?;
        self.driver.cuGraphDestroyNode(handle)?;
        self.graphs.nodes.remove(m.h_node)?;
        self.graphs.node_ids.remove(&handle);
        let memory = self.graphs.forget_parts_in(handle);
        self.bury_memory(memory);
        Ok(())
    }

    pub(super) fn cu_graph_exec_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuGraphExecDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let exec = self.graphs.execs.remove(m.h_graph_exec)?;
        // The driver lets a running launch finish; its memory must live as long.
        self.bury_memory(exec.memory);
        Ok(())
    }

    pub(super) fn graph_nodes(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphNodes,
    ) -> Result<messages::GraphNodesReply<'static>, Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        let nodes = self.driver.graph_nodes(graph, m.roots_only != 0)?;
        let ids = self.answer_nodes(graph, &nodes, m.first_node, m.nodes_max)?;
        Ok(messages::GraphNodesReply {
            count: nodes.len() as u64,
            nodes: ids.into(),
        })
    }

    pub(super) fn graph_edges(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphEdges,
    ) -> Result<messages::GraphEdgesReply<'static>, Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        let (from, to, edges) = self.driver.graph_edges(graph)?;
        let shown = from.len().min(m.edges_max as usize);
        // Fresh numbers go to the start nodes first, then to the end nodes.
        let from_ids = self.graphs.node_ids(graph, &from[..shown], m.first_node)?;
        let second = m.first_node.wrapping_add(shown as u64);
        let to_ids = self.graphs.node_ids(graph, &to[..shown], second)?;
        Ok(messages::GraphEdgesReply {
            count: from.len() as u64,
            from: id_bytes(&from_ids).into(),
            to: id_bytes(&to_ids).into(),
            edges: edge_bytes(&edges[..shown]).into(),
        })
    }

    pub(super) fn graph_node_neighbours(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphNodeNeighbours,
    ) -> Result<messages::GraphNodeNeighboursReply<'static>, Failure> {
        self.enter(cx)?;
        let node = self.graphs.nodes.get(m.node)?;
        let (handle, graph) = (node.handle, node.graph);
        let which = match m.dependents {
            0 => Neighbours::Dependencies,
            _ => Neighbours::Dependents,
        };
        let (nodes, edges) = self.driver.graph_neighbours(handle, which)?;
        let ids = self.answer_nodes(graph, &nodes, m.first_node, m.nodes_max)?;
        let shown = edges.len().min(m.nodes_max as usize);
        Ok(messages::GraphNodeNeighboursReply {
            count: nodes.len() as u64,
            nodes: ids.into(),
            edges: edge_bytes(&edges[..shown]).into(),
        })
    }

    pub(super) fn graph_exec_update(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphExecUpdate,
    ) -> Result<messages::GraphExecUpdateReply, Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        self.graphs.check_runnable(graph)?;
        let memory = self.graphs.memory_inside(graph);
        let copies_on_host = self.graphs.copies_on_host(graph);
        let exec = self.graphs.execs.get_mut(m.exec)?;
        let info = self.driver.graph_exec_update(exec.owned.handle(), graph)?;
        if info.result == 0 {
            exec.copies_on_host = copies_on_host;
            // A launch that runs may still read it.
            let earlier = std::mem::replace(&mut exec.memory, memory);
            self.bury_memory(earlier);
        } else {
            // Whether a part was updated is not known.
            exec.copies_on_host |= copies_on_host;
            exec.memory.extend(memory);
        }
        let mut number = |node: real::Node, fresh: u64| match node.is_null() {
            true => Ok(0),
            false => {
                let found = self.graphs.node_ids(graph, &[node], fresh);
                found.map(|ids| ids.first().copied().unwrap_or(0))
            }
        };
        Ok(messages::GraphExecUpdateReply {
            result: info.result,
            error_node: number(info.error_node, m.first_node)?,
            error_from_node: number(info.error_from_node, m.first_node.wrapping_add(1))?,
        })
    }

    pub(super) fn graph_add_dependencies(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphAddDependencies<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        let (from, to, edges) = self.edge_list(m.from, m.to, m.edges)?;
        Ok(self
            .driver
            .graph_add_dependencies(graph, &from, &to, &edges)?)
    }

    pub(super) fn graph_remove_dependencies(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphRemoveDependencies<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        let (from, to, edges) = self.edge_list(m.from, m.to, m.edges)?;
        Ok(self
            .driver
            .graph_remove_dependencies(graph, &from, &to, &edges)?)
    }

    fn edge_list(&self, from: &[u8], to: &[u8], edges: &[u8]) -> Result<EdgeList, Failure> {
        let (from, to) = (self.real_nodes(from)?, self.real_nodes(to)?);
        if from.len() != to.len() {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("edges from {} nodes to {}", from.len(), to.len()),
            ));
        }
        let edges = edge_data(edges, from.len())?;
        Ok((from, to, edges))
    }

    pub(super) fn graph_dot(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphDot,
    ) -> Result<messages::GraphDotReply<'static>, Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        let text = self.driver.graph_text(graph, m.flags)?;
        Ok(messages::GraphDotReply { text: text.into() })
    }

    pub(super) fn real_graph(&self, id: u64) -> Result<real::Graph, Failure> {
        self.graphs.graphs.get(id).copied()
    }

    pub(super) fn real_graphexec(&self, id: u64) -> Result<real::GraphExec, Failure> {
        Ok(self.graphs.execs.get(id)?.owned.handle())
    }

    pub(super) fn real_node(&self, id: u64) -> Result<real::Node, Failure> {
        Ok(self.graphs.nodes.get(id)?.handle)
    }

    /// Returns the graph that a node is in.
    pub(super) fn graph_of_node(&self, id: u64) -> Result<real::Graph, Failure> {
        Ok(self.graphs.nodes.get(id)?.graph)
    }

    pub(super) fn real_nodes(&self, bytes: &[u8]) -> Result<Vec<real::Node>, Failure> {
        ids(bytes).map(|id| self.real_node(id)).collect()
    }

    pub(super) fn bind_graph(&mut self, id: u64, handle: real::Graph) -> Result<(), Failure> {
        self.graphs.bind(id, handle)
    }

    fn answer_nodes(
        &mut self,
        graph: real::Graph,
        nodes: &[real::Node],
        first: u64,
        nodes_max: u32,
    ) -> Result<Vec<u8>, Failure> {
        let shown = nodes.len().min(nodes_max as usize);
        let ids = self.graphs.node_ids(graph, &nodes[..shown], first)?;
        Ok(id_bytes(&ids))
    }

    /// Frees memory once all work that there is now is done.
    pub(super) fn bury_memory(&mut self, memory: Memory) {
        if !memory.is_empty() {
            let marks = self.busy_marks();
            self.deferred_frees
                .push(Retired::Other(Box::new(memory)), None, marks);
        }
    }
}
