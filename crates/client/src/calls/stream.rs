//! Streams and waits.

use std::{
    ffi::c_void,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use outboard_api::{
    CUresult,
    cuda::{
        CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUevent, CUgreenCtx, CUhostFn,
        CUstream, CUstreamBatchMemOpParams, CUstreamCallback,
    },
    enums::*,
};
use outboard_wire::messages;
use parking_lot::Mutex;

use super::{Done, Out};
use crate::{
    session::{Group, Sink},
    state::{
        Awaited, Driver, Event, HandleKind, HostCall, StreamRef, current_context, driver,
        host_functions,
    },
    thread,
};

impl Driver {
    fn create_stream(&self, flags: u32, priority: i32) -> Result<CUstream, CUresult> {
        if flags & !CU_STREAM_NON_BLOCKING != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let context = self.contexts.current()?;
        let (least, greatest) = self.card(context.device)?.stream_priorities;
        let priority = priority.clamp(greatest.min(least), greatest.max(least));
        let handle = self.handles.mint(HandleKind::Stream);
        self.submit(&messages::StreamCreate {
            stream: handle,
            flags,
            priority,
        })?;
        self.streams.insert(handle, context.handle, flags, priority);
        Ok(CUstream(handle as usize))
    }

    /// Waits until a stream's work is done.
    pub(crate) fn synchronize_stream(&self, stream: &StreamRef) -> Done {
        self.refuse_captured(stream)?;
        // Before the mark: what used the memory that is free by then is waited for.
        let frees = self.pools_mark();
        let done = Reached::of(self, stream);
        let take_fault = || self.session.take_fault(|| done.context);
        if done.is_known(self) {
            return take_fault();
        }
        // A kernel may be waiting for a word that the program has written since.
        self.push_before_wait()?;
        if self.settle_taken(stream, &done)? {
            return take_fault();
        }
        match last_brought(stream, &done) {
            Some(copy) => {
                let waited = self.session.wait(&copy);
                // The copy's error is the session's, too: it is told once.
                take_fault()?;
                waited?;
            }
            None => {
                let awaited = Awaited::here(done.context, Some(stream.wire()));
                let group = self.fence_for(awaited, done.mark)?;
                self.session.wait(&group)?;
            }
        }
        done.learn();
        self.pools_waited_for_stream(stream, frees);
        take_fault()
    }

    /// Replaces a wait by a message if a stream's last work was copies to the device whose bytes
    /// are taken, after work that is known to be done. The program sees no difference: its other
    /// work runs after the copies. Returns whether it did.
    fn settle_taken(&self, stream: &StreamRef, reached: &Reached<'_>) -> Result<bool, CUresult> {
        let mark = reached.mark;
        let is_taken = stream.stream().taken.load(Ordering::Acquire) == mark;
        if !is_taken || self.session.is_sharing() || self.places_on_gpu() {
            return Ok(false);
        }
        let message = messages::CopySettled {
            stream: stream.wire(),
        };
        let number = self.submit_to_from(&thread::here(), stream, &message)?;
        // Work that another thread sent in between is not covered.
        let covered = if number == mark + 1 { number } else { mark };
        stream.progress().complete(covered);
        Ok(true)
    }

    /// Makes a copy to the device that takes its bytes. If it waits for no work, notes it, so that
    /// a wait for it can be spared.
    pub(super) fn taking(&self, stream: &StreamRef, copy: impl FnOnce() -> Done) -> Done {
        let before = self.session.progress.mark();
        let taken = &stream.stream().taken;
        let is_alone = taken.load(Ordering::Acquire) == before || self.is_quiet(stream);
        copy()?;
        // Only then was the copy one message, with none of another thread in between.
        if is_alone && stream.progress().mark() == before + 1 {
            taken.store(before + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Has a stream call a host function, which is forgotten if that cannot be sent.
    fn submit_function(&self, stream: &StreamRef, call: u64) -> Done {
        let message = messages::HostFunc {
            stream: stream.wire(),
            call,
        };
        self.submit_to(stream, &message)
            .inspect_err(|_| host_functions::forget(self.session, call))
    }

    /// Sends a fence after the work sent to a stream. It has a word of the board if the GPU can
    /// write one.
    pub(crate) fn fence_stream(&self, stream: &StreamRef) -> Result<Arc<Group>, CUresult> {
        self.fence_in(stream.context(), stream)
    }

    /// Sends a fence to a stream of another context.
    pub(crate) fn fence_in(
        &self,
        context: u64,
        stream: &StreamRef,
    ) -> Result<Arc<Group>, CUresult> {
        let group = Group::watching(self.word());
        let (slot, value) = group.word();
        let fence = messages::FenceStream {
            stream: stream.wire(),
            slot,
            value,
        };
        self.session.ask(context, &fence, &group, Sink::Group)?;
        Ok(group)
    }

    /// Returns whether a point is reached. The first query asks the server; later ones look at the
    /// replies that have arrived.
    pub(crate) fn query(
        &self,
        point: &Reached<'_>,
        asked: &Mutex<Option<(u64, Arc<Group>)>>,
        fence: impl FnOnce() -> Result<Arc<Group>, CUresult>,
    ) -> Done {
        if point.is_known(self) {
            return self.session.take_fault(|| point.context);
        }
        self.push_before_wait()?;
        let mut asked = asked.lock();
        let mut seen = false;
        match &*asked {
            Some((about, group)) if *about == point.mark => seen = self.session.look(group),
            _ => {
                *asked = Some((point.mark, fence()?));
                // The reply to the fence precedes the reply to this ping, so that even the first
                // answer is up to date.
                self.session
                    .call(point.context, &messages::Ping {}, |_| ())?;
            }
        }
        match &*asked {
            Some((_, group)) if seen || group.is_complete() => {
                let result = group.take();
                *asked = None;
                result?;
                point.learn();
                self.session.take_fault(|| point.context)
            }
            _ => Err(CUresult::CUDA_ERROR_NOT_READY),
        }
    }
}

/// Takes the copy to the host with which the work of a stream ends, if its reply tells when all of
/// it is done.
fn last_brought(stream: &StreamRef, reached: &Reached<'_>) -> Option<Arc<Group>> {
    let (number, group) = stream.stream().brought.lock().take()?;
    (number == reached.mark).then_some(group)
}

/// A point in the work sent, and the record of whether it is reached.
pub(crate) struct Reached<'p> {
    /// The marks up to this one are known to be reached.
    known: &'p AtomicU64,
    mark: u64,
    /// The context of the stream or event, as in messages.
    context: u64,
    is_legacy: bool,
}

impl<'p> Reached<'p> {
    /// All work of a stream. The legacy stream waits for all blocking streams: it is known to be
    /// done only if nothing at all has been sent since it was last waited for.
    fn of(driver: &Driver, stream: &'p StreamRef) -> Reached<'p> {
        let (own, is_legacy) = (stream.progress(), stream.is_legacy());
        let sent = match is_legacy {
            true => &driver.session.progress,
            false => own,
        };
        Reached {
            known: own.done(),
            mark: sent.mark(),
            context: stream.context(),
            is_legacy,
        }
    }

    /// The last record of an event.
    pub(crate) fn of_event(event: &'p Event) -> Reached<'p> {
        Reached {
            known: event.records.reached(),
            mark: event.records.made(),
            context: event.wire_context(),
            is_legacy: false,
        }
    }

    #[inline]
    fn is_known(&self, driver: &Driver) -> bool {
        self.known.load(Ordering::Acquire) >= self.mark
            || self.is_legacy && driver.session.progress.is_idle()
    }

    fn learn(&self) {
        self.known.fetch_max(self.mark, Ordering::AcqRel);
    }
}

pub(crate) fn cuStreamCreate(stream: Out<'_, CUstream>, flags: u32) -> Done {
    stream.check()?;
    stream.put(driver()?.create_stream(flags, 0)?)
}

pub(crate) fn cuStreamCreateWithPriority(
    stream: Out<'_, CUstream>,
    flags: u32,
    priority: i32,
) -> Done {
    stream.check()?;
    stream.put(driver()?.create_stream(flags, priority)?)
}

pub(crate) fn cuStreamDestroy_v2(stream: CUstream) -> Done {
    // The default streams cannot be destroyed. The driver refuses it even before `cuInit`.
    if [CUstream(0), CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&stream) {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let driver = driver()?;
    match &*driver.stream(stream)? {
        StreamRef::Legacy(_) => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        StreamRef::Own(own) => {
            driver.leave_capture(&StreamRef::Own(own.clone()));
            driver.streams.remove(own);
            let destroy = messages::StreamDestroy { stream: own.handle };
            driver.submit_in(own.context.0 as u64, &destroy)
        }
    }
}

pub(crate) fn cuStreamSynchronize(stream: CUstream) -> Done {
    let driver = driver()?;
    driver.synchronize_stream(&*driver.awaited_stream(stream)?)
}

pub(crate) fn cuStreamQuery(stream: CUstream) -> Done {
    let driver = driver()?;
    let stream = driver.awaited_stream(stream)?;
    driver.query(
        &Reached::of(driver, &stream),
        &stream.stream().query,
        || driver.fence_stream(&stream),
    )
}

pub(crate) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) -> Done {
    let driver = driver()?;
    if flags & !CU_EVENT_WAIT_EXTERNAL != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let stream = driver.work_stream(stream)?;
    match flags {
        // In a capture, its wait is an edge.
        0 => stream.stream().follows.store(true, Ordering::Release),
        _ => driver.follow_others(&stream),
    }
    let event = match driver.streams.event(event) {
        Ok(event) => event,
        Err(_) => return driver.wait_for_foreign(&stream, event),
    };
    driver.join_capture(&stream, &event, flags & CU_EVENT_WAIT_EXTERNAL != 0)?;
    driver.keep_pace(&stream)?;
    driver.submit_resting_work(
        stream.context(),
        stream.work(),
        &messages::StreamWaitEvent {
            stream: stream.wire(),
            event: event.handle,
            flags,
        },
    )?;
    match event.is_shared() {
        // The wait is for the present record, not for one that another process makes later.
        true => driver.settle(),
        false => Ok(()),
    }
}

pub(crate) fn cuStreamGetPriority(stream: CUstream, priority: Out<'_, i32>) -> Done {
    priority.put(driver()?.stream(stream)?.stream().priority)
}

pub(crate) fn cuStreamGetFlags(stream: CUstream, flags: Out<'_, u32>) -> Done {
    flags.put(driver()?.stream(stream)?.stream().flags)
}

pub(crate) fn cuStreamGetId(stream: CUstream, id: Out<'_, u64>) -> Done {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    // Each context has a legacy stream of its own.
    let number = match &*stream {
        StreamRef::Legacy(legacy) => driver.contexts.get(legacy.context)?.number,
        StreamRef::Own(own) => own.handle,
    };
    id.put(number)
}

pub(crate) fn cuStreamGetCtx(stream: CUstream, context: Out<'_, CUcontext>) -> Done {
    context.put(driver()?.stream(stream)?.stream().context)
}

pub(crate) fn cuStreamGetCtx_v2(
    stream: CUstream,
    context: Out<'_, CUcontext>,
    green: Out<'_, CUgreenCtx>,
) -> Done {
    green.put_optional(CUgreenCtx::NULL);
    cuStreamGetCtx(stream, context)
}

pub(crate) fn cuStreamGetDevice(stream: CUstream, device: Out<'_, CUdevice>) -> Done {
    let driver = driver()?;
    let context = driver.stream(stream)?.stream().context;
    device.put(driver.contexts.get(context)?.device)
}

const STREAM_ATTRIBUTE_BYTES: usize = 64;

pub(crate) unsafe fn cuStreamGetAttribute(
    stream: CUstream,
    attribute: u32,
    value: *mut c_void,
) -> Done {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    if value.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver.session.call(
        stream.context(),
        &messages::StreamGetAttribute {
            stream: stream.wire(),
            attribute,
        },
        |reply| {
            let len = reply.value.len().min(STREAM_ATTRIBUTE_BYTES);
            // SAFETY: a CUstreamAttrValue of the caller's, checked above.
            unsafe { std::ptr::copy_nonoverlapping(reply.value.as_ptr(), value.cast::<u8>(), len) };
        },
    )
}

pub(crate) unsafe fn cuStreamSetAttribute(
    stream: CUstream,
    attribute: u32,
    value: *const c_void,
) -> Done {
    let driver = driver()?;
    let stream = driver.stream(stream)?;
    if value.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: a CUstreamAttrValue of the caller's, checked above.
    let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), STREAM_ATTRIBUTE_BYTES) };
    let set = messages::StreamSetAttribute {
        stream: stream.wire(),
        attribute,
        value,
    };
    driver.submit_in(stream.context(), &set)
}

pub(crate) fn cuStreamCopyAttributes(dst: CUstream, src: CUstream) -> Done {
    let copied = [
        CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
        CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
    ];
    if dst == src {
        return driver()?.stream(dst).map(|_| ());
    }
    for attribute in copied {
        let mut value = [0u64; STREAM_ATTRIBUTE_BYTES / 8];
        // SAFETY: a record of the right size.
        unsafe {
            cuStreamGetAttribute(src, attribute, value.as_mut_ptr().cast())?;
            cuStreamSetAttribute(dst, attribute, value.as_ptr().cast())?;
        }
    }
    Ok(())
}

/// Operations of a batch for which the stream waits.
const MEM_OPS_WAIT: [u32; 2] = [
    CU_STREAM_MEM_OP_WAIT_VALUE_32,
    CU_STREAM_MEM_OP_WAIT_VALUE_64,
];

impl Driver {
    /// Notes that the stream waits for what other streams do, at each launch of the graph if it
    /// captures.
    pub(crate) fn follow_others(&self, stream: &StreamRef) {
        stream.stream().follows.store(true, Ordering::Release);
        if stream.is_capturing() {
            self.graphs.waits();
        }
    }
}

pub(crate) unsafe fn cuStreamBatchMemOp_v2(
    stream: CUstream,
    count: u32,
    ops: *mut CUstreamBatchMemOpParams,
    flags: u32,
) -> Done {
    /// The driver's own limit.
    const OPS_MAX: u32 = 256;
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    if ops.is_null() || count == 0 || count > OPS_MAX || flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: `count` records of the caller's.
    let records = unsafe { std::slice::from_raw_parts(ops, count as usize) };
    for op in records {
        driver.device_address(op.address)?;
    }
    // SAFETY: plain records without padding that matters.
    let bytes = unsafe { std::slice::from_raw_parts(ops.cast::<u8>(), size_of_val(records)) };
    let is_wait = |op: &_| MEM_OPS_WAIT.contains(op);
    if records.iter().any(|op| is_wait(&op.operation)) {
        driver.follow_others(&stream);
    }
    // A word lets work go that may read what the program wrote to mirrors before.
    if !records.iter().all(|op| is_wait(&op.operation)) {
        driver.push_visible()?;
    }
    driver.keep_pace(&stream)?;
    driver.submit_to(
        &stream,
        &messages::StreamMemOps {
            stream: stream.wire(),
            ops: bytes,
            flags,
        },
    )
}

pub(crate) unsafe fn cuLaunchHostFunc(
    stream: CUstream,
    function: CUhostFn,
    user_data: *mut c_void,
) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    if function.is_none() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver.push_visible()?;
    // A graph that captures the function runs it at each launch.
    let call = host_functions::register(
        driver.session,
        HostCall::Function {
            function,
            user_data,
        },
        stream.is_capturing(),
    )?;
    driver.submit_function(&stream, call)
}

pub(crate) unsafe fn cuStreamAddCallback(
    stream: CUstream,
    function: CUstreamCallback,
    user_data: *mut c_void,
    flags: u32,
) -> Done {
    let driver = driver()?;
    let resolved = driver.work_stream(stream)?;
    if function.is_none() || flags != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    driver.refuse_captured(&resolved)?;
    let call = host_functions::register(
        driver.session,
        HostCall::Callback {
            function,
            stream,
            user_data,
        },
        false,
    )?;
    driver.submit_function(&resolved, call)
}

pub(crate) fn cuStreamIsCapturing(stream: CUstream, status: Out<'_, u32>) -> Done {
    let driver = driver()?;
    let now = match current_context() {
        Err(_) if stream.is_null() => CU_STREAM_CAPTURE_STATUS_NONE,
        _ => driver.capture_status(&*driver.stream(stream)?)?,
    };
    status.put(now)
}
