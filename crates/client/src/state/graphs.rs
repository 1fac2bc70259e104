//! Graphs and their nodes: the nodes that the program has seen, and the parameters of those that it
//! created itself.

use std::{
    collections::hash_map::Entry,
    ffi::c_void,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{
        CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
        CUcontext, CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUkernel,
        CUstreamBatchMemOpParams,
    },
};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Driver, HandleKind, Kernel, streams::Event};
use outboard_wire::messages;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocParams {
    pub(crate) allocation_type: u32,
    pub(crate) handle_types: u32,
    pub(crate) location_type: u32,
    pub(crate) location: i32,
    /// The rest of `CUmemPoolProps`.
    pub(crate) pool: [u64; 9],
    pub(crate) access: *const c_void,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}

// SAFETY: the pointer is the program's. It is stored to be returned, and never followed.
unsafe impl Send for AllocParams {}
// SAFETY: no shared reference follows it either.
unsafe impl Sync for AllocParams {}

const _: () = assert!(size_of::<AllocParams>() == 120);

/// Parameters of a node, if the program gave them.
#[derive(Clone)]
pub(crate) enum NodeRecord {
    /// Captured, or of a kind without parameters.
    Unknown,
    Kernel(Arc<KernelRecord>),
    Memset(CUDA_MEMSET_NODE_PARAMS),
    Host(CUDA_HOST_NODE_PARAMS),
    /// If `pageable`, the server has a child graph in its place.
    Copy {
        copy: CUDA_MEMCPY3D,
        pageable: bool,
    },
    /// A node that records an event or waits for it.
    Event(CUevent),
    MemOps(Arc<MemOpsRecord>),
    Alloc(AllocParams),
    /// The graphs of a conditional node: programs have a pointer into this.
    Conditional(Arc<[CUgraph]>),
    /// Frees the memory at this address.
    Free(u64),
    /// A graph that became part of the node's.
    Moved(u64),
}

/// Memory operations of one node: programs that query them get a pointer into this.
pub(crate) struct MemOpsRecord {
    ops: Box<[CUstreamBatchMemOpParams]>,
    /// The context that the program named.
    pub(crate) named_context: CUcontext,
    context: u64,
    pub(crate) flags: u32,
}

// SAFETY: plain records; the pointers in them are never followed.
unsafe impl Send for MemOpsRecord {}
// SAFETY: shared references only read the records.
unsafe impl Sync for MemOpsRecord {}

impl MemOpsRecord {
    /// `context` is the context in the form of messages.
    pub(crate) fn new(
        ops: &[CUstreamBatchMemOpParams],
        named_context: CUcontext,
        context: u64,
        flags: u32,
    ) -> MemOpsRecord {
        MemOpsRecord {
            ops: ops.into(),
            named_context,
            context,
            flags,
        }
    }

    pub(crate) fn ops(&self) -> &[CUstreamBatchMemOpParams] {
        &self.ops
    }

    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = size_of_val(&*self.ops);
        // SAFETY: plain records of this many bytes without relevant padding.
        unsafe { std::slice::from_raw_parts(self.ops.as_ptr().cast(), bytes) }
    }
}

// SAFETY: a copy's pointers are the program's, passed on and never followed here; a host function's
// pointers are the program's, given for a call on another thread.
unsafe impl Send for NodeRecord {}

/// Parameters of a kernel node: programs that query them get pointers into this.
pub(crate) struct KernelRecord {
    /// The handle that the program used: a program that uses one kind of handle knows only that
    /// kind.
    pub(crate) func: CUfunction,
    pub(crate) kern: CUkernel,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    /// One pointer for each parameter, into `_params`.
    pointers: Box<[*mut c_void]>,
    _params: Box<[u8]>,
}

// SAFETY: the pointers lead into the record's own buffer, which is not written after its creation.
unsafe impl Send for KernelRecord {}
// SAFETY: shared references only read the buffer and the pointers into it.
unsafe impl Sync for KernelRecord {}

impl KernelRecord {
    /// `params` is packed in the layout of the kernel's parameter buffer.
    pub(crate) fn new(
        node: &CUDA_KERNEL_NODE_PARAMS,
        kernel: &Kernel,
        params: &[u8],
    ) -> KernelRecord {
        let mut buffer: Box<[u8]> = params.into();
        let slot = |(offset, size): &(u32, u32)| {
            buffer
                .get_mut(*offset as usize..(offset + size) as usize)
                .map(|p| p.as_mut_ptr().cast())
        };
        let pointers = kernel.params.iter().filter_map(slot).collect();
        KernelRecord {
            func: node.func,
            kern: node.kern,
            grid: [node.grid_dim_x, node.grid_dim_y, node.grid_dim_z],
            block: [node.block_dim_x, node.block_dim_y, node.block_dim_z],
            shared_bytes: node.shared_mem_bytes,
            pointers,
            _params: buffer,
        }
    }

