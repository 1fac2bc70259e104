//! Fences as waits that the session polls, and the device's errors as CUDA's numbers.

use outboard_api::CUresult;
use outboard_device::{Failure, Pending, Wait};
use outboard_ptx::device::{CaptureError, Cause, Error, Fence};

struct FenceWait(Fence);

impl Wait for FenceWait {
    fn ready(&mut self) -> Result<bool, Failure> {
        self.0.ready().map_err(failure)
    }

    fn data(&self) -> Option<&[u8]> {
        self.0.data()
    }
}

pub(super) fn pending(fence: Fence) -> Pending {
    Box::new(FenceWait(fence))
}

pub(super) fn failure(error: Error) -> Failure {
    Failure::new(status(&error), error.to_string())
}

fn status(error: &Error) -> CUresult {
    match error {
        Error::Stuck(stuck) => match stuck.cause {
            Cause::IllegalAddress => CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
            Cause::MisalignedAddress => CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
            Cause::Assert => CUresult::CUDA_ERROR_ASSERT,
            Cause::HardwareStack => CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
            Cause::InvalidPc => CUresult::CUDA_ERROR_INVALID_PC,
            Cause::OutOfMemory => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            Cause::OutOfResources => CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            Cause::LaunchTimeout => CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
            _ => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        },
        Error::InvalidValue(_) => CUresult::CUDA_ERROR_INVALID_VALUE,
        Error::InvalidHandle { .. } | Error::NoTime(_) => CUresult::CUDA_ERROR_INVALID_HANDLE,
        Error::NotReady => CUresult::CUDA_ERROR_NOT_READY,
        Error::IllegalState(_) => CUresult::CUDA_ERROR_ILLEGAL_STATE,
        Error::Capture(error) => match error {
            CaptureError::Unsupported => CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            CaptureError::Invalidated => CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
            CaptureError::Merge => CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE,
            CaptureError::Unmatched => CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
            CaptureError::Unjoined => CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
            CaptureError::Isolation => CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
            CaptureError::Implicit => CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            CaptureError::CapturedEvent => CUresult::CUDA_ERROR_CAPTURED_EVENT,
        },
        Error::OutOfMemory(_) => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        Error::Unsupported(_) => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        _ => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, message)
}
