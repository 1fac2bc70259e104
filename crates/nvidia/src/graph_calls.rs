//! Safe forms of the driver calls for captures and graphs.

use std::{
    ffi::{CString, c_void},
    fs::File,
    io::{self, Read},
    os::fd::{AsRawFd, FromRawFd},
    ptr,
};

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
        CUDA_MEMSET_NODE_PARAMS, CUcontext, CUfunction, CUgraphEdgeData,
        CUgraphExecUpdateResultInfo, CUgraphNode, CUkernel, CUstreamBatchMemOpParams,
    },
};
use outboard_device::Failure;

use super::{
    calls::{CheckedBox, LaunchShape, extra, extra_pointer},
    table::{Driver, Refused, real},
};

/// The work of a graph node.
#[derive(Clone)]
pub(super) enum NodeWork<'a> {
    Empty,
    Child(real::Graph),
    EventRecord(real::Event),
    EventWait(real::Event),
    Host(CUDA_HOST_NODE_PARAMS),
    Memset(CUDA_MEMSET_NODE_PARAMS, real::Context),
    Copy(&'a CheckedBox, real::Context),
    Kernel(real::Kernel, LaunchShape, &'a [u8]),
    /// Each record was checked.
    MemOps(Vec<CUstreamBatchMemOpParams>, real::Context),
}

/// The state of a capturing stream.
pub(super) struct Capture {
    pub(super) status: u32,
    pub(super) id: u64,
    pub(super) graph: real::Graph,
    pub(super) dependencies: Vec<real::Node>,
    /// The data of the edges from them.
    pub(super) edges: Vec<CUgraphEdgeData>,
}

/// Selects the neighbours of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbours {
    Dependencies,
    Dependents,
}

/// Start nodes, end nodes and edge data; the data is empty if every edge is a plain dependency.
pub(super) type EdgeList = (Vec<real::Node>, Vec<real::Node>, Vec<CUgraphEdgeData>);

impl Driver {
    pub(super) fn capture_to_graph(
        &self,
        stream: real::Stream,
        graph: real::Graph,
        dependencies: &[real::Node],
        edges: &[CUgraphEdgeData],
        mode: u32,
    ) -> Result<(), Refused> {
        let (nodes, count) = (dependencies.as_ptr(), dependencies.len() as u64);
        let data = data_of(edges, dependencies.len());
        // SAFETY: both arrays have `count` entries; null edge data stands for plain edges.
        unsafe { self.cuStreamBeginCaptureToGraph(stream, graph, nodes, data, count, mode) }
    }

    pub(super) fn capture(&self, stream: real::Stream) -> Result<Capture, Refused> {
        let (mut status, mut id, mut count) = (0, 0, 0);
        let mut graph = real::Graph::NULL;
        let (mut nodes, mut edges) = (ptr::null(), ptr::null());
        // SAFETY: every output has room.
        let asked = unsafe {
            self.cuStreamGetCaptureInfo_v3(
                stream,
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                &mut edges,
                &mut count,
            )
        };
        match asked {
            // SAFETY: local outputs, without the edges, which older drivers do not have.
            Err(refused) if refused.is_missing() => unsafe {
                self.cuStreamGetCaptureInfo_v2(
                    stream,
                    &mut status,
                    &mut id,
                    &mut graph,
                    &mut nodes,
                    &mut count,
                )
            },
            asked => asked,
        }?;
        let count = count as usize;
        let dependencies = match nodes.is_null() {
            true => Vec::new(),
            // SAFETY: the driver's own array, valid until the next call on this stream.
            false => unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec(),
        };
        let edges = match edges.is_null() {
            true => vec![CUgraphEdgeData::default(); dependencies.len()],
            // SAFETY: the driver's own array, valid until the next call on this stream.
            false => unsafe { std::slice::from_raw_parts(edges, count) }.to_vec(),
        };
        Ok(Capture {
            status,
            id,
            graph,
            dependencies,
            edges,
        })
    }

    pub(super) fn update_capture(
        &self,
        stream: real::Stream,
        dependencies: &mut [real::Node],
        edges: &[CUgraphEdgeData],
        flags: u32,
    ) -> Result<(), Refused> {
        let (nodes, count) = (dependencies.as_mut_ptr(), dependencies.len() as u64);
        let data = data_of(edges, dependencies.len());
        // SAFETY: both arrays have `count` entries; null edge data stands for plain edges.
        match unsafe {
            self.cuStreamUpdateCaptureDependencies_v2(stream, nodes, data, count, flags)
        } {
            // SAFETY: the array has as many nodes as said.
            Err(refused) if refused.is_missing() && data.is_null() => unsafe {
                self.cuStreamUpdateCaptureDependencies(stream, nodes, count, flags)
            },
            done => done,
        }
    }

