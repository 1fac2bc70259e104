//! Contexts and streams: which task waits for which.
//!
//! The legacy stream and the blocking streams of its context wait for each other; non-blocking
//! streams have only their own order.

use std::sync::Arc;

use super::{
    capture::Joined,
    error::{CaptureError, Error, Stuck},
    event::EventId,
    plan::ExecId,
    schedule::{State, TaskId},
    work::{Body, Downloaded, Extent, Op, Rows, Work},
};

/// Streams of one device, at most.
pub(super) const STREAMS_MAX: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(pub(super) u64);

impl ContextId {
    pub fn number(self) -> u64 {
        self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(super) u64);

impl StreamId {
    pub fn number(self) -> u64 {
        self.0
    }
}

pub(super) struct Context {
    pub(super) legacy: StreamId,
    streams: Vec<StreamId>,
    /// Last tasks of streams that were destroyed before the tasks were done.
    orphans: Vec<TaskId>,
    pub(super) stuck: Option<Stuck>,
    /// Destroyed; removed when its last task is done.
    pub(super) closing: bool,
    pub(super) tasks: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// The null stream of a context.
    Legacy,
    Blocking,
    NonBlocking,
}

pub(super) struct Stream {
    pub(super) context: ContextId,
    kind: StreamKind,
    pub(super) priority: i32,
    last: Option<TaskId>,
    pub(super) joined: Option<Joined>,
}

impl State {
    pub(super) fn create_context(&mut self) -> ContextId {
        let id = ContextId(self.fresh());
        let legacy = StreamId(self.fresh());
        self.contexts.insert(
            id,
            Context {
                legacy,
                streams: vec![legacy],
                orphans: Vec::new(),
                stuck: None,
                closing: false,
                tasks: 0,
            },
        );
        self.streams
            .insert(legacy, Stream::new(id, StreamKind::Legacy, 0));
        id
    }

    /// Returns a usable context: it exists, and no fault has ended it.
    pub(super) fn context(&self, id: ContextId) -> Result<&Context, Error> {
        let context = self.contexts.get(&id).filter(|c| !c.closing);
        let context = context.ok_or(Error::InvalidHandle {
            kind: "context",
            id: id.0,
        })?;
        match &context.stuck {
            Some(stuck) => Err(Error::Stuck(stuck.clone())),
            None => Ok(context),
        }
    }

    /// Destroys a context: work submitted to it still runs, and no more is accepted.
    pub(super) fn destroy_context(&mut self, id: ContextId) -> Result<(), Error> {
        let context = self.contexts.get_mut(&id).filter(|c| !c.closing);
        let context = context.ok_or(Error::InvalidHandle {
            kind: "context",
            id: id.0,
        })?;
        context.closing = true;
        let idle = context.tasks == 0;
        let streams = std::mem::take(&mut context.streams);
        for stream in streams {
            self.drop_stream(stream);
        }
        self.events.retain(|_, event| event.context != id);
        self.execs.retain(|_, exec| exec.context != id);
        if idle {
            self.contexts.remove(&id);
        }
        Ok(())
    }

    pub(super) fn create_stream(
        &mut self,
        context: ContextId,
        kind: StreamKind,
        priority: i32,
    ) -> Result<StreamId, Error> {
        self.context(context)?;
        if self.streams.len() >= STREAMS_MAX {
            return Err(Error::Unsupported(format!(
                "more than {STREAMS_MAX} streams"
            )));
        }
        let id = StreamId(self.fresh());
        self.streams
            .insert(id, Stream::new(context, kind, priority));
        if let Some(context) = self.contexts.get_mut(&context) {
            context.streams.push(id);
        }
        Ok(id)
    }

    /// Destroys a stream. Its work still runs.
    pub(super) fn destroy_stream(&mut self, id: StreamId) -> Result<(), Error> {
        let stream = self.any_stream(id)?;
        if stream.kind == StreamKind::Legacy {
            return Err(Error::InvalidValue(
                "the null stream cannot be destroyed".into(),
            ));
        }
        let context = stream.context;
        if let Some(context) = self.contexts.get_mut(&context) {
            context.streams.retain(|s| *s != id);
        }
        self.drop_stream(id);
        Ok(())
    }

