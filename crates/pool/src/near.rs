//! Things that are near a GPU in its box: other GPUs, NVLinks, network adapters.

#[cfg(feature = "schemas")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits;

/// Things near a GPU, as its box finds them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Near {
    /// Its NUMA node, if the machine has more than one.
    pub numa: Option<u32>,
    /// Other ends of its NVLinks that are up.
    pub nvlinks: Vec<NvlinkEnd>,
    /// GPUs of the box that are nearer than by the processors' links.
    pub gpus: Vec<NearGpu>,
    /// Network adapters of the box, those of the smallest distance alone.
    pub nics: Vec<Nic>,
}

/// A device to which NVLinks lead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct NvlinkEnd {
    /// Its domain, bus and device; zeroes in virtual machines that do not see it.
    pub pci: (u32, u32, u32),
    pub kind: NvlinkKind,
    /// Number of links to it.
    pub links: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NvlinkKind {
    Gpu,
    Switch,
    Other,
}

/// A GPU of the same box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct NearGpu {
    /// Its place in the box.
    pub slot: u16,
    pub level: Level,
}

/// A network adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
pub struct Nic {
    /// Name of its network interface, or of its RDMA device if it has none.
    pub name: String,
    /// Name of its RDMA device.
    pub rdma: Option<String>,
    pub pci: (u32, u32, u32),
    pub level: Level,
}

/// Nearest thing that two PCI devices have in common, as `nvmlGpuTopologyLevel_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schemas", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A board.
    Internal,
    /// One PCIe switch.
    Single,
    /// Several PCIe switches below one root port.
    Multiple,
    /// A host bridge.
    HostBridge,
    /// A NUMA node.
    Node,
    /// The machine.
    System,
}

impl Level {
    /// Returns the level of this number in NVML.
    pub fn of_nvml(number: u32) -> Option<Level> {
        Some(match number {
            0 => Level::Internal,
            10 => Level::Single,
            20 => Level::Multiple,
            30 => Level::HostBridge,
            40 => Level::Node,
            50 => Level::System,
            _ => return None,
        })
    }
}

impl Near {
    /// Refuses lists that no machine has.
    pub(crate) fn check(&self) -> Result<(), String> {
        let within = |what: &str, len: usize, max: usize| match len <= max {
            true => Ok(()),
            false => Err(format!("a GPU has at most {max} {what} near it, not {len}")),
        };
        within("NVLinks", self.nvlinks.len(), limits::NEAR_NVLINKS_MAX)?;
        within("GPUs", self.gpus.len(), limits::BOX_GPUS_MAX)?;
        within("network adapters", self.nics.len(), limits::NEAR_NICS_MAX)?;
        let names = self
            .nics
            .iter()
            .flat_map(|nic| [Some(&nic.name), nic.rdma.as_ref()]);
        for name in names.flatten() {
            let is_plain = |char: char| char.is_ascii_graphic();
            if name.len() > limits::NAME_BYTES_MAX || !name.chars().all(is_plain) {
                return Err("the name of a network adapter is too long, or not plain".into());
            }
        }
        Ok(())
    }
}