    pub(super) fn graph_nodes(
        &self,
        graph: real::Graph,
        roots_only: bool,
    ) -> Result<Vec<real::Node>, Refused> {
        node_list(|nodes, count| {
            // SAFETY: `nodes` is null or has room for `count` nodes.
            unsafe {
                if roots_only {
                    self.cuGraphGetRootNodes(graph, nodes, count)
                } else {
                    self.cuGraphGetNodes(graph, nodes, count)
                }
            }
        })
    }

    pub(super) fn graph_neighbours(
        &self,
        node: real::Node,
        which: Neighbours,
    ) -> Result<(Vec<real::Node>, Vec<CUgraphEdgeData>), Refused> {
        edge_ends(|nodes, edges, count| {
            // SAFETY: the pointers are null or have room for `count` nodes and edges.
            let asked = unsafe {
                match which {
                    Neighbours::Dependencies => {
                        self.cuGraphNodeGetDependencies_v2(node, nodes, edges, count)
                    }
                    Neighbours::Dependents => {
                        self.cuGraphNodeGetDependentNodes_v2(node, nodes, edges, count)
                    }
                }
            };
            match asked {
                // SAFETY: the pointers are null or have room for `count` nodes.
                Err(refused) if refused.is_missing() => unsafe {
                    match which {
                        Neighbours::Dependencies => {
                            self.cuGraphNodeGetDependencies(node, nodes, count)
                        }
                        Neighbours::Dependents => {
                            self.cuGraphNodeGetDependentNodes(node, nodes, count)
                        }
                    }
                },
                asked => asked,
            }
        })
    }

    /// Returns the edges: start, end, and the edge data.
    pub(super) fn graph_edges(&self, graph: real::Graph) -> Result<EdgeList, Refused> {
        let mut to = Vec::new();
        let (from, edges) = edge_ends(|from, edges, count| {
            to = match from.is_null() {
                true => Vec::new(),
                false => vec![real::Node::NULL; *count as usize],
            };
            let ends = match from.is_null() {
                true => ptr::null_mut(),
                false => to.as_mut_ptr(),
            };
            // SAFETY: the pointers are null or have room for `count` nodes and edges.
            match unsafe { self.cuGraphGetEdges_v2(graph, from, ends, edges, count) } {
                // SAFETY: the pointers are null or have room for `count` nodes.
                Err(refused) if refused.is_missing() => unsafe {
                    self.cuGraphGetEdges(graph, from, ends, count)
                },
                asked => asked,
            }
        })?;
        to.truncate(from.len());
        Ok((from, to, edges))
    }

    pub(super) fn graph_remove_dependencies(
        &self,
        graph: real::Graph,
        from: &[real::Node],
        to: &[real::Node],
        edges: &[CUgraphEdgeData],
    ) -> Result<(), Refused> {
        let from_nodes = from.len();
        let count = from_nodes as u64;
        let (from, to) = (from.as_ptr(), to.as_ptr());
        let data = data_of(edges, from_nodes);
        // SAFETY: both arrays have `count` nodes, and `data` has as many edges or is null.
        match unsafe { self.cuGraphRemoveDependencies_v2(graph, from, to, data, count) } {
            // SAFETY: both arrays have `count` nodes.
            Err(refused) if refused.is_missing() && edges.is_empty() => unsafe {
                self.cuGraphRemoveDependencies(graph, from, to, count)
            },
            done => done,
        }
    }