    fn drop_stream(&mut self, id: StreamId) {
        let Some(stream) = self.streams.remove(&id) else {
            return;
        };
        if let Some(joined) = stream.joined {
            self.leave_capture(id, joined);
        }
        let last = stream.last.filter(|task| self.is_live(*task));
        if let (Some(task), Some(context)) = (last, self.contexts.get_mut(&stream.context)) {
            context.orphans.push(task);
        }
    }

    fn any_stream(&self, id: StreamId) -> Result<&Stream, Error> {
        self.streams.get(&id).ok_or(Error::InvalidHandle {
            kind: "stream",
            id: id.0,
        })
    }

    /// Returns a usable stream.
    pub(super) fn stream(&self, id: StreamId) -> Result<&Stream, Error> {
        let stream = self.any_stream(id)?;
        self.context(stream.context)?;
        Ok(stream)
    }

    /// Returns the tasks that the next task of a stream depends on.
    fn stream_deps(&self, stream: &Stream) -> Vec<TaskId> {
        let mut deps: Vec<TaskId> = self.barrier.into_iter().chain(stream.last).collect();
        deps.extend(self.settled.iter().map(|(_, task)| *task));
        let Some(context) = self.contexts.get(&stream.context) else {
            return deps;
        };
        match stream.kind {
            StreamKind::Legacy => {
                let blocking = context
                    .streams
                    .iter()
                    .filter_map(|id| self.streams.get(id))
                    .filter(|s| s.kind == StreamKind::Blocking);
                deps.extend(blocking.filter_map(|s| s.last));
                deps.extend(&context.orphans);
            }
            StreamKind::Blocking => {
                deps.extend(self.streams.get(&context.legacy).and_then(|s| s.last))
            }
            StreamKind::NonBlocking => {}
        }
        deps.retain(|task| self.is_live(*task));
        deps
    }

    fn set_last(&mut self, id: StreamId, task: TaskId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.last = Some(task);
        }
    }

    /// Submits an operation to a stream; a capturing stream adds it to its graph as a node.
    pub(super) fn submit(&mut self, id: StreamId, op: Op) -> Result<(), Error> {
        let captures = self.stream(id)?.joined.is_some();
        // A capture accepts a memset of any address, as the driver does; the address is checked
        // again when it runs.
        if !(captures && matches!(op, Op::Set(_))) {
            self.check(&op)?;
        }
        if captures {
            return self.capture(id, op);
        }
        if let Op::WaitEvent(event) = op
            && self.fork(id, event)?
        {
            return Ok(());
        }
        self.check_implicit(id)?;
        self.check_room(1)?;
        let stream = self.stream(id)?;
        let (context, priority) = (stream.context, stream.priority);
        let deps = self.stream_deps(stream);
        self.activity.now.stream = Some(id);
        let task = self.start(context, priority, deps, &op)?;
        self.set_last(id, task);
        Ok(())
    }

    /// Starts an operation after `deps`.
    pub(super) fn start(
        &mut self,
        context: ContextId,
        priority: i32,
        mut deps: Vec<TaskId>,
        op: &Op,
    ) -> Result<TaskId, Error> {
        let work = match op {
            Op::Launch(launch) => Work::Launch(launch.clone(), self.run_now.clone()),
            Op::Copy(copy) => Work::Copy(*copy),
            Op::Set(set) => Work::Set(*set),
            Op::Value(op) => Work::Value(*op),
            Op::Host(call) => Work::Host(*call),
            Op::Empty => Work::Nothing,
            Op::RecordEvent(event) => return self.record(context, priority, &deps, *event),
            Op::WaitEvent(event) => {
                deps.extend(self.event_task(*event)?);
                Work::Nothing
            }
            Op::Batch(ops) => {
                let mut last = self.add(Some(context), priority, &deps, Work::Nothing);
                for op in ops.iter() {
                    last = self.add(Some(context), priority, &[last], Work::Value(*op));
                }
                return Ok(last);
            }
            Op::Child(_) | Op::Conditional(_) => {
                return Err(Error::Unsupported("a graph outside a graph".into()));
            }
        };
        Ok(self.add(Some(context), priority, &deps, work))
    }

