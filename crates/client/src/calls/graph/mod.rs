//! Graphs: instantiated, launched, updated, printed. `topology` has their nodes and edges,
//! `graph_nodes` the work of their nodes.

mod topology;

use std::{
    ffi::{OsStr, c_char, c_void},
    os::unix::ffi::OsStrExt,
};

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_GRAPH_INSTANTIATE_PARAMS, CUdevice, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo,
        CUgraphNode, CUhostFn, CUstream, CUuserObject,
    },
    enums::*,
};
use outboard_wire::messages;

pub(crate) use self::topology::*;
use super::{Done, In, InOut, Out, Text, Untyped};
use crate::{
    log,
    state::{Driver, HandleKind, NodeRecord, driver},
    thread,
};

impl Driver {
    /// Creates an executable graph. The second result is `CUgraphInstantiateResult`.
    fn instantiate(&self, graph: CUgraph, flags: u64) -> (Result<CUgraphExec, CUresult>, u32) {
        let known = u64::from(
            CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
                | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY
                | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH,
        );
        if flags & !known != 0 {
            return (
                Err(CUresult::CUDA_ERROR_INVALID_VALUE),
                CUDA_GRAPH_INSTANTIATE_ERROR,
            );
        }
        match self.instantiated(graph, flags) {
            Ok((exec, CUDA_GRAPH_INSTANTIATE_SUCCESS)) => {
                (Ok(exec), CUDA_GRAPH_INSTANTIATE_SUCCESS)
            }
            Ok((_, status)) => (Err(CUresult::CUDA_ERROR_INVALID_VALUE), status),
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) => (
                Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
                CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
            ),
            Err(error) => (Err(error), CUDA_GRAPH_INSTANTIATE_ERROR),
        }
    }

    fn instantiated(&self, graph: CUgraph, flags: u64) -> Result<(CUgraphExec, u32), CUresult> {
        let graph = self.wire_graph(graph)?;
        if self.graphs.owner(graph).is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let by_kernels = flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0;
        if self.graph_memory.is_instantiated(graph) || by_kernels && self.graph_memory.is_in(graph)
        {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let exec = self.mint_graphexec();
        let message = messages::GraphInstantiate { graph, exec, flags };
        let (status, device_handle) =
            self.call(&message, |reply| (reply.status, reply.device_handle))?;
        if status != CUDA_GRAPH_INSTANTIATE_SUCCESS {
            return Ok((CUgraphExec::NULL, status));
        }
        let frees = u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        self.graph_memory
            .instantiated(exec, graph, flags & frees != 0);
        self.user_objects.instantiated(exec, graph);
        let mut handle = self.handle_graphexec(exec);
        if device_handle != 0 {
            // Kernels receive this handle as a parameter, where it cannot be told from a number.
            handle = CUgraphExec(device_handle as usize);
            self.graphs.known_to_kernels(handle.0, exec);
        }
        Ok((handle, status))
    }
}

pub(crate) fn cuGraphInstantiateWithFlags(
    exec: Out<'_, CUgraphExec>,
    graph: CUgraph,
    flags: u64,
) -> Done {
    exec.check()?;
    exec.put(driver()?.instantiate(graph, flags).0?)
}

/// The form without flags. The log stays empty, as since CUDA 12.
pub(crate) unsafe fn cuGraphInstantiate_v2(
    exec: Out<'_, CUgraphExec>,
    graph: CUgraph,
    error_node: Out<'_, CUgraphNode>,
    log: *mut c_char,
    log_bytes: usize,
) -> Done {
    error_node.put_optional(CUgraphNode::NULL);
    if log_bytes > 0 && !log.is_null() {
        // SAFETY: not NULL, and `log_bytes` says that there is room for the NUL.
        unsafe { log.write(0) };
    }
    cuGraphInstantiateWithFlags(exec, graph, 0)
}

pub(crate) fn cuGraphInstantiateWithParams(
    exec: Out<'_, CUgraphExec>,
    graph: CUgraph,
    record: InOut<'_, CUDA_GRAPH_INSTANTIATE_PARAMS>,
) -> Done {
    let driver = driver()?;
    let mut params = record.get()?;
    exec.check()?;
    let upload = u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    let (instantiated, result) = driver.instantiate(graph, params.flags & !upload);
    params.result_out = result;
    params.err_node_out = CUgraphNode::NULL;
    record.put(params)?;
    let made = instantiated?;
    if params.flags & upload != 0 {
        let message = messages::CuGraphUpload {
            h_graph: driver.wire_graphexec(made)?,
            h_stream: driver.wire_stream(params.upload_stream)?,
        };
        driver.submit(&message)?;
    }
    exec.put(made)
}

