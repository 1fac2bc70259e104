//! Copies of two and three dimensions, and copies to and from arrays. The same rules as for one dimension
//! (`copy.rs`): what both sides can address is a message of a few words; other host memory travels as packed rows, in
//! pieces that each fit one message.

use std::{ffi::c_void, sync::Arc};

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

use super::{Done, copy::Place};
use crate::{
    guard,
    session::{Group, Landing, Rows, Sink},
    state::{Driver, StreamRef, driver, wire_context},
};

/// What is copied: bytes of a row, rows of a slice, slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    width: u64,
    height: u64,
    depth: u64,
}

/// Part of an extent: where it begins, and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    at: [u64; 3],
    extent: Extent,
}

/// One end of a copy, its origin taken into account.
#[derive(Debug, Clone, Copy)]
enum End {
    Memory(Memory),
    Array { array: u64, at: [u64; 3] },
}

/// Rows in memory: `address` is the first byte copied, `pitch` apart in bytes, `slice_rows` of them a slice.
#[derive(Debug, Clone, Copy)]
struct Memory {
    address: u64,
    pitch: u64,
    slice_rows: u64,
    /// The caller says that it is device memory.
    must_be_device: bool,
}

impl Memory {
    fn offset(&self, [x, y, z]: [u64; 3]) -> u64 {
        (z * self.slice_rows + y) * self.pitch + x
    }

    /// From the first byte copied to the last.
    fn span(&self, extent: Extent) -> Option<u64> {
        let slices = (extent.depth - 1)
            .checked_mul(self.slice_rows)?
            .checked_mul(self.pitch)?;
        slices
            .checked_add((extent.height - 1).checked_mul(self.pitch)?)?
            .checked_add(extent.width)
    }

    fn is_contiguous(&self, extent: Extent) -> bool {
        let (plane, rows) = (
            self.slice_rows.checked_mul(self.pitch),
            extent.width.checked_mul(extent.height),
        );
        (extent.height == 1 || self.pitch == extent.width) && (extent.depth == 1 || plane == rows)
    }

    /// How rows of a piece lie here.
    fn rows(&self, extent: Extent) -> Rows {
        Rows {
            width: extent.width as usize,
            height: extent.height as usize,
            depth: extent.depth as usize,
            pitch: self.pitch as usize,
            slice_pitch: (self.pitch * self.slice_rows) as usize,
        }
    }
}

impl End {
    /// This end of a piece, as a message names it.
    fn wire(&self, piece: Piece) -> (BoxEnd, [u64; 3]) {
        match self {
            End::Memory(m) => {
                let end = BoxEnd::Pitched {
                    address: m.address + m.offset(piece.at),
                    pitch_bytes: m.pitch,
                    height: m.slice_rows,
                };
                (end, [0; 3])
            }
            End::Array { array, at } => (
                BoxEnd::Array { array: *array },
                std::array::from_fn(|i| at[i] + piece.at[i]),
            ),
        }
    }
}

impl Extent {
    fn bytes(&self) -> u64 {
        self.width * self.height * self.depth
    }

    fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// Pieces of at most `bytes_max` bytes: slices where whole ones fit, rows, or parts of a row.
    fn pieces(self, bytes_max: u64) -> Vec<Piece> {
        let width = self.width.min(bytes_max);
        let rows = if width < self.width {
            1
        } else {
            bytes_max / width
        };
        let height = rows.min(self.height);
        let depth = if height < self.height {
            1
        } else {
            (rows / height).min(self.depth)
        };
        let steps = |whole: u64, part: u64| {
            (0..whole.div_ceil(part)).map(move |i| (i * part, part.min(whole - i * part)))
        };
        let mut pieces = Vec::new();
        for (z, depth) in steps(self.depth, depth) {
            for (y, height) in steps(self.height, height) {
                for (x, width) in steps(self.width, width) {
                    pieces.push(Piece {
                        at: [x, y, z],
                        extent: Extent {
                            width,
                            height,
                            depth,
                        },
                    });
                }
            }
        }
        pieces
    }
}

