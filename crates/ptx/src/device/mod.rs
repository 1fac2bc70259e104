//! The outside of a GPU: contexts, streams, events, copies and graphs over the engine that runs
//! kernels.
//!
//! ```text
//!  calls ──► Gpu ──► State: tasks and what each waits for ──► runners: kernels, long copies
//!      (never blocks)   streams, events, graphs,               short ones run where they
//!                       capture are dependencies only          become ready
//! ```
//!
//! No call blocks on device work. A wait is a [`Fence`], which the caller polls; host functions are
//! handed out by [`Gpu::take_host_calls`] and reported done by [`Gpu::host_func_done`]. An idle
//! device has no running thread and no timer.
//!
//! A fault ends its context, as on a GPU: work queued there is dropped, and every later call
//! returns the fault. Dropping the [`Gpu`] cancels all running work, endless kernels too.
//!
//! Locks, in order: the device's state, then the engine's lock of the memory map. Runners hold
//! neither while they wait for work, and only the second while they work.

mod activity;
mod by_kernel;
mod capture;
mod error;
mod event;
mod graph;
mod kernel;
mod launching;
mod map;
mod physical;
mod plan;
mod runner;
mod schedule;
mod stream;
#[cfg(test)]
mod tests;
mod weight;
mod work;

use std::{io, sync::Arc};

pub use self::{
    activity::{About, Done, Finished},
    by_kernel::BY_KERNELS,
    capture::{CaptureInfo, Early},
    error::{CaptureError, Cause, Error, Stuck},
    event::EventId,
    graph::{AT_BLOCK_START, Edge, Graph, GraphId, LAUNCH_COMPLETION, NodeId, PROGRAMMATIC},
    kernel::{Limits, Machine, ModuleKernel},
    physical::Physical,
    plan::{ExecId, UpdateError, UpdateFailure},
    schedule::HostCall,
    stream::{ContextId, StreamId, StreamKind},
    work::{
        Action, Body, Code, Conditional, ConditionalKind, Copy, Extent, Launch, Op, Rows, Running,
        Set, ValueOp,
    },
};
use self::{
    runner::Shared,
    schedule::{State, TaskId},
    work::Downloaded,
};
use crate::memory::Memory;

/// A software GPU.
pub struct Gpu {
    shared: Arc<Shared>,
    memory: Memory,
}

impl Gpu {
    pub fn new(memory: Memory) -> Gpu {
        Gpu {
            shared: Shared::new(memory.clone()),
            memory,
        }
    }

    /// Starts the first of the threads that run work. Without this call it is started when there is
    /// work, and the work never runs if the system gives no thread then.
    pub fn start(&self) -> io::Result<()> {
        self.shared.start()
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    // Contexts

    pub fn create_context(&self) -> ContextId {
        self.shared.with(State::create_context)
    }

    /// Destroys a context. Work submitted to it still runs.
    pub fn destroy_context(&self, context: ContextId) -> Result<(), Error> {
        self.shared.with(|s| s.destroy_context(context))
    }

    /// Fails if a fault has ended the context.
    pub fn check_context(&self, context: ContextId) -> Result<(), Error> {
        self.shared.with(|s| s.context(context).map(|_| ()))
    }

    /// Returns the null stream of the context.
    pub fn legacy_stream(&self, context: ContextId) -> Result<StreamId, Error> {
        self.shared.with(|s| s.context(context).map(|c| c.legacy))
    }

    // The memory map, which changes in the order of calls

    /// Maps zeroed memory at an address inside the window.
    pub fn map(&self, address: u64, bytes: u64) -> Result<(), Error> {
        self.shared.with(|s| s.map(address, bytes, None))
    }

    /// Maps a part of a physical allocation at an address inside the window. Offset and length are
    /// whole pages.
    pub fn map_physical(
        &self,
        address: u64,
        bytes: u64,
        physical: &Physical,
        offset: u64,
    ) -> Result<(), Error> {
        let page = crate::memory::PAGE_BYTES;
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= physical.bytes());
        if !fits || !offset.is_multiple_of(page) || !bytes.is_multiple_of(page) {
            return Err(Error::InvalidValue(format!(
                "{bytes} bytes at {offset} of an allocation of {}",
                physical.bytes()
            )));
        }
        self.shared
            .with(|s| s.map(address, bytes, Some((physical.clone(), offset))))
    }

