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
        self.captures.insert(m.stream, m.graph != 0);
        Ok(())
    }

    pub(super) fn capture_end(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureEnd,
    ) -> Result<messages::CaptureEndReply, Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        let capture = self.driver.capture(stream);
        let id = capture.as_ref().map(|capture| capture.id);
        let ended = self.driver.cuStreamEndCapture(stream);
        // In the stream that began it, a capture ends even with an error; in another it goes on.
        let began = self.captures.remove(&m.stream);
        let adds = began.unwrap_or(true);
        let mut memory = Vec::new();
        if let Ok(id) = id
            && (began.is_some() || ended.is_ok())
        {
            memory = self.capture_memory.remove(&id).unwrap_or_default();
        }
        if !adds && !ended.is_ok_and(|graph| !graph.is_null()) {
            // The client may have seen the graph during the capture; it no longer exists.
            if let Ok((_, known)) = self.graphs.forget(m.graph) {
                self.bury_memory(known);
            }
            if let Ok(capture) = &capture {
                self.graphs.forget_captured(capture.graph);
            }
        }
        let graph = match ended {
            Ok(graph) if !graph.is_null() => graph,
            _ => {
                self.bury_memory(memory);
                ended?;
                return Ok(messages::CaptureEndReply { produced: 0 });
            }
        };
        self.graphs.bind(m.graph, graph)?;
        self.graphs.remember(graph, memory);
        Ok(messages::CaptureEndReply { produced: 1 })
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
