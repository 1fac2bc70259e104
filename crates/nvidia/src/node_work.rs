//! The work of graph nodes: checked and translated for the driver, or asked of the driver and
//! described.

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_MEMCPY3D,
        CUDA_MEMSET_NODE_PARAMS, CUcontext, CUstreamBatchMemOpParams,
    },
    enums::*,
};
use outboard_device::{Cx, Failure};
use outboard_wire::{
    doc::{self, BoxEnd, ConditionalWork, CopyBox, KernelWork, MemsetWork, NodeWork as Told},
    messages,
};

use super::{
    Nvidia,
    addresses::rows,
    calls::{CheckedBox, LaunchShape},
    captured::packed,
    graph_calls::NodeWork,
    table::{Driver, Record, Refused, real},
};

/// `CUgraphNodeParams` of a conditional node: offsets of its fields.
const KIND_AT: usize = 0;
const HANDLE_AT: usize = 16;
const TYPE_AT: usize = 24;
const SIZE_AT: usize = 28;
const BODIES_AT: usize = 32;
const CONTEXT_AT: usize = 40;
/// `CUgraphNodeParams` of a child graph's node: offsets of its fields.
const CHILD_AT: usize = 16;
const OWNERSHIP_AT: usize = 24;
/// Graphs of one conditional node, at most.
const BODIES_MAX: usize = 1 << 12;

/// A node's work with the records that it borrows until the driver has read them.
enum Prepared {
    Copy(CheckedBox),
    Kernel(real::Kernel, KernelWork),
    Ready(NodeWork<'static>),
}

impl Nvidia {
    fn prepared(&mut self, cx: &mut Cx<'_>, work: Told) -> Result<Prepared, Failure> {
        Ok(Prepared::Ready(match work {
            Told::Empty => NodeWork::Empty,
            Told::Kernel(kernel) => {
                let real = self.launchable(cx, kernel.kernel, &kernel.params, None)?;
                return Ok(Prepared::Kernel(real, kernel));
            }
            Told::Memset(set) => self.memset_work(&set)?,
            Told::Copy(copy) => {
                return Ok(Prepared::Copy(self.checked_copy(&copy, None)?));
            }
            Told::Host(call) => self.host_node(call),
            Told::Child(child) => NodeWork::Child(self.real_graph(child)?),
            Told::RecordEvent(event) => NodeWork::EventRecord(self.kept_event(event)?),
            Told::WaitEvent(event) => NodeWork::EventWait(self.kept_event(event)?),
            Told::MemOps(records) => {
                NodeWork::MemOps(self.checked_mem_ops(&records)?, self.current_hold().handle)
            }
            Told::Conditional(_) => {
                return Err(wrong("a conditional node cannot be changed"));
            }
            Told::Moved(_) => return Err(wrong("only a new node can own a graph")),
        }))
    }

    fn memset_work(&self, set: &MemsetWork) -> Result<NodeWork<'static>, Failure> {
        let width = set.width.saturating_mul(u64::from(set.element_size));
        self.known(set.dst, rows(set.pitch, width, set.height))?;
        let memset = CUDA_MEMSET_NODE_PARAMS {
            dst: set.dst,
            pitch: set.pitch as usize,
            value: set.value,
            element_size: set.element_size,
            width: set.width as usize,
            height: set.height as usize,
        };
        Ok(NodeWork::Memset(memset, self.current_hold().handle))
    }

    pub(super) fn graph_add(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphAdd<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        let dependencies = self.real_nodes(m.dependencies)?;
        let work = node_work(m.work)?;
        if let Told::Conditional(conditional) = &work {
            return self.add_conditional(m.node, graph, &dependencies, conditional);
        }
        let child = match &work {
            Told::Child(child) => Some(self.real_graph(*child)?),
            Told::Moved(child) => return self.add_moved(m.node, graph, &dependencies, *child),
            _ => None,
        };
        if child == Some(graph) {
            // The driver does not return from it.
            return Err(wrong("a graph inside itself"));
        }
        let prepared = self.prepared(cx, work)?;
        // SAFETY: every address was checked when the work was prepared; host functions keep their
        // data for ever.
        let made = unsafe {
            self.driver.graph_add(
                graph,
                &dependencies,
                &prepared.work(self.current_hold().handle),
            )
        }?;
        if let Some(child) = child {
            self.graphs.inherit(graph, child);
        }
        if self.copies_on_host(&prepared) {
            self.graphs.mark_on_host(graph);
        }
        self.graphs.bind_node(m.node, made, graph)
    }