/// A copy's arguments, checked as the driver checks them.
#[derive(Debug, Clone, Copy)]
struct Request {
    dst: End,
    src: End,
    extent: Extent,
}

/// One end as the driver's records describe it.
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
                return Ok(End::Array {
                    array: driver.wire_array(self.array)?,
                    at,
                });
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

impl Memory {
    fn new(
        address: u64,
        [x, y, z]: [u64; 3],
        pitch: u64,
        slice_rows: u64,
        must_be_device: bool,
        extent: Extent,
    ) -> Option<Memory> {
        if address == 0 {
            return None;
        }
        let row_end = x.checked_add(extent.width)?;
        let slice_end = y.checked_add(extent.height)?;
        // A single row has no pitch to speak of, a single slice no height.
        let pitch = if pitch == 0 && slice_end == 1 && z == 0 && extent.depth == 1 {
            row_end
        } else {
            pitch
        };
        let slice_rows = if z == 0 && extent.depth == 1 {
            slice_rows.max(slice_end)
        } else {
            slice_rows
        };
        if row_end > pitch || slice_end > slice_rows {
            return None;
        }
        let offset = z
            .checked_mul(slice_rows)?
            .checked_add(y)?
            .checked_mul(pitch)?
            .checked_add(x)?;
        let memory = Memory {
            address: address.checked_add(offset)?,
            pitch,
            slice_rows,
            must_be_device,
        };
        memory.address.checked_add(memory.span(extent)?)?;
        Some(memory)
    }
}

/// `CUDA_MEMCPY3D` as a request; `None` where there is nothing to copy.
fn request_3d(driver: &Driver, copy: &CUDA_MEMCPY3D) -> Result<Option<Request>, CUresult> {
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
        dst: dst.resolve(driver, extent)?,
        src: src.resolve(driver, extent)?,
        extent,
    }))
}

/// `CUDA_MEMCPY2D` as a request.
fn request_2d(driver: &Driver, copy: &CUDA_MEMCPY2D) -> Result<Option<Request>, CUresult> {
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
    let copy = CUDA_MEMCPY3D {
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
    };
    request_3d(driver, &copy)
}

/// A message's description of a piece.
fn describe(
    dst: (BoxEnd, [u64; 3]),
    src: (BoxEnd, [u64; 3]),
    extent: Extent,
) -> Result<Vec<u8>, CUresult> {
    let ((dst, [dst_x, dst_y, dst_z]), (src, [src_x, src_y, src_z])) = (dst, src);
    let copy = CopyBox {
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
    };
    doc::to_bytes(&copy).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)
}

