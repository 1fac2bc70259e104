//! Copies of one dimension. Where the bytes go decides what a copy costs:
//!
//! - host to device: the bytes travel with the message; nobody waits. The message of a synchronous copy says that it is one, and
//!   the server has whatever is sent later, to any stream, follow it;
//! - device to device, and between the device and memory that both sides share: a message of a few words;
//! - device to host: the answer carries the bytes. Into pinned memory the call does not wait for them; into other
//!   memory it does, as on a local GPU.

use std::{ffi::c_void, sync::Arc};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdeviceptr, CUstream},
};
use outboard_link::{RdmaTarget, RdmaUse};
use outboard_wire::{
    limits::{CHUNK_BYTES_MAX, LANE_COPY_BYTES_MIN},
    messages,
};

use super::Done;
use crate::{
    activity, guard, notes, record,
    session::{Group, Landing, Rows, Sink},
    state::{Driver, SEGMENT_BYTES, StreamRef, driver, wire_context},
};

/// Copies to the device up to here travel with their message even where memory is shared.
const INLINE_BYTES_MAX: usize = 256;
/// A synchronous copy of more pinned memory than this is waited for, instead of taken along.
const SYNC_COPY_BYTES_MAX: usize = 64 << 10;

/// Where an address lies, as far as a copy is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Device,
    /// Pinned host memory that the server sees at the same address: the same memory, or a mirror that stays.
    Shared,
    /// Other pinned host memory.
    Pinned,
    Pageable,
}