    /// Makes the memory of the range at `address` shareable with other processes, and returns it;
    /// `None` while work is running. To be called once for a range, since it replaces the memory.
    pub fn share(&self, address: u64) -> Result<Option<Physical>, Error> {
        self.shared.with(|s| s.share(address))
    }

    /// Unmaps the range at `address` when all submitted work is done; returns its length.
    pub fn unmap(&self, address: u64) -> Result<u64, Error> {
        self.shared.with(|s| s.unmap(address))
    }

    /// Unmaps all ranges that fill `[address, address + bytes)`.
    pub fn unmap_all(&self, address: u64, bytes: u64) -> Result<(), Error> {
        self.shared.with(|s| s.unmap_all(address, bytes))
    }

    /// Lets device work use memory of the host at its own address.
    ///
    /// # Safety
    /// The memory must stay readable and writable until it is unregistered and everything that runs
    /// then is done (see [`fence_running`](Self::fence_running)).
    pub unsafe fn register_host(&self, address: u64, bytes: u64) -> Result<(), Error> {
        // SAFETY: the caller fulfils the same contract.
        self.shared
            .with(|s| unsafe { s.register_host(address, bytes) })
    }

    pub fn unregister_host(&self, address: u64) -> Result<u64, Error> {
        self.shared.with(|s| s.unregister_host(address))
    }

    /// Returns a fence after everything submitted so far, in all contexts; faults do not affect it.
    pub fn fence_all(&self) -> Fence {
        let tasks = self.shared.with(State::all_tails);
        self.fence(None, tasks)
    }

    /// Returns a fence after the work that runs now. It alone may still touch host memory that was
    /// unregistered, since later work looks for its memory when it begins.
    pub fn fence_running(&self) -> Fence {
        let tasks = self.shared.with(|s| s.running_tasks());
        self.fence(None, tasks)
    }

    // Streams

    pub fn create_stream(
        &self,
        context: ContextId,
        kind: StreamKind,
        priority: i32,
    ) -> Result<StreamId, Error> {
        if kind == StreamKind::Legacy {
            return Err(Error::InvalidValue("a context has one null stream".into()));
        }
        self.shared
            .with(|s| s.create_stream(context, kind, priority))
    }

    /// Destroys a stream. Its work still runs.
    pub fn destroy_stream(&self, stream: StreamId) -> Result<(), Error> {
        self.shared.with(|s| s.destroy_stream(stream))
    }

    /// Queues an operation, or captures it.
    pub fn submit(&self, stream: StreamId, op: Op) -> Result<(), Error> {
        self.shared.with(|s| s.submit(stream, op))
    }

    /// Queues a kernel, or captures it.
    pub fn launch(&self, stream: StreamId, launch: Launch, early: &Early) -> Result<(), Error> {
        self.shared.with(|s| s.launch(stream, launch, early))
    }

    /// Captures an event operation as a node of the graph, which every launch executes.
    pub fn submit_external(&self, stream: StreamId, op: Op) -> Result<(), Error> {
        self.shared.with(|s| s.submit_external(stream, op))
    }

    /// Queues a copy of `data` into memory.
    pub fn upload(
        &self,
        stream: StreamId,
        dst: Rows,
        extent: Extent,
        data: &[u8],
    ) -> Result<(), Error> {
        self.shared.with(|s| s.upload(stream, dst, extent, data))
    }

    /// Makes all work submitted from now on, to any stream of any context, wait for this stream's
    /// work so far.
    pub fn settle(&self, stream: StreamId) -> Result<(), Error> {
        self.shared.with(|s| s.settle_stream(stream))
    }

    /// Queues a copy out of memory. The fence carries the bytes, rows without padding.
    pub fn download(&self, stream: StreamId, src: Rows, extent: Extent) -> Result<Fence, Error> {
        let (context, task, cell) = self.shared.with(|s| s.download(stream, src, extent))?;
        let mut fence = self.fence(Some(context), vec![task]);
        fence.cell = Some(cell);
        Ok(fence)
    }

    /// Marks a point in a stream, which is reached when a copy submitted now would begin.
    pub fn mark(&self, stream: StreamId) -> Result<Fence, Error> {
        let (context, task) = self.shared.with(|s| s.mark(stream))?;
        Ok(self.fence(Some(context), vec![task]))
    }

