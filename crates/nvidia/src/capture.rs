//! Stream capture. The client enforces the capture mode that the program chose. Here every capture
//! is relaxed, because this thread serves all of the program's threads at once.

use outboard_api::enums::CU_STREAM_CAPTURE_MODE_RELAXED;
use outboard_device::{Cx, Failure};
use outboard_wire::{codec::id_bytes, messages};

use super::{
    Nvidia,
    graphs::{edge_bytes, edge_data},
    table::real,
};

/// A capture that a stream began and has not ended.
pub(super) struct Begun {
    /// Tells if it adds to a graph that existed before.
    adds: bool,
    /// The driver's number of it, and the graph that it makes: the driver no longer tells them once
    /// the capture has failed.
    id: u64,
    graph: real::Graph,
}

impl Nvidia {
    pub(super) fn capture_begin(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureBegin<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        if m.graph == 0 {
            self.driver
                .cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED)?;
        } else {
            let graph = self.real_graph(m.graph)?;
            let dependencies = self.real_nodes(m.dependencies)?;
            let edges = edge_data(m.edges, dependencies.len())?;
            self.driver.capture_to_graph(
                stream,
                graph,
                &dependencies,
                &edges,
                CU_STREAM_CAPTURE_MODE_RELAXED,
            )?;
        }
        let capture = self.driver.capture(stream)?;
        let begun = Begun {
            adds: m.graph != 0,
            id: capture.id,
            graph: capture.graph,
        };
        self.captures.insert(m.stream, begun);
        Ok(())
    }

    pub(super) fn capture_end(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureEnd,
    ) -> Result<messages::CaptureEndReply, Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        let ended = self.driver.cuStreamEndCapture(stream);
        // In the stream that began it, a capture ends even with an error; in another it goes on.
        let begun = self.captures.remove(&m.stream);
        let graph = match ended {
            Ok(graph) if !graph.is_null() => graph,
            _ => {
                if let Some(begun) = begun {
                    self.forget_capture(&begun);
                }
                ended?;
                return Ok(messages::CaptureEndReply { produced: 0 });
            }
        };
        self.graphs.bind(m.graph, graph)?;
        let memory = begun.and_then(|begun| self.capture_memory.remove(&begun.id));
        self.graphs.remember(graph, memory.unwrap_or_default());
        Ok(messages::CaptureEndReply { produced: 1 })
    }

    /// Forgets a capture that has failed, or whose stream is gone. A graph that it made goes with
    /// it; one that existed before keeps what was added.
    pub(super) fn forget_capture(&mut self, begun: &Begun) {
        let memory = self.capture_memory.remove(&begun.id).unwrap_or_default();
        if begun.adds {
            self.graphs.remember(begun.graph, memory);
            return;
        }
        self.bury_memory(memory);
        // The client may have seen the graph during the capture.
        if let Some(id) = self.graphs.id_of(begun.graph)
            && let Ok((_, known)) = self.graphs.forget(id)
        {
            self.bury_memory(known);
        }
        self.graphs.forget_captured(begun.graph);
    }

    pub(super) fn capture_info(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureInfo,
    ) -> Result<messages::CaptureInfoReply<'static>, Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        let capture = self.driver.capture(stream)?;
        let (mut graph, mut nodes, mut edges) = (0, Vec::new(), Vec::new());
        if !capture.graph.is_null() && m.graph != 0 {
            graph = self.captured_graph(capture.graph, m.graph)?;
            let shown = capture.dependencies.len().min(m.nodes_max as usize);
            nodes = self.graphs.node_ids(
                capture.graph,
                &capture.dependencies[..shown],
                m.first_node,
            )?;
            edges = edge_bytes(&capture.edges[..shown]);
        }
        Ok(messages::CaptureInfoReply {
            status: capture.status,
            id: capture.id,
            graph,
            nodes: id_bytes(&nodes).into(),
            edges: edges.into(),
        })
    }

    pub(super) fn capture_update(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureUpdate<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        let mut nodes = self.real_nodes(m.nodes)?;
        let edges = edge_data(m.edges, nodes.len())?;
        Ok(self
            .driver
            .update_capture(stream, &mut nodes, &edges, m.flags)?)
    }

    /// Returns the number of a graph that is being captured, binding `fresh` to it if it has none.
    fn captured_graph(&mut self, handle: real::Graph, fresh: u64) -> Result<u64, Failure> {
        if let Some(id) = self.graphs.id_of(handle) {
            return Ok(id);
        }
        self.graphs.bind(fresh, handle)?;
        Ok(fresh)
    }
}
