//! What nodes do: taken from the program's records and checked as the driver checks them, then described to the server.

use std::sync::Arc;

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
        CUcontext, CUevent, CUfunction,
    },
    enums::*,
};
use outboard_wire::{
    doc::{self, BoxEnd, CopyBox},
    messages,
};

use crate::{
    calls::{
        Done,
        copy::Place,
        graph_params::{Side, memset_bytes},
        launch::{Params, Shape},
    },
    log,
    notes::{self, HostCall},
    session::Rows,
    state::{Driver, Kernel, KernelRecord, NodeRecord, Pageable, wire_context},
};
/// What a node does, taken from the program's records.
pub(super) enum Work {
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
    /// A copy of pageable memory: a graph that makes it, which goes once it is put into another.
    Pageable(u64),
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
    pub(super) unsafe fn kernel_work(
        &self,
        node: &CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<Work, CUresult> {
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
        self.make_arguments_visible(params.bytes(), || true)?;
        Ok(Work::Kernel {
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
    ) -> Result<Work, CUresult> {
        let bytes = memset_bytes(memset).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        self.check_reachable(memset.dst, bytes, "a memset node")?;
        Ok(Work::Memset {
            memset: *memset,
            context: self.node_context(context)?,
        })
    }

    pub(super) fn copy_work(
        &self,
        copy: &CUDA_MEMCPY3D,
        context: CUcontext,
    ) -> Result<Work, CUresult> {
        let (copy, host) = self.copy_box(copy)?;
        if let Some(host) = host {
            let context = self.node_context(context)?;
            return self.pageable_graph(host, copy, context).map(Work::Pageable);
        }
        for end in [copy.src, copy.dst] {
            if let BoxEnd::Pitched { address, .. } = end
                && self.place_of(address, 1)? != Place::Device
            {
                self.graph_uses_host();
            }
        }
        let desc = doc::to_bytes(&copy).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        Ok(Work::Copy {
            desc,
            context: self.node_context(context)?,
        })
    }

    /// A copy that the server makes at every launch, and the side of it that is pageable memory of the program's. Other memory
    /// both sides have at the same address.
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
                if self.place_of(*address, 1)? != Place::Device =>
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

    /// One side; if it is pageable, its first byte and its rows.
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
        if side.kind != CU_MEMORYTYPE_DEVICE && self.place_of(start, bytes)? == Place::Pageable {
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

    pub(super) fn add(&self, graph: u64, node: u64, dependencies: &[u8], work: &Work) -> Done {
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
            Work::Pageable(child) => {
                let message = messages::GraphAddChild {
                    graph,
                    node,
                    dependencies,
                    child: *child,
                };
                let added = session.call(here, &message, |_| ());
                self.drop_graph(*child)?;
                added
            }
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

    pub(super) fn set_exec(&self, exec: u64, node: u64, work: &Work) -> Done {
        let session = self.session;
        match work {
            Work::Pageable(child) => {
                let message = messages::GraphExecSetChild {
                    exec,
                    node,
                    child: *child,
                };
                let set = session.call(wire_context(), &message, |_| ());
                self.drop_graph(*child)?;
                set
            }
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

fn refuse_pageable() -> CUresult {
    log::warn("copy nodes between pageable memory and other memory of the host are not supported");
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

impl Work {
    /// What is remembered of a node, for those who ask.
    pub(super) fn record(&self) -> NodeRecord {
        match self {
            Work::Kernel {
                node,
                kernel,
                params,
                ..
            } => NodeRecord::Kernel(Arc::new(KernelRecord::new(node, kernel, params.bytes()))),
            Work::Memset { memset, .. } => NodeRecord::Memset(*memset),
            Work::Host(host) => NodeRecord::Host(*host),
            Work::Copy { .. }
            | Work::Pageable(_)
            | Work::Child(_)
            | Work::Empty
            | Work::Event { .. } => NodeRecord::Unknown,
        }
    }
}