    /// Returns the range that holds all of these bytes, as address and length, for use by something
    /// other than the GPU; `None` if there is none, or if its memory is not mapped yet.
    pub fn lasting(&self, address: u64, bytes: u64) -> Option<(u64, u64)> {
        self.shared.with(|s| s.lasting(address, bytes))
    }

    /// Notes that something other than the GPU has written these bytes.
    pub fn was_written(&self, address: u64, bytes: u64) -> Result<(), Error> {
        let (rows, extent) = (Rows::line(address), Extent::line(bytes));
        self.shared.with(|s| s.check_span(rows, extent))?;
        self.memory.mark_written(address, bytes);
        Ok(())
    }

    pub fn stream_fence(&self, stream: StreamId) -> Result<Fence, Error> {
        let (context, tasks) = self.shared.with(|s| s.stream_fence(stream))?;
        Ok(self.fence(Some(context), tasks))
    }

    /// Returns a fence after a stream's work so far; `None` if the stream is captured.
    pub fn work_fence(&self, stream: StreamId) -> Option<Fence> {
        let (context, tasks) = self.shared.with(|s| s.stream_work(stream))?;
        Some(self.fence(Some(context), tasks))
    }

    /// Returns a fence after everything submitted to a context so far. Captures under way go on: a
    /// program's wait that they forbid is the client's to refuse.
    pub fn context_fence(&self, context: ContextId) -> Result<Fence, Error> {
        let tasks = self.shared.with(|s| s.context_fence(context))?;
        Ok(self.fence(Some(context), tasks))
    }

    fn fence(&self, context: Option<ContextId>, tasks: Vec<TaskId>) -> Fence {
        Fence {
            shared: self.shared.clone(),
            context,
            tasks,
            cell: None,
            data: None,
        }
    }

    // Events

    pub fn create_event(&self, context: ContextId, timing: bool) -> Result<EventId, Error> {
        self.shared.with(|s| s.create_event(context, timing))
    }

    pub fn destroy_event(&self, event: EventId) -> Result<(), Error> {
        let kind = "event";
        let gone = self.shared.with(|s| s.events.remove(&event));
        gone.map(|_| ())
            .ok_or(Error::InvalidHandle { kind, id: event.0 })
    }

    pub fn event_fence(&self, event: EventId) -> Result<Fence, Error> {
        let (context, tasks) = self.shared.with(|s| s.event_fence(event))?;
        Ok(self.fence(Some(context), tasks))
    }

    /// Returns the time between two events, in milliseconds.
    pub fn elapsed_ms(&self, start: EventId, end: EventId) -> Result<f32, Error> {
        self.shared.with(|s| s.elapsed_ms(start, end))
    }

    // Host functions

    /// Appends the host functions that streams have reached since the last call.
    pub fn take_host_calls(&self, out: &mut Vec<HostCall>) {
        self.shared.with(|s| s.take_host_calls(out));
    }

    /// Notes that the host has run the function, so that its stream goes on.
    pub fn host_func_done(&self, call: u64) -> Result<(), Error> {
        self.shared.with(|s| s.host_done(call))
    }

    /// Whether host functions are queued or running.
    pub fn awaits_host_calls(&self) -> bool {
        self.shared.with(|s| s.has_host_tasks())
    }

    // Times of work

    /// Times work submitted from now on and keeps at most `max` records; `None` stops timing.
    pub fn keep_activity(&self, max: Option<usize>, with_events: bool) {
        self.shared.with(|s| s.keep_activity(max, with_events));
    }

    /// Sets the call number of work submitted from now on.
    pub fn of_call(&self, call: u32) {
        self.shared.with(|s| s.of_call(call));
    }

    /// Returns at most `max` records; the number dropped since the last call; and whether more are
    /// left.
    pub fn take_activity(&self, max: usize) -> (Vec<Done>, u64, bool) {
        self.shared.with(|s| s.take_activity(max))
    }

    // Capture

    /// Begins a capture into a new graph, or after nodes of an existing graph.
    pub fn begin_capture(
        &self,
        stream: StreamId,
        into: Option<(GraphId, &[(NodeId, Edge)])>,
    ) -> Result<(), Error> {
        self.shared.with(|s| s.begin_capture(stream, into))
    }

