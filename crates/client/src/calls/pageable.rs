//! Copies between the device and pageable memory in graphs. Each launch reads and writes the
//! memory.
//!
//! ```text
//!  one node of the program's graph: a child graph
//!    to the device     host function: program ──► stand-in ── copy: stand-in ──► device
//!    to the host       copy: device ──► stand-in ── host function: stand-in ──► program
//! ```
//!
//! So the program's memory is read when the launch reaches the node, after all earlier writes of
//! the graph. It is written before later work of the graph, and before a wait for the graph
//! returns.

use std::sync::Arc;

use outboard_api::{CUresult, cuda::CUgraph};
use outboard_wire::{
    codec::id_bytes,
    doc::{self, BoxEnd, CopyBox, NodeWork},
    messages,
};

use super::{Done, stream_capture::SET_DEPENDENCIES};
use crate::{
    session::Rows,
    state::{
        Driver, HandleKind, HostCall, NodeRecord, Pageable, StreamRef, driver, host_functions,
        wire_context,
    },
};

impl Driver {
    /// Creates a graph that makes a copy with one pageable end, to be added to another graph as a
    /// child. The caller destroys it.
    pub(super) fn pageable_graph(
        &self,
        host: Pageable,
        mut copy: CopyBox,
        context: u64,
    ) -> Result<u64, CUresult> {
        let stand_in = self.stand_in(&host)?;
        let end = BoxEnd::Pitched {
            address: stand_in.address,
            pitch_bytes: copy.width,
            height: copy.height,
        };
        if host.to_host {
            (copy.dst, copy.dst_x, copy.dst_y, copy.dst_z) = (end, 0, 0, 0);
        } else {
            (copy.src, copy.src_x, copy.src_y, copy.src_z) = (end, 0, 0, 0);
        }
        let graph = self.mint_graph();
        self.call(
            &messages::CuGraphCreate {
                ph_graph: graph,
                flags: 0,
            },
            |_| (),
        )?;
        self.handle_graph(graph);
        let moves = move || {
            if let Ok(driver) = driver() {
                driver.move_stand_in(&host, &stand_in);
            }
        };
        let call =
            host_functions::register(self.session, HostCall::Library(Arc::new(moves)), true)?;
        let (function, moved) = (
            self.handles.mint(HandleKind::Node),
            self.handles.mint(HandleKind::Node),
        );
        let add = |node: u64, dependencies: &[u8], work: &NodeWork, context: u64| {
            let work = doc::to_bytes(work).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
            let message = messages::GraphAdd {
                graph,
                node,
                dependencies,
                work: &work,
            };
            self.session.call(context, &message, |_| ())
        };
        let add_function = |dependencies: &[u8]| {
            add(
                function,
                dependencies,
                &NodeWork::Host(call),
                wire_context(),
            )
        };
        let add_copy =
            |dependencies: &[u8]| add(moved, dependencies, &NodeWork::Copy(copy), context);
        let added = match host.to_host {
            true => add_copy(&[]).and_then(|()| add_function(&id_bytes(&[moved]))),
            false => add_function(&[]).and_then(|()| add_copy(&id_bytes(&[function]))),
        };
        self.graph_uses_host();
        match added {
            Ok(()) => Ok(graph),
            Err(error) => {
                self.drop_graph(graph)?;
                Err(error)
            }
        }
    }

    /// Destroys a graph that this library created.
    pub(super) fn drop_graph(&self, graph: u64) -> Done {
        let h_graph = self.retire_graph(CUgraph(graph as usize))?;
        self.submit(&messages::CuGraphDestroy { h_graph })
    }

    pub(super) fn capture_pageable_line(
        &self,
        dst: u64,
        src: u64,
        bytes: u64,
        stream: &StreamRef,
        to_host: bool,
    ) -> Done {
        let line = |address| BoxEnd::Pitched {
            address,
            pitch_bytes: bytes,
            height: 1,
        };
        let copy = CopyBox {
            src: line(src),
            src_x: 0,
            src_y: 0,
            src_z: 0,
            dst: line(dst),
            dst_x: 0,
            dst_y: 0,
            dst_z: 0,
            width: bytes,
            height: 1,
            depth: 1,
        };
        let host = Pageable {
            address: if to_host { dst } else { src },
            rows: Rows::contiguous(bytes as usize),
            to_host,
        };
        self.capture_pageable(stream, host, copy)
    }

    /// Captures a copy with one pageable end.
    pub(super) fn capture_pageable(
        &self,
        stream: &StreamRef,
        host: Pageable,
        copy: CopyBox,
    ) -> Done {
        let node = self.copy_record(&copy);
        let child = self.pageable_graph(host, copy, wire_context())?;
        let record = NodeRecord::Copy {
            copy: node,
            pageable: true,
        };
        let captured = self.capture_node(stream, &NodeWork::Child(child), record);
        self.drop_graph(child)?;
        captured.map(|_| ())
    }

    /// Adds a node to a capture, after the stream's captured work. Returns the capture's graph and
    /// the node.
    pub(super) fn capture_node(
        &self,
        stream: &StreamRef,
        work: &NodeWork,
        record: NodeRecord,
    ) -> Result<(u64, u64), CUresult> {
        let invalidated = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        let capture = self
            .capture_of(stream)
            .filter(|capture| !capture.is_spoiled())
            .ok_or(invalidated)?;
        let after = self
            .capture_dependencies(stream, &capture)?
            .ok_or(invalidated)?;
        let node = self.handles.mint(HandleKind::Node);
        let work = doc::to_bytes(work).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        // Edges with data are added after the node exists.
        let (plain, with_data) = match after.edges.is_empty() {
            true => (&after.nodes[..], &[][..]),
            false => (&[][..], &after.nodes[..]),
        };
        let add = messages::GraphAdd {
            graph: capture.graph,
            node,
            dependencies: &id_bytes(plain),
            work: &work,
        };
        let go_on = messages::CaptureUpdate {
            stream: stream.wire(),
            nodes: &id_bytes(&[node]),
            edges: &[],
            flags: SET_DEPENDENCIES,
        };
        self.call(&add, |_| ())?;
        let to = vec![node; with_data.len()];
        self.add_dependencies(capture.graph, with_data, &to, &after.edges)?;
        self.call(&go_on, |_| ())?;
        self.graphs.learn(capture.graph, node, record);
        Ok((capture.graph, node))
    }
}