    /// Returns `kernelParams`, valid as long as the record.
    pub(crate) fn pointers(&self) -> *mut *mut c_void {
        if self.pointers.is_empty() {
            std::ptr::null_mut()
        } else {
            self.pointers.as_ptr().cast_mut()
        }
    }
}

#[derive(Default)]
pub(crate) struct Graphs {
    known: Mutex<KnownNodes>,
    /// Events that some graph records.
    events: Mutex<Vec<Weak<Event>>>,
    /// Executable graphs that kernels may launch, by the server's own handle, which kernels
    /// receive.
    by_kernels: Mutex<FxHashMap<usize, u64>>,
    /// Some graph waits for events or words. Clones and updates are not tracked.
    any_waits: AtomicBool,
}

#[derive(Default)]
struct KnownNodes {
    nodes: FxHashMap<u64, (u64, NodeRecord)>,
    of_graph: FxHashMap<u64, Vec<u64>>,
    /// The graphs that graphs moved into.
    owners: FxHashMap<u64, u64>,
    /// Graphs that nodes have inside: bodies of conditions, and graphs of child graph nodes.
    inside: FxHashMap<u64, Vec<u64>>,
    /// All of these.
    parts: FxHashSet<u64>,
}

impl KnownNodes {
    /// Returns the graphs that are part of a node.
    fn inside(&self, node: u64) -> Vec<u64> {
        if let Some((_, NodeRecord::Moved(moved))) = self.nodes.get(&node) {
            return vec![*moved];
        }
        self.inside.get(&node).cloned().unwrap_or_default()
    }

    /// Removes a node; returns its graph, and the graphs that go with it.
    fn forget(&mut self, node: u64) -> Option<(u64, Vec<u64>)> {
        let inside = self.inside(node);
        let (graph, _) = self.nodes.remove(&node)?;
        for part in self.inside.remove(&node).into_iter().flatten() {
            self.parts.remove(&part);
        }
        Some((graph, inside))
    }
}

impl Graphs {
    /// Adds a node of a graph, created or returned to the program.
    pub(crate) fn learn(&self, graph: u64, node: u64, record: NodeRecord) {
        let mut known = self.known.lock();
        if known.nodes.insert(node, (graph, record)).is_none() {
            known.of_graph.entry(graph).or_default().push(node);
        }
    }

    /// Adds the nodes of a reply that are not known yet.
    pub(crate) fn learn_shown(&self, graph: u64, shown: impl IntoIterator<Item = u64>) {
        let mut known = self.known.lock();
        let KnownNodes {
            nodes, of_graph, ..
        } = &mut *known;
        for node in shown {
            if let Entry::Vacant(unknown) = nodes.entry(node) {
                unknown.insert((graph, NodeRecord::Unknown));
                of_graph.entry(graph).or_default().push(node);
            }
        }
    }

