//! The work that the GPU does for a call, as the generated entry points describe it.

use outboard_api::cuda::{CUDA_MEMCPY2D, CUDA_MEMCPY3D};
use outboard_trace::GpuWork;

use crate::cost;

/// A piece of work of the GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct What {
    pub(super) kind: GpuWork,
    /// A kernel's handle, otherwise 0.
    pub(super) function: usize,
    pub(super) bytes: u64,
}

pub(crate) fn kernel(function: usize) -> Option<What> {
    what(GpuWork::Kernel, function, 0)
}

pub(crate) fn graph() -> Option<What> {
    what(GpuWork::Graph, 0, 0)
}

pub(crate) fn memset(bytes: usize) -> Option<What> {
    what(GpuWork::Memset, 0, bytes)
}

pub(crate) fn to_device(bytes: usize) -> Option<What> {
    what(GpuWork::CopyToDevice, 0, bytes)
}

pub(crate) fn to_host(bytes: usize) -> Option<What> {
    what(GpuWork::CopyToHost, 0, bytes)
}

pub(crate) fn on_device(bytes: usize) -> Option<What> {
    what(GpuWork::CopyOnDevice, 0, bytes)
}

/// Makes a copy, whose direction follows from the addresses; a copy within host memory is not work
/// of the GPU.
pub(crate) fn copy(dst: u64, src: u64, bytes: usize) -> Option<What> {
    match (cost::is_device(dst), cost::is_device(src)) {
        (true, false) => to_device(bytes),
        (false, true) => to_host(bytes),
        (true, true) => on_device(bytes),
        (false, false) => None,
    }
}

/// # Safety
/// `copy` must be NULL or a description of a copy.
pub(crate) unsafe fn copy_2d(copy: *const CUDA_MEMCPY2D) -> Option<What> {
    // SAFETY: NULL or a description, by this function's contract.
    copy_box(unsafe { cost::box_2d(copy) })
}

/// # Safety
/// `copy` must be NULL or a description of a copy.
pub(crate) unsafe fn copy_3d(copy: *const CUDA_MEMCPY3D) -> Option<What> {
    // SAFETY: NULL or a description, by this function's contract.
    copy_box(unsafe { cost::box_3d(copy) })
}

fn copy_box(of: Option<cost::BoxCopy>) -> Option<What> {
    let of = of?;
    match (of.to_host, of.from_host) {
        (false, true) => to_device(of.bytes as usize),
        (true, false) => to_host(of.bytes as usize),
        (false, false) => on_device(of.bytes as usize),
        (true, true) => None,
    }
}

fn what(kind: GpuWork, function: usize, bytes: usize) -> Option<What> {
    Some(What {
        kind,
        function,
        bytes: bytes as u64,
    })
}
