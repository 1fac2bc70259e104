//! Streams, events, and waits on them.

use std::sync::Arc;

use outboard_api::{
    CUresult,
    cuda::CUstreamBatchMemOpParams,
    enums::{
        CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS,
        CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE,
        CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT,
        CU_STREAM_MEM_OP_BARRIER, CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES,
        CU_STREAM_MEM_OP_WAIT_VALUE_32, CU_STREAM_MEM_OP_WAIT_VALUE_64,
        CU_STREAM_MEM_OP_WRITE_VALUE_32, CU_STREAM_MEM_OP_WRITE_VALUE_64, CU_STREAM_NON_BLOCKING,
    },
};
use outboard_device::{Cx, Failure, Pending};
use outboard_wire::messages;

use super::{
    Nvidia,
    board::Wanted,
    owned::{ContextHold, Owned},
    printed::Reach,
    table::{Record, real},
    waits::{EventWait, MarksWait},
};

/// The client's numbers of the default stream: null and `CU_STREAM_LEGACY`.
pub(super) const STREAM_NULL: u64 = 0;
pub(super) const STREAM_LEGACY: u64 = 1;
/// Operations that `cuStreamBatchMemOp` takes, at most.
const MEM_OPS_MAX: usize = 256;
const MEM_OP_BYTES: usize = size_of::<CUstreamBatchMemOpParams>();

pub(super) struct Stream {
    owned: Owned<real::Stream>,
    /// Whether anything was submitted to it, so that a fence of its context must wait for it.
    pub(super) used: bool,
    /// Whether it is ordered with the default stream, in both directions.
    pub(super) is_blocking: bool,
    /// Number of the last synchronous copy that its work waits for (`settled.rs`).
    pub(super) seen: u64,
}

impl Stream {
    pub(super) fn handle(&self) -> real::Stream {
        self.owned.handle()
    }

    pub(super) fn hold(&self) -> &Arc<ContextHold> {
        &self.owned.hold
    }
}

pub(super) struct Event {
    current: Arc<Owned<real::Event>>,
    flags: u32,
    /// Whether a graph or another process holds the real event, which then cannot be replaced.
    in_graph: bool,
}

impl Event {
    /// Wraps an event of another process.
    pub(super) fn shared(event: Owned<real::Event>) -> Event {
        Event {
            current: Arc::new(event),
            flags: CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING,
            in_graph: true,
        }
    }

    pub(super) fn hold(&self) -> &Arc<ContextHold> {
        &self.current.hold
    }
}

