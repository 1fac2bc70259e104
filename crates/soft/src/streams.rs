//! Streams, events, host functions, and waits on memory.

use std::borrow::Cow;

use outboard_api::{CUresult, enums::*};
use outboard_device::{Cx, Failure, Pending};
use outboard_ptx::device::{Action, EventId, Op, StreamId, StreamKind, ValueOp};
use outboard_wire::messages;
use rustc_hash::FxHashMap;

use super::{
    Soft,
    wait::{failure, invalid, pending},
};

/// Least and greatest priority, those of every GPU since sm_60.
pub(super) const PRIORITIES: (i32, i32) = (0, -5);
/// `CUstreamBatchMemOpParams`.
const MEM_OP_BYTES: usize = 48;
/// `CUlaunchAttributeValue`.
const ATTRIBUTE_VALUE_BYTES: usize = 64;

/// Bytes of a word on the board.
const WORD_BYTES: u64 = 8;

pub(super) struct Stream {
    pub(super) id: StreamId,
    attributes: FxHashMap<u32, Vec<u8>>,
}

impl Soft {
    pub(super) fn stream_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamCreate,
    ) -> Result<(), Failure> {
        let kind = match m.flags {
            CU_STREAM_DEFAULT => StreamKind::Blocking,
            CU_STREAM_NON_BLOCKING => StreamKind::NonBlocking,
            flags => return Err(invalid(format!("stream flags {flags:#x}"))),
        };
        let context = self.context(cx.context)?.id;
        // A priority outside the range is clamped, as documented for cuStreamCreateWithPriority.
        let priority = m.priority.clamp(PRIORITIES.1, PRIORITIES.0);
        let id = self
            .gpu
            .create_stream(context, kind, priority)
            .map_err(failure)?;
        let stream = Stream {
            id,
            attributes: FxHashMap::default(),
        };
        self.streams.insert(m.stream, stream).inspect_err(|_| {
            let _ = self.gpu.destroy_stream(id);
        })
    }

    pub(super) fn stream_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::StreamDestroy,
    ) -> Result<(), Failure> {
        let stream = self.streams.remove(m.stream)?;
        self.gpu.destroy_stream(stream.id).map_err(failure)
    }

    pub(super) fn fence_stream(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::FenceStream,
    ) -> Result<Pending, Failure> {
        let stream = self.stream(cx, m.stream)?;
        let fence = self.gpu.stream_fence(stream).map_err(failure)?;
        self.write_word(stream, m.slot, m.value)?;
        Ok(pending(fence))
    }

    pub(super) fn fence_event(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::FenceEvent,
    ) -> Result<Pending, Failure> {
        let event = *self.events.get(m.event)?;
        let fence = self.gpu.event_fence(event).map_err(failure)?;
        Ok(self.shares.with_others(m.event, pending(fence)))
    }

    pub(super) fn stream_wait_event(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamWaitEvent,
    ) -> Result<(), Failure> {
        let (stream, event) = (self.stream(cx, m.stream)?, *self.events.get(m.event)?);
        self.event_op(stream, Op::WaitEvent(event), m.flags)?;
        match self.shares.wait_op(m.event) {
            Some(op) => self.gpu.submit(stream, op).map_err(failure),
            None => Ok(()),
        }
    }

    pub(super) fn event_record(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::EventRecord,
    ) -> Result<(), Failure> {
        let (stream, event) = (self.stream(cx, m.stream)?, *self.events.get(m.event)?);
        self.event_op(stream, Op::RecordEvent(event), m.flags)?;
        match self.shares.record_op(m.event) {
            Some(op) => self.gpu.submit(stream, op).map_err(failure),
            None => Ok(()),
        }
    }

    fn event_op(&mut self, stream: StreamId, op: Op, flags: u32) -> Result<(), Failure> {
        match flags {
            CU_EVENT_WAIT_DEFAULT => self.gpu.submit(stream, op).map_err(failure),
            CU_EVENT_WAIT_EXTERNAL => self.gpu.submit_external(stream, op).map_err(failure),
            flags => Err(invalid(format!("event flags {flags:#x}"))),
        }
    }

    /// Remembers an attribute; none changes what a stream computes.
    pub(super) fn stream_set_attribute(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::StreamSetAttribute<'_>,
    ) -> Result<(), Failure> {
        check_attribute(m.attribute)?;
        if m.value.len() > ATTRIBUTE_VALUE_BYTES {
            return Err(invalid(format!("an attribute of {} bytes", m.value.len())));
        }
        let attributes = match m.stream {
            // 0 and 1 both name the null stream.
            0 | 1 => &mut self.null_attributes,
            id => &mut self.streams.get_mut(id)?.attributes,
        };
        attributes.insert(m.attribute, m.value.to_vec());
        Ok(())
    }

    pub(super) fn stream_get_attribute(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::StreamGetAttribute,
    ) -> Result<messages::StreamGetAttributeReply<'static>, Failure> {
        check_attribute(m.attribute)?;
        let set = match m.stream {
            0 | 1 => self.null_attributes.get(&m.attribute),
            id => self.streams.get(id)?.attributes.get(&m.attribute),
        };
        let mut value = set.cloned().unwrap_or_default();
        value.resize(ATTRIBUTE_VALUE_BYTES, 0);
        Ok(messages::StreamGetAttributeReply {
            value: Cow::Owned(value),
        })
    }

    pub(super) fn event_create(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::EventCreate,
    ) -> Result<(), Failure> {
        const KNOWN: u32 = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
        if m.flags & !KNOWN != 0 {
            return Err(invalid(format!("event flags {:#x}", m.flags)));
        }
        let context = self.context(cx.context)?.id;
        let timing = m.flags & CU_EVENT_DISABLE_TIMING == 0;
        let event = self.gpu.create_event(context, timing).map_err(failure)?;
        self.events.insert(m.event, event).inspect_err(|_| {
            let _ = self.gpu.destroy_event(event);
        })?;
        match m.flags & CU_EVENT_INTERPROCESS {
            0 => Ok(()),
            _ => self.create_state(m.event),
        }
    }

    pub(super) fn event_destroy(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::EventDestroy,
    ) -> Result<(), Failure> {
        let event: EventId = self.events.remove(m.event)?;
        self.shares.withdraw_event(&self.gpu, m.event);
        self.gpu.destroy_event(event).map_err(failure)
    }

    pub(super) fn event_elapsed(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::EventElapsed,
    ) -> Result<messages::EventElapsedReply, Failure> {
        let (start, end) = (*self.events.get(m.start)?, *self.events.get(m.end)?);
        let milliseconds = self.gpu.elapsed_ms(start, end).map_err(failure)?;
        Ok(messages::EventElapsedReply { milliseconds })
    }

    pub(super) fn host_func(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::HostFunc,
    ) -> Result<(), Failure> {
        let stream = self.stream(cx, m.stream)?;
        self.gpu.submit(stream, Op::Host(m.call)).map_err(failure)
    }

    pub(super) fn host_func_done(
        &mut self,
        _: &mut Cx<'_>,
        m: &messages::HostFuncDone,
    ) -> Result<(), Failure> {
        self.gpu.host_func_done(m.call).map_err(failure)
    }

    pub(super) fn stream_mem_ops(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::StreamMemOps<'_>,
    ) -> Result<(), Failure> {
        let stream = self.stream(cx, m.stream)?;
        if m.flags != 0 {
            return Err(invalid("memory operations with flags"));
        }
        // All operations are checked before the first is queued.
        for op in mem_ops(m.ops)? {
            self.gpu.submit(stream, Op::Value(op)).map_err(failure)?;
        }
        self.touched = true;
        Ok(())
    }

    pub(super) fn board_open(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::BoardOpen,
    ) -> Result<messages::BoardOpenReply, Failure> {
        if self.board.is_some() {
            return Err(invalid("a session has one board of words"));
        }
        let board = messages::HostMap {
            va: m.va,
            len: m.len,
            flags: 0,
            fd_tag: m.fd_tag,
        };
        self.host_map(cx, &board)?;
        self.board = Some((m.va, m.len));
        Ok(messages::BoardOpenReply { written: 1 })
    }

    /// Has the stream write a word on the client's board after the work submitted so far, unless
    /// something must reach the client first.
    fn write_word(&mut self, stream: StreamId, slot: u32, value: u64) -> Result<(), Failure> {
        let Some((va, len)) = self.board.filter(|_| slot > 0) else {
            return Ok(());
        };
        let at = u64::from(slot) * WORD_BYTES;
        if at + WORD_BYTES > len || self.may_print || self.host.is_watched() {
            return Ok(());
        }
        let op = value_op(va + at, value, true, write_action(0)?);
        self.gpu.submit(stream, Op::Value(op)).map_err(failure)
    }

    fn value_op(&mut self, cx: &Cx<'_>, stream: u64, op: ValueOp) -> Result<(), Failure> {
        let stream = self.stream(cx, stream)?;
        self.touched = true;
        self.gpu.submit(stream, Op::Value(op)).map_err(failure)
    }

    pub(super) fn cu_stream_wait_value32_v2(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuStreamWaitValue32V2,
    ) -> Result<(), Failure> {
        let op = value_op(m.addr, u64::from(m.value), false, wait_action(m.flags)?);
        self.value_op(cx, m.stream, op)
    }

    pub(super) fn cu_stream_wait_value64_v2(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuStreamWaitValue64V2,
    ) -> Result<(), Failure> {
        let op = value_op(m.addr, m.value, true, wait_action(m.flags)?);
        self.value_op(cx, m.stream, op)
    }

    pub(super) fn cu_stream_write_value32_v2(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuStreamWriteValue32V2,
    ) -> Result<(), Failure> {
        let op = value_op(m.addr, u64::from(m.value), false, write_action(m.flags)?);
        self.value_op(cx, m.stream, op)
    }

    pub(super) fn cu_stream_write_value64_v2(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CuStreamWriteValue64V2,
    ) -> Result<(), Failure> {
        let op = value_op(m.addr, m.value, true, write_action(m.flags)?);
        self.value_op(cx, m.stream, op)
    }
}