    /// Launches an executable graph (`cuGraphLaunch`).
    pub(super) fn launch_graph(&mut self, exec: ExecId, id: StreamId) -> Result<(), Error> {
        let stream = self.stream(id)?;
        if stream.joined.is_some() {
            let graph = &self.exec(exec)?.graph;
            self.check_copies(graph, 1)?;
            let graph = graph.clone();
            return self.capture(id, Op::Child(Body::Fixed(Box::new(graph))));
        }
        self.check_implicit(id)?;
        let stream = self.stream(id)?;
        let (context, priority) = (stream.context, stream.priority);
        let deps = self.stream_deps(stream);
        self.activity.now.stream = Some(id);
        let task = self.start_exec((context, priority), deps, exec)?;
        self.set_last(id, task);
        Ok(())
    }

    /// Makes all work submitted from now on, to any stream of any context, wait for this stream's
    /// work so far. The last task stands for all of it, because a stream's tasks follow one
    /// another.
    pub(super) fn settle_stream(&mut self, id: StreamId) -> Result<(), Error> {
        let stream = self.stream(id)?;
        if stream.joined.is_some() {
            return Ok(());
        }
        let last = stream.last.filter(|task| self.is_live(*task));
        self.settled.retain(|(stream, _)| *stream != id);
        self.settled.extend(last.map(|task| (id, task)));
        Ok(())
    }

    /// Copies bytes into memory, in the stream's order.
    pub(super) fn upload(
        &mut self,
        id: StreamId,
        dst: Rows,
        extent: Extent,
        data: &[u8],
    ) -> Result<(), Error> {
        if extent.bytes() != Some(data.len() as u64) {
            return Err(Error::InvalidValue(format!(
                "{} bytes for {extent}",
                data.len()
            )));
        }
        self.check_span(dst, extent)?;
        let (context, priority, deps) = self.transfer(id)?;
        self.activity.now.stream = Some(id);
        let work = Work::Upload(dst, extent, data.to_vec());
        let task = self.add(Some(context), priority, &deps, work);
        self.set_last(id, task);
        Ok(())
    }

    /// Copies bytes out of memory, in the stream's order.
    pub(super) fn download(
        &mut self,
        id: StreamId,
        src: Rows,
        extent: Extent,
    ) -> Result<(ContextId, TaskId, Arc<Downloaded>), Error> {
        self.check_span(src, extent)?;
        let (context, priority, deps) = self.transfer(id)?;
        self.activity.now.stream = Some(id);
        let cell = Arc::new(Downloaded::default());
        let work = Work::Download(src, extent, cell.clone());
        let task = self.add(Some(context), priority, &deps, work);
        self.set_last(id, task);
        Ok((context, task, cell))
    }

    /// Adds a task that is reached when a copy submitted now would begin.
    pub(super) fn mark(&mut self, id: StreamId) -> Result<(ContextId, TaskId), Error> {
        let (context, priority, deps) = self.transfer(id)?;
        let task = self.add(Some(context), priority, &deps, Work::Nothing);
        self.set_last(id, task);
        Ok((context, task))
    }

    /// Prepares a copy between the device and host memory that the device does not see. Such a copy
    /// cannot be repeated, and so cannot be captured.
    fn transfer(&mut self, id: StreamId) -> Result<(ContextId, i32, Vec<TaskId>), Error> {
        let stream = self.stream(id)?;
        if stream.joined.is_some() {
            self.invalidate_capture_of(id);
            return Err(CaptureError::Unsupported.into());
        }
        self.check_implicit(id)?;
        self.check_room(1)?;
        let stream = self.stream(id)?;
        Ok((stream.context, stream.priority, self.stream_deps(stream)))
    }