pub(crate) fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    let exec = driver.wire_graphexec(exec)?;
    driver.keep_pace_of_graph(&stream)?;
    if driver.graph_memory.is_in_exec(exec) {
        if stream.is_capturing() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        driver.graph_memory.launch(exec)?;
    }
    if driver.graphs.may_wait() {
        driver.follow_others(&stream);
    }
    driver.push_for_work(&stream)?;
    if !stream.is_capturing() {
        driver.graphs.launched();
    }
    let message = messages::GraphLaunch {
        exec,
        stream: stream.wire(),
    };
    match driver.session.progress.is_wait_due() {
        true => driver.submit_work::<true, _>(&thread::here(), &stream, &message)?,
        false => driver.submit_work::<false, _>(&thread::here(), &stream, &message)?,
    }
    driver.graph_was_launched();
    Ok(())
}

/// Updates an executable graph. Returns the result, and the nodes of the graph at which it failed.
fn exec_update(exec: CUgraphExec, graph: CUgraph) -> Result<CUgraphExecUpdateResultInfo, CUresult> {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    let message = messages::GraphExecUpdate {
        exec: driver.wire_graphexec(exec)?,
        graph,
        first_node: driver.handles.mint_range(HandleKind::Node, 2),
    };
    let (result, nodes) = driver.call(&message, |reply| {
        (reply.result, [reply.error_node, reply.error_from_node])
    })?;
    let shown = nodes.into_iter().filter(|node| *node != 0);
    driver.graphs.learn_shown(graph, shown);
    let [error_node, error_from_node] = nodes.map(|node| CUgraphNode(node as usize));
    Ok(CUgraphExecUpdateResultInfo {
        result,
        error_node,
        error_from_node,
    })
}

fn updated(result: u32) -> Done {
    if result == CU_GRAPH_EXEC_UPDATE_SUCCESS {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    }
}

pub(crate) fn cuGraphExecUpdate_v2(
    exec: CUgraphExec,
    graph: CUgraph,
    info: Out<'_, CUgraphExecUpdateResultInfo>,
) -> Done {
    info.check()?;
    let failed = CUgraphExecUpdateResultInfo {
        result: CU_GRAPH_EXEC_UPDATE_ERROR,
        error_node: CUgraphNode::NULL,
        error_from_node: CUgraphNode::NULL,
    };
    info.put(failed)?;
    let told = exec_update(exec, graph)?;
    info.put(told)?;
    updated(told.result)
}

pub(crate) fn cuGraphExecUpdate(
    exec: CUgraphExec,
    graph: CUgraph,
    error_node: Out<'_, CUgraphNode>,
    result_out: Out<'_, u32>,
) -> Done {
    result_out.check()?;
    error_node.put_optional(CUgraphNode::NULL);
    result_out.put(CU_GRAPH_EXEC_UPDATE_ERROR)?;
    let told = exec_update(exec, graph)?;
    result_out.put(told.result)?;
    error_node.put_optional(told.error_node);
    updated(told.result)
}

pub(crate) fn cuGraphClone(out: Out<'_, CUgraph>, original: CUgraph) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(original)?;
    out.check()?;
    if driver.graph_memory.is_in(graph) || driver.graphs.has_conditions(graph) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let clone = driver.mint_graph();
    driver.call(&messages::GraphClone { graph, clone }, |_| ())?;
    let handle = driver.handle_graph(clone);
    driver.user_objects.inherit(clone, graph);
    // Copies of pageable memory are child graphs to the server, but must be copies to the program.
    for (node, record) in driver.graphs.pageable_nodes(graph) {
        let found = driver.find_in_clone(node, clone)?;
        driver.graphs.learn(clone, found, record);
    }
    out.put(handle)
}

impl Driver {
    fn find_in_clone(&self, node: u64, clone: u64) -> Result<u64, CUresult> {
        let message = messages::GraphFindInClone {
            node,
            clone,
            first_node: self.handles.mint(HandleKind::Node),
        };
        self.call(&message, |reply| reply.node)
    }
}

pub(crate) fn cuGraphNodeFindInClone(
    out: Out<'_, CUgraphNode>,
    node: CUgraphNode,
    clone: CUgraph,
) -> Done {
    let driver = driver()?;
    let (node, clone) = (driver.wire_node(node)?, driver.wire_graph(clone)?);
    out.check()?;
    let found = driver.find_in_clone(node, clone)?;
    driver.graphs.learn_shown(clone, [found]);
    out.put(CUgraphNode(found as usize))
}

