//! The driver's functions that put events between the program's work and read them.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    sync::OnceLock,
};

use outboard_api::CUresult;
use outboard_trace::{GpuWork, live::Live};

use crate::driver::function;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: u32 = 2;

/// An event's handle.
pub(super) type Event = usize;

/// The driver's functions.
pub(super) struct Driver {
    pub(super) current: unsafe extern "C" fn(*mut usize) -> c_int,
    pub(super) push: unsafe extern "C" fn(usize) -> c_int,
    pub(super) pop: unsafe extern "C" fn(*mut usize) -> c_int,
    pub(super) device: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(super) stream: unsafe extern "C" fn(*mut usize, u32) -> c_int,
    pub(super) is_capturing: unsafe extern "C" fn(usize, *mut c_int) -> c_int,
    pub(super) exchange_mode: unsafe extern "C" fn(*mut u32) -> c_int,
    pub(super) create: unsafe extern "C" fn(*mut usize, u32) -> c_int,
    pub(super) record: unsafe extern "C" fn(usize, usize) -> c_int,
    pub(super) query: unsafe extern "C" fn(usize) -> c_int,
    pub(super) elapsed: unsafe extern "C" fn(*mut f32, usize, usize) -> c_int,
    /// Since CUDA 12.3.
    pub(super) name: Option<unsafe extern "C" fn(*mut *const c_char, usize) -> c_int>,
}

impl Driver {
    pub(super) fn get() -> Option<&'static Driver> {
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        // SAFETY: functions of these names have these types: handles are pointers.
        DRIVER.get_or_init(|| unsafe { Driver::find() }).as_ref()
    }

    unsafe fn find() -> Option<Driver> {
        /// # Safety
        /// `T` is the type of the function.
        unsafe fn find<T>(name: &CStr) -> Option<T> {
            const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
            let found = function(name)?;
            // SAFETY: the caller's promise.
            Some(unsafe { std::mem::transmute_copy::<*mut c_void, T>(&found) })
        }
        // SAFETY: the caller's promise, for each.
        unsafe {
            Some(Driver {
                current: find(c"cuCtxGetCurrent")?,
                push: find(c"cuCtxPushCurrent_v2")?,
                pop: find(c"cuCtxPopCurrent_v2")?,
                device: find(c"cuCtxGetDevice")?,
                stream: find(c"cuStreamCreate")?,
                is_capturing: find(c"cuStreamIsCapturing")?,
                exchange_mode: find(c"cuThreadExchangeStreamCaptureMode")?,
                create: find(c"cuEventCreate")?,
                record: find(c"cuEventRecord")?,
                query: find(c"cuEventQuery")?,
                elapsed: find(c"cuEventElapsedTime_v2").or_else(|| find(c"cuEventElapsedTime"))?,
                name: find(c"cuFuncGetName"),
            })
        }
    }

    /// Makes calls that are forbidden to a thread that captures, or while another thread captures,
    /// unless the caller says that it knows.
    pub(super) fn relaxed<R>(&self, call: impl FnOnce() -> R) -> R {
        let mut mode = RELAXED;
        // SAFETY: a mode, which is exchanged for the thread's own.
        let exchanged = unsafe { (self.exchange_mode)(&mut mode) } == 0;
        let result = call();
        if exchanged {
            // SAFETY: as above.
            unsafe { (self.exchange_mode)(&mut mode) };
        }
        result
    }

    pub(super) fn elapsed_ns(&self, start: Event, end: Event) -> Result<u64, CUresult> {
        let mut ms = 0f32;
        // SAFETY: two events that were recorded, and room for the answer.
        match unsafe { (self.elapsed)(&mut ms, start, end) } {
            0 => Ok((f64::from(ms) * 1e6).max(0.0) as u64),
            status => Err(CUresult(status as u32)),
        }
    }

    pub(super) fn kernel_name(&self, live: &Live, kernel: usize) -> u32 {
        let mut name = std::ptr::null();
        // SAFETY: a kernel that was just launched, and room for the answer.
        let known = self
            .name
            .is_some_and(|ask| unsafe { ask(&mut name, kernel) } == 0 && !name.is_null());
        match known {
            // SAFETY: the driver's string, which it keeps for as long as the kernel's module.
            true => live
                .writer()
                .name(&unsafe { CStr::from_ptr(name) }.to_string_lossy()),
            false => live.writer().name(GpuWork::Kernel.name()),
        }
    }
}
