//! Graphs as programs build and capture them: nodes, their dependencies, and queries about both.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::{
    error::Error,
    schedule::State,
    weight::{Charge, UNIT_BYTES},
    work::{Body, Conditional, ConditionalKind, Op},
};

/// Nodes of one graph, at most.
pub(super) const GRAPH_NODES_MAX: usize = 1 << 20;
/// Depth of graphs inside graphs, at most.
pub(super) const GRAPH_DEPTH_MAX: usize = 32;
/// Nodes that a graph inside another counts as, at least.
const GRAPH_INSIDE_NODES: usize = 16;
/// Conditions of one graph that begin with a value.
const DEFAULTS_MAX: usize = 1 << 16;
/// Graphs of one device, at most.
pub(super) const GRAPHS_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphId(pub(super) u64);

impl GraphId {
    pub fn number(self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u64);

impl NodeId {
    /// The number in [`About::node`](super::About::node).
    pub fn number(self) -> u64 {
        self.0
    }
}

/// `CUgraphEdgeData`, stored and returned. Every edge orders its two nodes completely, which all
/// kinds allow.
pub type Edge = [u8; 8];

/// The edge from a kernel whose blocks let the next kernel begin.
pub const PROGRAMMATIC: Edge = [1, 0, 1, 0, 0, 0, 0, 0];
/// The edge from a kernel that lets the next kernel begin once all of its blocks have begun.
pub const AT_BLOCK_START: Edge = [2, 0, 1, 0, 0, 0, 0, 0];
/// The edge from a kernel all of whose blocks have begun, to any node.
pub const LAUNCH_COMPLETION: Edge = [2, 0, 0, 0, 0, 0, 0, 0];

/// Nodes that another depends on, and the edges from them.
pub(super) type Dependencies = BTreeMap<NodeId, Edge>;

/// A graph. Ids of nodes ascend in the order of creation.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(super) nodes: BTreeMap<NodeId, Node>,
    /// Addresses of conditions and their initial values.
    pub(super) defaults: Vec<(u64, u32)>,
    /// The graph with the node that this one is part of. They are destroyed together.
    owner: Option<GraphId>,
    /// Its weight without its nodes; held for its drop, and copied with it.
    charge: Option<Charge>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) deps: BTreeSet<NodeId>,
    dependents: BTreeSet<NodeId>,
    /// Edge data of dependencies whose edge is not a plain one.
    edges: BTreeMap<NodeId, Edge>,
    pub(super) attributes: BTreeMap<u32, [u8; 64]>,
    /// The node that this one was cloned from.
    origin: Option<NodeId>,
    pub(super) charge: Charge,
}

const _: () = assert!(size_of::<Node>() <= UNIT_BYTES);
/// Nodes for which a graph's map has room from the first one on.
const MAP_NODES: usize = 11;
/// Weight of a graph, however few nodes it has.
const GRAPH_UNITS: usize =
    (size_of::<Graph>() + MAP_NODES * size_of::<(NodeId, Node)>()).div_ceil(UNIT_BYTES);
/// Edges and attributes of a node that weigh a unit.
const EDGES_UNIT: usize = 8;
const ATTRIBUTES_UNIT: usize = 4;

impl Node {
    /// Charges what the node has become.
    pub(super) fn weigh(&mut self) {
        let edges = self.deps.len() + self.dependents.len() + self.edges.len();
        let attributes = self.attributes.len();
        self.charge
            .raise(self.op.units() + edges / EDGES_UNIT + attributes / ATTRIBUTES_UNIT);
    }

    pub(super) fn edge(&self, from: NodeId) -> Edge {
        self.edges.get(&from).copied().unwrap_or_default()
    }
}

