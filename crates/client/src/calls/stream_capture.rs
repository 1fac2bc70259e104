//! Stream capture. The client tracks captures as the server does, so that errors occur at the call.

use std::sync::Arc;

use outboard_api::{
    CUresult,
    cuda::{CUgraph, CUgraphEdgeData, CUgraphNode, CUstream},
    enums::*,
};
use outboard_wire::{
    codec::{id_bytes, ids},
    messages,
};

use super::{
    Done, InOut, Out,
    graph::{NODES_MAX, edge_bytes, edge_list, node_ids, told_edges},
};
use crate::{
    log,
    state::{
        Beginning, Capture, Driver, HandleKind, StreamRef, current_context, driver,
        exchange_thread_mode,
    },
};

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`
pub(super) const SET_DEPENDENCIES: u32 = 1;
/// Entries of the first query; it is repeated if a stream depends on more nodes.
const DEPENDENCIES_FIRST: u32 = 64;
const DEPENDENCIES_MAX: u32 = NODES_MAX as u32;

/// Refuses a call that captures do not record but captured work may depend on, if the modes of the
/// thread and of the captures forbid it.
#[inline]
pub(crate) fn check_captures_unsafe() -> Done {
    match driver() {
        Ok(driver) if driver.captures.any() => check_modes(driver),
        _ => Ok(()),
    }
}

#[cold]
fn check_modes(driver: &Driver) -> Done {
    driver.captures.check_unsafe()
}

/// Refuses a call that waits for all streams of the current context, if one of them is being
/// captured.
#[inline]
pub(crate) fn check_captures_of_context() -> Done {
    match driver() {
        Ok(driver) if driver.captures.any() => check_context(driver),
        _ => Ok(()),
    }
}

#[cold]
fn check_context(driver: &Driver) -> Done {
    match current_context() {
        Ok(context) => driver.captures.check_context(context),
        Err(_) => Ok(()),
    }
}

/// Nodes that captured work follows, and the data of the edges from them; no data if all edges only
/// order two nodes.
#[derive(Default)]
pub(super) struct Dependencies {
    pub(super) nodes: Vec<u64>,
    pub(super) edges: Vec<CUgraphEdgeData>,
}

impl Dependencies {
    /// # Safety
    /// `nodes` and `edges` must be NULL or have `count` entries.
    unsafe fn new(
        driver: &Driver,
        nodes: *const CUgraphNode,
        edges: *const CUgraphEdgeData,
        count: usize,
    ) -> Result<Dependencies, CUresult> {
        // SAFETY: both are as this function's contract says.
        unsafe {
            Ok(Dependencies {
                nodes: node_ids(driver, nodes, count)?,
                edges: edge_list(edges, count),
            })
        }
    }
}

impl Driver {
    /// Begins a capture. `into` is an existing graph, and the nodes that the captured work follows.
    fn begin_capture(
        &self,
        stream: CUstream,
        mode: u32,
        into: Option<(u64, Dependencies)>,
    ) -> Done {
        if mode > CU_STREAM_CAPTURE_MODE_RELAXED {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let stream = self.stream(stream)?;
        if stream.is_legacy() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        let own = stream.stream();
        let (adds, (graph, dependencies)) = (
            into.is_some(),
            into.unwrap_or_else(|| (self.mint_graph(), Dependencies::default())),
        );
        self.settle_staging();
        let capture = self.captures.begin(Beginning {
            origin: own.handle,
            context: own.context,
            mode,
            graph,
            adds,
        });
        if self.streams.enter_capture(own, capture.id).is_err() {
            self.captures.end(capture.id);
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        let message = messages::CaptureBegin {
            stream: stream.wire(),
            mode,
            graph: if adds { graph } else { 0 },
            dependencies: &id_bytes(&dependencies.nodes),
            edges: &edge_bytes(&dependencies.edges),
        };
        self.call(&message, |_| ())
            .inspect_err(|_| self.forget_capture(&capture))
    }

    /// Ends a capture here and on the server. Returns whether there is a graph.
    fn close_capture(&self, capture: &Capture) -> Result<bool, CUresult> {
        let message = messages::CaptureEnd {
            stream: capture.origin,
            graph: capture.graph,
        };
        let ended = match capture.close() {
            true => self.call(&message, |reply| reply.produced != 0),
            false => Ok(false),
        };
        self.forget_capture(capture);
        // Errors of captured calls have arrived from the server by now: they belong to this
        // capture.
        let faults = self.session.take_fault(|| capture.context.0 as u64);
        let result = match (ended, faults) {
            (Ok(produced), Ok(())) if !capture.is_spoiled() => return Ok(produced),
            (_, Err(fault)) => Err(fault),
            (Ok(_), Ok(())) => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (Err(error), Ok(())) => Err(error),
        };
        if !capture.adds {
            // The program may have been given the unfinished graph.
            let _ = self.retire_graph(CUgraph(capture.graph as usize));
            if ended == Ok(true) {
                self.submit(&messages::CuGraphDestroy {
                    h_graph: capture.graph,
                })?;
            }
        }
        result
    }

    /// Ends the capture that began on a stream being destroyed. A capture that the stream only
    /// joined continues.
    pub(crate) fn leave_capture(&self, stream: &StreamRef) {
        let Some(capture) = self.capture_of(stream) else {
            return;
        };
        if capture.origin == stream.wire() {
            capture.spoil();
            let _ = self.close_capture(&capture);
        }
    }

    /// Returns the nodes that the next captured node will depend on; `None` if the capture has
    /// become invalid.
    pub(super) fn capture_dependencies(
        &self,
        stream: &StreamRef,
        capture: &Capture,
    ) -> Result<Option<Dependencies>, CUresult> {
        let mut nodes_max = DEPENDENCIES_FIRST;
        loop {
            let first_node = self
                .handles
                .mint_range(HandleKind::Node, u64::from(nodes_max));
            let message = messages::CaptureInfo {
                stream: stream.wire(),
                graph: capture.graph,
                first_node,
                nodes_max,
            };
            let (status, graph, found) = self.call(&message, |reply| {
                let found = Dependencies {
                    nodes: ids(&reply.nodes).collect(),
                    edges: told_edges(&reply.edges),
                };
                (reply.status, reply.graph, found)
            })?;
            if status != CU_STREAM_CAPTURE_STATUS_ACTIVE {
                capture.spoil();
                return Ok(None);
            }
            if graph != capture.graph {
                return Err(CUresult::CUDA_ERROR_UNKNOWN);
            }
            self.graphs.learn_shown(graph, found.nodes.iter().copied());
            if found.nodes.len() < nodes_max as usize {
                return Ok(Some(found));
            }
            if nodes_max == DEPENDENCIES_MAX {
                log::warn(format_args!(
                    "a captured stream that depends on more than {DEPENDENCIES_MAX} nodes is not supported"
                ));
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            nodes_max = (nodes_max * 32).min(DEPENDENCIES_MAX);
        }
    }

    fn update_dependencies(
        &self,
        stream: CUstream,
        dependencies: Result<Dependencies, CUresult>,
        flags: u32,
    ) -> Done {
        let stream = self.stream(stream)?;
        let capture = self
            .capture_of(&stream)
            .ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.is_spoiled() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if flags & !SET_DEPENDENCIES != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let dependencies = dependencies?;
        self.call(
            &messages::CaptureUpdate {
                stream: stream.wire(),
                nodes: &id_bytes(&dependencies.nodes),
                edges: &edge_bytes(&dependencies.edges),
                flags,
            },
            |_| (),
        )
    }
}

pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: InOut<'_, u32>) -> Done {
    driver()?;
    let given = mode.get()?;
    if given > CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    mode.put(exchange_thread_mode(given))
}

pub(crate) fn cuStreamBeginCapture(stream: CUstream) -> Done {
    driver()?.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, None)
}

pub(crate) fn cuStreamBeginCapture_v2(stream: CUstream, mode: u32) -> Done {
    driver()?.begin_capture(stream, mode, None)
}

pub(crate) unsafe fn cuStreamBeginCaptureToGraph(
    stream: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    mode: u32,
) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
    let dependencies = unsafe { Dependencies::new(driver, dependencies, edges, count)? };
    driver.begin_capture(stream, mode, Some((graph, dependencies)))
}

pub(crate) fn cuStreamEndCapture(stream: CUstream, graph: Out<'_, CUgraph>) -> Done {
    let driver = driver()?;
    graph.put_optional(CUgraph::NULL);
    let stream = driver.stream(stream)?;
    let capture = driver
        .capture_of(&stream)
        .ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    // A capture into a graph of the program's returns nothing that it does not have.
    if graph.is_null() && !capture.adds {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if capture.origin != stream.wire() {
        capture.spoil();
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if !capture.may_end_here() {
        // As seen on a real driver, this ends the capture, without a graph.
        capture.spoil();
        let _ = driver.close_capture(&capture);
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    if driver.close_capture(&capture)? {
        graph.put_optional(driver.handle_graph(capture.graph));
    }
    Ok(())
}

/// Outputs of `cuStreamGetCaptureInfo`; NULL for those not requested.
struct InfoOut<'c> {
    status: Out<'c, u32>,
    id: Out<'c, u64>,
    graph: Out<'c, CUgraph>,
    nodes: Out<'c, *const CUgraphNode>,
    edges: Out<'c, *const CUgraphEdgeData>,
    count: Out<'c, usize>,
}

fn capture_info(stream: CUstream, out: &InfoOut<'_>) -> Done {
    let driver = driver()?;
    if out.status.is_null() || !out.edges.is_null() && out.nodes.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let stream = match current_context() {
        Err(_) if stream.is_null() => return out.status.put(CU_STREAM_CAPTURE_STATUS_NONE),
        _ => driver.stream(stream)?,
    };
    let status = driver.capture_status(&stream)?;
    let active =
        |capture: &Arc<Capture>| status == CU_STREAM_CAPTURE_STATUS_ACTIVE && !capture.is_spoiled();
    let Some(capture) = driver.capture_of(&stream).filter(active) else {
        return out.status.put(status);
    };
    // Most callers only want the status and the id, which the client knows.
    if !(out.graph.is_null() && out.nodes.is_null() && out.count.is_null()) {
        let Some(found) = driver.capture_dependencies(&stream, &capture)? else {
            return out.status.put(CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        };
        if !out.nodes.is_null() && out.edges.is_null() && !found.edges.is_empty() {
            return Err(CUresult::CUDA_ERROR_LOSSY_QUERY);
        }
        let count = found.nodes.len();
        let nodes = found.nodes.iter().map(|n| CUgraphNode(*n as usize));
        let (nodes, edges) = capture.keep_answer(stream.wire(), nodes.collect(), found.edges);
        out.graph.put_optional(driver.handle_graph(capture.graph));
        out.nodes.put_optional(nodes);
        out.edges.put_optional(edges);
        out.count.put_optional(count);
    }
    out.id.put_optional(capture.id);
    out.status.put(status)
}

pub(crate) fn cuStreamGetCaptureInfo(
    stream: CUstream,
    status: Out<'_, u32>,
    id: Out<'_, u64>,
) -> Done {
    let out = InfoOut {
        status,
        id,
        graph: Out::none(),
        nodes: Out::none(),
        edges: Out::none(),
        count: Out::none(),
    };
    capture_info(stream, &out)
}

pub(crate) fn cuStreamGetCaptureInfo_v2(
    stream: CUstream,
    status: Out<'_, u32>,
    id: Out<'_, u64>,
    graph: Out<'_, CUgraph>,
    nodes: Out<'_, *const CUgraphNode>,
    count: Out<'_, usize>,
) -> Done {
    capture_info(
        stream,
        &InfoOut {
            status,
            id,
            graph,
            nodes,
            edges: Out::none(),
            count,
        },
    )
}

pub(crate) fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    status: Out<'_, u32>,
    id: Out<'_, u64>,
    graph: Out<'_, CUgraph>,
    nodes: Out<'_, *const CUgraphNode>,
    edges: Out<'_, *const CUgraphEdgeData>,
    count: Out<'_, usize>,
) -> Done {
    capture_info(
        stream,
        &InfoOut {
            status,
            id,
            graph,
            nodes,
            edges,
            count,
        },
    )
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies(
    stream: CUstream,
    nodes: *mut CUgraphNode,
    count: usize,
    flags: u32,
) -> Done {
    // SAFETY: `nodes` has `count` entries: the driver API asks it of its callers.
    unsafe { cuStreamUpdateCaptureDependencies_v2(stream, nodes, std::ptr::null(), count, flags) }
}

pub(crate) unsafe fn cuStreamUpdateCaptureDependencies_v2(
    stream: CUstream,
    nodes: *mut CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    flags: u32,
) -> Done {
    let driver = driver()?;
    // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
    let dependencies = unsafe { Dependencies::new(driver, nodes, edges, count) };
    driver.update_dependencies(stream, dependencies, flags)
}