    pub(crate) fn graph_of(&self, node: u64) -> Result<u64, CUresult> {
        let known = self.known.lock();
        known
            .nodes
            .get(&node)
            .map(|(graph, _)| *graph)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn record(&self, node: u64) -> Result<NodeRecord, CUresult> {
        let known = self.known.lock();
        known
            .nodes
            .get(&node)
            .map(|(_, record)| record.clone())
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }

    /// Returns the nodes of a graph that were copies of pageable memory when they were created or
    /// last changed.
    pub(crate) fn pageable_nodes(&self, graph: u64) -> Vec<(u64, NodeRecord)> {
        let known = self.known.lock();
        let nodes = known.of_graph.get(&graph).into_iter().flatten();
        let records = nodes.filter_map(|node| Some((*node, known.nodes.get(node)?.1.clone())));
        records
            .filter(|(_, record)| matches!(record, NodeRecord::Copy { pageable: true, .. }))
            .collect()
    }

    /// Returns whether a graph has conditional nodes.
    pub(crate) fn has_conditions(&self, graph: u64) -> bool {
        let known = self.known.lock();
        let mut nodes = known.of_graph.get(&graph).into_iter().flatten();
        nodes.any(|node| {
            let record = known.nodes.get(node).map(|(_, record)| record);
            matches!(record, Some(NodeRecord::Conditional(_)))
        })
    }

    /// Records the handle by which kernels and the program know an executable graph.
    pub(crate) fn known_to_kernels(&self, handle: usize, exec: u64) {
        self.by_kernels.lock().insert(handle, exec);
    }

    /// Records that a graph became part of another, which it is destroyed with.
    pub(crate) fn moves(&self, graph: u64, owner: u64) {
        self.known.lock().owners.insert(graph, owner);
    }

    /// Returns the graph that a graph moved into.
    pub(crate) fn owner(&self, graph: u64) -> Option<u64> {
        self.known.lock().owners.get(&graph).copied()
    }

    /// Records a graph that a node has inside, and that is destroyed with the node.
    pub(crate) fn is_inside(&self, graph: u64, node: u64) {
        let mut known = self.known.lock();
        if !known.owners.contains_key(&graph) && known.parts.insert(graph) {
            known.inside.entry(node).or_default().push(graph);
        }
    }

    /// Returns whether a graph is part of another.
    fn is_part(&self, graph: u64) -> bool {
        let known = self.known.lock();
        known.owners.contains_key(&graph) || known.parts.contains(&graph)
    }

    /// Returns the graphs that are part of a node.
    fn parts_of_node(&self, node: u64) -> Vec<u64> {
        self.known.lock().inside(node)
    }

    /// Returns the graphs that are part of a graph's nodes.
    fn parts(&self, graph: u64) -> Vec<u64> {
        let known = self.known.lock();
        let nodes = known.of_graph.get(&graph).into_iter().flatten();
        nodes.flat_map(|node| known.inside(*node)).collect()
    }

    /// Removes a node, and returns the graphs that go with it.
    fn forget_node(&self, node: u64) -> Result<Vec<u64>, CUresult> {
        let mut known = self.known.lock();
        let (graph, inside) = known
            .forget(node)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if let Some(nodes) = known.of_graph.get_mut(&graph) {
            nodes.retain(|n| *n != node);
        }
        Ok(inside)
    }

    /// Removes a graph and its nodes, and returns the graphs that go with it.
    fn forget_graph(&self, graph: u64) -> Vec<u64> {
        let mut known = self.known.lock();
        known.owners.remove(&graph);
        let nodes = known.of_graph.remove(&graph).unwrap_or_default();
        let gone = nodes.into_iter().filter_map(|node| known.forget(node));
        gone.flat_map(|(_, inside)| inside).collect()
    }

    /// Records that launches of some graph will record this event.
    pub(crate) fn records_event(&self, event: &Arc<Event>) {
        let mut events = self.events.lock();
        events.retain(|e| e.strong_count() > 0);
        if !events.iter().any(|e| e.as_ptr() == Arc::as_ptr(event)) {
            events.push(Arc::downgrade(event));
        }
    }

    /// Notes that some graph waits for what other streams do.
    pub(crate) fn waits(&self) {
        self.any_waits.store(true, Ordering::Release);
    }

    /// Returns whether a launched graph may wait for what other streams do.
    pub(crate) fn may_wait(&self) -> bool {
        self.any_waits.load(Ordering::Acquire)
    }

    /// Marks every event that any graph records as recorded again. Clones, children and updates are
    /// not tracked, so this keeps an event from counting as done without a query.
    pub(crate) fn launched(&self) {
        for event in self.events.lock().iter().filter_map(Weak::upgrade) {
            *event.recorded.lock() = None;
            event.records.add();
        }
    }
}

/// Functions that generated stubs use, as for the other kinds of handle.
impl Driver {
    pub(crate) fn wire_graph(&self, graph: CUgraph) -> Result<u64, CUresult> {
        self.handles.check(HandleKind::Graph, graph.0 as u64)
    }

