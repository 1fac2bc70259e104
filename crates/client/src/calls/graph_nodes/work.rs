//! The work of graph nodes: read from the program's records, checked as by the driver, and
//! converted for the server.

use std::sync::Arc;

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
        CUcontext, CUevent, CUfunction, CUgraph,
    },
    enums::*,
};
use outboard_wire::{
    doc::{self, BoxEnd, ConditionalWork, CopyBox, KernelWork, MemsetWork, NodeWork},
    messages,
};

use crate::{
    calls::{
        Done,
        arguments::Arguments,
        copy::MemoryKind,
        graph_params::{Side, memset_bytes},
        launch::LaunchShape,
    },
    log,
    session::Rows,
    state::{
        AllocParams, Driver, HostCall, Kernel, KernelRecord, MemOpsRecord, NodeRecord, Pageable,
        host_functions, wire_context,
    },
};
/// The work of a node, from the program's records.
pub(crate) enum NodeSpec {
    Kernel {
        node: CUDA_KERNEL_NODE_PARAMS,
        kernel: &'static Kernel,
        shape: LaunchShape,
        params: Box<[u8]>,
        context: u64,
    },
    Memset {
        memset: CUDA_MEMSET_NODE_PARAMS,
        context: u64,
    },
    Copy {
        /// The program's own record.
        node: CUDA_MEMCPY3D,
        copy: CopyBox,
        context: u64,
    },
    /// A copy of pageable memory: a child graph that makes it. It is destroyed after it was put
    /// into another graph.
    Pageable {
        node: CUDA_MEMCPY3D,
        child: u64,
    },
    Host(CUDA_HOST_NODE_PARAMS),
    Child(u64),
    /// A graph that becomes part of the node's, as itself.
    Moved(u64),
    Empty,
    Event {
        event: CUevent,
        wait: bool,
    },
    MemOps(Arc<MemOpsRecord>),
    Conditional {
        handle: u64,
        kind: u32,
        /// Handles of the graphs that are created with the node.
        bodies: Vec<u64>,
        context: u64,
    },
    /// Memory of the graph, managed by this library. On the server the node only keeps the order.
    Alloc(AllocParams),
    Free(u64),
}

/// Returns source and destination of a copy.
fn sides(copy: &CUDA_MEMCPY3D) -> (Side, Side) {
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
    (src, dst)
}

impl Driver {
    pub(super) fn node_context(&self, context: CUcontext) -> Result<u64, CUresult> {
        if context.is_null() {
            Ok(wire_context())
        } else {
            self.wire_context(context)
        }
    }

