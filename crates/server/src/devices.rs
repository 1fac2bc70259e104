//! The device that a worker opens.

use std::str::FromStr;

use outboard_device::{Cx, Device, Failure};
pub(crate) use outboard_nvidia::{GpuError, GpuErrorKind, HELD_UP_STATUS};
use outboard_nvidia::{NvidiaOptions, Watcher};
use outboard_soft::{BOARD_BYTES, Capability, Checks, SoftOptions, Watch};
use outboard_wire::{doc, messages};
use serde::{Deserialize, Serialize};

/// Status of a worker that ended before its device was released.
pub(crate) const UNRELEASED_STATUS: i32 = 4;
/// Status of a worker that ended with its lease.
pub(crate) const LEASE_OVER_STATUS: i32 = 5;

/// Kinds of device that a server can offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceKind {
    /// This machine's GPUs, through their driver.
    Nvidia,
    /// PTX on the CPU.
    Soft,
}

/// The device that a session gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOptions {
    pub kind: DeviceKind,
    /// Memory that a session may allocate on each device, in bytes; by default all of it.
    pub memory_bytes: Option<u64>,
    /// Threads of the soft device; by default one for each core.
    pub threads: Option<usize>,
    /// Number of soft devices, at least 1.
    pub devices: usize,
    /// The machine's numbers of the devices that a session gets; by default all.
    pub chosen: Option<Vec<u32>>,
    /// Part of an NVIDIA GPU's multiprocessors that a session may use; by default no limit.
    pub gpu_percent: Option<u8>,
    /// Begins the UUIDs of soft devices.
    pub board: [u8; BOARD_BYTES],
    /// Compute capability that the soft device reports.
    #[serde(with = "capability")]
    pub capability: Capability,
    /// Mistakes that the soft device watches kernels for.
    #[serde(with = "watch")]
    pub watch: Watch,
}

impl DeviceOptions {
    /// Returns the devices with this part of each GPU's multiprocessors.
    pub(super) fn with_part(self, gpu_percent: Option<u8>) -> DeviceOptions {
        DeviceOptions {
            gpu_percent,
            ..self
        }
    }

    /// Returns whether a session gets all devices, each wholly, as a spare has them open.
    pub(super) fn is_all(&self) -> bool {
        self.chosen.is_none() && self.gpu_percent.is_none()
    }
}

/// A compute capability in a document: its text.
mod capability {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::Capability;

    pub(super) fn serialize<S: Serializer>(one: &Capability, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(one)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Capability, D::Error> {
        String::deserialize(from)?.parse().map_err(Error::custom)
    }
}

/// A [`Watch`] in a document: the names of its checks, then the other fields.
mod watch {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    use super::{Checks, Watch};

    pub(super) fn serialize<S: Serializer>(one: &Watch, to: S) -> Result<S::Ok, S::Error> {
        (one.checks.to_string(), one.fail, one.seed).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Watch, D::Error> {
        let (names, fail, seed) = <(String, bool, Option<u64>)>::deserialize(from)?;
        let checks = match names.is_empty() {
            true => Checks::default(),
            false => names.parse().map_err(Error::custom)?,
        };
        Ok(Watch { checks, fail, seed })
    }
}

impl DeviceKind {
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Nvidia => "nvidia",
            DeviceKind::Soft => "soft",
        }
    }

    /// Whether the device cannot run machine code, only PTX.
    pub fn is_ptx_only(self) -> bool {
        match self {
            DeviceKind::Nvidia => false,
            DeviceKind::Soft => true,
        }
    }

    /// Returns an error if this machine cannot offer the device.
    pub fn check(self) -> Result<(), String> {
        match self {
            DeviceKind::Nvidia => outboard_nvidia::available(),
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

/// Opens the device; `ahead` says that its client is not there yet.
pub(super) fn open(options: &DeviceOptions, ahead: bool) -> Result<Box<dyn Device>, Failure> {
    match options.kind {
        DeviceKind::Nvidia => outboard_nvidia::open(NvidiaOptions {
            memory_bytes: options.memory_bytes,
            devices: options.chosen.clone(),
            ahead,
            gpu_percent: options.gpu_percent,
        }),
        DeviceKind::Soft => outboard_soft::open(SoftOptions {
            memory_bytes: options.memory_bytes,
            threads: options.threads,
            devices: options.devices,
            chosen: options.chosen.clone(),
            board: options.board,
            capability: options.capability,
            watch: options.watch,
        }),
    }
}

/// Returns what the management library says of a machine's GPUs, in the order of the driver's
/// numbers; `None` if the device has none. No context is made.
pub(crate) fn management(options: &DeviceOptions) -> Option<Result<doc::NvmlSnapshot, Failure>> {
    match options.kind {
        DeviceKind::Nvidia => {
            let chosen = options.chosen.as_deref();
            let monitor = outboard_nvidia::Monitor::open(None, chosen);
            Some(monitor.and_then(|monitor| monitor.snapshot(doc::NVML_FACTS)))
        }
        DeviceKind::Soft => None,
    }
}

/// Begins to watch GPUs for errors; `None` if there is no management library for the device. One
/// that the environment names is watched for soft devices, too.
pub(crate) fn watcher(
    options: &DeviceOptions,
    uuids: Vec<String>,
) -> Option<Result<Watcher, Failure>> {
    let has_one = match options.kind {
        DeviceKind::Nvidia => true,
        DeviceKind::Soft => outboard_nvidia::is_management_named(),
    };
    has_one.then(|| Watcher::open(uuids))
}

/// The devices, for a client that asks only as the management library does: no GPU is opened.
pub(crate) enum Monitor {
    Nvidia(outboard_nvidia::Monitor),
    /// An ordinary soft device: opening it costs nothing.
    Soft(Box<dyn Device>),
}

impl Monitor {
    /// Opens the management library. `facts` are its constant answers, if known already.
    pub(crate) fn open(
        options: &DeviceOptions,
        facts: Option<&doc::NvmlSnapshot>,
    ) -> Result<Monitor, Failure> {
        Ok(match options.kind {
            DeviceKind::Nvidia => Monitor::Nvidia({
                let chosen = options.chosen.as_deref();
                outboard_nvidia::Monitor::open(facts, chosen)?
            }),
            DeviceKind::Soft => Monitor::Soft(open(options, false)?),
        })
    }

    /// Answers a question of the management library.
    pub(crate) fn snapshot(
        &mut self,
        cx: &mut Cx<'_>,
        m: &messages::NvmlSnapshot,
    ) -> Result<messages::NvmlSnapshotReply<'static>, Failure> {
        match self {
            Monitor::Nvidia(monitor) => Ok(messages::NvmlSnapshotReply {
                document: monitor.document(m.detail)?.into(),
            }),
            Monitor::Soft(device) => device.nvml_snapshot(cx, m),
        }
    }
}
