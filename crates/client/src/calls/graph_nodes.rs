//! The nodes of graphs that programs build by hand: parameters are taken and checked here, once for nodes that are
//! added and for nodes that are changed.

use std::{ffi::c_void, sync::Arc};

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
        CUcontext, CUevent, CUfunction, CUgraph, CUgraphEdgeData, CUgraphExec, CUgraphNode,
    },
    enums::*,
};
use outboard_wire::{
    codec::id_bytes,
    doc::{self, BoxEnd, CopyBox},
    messages,
};

use super::{
    Done,
    copy::Place,
    graph::{edge_list, node_ids, record},
    graph_params::{
        CopyNodeParams, KERNEL_V1_BYTES, MemsetNodeParams, NodeParams, Side, memset_bytes,
        no_kernel, widened,
    },
    launch::{Params, Shape},
    put,
};
use crate::{
    log,
    notes::{self, HostCall},
    state::{Driver, Kernel, KernelRecord, Kind, NodeRecord, driver, wire_context},
};

/// What a node does, taken from the program's records.
enum Work {
    Kernel {
        node: CUDA_KERNEL_NODE_PARAMS,
        kernel: &'static Kernel,
        shape: Shape,
        params: Box<Params>,
        context: u64,
    },
    Memset {
        memset: CUDA_MEMSET_NODE_PARAMS,
        context: u64,
    },
    Copy {
        desc: Vec<u8>,
        context: u64,
    },
    Host(CUDA_HOST_NODE_PARAMS),
    Child(u64),
    Empty,
    Event {
        event: CUevent,
        wait: bool,
    },
}

impl Driver {
    fn node_context(&self, context: CUcontext) -> Result<u64, CUresult> {
        if context.is_null() {
            Ok(wire_context())
        } else {
            self.wire_context(context)
        }
    }

    /// # Safety
    /// The record's arrays are what the driver API asks of a caller.
    unsafe fn kernel_work(&self, node: &CUDA_KERNEL_NODE_PARAMS) -> Result<Work, CUresult> {
        let (function, context) = match node.func.is_null() {
            false => (node.func, CUcontext::NULL),
            true => (CUfunction(node.kern.0), node.ctx),
        };
        let kernel = self.libraries.kernel(function)?;
        let shape = Shape {
            grid: [node.grid_dim_x, node.grid_dim_y, node.grid_dim_z],
            block: [node.block_dim_x, node.block_dim_y, node.block_dim_z],
            shared_bytes: node.shared_mem_bytes,
        };
        self.check_launch(kernel, &shape)?;
        // SAFETY: the caller's promise.
        let params = Box::new(unsafe { Params::gather(kernel, node.kernel_params, node.extra)? });
        self.make_arguments_visible(params.bytes())?;
        Ok(Work::Kernel {
            node: *node,
            kernel,
            shape,
            params,
            context: self.node_context(context)?,
        })
    }

    fn memset_work(
        &self,
        memset: &CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) -> Result<Work, CUresult> {
        let bytes = memset_bytes(memset).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.check_reachable(memset.dst, bytes, "a memset node")?;
        Ok(Work::Memset {
            memset: *memset,
            context: self.node_context(context)?,
        })
    }

    fn copy_work(&self, copy: &CUDA_MEMCPY3D, context: CUcontext) -> Result<Work, CUresult> {
        let copy = self.copy_box(copy)?;
        let desc = doc::to_bytes(&copy).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        Ok(Work::Copy {
            desc,
            context: self.node_context(context)?,
        })
    }