    pub fn end_capture(&self, stream: StreamId) -> Result<GraphId, Error> {
        self.shared.with(|s| s.end_capture(stream))
    }

    pub fn capture_info(&self, stream: StreamId) -> Result<CaptureInfo, Error> {
        self.shared.with(|s| s.capture_info(stream))
    }

    pub fn update_capture(
        &self,
        stream: StreamId,
        nodes: &[(NodeId, Edge)],
        replace: bool,
    ) -> Result<(), Error> {
        self.shared
            .with(|s| s.update_capture(stream, nodes, replace))
    }

    // Graphs

    pub fn create_graph(&self) -> Result<GraphId, Error> {
        self.shared.with(|s| s.create_graph(Graph::default()))
    }

    pub fn clone_graph(&self, graph: GraphId) -> Result<GraphId, Error> {
        self.shared.with(|s| s.clone_graph(graph))
    }

    pub fn destroy_graph(&self, graph: GraphId) -> Result<(), Error> {
        self.shared.with(|s| s.destroy_graph(graph))
    }

    /// Returns a copy of the graph as it is now, with the graphs inside it.
    pub fn graph(&self, graph: GraphId) -> Result<Graph, Error> {
        self.shared.with(|s| s.fixed_graph(graph, 1))
    }

    /// Returns the graph inside a child graph's node, which can be queried and extended.
    pub fn open_child(&self, graph: GraphId, node: NodeId) -> Result<GraphId, Error> {
        self.shared.with(|s| s.open_child(graph, node))
    }

    /// Returns the clone's node that was made from this one.
    pub fn find_in_clone(&self, node: NodeId, clone: GraphId) -> Result<Option<NodeId>, Error> {
        self.shared.with(|s| Ok(s.graph(clone)?.made_from(node)))
    }

    /// Adds a node that runs graphs under a condition. The graphs are made with it, empty.
    pub fn add_conditional(
        &self,
        graph: GraphId,
        conditional: (u64, ConditionalKind, usize),
        deps: &[NodeId],
    ) -> Result<(NodeId, Vec<GraphId>), Error> {
        self.shared
            .with(|s| s.add_conditional(graph, conditional, deps))
    }

    /// Sets a condition to a value whenever the graph begins to run.
    pub fn set_default(&self, graph: GraphId, word: u64, value: u32) -> Result<(), Error> {
        self.shared.with(|s| s.set_default(graph, word, value))
    }

    pub fn node_attribute(
        &self,
        graph: GraphId,
        node: NodeId,
        attribute: u32,
    ) -> Result<Option<[u8; 64]>, Error> {
        self.shared.with(|s| {
            Ok(s.graph(graph)?
                .node(node)?
                .attributes
                .get(&attribute)
                .copied())
        })
    }

    /// Stores a launch attribute of a kernel node; `None` removes all of them.
    pub fn set_node_attribute(
        &self,
        graph: GraphId,
        node: NodeId,
        attribute: Option<(u32, [u8; 64])>,
    ) -> Result<(), Error> {
        self.shared
            .with(|s| s.graph_mut(graph)?.set_attribute(node, attribute))
    }

    pub fn remove_edges(
        &self,
        graph: GraphId,
        edges: &[(NodeId, NodeId, Edge)],
    ) -> Result<(), Error> {
        self.shared
            .with(|s| s.graph_mut(graph)?.remove_edges(edges))
    }

    pub fn has_graph(&self, graph: GraphId) -> bool {
        self.shared.with(|s| s.graph(graph).is_ok())
    }

    pub fn add_node(&self, graph: GraphId, op: Op, deps: &[NodeId]) -> Result<NodeId, Error> {
        self.shared.with(|s| s.add_node(graph, op, deps))
    }

    /// Adds a node that runs the graph `child` and owns it from now on.
    pub fn add_moved(
        &self,
        graph: GraphId,
        child: GraphId,
        deps: &[NodeId],
    ) -> Result<NodeId, Error> {
        self.shared.with(|s| s.add_moved(graph, child, deps))
    }

    pub fn set_node(&self, graph: GraphId, node: NodeId, op: Op) -> Result<(), Error> {
        self.shared.with(|s| s.set_node(graph, node, op))
    }