    /// Adds a node that owns its graph. The driver lets a graph own itself, and ends the process at
    /// the next use, so that is refused here.
    fn add_moved(
        &mut self,
        number: u64,
        graph: real::Graph,
        dependencies: &[real::Node],
        child: u64,
    ) -> Result<(), Failure> {
        let child = self.real_graph(child)?;
        if child == graph || self.graphs.parts_of(child).contains(&graph) {
            return Err(wrong("a graph inside itself"));
        }
        if self.graphs.is_part(child) {
            return Err(Failure::unsupported(
                "moving a graph that is part of another",
            ));
        }
        let mut record = Record([0; 256]);
        record.set_u64(KIND_AT, u64::from(CU_GRAPH_NODE_TYPE_GRAPH));
        record.set_u64(CHILD_AT, child.raw() as u64);
        record.set_u64(OWNERSHIP_AT, u64::from(CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE));
        let made = self
            .driver
            .graph_add_record(graph, dependencies, &mut record)?;
        self.graphs.becomes_part(child, (graph, made));
        self.graphs.bind_node(number, made, graph)
    }

    fn add_conditional(
        &mut self,
        number: u64,
        graph: real::Graph,
        dependencies: &[real::Node],
        conditional: &ConditionalWork,
    ) -> Result<(), Failure> {
        let size = conditional.bodies.len();
        if size > BODIES_MAX {
            return Err(wrong("a conditional node of too many graphs"));
        }
        let mut record = Record([0; 256]);
        record.set_u64(KIND_AT, u64::from(CU_GRAPH_NODE_TYPE_CONDITIONAL));
        record.set_u64(HANDLE_AT, conditional.handle);
        record.set_u64(TYPE_AT, u64::from(conditional.kind) | (size as u64) << 32);
        record.set_u64(CONTEXT_AT, self.current_hold().handle.raw() as u64);
        const { assert!(SIZE_AT == TYPE_AT + 4) };
        let made = self
            .driver
            .graph_add_record(graph, dependencies, &mut record)?;
        self.graphs.bind_node(number, made, graph)?;
        let first = record.u64_at(BODIES_AT) as *const real::Graph;
        if first.is_null() {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_UNKNOWN,
                "a conditional node without graphs",
            ));
        }
        for (index, body) in conditional.bodies.iter().enumerate() {
            // SAFETY: the driver's own array of as many graphs, valid as long as the node.
            let part = unsafe { *first.add(index) };
            self.graphs.bind_part(*body, part, (graph, made))?;
        }
        Ok(())
    }

    pub(super) fn graph_conditional(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphConditional,
    ) -> Result<messages::GraphConditionalReply, Failure> {
        self.enter(cx)?;
        let graph = self.real_graph(m.graph)?;
        let context = self.current_hold().handle;
        let mut handle = 0;
        // SAFETY: `handle` has room for the answer.
        unsafe {
            self.driver.cuGraphConditionalHandleCreate(
                &mut handle,
                graph,
                context,
                m.initial,
                m.flags,
            )
        }?;
        Ok(messages::GraphConditionalReply { handle })
    }

    pub(super) fn graph_set(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphSet<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let node = self.real_node(m.node)?;
        let work = node_work(m.work)?;
        let child = match &work {
            Told::Child(child) => Some(self.real_graph(*child)?),
            _ => None,
        };
        if let Some(child) = child {
            self.graphs.check_runnable(child)?;
        }
        if let (0, Some(child)) = (m.exec, child) {
            self.driver.graph_set_child(node, child)?;
            let graph = self.graph_of_node(m.node)?;
            self.graphs.inherit(graph, child);
            return Ok(());
        }
        let prepared = self.prepared(cx, work)?;
        let work = prepared.work(self.current_hold().handle);
        let mut copies_on_host = self.copies_on_host(&prepared);
        if m.exec == 0 {
            // SAFETY: the addresses were checked when the work was prepared, and user data is kept.
            unsafe { self.driver.graph_set(node, &work) }?;
            if copies_on_host {
                let graph = self.graph_of_node(m.node)?;
                self.graphs.mark_on_host(graph);
            }
            return Ok(());
        }
        let exec = self.real_graphexec(m.exec)?;
        // SAFETY: the addresses were checked when the work was prepared, and user data is kept.
        unsafe { self.driver.graph_exec_set(exec, node, &work) }?;
        let mut memory = Vec::new();
        if let Some(child) = child {
            memory = self.graphs.memory_inside(child);
            copies_on_host |= self.graphs.copies_on_host(child);
        }
        let exec = self.graphs.execs.get_mut(m.exec)?;
        exec.memory.extend(memory);
        exec.copies_on_host |= copies_on_host;
        Ok(())
    }

    fn copies_on_host(&self, work: &Prepared) -> bool {
        matches!(work, Prepared::Copy(copy) if self.is_on_host(copy))
    }

    pub(super) fn graph_work(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphWork,
    ) -> Result<messages::GraphWorkReply<'static>, Failure> {
        self.enter(cx)?;
        let node = self.real_node(m.node)?;
        let work = match self.driver.cuGraphNodeGetType(node)? {
            CU_GRAPH_NODE_TYPE_KERNEL => Told::Kernel(self.told_kernel(node)?),
            CU_GRAPH_NODE_TYPE_MEMSET => Told::Memset(self.driver.told_memset(node)?),
            CU_GRAPH_NODE_TYPE_MEMCPY => Told::Copy(self.driver.told_copy(node)?),
            CU_GRAPH_NODE_TYPE_HOST => {
                let host = self.driver.told_host(node)?;
                let call = self.host_calls.call_of(&host);
                Told::Host(call.ok_or_else(|| {
                    Failure::unsupported("a host function that is not the program's")
                })?)
            }
            CU_GRAPH_NODE_TYPE_EMPTY => Told::Empty,
            CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
                let event = self.driver.cuGraphEventRecordNodeGetEvent(node)?;
                Told::RecordEvent(self.event_number(event)?)
            }
            CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
                let event = self.driver.cuGraphEventWaitNodeGetEvent(node)?;
                Told::WaitEvent(self.event_number(event)?)
            }
            CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => Told::MemOps(self.driver.told_mem_ops(node)?),
            other => {
                return Err(Failure::unsupported(&format!(
                    "the parameters of a graph node of type {other}"
                )));
            }
        };
        let work = doc::to_bytes(&work)
            .map_err(|e| Failure::new(CUresult::CUDA_ERROR_UNKNOWN, e.to_string()))?;
        Ok(messages::GraphWorkReply { work: work.into() })
    }

    fn told_kernel(&mut self, node: real::Node) -> Result<KernelWork, Failure> {
        let node = self.driver.kernel_node(node)?;
        let (kernel, layout) = self
            .kernel_of(node.func.0, node.kern.0)?
            .ok_or_else(|| Failure::unsupported("a kernel node of a kernel that no module has"))?;
        // SAFETY: the driver's own record of the node, read before any other call, with the layout
        // of its kernel.
        let params = unsafe { packed(&node, &layout) };
        Ok(KernelWork {
            kernel,
            grid: [node.grid_dim_x, node.grid_dim_y, node.grid_dim_z],
            block: [node.block_dim_x, node.block_dim_y, node.block_dim_z],
            shared_bytes: node.shared_mem_bytes,
            params,
        })
    }

    pub(super) fn graph_child(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphChild,
    ) -> Result<messages::GraphChildReply, Failure> {
        self.enter(cx)?;
        let (node, outer) = (self.real_node(m.node)?, self.graph_of_node(m.node)?);
        let child = self.driver.cuGraphChildGraphNodeGetGraph(node)?;
        if let Some(known) = self.graphs.id_of(child) {
            return Ok(messages::GraphChildReply { graph: known });
        }
        self.graphs.bind_part(m.graph, child, (outer, node))?;
        // Which of these is the child's is not known; too much is safe.
        self.graphs.inherit(child, outer);
        Ok(messages::GraphChildReply { graph: m.graph })
    }

    pub(super) fn graph_find_in_clone(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphFindInClone,
    ) -> Result<messages::GraphFindInCloneReply, Failure> {
        self.enter(cx)?;
        let (node, clone) = (self.real_node(m.node)?, self.real_graph(m.clone)?);
        let found = self.driver.cuGraphNodeFindInClone(node, clone)?;
        let ids = self.graphs.node_ids(clone, &[found], m.first_node)?;
        Ok(messages::GraphFindInCloneReply {
            node: ids.first().copied().unwrap_or(0),
        })
    }

    pub(super) fn graph_node_type(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphNodeType,
    ) -> Result<messages::GraphNodeTypeReply, Failure> {
        self.enter(cx)?;
        let node = self.real_node(m.node)?;
        Ok(messages::GraphNodeTypeReply {
            node_type: self.driver.cuGraphNodeGetType(node)?,
        })
    }

    pub(super) fn graph_node_attribute(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphNodeAttribute,
    ) -> Result<messages::GraphNodeAttributeReply<'static>, Failure> {
        self.enter(cx)?;
        refuse_handles(m.attribute)?;
        let node = self.real_node(m.node)?;
        let mut value = Record([0; 64]);
        // SAFETY: `value` has room for the answer.
        unsafe {
            self.driver
                .cuGraphKernelNodeGetAttribute(node, m.attribute, &mut value)
        }?;
        Ok(messages::GraphNodeAttributeReply {
            value: value.0.to_vec().into(),
        })
    }

    pub(super) fn graph_node_set_attribute(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::GraphNodeSetAttribute<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        refuse_handles(m.attribute)?;
        let node = self.real_node(m.node)?;
        let value = Record::<64>::new("an attribute's value", m.value)?;
        // SAFETY: a record of the right size, without handles or addresses that the driver would
        // follow.
        Ok(unsafe {
            self.driver
                .cuGraphKernelNodeSetAttribute(node, m.attribute, &value)
        }?)
    }
}