impl Nvidia {
    pub(super) fn stream_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamCreate,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let handle = self
            .driver
            .cuStreamCreateWithPriority(m.flags, m.priority)?;
        let owned = Owned::new(self.current_hold(), handle, |driver, handle| {
            driver.cuStreamDestroy_v2(handle)
        });
        let is_blocking = m.flags & CU_STREAM_NON_BLOCKING == 0;
        let stream = Stream {
            owned,
            used: false,
            is_blocking,
            seen: 0,
        };
        self.streams.insert(m.stream, stream)
    }

    pub(super) fn stream_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let is_capturing = self.capturing(self.streams.get(m.stream)?.handle())?;
        let stream = self.streams.remove(m.stream)?;
        if let Some(begun) = self.captures.remove(&m.stream) {
            self.forget_capture(&begun);
        }
        if stream.used && !is_capturing {
            // The driver finishes the stream's work, and a fence of the context must still wait for
            // that.
            let hold = stream.hold();
            let mark = hold.mark(stream.handle())?;
            self.orphans
                .retain(|(_, mark)| !mark.reached().unwrap_or(true));
            let mut contexts = self.contexts.iter();
            let context = contexts.find(|(_, context)| Arc::ptr_eq(&context.hold, hold));
            if let Some((context, _)) = context {
                self.orphans.push((context, Arc::new(mark)));
            }
        }
        Ok(())
    }

    pub(super) fn stream_wait_event(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamWaitEvent,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        let event = self.real_event(m.event)?;
        Ok(self.driver.cuStreamWaitEvent(stream, event, m.flags)?)
    }

    pub(super) fn stream_set_attribute(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamSetAttribute<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        refuse_handles(m.attribute)?;
        let stream = self.real_stream(m.stream)?;
        let value = Record::new("a stream attribute", m.value)?;
        Ok(self
            .driver
            .stream_set_attribute(stream, m.attribute, &value)?)
    }

    pub(super) fn stream_get_attribute(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamGetAttribute,
    ) -> Result<messages::StreamGetAttributeReply<'static>, Failure> {
        self.enter(cx)?;
        refuse_handles(m.attribute)?;
        let stream = self.real_stream(m.stream)?;
        let value = self.driver.stream_attribute(stream, m.attribute)?;
        Ok(messages::StreamGetAttributeReply {
            value: value.0.to_vec().into(),
        })
    }

    pub(super) fn stream_mem_ops(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamMemOps<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let mut ops = self.checked_mem_ops(m.ops)?;
        let stream = self.real_stream(m.stream)?;
        // SAFETY: every address was checked above.
        Ok(unsafe { self.driver.mem_ops(stream, &mut ops, m.flags) }?)
    }

    /// Decodes memory operations, and checks that their addresses are the session's.
    pub(super) fn checked_mem_ops(
        &self,
        records: &[u8],
    ) -> Result<Vec<CUstreamBatchMemOpParams>, Failure> {
        let ops = mem_ops(records)?;
        for op in &ops {
            let len = match op.operation {
                CU_STREAM_MEM_OP_WAIT_VALUE_32 | CU_STREAM_MEM_OP_WRITE_VALUE_32 => 4,
                CU_STREAM_MEM_OP_WAIT_VALUE_64 | CU_STREAM_MEM_OP_WRITE_VALUE_64 => 8,
                // These name no memory.
                CU_STREAM_MEM_OP_BARRIER | CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => continue,
                other => {
                    return Err(Failure::unsupported(&format!(
                        "stream memory operation {other}"
                    )));
                }
            };
            self.known(op.address, len)?;
        }
        Ok(ops)
    }

    pub(super) fn event_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::EventCreate,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let event = Event {
            current: Arc::new(self.make_event(self.current_hold(), m.flags)?),
            flags: m.flags,
            in_graph: m.flags & CU_EVENT_INTERPROCESS != 0,
        };
        self.events.insert(m.event, event)
    }

    pub(super) fn event_destroy(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::EventDestroy,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        self.ipc.withdraw_event(m.event);
        self.events.remove(m.event).map(drop)
    }

    pub(super) fn event_record(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::EventRecord,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let stream = self.real_stream(m.stream)?;
        let event = self.events.get(m.event)?;
        if Arc::strong_count(&event.current) > 1 && !event.in_graph {
            // A wait still uses the previous record, and must not see it move; so the new record
            // gets a fresh event. If it fails the event stays as it was.
            let fresh = self.make_event(event.hold(), event.flags)?;
            self.driver
                .cuEventRecordWithFlags(fresh.handle(), stream, m.flags)?;
            self.events.get_mut(m.event)?.current = Arc::new(fresh);
            return Ok(());
        }
        let event = self.real_event(m.event)?;
        Ok(self.driver.cuEventRecordWithFlags(event, stream, m.flags)?)
    }

    pub(super) fn event_elapsed(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::EventElapsed,
    ) -> Result<messages::EventElapsedReply, Failure> {
        self.enter(cx)?;
        let (start, end) = (self.real_event(m.start)?, self.real_event(m.end)?);
        let milliseconds = self.driver.cuEventElapsedTime(start, end)?;
        Ok(messages::EventElapsedReply { milliseconds })
    }

    pub(super) fn fence_stream(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::FenceStream,
    ) -> Result<Pending, Failure> {
        self.enter(cx)?;
        let (stream, hold) = (self.peek_stream(m.stream)?, self.stream_hold(m.stream)?);
        self.refuse_capturing(stream, "a wait for a stream")?;
        let wanted = Wanted {
            slot: m.slot,
            value: m.value,
        };
        let mark = self.watched_mark(&hold, stream, wanted)?;
        let printed = self.printing.due(Reach::Stream((cx.context, m.stream)));
        let is_legacy = m.stream <= STREAM_LEGACY;
        let legacy_end = match self.current.filter(|_| is_legacy) {
            Some(context) => Some(self.context(context)?.legacy_end()),
            None => None,
        };
        Ok(Box::new(MarksWait::new(vec![mark], printed, legacy_end)))
    }

    pub(super) fn fence_event(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::FenceEvent,
    ) -> Result<Pending, Failure> {
        self.enter(cx)?;
        let event = self.events.get(m.event)?.current.clone();
        Ok(Box::new(EventWait::new(
            event,
            self.printing.due(Reach::Part),
        )))
    }

    /// Returns the driver's stream of a number, in order to submit work to it.
    #[inline]
    pub(super) fn real_stream(&mut self, id: u64) -> Result<real::Stream, Failure> {
        self.recent_marks = None;
        if id > STREAM_LEGACY {
            let stream = self.streams.get_mut(id)?;
            stream.used = true;
            let handle = stream.handle();
            if stream.seen != self.settled.number {
                self.follow(id)?;
            }
            return Ok(handle);
        }
        if let Some(context) = self.current
            && let Ok(context) = self.contexts.get_mut(context)
        {
            context.legacy_works += 1;
            if context.seen != self.settled.number {
                self.follow(STREAM_NULL)?;
            }
        }
        self.peek_stream(id)
    }

    /// Returns the driver's stream of a number, in order to look at it.
    pub(super) fn peek_stream(&self, id: u64) -> Result<real::Stream, Failure> {
        match id {
            STREAM_NULL => Ok(real::Stream::NULL),
            STREAM_LEGACY => Ok(real::Stream::LEGACY),
            id => Ok(self.streams.get(id)?.handle()),
        }
    }

    /// Returns the context that a stream belongs to.
    pub(super) fn stream_hold(&self, id: u64) -> Result<Arc<ContextHold>, Failure> {
        match id {
            STREAM_NULL | STREAM_LEGACY => Ok(self.current_hold().clone()),
            id => Ok(self.streams.get(id)?.hold().clone()),
        }
    }

    pub(super) fn real_event(&self, id: u64) -> Result<real::Event, Failure> {
        Ok(self.events.get(id)?.current.handle())
    }

    /// Returns the driver's event of a number, for a graph or launch that keeps it.
    pub(super) fn kept_event(&mut self, id: u64) -> Result<real::Event, Failure> {
        let event = self.events.get_mut(id)?;
        event.in_graph = true;
        Ok(event.current.handle())
    }

    /// Returns the number of an event that the driver named.
    pub(super) fn event_number(&self, event: real::Event) -> Result<u64, Failure> {
        let mut events = self.events.iter();
        events
            .find(|(_, known)| known.current.handle() == event)
            .map(|(number, _)| number)
            .ok_or_else(|| {
                Failure::new(
                    CUresult::CUDA_ERROR_INVALID_VALUE,
                    "a node's event that is gone",
                )
            })
    }

    /// Whether the stream is capturing.
    #[inline]
    pub(super) fn capturing(&self, stream: real::Stream) -> Result<bool, Failure> {
        Ok(!self.captures.is_empty() && self.driver.cuStreamIsCapturing(stream)? != 0)
    }

    pub(super) fn refuse_capturing(&self, stream: real::Stream, what: &str) -> Result<(), Failure> {
        if !self.capturing(stream)? {
            return Ok(());
        }
        Err(Failure::new(
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            format!("{what} cannot be captured"),
        ))
    }

    fn make_event(
        &self,
        hold: &Arc<ContextHold>,
        flags: u32,
    ) -> Result<Owned<real::Event>, Failure> {
        let handle = hold.within(|driver| driver.cuEventCreate(flags))?;
        Ok(Owned::new(hold, handle, |driver, handle| {
            driver.cuEventDestroy_v2(handle)
        }))
    }
}

