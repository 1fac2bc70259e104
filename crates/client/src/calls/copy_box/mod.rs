//! Copies of two and three dimensions, and copies to and from arrays (`arrays`). They follow the
//! rules of `copy`: if both sides can address the memory, the copy is a message of a few words.
//! Other host memory travels as packed rows, in pieces that each fit one message (`shape`). Copies
//! of several servers are in `between`.

mod arrays;
mod between;
mod shape;

use std::sync::Arc;

use outboard_api::{
    CUresult,
    cuda::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUdeviceptr, CUstream},
    enums::*,
};
use outboard_wire::{
    doc::{self, BoxEnd, CopyBox},
    limits::CHUNK_BYTES_MAX,
    messages,
};

pub(crate) use self::arrays::*;
use self::shape::{End, Extent, Memory, Piece, pack};
use super::{
    Done, In, Untyped,
    copy::{CopyEnd, MemoryKind, Peers, serialized},
};
use crate::{
    observe::guard,
    session::{Group, ReceiveBuffer, Sink},
    state::{Driver, Pageable, StreamRef, are_several, driver},
};

/// Arguments of a copy, checked as by the driver.
#[derive(Debug, Clone, Copy)]
struct Request {
    dst: End,
    src: End,
    extent: Extent,
}

/// One end of a copy, as in the driver's records.
struct RawEnd {
    memory_type: u32,
    host: u64,
    device: CUdeviceptr,
    array: CUarray,
    at: [usize; 3],
    pitch: usize,
    slice_rows: usize,
}

impl RawEnd {
    fn resolve(self, driver: &Driver, extent: Extent) -> Result<End, CUresult> {
        let at = self.at.map(|v| v as u64);
        let address = match self.memory_type {
            CU_MEMORYTYPE_ARRAY => {
                let array = driver.wire_array(self.array)?;
                let Extent {
                    width,
                    height,
                    depth,
                } = extent;
                driver
                    .arrays
                    .check(self.array, at, [width, height, depth])?;
                return Ok(End::Array { array, at });
            }
            CU_MEMORYTYPE_HOST => self.host,
            CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED => self.device,
            _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        };
        let must_be_device = self.memory_type == CU_MEMORYTYPE_DEVICE;
        Memory::new(
            address,
            at,
            self.pitch as u64,
            self.slice_rows as u64,
            must_be_device,
            extent,
        )
        .map(End::Memory)
        .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
    }
}

/// Converts `CUDA_MEMCPY3D` for the servers of its destination and its source; `None` if there is
/// nothing to copy.
fn request_3d(
    (to, from): (&Driver, &Driver),
    copy: &CUDA_MEMCPY3D,
) -> Result<Option<Request>, CUresult> {
    let extent = Extent {
        width: copy.width_in_bytes as u64,
        height: copy.height as u64,
        depth: copy.depth as u64,
    };
    if copy.src_lod != 0 || copy.dst_lod != 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if extent.is_empty() {
        return Ok(None);
    }
    let src = RawEnd {
        memory_type: copy.src_memory_type,
        host: copy.src_host as u64,
        device: copy.src_device,
        array: copy.src_array,
        at: [copy.src_x_in_bytes, copy.src_y, copy.src_z],
        pitch: copy.src_pitch,
        slice_rows: copy.src_height,
    };
    let dst = RawEnd {
        memory_type: copy.dst_memory_type,
        host: copy.dst_host as u64,
        device: copy.dst_device,
        array: copy.dst_array,
        at: [copy.dst_x_in_bytes, copy.dst_y, copy.dst_z],
        pitch: copy.dst_pitch,
        slice_rows: copy.dst_height,
    };
    Ok(Some(Request {
        dst: dst.resolve(to, extent)?,
        src: src.resolve(from, extent)?,
        extent,
    }))
}

