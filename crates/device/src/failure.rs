//! Calls that fail: what the client is told.

use std::fmt;

use outboard_api::CUresult;

/// A failed call, as reported to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub status: CUresult,
    /// Text for the client's log: what failed, and what the user can do.
    pub message: String,
}

impl Failure {
    /// Makes a failure with this status, and a text for the client's log.
    pub fn new(status: CUresult, message: impl Into<String>) -> Failure {
        Failure {
            status,
            message: message.into(),
        }
    }

    /// Makes the failure of a call that needs `what`, which the device lacks.
    pub fn unsupported(what: &str) -> Failure {
        Failure::new(
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
            format!("this device does not support {what}"),
        )
    }

    /// The failure for a handle that this session never created, or has destroyed.
    pub fn wild(kind: &'static str, id: u64) -> Failure {
        Failure::new(
            CUresult::CUDA_ERROR_INVALID_HANDLE,
            format!("{id:#x} is no {kind} of this session"),
        )
    }
}

impl From<outboard_budget::Exhausted> for Failure {
    fn from(exhausted: outboard_budget::Exhausted) -> Failure {
        Failure::new(CUresult::CUDA_ERROR_OUT_OF_MEMORY, exhausted.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.message)
    }
}

impl std::error::Error for Failure {}