impl Graph {
    pub(super) fn add(
        &mut self,
        id: NodeId,
        op: Op,
        deps: Dependencies,
        charge: Charge,
    ) -> Result<(), Error> {
        if self.nodes.len() >= GRAPH_NODES_MAX {
            return Err(Error::Unsupported(format!(
                "a graph of more than {GRAPH_NODES_MAX} nodes"
            )));
        }
        for dep in deps.keys() {
            self.node(*dep)?;
        }
        if let Op::Child(Body::Fixed(child)) = &op
            && child.depth() + 1 >= GRAPH_DEPTH_MAX
        {
            return Err(too_deep());
        }
        for dep in deps.keys() {
            if let Some(node) = self.nodes.get_mut(dep) {
                node.dependents.insert(id);
                node.weigh();
            }
        }
        let mut node = Node {
            op,
            deps: deps.keys().copied().collect(),
            dependents: BTreeSet::new(),
            edges: with_data(deps),
            attributes: BTreeMap::new(),
            origin: None,
            charge,
        };
        node.weigh();
        self.nodes.insert(id, node);
        Ok(())
    }

    /// Returns whether a node launches a kernel.
    pub(super) fn is_kernel(&self, id: NodeId) -> bool {
        let node = self.nodes.get(&id);
        node.is_some_and(|node| matches!(node.op, Op::Launch(_)))
    }

    /// Checks the data of an edge from a node, as an H100's driver does: only kernels have ports.
    pub(super) fn check_edge(&self, from: NodeId, edge: Edge) -> Result<(), Error> {
        self.node(from)?;
        let known = [PROGRAMMATIC, AT_BLOCK_START, LAUNCH_COMPLETION].contains(&edge);
        match edge == Edge::default() || known && self.is_kernel(from) {
            true => Ok(()),
            false => Err(Error::InvalidValue(format!(
                "an edge with the data {edge:?}"
            ))),
        }
    }

    /// The weight of its own nodes, with the conditions' values.
    fn units(&self) -> usize {
        let nodes: usize = self.nodes.values().map(|node| node.charge.units()).sum();
        nodes + self.defaults.len() / EDGES_UNIT + GRAPH_UNITS
    }

    fn depth(&self) -> usize {
        let depths = self.bodies().map(|body| match body {
            Body::Fixed(graph) => graph.depth() + 1,
            Body::Open(_) => 1,
        });
        depths.max().unwrap_or(0)
    }

    /// Returns the graphs inside its nodes.
    fn bodies(&self) -> impl Iterator<Item = &Body> {
        self.nodes.values().flat_map(|node| node.op.bodies())
    }

    /// Returns the node that was cloned from `origin`.
    pub(super) fn made_from(&self, origin: NodeId) -> Option<NodeId> {
        let mut nodes = self.nodes.iter();
        nodes
            .find(|(_, node)| node.origin == Some(origin))
            .map(|(id, _)| *id)
    }

    pub(super) fn set_attribute(
        &mut self,
        node: NodeId,
        attribute: Option<(u32, [u8; 64])>,
    ) -> Result<(), Error> {
        let node = self.nodes.get_mut(&node).ok_or_else(|| no_node(node))?;
        if !matches!(node.op, Op::Launch(_)) {
            return Err(Error::InvalidValue(
                "an attribute of a node that is no kernel".into(),
            ));
        }
        match attribute {
            Some((attribute, value)) => {
                node.attributes.insert(attribute, value);
                node.weigh();
            }
            None => node.attributes.clear(),
        }
        Ok(())
    }

    pub(super) fn node(&self, id: NodeId) -> Result<&Node, Error> {
        self.nodes.get(&id).ok_or_else(|| no_node(id))
    }

