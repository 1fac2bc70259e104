//! Errors of calls, and the faults that end contexts.

use crate::error::{Fault, FaultKind};

/// Why a call was refused. Only [`Error::Stuck`] also fails later calls.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The context is lost: every later call in it returns the same error (CUDA's sticky errors).
    #[error("{0}")]
    Stuck(Stuck),
    #[error("{0}")]
    InvalidValue(String),
    #[error("{kind} {id} does not exist")]
    InvalidHandle { kind: &'static str, id: u64 },
    /// The event has no time: it was made without timing, or never recorded.
    #[error("the event has no time: {0}")]
    NoTime(&'static str),
    #[error("not reached yet")]
    NotReady,
    #[error("{0}")]
    IllegalState(&'static str),
    #[error("{0}")]
    Capture(#[from] CaptureError),
    #[error("no memory for it: {0}")]
    OutOfMemory(String),
    #[error("the device does not do this: {0}")]
    Unsupported(String),
}

/// Errors of stream capture, named like `CUDA_ERROR_STREAM_CAPTURE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    #[error("not permitted while the stream is capturing")]
    Unsupported,
    #[error("an earlier error ended this capture")]
    Invalidated,
    #[error("would merge two captures")]
    Merge,
    #[error("the capture did not begin in this stream")]
    Unmatched,
    #[error("a forked stream was not joined to the capture's own")]
    Unjoined,
    #[error("a captured stream cannot depend on work outside the capture")]
    Isolation,
    #[error("the legacy stream would depend on a capturing stream")]
    Implicit,
    #[error("the event was last recorded in a capturing stream")]
    CapturedEvent,
}

/// The fault that ended a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    pub cause: Cause,
    pub message: String,
}

/// Causes that CUDA reports by different errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    IllegalAddress,
    MisalignedAddress,
    Assert,
    HardwareStack,
    InvalidPc,
    OutOfResources,
    OutOfMemory,
    LaunchTimeout,
    LaunchFailed,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<&Fault> for Stuck {
    fn from(fault: &Fault) -> Self {
        let cause = match &fault.kind {
            FaultKind::IllegalAddress { .. } | FaultKind::OutsideOf { .. } => Cause::IllegalAddress,
            FaultKind::MisalignedAddress { .. } => Cause::MisalignedAddress,
            FaultKind::Assert { .. } => Cause::Assert,
            FaultKind::StackOverflow { .. } => Cause::HardwareStack,
            FaultKind::InvalidTarget { .. } => Cause::InvalidPc,
            FaultKind::LaunchOutOfResources { .. } => Cause::OutOfResources,
            FaultKind::OutOfMemory(_) => Cause::OutOfMemory,
            FaultKind::LaunchTimeout => Cause::LaunchTimeout,
            FaultKind::Trap { .. } => Cause::LaunchFailed,
        };
        Stuck {
            cause,
            message: fault.to_string(),
        }
    }
}
