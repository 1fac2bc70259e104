//! Events.

use std::sync::{Arc, atomic::Ordering};

use outboard_api::{
    CUresult,
    cuda::{CUevent, CUstream},
    enums::*,
};
use outboard_wire::messages;

use super::{Done, Out, stream::Reached, stream_capture::check_captures_unsafe};
use crate::{
    session::{Group, Numbered, Sink},
    state::{Driver, Event, HandleKind, StreamRef, driver},
    thread,
};

pub(crate) fn cuEventCreate(event: Out<'_, CUevent>, flags: u32) -> Done {
    let known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if event.is_null() || flags & !known != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if flags & CU_EVENT_INTERPROCESS != 0 && flags & CU_EVENT_DISABLE_TIMING == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let driver = driver()?;
    let context = driver.contexts.current()?;
    let handle = driver.handles.mint(HandleKind::Event);
    let create = messages::EventCreate {
        event: handle,
        flags,
    };
    let here = (&*thread::here(), context.handle.0 as u64);
    driver.submit_resting(here, Numbered::Work(None), &create, true)?;
    if flags & CU_EVENT_INTERPROCESS != 0 {
        // Not every device has interprocess events.
        driver.settle()?;
    }
    driver.streams.insert_event(handle, context.handle, flags);
    event.put(CUevent(handle as usize))
}

pub(crate) fn cuEventDestroy_v2(event: CUevent) -> Done {
    let driver = driver()?;
    let event = driver.streams.event(event)?;
    driver.streams.remove_event(&event);
    let destroy = messages::EventDestroy {
        event: event.handle,
    };
    driver.submit_resting_work(event.wire_context(), Numbered::Work(None), &destroy)
}

pub(crate) fn cuEventRecord(event: CUevent, stream: CUstream) -> Done {
    cuEventRecordWithFlags(event, stream, 0)
}

pub(crate) fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) -> Done {
    let driver = driver()?;
    if flags & !CU_EVENT_RECORD_EXTERNAL != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let stream = driver.work_stream(stream)?;
    let event = driver.streams.event(event)?;
    if event.context != stream.stream().context {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let external = flags & CU_EVENT_RECORD_EXTERNAL != 0;
    event.capture.store(
        if external {
            0
        } else {
            stream.stream().capture.load(Ordering::Acquire)
        },
        Ordering::Release,
    );
    if external && stream.is_capturing() {
        driver.graphs.records_event(&event);
    }
    driver.keep_pace(&stream)?;
    // The record is counted and its message numbered together, so that neither is ahead.
    let mut recorded = event.recorded.lock();
    // Only the time at which an event is recorded shows before the program asks about it.
    let rests = event.flags & CU_EVENT_DISABLE_TIMING != 0;
    let number = driver.submit_resting(
        (&thread::here(), stream.context()),
        stream.work(),
        &messages::EventRecord {
            event: event.handle,
            stream: stream.wire(),
            flags,
        },
        rests,
    )?;
    event.records.add();
    if event.is_shared() {
        // The record must reach the server before any message of the program to the other process
        // does.
        driver.settle()?;
    }
    *recorded = Some((stream.stream().clone(), number));
    let record = event.records.made();
    drop(recorded);
    if event.watched.load(Ordering::Acquire) && !external && !stream.is_capturing() {
        driver.subscribe(&event, record, &stream)?;
    }
    Ok(())
}

impl Driver {
    fn fence_event(&self, event: &Event) -> Result<Arc<Group>, CUresult> {
        let group = Group::new(1);
        let fence = messages::FenceEvent {
            event: event.handle,
        };
        let context = event.wire_context();
        self.session.ask(context, &fence, &group, Sink::Group)?;
        Ok(group)
    }

    /// Subscribes to the event's completion if the program has queried the event before, since it
    /// will again. It does not if the program ignored the completion of the last record.
    fn subscribe(&self, event: &Event, record: u64, stream: &StreamRef) -> Done {
        let mut asked = event.query.lock();
        if asked
            .as_ref()
            .is_some_and(|(about, _)| *about + 1 == record)
        {
            *asked = None;
            event.watched.store(false, Ordering::Release);
            return Ok(());
        }
        *asked = Some((record, self.fence_stream(stream)?));
        Ok(())
    }
}

pub(crate) fn cuEventQuery(event: CUevent) -> Done {
    let driver = driver()?;
    let known = driver.streams.event(event);
    // As in CUDA, in every mode of capture, before other events are refused.
    if let Ok(event) = &known {
        driver.refuse_captured_event(event)?;
    }
    check_captures_unsafe()?;
    let event = known?;
    event.settle();
    event.doubt();
    event.watched.store(true, Ordering::Release);
    driver.query(&Reached::of_event(&event), &event.query, || {
        driver.fence_event(&event)
    })
}

impl Driver {
    /// Waits until the last record of an event is reached.
    pub(super) fn wait_for_event(&self, event: &Event) -> Done {
        event.settle();
        event.doubt();
        let record = event.records.made();
        if !event.records.is_reached(record) {
            self.push_before_wait()?;
            event.watched.store(true, Ordering::Release);
            let subscribed = event.query.lock().clone();
            let group = match subscribed {
                Some((about, group)) if about == record => group,
                _ => self.fence_event(event)?,
            };
            self.session.wait(&group)?;
            event.reached(record);
        }
        self.session.take_fault(|| event.wire_context())
    }
}

pub(crate) fn cuEventSynchronize(event: CUevent) -> Done {
    let driver = driver()?;
    let event = driver.streams.event(event)?;
    driver.refuse_captured_event(&event)?;
    driver.wait_for_event(&event)
}

pub(crate) fn cuEventElapsedTime(milliseconds: Out<'_, f32>, start: CUevent, end: CUevent) -> Done {
    let driver = driver()?;
    let (start, end) = (driver.streams.event(start)?, driver.streams.event(end)?);
    let untimed = |flags: u32| flags & CU_EVENT_DISABLE_TIMING != 0;
    if milliseconds.is_null()
        || untimed(start.flags)
        || untimed(end.flags)
        || start.context != end.context
        || start.records.made() == 0
        || end.records.made() == 0
    {
        return Err(if milliseconds.is_null() {
            CUresult::CUDA_ERROR_INVALID_VALUE
        } else {
            CUresult::CUDA_ERROR_INVALID_HANDLE
        });
    }
    let elapsed = driver.session.call(
        start.wire_context(),
        &messages::EventElapsed {
            start: start.handle,
            end: end.handle,
        },
        |reply| reply.milliseconds,
    )?;
    milliseconds.put(elapsed)
}

pub(crate) fn cuEventElapsedTime_v2(
    milliseconds: Out<'_, f32>,
    start: CUevent,
    end: CUevent,
) -> Done {
    cuEventElapsedTime(milliseconds, start, end)
}