    /// Returns a node of this graph or of a fixed one inside it.
    pub(super) fn find_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        if self.nodes.contains_key(&id) {
            return self.nodes.get_mut(&id);
        }
        let bodies = self
            .nodes
            .values_mut()
            .flat_map(|node| node.op.bodies_mut());
        let mut graphs = bodies.filter_map(|body| match body {
            Body::Fixed(graph) => Some(graph),
            Body::Open(_) => None,
        });
        graphs.find_map(|graph| graph.find_mut(id))
    }

    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        let roots = self.nodes.iter().filter(|(_, node)| node.deps.is_empty());
        roots.map(|(id, _)| *id)
    }

    /// Returns the edges: the second node depends on the first.
    pub fn edges(&self) -> impl Iterator<Item = (NodeId, NodeId, Edge)> {
        let nodes = self.nodes.iter();
        nodes.flat_map(|(to, node)| {
            let deps = node.deps.iter();
            deps.map(|from| (*from, *to, node.edge(*from)))
        })
    }

    /// Removes edges. One without data stands for any, as for an H100's driver.
    pub(super) fn remove_edges(&mut self, edges: &[(NodeId, NodeId, Edge)]) -> Result<(), Error> {
        for (from, to, edge) in edges {
            let node = self.node(*to)?;
            let differs = *edge != Edge::default() && node.edge(*from) != *edge;
            if !node.deps.contains(from) || differs {
                return Err(Error::InvalidValue("no such edge".into()));
            }
        }
        for (from, to, _) in edges {
            if let Some(node) = self.nodes.get_mut(to) {
                node.deps.remove(from);
                node.edges.remove(from);
            }
            if let Some(node) = self.nodes.get_mut(from) {
                node.dependents.remove(to);
            }
        }
        Ok(())
    }

    pub(super) fn add_edges(&mut self, edges: &[(NodeId, NodeId, Edge)]) -> Result<(), Error> {
        let mut new = BTreeSet::new();
        for (from, to, edge) in edges {
            self.check_edge(*from, *edge)?;
            // The type of an edge by which a kernel begins early.
            if edge[2] != 0 && !self.is_kernel(*to) {
                return Err(Error::InvalidValue(
                    "a programmatic edge to a node that is no kernel".into(),
                ));
            }
            if from == to || self.node(*to)?.deps.contains(from) || !new.insert((from, to)) {
                return Err(Error::InvalidValue(
                    "an edge to itself, or one that exists".into(),
                ));
            }
        }
        for (from, to, edge) in edges {
            if let Some(node) = self.nodes.get_mut(to) {
                node.deps.insert(*from);
                if *edge != Edge::default() {
                    node.edges.insert(*from, *edge);
                }
                node.weigh();
            }
            if let Some(node) = self.nodes.get_mut(from) {
                node.dependents.insert(*to);
                node.weigh();
            }
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, id: NodeId) {
        let Some(node) = self.nodes.remove(&id) else {
            return;
        };
        for dep in &node.deps {
            if let Some(dep) = self.nodes.get_mut(dep) {
                dep.dependents.remove(&id);
            }
        }
        for dependent in &node.dependents {
            if let Some(dependent) = self.nodes.get_mut(dependent) {
                dependent.deps.remove(&id);
                dependent.edges.remove(&id);
            }
        }
    }

    /// Returns `from` and everything that it depends on.
    pub(super) fn ancestors(&self, from: &Dependencies) -> BTreeSet<NodeId> {
        let mut left: Vec<NodeId> = from.keys().copied().collect();
        let mut seen: BTreeSet<NodeId> = from.keys().copied().collect();
        while let Some(id) = left.pop() {
            let Some(node) = self.nodes.get(&id) else {
                continue;
            };
            left.extend(node.deps.iter().filter(|dep| seen.insert(**dep)));
        }
        seen
    }

    /// Returns the graph in Graphviz's language, similar to what `cuGraphDebugDotPrint` writes.
    pub fn dot(&self, verbose: bool) -> String {
        let mut out = String::from("digraph graph_1 {\n");
        self.dot_into(&mut out, "", verbose);
        out.push_str("}\n");
        out
    }

    fn dot_into(&self, out: &mut String, prefix: &str, verbose: bool) {
        for (index, (id, node)) in self.nodes.iter().enumerate() {
            let mut label = format!("{index}\\n{}", node.op.kind());
            if verbose || matches!(node.op, Op::Launch(_)) {
                let text = match &node.op {
                    Op::Child(_) | Op::Conditional(_) => String::new(),
                    op => format!("\\n{op:?}"),
                };
                label.push_str(&text.replace('"', "'"));
            }
            let _ = writeln!(out, "  \"{prefix}{}\" [label=\"{label}\"];", id.0);
            for (index, body) in node.op.bodies().iter().enumerate() {
                let Body::Fixed(body) = body else { continue };
                let _ = writeln!(out, "  subgraph \"cluster_{prefix}{}_{index}\" {{", id.0);
                body.dot_into(out, &format!("{prefix}{}_{index}_", id.0), verbose);
                out.push_str("  }\n");
            }
        }
        for (from, to, _) in self.edges() {
            let _ = writeln!(out, "  \"{prefix}{}\" -> \"{prefix}{}\";", from.0, to.0);
        }
    }
}