    /// A copy between memory that both sides have at the same address: the server makes it at every launch.
    fn copy_box(&self, copy: &CUDA_MEMCPY3D) -> Result<CopyBox, CUresult> {
        if copy.src_lod != 0
            || copy.dst_lod != 0
            || copy.width_in_bytes == 0
            || copy.height == 0
            || copy.depth == 0
        {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let extent = [
            copy.width_in_bytes as u64,
            copy.height as u64,
            copy.depth as u64,
        ];
        let [width, height, depth] = extent;
        let src = Side {
            kind: copy.src_memory_type,
            host: copy.src_host as u64,
            device: copy.src_device,
            array: copy.src_array,
            pitch: copy.src_pitch as u64,
            height: copy.src_height as u64,
            at: [
                copy.src_x_in_bytes as u64,
                copy.src_y as u64,
                copy.src_z as u64,
            ],
        };
        let dst = Side {
            kind: copy.dst_memory_type,
            host: copy.dst_host as u64,
            device: copy.dst_device,
            array: copy.dst_array,
            pitch: copy.dst_pitch as u64,
            height: copy.dst_height as u64,
            at: [
                copy.dst_x_in_bytes as u64,
                copy.dst_y as u64,
                copy.dst_z as u64,
            ],
        };
        Ok(CopyBox {
            src: self.box_end(&src, extent)?,
            src_x: src.at[0],
            src_y: src.at[1],
            src_z: src.at[2],
            dst: self.box_end(&dst, extent)?,
            dst_x: dst.at[0],
            dst_y: dst.at[1],
            dst_z: dst.at[2],
            width,
            height,
            depth,
        })
    }

    fn box_end(&self, side: &Side, extent: [u64; 3]) -> Result<BoxEnd, CUresult> {
        let address = match side.kind {
            CU_MEMORYTYPE_ARRAY => {
                return Ok(BoxEnd::Array {
                    array: self.wire_array(side.array)?,
                });
            }
            CU_MEMORYTYPE_HOST => side.host,
            CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => side.device,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        let (pitch_bytes, height, first, bytes) = side
            .layout(extent)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let start = address
            .checked_add(first)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.check_reachable(start, bytes, "a copy node")?;
        Ok(BoxEnd::Pitched {
            address,
            pitch_bytes,
            height,
        })
    }

    /// Memory that a launch will touch: it must be the device's, or pinned.
    fn check_reachable(&self, address: u64, bytes: u64, what: &str) -> Done {
        match self.place_of(address, bytes)? {
            Place::Device | Place::Shared => Ok(()),
            Place::Pinned => self.make_visible(address),
            Place::Pageable => {
                log::warn(format_args!(
                    "{what} with pageable host memory is not supported: pin it with cuMemHostAlloc or cuMemHostRegister"
                ));
                Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
            }
        }
    }

    fn host_call(&self, host: &CUDA_HOST_NODE_PARAMS) -> u64 {
        notes::register(
            self.session,
            HostCall::Function {
                function: host.func,
                user_data: host.user_data,
            },
            true,
        )
    }

    fn add(&self, graph: u64, node: u64, dependencies: &[u8], work: &Work) -> Done {
        let here = wire_context();
        let session = self.session;
        match work {
            Work::Empty => session.call(
                here,
                &messages::GraphAddEmpty {
                    graph,
                    node,
                    dependencies,
                },
                |_| (),
            ),
            Work::Child(child) => session.call(
                here,
                &messages::GraphAddChild {
                    graph,
                    node,
                    dependencies,
                    child: *child,
                },
                |_| (),
            ),
            Work::Host(host) => {
                let call = self.host_call(host);
                session.call(
                    here,
                    &messages::GraphAddHost {
                        graph,
                        node,
                        dependencies,
                        call,
                    },
                    |_| (),
                )
            }
            Work::Event { event, wait } => {
                let event = self.streams.event(*event)?;
                let message = messages::GraphAddEvent {
                    graph,
                    node,
                    dependencies,
                    event: event.handle,
                    wait: u8::from(*wait),
                };
                session.call(here, &message, |_| ())?;
                if !*wait {
                    self.graphs.records_event(&event);
                }
                Ok(())
            }
            Work::Copy { desc, context } => session.call(
                *context,
                &messages::GraphAddCopy {
                    graph,
                    node,
                    dependencies,
                    desc,
                },
                |_| (),
            ),
            Work::Memset { memset, context } => {
                let message = messages::GraphAddMemset {
                    graph,
                    node,
                    dependencies,
                    dst: memset.dst,
                    pitch: memset.pitch as u64,
                    value: memset.value,
                    element_size: memset.element_size,
                    width: memset.width as u64,
                    height: memset.height as u64,
                };
                session.call(*context, &message, |_| ())
            }
            Work::Kernel {
                kernel,
                shape,
                params,
                context,
                ..
            } => {
                let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) =
                    (shape.grid, shape.block);
                let message = messages::GraphAddKernel {
                    graph,
                    node,
                    dependencies,
                    kernel: kernel.wire,
                    grid_x,
                    grid_y,
                    grid_z,
                    block_x,
                    block_y,
                    block_z,
                    shared_bytes: shape.shared_bytes,
                    params: params.bytes(),
                };
                session.call(*context, &message, |_| ())
            }
        }
    }

    fn set_exec(&self, exec: u64, node: u64, work: &Work) -> Done {
        let session = self.session;
        match work {
            Work::Child(child) => session.call(
                wire_context(),
                &messages::GraphExecSetChild {
                    exec,
                    node,
                    child: *child,
                },
                |_| (),
            ),
            Work::Copy { desc, context } => session.call(
                *context,
                &messages::GraphExecSetCopy { exec, node, desc },
                |_| (),
            ),
            Work::Memset { memset, context } => {
                let message = messages::GraphExecSetMemset {
                    exec,
                    node,
                    dst: memset.dst,
                    pitch: memset.pitch as u64,
                    value: memset.value,
                    element_size: memset.element_size,
                    width: memset.width as u64,
                    height: memset.height as u64,
                };
                session.call(*context, &message, |_| ())
            }
            Work::Kernel {
                kernel,
                shape,
                params,
                context,
                ..
            } => {
                let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) =
                    (shape.grid, shape.block);
                let message = messages::GraphExecSetKernel {
                    exec,
                    node,
                    kernel: kernel.wire,
                    grid_x,
                    grid_y,
                    grid_z,
                    block_x,
                    block_y,
                    block_z,
                    shared_bytes: shape.shared_bytes,
                    params: params.bytes(),
                };
                session.call(*context, &message, |_| ())
            }
            Work::Empty => Ok(()),
            Work::Host(_) | Work::Event { .. } => {
                log::warn("a host function or an event of an instantiated graph cannot be changed");
                Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
            }
        }
    }
}