fn check_attribute(attribute: u32) -> Result<(), Failure> {
    match attribute {
        CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        | CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
        | CU_LAUNCH_ATTRIBUTE_PRIORITY
        | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
        | CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN => Ok(()),
        _ => Err(invalid(format!("{attribute} is no attribute of a stream"))),
    }
}

fn value_op(address: u64, value: u64, wide: bool, action: Action) -> ValueOp {
    ValueOp {
        address,
        value,
        wide,
        action,
    }
}

fn wait_action(flags: u32) -> Result<Action, Failure> {
    // Remote writes need no flush here, because memory is the host's.
    match flags & !CU_STREAM_WAIT_VALUE_FLUSH {
        CU_STREAM_WAIT_VALUE_GEQ => Ok(Action::WaitGreaterOrEqual),
        CU_STREAM_WAIT_VALUE_EQ => Ok(Action::WaitEqual),
        CU_STREAM_WAIT_VALUE_AND => Ok(Action::WaitAnd),
        CU_STREAM_WAIT_VALUE_NOR => Ok(Action::WaitNor),
        _ => Err(invalid(format!("flags {flags:#x} of a wait on memory"))),
    }
}

fn write_action(flags: u32) -> Result<Action, Failure> {
    match flags {
        CU_STREAM_WRITE_VALUE_DEFAULT | CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER => {
            Ok(Action::Write)
        }
        _ => Err(invalid(format!("flags {flags:#x} of a write to memory"))),
    }
}

