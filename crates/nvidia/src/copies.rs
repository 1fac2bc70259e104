//! Copies between device memory, host memory of either side, and messages.

use std::{any::Any, sync::Arc};

use outboard_api::{
    CUresult,
    cuda::{CUDA_MEMCPY3D, CUarray},
    enums::{CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_UNIFIED},
};
use outboard_device::{Cx, Failure, Pending, Placed, Rooms};
use outboard_link::{Granted, Segment};
use outboard_wire::{
    Content as _, Data,
    doc::{self, BoxEnd, CopyBox},
    messages,
};

use super::{
    Nvidia,
    addresses::{Span, rows},
    board::NOT_WANTED,
    calls::CheckedBox,
    host_memory::Pinned,
    owned::{ContextHold, given_back},
    printed::Reach,
    staging::{Filled, Slot, SlotWait, Staging},
    table::{Refused, real},
};

impl Nvidia {
    pub(super) fn copy(&mut self, cx: &mut Cx<'_>, m: &messages::Copy) -> Result<(), Failure> {
        self.enter(cx)?;
        let (dst, src) = (self.known(m.dst, m.len)?, self.known(m.src, m.len)?);
        let stream = self.real_stream(m.stream)?;
        let is_on_host = self.host.is_host(m.dst) && self.host.is_host(m.src);
        if is_on_host {
            self.copy_on_host(cx, (m.stream, stream), dst, src)?;
        } else if let Err(refused) = self.driver.memcpy(dst, src, stream) {
            self.copy_between(m, dst, src, stream, refused)?;
        }
        self.settle_copy(m.stream, m.sync)
    }

    /// Copies between two devices of which neither can use the other's memory. The driver does it
    /// when told both contexts.
    #[cold]
    fn copy_between(
        &mut self,
        m: &messages::Copy,
        dst: Span,
        src: Span,
        stream: real::Stream,
        refused: Refused,
    ) -> Result<(), Failure> {
        let places = (
            self.memory.device_of(m.dst, m.len),
            self.memory.device_of(m.src, m.len),
        );
        let (Some(to), Some(from)) = places else {
            return Err(refused.into());
        };
        if to == from || refused.status != CUresult::CUDA_ERROR_INVALID_VALUE {
            return Err(refused.into());
        }
        let (to, from) = (self.hold_of(to)?, self.hold_of(from)?);
        Ok(self
            .driver
            .memcpy_peer(dst, to.handle, src, from.handle, stream)?)
    }

    pub(super) fn copy_in(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyIn<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let dst = self.known(m.dst, m.data.len() as u64)?;
        self.send(cx, m.stream, m.data, |device, cx, src, stream| {
            device.copy_slot(cx, (m.stream, stream), dst, src)
        })?;
        self.settle_copy(m.stream, m.sync)
    }

    pub(super) fn copy_settled(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopySettled,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        self.settle_copy(m.stream, 1)
    }

    pub(super) fn copy_out(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyOut,
    ) -> Result<Pending, Failure> {
        self.enter(cx)?;
        let src = self.known(m.src, m.len)?;
        self.receive(cx, m.stream, m.len, |device, cx, dst, stream| {
            device.copy_slot(cx, (m.stream, stream), dst, src)
        })
    }

    pub(super) fn copy_box(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyBox<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let copy = self.checked_box(m.desc, None)?;
        let stream = self.real_stream(m.stream)?;
        self.copy_checked_box(cx, (m.stream, stream), &copy)
    }

    pub(super) fn copy_box_in(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyBoxIn<'_>,
    ) -> Result<(), Failure> {
        self.enter(cx)?;
        let desc = m.desc;
        self.send(cx, m.stream, m.data, |device, cx, src, stream| {
            let copy = device.checked_box(desc, Some(src))?;
            device.copy_checked_box(cx, (m.stream, stream), &copy)
        })?;
        self.settle_copy(m.stream, m.sync)
    }

    pub(super) fn copy_box_out(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::CopyBoxOut<'_>,
    ) -> Result<Pending, Failure> {
        self.enter(cx)?;
        let len = packed_bytes(&parse_box(m.desc)?)?;
        let desc = m.desc;
        self.receive(cx, m.stream, len, |device, cx, dst, stream| {
            let copy = device.checked_box(desc, Some(dst))?;
            device.copy_checked_box(cx, (m.stream, stream), &copy)
        })
    }

    /// Checks that memory is the session's, so that no other address reaches the driver's copies.
    #[inline]
    pub(super) fn known(&self, address: u64, len: u64) -> Result<Span, Failure> {
        self.addresses.check(address, len)
    }

