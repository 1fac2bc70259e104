//! Graphs: instantiated, launched, updated, drawn. What they are made of is in `topology`, what their nodes do in
//! `graph_nodes`.

mod topology;

use std::{
    ffi::{CStr, OsStr, c_char, c_void},
    os::unix::ffi::OsStrExt,
};

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_GRAPH_INSTANTIATE_PARAMS, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo,
        CUgraphNode, CUstream,
    },
    enums::*,
};
use outboard_wire::messages;

pub(crate) use self::topology::*;
use super::{Done, put, put_optional};
use crate::{
    log,
    state::{Driver, driver},
};

impl Driver {
    /// An executable graph; the second answer is `CUgraphInstantiateResult`.
    fn instantiate(&self, graph: CUgraph, flags: u64) -> (Result<CUgraphExec, CUresult>, u32) {
        let known = u64::from(
            CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
                | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY,
        );
        if flags & u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0 {
            log::warn("graphs that kernels launch are not supported");
            return (
                Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
                CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED,
            );
        }
        if flags & !known != 0 {
            return (
                Err(CUresult::CUDA_ERROR_INVALID_VALUE),
                CUDA_GRAPH_INSTANTIATE_ERROR,
            );
        }
        let exec = self.mint_graphexec();
        let status = self.wire_graph(graph).and_then(|graph| {
            self.call(
                &messages::GraphInstantiate { graph, exec, flags },
                |reply| reply.status,
            )
        });
        match status {
            Ok(CUDA_GRAPH_INSTANTIATE_SUCCESS) => (
                Ok(self.handle_graphexec(exec)),
                CUDA_GRAPH_INSTANTIATE_SUCCESS,
            ),
            Ok(status) => (Err(CUresult::CUDA_ERROR_INVALID_VALUE), status),
            Err(error) => (Err(error), CUDA_GRAPH_INSTANTIATE_ERROR),
        }
    }
}

pub(crate) unsafe fn cuGraphInstantiateWithFlags(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> Done {
    if exec.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: see the module's contract.
    unsafe { put(exec, driver()?.instantiate(graph, flags).0?) }
}

/// The form before flags: nothing is ever written to the log, as since CUDA 12.
pub(crate) unsafe fn cuGraphInstantiate_v2(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    log: *mut c_char,
    log_bytes: usize,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        put_optional(error_node, CUgraphNode::NULL);
        if log_bytes > 0 {
            put_optional(log, 0);
        }
        cuGraphInstantiateWithFlags(exec, graph, 0)
    }
}

pub(crate) unsafe fn cuGraphInstantiateWithParams(
    exec: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> Done {
    let driver = driver()?;
    // SAFETY: NULL or a record of the caller's.
    let params = unsafe { params.as_mut() }
        .filter(|_| !exec.is_null())
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let upload = u64::from(CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    let (instantiated, result) = driver.instantiate(graph, params.flags & !upload);
    params.result_out = result;
    params.err_node_out = CUgraphNode::NULL;
    let made = instantiated?;
    if params.flags & upload != 0 {
        let message = messages::CuGraphUpload {
            h_graph: made.0 as u64,
            h_stream: driver.wire_stream(params.upload_stream)?,
        };
        driver.submit(&message)?;
    }
    // SAFETY: see the module's contract.
    unsafe { put(exec, made) }
}

pub(crate) unsafe fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    let exec = driver.wire_graphexec(exec)?;
    driver.push_visible()?;
    if !stream.is_capturing() {
        driver.graphs.launched();
    }
    driver.submit_to(
        &stream,
        &messages::GraphLaunch {
            exec,
            stream: stream.wire(),
        },
    )?;
    driver.graph_was_launched();
    Ok(())
}

/// # Safety
/// Handles only.
unsafe fn exec_update(exec: CUgraphExec, graph: CUgraph) -> Result<u32, CUresult> {
    let driver = driver()?;
    let message = messages::GraphExecUpdate {
        exec: driver.wire_graphexec(exec)?,
        graph: driver.wire_graph(graph)?,
    };
    driver.call(&message, |reply| reply.result)
}

fn updated(result: u32) -> Done {
    if result == CU_GRAPH_EXEC_UPDATE_SUCCESS {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    }
}

pub(crate) unsafe fn cuGraphExecUpdate_v2(
    exec: CUgraphExec,
    graph: CUgraph,
    info: *mut CUgraphExecUpdateResultInfo,
) -> Done {
    if info.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: see the module's contract.
    unsafe {
        let failed = CUgraphExecUpdateResultInfo {
            result: CU_GRAPH_EXEC_UPDATE_ERROR,
            error_node: CUgraphNode::NULL,
            error_from_node: CUgraphNode::NULL,
        };
        put(info, failed)?;
        let result = exec_update(exec, graph)?;
        put(info, CUgraphExecUpdateResultInfo { result, ..failed })?;
        updated(result)
    }
}

pub(crate) unsafe fn cuGraphExecUpdate(
    exec: CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    result_out: *mut u32,
) -> Done {
    if result_out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: see the module's contract.
    unsafe {
        put_optional(error_node, CUgraphNode::NULL);
        put(result_out, CU_GRAPH_EXEC_UPDATE_ERROR)?;
        let result = exec_update(exec, graph)?;
        put(result_out, result)?;
        updated(result)
    }
}

pub(crate) unsafe fn cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: u32) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(graph)?;
    if path.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: a string of the caller's.
    let path = unsafe { CStr::from_ptr(path) };
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

/// A parameter record that the declaration leaves opaque.
///
/// # Safety
/// `record` is NULL or points to a record of this type.
pub(super) unsafe fn record<'a, T>(record: *const c_void) -> Result<&'a T, CUresult> {
    // SAFETY: the caller's promise.
    unsafe { record.cast::<T>().as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}