    /// # Safety
    /// `node.kernel_params` and `node.extra` must be as [`Params::gather`] asks.
    pub(super) unsafe fn kernel_work(
        &self,
        node: &CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<NodeSpec, CUresult> {
        let (function, context) = match node.func.is_null() {
            false => (node.func, CUcontext::NULL),
            true => (CUfunction(node.kern.0), node.ctx),
        };
        let kernel = self.libraries.kernel(function)?;
        let shape = LaunchShape {
            grid: [node.grid_dim_x, node.grid_dim_y, node.grid_dim_z],
            block: [node.block_dim_x, node.block_dim_y, node.block_dim_z],
            shared_bytes: node.shared_mem_bytes,
        };
        self.check_launch(kernel, shape)?;
        // SAFETY: the arrays are as this function's contract says.
        let arguments = unsafe { Arguments::new(kernel, node.kernel_params, node.extra)? };
        let params = arguments.gather()?.into_boxed_slice();
        self.make_arguments_visible(&params, None, || true)?;
        Ok(NodeSpec::Kernel {
            node: *node,
            kernel,
            shape,
            params,
            context: self.node_context(context)?,
        })
    }

    pub(super) fn memset_work(
        &self,
        memset: &CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) -> Result<NodeSpec, CUresult> {
        let bytes = memset_bytes(memset).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.check_reachable(memset.dst, bytes, "a memset node")?;
        Ok(NodeSpec::Memset {
            memset: *memset,
            context: self.node_context(context)?,
        })
    }

    pub(super) fn copy_work(
        &self,
        copy: &CUDA_MEMCPY3D,
        context: CUcontext,
    ) -> Result<NodeSpec, CUresult> {
        let node = *copy;
        let (copy, host) = self.copy_box(copy)?;
        if let Some(host) = host {
            let context = self.node_context(context)?;
            let child = self.pageable_graph(host, copy, context)?;
            return Ok(NodeSpec::Pageable { node, child });
        }
        for end in [copy.src, copy.dst] {
            if let BoxEnd::Pitched { address, .. } = end
                && self.memory_kind(address, 1)? != MemoryKind::Device
            {
                self.graph_uses_host();
            }
        }
        Ok(NodeSpec::Copy {
            node,
            copy,
            context: self.node_context(context)?,
        })
    }

    /// Returns a copy for the server to make at every launch, and its end in pageable memory, if
    /// any. Other host memory is at the same address on both sides.
    fn copy_box(&self, copy: &CUDA_MEMCPY3D) -> Result<(CopyBox, Option<Pageable>), CUresult> {
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
        let (src, dst) = sides(copy);
        let ((src_end, from), (dst_end, to)) =
            (self.box_end(&src, extent)?, self.box_end(&dst, extent)?);
        let host = match (from, to) {
            (Some(_), Some(_)) => return Err(refuse_pageable()),
            (Some((address, rows)), None) => Some((address, rows, false, &dst_end)),
            (None, Some((address, rows))) => Some((address, rows, true, &src_end)),
            (None, None) => None,
        };
        let host = match host {
            Some((_, _, _, BoxEnd::Pitched { address, .. }))
                if self.memory_kind(*address, 1)? != MemoryKind::Device =>
            {
                return Err(refuse_pageable());
            }
            Some((address, rows, to_host, _)) => Some(Pageable {
                address,
                rows,
                to_host,
            }),
            None => None,
        };
        let copy = CopyBox {
            src: src_end,
            src_x: src.at[0],
            src_y: src.at[1],
            src_z: src.at[2],
            dst: dst_end,
            dst_x: dst.at[0],
            dst_y: dst.at[1],
            dst_z: dst.at[2],
            width,
            height,
            depth,
        };
        Ok((copy, host))
    }

    /// Converts one end. If it is pageable, also returns its first byte and its rows.
    fn box_end(
        &self,
        side: &Side,
        extent: [u64; 3],
    ) -> Result<(BoxEnd, Option<(u64, Rows)>), CUresult> {
        let address = match side.kind {
            CU_MEMORYTYPE_ARRAY => {
                let array = self.wire_array(side.array)?;
                return Ok((BoxEnd::Array { array }, None));
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
        let end = BoxEnd::Pitched {
            address,
            pitch_bytes,
            height,
        };
        if side.kind != CU_MEMORYTYPE_DEVICE
            && self.memory_kind(start, bytes)? == MemoryKind::Pageable
        {
            let [width, rows, depth] = extent.map(|n| n as usize);
            let rows = Rows {
                width,
                height: rows,
                depth,
                pitch: pitch_bytes as usize,
                slice_pitch: (pitch_bytes * height) as usize,
            };
            return Ok((end, Some((start, rows))));
        }
        self.check_reachable(start, bytes, "a copy node")?;
        Ok((end, None))
    }

    /// Checks memory that a launch will use: it must be device memory or pinned.
    fn check_reachable(&self, address: u64, bytes: u64, what: &str) -> Done {
        match self.memory_kind(address, bytes)? {
            MemoryKind::Device | MemoryKind::Shared => Ok(()),
            MemoryKind::Pinned => self.make_visible(address),
            MemoryKind::Pageable => {
                log::warn(format_args!(
                    "{what} with pageable host memory is not supported: pin it with cuMemHostAlloc or cuMemHostRegister"
                ));
                Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
            }
        }
    }

    fn host_call(&self, host: &CUDA_HOST_NODE_PARAMS) -> Result<u64, CUresult> {
        host_functions::register(
            self.session,
            HostCall::Function {
                function: host.func,
                user_data: host.user_data,
            },
            true,
        )
    }

    /// Returns the work in the form of messages, and its context.
    fn told(&self, work: &NodeSpec) -> Result<(NodeWork, u64), CUresult> {
        let here = wire_context();
        Ok(match work {
            NodeSpec::Empty | NodeSpec::Alloc(_) | NodeSpec::Free(_) => (NodeWork::Empty, here),
            NodeSpec::Pageable { child, .. } | NodeSpec::Child(child) => {
                (NodeWork::Child(*child), here)
            }
            NodeSpec::Moved(child) => (NodeWork::Moved(*child), here),
            NodeSpec::Host(host) => (NodeWork::Host(self.host_call(host)?), here),
            NodeSpec::Event { event, wait } => {
                let event = self.streams.event(*event)?.handle;
                let told = match wait {
                    true => NodeWork::WaitEvent(event),
                    false => NodeWork::RecordEvent(event),
                };
                (told, here)
            }
            NodeSpec::Copy { copy, context, .. } => (NodeWork::Copy(*copy), *context),
            NodeSpec::Memset { memset, context } => {
                let told = MemsetWork {
                    dst: memset.dst,
                    pitch: memset.pitch as u64,
                    value: memset.value,
                    element_size: memset.element_size,
                    width: memset.width as u64,
                    height: memset.height as u64,
                };
                (NodeWork::Memset(told), *context)
            }
            NodeSpec::Kernel {
                kernel,
                shape,
                params,
                context,
                ..
            } => {
                let told = KernelWork {
                    kernel: kernel.wire,
                    grid: shape.grid,
                    block: shape.block,
                    shared_bytes: shape.shared_bytes,
                    params: params.to_vec(),
                };
                (NodeWork::Kernel(told), *context)
            }
            NodeSpec::MemOps(ops) => (NodeWork::MemOps(ops.bytes().to_vec()), ops.context()),
            NodeSpec::Conditional {
                handle,
                kind,
                bodies,
                context,
            } => {
                let told = ConditionalWork {
                    handle: *handle,
                    kind: *kind,
                    bodies: bodies.clone(),
                };
                (NodeWork::Conditional(told), *context)
            }
        })
    }

    pub(super) fn add(&self, graph: u64, node: u64, dependencies: &[u8], work: &NodeSpec) -> Done {
        let (told, context) = self.told(work)?;
        let told = doc::to_bytes(&told).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        let message = messages::GraphAdd {
            graph,
            node,
            dependencies,
            work: &told,
        };
        let added = self.session.call(context, &message, |_| ());
        self.told_work(work, added)
    }

    /// Changes the work of a node of the executable graph `exec`, or, if that is 0, of the graph
    /// that contains it.
    pub(super) fn set(&self, exec: u64, node: u64, work: &NodeSpec) -> Done {
        let (told, context) = self.told(work)?;
        let told = doc::to_bytes(&told).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        let message = messages::GraphSet {
            exec,
            node,
            work: &told,
        };
        let set = self.session.call(context, &message, |_| ());
        self.told_work(work, set)
    }

    fn told_work(&self, work: &NodeSpec, result: Done) -> Done {
        match work {
            NodeSpec::Pageable { child, .. } => self.drop_graph(*child)?,
            NodeSpec::Event { event, wait: false } if result.is_ok() => {
                self.graphs.records_event(&self.streams.event(*event)?);
            }
            _ => {}
        }
        result
    }
}

fn refuse_pageable() -> CUresult {
    log::warn("copy nodes between pageable memory and other memory of the host are not supported");
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

impl NodeSpec {
    /// Returns the record that queries of the node will use.
    pub(super) fn record(&self) -> NodeRecord {
        match self {
            NodeSpec::Kernel {
                node,
                kernel,
                params,
                ..
            } => NodeRecord::Kernel(Arc::new(KernelRecord::new(node, kernel, params))),
            NodeSpec::Memset { memset, .. } => NodeRecord::Memset(*memset),
            NodeSpec::Host(host) => NodeRecord::Host(*host),
            NodeSpec::Copy { node, .. } => NodeRecord::Copy {
                copy: *node,
                pageable: false,
            },
            NodeSpec::Pageable { node, .. } => NodeRecord::Copy {
                copy: *node,
                pageable: true,
            },
            NodeSpec::Event { event, .. } => NodeRecord::Event(*event),
            NodeSpec::MemOps(ops) => NodeRecord::MemOps(ops.clone()),
            NodeSpec::Alloc(params) => NodeRecord::Alloc(*params),
            NodeSpec::Free(address) => NodeRecord::Free(*address),
            NodeSpec::Conditional { bodies, .. } => {
                NodeRecord::Conditional(bodies.iter().map(|body| CUgraph(*body as usize)).collect())
            }
            NodeSpec::Moved(child) => NodeRecord::Moved(*child),
            NodeSpec::Child(_) | NodeSpec::Empty => NodeRecord::Unknown,
        }
    }
}
