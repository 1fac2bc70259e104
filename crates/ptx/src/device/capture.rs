//! Stream capture: operations submitted to a stream become nodes of a graph; events fork and join
//! streams.

use std::collections::BTreeSet;

use super::{
    error::{CaptureError, Error},
    event::EventId,
    graph::{Graph, GraphId, NodeId},
    schedule::State,
    stream::StreamId,
    work::Op,
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
    deps: BTreeSet<NodeId>,
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
        deps: Vec<NodeId>,
    },
    Invalidated,
}

impl State {
    /// Begins a capture, into a new graph or after `deps` of an existing graph.
    pub(super) fn begin_capture(
        &mut self,
        id: StreamId,
        into: Option<(GraphId, &[NodeId])>,
    ) -> Result<(), Error> {
        let stream = self.stream(id)?;
        if stream.is_legacy() {
            return Err(CaptureError::Unsupported.into());
        }
        if stream.joined.is_some() {
            return Err(Error::IllegalState("the stream is capturing already"));
        }
        let mut deps = BTreeSet::new();
        let (graph, owns_graph) = match into {
            None => (self.create_graph(Graph::default())?, true),
            Some((graph, after)) => {
                for node in after {
                    self.graph(graph)?.node(*node)?;
                }
                self.graph(graph)?;
                deps.extend(after);
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

    fn join(&mut self, id: StreamId, capture: CaptureId, deps: BTreeSet<NodeId>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            match &mut stream.joined {
                Some(joined) => joined.deps.extend(deps),
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
        let deps = match &self.stream(id)?.joined {
            Some(joined) => joined.deps.clone(),
            None => BTreeSet::new(),
        };
        let node = NodeId(self.fresh());
        self.weight.check(op.units())?;
        let charge = self.weight.charge(1);
        self.graph_mut(graph)?.add(node, op, deps, charge)?;
        if let Some(joined) = self.joined_mut(id) {
            joined.deps = BTreeSet::from([node]);
            joined.named.clear();
        }
        Ok(node)
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
        let deps = match &self.stream(id)?.joined {
            Some(joined) => joined.deps.clone(),
            None => BTreeSet::new(),
        };
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
    fn is_joined(&self, capture: CaptureId, graph: GraphId, deps: &BTreeSet<NodeId>) -> bool {
        let Ok(graph) = self.graph(graph) else {
            return false;
        };
        let before = graph.ancestors(deps);
        let parts = self.streams.values().filter_map(|s| s.joined.as_ref());
        let mut others = parts.filter(|j| j.capture == capture);
        let left = self.captures.get(&capture).map(|c| &c.left);
        others.all(|j| {
            j.deps
                .difference(&j.named)
                .all(|node| before.contains(node))
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
            capture.left.extend(joined.deps.difference(&joined.named));
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
                deps: joined.deps.iter().copied().collect(),
            },
            _ => CaptureInfo::Invalidated,
        })
    }

    /// Adds to the nodes that the next node depends on, or replaces them
    /// (`cuStreamUpdateCaptureDependencies`).
    pub(super) fn update_capture(
        &mut self,
        id: StreamId,
        nodes: &[NodeId],
        replace: bool,
    ) -> Result<(), Error> {
        let (_, graph) = self.capture_of(id)?;
        for node in nodes {
            self.graph(graph)?.node(*node)?;
        }
        if let Some(joined) = self.joined_mut(id) {
            if replace {
                joined.deps.clear();
                joined.named.clear();
            }
            joined.deps.extend(nodes);
            joined.named.extend(nodes);
        }
        Ok(())
    }
}