impl Op {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Op::Launch(_) => "KERNEL",
            Op::Copy(_) => "MEMCPY",
            Op::Set(_) => "MEMSET",
            Op::Host(_) => "HOST",
            Op::Child(_) => "GRAPH",
            Op::Empty => "EMPTY",
            Op::WaitEvent(_) => "WAIT_EVENT",
            Op::RecordEvent(_) => "EVENT_RECORD",
            Op::Value(_) | Op::Batch(_) => "BATCH_MEM_OP",
            Op::Conditional(_) => "CONDITIONAL",
        }
    }

    /// Returns the graphs inside a node.
    /// The weight of a node with this operation, apart from its edges and the graphs inside it.
    pub(super) fn units(&self) -> usize {
        let bytes = match self {
            Op::Launch(launch) => launch.params.len(),
            Op::Batch(ops) => size_of_val(&**ops),
            _ => 0,
        };
        1 + bytes / UNIT_BYTES
    }

    pub(super) fn bodies(&self) -> &[Body] {
        match self {
            Op::Child(body) => std::slice::from_ref(body),
            Op::Conditional(conditional) => &conditional.bodies,
            _ => &[],
        }
    }

    fn bodies_mut(&mut self) -> &mut [Body] {
        match self {
            Op::Child(body) => std::slice::from_mut(body),
            Op::Conditional(conditional) => &mut conditional.bodies,
            _ => &mut [],
        }
    }
}

/// The contents of a graph and of those inside it.
struct Inside {
    /// Nodes that it may still have.
    left: usize,
    units: usize,
}

impl Inside {
    fn take(&mut self, nodes: usize) -> Result<(), Error> {
        self.left = self.left.checked_sub(nodes).ok_or_else(too_large)?;
        Ok(())
    }
}

fn too_deep() -> Error {
    Error::Unsupported(format!("graphs nested deeper than {GRAPH_DEPTH_MAX}"))
}

fn too_large() -> Error {
    Error::Unsupported(format!(
        "a graph of more than {GRAPH_NODES_MAX} nodes with those of the graphs inside it, each of which counts as {GRAPH_INSIDE_NODES} more"
    ))
}

fn no_node(id: NodeId) -> Error {
    Error::InvalidHandle {
        kind: "graph node",
        id: id.0,
    }
}

impl State {
    pub(super) fn create_graph(&mut self, mut graph: Graph) -> Result<GraphId, Error> {
        if self.graphs.len() >= GRAPHS_MAX {
            return Err(Error::Unsupported(format!("more than {GRAPHS_MAX} graphs")));
        }
        if graph.charge.is_none() {
            self.weight.check(GRAPH_UNITS)?;
            graph.charge = Some(self.weight.charge(GRAPH_UNITS));
        }
        let id = GraphId(self.fresh());
        self.graphs.insert(id, graph);
        Ok(id)
    }

    pub(super) fn graph(&self, id: GraphId) -> Result<&Graph, Error> {
        self.graphs.get(&id).ok_or(no_graph(id))
    }

    pub(super) fn graph_mut(&mut self, id: GraphId) -> Result<&mut Graph, Error> {
        self.graphs.get_mut(&id).ok_or(no_graph(id))
    }