impl Work {
    /// What is remembered of a node, for those who ask.
    fn record(&self) -> NodeRecord {
        match self {
            Work::Kernel {
                node,
                kernel,
                params,
                ..
            } => NodeRecord::Kernel(Arc::new(KernelRecord::new(node, kernel, params.bytes()))),
            Work::Memset { memset, .. } => NodeRecord::Memset(*memset),
            Work::Host(host) => NodeRecord::Host(*host),
            Work::Copy { .. } | Work::Child(_) | Work::Empty | Work::Event { .. } => {
                NodeRecord::Unknown
            }
        }
    }
}

/// Where a new node goes.
struct Spot {
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
}

impl Spot {
    fn plain(
        out: *mut CUgraphNode,
        graph: CUgraph,
        after: *const CUgraphNode,
        count: usize,
    ) -> Spot {
        Spot {
            out,
            graph,
            after,
            edges: std::ptr::null(),
            count,
        }
    }
}

/// Adds a node. What it does is looked at after where it goes, as CUDA does.
///
/// # Safety
/// The spot's pointers are what the driver API asks of a caller.
unsafe fn add_node(spot: &Spot, work: impl FnOnce(&Driver) -> Result<Work, CUresult>) -> Done {
    let driver = driver()?;
    let graph = driver.wire_graph(spot.graph)?;
    // SAFETY: the caller's promise.
    let (dependencies, edges) = unsafe {
        (
            node_ids(driver, spot.after, spot.count)?,
            edge_list(spot.edges, spot.count),
        )
    };
    if spot.out.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let work = work(driver)?;
    let node = driver.handles.mint(Kind::Node);
    if edges.is_empty() {
        driver.add(graph, node, &id_bytes(&dependencies), &work)?;
    } else {
        // Edges that do more than order two nodes are added once the node is there.
        driver.add(graph, node, &[], &work)?;
        let to = vec![node; dependencies.len()];
        driver.add_dependencies(graph, &dependencies, &to, &edges)?;
    }
    driver.graphs.learn(graph, node, work.record());
    // SAFETY: as above.
    unsafe { put(spot.out, CUgraphNode(node as usize)) }
}