/// Refuses attributes whose values hold handles: they belong to launches, not to streams.
fn refuse_handles(attribute: u32) -> Result<(), Failure> {
    match attribute {
        CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
        | CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT
        | CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE => Err(Failure::unsupported(&format!(
            "stream attribute {attribute}"
        ))),
        _ => Ok(()),
    }
}

fn mem_ops(bytes: &[u8]) -> Result<Vec<CUstreamBatchMemOpParams>, Failure> {
    let (records, rest) = bytes.as_chunks::<MEM_OP_BYTES>();
    if !rest.is_empty() || records.len() > MEM_OPS_MAX {
        return Err(Failure::new(
            CUresult::CUDA_ERROR_INVALID_VALUE,
            format!("{} bytes of stream memory operations", bytes.len()),
        ));
    }
    let word = |r: &[u8; MEM_OP_BYTES], at: usize| {
        r[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
    };
    Ok(records
        .iter()
        .map(|r| CUstreamBatchMemOpParams {
            operation: word(r, 0) as u32,
            pad: (word(r, 0) >> 32) as u32,
            address: word(r, 8),
            value: word(r, 16),
            flags: word(r, 24) as u32,
            pad2: (word(r, 24) >> 32) as u32,
            alias: word(r, 32),
            pad3: word(r, 40),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mem_op_records_keep_their_layout() {
        let bytes: Vec<u8> = (0..MEM_OP_BYTES as u8).collect();
        let ops = mem_ops(&bytes).expect("one record");
        assert_eq!(ops.len(), 1);
        assert_eq!(ops[0].operation, 0x0302_0100);
        assert_eq!(ops[0].address, 0x0f0e_0d0c_0b0a_0908);
        assert_eq!(ops[0].flags, 0x1b1a_1918);
        assert!(mem_ops(&bytes[1..]).is_err());
        assert!(mem_ops(&vec![0; MEM_OP_BYTES * (MEM_OPS_MAX + 1)]).is_err());
    }
}