pub(crate) fn cuGraphNodeGetType(node: CUgraphNode, out: Out<'_, u32>) -> Done {
    let driver = driver()?;
    let number = driver.wire_node(node)?;
    out.check()?;
    let kind = match driver.graphs.record(number)? {
        NodeRecord::Copy { .. } => CU_GRAPH_NODE_TYPE_MEMCPY,
        NodeRecord::Alloc(_) => CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        NodeRecord::Free(_) => CU_GRAPH_NODE_TYPE_MEM_FREE,
        _ => driver.call(&messages::GraphNodeType { node: number }, |reply| {
            reply.node_type
        })?,
    };
    out.put(kind)
}

/// Checks the device of a call about the memory of graphs.
fn graph_device(device: CUdevice) -> Result<&'static Driver, CUresult> {
    let driver = driver()?;
    driver.card(device)?;
    Ok(driver)
}

pub(crate) fn cuDeviceGetGraphMemAttribute(
    device: CUdevice,
    attribute: u32,
    Untyped(value): Untyped<Out<'_, u64>>,
) -> Done {
    let told = graph_device(device)?
        .graph_memory
        .attribute(device, attribute)?;
    value.put(told)
}

pub(crate) fn cuDeviceSetGraphMemAttribute(
    device: CUdevice,
    attribute: u32,
    Untyped(value): Untyped<In<'_, u64>>,
) -> Done {
    let driver = graph_device(device)?;
    driver.graph_memory.set_attribute(attribute, value.get()?)
}

/// Releases nothing: memory is kept only while a graph holds it.
pub(crate) fn cuDeviceGraphMemTrim(device: CUdevice) -> Done {
    graph_device(device).map(|_| ())
}

pub(crate) unsafe fn cuUserObjectCreate(
    out: Out<'_, CUuserObject>,
    argument: *mut c_void,
    destroy: CUhostFn,
    references: u32,
    flags: u32,
) -> Done {
    let driver = driver()?;
    let limit = i32::MAX.unsigned_abs();
    if out.is_null()
        || destroy.is_none()
        || !(1..=limit).contains(&references)
        || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
    {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let object = driver
        .user_objects
        .create(destroy, argument, u64::from(references));
    out.put(CUuserObject(object as usize))
}

/// Checks a number of references: 1 or more.
fn counted(count: u32) -> Result<u64, CUresult> {
    match count {
        0 => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        count if count > i32::MAX.unsigned_abs() => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        count => Ok(u64::from(count)),
    }
}

pub(crate) fn cuUserObjectRetain(object: CUuserObject, count: u32) -> Done {
    let driver = driver()?;
    driver.user_objects.retain(object.0 as u64, counted(count)?)
}

pub(crate) fn cuUserObjectRelease(object: CUuserObject, count: u32) -> Done {
    let driver = driver()?;
    driver
        .user_objects
        .release(object.0 as u64, counted(count)?)
}

pub(crate) fn cuGraphRetainUserObject(
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    if flags & !CU_GRAPH_USER_OBJECT_MOVE != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let moved = flags & CU_GRAPH_USER_OBJECT_MOVE != 0;
    driver
        .user_objects
        .graph_retains(graph, object.0 as u64, counted(count)?, moved)
}

pub(crate) fn cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: u32) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    driver
        .user_objects
        .graph_releases(graph, object.0 as u64, counted(count)?)
}

pub(crate) fn cuGraphDebugDotPrint(graph: CUgraph, path: Text<'_>, flags: u32) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    let path = path.get()?;
    let text = driver.call(&messages::GraphDot { graph, flags }, |reply| {
        reply.text.to_vec()
    })?;
    std::fs::write(OsStr::from_bytes(path.to_bytes()), text).map_err(|error| {
        log::warn(format_args!(
            "cuGraphDebugDotPrint: {}: {error}",
            path.to_string_lossy()
        ));
        CUresult::CUDA_ERROR_OPERATING_SYSTEM
    })
}

/// Returns a parameter record that the declaration leaves opaque.
///
/// # Safety
/// `record` must be NULL or a record of this type that does not change during `'a`.
pub(super) unsafe fn record<'a, T>(record: *const c_void) -> Result<&'a T, CUresult> {
    // SAFETY: NULL or such a record, by this function's contract.
    unsafe { record.cast::<T>().as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}