    pub(super) fn graph_add_dependencies(
        &self,
        graph: real::Graph,
        from: &[real::Node],
        to: &[real::Node],
        edges: &[CUgraphEdgeData],
    ) -> Result<(), Refused> {
        let count = from.len().min(to.len()) as u64;
        let kinds = data_of(edges, from.len().min(to.len()));
        // SAFETY: all arrays have at least `count` entries.
        match unsafe {
            self.cuGraphAddDependencies_v2(graph, from.as_ptr(), to.as_ptr(), kinds, count)
        } {
            // SAFETY: both arrays have at least `count` nodes.
            Err(refused) if refused.is_missing() && kinds.is_null() => unsafe {
                self.cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), count)
            },
            done => done,
        }
    }

    /// # Safety
    /// Addresses in a memset must be the session's; a host function's user data must stay valid as
    /// long as the graph.
    pub(super) unsafe fn graph_add(
        &self,
        graph: real::Graph,
        dependencies: &[real::Node],
        work: &NodeWork<'_>,
    ) -> Result<real::Node, Refused> {
        let mut made = real::Node::NULL;
        let (node, after, count) = (
            &raw mut made,
            dependencies.as_ptr(),
            dependencies.len() as u64,
        );
        // SAFETY: the array has `count` dependencies; the driver reads the records and parameters
        // before the call returns.
        unsafe {
            match work {
                NodeWork::Empty => self.cuGraphAddEmptyNode(node, graph, after, count),
                NodeWork::Child(child) => {
                    self.cuGraphAddChildGraphNode(node, graph, after, count, *child)
                }
                NodeWork::EventRecord(event) => {
                    self.cuGraphAddEventRecordNode(node, graph, after, count, *event)
                }
                NodeWork::EventWait(event) => {
                    self.cuGraphAddEventWaitNode(node, graph, after, count, *event)
                }
                NodeWork::Host(host) => self.cuGraphAddHostNode(node, graph, after, count, host),
                NodeWork::Memset(memset, context) => {
                    self.cuGraphAddMemsetNode(node, graph, after, count, memset, *context)
                }
                NodeWork::Copy(copy, context) => {
                    self.cuGraphAddMemcpyNode(node, graph, after, count, &copy.0, *context)
                }
                NodeWork::Kernel(kernel, shape, params) => {
                    let mut len = params.len();
                    let mut extra = extra(params, &mut len);
                    let kernel = kernel_node(*kernel, *shape, extra_pointer(&mut extra, params));
                    self.cuGraphAddKernelNode_v2(node, graph, after, count, &kernel)
                }
                NodeWork::MemOps(ops, context) => {
                    let ops = mem_ops_record(ops, *context);
                    self.cuGraphAddBatchMemOpNode(node, graph, after, count, &ops)
                }
            }
        }?;
        Ok(made)
    }

    /// # Safety
    /// As for [`Driver::graph_add`].
    pub(super) unsafe fn graph_exec_set(
        &self,
        exec: real::GraphExec,
        node: real::Node,
        work: &NodeWork<'_>,
    ) -> Result<(), Refused> {
        // SAFETY: the driver reads the records and parameters before the call returns.
        unsafe {
            match work {
                NodeWork::Memset(memset, context) => {
                    self.cuGraphExecMemsetNodeSetParams(exec, node, memset, *context)
                }
                NodeWork::Copy(copy, context) => {
                    self.cuGraphExecMemcpyNodeSetParams(exec, node, &copy.0, *context)
                }
                NodeWork::Kernel(kernel, shape, params) => {
                    let mut len = params.len();
                    let mut extra = extra(params, &mut len);
                    let kernel = kernel_node(*kernel, *shape, extra_pointer(&mut extra, params));
                    self.cuGraphExecKernelNodeSetParams_v2(exec, node, &kernel)
                }
                NodeWork::Child(child) => {
                    self.cuGraphExecChildGraphNodeSetParams(exec, node, *child)
                }
                NodeWork::Host(host) => self.cuGraphExecHostNodeSetParams(exec, node, host),
                NodeWork::EventRecord(event) => {
                    self.cuGraphExecEventRecordNodeSetEvent(exec, node, *event)
                }
                NodeWork::EventWait(event) => {
                    self.cuGraphExecEventWaitNodeSetEvent(exec, node, *event)
                }
                NodeWork::MemOps(ops, context) => {
                    let ops = mem_ops_record(ops, *context);
                    self.cuGraphExecBatchMemOpNodeSetParams(exec, node, &ops)
                }
                NodeWork::Empty => Ok(()),
            }
        }
    }

    /// # Safety
    /// As for [`Driver::graph_add`].
    pub(super) unsafe fn graph_set(
        &self,
        node: real::Node,
        work: &NodeWork<'_>,
    ) -> Result<(), Refused> {
        // SAFETY: the driver reads the records and parameters before the call returns.
        unsafe {
            match work {
                NodeWork::Memset(memset, _) => self.cuGraphMemsetNodeSetParams(node, memset),
                NodeWork::Copy(copy, _) => self.cuGraphMemcpyNodeSetParams(node, &copy.0),
                NodeWork::Kernel(kernel, shape, params) => {
                    let mut len = params.len();
                    let mut extra = extra(params, &mut len);
                    let kernel = kernel_node(*kernel, *shape, extra_pointer(&mut extra, params));
                    self.cuGraphKernelNodeSetParams_v2(node, &kernel)
                }
                NodeWork::Host(host) => self.cuGraphHostNodeSetParams(node, host),
                NodeWork::EventRecord(event) => self.cuGraphEventRecordNodeSetEvent(node, *event),
                NodeWork::EventWait(event) => self.cuGraphEventWaitNodeSetEvent(node, *event),
                NodeWork::MemOps(ops, context) => {
                    let ops = mem_ops_record(ops, *context);
                    self.cuGraphBatchMemOpNodeSetParams(node, &ops)
                }
                NodeWork::Empty | NodeWork::Child(_) => Ok(()),
            }
        }
    }

    /// Updates an executable graph; returns the result even if the driver refused the update.
    pub(super) fn graph_exec_update(
        &self,
        exec: real::GraphExec,
        graph: real::Graph,
    ) -> Result<Updated, Refused> {
        let mut info = CUgraphExecUpdateResultInfo {
            result: 0,
            error_node: CUgraphNode::NULL,
            error_from_node: CUgraphNode::NULL,
        };
        // SAFETY: `info` has room for the answer.
        match unsafe { self.cuGraphExecUpdate_v2(exec, graph, &mut info) } {
            Err(refused) if refused.status != CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE => {
                Err(refused)
            }
            _ => Ok(Updated {
                result: info.result,
                error_node: real::Node::of_driver(info.error_node.0),
                error_from_node: real::Node::of_driver(info.error_from_node.0),
            }),
        }
    }

    /// Returns the graph as DOT text, which the driver writes to a file.
    pub(super) fn graph_text(&self, graph: real::Graph, flags: u32) -> Result<Vec<u8>, Failure> {
        let failed = |error: io::Error| {
            Failure::new(
                CUresult::CUDA_ERROR_OPERATING_SYSTEM,
                format!("a file for the graph's text: {error}"),
            )
        };
        let file = memory_file().map_err(failed)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
        // SAFETY: the path ends with a NUL.
        unsafe { self.cuGraphDebugDotPrint(graph, path.as_ptr(), flags) }?;
        let mut text = Vec::new();
        // The driver opened the file anew, so this descriptor's position is still 0.
        (&file).read_to_end(&mut text).map_err(failed)?;
        Ok(text)
    }
}