impl Driver {
    /// The place of a whole range. Device ranges must lie inside one allocation.
    pub(crate) fn place_of(&self, address: u64, bytes: u64) -> Result<Place, CUresult> {
        {
            let memory = self.memory.lock();
            if let Some(a) = memory.find(address) {
                return if !a.may_be_used() {
                    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
                } else if bytes <= a.base + a.bytes - address {
                    Ok(Place::Device)
                } else {
                    self.spans_mappings(&memory, address, bytes)
                };
            }
            if memory.in_window(address) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        let host = self.host.read();
        Ok(match host.find(address) {
            // A range that runs over the end of pinned memory is as good as pageable.
            Some(r) if bytes > r.base + r.bytes - address => Place::Pageable,
            Some(r) if r.shared || r.mirror.stays_open() => Place::Shared,
            Some(_) => Place::Pinned,
            None => Place::Pageable,
        })
    }

    /// A range over several mappings side by side, as VMM programs make them.
    fn spans_mappings(
        &self,
        memory: &crate::state::DeviceMemory,
        address: u64,
        bytes: u64,
    ) -> Result<Place, CUresult> {
        let end = address
            .checked_add(bytes)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let mut at = address;
        while at < end {
            let a = memory.find(at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
            if !matches!(a.kind, crate::state::AllocationKind::Mapped { .. }) || !a.may_be_used() {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
            at = a.base + a.bytes;
        }
        Ok(Place::Device)
    }

    pub(super) fn device_place(&self, address: u64, bytes: u64) -> Done {
        // Variables of modules and mapped host memory count as device memory too.
        match self.place_of(address, bytes)? {
            Place::Device | Place::Shared => Ok(()),
            Place::Pinned => self.make_visible(address),
            Place::Pageable => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Takes the bytes along: over shm in memory that the GPU reads, elsewhere in pieces that travel with the message. Nobody
    /// waits for the GPU: if the program's call is synchronous (`wait`), the server orders all later work after the copy.
    fn copy_in(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        // SAFETY: the caller's source, as the driver API asks of it.
        let data = unsafe { std::slice::from_raw_parts(src, bytes) };
        if self.place_on_gpu(dst, data, None, stream, wait)? {
            return Ok(());
        }
        let staged = if bytes > INLINE_BYTES_MAX && self.has_board() {
            self.stage_in(dst, data, stream, wait)?
        } else {
            0
        };
        let (dst, data) = (dst + staged as u64, &data[staged..]);
        if data.len() >= LANE_COPY_BYTES_MIN && self.session.has_lanes() {
            let context = activity::tagged(wire_context());
            let announce = |offset: usize, piece: &[u8]| {
                let message = messages::CopyIn {
                    dst: dst + offset as u64,
                    stream: stream.wire(),
                    sync: u32::from(wait),
                    data: piece,
                };
                self.session.post_without_data(context, &message)?;
                self.progress.submit();
                stream.progress().submit();
                Ok(())
            };
            if let Some(sent) = self.session.send_on_lanes(data, announce) {
                return sent;
            }
        }
        for (index, piece) in data.chunks(CHUNK_BYTES_MAX).enumerate() {
            self.submit_to(
                stream,
                &messages::CopyIn {
                    dst: dst + (index * CHUNK_BYTES_MAX) as u64,
                    stream: stream.wire(),
                    sync: u32::from(wait),
                    data: piece,
                },
            )?;
        }
        Ok(())
    }

    /// The bytes come with the answers, in pieces that overlap each other.
    fn copy_out(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        detached: bool,
    ) -> Result<Arc<Group>, CUresult> {
        let pieces = bytes.div_ceil(CHUNK_BYTES_MAX);
        let group = Group::new(pieces);
        let target = self.registered(dst as u64, bytes, RdmaUse::Target);
        let on_lanes = bytes >= LANE_COPY_BYTES_MIN && self.session.has_lanes();
        for index in 0..pieces {
            let offset = index * CHUNK_BYTES_MAX;
            let len = CHUNK_BYTES_MAX.min(bytes - offset);
            // SAFETY: inside the destination of `bytes` bytes.
            let address = unsafe { dst.add(offset) };
            let landing = Landing {
                address,
                rows: Rows::contiguous(len),
                detached,
            };
            if detached {
                self.session.attend();
            }
            let message = messages::CopyOut {
                src: src + offset as u64,
                len: len as u64,
                stream: stream.wire(),
            };
            if let Some(target) = &target {
                let RdmaTarget { address, key } = target.target(address as u64);
                let message = messages::CopyOutTo {
                    src: message.src,
                    len: message.len,
                    stream: message.stream,
                    to: address,
                    key,
                };
                let sink = Sink::Memory(landing);
                self.session.ask(wire_context(), &message, &group, sink)?;
            } else if on_lanes {
                self.session
                    .ask_for_lane(wire_context(), &message, &group, landing)?;
            } else {
                let sink = Sink::Memory(landing);
                self.session.ask(wire_context(), &message, &group, sink)?;
            }
            stream.progress().submit();
            self.progress.submit();
        }
        Ok(group)
    }

    /// The same, waited for; over shm through memory that the GPU writes to. Answers how many pieces it took.
    ///
    /// # Safety
    /// `dst` has room for `bytes`.
    unsafe fn copy_out_now(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<u64, CUresult> {
        let mut staged = 0;
        if self.has_board() {
            // SAFETY: the caller's promise.
            staged = unsafe { self.stage_out(dst, src, bytes, stream)? };
            if staged == bytes {
                return Ok(bytes.div_ceil(SEGMENT_BYTES) as u64);
            }
            // No memory to be had: the rest comes with answers.
        }
        // SAFETY: inside the destination.
        let rest = unsafe { dst.add(staged) };
        let group = self.copy_out(rest, src + staged as u64, bytes - staged, stream, false)?;
        self.session.wait(&group)?;
        let (done, left) = (staged.div_ceil(SEGMENT_BYTES), bytes - staged);
        Ok((done + left.div_ceil(CHUNK_BYTES_MAX)) as u64)
    }

    /// Copies between addresses that mean the same on both sides. Between two places on devices CUDA's synchronous copies do not
    /// wait either, nor does anything in other streams wait for them.
    fn copy_here(&self, dst: u64, src: u64, bytes: u64, stream: &StreamRef) -> Done {
        self.push_visible()?;
        self.submit_to(
            stream,
            &messages::Copy {
                dst,
                src,
                len: bytes,
                stream: stream.wire(),
                sync: 0,
            },
        )
    }

    /// Waits for what comes before a copy of pageable memory, where the program could tell, or a host function may still write
    /// the memory: its bytes are taken when the call is made.
    pub(super) fn settle_pageable(&self, stream: &StreamRef, wait: bool) -> Done {
        match wait {
            true => self.settle_host(stream),
            false if notes::host_functions_pending() => self.settle_stream(stream),
            false => Ok(()),
        }
    }

    /// Data of pinned memory is taken when the call is made. If earlier work may still write the memory at `source`, the
    /// call waits for that work first: otherwise the copy would take the bytes from before it.
    pub(super) fn settle_pinned(&self, source: u64, stream: &StreamRef) -> Done {
        if self.is_mirrored(source) {
            return self.settle_stream(stream);
        }
        self.settle_host(stream)
    }

    /// Any copy: directions are found by address.
    pub(crate) fn copy(
        &self,
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        if guard::is_recorded() && !stream.is_capturing() {
            let is_device = |address| self.place_of(address, bytes as u64) == Ok(Place::Device);
            let way = match (is_device(dst), is_device(src)) {
                (true, false) => Some(record::Way::ToDevice),
                (false, true) => Some(record::Way::ToHost),
                _ => None,
            };
            if let Some(way) = way {
                return record::copying(way, bytes, || {
                    self.copy_unrecorded(dst, src, bytes, stream, wait)
                });
            }
        }
        self.copy_unrecorded(dst, src, bytes, stream, wait)
    }

    fn copy_unrecorded(
        &self,
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        if bytes == 0 {
            return Ok(());
        }
        if dst == 0 || src == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let (to, from) = (
            self.place_of(dst, bytes as u64)?,
            self.place_of(src, bytes as u64)?,
        );
        if stream.is_capturing() {
            // A graph's copy cannot be waited for.
            if wait {
                self.refuse_captured(stream)?;
            }
            return self.capture_copy(dst, src, bytes, stream, to, from);
        }
        match (to, from) {
            (Place::Device, Place::Device) => self.copy_here(dst, src, bytes as u64, stream),
            (Place::Device, Place::Shared) if !wait => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                self.host_is_used(stream);
                Ok(())
            }
            // Waiting for the GPU is faster than copying much.
            (Place::Device, Place::Shared) if bytes > SYNC_COPY_BYTES_MAX => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                self.synchronize_stream(stream)
            }
            // The source may change as soon as a synchronous copy returns, so its bytes are taken along: when nothing that
            // comes before the copy can still write them.
            (Place::Device, Place::Shared) => {
                self.settle_stream(stream)?;
                self.copy_in(dst, src as *const u8, bytes, stream, wait)
            }
            (Place::Device, Place::Pinned) => {
                self.settle_pinned(src, stream)?;
                if self.copy_in_registered(dst, src as *const u8, bytes, stream, wait)? {
                    if !wait {
                        self.host_is_used(stream);
                    }
                    return Ok(());
                }
                self.copy_in(dst, src as *const u8, bytes, stream, wait)
            }
            (Place::Device, _) => {
                self.settle_pageable(stream, wait)?;
                self.copy_in(dst, src as *const u8, bytes, stream, wait)
            }
            (Place::Shared, Place::Device) => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                if wait {
                    self.synchronize_stream(stream)
                } else {
                    self.host_is_used(stream);
                    Ok(())
                }
            }
            (Place::Pinned, Place::Device) if !wait => self
                .copy_out(dst as *mut u8, src, bytes, stream, true)
                .map(drop),
            (_, Place::Device) => {
                let (mark, all) = (stream.progress().mark(), self.progress.mark());
                // SAFETY: the caller's destination, as the driver API asks of it.
                let pieces = unsafe { self.copy_out_now(dst as *mut u8, src, bytes, stream)? };
                // The copy was the last thing in the stream, and it is done; with the default stream's all that it waits for.
                stream.progress().complete_alone(mark, pieces);
                if stream.is_legacy() {
                    let everything = &stream.stream().everything;
                    everything.complete(self.progress.alone(all, pieces));
                }
                self.session.take_fault()
            }
            (_, _) => {
                // Host to host, in the stream's order.
                self.synchronize_stream(stream)?;
                // SAFETY: both ranges are the caller's.
                unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes) };
                Ok(())
            }
        }
    }

    /// A copy that a graph will do: it reads and writes memory at launch, not now.
    fn capture_copy(
        &self,
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        to: Place,
        from: Place,
    ) -> Done {
        if let (Place::Pageable, Place::Device) | (Place::Device, Place::Pageable) = (to, from) {
            return self.capture_pageable_line(dst, src, bytes as u64, stream, to != Place::Device);
        }
        for (address, place) in [(dst, to), (src, from)] {
            match place {
                Place::Device | Place::Shared => {}
                Place::Pinned => self.make_visible(address)?,
                Place::Pageable => return self.refuse_captured(stream),
            }
        }
        if (to, from) != (Place::Device, Place::Device) {
            self.host_is_used(stream);
        }
        self.copy_here(dst, src, bytes as u64, stream)
    }
}

/// `cuMemcpy*` without a stream.
fn copy_now(dst: u64, src: u64, bytes: usize) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(guard::default_stream())?;
    driver.copy(dst, src, bytes, &stream, true)
}

