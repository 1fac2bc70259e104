//! Stream capture.

use std::borrow::Cow;

use outboard_api::{CUresult, enums::*};
use outboard_device::{Cx, Failure};
use outboard_ptx::device::{CaptureInfo, Edge, GraphId, NodeId};
use outboard_wire::messages;

use super::{
    Soft,
    graphs::{edge_bytes, edge_data},
    wait::{failure, invalid},
};

impl Soft {
    pub(super) fn capture_begin(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureBegin<'_>,
    ) -> Result<(), Failure> {
        if m.mode > CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(invalid(format!("capture mode {}", m.mode)));
        }
        let stream = self.stream(cx, m.stream)?;
        if m.graph == 0 {
            return self.gpu.begin_capture(stream, None).map_err(failure);
        }
        let graph = self.graph(m.graph)?;
        let deps = self.dependencies(graph, m.dependencies, m.edges)?;
        self.gpu
            .begin_capture(stream, Some((graph, &deps)))
            .map_err(failure)
    }

    pub(super) fn capture_end(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureEnd,
    ) -> Result<messages::CaptureEndReply, Failure> {
        let stream = self.stream(cx, m.stream)?;
        let graph = self.gpu.end_capture(stream).map_err(failure)?;
        self.bind_captured(m.graph, graph)?;
        Ok(messages::CaptureEndReply { produced: 1 })
    }

    /// Binds the captured graph to `id`, unless it is already bound to it: the client may have
    /// asked for the graph during the capture.
    fn bind_captured(&mut self, id: u64, graph: GraphId) -> Result<(), Failure> {
        match self.graphs.get(id) {
            Ok(known) if *known == graph => Ok(()),
            _ => self.graphs.insert(id, graph),
        }
    }

    pub(super) fn capture_info(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureInfo,
    ) -> Result<messages::CaptureInfoReply<'static>, Failure> {
        let stream = self.stream(cx, m.stream)?;
        let mut reply = messages::CaptureInfoReply {
            status: CU_STREAM_CAPTURE_STATUS_NONE,
            id: 0,
            graph: 0,
            nodes: Cow::Borrowed(&[]),
            edges: Cow::Borrowed(&[]),
        };
        match self.gpu.capture_info(stream).map_err(failure)? {
            CaptureInfo::None => {}
            CaptureInfo::Invalidated => reply.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            CaptureInfo::Active { id, graph, deps } => {
                let known = self
                    .graphs
                    .iter()
                    .find(|(_, g)| **g == graph)
                    .map(|(id, _)| id);
                reply.status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
                reply.id = id;
                reply.graph = match known {
                    Some(known) => known,
                    None if m.graph != 0 => {
                        self.graphs.insert(m.graph, graph)?;
                        m.graph
                    }
                    None => 0,
                };
                let (deps, mut edges): (Vec<_>, Vec<_>) = deps.into_iter().unzip();
                let (_, nodes) = self.node_list(graph, &deps, m.first_node, m.nodes_max)?;
                edges.truncate(nodes.len() / size_of::<u64>());
                reply.nodes = Cow::Owned(nodes);
                reply.edges = Cow::Owned(edge_bytes(&edges));
            }
        }
        Ok(reply)
    }

    pub(super) fn capture_update(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CaptureUpdate<'_>,
    ) -> Result<(), Failure> {
        let stream = self.stream(cx, m.stream)?;
        let CaptureInfo::Active { graph, .. } = self.gpu.capture_info(stream).map_err(failure)?
        else {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_ILLEGAL_STATE,
                "the stream is not capturing",
            ));
        };
        // CU_STREAM_ADD_CAPTURE_DEPENDENCIES, CU_STREAM_SET_CAPTURE_DEPENDENCIES
        let replace = match m.flags {
            0 => false,
            1 => true,
            flags => return Err(invalid(format!("capture dependency flags {flags:#x}"))),
        };
        let nodes = self.dependencies(graph, m.nodes, m.edges)?;
        self.gpu
            .update_capture(stream, &nodes, replace)
            .map_err(failure)
    }

    /// Returns nodes with the data of the edges from them.
    fn dependencies(
        &self,
        graph: GraphId,
        nodes: &[u8],
        edges: &[u8],
    ) -> Result<Vec<(NodeId, Edge)>, Failure> {
        let nodes = self.nodes(graph, nodes)?;
        let edges = edge_data(edges, nodes.len())?;
        Ok(nodes.into_iter().zip(edges).collect())
    }
}
