//! Errors: [`Error`] while a module is loaded or a launch is checked, [`Fault`] while a kernel
//! runs.

use std::fmt;

use outboard_budget::Exhausted;

pub use crate::position::Position;

/// Why a module was refused, or a launch before it began.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not PTX. The program or its compiler is at fault.
    #[error("PTX {at}: expected {expected}, found {found}")]
    Syntax {
        at: Position,
        expected: String,
        found: String,
    },
    /// This interpreter does not execute the instruction, valid or not.
    #[error("PTX {at}: unsupported: {reason} in `{instruction}`")]
    Unsupported {
        at: Position,
        instruction: String,
        reason: String,
    },
    /// The text contradicts itself: unknown names, wrong types, double declarations.
    #[error("PTX {at}: {message}")]
    Invalid { at: Position, message: String },
    /// The PTX version is unknown here.
    #[error("PTX {at}: version {}.{}, known up to {}.{}", found.0, found.1, supported.0, supported.1)]
    Version {
        at: Position,
        found: (u32, u32),
        supported: (u32, u32),
    },
    /// A limit of [`crate::limits`] was exceeded.
    #[error("PTX {at}: {what} is {actual}, the limit is {limit}")]
    Limit {
        at: Position,
        what: &'static str,
        actual: u64,
        limit: u64,
    },
    /// The lowered text breaks a rule of the interpreter: a defect of this crate.
    #[error(transparent)]
    Verify(#[from] Box<crate::verify::VerifyError>),
    /// There is no device memory for the module.
    #[error(transparent)]
    Memory(#[from] crate::memory::MemoryError),
    #[error("no kernel named `{0}` in this module")]
    NoSuchKernel(String),
    /// sm_80 would refuse the launch.
    #[error("launch of `{kernel}`: {what} is {actual}, the limit is {limit}")]
    LaunchLimit {
        kernel: String,
        what: &'static str,
        actual: u64,
        limit: u64,
    },
    /// The parameter bytes do not fit the kernel's declaration.
    #[error(
        "launch of `{kernel}`: {actual} bytes of parameters given, the kernel declares {expected}"
    )]
    LaunchParams {
        kernel: String,
        actual: u64,
        expected: u64,
    },
}

/// Why a kernel stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// CUDA_ERROR_ILLEGAL_ADDRESS
    IllegalAddress {
        address: u64,
        bytes: u32,
        write: bool,
    },
    /// CUDA_ERROR_ILLEGAL_ADDRESS, for an offset in shared memory, local memory or the parameters:
    /// `what`, which has `limit` bytes.
    OutsideOf {
        what: &'static str,
        limit: u64,
        address: u64,
        bytes: u32,
        write: bool,
    },
    /// CUDA_ERROR_MISALIGNED_ADDRESS
    MisalignedAddress {
        address: u64,
        bytes: u32,
        write: bool,
    },
    /// `trap`: CUDA_ERROR_LAUNCH_FAILED (a GPU reports an illegal instruction or a failed launch).
    Trap { reason: String },
    /// CUDA_ERROR_ASSERT
    Assert { message: String },
    /// A thread's calls need more stack than the launch grants: CUDA_ERROR_ILLEGAL_ADDRESS or
    /// CUDA_ERROR_LAUNCH_FAILED on a GPU.
    StackOverflow { bytes: u64 },
    /// An indirect call or branch went to an address that is no function or label:
    /// CUDA_ERROR_INVALID_PC
    InvalidTarget { address: u64 },
    /// CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    LaunchOutOfResources { what: String },
    /// This process may not use the memory that the kernel's threads need for their registers,
    /// stacks, local or shared memory: CUDA_ERROR_OUT_OF_MEMORY
    OutOfMemory(Exhausted),
    /// The launch was cancelled through its flag: CUDA_ERROR_LAUNCH_TIMEOUT
    LaunchTimeout,
}

/// A fault, and the kernel, block, thread and line that caused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub kind: FaultKind,
    pub kernel: String,
    pub block: [u32; 3],
    pub thread: [u32; 3],
    /// Line in the PTX text, or 0 if no instruction caused it.
    pub line: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`", self.kernel)?;
        if self.kind != FaultKind::LaunchTimeout {
            let ([bx, by, bz], [tx, ty, tz]) = (self.block, self.thread);
            write!(
                f,
                ", block ({bx},{by},{bz}), thread ({tx},{ty},{tz}), PTX line {}",
                self.line
            )?;
        }
        let access = |write: bool| if write { "write" } else { "read" };
        match &self.kind {
            FaultKind::IllegalAddress {
                address,
                bytes,
                write,
            } => {
                write!(
                    f,
                    ": illegal address: {} of {bytes} bytes at {address:#x}",
                    access(*write)
                )
            }
            FaultKind::OutsideOf {
                what,
                limit,
                address,
                bytes,
                write,
            } => {
                write!(
                    f,
                    ": illegal address: {} of {bytes} bytes at {address:#x} of {what}, which has {limit} bytes",
                    access(*write)
                )
            }
            FaultKind::MisalignedAddress {
                address,
                bytes,
                write,
            } => {
                write!(
                    f,
                    ": misaligned address: {} of {bytes} bytes at {address:#x}",
                    access(*write)
                )
            }
            FaultKind::Trap { reason } => write!(f, ": {reason}"),
            FaultKind::Assert { message } => write!(f, ": {message}"),
            FaultKind::StackOverflow { bytes } => {
                write!(f, ": stack overflow: {bytes} bytes of stack a thread")
            }
            FaultKind::InvalidTarget { address } => {
                write!(f, ": call or branch to {address:#x}, which is no target")
            }
            FaultKind::LaunchOutOfResources { what } => write!(f, ": out of resources: {what}"),
            FaultKind::OutOfMemory(why) => write!(f, ": memory of its threads: {why}"),
            FaultKind::LaunchTimeout => write!(f, ": cancelled"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Exhausted> for FaultKind {
    fn from(why: Exhausted) -> FaultKind {
        FaultKind::OutOfMemory(why)
    }
}
