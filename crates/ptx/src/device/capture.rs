//! Stream capture: operations submitted to a stream become nodes of a graph; events fork and join
//! streams.

use std::collections::BTreeSet;

use super::{
    error::{CaptureError, Error},
    event::EventId,
    graph::{Dependencies, Edge, Graph, GraphId, NodeId, PROGRAMMATIC},
    schedule::State,
    stream::StreamId,
    work::{Launch, Op},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CaptureId(pub(super) u64);

/// A capture that has begun and not ended.
pub(super) struct Capture {
    /// The stream in which it began and must end.
    origin: StreamId,
    pub(super) graph: GraphId,
    /// Whether the capture made the graph. A graph that existed before stays when the capture
    /// fails.
    owns_graph: bool,
    valid: bool,
    /// Nodes that the next nodes of destroyed streams would have depended on.
    left: BTreeSet<NodeId>,
}

/// A stream's membership in a capture.
pub(super) struct Joined {
    pub(super) capture: CaptureId,
    /// Nodes that the stream's next node depends on.
    deps: Dependencies,
    /// The nodes of `deps` that the program set itself: the capture may end without joining them.
    named: BTreeSet<NodeId>,
}

/// The answer of `cuStreamGetCaptureInfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureInfo {
    None,
    Active {
        id: u64,
        graph: GraphId,
        deps: Vec<(NodeId, Edge)>,
    },
    Invalidated,
}

/// Work that may begin before a kernel, or the work before it, is done. Here none does, but edges
/// of captured nodes say so in their data.
#[derive(Clone, Debug, Default)]
pub struct Early {
    /// The kernel need not wait for the end of its stream's earlier kernels.
    pub serialized: bool,
    /// Events that the kernel records, and the edges to work that waits for them.
    pub events: Vec<(EventId, Edge)>,
}

impl State {
    /// Begins a capture, into a new graph or after `deps` of an existing graph.
    pub(super) fn begin_capture(
        &mut self,
        id: StreamId,
        into: Option<(GraphId, &[(NodeId, Edge)])>,
    ) -> Result<(), Error> {
        let stream = self.stream(id)?;
        if stream.is_legacy() {
            return Err(CaptureError::Unsupported.into());
        }
        if stream.joined.is_some() {
            return Err(Error::IllegalState("the stream is capturing already"));
        }
        let mut deps = Dependencies::new();
        let (graph, owns_graph) = match into {
            None => (self.create_graph(Graph::default())?, true),
            Some((graph, after)) => {
                for (node, edge) in after {
                    self.graph(graph)?.check_edge(*node, *edge)?;
                }
                self.graph(graph)?;
                deps.extend(after.iter().copied());
                (graph, false)
            }
        };
        let capture = CaptureId(self.fresh());
        self.captures.insert(
            capture,
            Capture {
                origin: id,
                graph,
                owns_graph,
                valid: true,
                left: BTreeSet::new(),
            },
        );
        self.join(id, capture, deps);
        Ok(())
    }

    fn join(&mut self, id: StreamId, capture: CaptureId, deps: Dependencies) {
        if let Some(stream) = self.streams.get_mut(&id) {
            match &mut stream.joined {
                Some(joined) => add(&mut joined.deps, deps),
                None => {
                    let named = BTreeSet::new();
                    stream.joined = Some(Joined {
                        capture,
                        deps,
                        named,
                    });
                }
            }
        }
    }

    /// Returns the id and graph of a stream's capture; an error if an earlier error ended it.
    fn capture_of(&self, id: StreamId) -> Result<(CaptureId, GraphId), Error> {
        let joined = self.stream(id)?.joined.as_ref();
        let joined = joined.ok_or(Error::IllegalState("the stream is not capturing"))?;
        match self.captures.get(&joined.capture) {
            Some(capture) if capture.valid => Ok((joined.capture, capture.graph)),
            _ => Err(CaptureError::Invalidated.into()),
        }
    }

    /// Captures an operation.
    pub(super) fn capture(&mut self, id: StreamId, op: Op) -> Result<(), Error> {
        let (capture, graph) = self.capture_of(id)?;
        let result = match op {
            Op::RecordEvent(event) => self.capture_record(id, capture, event),
            Op::WaitEvent(event) => self.capture_wait(id, capture, event),
            op => self.capture_node(id, graph, op).map(|_| ()),
        };
        if result.is_err() {
            self.invalidate(capture);
        }
        result
    }

    pub(super) fn capture_node(
        &mut self,
        id: StreamId,
        graph: GraphId,
        op: Op,
    ) -> Result<NodeId, Error> {
        let deps = self.deps_of(id)?;
        let node = NodeId(self.fresh());
        self.weight.check(op.units())?;
        let charge = self.weight.charge(1);
        self.graph_mut(graph)?.add(node, op, deps, charge)?;
        if let Some(joined) = self.joined_mut(id) {
            joined.deps = Dependencies::from([(node, Edge::default())]);
            joined.named.clear();
        }
        Ok(node)
    }