fn set_exec_node(
    exec: CUgraphExec,
    node: CUgraphNode,
    work: impl FnOnce(&Driver) -> Result<Work, CUresult>,
) -> Done {
    let driver = driver()?;
    let (exec, node) = (driver.wire_graphexec(exec)?, driver.wire_node(node)?);
    driver.set_exec(exec, node, &work(driver)?)
}

pub(crate) unsafe fn cuGraphAddEmptyNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { add_node(&Spot::plain(out, graph, after, count), |_| Ok(Work::Empty)) }
}

pub(crate) unsafe fn cuGraphAddChildGraphNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    child: CUgraph,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            Ok(Work::Child(driver.wire_graph(child)?))
        })
    }
}

pub(crate) unsafe fn cuGraphAddEventRecordNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |_| {
            Ok(Work::Event { event, wait: false })
        })
    }
}

pub(crate) unsafe fn cuGraphAddEventWaitNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    event: CUevent,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |_| {
            Ok(Work::Event { event, wait: true })
        })
    }
}

fn host_work(host: &CUDA_HOST_NODE_PARAMS) -> Result<Work, CUresult> {
    if host.func.is_none() {
        Err(CUresult::CUDA_ERROR_INVALID_VALUE)
    } else {
        Ok(Work::Host(*host))
    }
}

pub(crate) unsafe fn cuGraphAddHostNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_HOST_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |_| {
            host_work(record(params.cast())?)
        })
    }
}

pub(crate) unsafe fn cuGraphHostNodeGetParams(
    node: CUgraphNode,
    params: *mut CUDA_HOST_NODE_PARAMS,
) -> Done {
    match recorded(node)? {
        // SAFETY: see the module's contract.
        NodeRecord::Host(host) => unsafe { put(params, host) },
        other => Err(not_recorded(&other, "cuGraphHostNodeGetParams")),
    }
}

pub(crate) unsafe fn cuGraphAddMemsetNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.memset_work(record(params.cast())?, context)
        })
    }
}

pub(crate) unsafe fn cuGraphExecMemsetNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.memset_work(record(params.cast())?, context)
    })
}

pub(crate) unsafe fn cuGraphMemsetNodeGetParams(
    node: CUgraphNode,
    params: *mut CUDA_MEMSET_NODE_PARAMS,
) -> Done {
    match recorded(node)? {
        // SAFETY: see the module's contract.
        NodeRecord::Memset(memset) => unsafe { put(params, memset) },
        other => Err(not_recorded(&other, "cuGraphMemsetNodeGetParams")),
    }
}

pub(crate) unsafe fn cuGraphAddMemcpyNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.copy_work(record(params.cast())?, context)
        })
    }
}

pub(crate) unsafe fn cuGraphExecMemcpyNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.copy_work(record(params.cast())?, context)
    })
}

pub(crate) unsafe fn cuGraphExecChildGraphNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    child: CUgraph,
) -> Done {
    set_exec_node(exec, node, |driver| {
        Ok(Work::Child(driver.wire_graph(child)?))
    })
}

pub(crate) unsafe fn cuGraphAddKernelNode_v2(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.kernel_work(record(params.cast())?)
        })
    }
}

pub(crate) unsafe fn cuGraphAddKernelNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *const c_void,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(&Spot::plain(out, graph, after, count), |driver| {
            driver.kernel_work(&widened(params)?)
        })
    }
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams_v2(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.kernel_work(record(params.cast())?)
    })
}

pub(crate) unsafe fn cuGraphExecKernelNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *const c_void,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe {
        driver.kernel_work(&widened(params)?)
    })
}