/// Converts `CUDA_MEMCPY2D`.
fn record_of_2d(driver: &Driver, copy: &CUDA_MEMCPY2D) -> Result<CUDA_MEMCPY3D, CUresult> {
    let device = driver.contexts.current()?.device;
    let pitch_max = driver.attribute(device, CU_DEVICE_ATTRIBUTE_MAX_PITCH) as usize;
    let too_far = |memory_type, pitch| {
        memory_type != CU_MEMORYTYPE_ARRAY && pitch_max > 0 && pitch > pitch_max
    };
    if too_far(copy.src_memory_type, copy.src_pitch)
        || too_far(copy.dst_memory_type, copy.dst_pitch)
    {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    Ok(CUDA_MEMCPY3D {
        src_x_in_bytes: copy.src_x_in_bytes,
        src_y: copy.src_y,
        src_z: 0,
        src_lod: 0,
        src_memory_type: copy.src_memory_type,
        src_host: copy.src_host,
        src_device: copy.src_device,
        src_array: copy.src_array,
        reserved0: 0,
        src_pitch: copy.src_pitch,
        src_height: 0,
        dst_x_in_bytes: copy.dst_x_in_bytes,
        dst_y: copy.dst_y,
        dst_z: 0,
        dst_lod: 0,
        dst_memory_type: copy.dst_memory_type,
        dst_host: copy.dst_host,
        dst_device: copy.dst_device,
        dst_array: copy.dst_array,
        reserved1: 0,
        dst_pitch: copy.dst_pitch,
        dst_height: 0,
        width_in_bytes: copy.width_in_bytes,
        height: copy.height,
        depth: 1,
    })
}

impl Request {
    /// Returns the whole copy in the form of messages.
    fn whole(&self) -> CopyBox {
        let whole = Piece {
            at: [0; 3],
            extent: self.extent,
        };
        copy_of(self.dst.wire(whole), self.src.wire(whole), self.extent)
    }
}

/// Returns a piece of a copy in the form of messages.
fn describe(
    dst: (BoxEnd, [u64; 3]),
    src: (BoxEnd, [u64; 3]),
    extent: Extent,
) -> Result<Vec<u8>, CUresult> {
    doc::to_bytes(&copy_of(dst, src, extent)).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)
}

fn copy_of(dst: (BoxEnd, [u64; 3]), src: (BoxEnd, [u64; 3]), extent: Extent) -> CopyBox {
    let ((dst, [dst_x, dst_y, dst_z]), (src, [src_x, src_y, src_z])) = (dst, src);
    CopyBox {
        src,
        src_x,
        src_y,
        src_z,
        dst,
        dst_x,
        dst_y,
        dst_z,
        width: extent.width,
        height: extent.height,
        depth: extent.depth,
    }
}

