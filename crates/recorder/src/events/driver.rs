//! The driver's functions that put events between the program's work and read them.

use std::{ffi::CStr, sync::OnceLock};

use outboard_api::{
    CUresult,
    cuda::{CUevent, CUfunction},
};
use outboard_trace::{GpuWork, live::Live};

use crate::driver::function;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;
pub(super) const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;

outboard_driver::functions! {
    pub(super) struct Driver {
        cuCtxGetCurrent,
        cuCtxPushCurrent_v2,
        cuCtxPopCurrent_v2,
        cuCtxGetDevice,
        cuStreamCreate,
        cuStreamIsCapturing,
        cuThreadExchangeStreamCaptureMode,
        cuEventCreate,
        cuEventRecord,
        cuEventQuery,
        cuEventElapsedTime;
        optional cuEventElapsedTime_v2, cuFuncGetName
    }
}

impl Driver {
    pub(super) fn get() -> Option<&'static Driver> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        DRIVER
            // SAFETY: the driver's functions, by their names.
            .get_or_init(|| unsafe { Driver::find(function) }.ok())
            .as_ref()
    }

    /// Makes calls that are forbidden to a thread that captures, or while another thread captures,
    /// unless the caller says that it knows.
    pub(super) fn relaxed<R>(&self, call: impl FnOnce() -> R) -> R {
        let mut mode = RELAXED;
        // SAFETY: a mode, which is exchanged for the thread's own.
        let exchanged = unsafe { (self.cuThreadExchangeStreamCaptureMode)(&mut mode) } == SUCCESS;
        let result = call();
        if exchanged {
            // SAFETY: the thread's own mode, which the first call has written.
            unsafe { (self.cuThreadExchangeStreamCaptureMode)(&mut mode) };
        }
        result
    }

    pub(super) fn elapsed_ns(&self, start: CUevent, end: CUevent) -> Result<u64, CUresult> {
        let elapsed = self
            .cuEventElapsedTime_v2
            .unwrap_or(self.cuEventElapsedTime);
        let mut ms = 0f32;
        // SAFETY: two events that were recorded, and room for the answer.
        match unsafe { elapsed(&mut ms, start, end) } {
            SUCCESS => Ok((f64::from(ms) * 1e6).max(0.0) as u64),
            error => Err(error),
        }
    }

    pub(super) fn kernel_name(&self, live: &Live, kernel: usize) -> u32 {
        let mut name = std::ptr::null();
        // SAFETY: a kernel that was just launched, and room for the answer.
        let known = self.cuFuncGetName.is_some_and(
            |ask| unsafe { ask(&mut name, CUfunction(kernel)) } == SUCCESS && !name.is_null(),
        );
        match known {
            // SAFETY: the driver's string, which it keeps for as long as the kernel's module.
            true => live
                .writer()
                .name(&unsafe { CStr::from_ptr(name) }.to_string_lossy()),
            false => live.writer().name(GpuWork::Kernel.name()),
        }
    }
}