    pub fn node_op(&self, graph: GraphId, node: NodeId) -> Result<Op, Error> {
        self.shared
            .with(|s| Ok(s.graph(graph)?.node(node)?.op.clone()))
    }

    pub fn remove_node(&self, graph: GraphId, node: NodeId) -> Result<(), Error> {
        self.shared.with(|s| s.remove_node(graph, node))
    }

    pub fn add_edges(&self, graph: GraphId, edges: &[(NodeId, NodeId, Edge)]) -> Result<(), Error> {
        self.shared.with(|s| s.add_edges(graph, edges))
    }

    pub fn neighbours(
        &self,
        graph: GraphId,
        node: NodeId,
        dependents: bool,
    ) -> Result<Vec<(NodeId, Edge)>, Error> {
        self.shared.with(|s| s.neighbours(graph, node, dependents))
    }

    pub fn instantiate(
        &self,
        context: ContextId,
        graph: GraphId,
        flags: u64,
    ) -> Result<ExecId, Error> {
        self.shared.with(|s| s.instantiate(context, graph, flags))
    }

    pub fn exec_flags(&self, exec: ExecId) -> Result<u64, Error> {
        self.shared.with(|s| s.exec(exec).map(|e| e.flags))
    }

    pub fn destroy_exec(&self, exec: ExecId) -> Result<(), Error> {
        self.shared.with(|s| s.destroy_exec(exec))
    }

    pub fn launch_graph(&self, exec: ExecId, stream: StreamId) -> Result<(), Error> {
        self.shared.with(|s| s.launch_graph(exec, stream))
    }

    pub fn update_exec(
        &self,
        exec: ExecId,
        graph: GraphId,
    ) -> Result<Result<(), UpdateFailure>, Error> {
        self.shared.with(|s| s.update_exec(exec, graph))
    }

    pub fn set_exec_node(&self, exec: ExecId, node: NodeId, op: Op) -> Result<(), Error> {
        self.shared.with(|s| s.set_exec_node(exec, node, op))
    }

    pub fn enable_exec_node(&self, exec: ExecId, node: NodeId, enabled: bool) -> Result<(), Error> {
        self.shared
            .with(|s| s.enable_exec_node(exec, node, enabled))
    }

    pub fn exec_node_enabled(&self, exec: ExecId, node: NodeId) -> Result<bool, Error> {
        self.shared.with(|s| s.exec_node_enabled(exec, node))
    }

    /// Whether nothing is queued or running.
    pub fn is_idle(&self) -> bool {
        self.shared.with(|s| !s.has_tasks())
    }
}

impl Gpu {
    /// Cancels everything and accepts no more work; afterwards nothing touches memory. `drop` does
    /// the same.
    pub fn stop(&self) {
        self.shared.stop();
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A point in the device's work.
pub struct Fence {
    shared: Arc<Shared>,
    context: Option<ContextId>,
    tasks: Vec<TaskId>,
    cell: Option<Arc<Downloaded>>,
    data: Option<Vec<u8>>,
}

impl Fence {
    /// Whether the point is reached. An error means that a fault ended the context first. Never
    /// blocks.
    pub fn ready(&mut self) -> Result<bool, Error> {
        if self.data.is_some() {
            return Ok(true);
        }
        let (tasks, context) = (&mut self.tasks, self.context);
        let (reached, stuck) = self.shared.with(|state| {
            tasks.retain(|task| state.is_live(*task));
            let stuck = context.and_then(|c| state.contexts.get(&c)?.stuck.clone());
            (tasks.is_empty(), stuck)
        });
        // Checked after the tasks, so that bytes arriving between the two checks are not missed.
        // Bytes fetched before a fault are valid.
        if let Some(cell) = &self.cell {
            self.data = cell.0.lock().take();
            if self.data.is_some() {
                return Ok(true);
            }
        }
        match stuck {
            Some(stuck) => Err(Error::Stuck(stuck)),
            None if reached && self.cell.is_some() => {
                Err(Error::IllegalState("the copy was dropped"))
            }
            None => Ok(reached),
        }
    }

    /// Returns the bytes of a download, once ready.
    pub fn data(&self) -> Option<&[u8]> {
        self.data.as_deref()
    }
}
