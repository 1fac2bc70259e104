//! Graphs as programs build and capture them: nodes, what each depends on, and questions about both.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use super::{error::Error, schedule::State, work::Op};

/// Nodes of one graph.
pub(super) const GRAPH_NODES_MAX: usize = 1 << 20;
/// Graphs inside graphs.
pub(super) const GRAPH_DEPTH_MAX: usize = 32;
/// Graphs of one device.
pub(super) const GRAPHS_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GraphId(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u64);

/// A graph; ids of nodes ascend in the order of creation.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(super) nodes: BTreeMap<NodeId, Node>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) deps: BTreeSet<NodeId>,
    dependents: BTreeSet<NodeId>,
}

impl Graph {
    pub(super) fn add(&mut self, id: NodeId, op: Op, deps: BTreeSet<NodeId>) -> Result<(), Error> {
        if self.nodes.len() >= GRAPH_NODES_MAX {
            return Err(Error::Unsupported(format!(
                "a graph of more than {GRAPH_NODES_MAX} nodes"
            )));
        }
        for dep in &deps {
            self.node(*dep)?;
        }
        if let Op::Child(child) = &op
            && child.depth() + 1 >= GRAPH_DEPTH_MAX
        {
            return Err(Error::Unsupported(format!(
                "graphs nested deeper than {GRAPH_DEPTH_MAX}"
            )));
        }
        for dep in &deps {
            if let Some(node) = self.nodes.get_mut(dep) {
                node.dependents.insert(id);
            }
        }
        let node = Node {
            op,
            deps,
            dependents: BTreeSet::new(),
        };
        self.nodes.insert(id, node);
        Ok(())
    }

    fn depth(&self) -> usize {
        let children = self.nodes.values().filter_map(|n| match &n.op {
            Op::Child(child) => Some(child.depth() + 1),
            _ => None,
        });
        children.max().unwrap_or(0)
    }

    pub(super) fn node(&self, id: NodeId) -> Result<&Node, Error> {
        self.nodes.get(&id).ok_or_else(|| no_node(id))
    }

    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    pub fn roots(&self) -> impl Iterator<Item = NodeId> {
        let roots = self.nodes.iter().filter(|(_, node)| node.deps.is_empty());
        roots.map(|(id, _)| *id)
    }

    /// Pairs: the second depends on the first.
    pub fn edges(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        let nodes = self.nodes.iter();
        nodes.flat_map(|(to, node)| node.deps.iter().map(|from| (*from, *to)))
    }

    pub(super) fn add_edges(&mut self, edges: &[(NodeId, NodeId)]) -> Result<(), Error> {
        let mut new = BTreeSet::new();
        for (from, to) in edges {
            self.node(*from)?;
            if from == to || self.node(*to)?.deps.contains(from) || !new.insert((from, to)) {
                return Err(Error::InvalidValue(
                    "an edge to itself, or one that exists".into(),
                ));
            }
        }
        for (from, to) in edges {
            if let Some(node) = self.nodes.get_mut(to) {
                node.deps.insert(*from);
            }
            if let Some(node) = self.nodes.get_mut(from) {
                node.dependents.insert(*to);
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
            }
        }
    }

    /// Everything that `from` depends on, itself included.
    pub(super) fn ancestors(&self, from: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let mut seen = from.clone();
        let mut left: Vec<NodeId> = from.iter().copied().collect();
        while let Some(id) = left.pop() {
            let Some(node) = self.nodes.get(&id) else {
                continue;
            };
            left.extend(node.deps.iter().filter(|dep| seen.insert(**dep)));
        }
        seen
    }

    /// The graph in Graphviz's language, as `cuGraphDebugDotPrint` writes it in spirit.
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
                    Op::Child(_) => String::new(),
                    op => format!("\\n{op:?}"),
                };
                label.push_str(&text.replace('"', "'"));
            }
            let _ = writeln!(out, "  \"{prefix}{}\" [label=\"{label}\"];", id.0);
            if let Op::Child(child) = &node.op {
                let _ = writeln!(out, "  subgraph \"cluster_{prefix}{}\" {{", id.0);
                child.dot_into(out, &format!("{prefix}{}_", id.0), verbose);
                out.push_str("  }\n");
            }
        }
        for (from, to) in self.edges() {
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
            Op::Value(_) => "BATCH_MEM_OP",
        }
    }
}

fn no_node(id: NodeId) -> Error {
    Error::InvalidHandle {
        kind: "graph node",
        id: id.0,
    }
}

impl State {
    pub(super) fn create_graph(&mut self, graph: Graph) -> Result<GraphId, Error> {
        if self.graphs.len() >= GRAPHS_MAX {
            return Err(Error::Unsupported(format!("more than {GRAPHS_MAX} graphs")));
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

    pub(super) fn destroy_graph(&mut self, id: GraphId) -> Result<(), Error> {
        if self.captures.values().any(|c| c.graph == id) {
            return Err(Error::IllegalState("the graph is being captured"));
        }
        self.graphs.remove(&id).map(|_| ()).ok_or(no_graph(id))
    }

    /// The same nodes and edges, with ids of their own.
    pub(super) fn clone_graph(&mut self, id: GraphId) -> Result<GraphId, Error> {
        let graph = self.graph(id)?.clone();
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
            };
            Some((*ids.get(old)?, node))
        });
        let clone = Graph {
            nodes: nodes.collect(),
        };
        self.create_graph(clone)
    }

    /// Adds a node; duplicates among its dependencies are refused, as CUDA does.
    pub(super) fn add_node(
        &mut self,
        graph: GraphId,
        op: Op,
        deps: &[NodeId],
    ) -> Result<NodeId, Error> {
        self.check(&op)?;
        let set: BTreeSet<NodeId> = deps.iter().copied().collect();
        if set.len() != deps.len() {
            return Err(Error::InvalidValue("a dependency is named twice".into()));
        }
        let id = NodeId(self.fresh());
        self.graph_mut(graph)?.add(id, op, set)?;
        Ok(id)
    }

    /// Changes what a node does, not what kind of node it is.
    pub(super) fn set_node(&mut self, graph: GraphId, node: NodeId, op: Op) -> Result<(), Error> {
        self.check(&op)?;
        let nodes = &mut self.graph_mut(graph)?.nodes;
        let node = nodes.get_mut(&node).ok_or_else(|| no_node(node))?;
        if node.op.kind() != op.kind() {
            return Err(Error::InvalidValue(format!(
                "a node of kind {} cannot become {}",
                node.op.kind(),
                op.kind()
            )));
        }
        node.op = op;
        Ok(())
    }

    pub(super) fn remove_node(&mut self, graph: GraphId, node: NodeId) -> Result<(), Error> {
        let graph = self.graph_mut(graph)?;
        graph.node(node)?;
        graph.remove(node);
        Ok(())
    }

    /// What a node depends on, or what depends on it.
    pub(super) fn neighbours(
        &self,
        graph: GraphId,
        node: NodeId,
        dependents: bool,
    ) -> Result<Vec<NodeId>, Error> {
        let node = self.graph(graph)?.node(node)?;
        let set = if dependents {
            &node.dependents
        } else {
            &node.deps
        };
        Ok(set.iter().copied().collect())
    }
}

fn no_graph(id: GraphId) -> Error {
    Error::InvalidHandle {
        kind: "graph",
        id: id.0,
    }
}
