//! Which device a worker opens.

use std::str::FromStr;

use crate::{
    device::{Device, Failure},
    nvidia::{self, NvidiaOptions},
    soft::{self, Capability, Watch},
};

/// The kinds of device that a server can offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// This machine's GPUs, through its driver.
    Nvidia,
    /// PTX on the CPU.
    Soft,
}

/// What a session gets.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    pub kind: DeviceKind,
    /// Device memory that a session may allocate on each device; all of it by default.
    pub memory_bytes: Option<u64>,
    /// Threads of the soft device; one for each core by default.
    pub threads: Option<usize>,
    /// Soft devices, at least 1.
    pub devices: usize,
    /// What the soft device passes for.
    pub capability: Capability,
    /// The soft device's: what kernels are watched for.
    pub watch: Watch,
}

impl DeviceKind {
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Nvidia => "nvidia",
            DeviceKind::Soft => "soft",
        }
    }

    /// Whether machine code is of no use to it.
    pub fn is_ptx_only(self) -> bool {
        match self {
            DeviceKind::Nvidia => false,
            DeviceKind::Soft => true,
        }
    }

    /// Why this machine cannot offer it.
    pub fn check(self) -> Result<(), String> {
        match self {
            DeviceKind::Nvidia => nvidia::available().map(drop),
            DeviceKind::Soft => Ok(()),
        }
    }
}

impl FromStr for DeviceKind {
    type Err = String;

    fn from_str(name: &str) -> Result<DeviceKind, String> {
        match name {
            "nvidia" => Ok(DeviceKind::Nvidia),
            "soft" => Ok(DeviceKind::Soft),
            _ => Err(format!(
                "there is no device {name:?}; known are nvidia and soft"
            )),
        }
    }
}

/// `ahead`: before its client is there.
pub(super) fn open(options: &DeviceOptions, ahead: bool) -> Result<Box<dyn Device>, Failure> {
    match options.kind {
        DeviceKind::Nvidia => nvidia::open(NvidiaOptions {
            memory_bytes: options.memory_bytes,
            devices: None,
            ahead,
        }),
        DeviceKind::Soft => soft::open(soft::SoftOptions {
            memory_bytes: options.memory_bytes,
            threads: options.threads,
            devices: options.devices,
            capability: options.capability,
            watch: options.watch,
        }),
    }
}
