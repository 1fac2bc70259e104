//! Copies of one dimension. Their cost depends on their direction:
//!
//! - Host to device: the bytes travel with the message, and the call does not wait. The message of
//!   a synchronous copy is marked; the server makes all work that is sent later, to any stream,
//!   follow it.
//! - Device to device, and between the device and memory that both sides share: a message of a few
//!   words.
//! - Device to host: the reply carries the bytes. The call waits for them, as on a local GPU,
//!   unless the destination is pinned memory.

use std::{ffi::c_void, sync::Arc};

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdeviceptr, CUstream},
};
use outboard_link::{RdmaTarget, RdmaUse};
use outboard_wire::{
    limits::{CHUNK_BYTES_MAX, DATA_CONNECTION_COPY_BYTES_MIN},
    messages,
};

use super::{Done, Out, across};
use crate::{
    observe::{conditions, guard, profile, record, servers::Selected},
    session::{Group, ReceiveBuffer, Rows, Sink},
    state::{
        Allocation, Driver, Learned, StreamRef, are_several, driver, host_functions, wire_context,
    },
};

/// Longest copy to the device whose bytes travel with the message even if memory is shared.
const INLINE_BYTES_MAX: usize = 256;
/// Longest synchronous copy of pinned memory whose bytes the client copies away; longer ones are
/// waited for.
const SYNC_COPY_BYTES_MAX: usize = 64 << 10;

/// The kind of memory at an address, as copies distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Device,
    /// Pinned host memory that the server sees at the same address: shared memory, or a mirror that
    /// stays open.
    Shared,
    /// Other pinned host memory.
    Pinned,
    Pageable,
}

/// One end of a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CopyEnd {
    address: u64,
    memory: EndMemory,
}

/// The memory of a copy's end, as far as the call tells.
#[derive(Debug, Clone, Copy)]
enum EndMemory {
    /// Classified already.
    Known(MemoryKind),
    /// The host's according to the call's name. Memory of the device that this process knows is
    /// taken too.
    Host,
    /// Any memory: it may be a variable that only the server knows.
    Any,
}

impl CopyEnd {
    #[inline(always)]
    fn any(address: u64) -> CopyEnd {
        CopyEnd {
            address,
            memory: EndMemory::Any,
        }
    }

    #[inline(always)]
    fn host(address: u64) -> CopyEnd {
        CopyEnd {
            address,
            memory: EndMemory::Host,
        }
    }

    pub(super) fn known(address: u64, kind: MemoryKind) -> CopyEnd {
        CopyEnd {
            address,
            memory: EndMemory::Known(kind),
        }
    }

    /// Memory that must be device memory according to the call's name.
    #[inline(always)]
    fn device(address: u64, bytes: usize) -> Result<CopyEnd, CUresult> {
        let kind = match bytes {
            0 => None,
            _ => driver()?.device_place(address, bytes as u64)?,
        };
        Ok(CopyEnd {
            address,
            memory: kind.map_or(EndMemory::Host, EndMemory::Known),
        })
    }

    #[inline(always)]
    fn kind(self, driver: &Driver, bytes: usize) -> Result<MemoryKind, CUresult> {
        match self.memory {
            EndMemory::Known(kind) => Ok(kind),
            EndMemory::Any => driver.memory_kind(self.address, bytes as u64),
            EndMemory::Host => driver
                .known_kind(self.address, bytes as u64)
                .map(|kind| kind.unwrap_or(MemoryKind::Pageable)),
        }
    }
}

impl Driver {
    /// Returns the kind of memory of a whole range. A range of device memory must lie inside one
    /// allocation. Of memory that nobody here knows, the server is asked.
    #[inline(always)]
    pub(crate) fn memory_kind(&self, address: u64, bytes: u64) -> Result<MemoryKind, CUresult> {
        match self.known_kind(address, bytes)? {
            Some(kind) => Ok(kind),
            None => self.unknown_kind(address, bytes),
        }
    }

    #[cold]
    fn unknown_kind(&self, address: u64, bytes: u64) -> Result<MemoryKind, CUresult> {
        let kind = match self.learn(address)? {
            Learned::Variable => self.known_kind(address, bytes)?,
            Learned::Program => None,
            // The program could not read it either.
            Learned::Nothing if bytes > 0 => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            Learned::Nothing => None,
        };
        Ok(kind.unwrap_or(MemoryKind::Pageable))
    }