impl Driver {
    /// How large an array is only the server knows; larger than the device's memory it is not.
    fn check_extent(&self, request: &Request) -> Done {
        let Extent {
            width,
            height,
            depth,
        } = request.extent;
        let bytes = width
            .checked_mul(height)
            .and_then(|plane| plane.checked_mul(depth));
        let bytes_max = self.card(self.contexts.current()?.device)?.memory_bytes;
        let arrays =
            matches!(request.dst, End::Array { .. }) || matches!(request.src, End::Array { .. });
        match bytes {
            Some(bytes) if !arrays || bytes <= bytes_max => Ok(()),
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn place_of_end(&self, end: &End, extent: Extent) -> Result<Place, CUresult> {
        let End::Memory(memory) = end else {
            return Ok(Place::Device);
        };
        let bytes = memory
            .span(extent)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        if memory.must_be_device {
            self.device_place(memory.address, bytes)?;
        }
        self.place_of(memory.address, bytes)
    }

    fn run_box(&self, request: Request, stream: &StreamRef, wait: bool) -> Done {
        let Request { dst, src, extent } = request;
        self.check_extent(&request)?;
        let (to, from) = (
            self.place_of_end(&dst, extent)?,
            self.place_of_end(&src, extent)?,
        );
        match (&dst, &src) {
            (End::Memory(dst), End::Memory(src))
                if dst.is_contiguous(extent) && src.is_contiguous(extent) =>
            {
                return self.copy(
                    dst.address,
                    src.address,
                    extent.bytes() as usize,
                    stream,
                    wait,
                );
            }
            _ => {}
        }
        if stream.is_capturing() {
            // A graph's copy cannot be waited for.
            if wait {
                self.refuse_captured(stream)?;
            }
            for (end, place) in [(&dst, to), (&src, from)] {
                match (end, place) {
                    (End::Memory(m), Place::Pinned) => self.make_visible(m.address)?,
                    (_, Place::Pageable) => return self.refuse_captured(stream),
                    _ => {}
                }
            }
            return self.copy_box_here(&request, stream);
        }
        match (to, from) {
            (Place::Device, Place::Device) => self.copy_box_here(&request, stream),
            (Place::Device, Place::Shared) if !wait => self.copy_box_here(&request, stream),
            (Place::Device, _) => {
                if from == Place::Pinned {
                    self.settle_pinned(stream)?;
                }
                self.copy_box_in(&request, stream)
            }
            (Place::Shared, Place::Device) => {
                self.copy_box_here(&request, stream)?;
                if wait {
                    self.synchronize_stream(stream)
                } else {
                    Ok(())
                }
            }
            (Place::Pinned, Place::Device) if !wait => {
                self.copy_box_out(&request, stream, true).map(drop)
            }
            (_, Place::Device) => {
                let group = self.copy_box_out(&request, stream, false)?;
                self.session.wait(&group)?;
                self.session.take_fault()
            }
            (_, _) => {
                // Host to host, in the stream's order.
                self.synchronize_stream(stream)?;
                self.copy_rows(&request)
            }
        }
    }

    /// Both ends mean the same on the server.
    fn copy_box_here(&self, request: &Request, stream: &StreamRef) -> Done {
        let whole = Piece {
            at: [0; 3],
            extent: request.extent,
        };
        let desc = describe(
            request.dst.wire(whole),
            request.src.wire(whole),
            request.extent,
        )?;
        self.submit_to(
            stream,
            &messages::CopyBox {
                stream: stream.wire(),
                desc: &desc,
            },
        )
    }

    /// The source's rows travel with the messages.
    fn copy_box_in(&self, request: &Request, stream: &StreamRef) -> Done {
        let End::Memory(src) = &request.src else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        let mut packed = Vec::new();
        for piece in request.extent.pieces(CHUNK_BYTES_MAX as u64) {
            packed.clear();
            // SAFETY: a piece of the caller's source, as the driver API asks of it.
            unsafe {
                pack(
                    src.address + src.offset(piece.at),
                    src.rows(piece.extent),
                    &mut packed,
                )
            };
            let desc = describe(
                request.dst.wire(piece),
                (BoxEnd::Packed, [0; 3]),
                piece.extent,
            )?;
            self.submit_to(
                stream,
                &messages::CopyBoxIn {
                    stream: stream.wire(),
                    desc: &desc,
                    data: &packed,
                },
            )?;
        }
        Ok(())
    }

    /// The rows come with the answers.
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
        let group = Group::new(pieces.len());
        for piece in pieces {
            let address = (dst.address + dst.offset(piece.at)) as *mut u8;
            let sink = Sink::Memory(Landing {
                address,
                rows: dst.rows(piece.extent),
                detached,
            });
            let desc = describe(
                (BoxEnd::Packed, [0; 3]),
                request.src.wire(piece),
                piece.extent,
            )?;
            if detached {
                self.session.attend();
            }
            self.session.ask(
                wire_context(),
                &messages::CopyBoxOut {
                    stream: stream.wire(),
                    desc: &desc,
                },
                &group,
                sink,
            )?;
            stream.progress().submit();
            self.progress.submit();
        }
        Ok(group)
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

/// Appends rows without what lies between them.
///
/// # Safety
/// The rows are the caller's memory.
unsafe fn pack(address: u64, rows: Rows, out: &mut Vec<u8>) {
    out.reserve(rows.width * rows.height * rows.depth);
    for z in 0..rows.depth {
        for y in 0..rows.height {
            let row = address as usize + z * rows.slice_pitch + y * rows.pitch;
            // SAFETY: the caller's promise.
            out.extend_from_slice(unsafe {
                std::slice::from_raw_parts(row as *const u8, rows.width)
            });
        }
    }
}

fn run(
    request: impl FnOnce(&Driver) -> Result<Option<Request>, CUresult>,
    stream: CUstream,
    wait: bool,
) -> Done {
    let driver = driver()?;
    let stream = driver.work_stream(stream)?;
    match request(driver)? {
        Some(request) => driver.run_box(request, &stream, wait),
        None => Ok(()),
    }
}

/// # Safety
/// `copy` is NULL or a record of the caller's.
unsafe fn run_2d(copy: *const CUDA_MEMCPY2D, stream: CUstream, wait: bool) -> Done {
    // SAFETY: the caller's promise.
    let copy = unsafe { copy.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    run(|driver| request_2d(driver, copy), stream, wait)
}

/// # Safety
/// `copy` is NULL or a record of the caller's.
unsafe fn run_3d(copy: *const CUDA_MEMCPY3D, stream: CUstream, wait: bool) -> Done {
    // SAFETY: the caller's promise.
    let copy = unsafe { copy.as_ref() }.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    run(|driver| request_3d(driver, copy), stream, wait)
}

pub(crate) unsafe fn cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D) -> Done {
    // SAFETY: see the module's contract.
    unsafe { run_2d(copy, guard::default_stream(), true) }
}

/// Any alignment is as good as another here.
pub(crate) unsafe fn cuMemcpy2DUnaligned_v2(copy: *const CUDA_MEMCPY2D) -> Done {
    // SAFETY: see the module's contract.
    unsafe { run_2d(copy, guard::default_stream(), true) }
}

pub(crate) unsafe fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream) -> Done {
    // SAFETY: see the module's contract.
    unsafe { run_2d(copy, stream, false) }
}

pub(crate) unsafe fn cuMemcpy3D_v2(copy: *const CUDA_MEMCPY3D) -> Done {
    // SAFETY: see the module's contract.
    unsafe { run_3d(copy, guard::default_stream(), true) }
}

pub(crate) unsafe fn cuMemcpy3DAsync_v2(copy: *const CUDA_MEMCPY3D, stream: CUstream) -> Done {
    // SAFETY: see the module's contract.
    unsafe { run_3d(copy, stream, false) }
}

/// `CUDA_MEMCPY3D_PEER` has contexts in the reserved words; addresses are one space for all devices.
pub(crate) unsafe fn cuMemcpy3DPeer(copy: *const c_void) -> Done {
    // SAFETY: see the module's contract.
    unsafe { run_3d(copy.cast(), guard::default_stream(), true) }
}

pub(crate) unsafe fn cuMemcpy3DPeerAsync(copy: *const c_void, stream: CUstream) -> Done {
    // SAFETY: see the module's contract.
    unsafe { run_3d(copy.cast(), stream, false) }
}

/// An end of a copy of one dimension.
#[derive(Clone, Copy)]
enum Line {
    Host(u64),
    Device(CUdeviceptr),
    Array(CUarray, usize),
}

impl Line {
    fn resolve(self, driver: &Driver, extent: Extent) -> Result<End, CUresult> {
        let memory = |address, must_be_device| {
            Memory::new(address, [0; 3], extent.width, 1, must_be_device, extent)
                .map(End::Memory)
                .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
        };
        match self {
            Line::Host(address) => memory(address, false),
            Line::Device(address) => memory(address, true),
            Line::Array(array, offset) => Ok(End::Array {
                array: driver.wire_array(array)?,
                at: [offset as u64, 0, 0],
            }),
        }
    }
}

fn run_line(dst: Line, src: Line, bytes: usize, stream: CUstream, wait: bool) -> Done {
    let extent = Extent {
        width: bytes as u64,
        height: 1,
        depth: 1,
    };
    if bytes == 0 {
        return driver().map(drop);
    }
    run(
        |driver| {
            Ok(Some(Request {
                dst: dst.resolve(driver, extent)?,
                src: src.resolve(driver, extent)?,
                extent,
            }))
        },
        stream,
        wait,
    )
}

pub(crate) unsafe fn cuMemcpyAtoA_v2(
    dst: CUarray,
    dst_offset: usize,
    src: CUarray,
    src_offset: usize,
    bytes: usize,
) -> Done {
    run_line(
        Line::Array(dst, dst_offset),
        Line::Array(src, src_offset),
        bytes,
        guard::default_stream(),
        true,
    )
}

pub(crate) unsafe fn cuMemcpyAtoD_v2(
    dst: CUdeviceptr,
    src: CUarray,
    src_offset: usize,
    bytes: usize,
) -> Done {
    run_line(
        Line::Device(dst),
        Line::Array(src, src_offset),
        bytes,
        guard::default_stream(),
        true,
    )
}

pub(crate) unsafe fn cuMemcpyDtoA_v2(
    dst: CUarray,
    dst_offset: usize,
    src: CUdeviceptr,
    bytes: usize,
) -> Done {
    run_line(
        Line::Array(dst, dst_offset),
        Line::Device(src),
        bytes,
        guard::default_stream(),
        true,
    )
}

pub(crate) unsafe fn cuMemcpyAtoH_v2(
    dst: *mut c_void,
    src: CUarray,
    src_offset: usize,
    bytes: usize,
) -> Done {
    run_line(
        Line::Host(dst as u64),
        Line::Array(src, src_offset),
        bytes,
        guard::default_stream(),
        true,
    )
}

pub(crate) unsafe fn cuMemcpyAtoHAsync_v2(
    dst: *mut c_void,
    src: CUarray,
    src_offset: usize,
    bytes: usize,
    stream: CUstream,
) -> Done {
    run_line(
        Line::Host(dst as u64),
        Line::Array(src, src_offset),
        bytes,
        stream,
        false,
    )
}

pub(crate) unsafe fn cuMemcpyHtoA_v2(
    dst: CUarray,
    dst_offset: usize,
    src: *const c_void,
    bytes: usize,
) -> Done {
    run_line(
        Line::Array(dst, dst_offset),
        Line::Host(src as u64),
        bytes,
        guard::default_stream(),
        true,
    )
}

pub(crate) unsafe fn cuMemcpyHtoAAsync_v2(
    dst: CUarray,
    dst_offset: usize,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Done {
    run_line(
        Line::Array(dst, dst_offset),
        Line::Host(src as u64),
        bytes,
        stream,
        false,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(width: u64, height: u64, depth: u64) -> Extent {
        Extent {
            width,
            height,
            depth,
        }
    }

    /// Every byte of the extent in exactly one piece, no piece too long.
    fn check_pieces(whole: Extent, bytes_max: u64) -> usize {
        let mut seen = vec![0u8; whole.bytes() as usize];
        let pieces = whole.pieces(bytes_max);
        for piece in &pieces {
            assert!(
                piece.extent.bytes() <= bytes_max && piece.extent.bytes() > 0,
                "{piece:?}"
            );
            for z in 0..piece.extent.depth {
                for y in 0..piece.extent.height {
                    for x in 0..piece.extent.width {
                        let [x, y, z] = [piece.at[0] + x, piece.at[1] + y, piece.at[2] + z];
                        seen[((z * whole.height + y) * whole.width + x) as usize] += 1;
                    }
                }
            }
        }
        assert!(
            seen.iter().all(|n| *n == 1),
            "{whole:?} in pieces of {bytes_max}"
        );
        pieces.len()
    }

    #[test]
    fn pieces_cover_a_box_once() {
        assert_eq!(check_pieces(extent(10, 7, 5), 1000), 1);
        assert_eq!(check_pieces(extent(10, 7, 5), 140), 3);
        assert_eq!(check_pieces(extent(10, 7, 5), 70), 5);
        assert_eq!(check_pieces(extent(10, 7, 5), 30), 15);
        assert_eq!(check_pieces(extent(10, 7, 5), 9), 70);
        assert_eq!(check_pieces(extent(1, 1, 1), 1), 1);
        assert_eq!(check_pieces(extent(3, 1, 9), 7), 5);
    }

    #[test]
    fn rows_are_packed_without_gaps_and_land_where_they_were() {
        let (pitch, slice_rows) = (8u64, 4u64);
        let memory: Vec<u8> = (0..pitch * slice_rows * 3).map(|i| i as u8).collect();
        let whole = extent(3, 2, 2);
        let m = Memory::new(
            memory.as_ptr() as u64,
            [2, 1, 1],
            pitch,
            slice_rows,
            false,
            whole,
        )
        .expect("inside");
        let mut packed = Vec::new();
        // SAFETY: inside `memory`.
        unsafe { pack(m.address, m.rows(whole), &mut packed) };
        assert_eq!(packed, [42, 43, 44, 50, 51, 52, 74, 75, 76, 82, 83, 84]);
        assert_eq!(m.span(whole), Some(32 + 8 + 3));
        assert_eq!(m.offset([1, 1, 1]), 41);
    }

    #[test]
    fn what_the_driver_refuses_is_refused() {
        let new = |at, pitch, rows, e| Memory::new(0x1000, at, pitch, rows, false, e);
        assert!(
            new([0; 3], 15, 4, extent(16, 4, 1)).is_none(),
            "pitch below the width"
        );
        assert!(
            new([4, 0, 0], 16, 4, extent(16, 4, 1)).is_none(),
            "pitch below x and the width"
        );
        assert!(
            new([0; 3], 16, 3, extent(16, 4, 2)).is_none(),
            "slices that overlap"
        );
        assert!(
            new([0; 3], 16, 0, extent(16, 4, 1)).is_some(),
            "one slice needs no height"
        );
        assert!(
            new([0; 3], 0, 0, extent(16, 1, 1)).is_some(),
            "one row needs no pitch"
        );
        assert!(new([0; 3], 0, 0, extent(16, 2, 1)).is_none());
        assert!(
            new([0, 0, u64::MAX], 16, 4, extent(16, 4, 2)).is_none(),
            "past the end of all memory"
        );
        assert!(
            Memory::new(0, [0; 3], 16, 4, false, extent(16, 4, 1)).is_none(),
            "NULL"
        );
    }

    #[test]
    fn contiguous_memory_is_noticed() {
        let memory = |pitch, slice_rows| Memory {
            address: 0x1000,
            pitch,
            slice_rows,
            must_be_device: false,
        };
        assert!(memory(16, 4).is_contiguous(extent(16, 4, 3)));
        assert!(memory(16, 9).is_contiguous(extent(16, 4, 1)));
        assert!(memory(99, 9).is_contiguous(extent(16, 1, 1)));
        assert!(memory(16, 1).is_contiguous(extent(16, 1, 5)));
        assert!(!memory(16, 2).is_contiguous(extent(16, 1, 5)));
        assert!(!memory(99, 1).is_contiguous(extent(16, 1, 5)));
        assert!(!memory(16, 5).is_contiguous(extent(16, 4, 2)));
        assert!(!memory(32, 4).is_contiguous(extent(16, 4, 1)));
    }
}