    /// Puts a message's data where the GPU can read it, and submits a copy from there.
    fn send(
        &mut self,
        cx: &mut Cx<'_>,
        stream_id: u64,
        data: Data<'_>,
        submit: impl FnOnce(&mut Nvidia, &mut Cx<'_>, Span, real::Stream) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if data.len() == 0 {
            return Ok(());
        }
        let stream = self.real_stream(stream_id)?;
        if self.capturing(stream)? {
            let bytes = cx.bytes(data)?;
            return self.send_captured(cx, stream, &bytes, submit);
        }
        let slot = self.filled_slot(cx, data)?;
        submit(self, cx, slot.span()?, stream)?;
        let hold = self.stream_hold(stream_id)?;
        match hold.mark(stream) {
            Ok(mark) => self.staging.put_busy(stream, mark, slot),
            // A fault of the GPU. It may still read the slot, which is therefore never reused.
            Err(refused) => {
                std::mem::forget(slot);
                return Err(refused.into());
            }
        }
        Ok(())
    }

    /// Returns the slot that the data was received into, or another slot with a copy of the data.
    fn filled_slot(&mut self, cx: &Cx<'_>, data: Data<'_>) -> Result<Filled, Failure> {
        match (data, cx.placed) {
            (Data::Here(bytes), Some(Placed::Own(memory)))
                if std::ptr::eq(memory.bytes(), bytes) =>
            {
                let memory: Arc<dyn Any + Send + Sync> = memory.clone();
                if let Ok(slot) = memory.downcast() {
                    return Ok(Filled::Slot(slot));
                }
            }
            (Data::Granted(len), Some(Placed::Granted(memory))) if memory.len() == len => {
                let memory: Arc<dyn Any + Send + Sync> = memory.clone();
                if let Ok(slot) = memory.downcast() {
                    return Ok(Filled::Granted(slot));
                }
            }
            _ => {}
        }
        let bytes = cx.bytes(data)?;
        let mut slot = self.slot(cx, bytes.len())?;
        slot.room().copy_from_slice(&bytes);
        Ok(Filled::Slot(Arc::new(slot)))
    }