fn kernel_node(
    kernel: real::Kernel,
    shape: LaunchShape,
    extra: *mut *mut c_void,
) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: CUfunction(kernel.raw()),
        grid_dim_x: shape.grid[0],
        grid_dim_y: shape.grid[1],
        grid_dim_z: shape.grid[2],
        block_dim_x: shape.block[0],
        block_dim_y: shape.block[1],
        block_dim_z: shape.block[2],
        shared_mem_bytes: shape.shared_bytes,
        kernel_params: ptr::null_mut(),
        extra,
        kern: CUkernel::NULL,
        ctx: CUcontext::NULL,
    }
}

/// The result of an update, and the nodes at which it failed; null if there are none.
pub(super) struct Updated {
    pub(super) result: u32,
    pub(super) error_node: real::Node,
    pub(super) error_from_node: real::Node,
}

fn mem_ops_record(
    ops: &[CUstreamBatchMemOpParams],
    context: real::Context,
) -> CUDA_BATCH_MEM_OP_NODE_PARAMS {
    CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: CUcontext(context.raw()),
        count: ops.len() as u32,
        params: ops.as_ptr().cast_mut(),
        flags: 0,
    }
}

/// Returns the data of `count` edges for the driver; null if there is none for each of them.
fn data_of(edges: &[CUgraphEdgeData], count: usize) -> *const CUgraphEdgeData {
    match !edges.is_empty() && edges.len() == count {
        true => edges.as_ptr(),
        false => ptr::null(),
    }
}

/// Asks for the count, then for as many nodes and their edges.
fn edge_ends(
    mut ask: impl FnMut(*mut real::Node, *mut CUgraphEdgeData, &mut u64) -> Result<(), Refused>,
) -> Result<(Vec<real::Node>, Vec<CUgraphEdgeData>), Refused> {
    let mut count = 0;
    ask(ptr::null_mut(), ptr::null_mut(), &mut count)?;
    let mut nodes = vec![real::Node::NULL; count as usize];
    let mut edges = vec![CUgraphEdgeData::default(); count as usize];
    if count > 0 {
        ask(nodes.as_mut_ptr(), edges.as_mut_ptr(), &mut count)?;
    }
    nodes.truncate(count as usize);
    edges.truncate(count as usize);
    Ok((nodes, edges))
}

/// Asks for the count, then for as many nodes.
fn node_list(
    ask: impl Fn(*mut real::Node, &mut u64) -> Result<(), Refused>,
) -> Result<Vec<real::Node>, Refused> {
    let mut count = 0;
    ask(ptr::null_mut(), &mut count)?;
    let mut nodes = vec![real::Node::NULL; count as usize];
    if count > 0 {
        ask(nodes.as_mut_ptr(), &mut count)?;
    }
    nodes.truncate(count as usize);
    Ok(nodes)
}

/// Makes an unnamed file that the driver can open by its path under /proc.
fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a constant with its NUL.
    let fd = unsafe { libc::memfd_create(c"graph".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}