impl Prepared {
    fn work(&self, context: real::Context) -> NodeWork<'_> {
        match self {
            Prepared::Copy(copy) => NodeWork::Copy(copy, context),
            Prepared::Kernel(real, kernel) => {
                let shape = LaunchShape {
                    grid: kernel.grid,
                    block: kernel.block,
                    shared_bytes: kernel.shared_bytes,
                };
                NodeWork::Kernel(*real, shape, &kernel.params)
            }
            Prepared::Ready(work) => work.clone(),
        }
    }
}

fn node_work(bytes: &[u8]) -> Result<Told, Failure> {
    doc::from_bytes(bytes).map_err(|e| wrong(format!("what a node does: {e}")))
}

fn wrong(why: impl Into<String>) -> Failure {
    Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, why.into())
}

/// Refuses attributes whose values hold handles, which mean nothing in another process.
fn refuse_handles(attribute: u32) -> Result<(), Failure> {
    match attribute {
        id if LAUNCH_ATTRIBUTES_OF_EDGES.contains(&id) => {
            Err(wrong(format!("attribute {id} of a kernel node")))
        }
        CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => Err(Failure::unsupported(&format!(
            "launch attribute {attribute} of a kernel node"
        ))),
        _ => Ok(()),
    }
}

impl Driver {
    /// Adds a node that is fully described by its record.
    fn graph_add_record(
        &self,
        graph: real::Graph,
        dependencies: &[real::Node],
        record: &mut Record<256>,
    ) -> Result<real::Node, Refused> {
        let mut made = real::Node::NULL;
        let (after, count) = (dependencies.as_ptr(), dependencies.len() as u64);
        // SAFETY: the array has `count` nodes; null edge data stands for plain edges; the record
        // holds no address of the client's.
        unsafe {
            self.cuGraphAddNode_v2(&mut made, graph, after, std::ptr::null(), count, record)
        }?;
        Ok(made)
    }