    /// Destroys a graph that is not part of another.
    pub(super) fn destroy_graph(&mut self, id: GraphId) -> Result<(), Error> {
        if self.graph(id)?.owner.is_some() {
            return Err(Error::InvalidValue("the graph is part of another".into()));
        }
        self.destroy_with_parts(id)
    }

    fn destroy_with_parts(&mut self, id: GraphId) -> Result<(), Error> {
        if self.captures.values().any(|c| c.graph == id) {
            return Err(Error::IllegalState("the graph is being captured"));
        }
        let graph = self.graphs.remove(&id).ok_or(no_graph(id))?;
        graph
            .nodes
            .values()
            .for_each(|node| self.drop_bodies(&node.op));
        Ok(())
    }

    /// Destroys the graphs inside a removed node.
    fn drop_bodies(&mut self, op: &Op) {
        for body in op.bodies() {
            if let Body::Open(inner) = body {
                // A graph that is being captured is removed by the end of its capture.
                let _ = self.destroy_with_parts(*inner);
            }
        }
    }

    /// A copy of a graph, with copies of the graphs inside it that are still being built. Fails if
    /// there is no room for as many `copies` as the caller makes in all.
    pub(super) fn fixed_graph(&self, id: GraphId, copies: usize) -> Result<Graph, Error> {
        self.check_copies(self.graph(id)?, copies)?;
        self.fixed(id, GRAPH_DEPTH_MAX)
    }

    /// Fails if a graph is too large to be copied, or there is no room for so many copies.
    pub(super) fn check_copies(&self, graph: &Graph, copies: usize) -> Result<(), Error> {
        let mut all = Inside {
            left: GRAPH_NODES_MAX,
            units: 0,
        };
        self.take_nodes(graph, GRAPH_DEPTH_MAX, &mut all)?;
        self.weight.check(all.units * copies)
    }

    /// Takes what is in a graph, with the graphs inside it, off what one may have: a graph that is
    /// twice in one that is twice in the next becomes as large as memory within few calls.
    fn take_nodes(&self, graph: &Graph, depth: usize, all: &mut Inside) -> Result<(), Error> {
        all.take(graph.nodes.len())?;
        all.units += graph.units();
        for body in graph.nodes.values().flat_map(|node| node.op.bodies()) {
            all.take(GRAPH_INSIDE_NODES)?;
            match body {
                Body::Fixed(inner) => self.take_nodes(inner, depth, all)?,
                // Those that are deeper are refused when they are copied.
                Body::Open(inner) if depth > 0 => {
                    self.take_nodes(self.graph(*inner)?, depth - 1, all)?;
                }
                Body::Open(_) => {}
            }
        }
        Ok(())
    }