    /// Refuses work in the legacy stream while a blocking stream captures, because the work would
    /// wait for that stream.
    fn check_implicit(&mut self, id: StreamId) -> Result<(), Error> {
        let stream = self.stream(id)?;
        if stream.kind != StreamKind::Legacy || self.captures.is_empty() {
            return Ok(());
        }
        let capturing: Vec<StreamId> = self
            .context(stream.context)?
            .streams
            .iter()
            .copied()
            .filter(|id| {
                let stream = self.streams.get(id);
                stream.is_some_and(|s| s.kind == StreamKind::Blocking && s.joined.is_some())
            })
            .collect();
        for stream in &capturing {
            self.invalidate_capture_of(*stream);
        }
        if capturing.is_empty() {
            Ok(())
        } else {
            Err(CaptureError::Implicit.into())
        }
    }

    /// Returns the tasks that a synchronisation with the stream waits for.
    pub(super) fn stream_fence(&mut self, id: StreamId) -> Result<(ContextId, Vec<TaskId>), Error> {
        let stream = self.stream(id)?;
        if stream.joined.is_some() {
            self.invalidate_capture_of(id);
            return Err(CaptureError::Unsupported.into());
        }
        self.check_implicit(id)?;
        let stream = self.stream(id)?;
        Ok((stream.context, self.work_of(stream)))
    }

    /// Returns the work of a stream, unless it is captured.
    pub(super) fn stream_work(&self, id: StreamId) -> Option<(ContextId, Vec<TaskId>)> {
        let stream = self.stream(id).ok()?;
        let is_captured = stream.joined.is_some();
        (!is_captured).then(|| (stream.context, self.work_of(stream)))
    }

    fn work_of(&self, stream: &Stream) -> Vec<TaskId> {
        match stream.kind {
            StreamKind::Legacy => self.stream_deps(stream),
            _ => stream.last.into_iter().collect(),
        }
    }

    pub(super) fn event_fence(&mut self, id: EventId) -> Result<(ContextId, Vec<TaskId>), Error> {
        let event = self.event(id)?;
        let context = event.context;
        self.context(context)?;
        if let Some((capture, _)) = event.captured {
            self.invalidate(capture);
            return Err(CaptureError::CapturedEvent.into());
        }
        Ok((context, self.event_task(id)?.into_iter().collect()))
    }

    /// Returns the tasks that a synchronisation with the whole context waits for.
    pub(super) fn context_fence(&mut self, id: ContextId) -> Result<Vec<TaskId>, Error> {
        self.context(id)?;
        let mut tasks = Vec::new();
        self.tails(id, &mut tasks);
        Ok(tasks)
    }

    /// Returns the last tasks of all streams of all contexts: when they are done, all work is done.
    pub(super) fn all_tails(&mut self) -> Vec<TaskId> {
        let mut tails: Vec<TaskId> = self.barrier.into_iter().collect();
        let contexts: Vec<ContextId> = self.contexts.keys().copied().collect();
        for context in contexts {
            self.tails(context, &mut tails);
        }
        tails
    }

    fn tails(&mut self, id: ContextId, out: &mut Vec<TaskId>) {
        let Some(mut orphans) = self
            .contexts
            .get_mut(&id)
            .map(|c| std::mem::take(&mut c.orphans))
        else {
            return;
        };
        orphans.retain(|task| self.is_live(*task));
        if let Some(context) = self.contexts.get_mut(&id) {
            out.extend(&orphans);
            context.orphans = orphans;
        }
        let Some(context) = self.contexts.get(&id) else {
            return;
        };
        let lasts = context
            .streams
            .iter()
            .filter_map(|id| self.streams.get(id)?.last);
        out.extend(lasts.filter(|task| self.is_live(*task)));
    }
}

impl Stream {
    fn new(context: ContextId, kind: StreamKind, priority: i32) -> Stream {
        Stream {
            context,
            kind,
            priority,
            last: None,
            joined: None,
        }
    }

    pub(super) fn is_legacy(&self) -> bool {
        self.kind == StreamKind::Legacy
    }

    pub(super) fn is_blocking(&self) -> bool {
        self.kind == StreamKind::Blocking
    }
}