    /// Returns what a capturing stream's next node depends on.
    fn deps_of(&self, id: StreamId) -> Result<Dependencies, Error> {
        let joined = self.stream(id)?.joined.as_ref();
        Ok(joined.map(|joined| joined.deps.clone()).unwrap_or_default())
    }

    /// Submits a kernel. A capture keeps what may begin early.
    pub(super) fn launch(
        &mut self,
        id: StreamId,
        launch: Launch,
        early: &Early,
    ) -> Result<(), Error> {
        if early.serialized {
            self.serialize_early(id)?;
        }
        self.submit(id, Op::Launch(launch))?;
        for (event, edge) in &early.events {
            self.submit(id, Op::RecordEvent(*event))?;
            let event = self.events.get_mut(event);
            if let Some((_, deps)) = event.and_then(|event| event.captured.as_mut()) {
                deps.values_mut().for_each(|own| *own = *edge);
            }
        }
        Ok(())
    }

    /// Lets a capturing stream's next node begin before the kernels that it depends on are done.
    fn serialize_early(&mut self, id: StreamId) -> Result<(), Error> {
        if self.stream(id)?.joined.is_none() {
            return Ok(());
        }
        let (_, graph) = self.capture_of(id)?;
        let graph = self.graph(graph)?;
        let deps = self.deps_of(id)?;
        let kernels: Vec<NodeId> = deps
            .into_keys()
            .filter(|node| graph.is_kernel(*node))
            .collect();
        if let Some(joined) = self.joined_mut(id) {
            for kernel in kernels {
                joined.deps.insert(kernel, PROGRAMMATIC);
            }
        }
        Ok(())
    }

    fn joined_mut(&mut self, id: StreamId) -> Option<&mut Joined> {
        self.streams.get_mut(&id).and_then(|s| s.joined.as_mut())
    }

    /// Stores the stream's position in the graph in the event, for other streams to fork from.
    fn capture_record(
        &mut self,
        id: StreamId,
        capture: CaptureId,
        event: EventId,
    ) -> Result<(), Error> {
        let deps = self.deps_of(id)?;
        self.event(event)?;
        if let Some(event) = self.events.get_mut(&event) {
            event.captured = Some((capture, deps));
        }
        Ok(())
    }

    fn capture_wait(
        &mut self,
        id: StreamId,
        capture: CaptureId,
        event: EventId,
    ) -> Result<(), Error> {
        let event = self.event(event)?;
        match &event.captured {
            // The event was never recorded, so there is nothing to wait for.
            None if event.last.is_none() => Ok(()),
            Some((other, deps)) if *other == capture => {
                let deps = deps.clone();
                self.join(id, capture, deps);
                Ok(())
            }
            Some((other, _)) if self.captures.contains_key(other) => {
                let other = *other;
                self.invalidate(other);
                Err(CaptureError::Merge.into())
            }
            _ => Err(CaptureError::Isolation.into()),
        }
    }

    /// Makes a stream join a capture if it waits for one of its events. Called for streams that are
    /// not capturing.
    pub(super) fn fork(&mut self, id: StreamId, event: EventId) -> Result<bool, Error> {
        let Some((capture, deps)) = self.event(event)?.captured.clone() else {
            return Ok(false);
        };
        match self.captures.get(&capture) {
            None => return Err(CaptureError::CapturedEvent.into()),
            Some(c) if !c.valid => return Err(CaptureError::Invalidated.into()),
            Some(_) => {}
        }
        if self.stream(id)?.is_legacy() {
            self.invalidate(capture);
            return Err(CaptureError::Implicit.into());
        }
        self.join(id, capture, deps);
        Ok(true)
    }

    /// Adds a node that records or waits for the event in every launch of the graph
    /// (`CU_EVENT_RECORD_EXTERNAL`, `CU_EVENT_WAIT_EXTERNAL`).
    pub(super) fn submit_external(&mut self, id: StreamId, op: Op) -> Result<(), Error> {
        self.check(&op)?;
        let (capture, graph) = self
            .capture_of(id)
            .map_err(|_| Error::IllegalState("external events are for capturing streams"))?;
        let result = self.capture_node(id, graph, op).map(|_| ());
        if result.is_err() {
            self.invalidate(capture);
        }
        result
    }

