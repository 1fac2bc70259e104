//! Copies of one dimension. Their cost depends on their direction:
//!
//! - Host to device: the bytes travel with the message, and the call does not wait. The message of
//!   a synchronous copy is marked; the server makes all work that is sent later, to any stream,
//!   follow it.
//! - Device to device, and between the device and memory that both sides share: a message of a few
//!   words.
//! - Device to host: the reply carries the bytes. The call waits for them, as on a local GPU,
//!   unless the destination is pinned memory.

mod among;
mod batch;
mod bytes;
mod end;
mod order;

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{CUcontext, CUdeviceptr, CUstream},
};

pub(super) use self::among::{Peers, serialized};
pub(crate) use self::{
    batch::*,
    end::{CopyEnd, MemoryKind},
};
use super::{Done, across};
use crate::{
    observe::{guard, servers::Selected},
    state::{Driver, StreamRef, are_several, driver},
};

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

/// Copies by addresses: all devices share one address space.
pub(crate) unsafe fn cuMemcpyPeer(
    dst: CUdeviceptr,
    _dst_context: CUcontext,
    src: CUdeviceptr,
    _src_context: CUcontext,
    bytes: usize,
) -> Done {
    serialized([dst, src], || {
        between(guard::default_stream(), true, (dst, src, bytes), || {
            let (dst, src) = (CopyEnd::device(dst, bytes)?, CopyEnd::device(src, bytes)?);
            copy_now(dst, src, bytes)
        })
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
