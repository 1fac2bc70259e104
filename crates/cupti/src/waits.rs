//! Records of waits and events: calls of the program, with the numbers of their streams.
//!
//! A wait lasts as long as the program's call, whatever the server does for it, so its times are
//! the call's.

use std::collections::VecDeque;

use outboard_api::{
    CUresult,
    activity::DriverCall,
    cupti_records::{CUDA_EVENT, CudaEvent, SYNCHRONIZATION, Synchronization},
};
use parking_lot::Mutex;

use crate::{
    buffers,
    call_stack::Frame,
    callbacks::word,
    clock, driver,
    known::What,
    objects::{self, Event},
    wanted,
};

/// `CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_*`.
const EVENT_SYNCHRONIZE: u32 = 1;
const STREAM_WAIT_EVENT: u32 = 2;
const STREAM_SYNCHRONIZE: u32 = 3;
const CONTEXT_SYNCHRONIZE: u32 = 4;
/// `CUPTI_SYNCHRONIZATION_INVALID_VALUE`: the field does not apply.
const NONE: u32 = u32::MAX;
/// Most records of events that wait for the GPU's time.
const UNPASSED_MAX: usize = 1 << 16;

static UNPASSED: Mutex<VecDeque<CudaEvent>> = Mutex::new(VecDeque::new());

/// Writes the record of a call that has ended, if it waits or records an event.
///
/// # Safety
/// `call` is libcuda's record of a call.
pub(crate) unsafe fn ended(what: What, call: &DriverCall, frame: &Frame) {
    // SAFETY: the caller's promise; each call below has the parameters that are read.
    let at = |place| unsafe { word(call, place) };
    match what {
        What::StreamDestroy => objects::forget_stream(at(0)),
        What::EventDestroy => objects::forget_event(at(0)),
        _ => {}
    }
    let waits = wanted::wants(SYNCHRONIZATION);
    // Kineto enables waits only, and reads from events' records which stream each wait is for.
    let events = waits || wanted::wants(CUDA_EVENT);
    let wait = |kind, context, stream, event| write_wait(call, frame, kind, context, stream, event);
    match what {
        What::EventRecord if events && call.result == CUresult::CUDA_SUCCESS => {
            write_event(call, frame, at(1), objects::event(at(0), true));
        }
        What::EventSynchronize if waits => {
            wait(EVENT_SYNCHRONIZE, call.context as usize, None, Some(at(0)));
        }
        What::StreamWaitEvent if waits => {
            let context = call.context as usize;
            wait(STREAM_WAIT_EVENT, context, Some(at(0)), Some(at(1)));
        }
        What::StreamSynchronize if waits => {
            wait(STREAM_SYNCHRONIZE, call.context as usize, Some(at(0)), None);
        }
        What::ContextSynchronize if waits => {
            wait(CONTEXT_SYNCHRONIZE, call.context as usize, None, None);
        }
        What::GivenContextSynchronize if waits => {
            wait(CONTEXT_SYNCHRONIZE, at(0), None, None);
        }
        _ => {}
    }
}

fn write_wait(
    call: &DriverCall,
    frame: &Frame,
    kind: u32,
    context: usize,
    stream: Option<usize>,
    event: Option<usize>,
) {
    // Taken before the server is asked for numbers.
    let end = clock::program();
    let (context, stream) = numbers(context, stream);
    let event = event.map(|event| objects::event(event, false));
    buffers::write(&Synchronization {
        kind: SYNCHRONIZATION,
        type_: kind,
        start: frame.start,
        end,
        correlationId: frame.call,
        contextId: context,
        streamId: stream,
        cudaEventId: event.map_or(NONE, |event| event.number),
        cudaEventSyncId: event.map_or(NONE.into(), |event| event.record),
        returnValue: call.result.0,
        pad: 0,
    });
}

fn write_event(call: &DriverCall, frame: &Frame, stream: usize, event: Event) {
    let (context, stream) = numbers(call.context as usize, Some(stream));
    let record = CudaEvent {
        kind: CUDA_EVENT,
        correlationId: frame.call,
        contextId: context,
        streamId: stream,
        eventId: event.number,
        pad: 0,
        deviceId: driver::device(call.context as usize).unwrap_or(0),
        pad2: 0,
        reserved0: 0,
        deviceTimestamp: 0,
        cudaEventSyncId: event.record,
    };
    match wanted::are_events_timed() {
        true => keep(record),
        false => buffers::write(&record),
    }
}

/// Keeps a record until the server reports when the GPU passed its event; the oldest goes if there
/// are too many.
fn keep(record: CudaEvent) {
    let mut kept = UNPASSED.lock();
    let oldest = (kept.len() >= UNPASSED_MAX).then(|| kept.pop_front());
    kept.push_back(record);
    drop(kept);
    if let Some(Some(oldest)) = oldest {
        buffers::write(&oldest);
    }
}

/// Writes the record of the event that a call recorded, which the GPU has passed. The server also
/// records events of its own, of which nothing is kept.
pub(crate) fn passed(call: u32, at: u64) {
    let mut kept = UNPASSED.lock();
    let place = kept.iter().position(|record| record.correlationId == call);
    let record = place.and_then(|place| kept.remove(place));
    drop(kept);
    if let Some(record) = record {
        buffers::write(&CudaEvent {
            deviceTimestamp: at,
            ..record
        });
    }
}

/// Writes the records of events that the server did not report, without a time of the GPU.
pub(crate) fn write_unpassed() {
    let kept = std::mem::take(&mut *UNPASSED.lock());
    kept.iter().for_each(buffers::write);
}

/// Returns the numbers of a context and of a stream in it, if one is given.
fn numbers(context: usize, stream: Option<usize>) -> (u32, u32) {
    let Some(stream) = stream else {
        return (objects::context(context, true), NONE);
    };
    match objects::stream(context, stream) {
        Ok(numbers) => (numbers.context, numbers.object as u32),
        // The handle is invalid, and the call has failed.
        Err(_) => (objects::context(context, true), NONE),
    }
}