    /// Returns the kind of memory that this process knows.
    fn known_kind(&self, address: u64, bytes: u64) -> Result<Option<MemoryKind>, CUresult> {
        {
            let memory = self.memory.lock();
            let fits = |a: &Allocation| bytes <= a.base + a.bytes - address;
            if let Some(a) = memory.find(address) {
                return if !a.may_be_used() {
                    Err(CUresult::CUDA_ERROR_INVALID_VALUE)
                } else if fits(a) || memory.find_of_modules(address).is_some_and(fits) {
                    Ok(Some(MemoryKind::Device))
                } else {
                    self.spans_mappings(&memory, address, bytes).map(Some)
                };
            }
            if memory.in_window(address) || self.is_elsewhere(address) {
                return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
            }
        }
        let host = self.host.read();
        Ok(host.find(address).map(|r| {
            if bytes > r.base + r.bytes - address {
                // A range that continues past the end of pinned memory counts as pageable.
                MemoryKind::Pageable
            } else if r.shared || r.mirror.stays_open() {
                MemoryKind::Shared
            } else {
                MemoryKind::Pinned
            }
        }))
    }

    /// Returns whether a range is covered by adjacent mappings, as programs make them with
    /// `cuMemMap`.
    fn spans_mappings(
        &self,
        memory: &crate::state::DeviceMemory,
        address: u64,
        bytes: u64,
    ) -> Result<MemoryKind, CUresult> {
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
        Ok(MemoryKind::Device)
    }