    pub(crate) fn retire_graph(&self, graph: CUgraph) -> Result<u64, CUresult> {
        let number = self.wire_graph(graph)?;
        if self.graphs.is_part(number) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if self.captures.any_into(number) {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        self.end_captures_into(self.graphs.parts(number));
        self.graph_gone(number)?;
        Ok(number)
    }

    /// Ends what is captured into parts of a graph that the program destroys. The driver allows it,
    /// and uses freed memory when the capture goes on: here its next call is refused.
    fn end_captures_into(&self, mut left: Vec<u64>) {
        if !self.captures.any() {
            return;
        }
        while let Some(graph) = left.pop() {
            for capture in self.captures.of_graph(graph) {
                capture.spoil();
                if capture.close() {
                    let _ = self.call(
                        &messages::CaptureEnd {
                            stream: capture.origin,
                            graph,
                        },
                        |_| (),
                    );
                }
            }
            left.extend(self.graphs.parts(graph));
        }
    }

    /// Forgets a graph that the server destroys, and those that are part of it.
    fn graph_gone(&self, graph: u64) -> Result<(), CUresult> {
        let mut left = vec![graph];
        while let Some(graph) = left.pop() {
            self.handles.retire(HandleKind::Graph, graph)?;
            left.extend(self.graphs.forget_graph(graph));
            self.user_objects.graph_gone(graph);
            self.graph_memory_gone(graph);
        }
        Ok(())
    }

    /// Returns the number of an executable graph, from its own handle or the one that kernels use.
    pub(crate) fn wire_graphexec(&self, exec: CUgraphExec) -> Result<u64, CUresult> {
        match self.handles.check(HandleKind::GraphExec, exec.0 as u64) {
            Ok(number) => Ok(number),
            Err(unknown) => self
                .graphs
                .by_kernels
                .lock()
                .get(&exec.0)
                .copied()
                .ok_or(unknown),
        }
    }

    pub(crate) fn retire_graphexec(&self, exec: CUgraphExec) -> Result<u64, CUresult> {
        let number = self.wire_graphexec(exec)?;
        self.handles.retire(HandleKind::GraphExec, number)?;
        self.graphs
            .by_kernels
            .lock()
            .retain(|_, known| *known != number);
        self.user_objects_of_exec_gone(number);
        self.graph_memory_exec_gone(number);
        Ok(number)
    }

    pub(crate) fn mint_graphexec(&self) -> u64 {
        self.handles.mint(HandleKind::GraphExec)
    }

    /// Returns the CUDA handle of a new executable graph.
    pub(crate) fn handle_graphexec(&self, number: u64) -> CUgraphExec {
        self.handles.learn(number);
        CUgraphExec(number as usize)
    }

    pub(crate) fn mint_graph(&self) -> u64 {
        self.handles.mint(HandleKind::Graph)
    }

    /// Returns the CUDA handle of a new graph.
    pub(crate) fn handle_graph(&self, number: u64) -> CUgraph {
        self.handles.learn(number);
        CUgraph(number as usize)
    }

    pub(crate) fn wire_node(&self, node: CUgraphNode) -> Result<u64, CUresult> {
        self.graphs.graph_of(node.0 as u64).map(|_| node.0 as u64)
    }

    pub(crate) fn retire_node(&self, node: CUgraphNode) -> Result<u64, CUresult> {
        if let NodeRecord::Alloc(_) | NodeRecord::Free(_) = self.graphs.record(node.0 as u64)? {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        self.end_captures_into(self.graphs.parts_of_node(node.0 as u64));
        for graph in self.graphs.forget_node(node.0 as u64)? {
            self.graph_gone(graph)?;
        }
        Ok(node.0 as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_takes_its_nodes_along() {
        let graphs = Graphs::default();
        graphs.learn(1, 10, NodeRecord::Unknown);
        graphs.learn_shown(1, [10, 11]);
        graphs.learn_shown(2, [20]);
        assert_eq!(graphs.graph_of(11), Ok(1));
        graphs.learn(1, 12, NodeRecord::Moved(3));
        graphs.moves(3, 1);
        assert_eq!(graphs.owner(3), Some(1));
        assert_eq!(graphs.forget_graph(1), [3]);
        assert_eq!(graphs.graph_of(10), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(graphs.graph_of(11), Err(CUresult::CUDA_ERROR_INVALID_VALUE));
        assert_eq!(graphs.graph_of(20), Ok(2));
        graphs.learn(2, 21, NodeRecord::Conditional([].into()));
        graphs.is_inside(4, 21);
        assert!(graphs.is_part(4) && !graphs.is_part(2));
        assert_eq!(graphs.forget_node(21), Ok(vec![4]));
        assert!(!graphs.is_part(4));
        assert_eq!(graphs.forget_node(20), Ok(Vec::new()));
        let again = graphs.forget_node(20).err();
        assert_eq!(again, Some(CUresult::CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn what_the_program_said_of_a_node_outlives_its_being_shown() {
        let graphs = Graphs::default();
        let memset = CUDA_MEMSET_NODE_PARAMS {
            dst: 64,
            pitch: 0,
            value: 3,
            element_size: 4,
            width: 8,
            height: 1,
        };
        graphs.learn(1, 10, NodeRecord::Memset(memset));
        graphs.learn_shown(1, [10]);
        assert!(
            matches!(graphs.record(10), Ok(NodeRecord::Memset(m)) if m.dst == 64 && m.value == 3)
        );
    }
}