impl Driver {
    /// Refuses extents beyond the device's memory, and pitches beyond its limit. Of some arrays
    /// only the server knows the size.
    fn check_extent(&self, request: &Request) -> Done {
        let Extent {
            width,
            height,
            depth,
        } = request.extent;
        let bytes = width
            .checked_mul(height)
            .and_then(|plane| plane.checked_mul(depth));
        let device = self.contexts.current()?.device;
        let pitch_max = u64::from(
            self.attribute(device, CU_DEVICE_ATTRIBUTE_MAX_PITCH)
                .unsigned_abs(),
        );
        let is_too_far = |end: &End| matches!(end, End::Memory(m) if m.pitch > pitch_max);
        if pitch_max > 0
            && !request.extent.is_line()
            && (is_too_far(&request.dst) || is_too_far(&request.src))
        {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let bytes_max = self.card(device)?.memory_bytes;
        let arrays =
            matches!(request.dst, End::Array { .. }) || matches!(request.src, End::Array { .. });
        match bytes {
            Some(bytes) if !arrays || bytes <= bytes_max => Ok(()),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn place_of_end(&self, end: &End, extent: Extent) -> Result<MemoryKind, CUresult> {
        let End::Memory(memory) = end else {
            return Ok(MemoryKind::Device);
        };
        let bytes = memory
            .span(extent)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if memory.must_be_device
            && let Some(kind) = self.device_place(memory.address, bytes)?
        {
            return Ok(kind);
        }
        self.memory_kind(memory.address, bytes)
    }

    fn run_box(&self, request: Request, stream: &StreamRef, wait: bool) -> Done {
        let Request { dst, src, extent } = request;
        self.check_extent(&request)?;
        let (to, from) = (
            self.place_of_end(&dst, extent)?,
            self.place_of_end(&src, extent)?,
        );
        if let (End::Memory(memory), true) = (&dst, to != MemoryKind::Device) {
            let bytes = memory.span(extent);
            self.refuse_read_only(memory.address, bytes.unwrap_or(u64::MAX))?;
        }
        match (&dst, &src) {
            (End::Memory(dst), End::Memory(src))
                if dst.is_contiguous(extent) && src.is_contiguous(extent) =>
            {
                let dst = CopyEnd::known(dst.address, to);
                let src = CopyEnd::known(src.address, from);
                return self.copy(dst, src, extent.bytes() as usize, stream, wait);
            }
            _ => {}
        }
        self.keep_pace_of_copy(stream, (to, from), extent.bytes() as usize)?;
        if stream.is_capturing() {
            // A captured copy cannot be waited for.
            if wait {
                self.refuse_captured(stream)?;
            }
            match (&dst, to, &src, from) {
                (End::Memory(host), MemoryKind::Pageable, _, MemoryKind::Device)
                | (_, MemoryKind::Device, End::Memory(host), MemoryKind::Pageable) => {
                    let host = Pageable {
                        address: host.address,
                        rows: host.rows(extent),
                        to_host: to != MemoryKind::Device,
                    };
                    return self.capture_pageable(stream, host, request.whole());
                }
                _ => {}
            }
            for (end, place) in [(&dst, to), (&src, from)] {
                match (end, place) {
                    (End::Memory(m), MemoryKind::Pinned) => self.make_visible(m.address)?,
                    (_, MemoryKind::Pageable) => return self.refuse_captured(stream),
                    _ => {}
                }
            }
            if (to, from) != (MemoryKind::Device, MemoryKind::Device) {
                self.host_is_used(stream);
            }
            return self.copy_box_here(&request, stream);
        }
        self.run_by_kinds((to, from), &request, stream, wait)?;
        self.settle_shared((to, from), stream, wait)
    }

    fn run_by_kinds(
        &self,
        kinds: (MemoryKind, MemoryKind),
        request: &Request,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        match kinds {
            (MemoryKind::Device, MemoryKind::Device) => self.copy_box_here(request, stream),
            (MemoryKind::Device, MemoryKind::Shared) if !wait => {
                self.copy_box_here(request, stream)?;
                self.host_is_used(stream);
                Ok(())
            }
            (MemoryKind::Device, _) => {
                match (kinds.1, &request.src) {
                    (MemoryKind::Pinned, End::Memory(m)) => {
                        self.settle_pinned(m.address, stream, wait)?
                    }
                    (MemoryKind::Pinned | MemoryKind::Shared, _) => self.settle_stream(stream)?,
                    _ => self.settle_pageable(stream, wait)?,
                }
                self.copy_box_in(request, stream, wait)
            }
            (MemoryKind::Shared, MemoryKind::Device) => {
                self.copy_box_here(request, stream)?;
                if wait {
                    self.synchronize_stream(stream)
                } else {
                    self.host_is_used(stream);
                    Ok(())
                }
            }
            (MemoryKind::Pinned, MemoryKind::Device) if !wait => {
                self.push_before_wait()?;
                self.copy_box_out(request, stream, true).map(drop)
            }
            (_, MemoryKind::Device) => {
                self.push_before_wait()?;
                let group = self.copy_box_out(request, stream, false)?;
                self.session.wait(&group)?;
                self.session.take_fault(|| stream.context())
            }
            (_, _) => {
                // Host to host, in the stream's order.
                self.settle_followed(stream)?;
                self.copy_rows(request)
            }
        }
    }

    /// Sends a copy whose ends have the same address on the server.
    fn copy_box_here(&self, request: &Request, stream: &StreamRef) -> Done {
        self.push_visible()?;
        let desc = doc::to_bytes(&request.whole()).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        self.submit_to(
            stream,
            &messages::CopyBox {
                stream: stream.wire(),
                desc: &desc,
            },
        )
    }

    /// Copies to the device: the source's rows travel with the messages.
    fn copy_box_in(&self, request: &Request, stream: &StreamRef, wait: bool) -> Done {
        let End::Memory(src) = &request.src else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        let mut packed = Vec::new();
        for piece in request.extent.pieces(CHUNK_BYTES_MAX as u64) {
            packed.clear();
            // SAFETY: a piece of the source, which stays readable until the call returns.
            unsafe {
                pack(
                    src.address + src.offset(piece.at),
                    src.rows(piece.extent),
                    &mut packed,
                );
            }
            let desc = describe(
                request.dst.wire(piece),
                (BoxEnd::Packed, [0; 3]),
                piece.extent,
            )?;
            self.submit_to(
                stream,
                &messages::CopyBoxIn {
                    stream: stream.wire(),
                    sync: u32::from(wait),
                    desc: &desc,
                    data: packed[..].into(),
                },
            )?;
        }
        Ok(())
    }

    /// Copies from the device: the replies carry the rows.
    fn copy_box_out(
        &self,
        request: &Request,
        stream: &StreamRef,
        detached: bool,
    ) -> Result<Arc<Group>, CUresult> {
        let End::Memory(dst) = &request.dst else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        let pieces = request.extent.pieces(CHUNK_BYTES_MAX as u64);
        let (replies, mut asked) = (pieces.len(), 0);
        let group = Group::new(replies);
        let all_bytes = dst.rows(request.extent).spanned_bytes() as u64;
        let ask_for_all = || -> Done {
            let _sent_as_it_is = self.copying_out(dst.address, all_bytes);
            for piece in pieces {
                let address = (dst.address + dst.offset(piece.at)) as *mut u8;
                let rows = dst.rows(piece.extent);
                let sink = Sink::Memory(ReceiveBuffer {
                    address,
                    rows,
                    detached,
                    stream: stream.wire(),
                    in_order: self.is_mirrored_in(address as u64, rows.spanned_bytes() as u64),
                });
                let desc = describe(
                    (BoxEnd::Packed, [0; 3]),
                    request.src.wire(piece),
                    piece.extent,
                )?;
                let message = messages::CopyBoxOut {
                    stream: stream.wire(),
                    desc: &desc,
                };
                let (work, context) = (stream.work(), stream.context());
                let ask = || {
                    self.session
                        .ask_numbered(work, context, &message, &group, sink)
                };
                match detached {
                    true => self.session.attending(ask)?,
                    false => ask()?,
                };
                asked += 1;
            }
            Ok(())
        };
        match ask_for_all() {
            Ok(()) => Ok(group),
            Err(error) => Err(self
                .session
                .end_in_part(&group, replies - asked, detached, error)),
        }
    }

    fn copy_rows(&self, request: &Request) -> Done {
        let (End::Memory(dst), End::Memory(src)) = (&request.dst, &request.src) else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        for z in 0..request.extent.depth {
            for y in 0..request.extent.height {
                let (to, from) = (
                    dst.address + dst.offset([0, y, z]),
                    src.address + src.offset([0, y, z]),
                );
                // SAFETY: rows of the caller's memory on both sides.
                unsafe {
                    std::ptr::copy(
                        from as *const u8,
                        to as *mut u8,
                        request.extent.width as usize,
                    )
                };
            }
        }
        Ok(())
    }
}

fn run(
    request: impl FnOnce(&Driver) -> Result<Option<Request>, CUresult>,
    stream: CUstream,
    wait: bool,
) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    let Some(request) = request(driver)? else {
        return Ok(());
    };
    let peers = match (&request.dst, &request.src) {
        (End::Memory(dst), End::Memory(src)) => {
            driver.follow_peers(&stream, wait, || [dst.address, src.address])?
        }
        _ => Peers::default(),
    };
    driver.run_box(request, &stream, wait)?;
    driver.precede_peers(&stream, peers)
}

/// Runs a copy of three dimensions at its server, or between two.
fn run_record(copy: &CUDA_MEMCPY3D, stream: CUstream, wait: bool) -> Done {
    if are_several() {
        return between::run_record(copy, stream, wait);
    }
    run_here(copy, stream, wait)
}

fn run_here(copy: &CUDA_MEMCPY3D, stream: CUstream, wait: bool) -> Done {
    run(|driver| request_3d((driver, driver), copy), stream, wait)
}

fn run_2d(copy: In<'_, CUDA_MEMCPY2D>, stream: CUstream, wait: bool) -> Done {
    let copy = copy.get()?;
    run_record(&record_of_2d(driver()?, &copy)?, stream, wait)
}

fn run_3d(copy: In<'_, CUDA_MEMCPY3D>, stream: CUstream, wait: bool) -> Done {
    run_record(&copy.get()?, stream, wait)
}

pub(crate) fn cuMemcpy2D_v2(copy: In<'_, CUDA_MEMCPY2D>) -> Done {
    run_2d(copy, guard::default_stream(), true)
}

/// Accepts any alignment, as all copies here do.
pub(crate) fn cuMemcpy2DUnaligned_v2(copy: In<'_, CUDA_MEMCPY2D>) -> Done {
    run_2d(copy, guard::default_stream(), true)
}

pub(crate) fn cuMemcpy2DAsync_v2(copy: In<'_, CUDA_MEMCPY2D>, stream: CUstream) -> Done {
    run_2d(copy, stream, false)
}

pub(crate) fn cuMemcpy3D_v2(copy: In<'_, CUDA_MEMCPY3D>) -> Done {
    run_3d(copy, guard::default_stream(), true)
}

pub(crate) fn cuMemcpy3DAsync_v2(copy: In<'_, CUDA_MEMCPY3D>, stream: CUstream) -> Done {
    run_3d(copy, stream, false)
}

/// Copies by addresses: all devices share one address space. The record is a `CUDA_MEMCPY3D` with
/// contexts in the reserved words.
pub(crate) fn cuMemcpy3DPeer(Untyped(copy): Untyped<In<'_, CUDA_MEMCPY3D>>) -> Done {
    let copy = copy.get()?;
    // An array's end has no address: then the devices' default streams alone are followed.
    serialized([copy.dst_device, copy.src_device], || {
        run_record(&copy, guard::default_stream(), true)
    })
}

pub(crate) fn cuMemcpy3DPeerAsync(
    Untyped(copy): Untyped<In<'_, CUDA_MEMCPY3D>>,
    stream: CUstream,
) -> Done {
    run_3d(copy, stream, false)
}