    /// Refuses a range that the device cannot use. Returns the kind of its memory, unless this call
    /// has changed it.
    #[inline(always)]
    pub(super) fn device_place(
        &self,
        address: u64,
        bytes: u64,
    ) -> Result<Option<MemoryKind>, CUresult> {
        // Variables of modules and mapped host memory count as device memory too.
        match self.memory_kind(address, bytes)? {
            kind @ (MemoryKind::Device | MemoryKind::Shared) => Ok(Some(kind)),
            MemoryKind::Pinned => self.make_visible(address).map(|()| None),
            MemoryKind::Pageable => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Copies to the device. Over shm the bytes go into memory that the GPU reads, over other links
    /// in pieces that travel with messages. Nothing waits for the GPU: if the call is synchronous
    /// (`wait`), the server makes all later work follow the copy.
    fn copy_in(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        // SAFETY: the source has `bytes` bytes: the driver API asks it of its callers. It is memory
        // of this process alone, which the program leaves unchanged until the call returns.
        let data = unsafe { std::slice::from_raw_parts(src, bytes) };
        if self.place_on_gpu(dst, data, None, stream, wait)? {
            return Ok(());
        }
        let staged = if bytes > INLINE_BYTES_MAX && self.has_board() {
            // SAFETY: the source has `bytes` bytes: the driver API asks it of its callers.
            unsafe { self.stage_in(dst, src, bytes, stream, wait)? }
        } else {
            0
        };
        let (dst, data) = (dst + staged as u64, &data[staged..]);
        if data.len() >= DATA_CONNECTION_COPY_BYTES_MIN && self.session.has_data_connections() {
            let context = profile::tagged(wire_context());
            let announce = |offset: usize, piece: &[u8]| {
                let message = messages::CopyIn {
                    dst: dst + offset as u64,
                    stream: stream.wire(),
                    sync: u32::from(wait),
                    data: piece.into(),
                };
                self.session
                    .post_without_data(stream.work(), context, &message)
            };
            if let Some(sent) = self.session.send_on_data_connections(data, announce) {
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
                    data: piece.into(),
                },
            )?;
        }
        Ok(())
    }

    /// Copies to the device, and notes it for a wait that follows.
    fn copy_in_taken(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        self.taking(stream, || self.copy_in(dst, src, bytes, stream, wait))
    }

    /// Copies to the device from memory that the server maps too. The server can write there at any
    /// time, so no reference leads into it.
    fn copy_in_shared(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let staged = match bytes > INLINE_BYTES_MAX && self.has_board() {
            // SAFETY: the source has `bytes` bytes: the driver API asks it of its callers.
            true => unsafe { self.stage_in(dst, src, bytes, stream, wait)? },
            false => 0,
        };
        let mut own = vec![0; bytes - staged];
        // SAFETY: the rest of the source, to as many bytes of our own.
        unsafe { std::ptr::copy_nonoverlapping(src.add(staged), own.as_mut_ptr(), own.len()) };
        for (index, data) in own.chunks(CHUNK_BYTES_MAX).enumerate() {
            let message = messages::CopyIn {
                dst: dst + (staged + index * CHUNK_BYTES_MAX) as u64,
                stream: stream.wire(),
                sync: u32::from(wait),
                data: data.into(),
            };
            self.submit_to(stream, &message)?;
        }
        Ok(())
    }

    /// Copies from the device. The replies carry the bytes, in pieces that overlap. Returns the
    /// number of the last one, too.
    fn copy_out(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        detached: bool,
    ) -> Result<(Arc<Group>, u64), CUresult> {
        let pieces = bytes.div_ceil(CHUNK_BYTES_MAX);
        let group = Group::new(pieces);
        let (context, work) = (wire_context(), stream.work());
        let mut number = 0;
        let target = self.registered(dst as u64, bytes, RdmaUse::Target);
        let on_data_connections =
            bytes >= DATA_CONNECTION_COPY_BYTES_MIN && self.session.has_data_connections();
        for index in 0..pieces {
            let offset = index * CHUNK_BYTES_MAX;
            let len = CHUNK_BYTES_MAX.min(bytes - offset);
            // SAFETY: inside the destination of `bytes` bytes.
            let address = unsafe { dst.add(offset) };
            let buffer = ReceiveBuffer {
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
            number = if let Some(target) = &target {
                let RdmaTarget { address, key } = target.target(address as u64);
                let message = messages::CopyOutTo {
                    src: message.src,
                    len: message.len,
                    stream: message.stream,
                    to: address,
                    key,
                };
                let sink = Sink::Memory(buffer);
                self.session
                    .ask_numbered(work, context, &message, &group, sink)?
            } else if on_data_connections {
                self.session
                    .ask_for_data_connection(work, context, &message, &group, buffer)?
            } else {
                let sink = Sink::Memory(buffer);
                self.session
                    .ask_numbered(work, context, &message, &group, sink)?
            };
        }
        Ok((group, number))
    }

    /// Copies device memory to `dst` and waits. Over shm the GPU writes into staging memory.
    /// Returns the number of the last message.
    ///
    /// # Safety
    /// `dst` must have room for `bytes` bytes.
    unsafe fn copy_out_now(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<u64, CUresult> {
        let mut staged = 0;
        if self.has_board() {
            let number;
            // SAFETY: `dst` has room for `bytes` bytes by this function's contract.
            (staged, number) = unsafe { self.stage_out(dst, src, bytes, stream)? };
            if staged == bytes {
                return Ok(number);
            }
            // Without staging memory, replies carry the rest.
        }
        // SAFETY: inside the destination.
        let rest = unsafe { dst.add(staged) };
        let (src, left) = (src + staged as u64, bytes - staged);
        let (group, number) = self.copy_out(rest, src, left, stream, false)?;
        self.session.wait(&group)?;
        Ok(number)
    }

    /// Waits for a synchronous copy from the host to a device if another session could look at its
    /// end: the server makes only this session's later work follow the copy.
    pub(super) fn settle_shared(
        &self,
        (to, from): (MemoryKind, MemoryKind),
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        match to == MemoryKind::Device && from != MemoryKind::Device {
            true if wait && self.session.is_sharing() => self.synchronize_stream(stream),
            _ => Ok(()),
        }
    }

    /// Copies between addresses that are the same on both sides. As in CUDA, a synchronous copy
    /// between two places on devices does not wait, and work in other streams does not wait for it.
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

    /// Waits for work that precedes a copy of pageable memory, if the program could tell the
    /// difference, or if a host function may still write the memory: its bytes are taken at the
    /// call.
    pub(super) fn settle_pageable(&self, stream: &StreamRef, wait: bool) -> Done {
        match wait {
            true => self.settle_host(stream),
            false if host_functions::host_functions_pending() => self.settle_stream(stream),
            false => Ok(()),
        }
    }

    /// Waits for earlier work that may still write the pinned memory at `source`: a copy takes the
    /// data at the call, and would otherwise take old bytes.
    pub(super) fn settle_pinned(&self, source: u64, stream: &StreamRef) -> Done {
        if self.is_mirrored(source) {
            return self.settle_stream(stream);
        }
        self.settle_host(stream)
    }

    /// Copies in any direction; the addresses determine which.
    pub(crate) fn copy(
        &self,
        dst: CopyEnd,
        src: CopyEnd,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        if bytes == 0 {
            return Ok(());
        }
        if dst.address == 0 || src.address == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let kinds = (dst.kind(self, bytes)?, src.kind(self, bytes)?);
        self.keep_pace_of_copy(stream, bytes)?;
        let (dst, src) = (dst.address, src.address);
        if conditions::is_recorded() && !stream.is_capturing() {
            return self.copy_recorded(kinds, dst, src, bytes, stream, wait);
        }
        self.copy_between(kinds, dst, src, bytes, stream, wait)
    }

    #[cold]
    fn copy_recorded(
        &self,
        kinds: (MemoryKind, MemoryKind),
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let copy = || self.copy_between(kinds, dst, src, bytes, stream, wait);
        let is_device = |kind| kind == MemoryKind::Device;
        match (is_device(kinds.0), is_device(kinds.1)) {
            (true, false) => record::copying(record::Way::ToDevice, bytes, copy),
            (false, true) => record::copying(record::Way::ToHost, bytes, copy),
            _ => copy(),
        }
    }

    /// Copies between memory of these kinds.
    fn copy_between(
        &self,
        (to, from): (MemoryKind, MemoryKind),
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        if stream.is_capturing() {
            // A captured copy cannot be waited for.
            if wait {
                self.refuse_captured(stream)?;
            }
            return self.capture_copy(dst, src, bytes, stream, to, from);
        }
        self.copy_by_kinds((to, from), (dst, src, bytes), stream, wait)?;
        self.settle_shared((to, from), stream, wait)
    }

    fn copy_by_kinds(
        &self,
        kinds: (MemoryKind, MemoryKind),
        (dst, src, bytes): (u64, u64, usize),
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        match kinds {
            (MemoryKind::Device, MemoryKind::Device) => {
                self.copy_here(dst, src, bytes as u64, stream)
            }
            (MemoryKind::Device, MemoryKind::Shared) if !wait => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                self.host_is_used(stream);
                Ok(())
            }
            // Waiting for the GPU is faster than copying many bytes.
            (MemoryKind::Device, MemoryKind::Shared) if bytes > SYNC_COPY_BYTES_MAX => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                self.synchronize_stream(stream)
            }
            // The program may change the source when a synchronous copy returns, so the client
            // copies the bytes away. Before that it waits for earlier work that could still write
            // them.
            (MemoryKind::Device, MemoryKind::Shared) => {
                self.settle_stream(stream)?;
                self.copy_in_shared(dst, src as *const u8, bytes, stream, wait)
            }
            (MemoryKind::Device, MemoryKind::Pinned) => {
                self.settle_pinned(src, stream)?;
                if self.copy_in_registered(dst, src as *const u8, bytes, stream, wait)? {
                    if !wait {
                        self.host_is_used(stream);
                    }
                    return Ok(());
                }
                self.copy_in_taken(dst, src as *const u8, bytes, stream, wait)
            }
            (MemoryKind::Device, _) => {
                self.settle_pageable(stream, wait)?;
                self.copy_in_taken(dst, src as *const u8, bytes, stream, wait)
            }
            (MemoryKind::Shared, MemoryKind::Device) => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                if wait {
                    self.synchronize_stream(stream)
                } else {
                    self.host_is_used(stream);
                    Ok(())
                }
            }
            (MemoryKind::Pinned, MemoryKind::Device) if !wait => {
                self.bring(dst as *mut u8, src, bytes, stream)
            }
            (_, MemoryKind::Device) => {
                // SAFETY: the caller's destination, as the driver API asks of it.
                let number = unsafe { self.copy_out_now(dst as *mut u8, src, bytes, stream)? };
                // The copy is done, and so is all work that it waited for.
                stream.progress().complete(number);
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

    /// Copies from the device to pinned memory without a wait. If one reply tells when it is done,
    /// notes it for a wait that follows.
    fn bring(&self, dst: *mut u8, src: u64, bytes: usize, stream: &StreamRef) -> Done {
        let (group, number) = self.copy_out(dst, src, bytes, stream, true)?;
        // An adapter's copy does not bring what kernels printed before.
        if bytes <= CHUNK_BYTES_MAX && !self.session.registers() {
            *stream.stream().brought.lock() = Some((number, group));
        }
        Ok(())
    }

    /// Adds a copy to a captured graph: it reads and writes memory at each launch, not now.
    fn capture_copy(
        &self,
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        to: MemoryKind,
        from: MemoryKind,
    ) -> Done {
        if let (MemoryKind::Pageable, MemoryKind::Device)
        | (MemoryKind::Device, MemoryKind::Pageable) = (to, from)
        {
            return self.capture_pageable_line(
                dst,
                src,
                bytes as u64,
                stream,
                to != MemoryKind::Device,
            );
        }
        for (address, place) in [(dst, to), (src, from)] {
            match place {
                MemoryKind::Device | MemoryKind::Shared => {}
                MemoryKind::Pinned => self.make_visible(address)?,
                MemoryKind::Pageable => return self.refuse_captured(stream),
            }
        }
        if (to, from) != (MemoryKind::Device, MemoryKind::Device) {
            self.host_is_used(stream);
        }
        self.copy_here(dst, src, bytes as u64, stream)
    }
}

/// Runs a copy whose ends may lie on two servers.
#[inline(always)]
fn between(
    stream: CUstream,
    wait: bool,
    whole: (u64, u64, usize),
    here: impl FnOnce() -> Done,
) -> Done {
    let mut _selected = None;
    if are_several() {
        match between_servers(stream, wait, whole)? {
            Some(server) => _selected = Some(server),
            None => return Ok(()),
        }
    }
    here()
}

/// Selects the one server that has both ends, or makes the copy.
#[cold]
fn between_servers(
    stream: CUstream,
    wait: bool,
    whole: (u64, u64, usize),
) -> Result<Option<Selected>, CUresult> {
    let check = |driver: &Driver, address, bytes| match driver.memory_kind(address, bytes as u64)?
        == MemoryKind::Device
    {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    let copy = |driver: &Driver, (dst, src, bytes): (u64, u64, usize), stream: &StreamRef| {
        driver.copy(CopyEnd::any(dst), CopyEnd::any(src), bytes, stream, true)
    };
    across::line(stream, wait, whole, check, copy)
}

/// `cuMemcpy*` without a stream argument.
fn copy_now(dst: CopyEnd, src: CopyEnd, bytes: usize) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(guard::default_stream())?;
    match driver.contexts.are_of_several_devices() {
        true => driver.copy_among(dst, src, bytes, &stream, true),
        false => driver.copy(dst, src, bytes, &stream, true),
    }
}

fn copy_on(stream: CUstream, dst: CopyEnd, src: CopyEnd, bytes: usize) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    match driver.contexts.are_of_several_devices() {
        true => driver.copy_among(dst, src, bytes, &stream, false),
        false => driver.copy(dst, src, bytes, &stream, false),
    }
}

pub(crate) unsafe fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Done {
    between(guard::default_stream(), true, (dst, src, bytes), || {
        copy_now(CopyEnd::any(dst), CopyEnd::any(src), bytes)
    })
}

pub(crate) unsafe fn cuMemcpyAsync(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Done {
    between(stream, false, (dst, src, bytes), || {
        copy_on(stream, CopyEnd::any(dst), CopyEnd::any(src), bytes)
    })
}

pub(crate) unsafe fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) -> Done {
    between(
        guard::default_stream(),
        true,
        (dst, src as u64, bytes),
        || {
            let dst = CopyEnd::device(dst, bytes)?;
            copy_now(dst, CopyEnd::host(src as u64), bytes)
        },
    )
}

pub(crate) unsafe fn cuMemcpyHtoDAsync_v2(
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Done {
    between(stream, false, (dst, src as u64, bytes), || {
        let dst = CopyEnd::device(dst, bytes)?;
        copy_on(stream, dst, CopyEnd::host(src as u64), bytes)
    })
}

pub(crate) unsafe fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) -> Done {
    between(
        guard::default_stream(),
        true,
        (dst as u64, src, bytes),
        || {
            let src = CopyEnd::device(src, bytes)?;
            copy_now(CopyEnd::host(dst as u64), src, bytes)
        },
    )
}

pub(crate) unsafe fn cuMemcpyDtoHAsync_v2(
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Done {
    between(stream, false, (dst as u64, src, bytes), || {
        let src = CopyEnd::device(src, bytes)?;
        copy_on(stream, CopyEnd::host(dst as u64), src, bytes)
    })
}

pub(crate) unsafe fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) -> Done {
    between(guard::default_stream(), true, (dst, src, bytes), || {
        let (dst, src) = (CopyEnd::device(dst, bytes)?, CopyEnd::device(src, bytes)?);
        copy_now(dst, src, bytes)
    })
}

pub(crate) unsafe fn cuMemcpyDtoDAsync_v2(
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Done {
    between(stream, false, (dst, src, bytes), || {
        let (dst, src) = (CopyEnd::device(dst, bytes)?, CopyEnd::device(src, bytes)?);
        copy_on(stream, dst, src, bytes)
    })
}

impl Driver {
    /// Copies on a server with several devices.
    #[cold]
    #[inline(never)]
    fn copy_among(
        &self,
        dst: CopyEnd,
        src: CopyEnd,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let ends = [dst.address, src.address];
        let has_peer = bytes > 0 && self.settles_peers(stream, wait, || ends)?;
        self.copy(dst, src, bytes, stream, wait)?;
        match has_peer {
            true => self.synchronize_stream(stream),
            false => Ok(()),
        }
    }

    /// Waits for other devices' work before a copy in the default stream, or without one. Returns
    /// true if later work of those devices has to wait for the copy.
    #[inline]
    pub(super) fn settles_peers(
        &self,
        stream: &StreamRef,
        wait: bool,
        ends: impl FnOnce() -> [u64; 2],
    ) -> Result<bool, CUresult> {
        match self.contexts.are_of_several_devices()
            && (wait || stream.is_legacy())
            && !stream.is_capturing()
        {
            true => self.settle_peers(ends()),
            false => Ok(false),
        }
    }

    /// Waits for all work of the devices that have an end of a copy and are not the current one:
    /// a copy in the default stream follows it, and precedes all later work there (CUDA Programming
    /// Guide, "Peer-to-Peer Memory Copy"). Returns true if there is such a device.
    #[cold]
    fn settle_peers(&self, ends: [u64; 2]) -> Result<bool, CUresult> {
        let here = self.contexts.current()?.handle;
        let owner = |address| self.memory.lock().find(address).map(|found| found.context);
        let [Some(dst), Some(src)] = ends.map(owner) else {
            return Ok(false);
        };
        // Mapped memory belongs to no context: it may be any device's.
        let is_known = [dst, src].map(|context| self.contexts.get(context).is_ok());
        let owners = match is_known {
            [true, true] => vec![dst, src],
            _ => self.contexts.made_primaries(),
        };
        let mut has_peer = false;
        for context in owners.into_iter().filter(|context| *context != here) {
            self.settle_default(context)?;
            has_peer = true;
        }
        Ok(has_peer)
    }
}

/// Copies by addresses: all devices share one address space.
pub(crate) unsafe fn cuMemcpyPeer(
    dst: CUdeviceptr,
    _dst_context: CUcontext,
    src: CUdeviceptr,
    _src_context: CUcontext,
    bytes: usize,
) -> Done {
    between(guard::default_stream(), true, (dst, src, bytes), || {
        let (dst, src) = (CopyEnd::device(dst, bytes)?, CopyEnd::device(src, bytes)?);
        copy_now(dst, src, bytes)
    })
}

pub(crate) unsafe fn cuMemcpyPeerAsync(
    dst: CUdeviceptr,
    _dst_context: CUcontext,
    src: CUdeviceptr,
    _src_context: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Done {
    between(stream, false, (dst, src, bytes), || {
        let (dst, src) = (CopyEnd::device(dst, bytes)?, CopyEnd::device(src, bytes)?);
        copy_on(stream, dst, src, bytes)
    })
}

/// Makes the copies of a batch one after the other: a batch's attributes only relax the order that
/// a stream keeps.
///
/// # Safety
/// The arrays must be NULL or have `count` entries.
unsafe fn batch(
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    failed: Out<'_, usize>,
    stream: CUstream,
) -> Done {
    if dsts.is_null() || srcs.is_null() || sizes.is_null() || count == 0 || stream.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    for index in 0..count {
        // SAFETY: not NULL, so they have `count` entries by this function's contract.
        let (dst, src, bytes) = unsafe { (*dsts.add(index), *srcs.add(index), *sizes.add(index)) };
        let here = || copy_on(stream, CopyEnd::any(dst), CopyEnd::any(src), bytes);
        if let Err(error) = between(stream, false, (dst, src, bytes), here) {
            failed.put_optional(index);
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
    failed: Out<'_, usize>,
    stream: CUstream,
) -> Done {
    // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
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
    // SAFETY: arrays of `count` entries: the driver API asks it of its callers.
    unsafe { batch(dsts, srcs, sizes, count, Out::none(), stream) }
}