/// Decodes records of `CUstreamBatchMemOpParams`. Those that order writes are dropped, because
/// writes are in order here.
pub(super) fn mem_ops(bytes: &[u8]) -> Result<Vec<ValueOp>, Failure> {
    let (records, rest) = bytes.as_chunks::<MEM_OP_BYTES>();
    if !rest.is_empty() {
        return Err(invalid("a list of memory operations that is cut"));
    }
    let ops = records.iter().map(mem_op).collect::<Result<Vec<_>, _>>()?;
    Ok(ops.into_iter().flatten().collect())
}

/// Decodes one `CUstreamBatchMemOpParams`: operation at 0, address at 8, value at 16, flags at 24.
/// Returns `None` for an operation that orders writes.
fn mem_op(record: &[u8; MEM_OP_BYTES]) -> Result<Option<ValueOp>, Failure> {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&record[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let (operation, address, value, flags) = (word(0) as u32, word(8), word(16), word(24) as u32);
    let narrow = u64::from(value as u32);
    Ok(Some(match operation {
        CU_STREAM_MEM_OP_WAIT_VALUE_32 => value_op(address, narrow, false, wait_action(flags)?),
        CU_STREAM_MEM_OP_WAIT_VALUE_64 => value_op(address, value, true, wait_action(flags)?),
        CU_STREAM_MEM_OP_WRITE_VALUE_32 => value_op(address, narrow, false, write_action(flags)?),
        CU_STREAM_MEM_OP_WRITE_VALUE_64 => value_op(address, value, true, write_action(flags)?),
        CU_STREAM_MEM_OP_BARRIER | CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => return Ok(None),
        _ => {
            return Err(Failure::new(
                CUresult::CUDA_ERROR_INVALID_VALUE,
                format!("memory operation {operation}"),
            ));
        }
    }))
}