fn copy_on(stream: CUstream, dst: u64, src: u64, bytes: usize) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    driver.copy(dst, src, bytes, &stream, false)
}

/// The side that a call's name says is device memory must be.
fn check_device(address: u64, bytes: usize) -> Done {
    if bytes == 0 {
        return Ok(());
    }
    driver()?.device_place(address, bytes as u64)
}

pub(crate) unsafe fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Done {
    copy_now(dst, src, bytes)
}

pub(crate) unsafe fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Done {
    copy_on(stream, dst, src, bytes)
}

pub(crate) unsafe fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) -> Done {
    check_device(dst, bytes)?;
    copy_now(dst, src as u64, bytes)
}

pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Done {
    check_device(dst, bytes)?;
    copy_on(stream, dst, src as u64, bytes)
}

pub(crate) unsafe fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> Done {
    check_device(src, bytes)?;
    copy_now(dst as u64, src, bytes)
}

pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Done {
    check_device(src, bytes)?;
    copy_on(stream, dst as u64, src, bytes)
}

pub(crate) unsafe fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Done {
    check_device(dst, bytes)?;
    check_device(src, bytes)?;
    copy_now(dst, src, bytes)
}

pub(crate) unsafe fn cuMemcpyDtoDAsync_v2(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Done {
    check_device(dst, bytes)?;
    check_device(src, bytes)?;
    copy_on(stream, dst, src, bytes)
}

/// Addresses are one space for all devices: a copy between them is a copy.
pub(crate) unsafe fn cuMemcpyPeer(
    dst: CUdeviceptr,
    _dst_context: CUcontext,
    src: CUdeviceptr,
    _src_context: CUcontext,
    bytes: usize,
) -> Done {
    check_device(dst, bytes)?;
    check_device(src, bytes)?;
    copy_now(dst, src, bytes)
}

pub(crate) unsafe fn cuMemcpyPeerAsync(
    dst: CUdeviceptr,
    _dst_context: CUcontext,
    src: CUdeviceptr,
    _src_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Done {
    check_device(dst, bytes)?;
    check_device(src, bytes)?;
    copy_on(stream, dst, src, bytes)
}

/// A batch is its copies one after the other: attributes only loosen the order that a stream keeps.
///
/// # Safety
/// Arrays of `count` entries.
unsafe fn batch(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    failed: *mut usize,
    stream: CUstream,
) -> Done {
    if dsts.is_null() || srcs.is_null() || sizes.is_null() || count == 0 || stream.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    for index in 0..count {
        // SAFETY: the caller's promise.
        let (dst, src, bytes) = unsafe { (*dsts.add(index), *srcs.add(index), *sizes.add(index)) };
        if let Err(error) = copy_on(stream, dst, src, bytes) {
            if !failed.is_null() {
                // SAFETY: the caller's output.
                unsafe { failed.write(index) };
            }
            return Err(error);
        }
    }
    Ok(())
}

pub(crate) unsafe fn cuMemcpyBatchAsync(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    _attributes: *mut c_void,
    _attribute_indices: *mut usize,
    _attribute_count: usize,
    failed: *mut usize,
    stream: CUstream,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { batch(dsts, srcs, sizes, count, failed, stream) }
}

pub(crate) unsafe fn cuMemcpyBatchAsync_v2(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    _attributes: *mut c_void,
    _attribute_indices: *mut usize,
    _attribute_count: usize,
    stream: CUstream,
) -> Done {
    // SAFETY: see the module's contract.
    unsafe { batch(dsts, srcs, sizes, count, std::ptr::null_mut(), stream) }
}