    fn told_memset(&self, node: real::Node) -> Result<MemsetWork, Refused> {
        let mut set = CUDA_MEMSET_NODE_PARAMS {
            dst: 0,
            pitch: 0,
            value: 0,
            element_size: 0,
            width: 0,
            height: 0,
        };
        // SAFETY: `set` has room for the answer.
        unsafe { self.cuGraphMemsetNodeGetParams(node, &mut set) }?;
        Ok(MemsetWork {
            dst: set.dst,
            pitch: set.pitch as u64,
            value: set.value,
            element_size: set.element_size,
            width: set.width as u64,
            height: set.height as u64,
        })
    }

    fn copy_params(&self, node: real::Node) -> Result<CUDA_MEMCPY3D, Refused> {
        // SAFETY: plain data, for which zeros are valid.
        let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
        // SAFETY: `copy` has room for the answer.
        unsafe { self.cuGraphMemcpyNodeGetParams(node, &mut copy) }?;
        Ok(copy)
    }

    fn told_copy(&self, node: real::Node) -> Result<CopyBox, Failure> {
        let copy = self.copy_params(node)?;
        let end = |kind, host: u64, device, pitch: usize, height: usize| match kind {
            CU_MEMORYTYPE_HOST | CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => {
                Ok(BoxEnd::Pitched {
                    address: if kind == CU_MEMORYTYPE_HOST {
                        host
                    } else {
                        device
                    },
                    pitch_bytes: pitch as u64,
                    height: height as u64,
                })
            }
            _ => Err(Failure::unsupported(
                "the parameters of a captured copy of an array",
            )),
        };
        Ok(CopyBox {
            src: end(
                copy.src_memory_type,
                copy.src_host as u64,
                copy.src_device,
                copy.src_pitch,
                copy.src_height,
            )?,
            src_x: copy.src_x_in_bytes as u64,
            src_y: copy.src_y as u64,
            src_z: copy.src_z as u64,
            dst: end(
                copy.dst_memory_type,
                copy.dst_host as u64,
                copy.dst_device,
                copy.dst_pitch,
                copy.dst_height,
            )?,
            dst_x: copy.dst_x_in_bytes as u64,
            dst_y: copy.dst_y as u64,
            dst_z: copy.dst_z as u64,
            width: copy.width_in_bytes as u64,
            height: copy.height as u64,
            depth: copy.depth as u64,
        })
    }