    /// Ends the capture that began in this stream; an error if an earlier error ended it.
    pub(super) fn end_capture(&mut self, id: StreamId) -> Result<GraphId, Error> {
        let joined = self.stream(id)?.joined.as_ref();
        let joined = joined.ok_or(Error::IllegalState("the stream is not capturing"))?;
        let (capture_id, deps) = (joined.capture, joined.deps.clone());
        let capture = self.captures.get(&capture_id);
        let capture = capture.ok_or(Error::from(CaptureError::Invalidated))?;
        if capture.origin != id {
            return Err(CaptureError::Unmatched.into());
        }
        let (graph, valid, owns_graph) = (capture.graph, capture.valid, capture.owns_graph);
        let joined_all = !valid || self.is_joined(capture_id, graph, &deps);
        self.captures.remove(&capture_id);
        for stream in self.streams.values_mut() {
            stream.joined.take_if(|j| j.capture == capture_id);
        }
        let error = match (valid, joined_all) {
            (true, true) => return Ok(graph),
            (false, _) => CaptureError::Invalidated,
            (true, false) => CaptureError::Unjoined,
        };
        if owns_graph {
            self.graphs.remove(&graph);
        }
        Err(error.into())
    }

    /// Whether all nodes that other streams captured come before `deps`, except nodes that the
    /// program set itself.
    fn is_joined(&self, capture: CaptureId, graph: GraphId, deps: &Dependencies) -> bool {
        let Ok(graph) = self.graph(graph) else {
            return false;
        };
        let before = graph.ancestors(deps);
        let parts = self.streams.values().filter_map(|s| s.joined.as_ref());
        let mut others = parts.filter(|j| j.capture == capture);
        let left = self.captures.get(&capture).map(|c| &c.left);
        others.all(|j| {
            let mut own = j.deps.keys().filter(|node| !j.named.contains(node));
            own.all(|node| before.contains(node))
        }) && left.is_none_or(|l| l.is_subset(&before))
    }

    /// Removes a destroyed stream from its capture, which goes on unless it began there. The
    /// stream's nodes must still come before the capture's end.
    pub(super) fn leave_capture(&mut self, id: StreamId, joined: Joined) {
        let capture_id = joined.capture;
        let Some(capture) = self.captures.get_mut(&capture_id) else {
            return;
        };
        if capture.origin != id {
            let deps = joined.deps.into_keys();
            capture
                .left
                .extend(deps.filter(|node| !joined.named.contains(node)));
            return;
        }
        if capture.owns_graph {
            let graph = capture.graph;
            self.graphs.remove(&graph);
        }
        self.captures.remove(&capture_id);
        for stream in self.streams.values_mut() {
            stream.joined.take_if(|j| j.capture == capture_id);
        }
    }

    pub(super) fn invalidate(&mut self, capture: CaptureId) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.valid = false;
        }
    }

    pub(super) fn invalidate_capture_of(&mut self, id: StreamId) {
        let capture = self.streams.get(&id).and_then(|s| s.joined.as_ref());
        if let Some(capture) = capture.map(|j| j.capture) {
            self.invalidate(capture);
        }
    }

    pub(super) fn capture_info(&self, id: StreamId) -> Result<CaptureInfo, Error> {
        let stream = self.stream(id)?;
        if stream.is_legacy() && !self.captures.is_empty() {
            // The legacy stream cannot capture, and CUDA refuses to query it while a blocking
            // stream captures.
            let implicit = self
                .streams
                .values()
                .any(|s| s.context == stream.context && s.is_blocking() && s.joined.is_some());
            if implicit {
                return Err(CaptureError::Implicit.into());
            }
        }
        let Some(joined) = &stream.joined else {
            return Ok(CaptureInfo::None);
        };
        Ok(match self.captures.get(&joined.capture) {
            Some(capture) if capture.valid => CaptureInfo::Active {
                id: joined.capture.0,
                graph: capture.graph,
                deps: joined
                    .deps
                    .iter()
                    .map(|(node, edge)| (*node, *edge))
                    .collect(),
            },
            _ => CaptureInfo::Invalidated,
        })
    }

    /// Adds to the nodes that the next node depends on, or replaces them
    /// (`cuStreamUpdateCaptureDependencies`).
    pub(super) fn update_capture(
        &mut self,
        id: StreamId,
        nodes: &[(NodeId, Edge)],
        replace: bool,
    ) -> Result<(), Error> {
        let (_, graph) = self.capture_of(id)?;
        for (node, edge) in nodes {
            self.graph(graph)?.check_edge(*node, *edge)?;
        }
        if let Some(joined) = self.joined_mut(id) {
            if replace {
                joined.deps.clear();
                joined.named.clear();
            }
            add(&mut joined.deps, nodes.iter().copied());
            joined.named.extend(nodes.iter().map(|(node, _)| *node));
        }
        Ok(())
    }
}

/// Adds dependencies. Of two edges from one node the plain one counts, which waits for the whole of
/// it.
fn add(deps: &mut Dependencies, more: impl IntoIterator<Item = (NodeId, Edge)>) {
    for (node, edge) in more {
        let own = deps.entry(node).or_insert(edge);
        if edge == Edge::default() {
            *own = edge;
        }
    }
}