    /// Submits a captured copy. The graph owns the data, because every launch of it reads the data
    /// again.
    fn send_captured(
        &mut self,
        cx: &mut Cx<'_>,
        stream: real::Stream,
        data: &[u8],
        submit: impl FnOnce(&mut Nvidia, &mut Cx<'_>, Span, real::Stream) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let capture = self.driver.capture(stream)?.id;
        self.enter_base()?;
        let mut memory = Pinned::new(&self.base, data.len())?.whole();
        memory.fill(data);
        self.enter(cx)?;
        if let Err(failure) = submit(self, cx, memory.span(data.len()), stream) {
            self.bury_memory(vec![Arc::new(memory)]);
            return Err(failure);
        }
        self.capture_memory
            .entry(capture)
            .or_default()
            .push(Arc::new(memory));
        Ok(())
    }

    /// Submits a copy into a slot from which the reply is sent.
    fn receive(
        &mut self,
        cx: &mut Cx<'_>,
        stream_id: u64,
        len: u64,
        submit: impl FnOnce(&mut Nvidia, &mut Cx<'_>, Span, real::Stream) -> Result<(), Failure>,
    ) -> Result<Pending, Failure> {
        let stream = self.real_stream(stream_id)?;
        self.refuse_capturing(stream, "a copy to the client's unshared memory")?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let slot = Arc::new(self.slot(cx, len)?);
        submit(self, cx, Filled::Slot(slot.clone()).span()?, stream)?;
        let hold = self.stream_hold(stream_id)?;
        let mark = match self.watched_mark(&hold, stream, NOT_WANTED) {
            Ok(mark) => mark,
            Err(failure) => {
                std::mem::forget(slot);
                return Err(failure);
            }
        };
        Ok(Box::new(SlotWait {
            staging: self.staging.clone(),
            stream,
            printed: self.printing.due(Reach::Stream((cx.context, stream_id))),
            copy: Some((mark, slot)),
        }))
    }

    /// Returns pinned memory for data about to be received. If too much is in use, the session's
    /// own memory takes the data and the copy waits for a slot, since an earlier message may free
    /// one.
    pub(super) fn slot_for_data(&mut self, len: usize) -> Option<Box<dyn Segment>> {
        let slot = match self.staging.take(len, false).ok()? {
            Some(slot) => slot,
            None if self.staging.may_grow() => {
                self.enter_base().ok()?;
                self.staging.grow(len).ok()?
            }
            None => return None,
        };
        Some(Box::new(slot))
    }

    /// Returns pinned memory that the client's adapter may write; `None` while too much is in use.
    pub(super) fn slot_for_grant(&mut self, len: usize) -> Option<Box<dyn Granted>> {
        let slot = match self.staging.take_granted(len) {
            Some(slot) => slot,
            None if self.staging.may_grow_granted() => {
                self.enter_base().ok()?;
                self.staging.grow_granted(len).ok()?
            }
            None => return None,
        };
        Some(Box::new(slot))
    }

    pub(super) fn data_connection_rooms(&self) -> Arc<dyn Rooms> {
        Arc::new(DataConnectionRooms {
            staging: self.staging.clone(),
            base: self.base.clone(),
        })
    }

    fn slot(&mut self, cx: &Cx<'_>, len: usize) -> Result<Slot, Failure> {
        let patient = !self.host_calls.is_outstanding();
        if let Some(slot) = self.staging.take(len, patient)? {
            return Ok(slot);
        }
        self.enter_base()?;
        let slot = self.staging.grow(len);
        self.enter(cx)?;
        slot
    }

    /// Checks a box copy and encodes it for the driver. `packed` is the end that travels with the
    /// message.
    pub(super) fn checked_box(
        &self,
        desc: &[u8],
        packed: Option<Span>,
    ) -> Result<CheckedBox, Failure> {
        self.checked_copy(&parse_box(desc)?, packed)
    }

    pub(super) fn checked_copy(
        &self,
        copy: &CopyBox,
        packed: Option<Span>,
    ) -> Result<CheckedBox, Failure> {
        let src = self.box_end(copy, copy.src, [copy.src_x, copy.src_y, copy.src_z], packed)?;
        let dst = self.box_end(copy, copy.dst, [copy.dst_x, copy.dst_y, copy.dst_z], packed)?;
        let copy = CUDA_MEMCPY3D {
            src_x_in_bytes: src.at[0] as usize,
            src_y: src.at[1] as usize,
            src_z: src.at[2] as usize,
            src_lod: 0,
            src_memory_type: src.memory_type,
            src_host: std::ptr::with_exposed_provenance(src.address as usize),
            src_device: src.address,
            src_array: CUarray(src.array),
            reserved0: 0,
            src_pitch: src.pitch as usize,
            src_height: src.height as usize,
            dst_x_in_bytes: dst.at[0] as usize,
            dst_y: dst.at[1] as usize,
            dst_z: dst.at[2] as usize,
            dst_lod: 0,
            dst_memory_type: dst.memory_type,
            dst_host: std::ptr::with_exposed_provenance_mut(dst.address as usize),
            dst_device: dst.address,
            dst_array: CUarray(dst.array),
            reserved1: 0,
            dst_pitch: dst.pitch as usize,
            dst_height: dst.height as usize,
            width_in_bytes: copy.width as usize,
            height: copy.height as usize,
            depth: copy.depth as usize,
        };
        // SAFETY: `box_end` has checked both ends against the whole box.
        Ok(unsafe { CheckedBox::new(copy) })
    }

    fn box_end(
        &self,
        copy: &CopyBox,
        end: BoxEnd,
        at: [u64; 3],
        packed: Option<Span>,
    ) -> Result<DriverEnd, Failure> {
        match end {
            BoxEnd::Packed => {
                let len = packed_bytes(copy)?;
                let span = packed.filter(|span| span.len() >= len).ok_or_else(|| {
                    wrong(format!("a box copy of {len} bytes without as much data"))
                })?;
                Ok(DriverEnd {
                    memory_type: CU_MEMORYTYPE_HOST,
                    address: span.address(),
                    array: 0,
                    pitch: copy.width,
                    height: copy.height,
                    at: [0; 3],
                })
            }
            BoxEnd::Pitched {
                address,
                pitch_bytes,
                height,
            } => {
                if copy.width > 0 && copy.height > 0 && copy.depth > 0 {
                    check_layout(copy, at, pitch_bytes, height)?;
                    let offset = pitched_offset(at, pitch_bytes, height)
                        .and_then(|offset| address.checked_add(offset))
                        .ok_or_else(|| wrong("a box copy past the end of all memory".into()))?;
                    let plane = height.saturating_mul(pitch_bytes);
                    let len = rows(
                        plane,
                        rows(pitch_bytes, copy.width, copy.height),
                        copy.depth,
                    );
                    self.known(offset, len)?;
                }
                Ok(DriverEnd {
                    memory_type: CU_MEMORYTYPE_UNIFIED,
                    address,
                    array: 0,
                    pitch: pitch_bytes,
                    height,
                    at,
                })
            }
            BoxEnd::Array { array } => Ok(DriverEnd {
                memory_type: CU_MEMORYTYPE_ARRAY,
                address: 0,
                array: self.real_array(array)?.raw(),
                pitch: 0,
                height: 0,
                at,
            }),
        }
    }
}

/// Allocates slots for threads that receive data beside the session's. If too many are in use, the
/// session copies the data and waits for a slot.
struct DataConnectionRooms {
    staging: Arc<Staging>,
    base: Arc<ContextHold>,
}

impl Rooms for DataConnectionRooms {
    fn room(&self, len: usize) -> Option<Box<dyn Segment>> {
        let slot = match self.staging.take(len, false).ok()? {
            Some(slot) => slot,
            None if self.staging.may_grow() => {
                let driver = &self.base.driver;
                driver.cuCtxPushCurrent_v2(self.base.handle).ok()?;
                let slot = self.staging.grow(len);
                given_back(driver.cuCtxPopCurrent_v2().map(drop));
                slot.ok()?
            }
            None => return None,
        };
        Some(Box::new(slot))
    }
}

struct DriverEnd {
    memory_type: u32,
    address: u64,
    array: usize,
    pitch: u64,
    height: u64,
    at: [u64; 3],
}

fn parse_box(desc: &[u8]) -> Result<CopyBox, Failure> {
    doc::from_bytes(desc).map_err(|error| wrong(format!("a box copy: {error}")))
}

/// Returns the length of a box's rows without padding, in bytes.
fn packed_bytes(copy: &CopyBox) -> Result<u64, Failure> {
    copy.width
        .checked_mul(copy.height)
        .and_then(|plane| plane.checked_mul(copy.depth))
        .ok_or_else(|| wrong("a box copy longer than all memory".into()))
}

fn pitched_offset([x, y, z]: [u64; 3], pitch: u64, height: u64) -> Option<u64> {
    z.checked_mul(height)?
        .checked_add(y)?
        .checked_mul(pitch)?
        .checked_add(x)
}

/// Refuses rows or slices that overlap. The driver takes a pitch or a height of 0 for rows or
/// slices without gaps, and would reach further than what is checked by these numbers.
fn check_layout(
    copy: &CopyBox,
    [x, y, z]: [u64; 3],
    pitch_bytes: u64,
    height: u64,
) -> Result<(), Failure> {
    let row = x.saturating_add(copy.width);
    let rows = y.saturating_add(copy.height);
    let has_slices = z > 0 || copy.depth > 1;
    if pitch_bytes < row || has_slices && height < rows {
        return Err(wrong(format!(
            "rows of {row} bytes with a pitch of {pitch_bytes}, {rows} rows in slices of {height}"
        )));
    }
    Ok(())
}

fn wrong(what: String) -> Failure {
    Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_that_the_driver_would_read_in_another_way_is_refused() {
        let end = BoxEnd::Packed;
        let copy = CopyBox {
            src: end,
            src_x: 0,
            src_y: 0,
            src_z: 0,
            dst: end,
            dst_x: 0,
            dst_y: 0,
            dst_z: 0,
            width: 16,
            height: 4,
            depth: 2,
        };
        let check = |copy, at, pitch, height| check_layout(copy, at, pitch, height).is_ok();
        assert!(check(&copy, [0; 3], 16, 4));
        assert!(!check(&copy, [0; 3], 0, 4));
        assert!(!check(&copy, [1, 0, 0], 16, 4));
        assert!(!check(&copy, [0; 3], 16, 0));
        assert!(!check(&copy, [0, 1, 0], 16, 4));
        let slice = CopyBox { depth: 1, ..copy };
        assert!(check(&slice, [0; 3], 16, 0));
        assert!(!check(&slice, [0, 0, 1], 16, 0));
        let row = CopyBox { height: 1, ..slice };
        assert!(!check(&row, [0, 5, 0], 0, 1));
    }

    #[test]
    fn offsets_of_a_box() {
        assert_eq!(pitched_offset([3, 2, 1], 512, 10), Some(12 * 512 + 3));
        assert_eq!(pitched_offset([0, 0, u64::MAX], 512, 10), None);
    }
}