    fn told_host(&self, node: real::Node) -> Result<CUDA_HOST_NODE_PARAMS, Refused> {
        let mut host = CUDA_HOST_NODE_PARAMS {
            func: None,
            user_data: std::ptr::null_mut(),
        };
        // SAFETY: `host` has room for the answer.
        unsafe { self.cuGraphHostNodeGetParams(node, &mut host) }?;
        Ok(host)
    }

    fn told_mem_ops(&self, node: real::Node) -> Result<Vec<u8>, Refused> {
        let mut ops = CUDA_BATCH_MEM_OP_NODE_PARAMS {
            ctx: CUcontext(0),
            count: 0,
            params: std::ptr::null_mut(),
            flags: 0,
        };
        // SAFETY: `ops` has room for the answer.
        unsafe { self.cuGraphBatchMemOpNodeGetParams(node, &mut ops) }?;
        if ops.params.is_null() {
            return Ok(Vec::new());
        }
        let len = ops.count as usize * size_of::<CUstreamBatchMemOpParams>();
        // SAFETY: the driver's own array of `count` records, valid until the node changes.
        Ok(unsafe { std::slice::from_raw_parts(ops.params.cast::<u8>(), len) }.to_vec())
    }

    /// Gives the nodes inside a child graph's node the work of another graph's nodes, one by one.
    fn graph_set_child(&self, node: real::Node, child: real::Graph) -> Result<(), Failure> {
        let own = self.graph_nodes(self.cuGraphChildGraphNodeGetGraph(node)?, false)?;
        let other = self.graph_nodes(child, false)?;
        let different = || wrong("a child graph of another shape");
        if own.len() != other.len() {
            return Err(different());
        }
        for (to, from) in own.into_iter().zip(other) {
            let kind = self.cuGraphNodeGetType(to)?;
            if kind != self.cuGraphNodeGetType(from)? {
                return Err(different());
            }
            // SAFETY: the driver's own records of a node that was checked when it was made.
            unsafe {
                match kind {
                    CU_GRAPH_NODE_TYPE_MEMCPY => {
                        self.cuGraphMemcpyNodeSetParams(to, &self.copy_params(from)?)?;
                    }
                    CU_GRAPH_NODE_TYPE_HOST => {
                        self.cuGraphHostNodeSetParams(to, &self.told_host(from)?)?;
                    }
                    CU_GRAPH_NODE_TYPE_EMPTY => {}
                    _ => {
                        return Err(Failure::unsupported(
                            "a child graph's node given another graph",
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