    fn fixed(&self, id: GraphId, depth: usize) -> Result<Graph, Error> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(too_deep());
        };
        let mut graph = self.graph(id)?.clone();
        for node in graph.nodes.values_mut() {
            for body in node.op.bodies_mut() {
                if let Body::Open(inner) = body {
                    *body = Body::Fixed(Box::new(self.fixed(*inner, depth)?));
                }
            }
        }
        Ok(graph)
    }

    pub(super) fn open_child(&mut self, graph: GraphId, node: NodeId) -> Result<GraphId, Error> {
        let body = match &self.graph(graph)?.node(node)?.op {
            Op::Child(Body::Open(inner)) => return Ok(*inner),
            Op::Child(Body::Fixed(body)) => {
                self.check_copies(body, 2)?;
                (**body).clone()
            }
            _ => return Err(Error::InvalidValue("the node has no child graph".into())),
        };
        let mut inner = self.renamed(body);
        inner.owner = Some(graph);
        let inner = self.create_graph(inner)?;
        if let Some(node) = self.graph_mut(graph)?.nodes.get_mut(&node) {
            node.op = Op::Child(Body::Open(inner));
        }
        Ok(inner)
    }

    pub(super) fn add_conditional(
        &mut self,
        graph: GraphId,
        (word, kind, size): (u64, ConditionalKind, usize),
        deps: &[NodeId],
    ) -> Result<(NodeId, Vec<GraphId>), Error> {
        let allowed = match kind {
            ConditionalKind::If => (1..=2).contains(&size),
            ConditionalKind::While => size == 1,
            ConditionalKind::Switch => (1..=GRAPHS_MAX).contains(&size),
        };
        if !allowed {
            return Err(Error::InvalidValue(format!("{size} graphs of a condition")));
        }
        if self.owners(graph).count() + 2 > GRAPH_DEPTH_MAX {
            return Err(too_deep());
        }
        let owned = Graph {
            owner: Some(graph),
            ..Graph::default()
        };
        let graphs = (0..size)
            .map(|_| self.create_graph(owned.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let op = Op::Conditional(Conditional {
            word,
            kind,
            bodies: graphs.iter().map(|graph| Body::Open(*graph)).collect(),
        });
        match self.add_node(graph, op, deps) {
            Ok(node) => Ok((node, graphs)),
            Err(error) => {
                for graph in graphs {
                    self.graphs.remove(&graph);
                }
                Err(error)
            }
        }
    }

    /// Adds a node that runs the graph `child` itself, not a copy, and owns it from now on.
    pub(super) fn add_moved(
        &mut self,
        graph: GraphId,
        child: GraphId,
        deps: &[NodeId],
    ) -> Result<NodeId, Error> {
        if self.graph(child)?.owner.is_some() {
            return Err(Error::Unsupported(
                "a graph that is part of another already".into(),
            ));
        }
        let depth = self.owners(graph).count();
        if graph == child || self.owners(graph).any(|owner| owner == child) {
            return Err(Error::InvalidValue("a graph inside itself".into()));
        }
        // This graph and the child count, too.
        if depth + 2 + self.height(child) > GRAPH_DEPTH_MAX {
            return Err(too_deep());
        }
        let node = self.add_node(graph, Op::Child(Body::Open(child)), deps)?;
        self.graph_mut(child)?.owner = Some(graph);
        Ok(node)
    }

    /// Returns the graphs that a graph is part of, from the inside.
    fn owners(&self, graph: GraphId) -> impl Iterator<Item = GraphId> {
        let owner = |id: &GraphId| self.graphs.get(id).and_then(|graph| graph.owner);
        std::iter::successors(owner(&graph), owner)
    }

    /// Returns the depth of the graphs inside a graph. No graph can be made that has more than
    /// [`GRAPH_DEPTH_MAX`] of them inside each other.
    fn height(&self, id: GraphId) -> usize {
        let bodies = self.graphs.get(&id).into_iter().flat_map(Graph::bodies);
        let heights = bodies.map(|body| match body {
            Body::Fixed(graph) => graph.depth() + 1,
            Body::Open(inner) => self.height(*inner) + 1,
        });
        heights.max().unwrap_or(0)
    }

    /// Clones a graph: equal nodes and edges, with ids of their own.
    pub(super) fn clone_graph(&mut self, id: GraphId) -> Result<GraphId, Error> {
        let graph = self.fixed_graph(id, 2)?;
        let clone = self.renamed(graph);
        self.create_graph(clone)
    }

    fn renamed(&mut self, graph: Graph) -> Graph {
        let ids: BTreeMap<NodeId, NodeId> = graph
            .nodes()
            .map(|old| (old, NodeId(self.fresh())))
            .collect();
        let renamed =
            |set: &BTreeSet<NodeId>| set.iter().filter_map(|id| ids.get(id).copied()).collect();
        let nodes = graph.nodes.iter().filter_map(|(old, node)| {
            let node = Node {
                op: node.op.clone(),
                deps: renamed(&node.deps),
                dependents: renamed(&node.dependents),
                edges: node
                    .edges
                    .iter()
                    .filter_map(|(from, edge)| Some((*ids.get(from)?, *edge)))
                    .collect(),
                attributes: node.attributes.clone(),
                origin: Some(*old),
                charge: node.charge.clone(),
            };
            Some((*ids.get(old)?, node))
        });
        Graph {
            nodes: nodes.collect(),
            defaults: graph.defaults.clone(),
            owner: None,
            charge: graph.charge.clone(),
        }
    }

    /// Adds a node. Duplicates among its dependencies are refused, as in CUDA.
    pub(super) fn add_node(
        &mut self,
        graph: GraphId,
        op: Op,
        deps: &[NodeId],
    ) -> Result<NodeId, Error> {
        self.check(&op)?;
        let set: Dependencies = deps.iter().map(|dep| (*dep, Edge::default())).collect();
        if set.len() != deps.len() {
            return Err(Error::InvalidValue("a dependency is named twice".into()));
        }
        self.weight.check(op.units() + set.len() / EDGES_UNIT)?;
        let id = NodeId(self.fresh());
        let charge = self.weight.charge(1);
        self.graph_mut(graph)?.add(id, op, set, charge)?;
        Ok(id)
    }

    /// Changes a node's operation, but not its kind.
    pub(super) fn set_node(&mut self, graph: GraphId, node: NodeId, op: Op) -> Result<(), Error> {
        self.check(&op)?;
        self.weight.check(op.units())?;
        let nodes = &mut self.graph_mut(graph)?.nodes;
        let node = nodes.get_mut(&node).ok_or_else(|| no_node(node))?;
        if node.op.kind() != op.kind() {
            return Err(Error::InvalidValue(format!(
                "a node of kind {} cannot become {}",
                node.op.kind(),
                op.kind()
            )));
        }
        let old = std::mem::replace(&mut node.op, op);
        node.weigh();
        self.drop_bodies(&old);
        Ok(())
    }

    pub(super) fn remove_node(&mut self, graph: GraphId, node: NodeId) -> Result<(), Error> {
        let graph = self.graph_mut(graph)?;
        let op = graph.node(node)?.op.clone();
        graph.remove(node);
        self.drop_bodies(&op);
        Ok(())
    }

    pub(super) fn add_edges(
        &mut self,
        graph: GraphId,
        edges: &[(NodeId, NodeId, Edge)],
    ) -> Result<(), Error> {
        // Both ends of each, and its data.
        self.weight.check(3 * edges.len() / EDGES_UNIT)?;
        self.graph_mut(graph)?.add_edges(edges)
    }

    /// Gives a condition a value whenever the graph begins to run.
    pub(super) fn set_default(
        &mut self,
        graph: GraphId,
        word: u64,
        value: u32,
    ) -> Result<(), Error> {
        let defaults = &mut self.graph_mut(graph)?.defaults;
        if defaults.len() >= DEFAULTS_MAX {
            return Err(Error::Unsupported(format!(
                "more than {DEFAULTS_MAX} conditions of a graph"
            )));
        }
        defaults.push((word, value));
        Ok(())
    }

    /// Returns the nodes that a node depends on, or those that depend on it.
    pub(super) fn neighbours(
        &self,
        graph: GraphId,
        node: NodeId,
        dependents: bool,
    ) -> Result<Vec<(NodeId, Edge)>, Error> {
        let graph = self.graph(graph)?;
        let own = graph.node(node)?;
        if !dependents {
            return Ok(own
                .deps
                .iter()
                .map(|from| (*from, own.edge(*from)))
                .collect());
        }
        own.dependents
            .iter()
            .map(|to| Ok((*to, graph.node(*to)?.edge(node))))
            .collect()
    }
}

/// Returns the edges that are not plain ones.
fn with_data(mut deps: Dependencies) -> Dependencies {
    deps.retain(|_, edge| *edge != Edge::default());
    deps
}

fn no_graph(id: GraphId) -> Error {
    Error::InvalidHandle {
        kind: "graph",
        id: id.0,
    }
}