fn kernel_params(node: CUgraphNode) -> Result<CUDA_KERNEL_NODE_PARAMS, CUresult> {
    match recorded(node)? {
        NodeRecord::Kernel(kernel) => {
            let ([grid_dim_x, grid_dim_y, grid_dim_z], [block_dim_x, block_dim_y, block_dim_z]) =
                (kernel.grid, kernel.block);
            Ok(CUDA_KERNEL_NODE_PARAMS {
                func: kernel.func,
                kern: kernel.kern,
                grid_dim_x,
                grid_dim_y,
                grid_dim_z,
                block_dim_x,
                block_dim_y,
                block_dim_z,
                shared_mem_bytes: kernel.shared_bytes,
                kernel_params: kernel.pointers(),
                ..no_kernel()
            })
        }
        other => Err(not_recorded(&other, "cuGraphKernelNodeGetParams")),
    }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams_v2(
    node: CUgraphNode,
    params: *mut CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { put(params, kernel_params(node)?) }
}

pub(crate) unsafe fn cuGraphKernelNodeGetParams(node: CUgraphNode, params: *mut c_void) -> Done {
    if params.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let wide = kernel_params(node)?;
    // SAFETY: the fields that both records have, into the caller's.
    unsafe {
        std::ptr::copy_nonoverlapping(
            (&raw const wide).cast::<u8>(),
            params.cast::<u8>(),
            KERNEL_V1_BYTES,
        )
    };
    Ok(())
}

fn recorded(node: CUgraphNode) -> Result<NodeRecord, CUresult> {
    driver()?.graphs.record(node.0 as u64)
}

/// A question about a node of another kind, or about one that was captured.
fn not_recorded(record: &NodeRecord, call: &str) -> CUresult {
    match record {
        NodeRecord::Unknown => {
            log::warn(format_args!(
                "{call} is not supported for a node that was captured, cloned or is of another kind"
            ));
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        }
        _ => CUresult::CUDA_ERROR_INVALID_VALUE,
    }
}

/// The parameters of any kind of node.
///
/// # Safety
/// The parameters are those of the type that the record names.
unsafe fn any_work(driver: &Driver, node: *const c_void) -> Result<Work, CUresult> {
    // SAFETY: the caller's promise, here and below.
    let node: &NodeParams = unsafe { record(node)? };
    let params = node.params.as_ptr().cast::<c_void>();
    if node.reserved0 != [0; 3] || node.reserved2 != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let handle = node.params[0] as usize;
    match node.kind {
        // SAFETY: as above.
        CU_GRAPH_NODE_TYPE_KERNEL => unsafe { driver.kernel_work(record(params)?) },
        CU_GRAPH_NODE_TYPE_MEMCPY => {
            // SAFETY: as above.
            let copy: &CopyNodeParams = unsafe { record(params)? };
            if copy.flags != 0 || copy.reserved != 0 {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            driver.copy_work(&copy.copy, copy.context)
        }
        CU_GRAPH_NODE_TYPE_MEMSET => {
            // SAFETY: as above.
            let memset: &MemsetNodeParams = unsafe { record(params)? };
            driver.memset_work(&memset.memset, memset.context)
        }
        // SAFETY: as above.
        CU_GRAPH_NODE_TYPE_HOST => unsafe { host_work(record(params)?) },
        CU_GRAPH_NODE_TYPE_GRAPH if node.params[1] as u32 == 0 => {
            Ok(Work::Child(driver.wire_graph(CUgraph(handle))?))
        }
        CU_GRAPH_NODE_TYPE_EMPTY => Ok(Work::Empty),
        CU_GRAPH_NODE_TYPE_WAIT_EVENT => Ok(Work::Event {
            event: CUevent(handle),
            wait: true,
        }),
        CU_GRAPH_NODE_TYPE_EVENT_RECORD => Ok(Work::Event {
            event: CUevent(handle),
            wait: false,
        }),
        other => {
            log::warn(format_args!(
                "graph nodes of type {other} are not supported"
            ));
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
    }
}

pub(crate) unsafe fn cuGraphAddNode(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    count: usize,
    params: *mut c_void,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { cuGraphAddNode_v2(out, graph, after, std::ptr::null(), count, params) }
}

pub(crate) unsafe fn cuGraphAddNode_v2(
    out: *mut CUgraphNode,
    graph: CUgraph,
    after: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    params: *mut c_void,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe {
        add_node(
            &Spot {
                out,
                graph,
                after,
                edges,
                count,
            },
            |driver| any_work(driver, params),
        )
    }
}

pub(crate) unsafe fn cuGraphExecNodeSetParams(
    exec: CUgraphExec,
    node: CUgraphNode,
    params: *mut c_void,
) -> Done {
    // SAFETY: see the module's contract.
    set_exec_node(exec, node, |driver| unsafe { any_work(driver, params) })
}
