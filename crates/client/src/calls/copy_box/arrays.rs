//! Copies of one dimension to and from arrays: boxes of a single row.

use std::ffi::c_void;

use outboard_api::{
    CUresult,
    cuda::{CUarray, CUdeviceptr, CUstream},
};

use super::{
    Done, Request, run,
    shape::{End, Extent, Memory},
};
use crate::{
    observe::guard,
    state::{Driver, driver},
};

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
            Line::Array(array, offset) => {
                let (number, offset) = (driver.wire_array(array)?, offset as u64);
                driver.arrays.check_line(array, offset, extent.width)?;
                Ok(End::Array {
                    array: number,
                    at: [offset, 0, 0],
                })
            }
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

pub(crate) fn cuMemcpyAtoA_v2(
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
