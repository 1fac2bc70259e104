//! Facts about a box's GPUs, for its pool: by the management library and /sys where there is a
//! driver, by the device itself elsewhere.

mod sysfs;

use std::{collections::BTreeMap, path::Path};

use outboard_api::enums::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
};
use outboard_device::{Device, Failure};
use outboard_pool::{
    Uuid,
    limits::{BOX_GPUS_MAX, NAME_BYTES_MAX, NEAR_NICS_MAX, NEAR_NVLINKS_MAX},
    near::{Level, Near, NearGpu, NvlinkEnd, NvlinkKind},
    record::GpuFacts,
};
use outboard_wire::doc::{DeviceCard, NvmlDevice, NvmlPeer, NvmlSnapshot, from_bytes};
use tracing::warn;

use self::sysfs::{Tree, nearest};
use crate::devices::{self, DeviceOptions};

/// Place of NVLink among NVML's P2P capabilities.
const P2P_NVLINK: usize = 2;
const SUCCESS: u32 = 0;
const STATUS_OK: u32 = 0;
/// Highest `nvmlGpuTopologyLevel_t` at which two GPUs are below one PCIe switch.
const TOPOLOGY_SINGLE: u32 = 10;
/// An NVLink that is `NVML_FEATURE_ENABLED`.
const LINK_UP: (u32, u32) = (SUCCESS, 1);
/// `NVML_NVLINK_DEVICE_TYPE_GPU` and `..._SWITCH`.
const REMOTE_GPU: u32 = 0;
const REMOTE_SWITCH: u32 = 2;

/// Finds the GPUs of a server's device, in the order of their numbers.
pub fn take(options: &DeviceOptions) -> Result<Vec<GpuFacts>, Failure> {
    let nvml = match devices::management(options) {
        Some(Err(failure)) => {
            warn!(%failure, "no management library: what is near each GPU is not known");
            None
        }
        said => said.and_then(Result::ok),
    };
    let facts = nvml.and_then(|nvml| by_nvml(&nvml, &Tree::new(Path::new("/sys"))));
    match facts {
        Some(facts) => Ok(facts),
        None => by_device(&mut *devices::open(options, false)?),
    }
}

/// Returns the facts that the management library and the system have about the GPUs of a machine
/// with a driver; `None` if one of them is no whole GPU.
fn by_nvml(nvml: &NvmlSnapshot, tree: &Tree) -> Option<Vec<GpuFacts>> {
    let adapters = tree.adapters();
    let groups = Groups::of(&nvml.devices);
    let facts = nvml.devices.iter().zip(0..).map(|(device, at)| {
        let pci = (device.pci.domain, device.pci.bus, device.pci.device);
        let place = tree.gpu(pci);
        let nearest = place.as_ref().map(|place| nearest(place, &adapters));
        let (mut nics, first) = nearest.unwrap_or_default();
        nics.truncate(NEAR_NICS_MAX);
        Some(GpuFacts {
            uuid: device.uuid.parse().ok()?,
            model: cut(&device.name),
            memory_bytes: device.memory.total_bytes,
            capability: device.compute_capability,
            pci,
            nvlink: groups.nvlink(at),
            bridge: groups.bridge(at),
            proxy: first.and_then(|at| u16::try_from(at).ok()).unwrap_or(0),
            near: Near {
                numa: place.and_then(|place| place.numa),
                nvlinks: nvlinks(device),
                gpus: near_gpus(device, at),
                nics,
            },
        })
    });
    facts.collect()
}

/// Returns the devices at the other ends of a GPU's NVLinks that are up.
fn nvlinks(device: &NvmlDevice) -> Vec<NvlinkEnd> {
    let mut ends = BTreeMap::new();
    for link in device.nvlinks.iter().filter(|link| link.state == LINK_UP) {
        let pci = link.remote.as_ref();
        // In virtual machines the driver does not say where a switch is: all bits are ones.
        let pci = pci.filter(|pci| pci.domain != u32::MAX);
        let pci = pci.map(|pci| (pci.domain, pci.bus, pci.device));
        let kind = match link.remote_type {
            (SUCCESS, REMOTE_GPU) => NvlinkKind::Gpu,
            (SUCCESS, REMOTE_SWITCH) => NvlinkKind::Switch,
            _ => NvlinkKind::Other,
        };
        *ends.entry((kind, pci.unwrap_or_default())).or_insert(0) += 1;
    }
    let ends = ends.into_iter().take(NEAR_NVLINKS_MAX);
    let end = |((kind, pci), links)| NvlinkEnd { pci, kind, links };
    ends.map(end).collect()
}

/// Returns the GPUs of the machine that are nearer to one than by the processors' links.
fn near_gpus(device: &NvmlDevice, at: usize) -> Vec<NearGpu> {
    let others = device.peers.iter().zip(0..).take(BOX_GPUS_MAX);
    let others = others.filter(|(_, slot)| usize::from(*slot) != at);
    let near = others.filter_map(|(peer, slot)| {
        let level = match peer.ancestor {
            (SUCCESS, number) => Level::of_nvml(number)?,
            _ => return None,
        };
        (level < Level::System).then_some(NearGpu { slot, level })
    });
    near.collect()
}

/// Asks a device for the facts about its GPUs.
fn by_device(device: &mut dyn Device) -> Result<Vec<GpuFacts>, Failure> {
    let cards = device.cards(0)?;
    let document = device.nvml_facts()?;
    // Without the management library only neighbours are not known.
    let nvml = from_bytes::<NvmlSnapshot>(&document).unwrap_or_default();
    let groups = Groups::of(&nvml.devices);
    let facts = cards.iter().zip(0..).map(|(card, at)| GpuFacts {
        uuid: Uuid(card.uuid),
        model: cut(&card.name),
        memory_bytes: card.memory_bytes,
        capability: (
            attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as usize),
            attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as usize),
        ),
        pci: (card.pci_domain, card.pci_bus, card.pci_device),
        nvlink: groups.nvlink(at),
        bridge: groups.bridge(at),
        proxy: 0,
        near: Near::default(),
    });
    Ok(facts.collect())
}

/// Groups of devices, by the number of their first one.
struct Groups {
    nvlink: Vec<Option<usize>>,
    bridge: Vec<Option<usize>>,
}

impl Groups {
    fn of(devices: &[NvmlDevice]) -> Groups {
        let is_linked = |one: &NvmlDevice, peer: &NvmlPeer, other: &NvmlDevice| {
            by_nvlink(peer) || is_at_an_end(one, other) || have_a_switch(one, other)
        };
        Groups {
            nvlink: groups(devices, is_linked),
            bridge: groups(devices, |_, peer, _| by_bridge(peer)),
        }
    }

    fn nvlink(&self, at: usize) -> Option<String> {
        name(&self.nvlink, at)
    }

    fn bridge(&self, at: usize) -> Option<String> {
        name(&self.bridge, at)
    }
}

fn name(groups: &[Option<usize>], at: usize) -> Option<String> {
    let group = groups.get(at).copied().flatten();
    group.map(|group| group.to_string())
}

fn attribute(card: &DeviceCard, number: usize) -> i32 {
    card.attributes.get(number).copied().flatten().unwrap_or(0)
}

fn by_nvlink(peer: &NvmlPeer) -> bool {
    peer.p2p_status.get(P2P_NVLINK) == Some(&(SUCCESS, STATUS_OK))
}

fn by_bridge(peer: &NvmlPeer) -> bool {
    let (result, level) = peer.ancestor;
    result == SUCCESS && level <= TOPOLOGY_SINGLE
}

/// Returns whether an NVLink of one device leads to the other.
fn is_at_an_end(one: &NvmlDevice, other: &NvmlDevice) -> bool {
    let pci = (other.pci.domain, other.pci.bus, other.pci.device);
    nvlinks(one).iter().any(|end| end.pci == pci)
}

/// Returns whether NVLinks of both lead to one switch.
fn have_a_switch(one: &NvmlDevice, other: &NvmlDevice) -> bool {
    // In a virtual machine switches have no address.
    let is_switch = |end: &NvlinkEnd| end.kind == NvlinkKind::Switch && end.pci != (0, 0, 0);
    let others = nvlinks(other);
    let mut ends = nvlinks(one).into_iter().filter(is_switch);
    ends.any(|end| others.iter().any(|other| other.pci == end.pci))
}

/// Returns for each device the first one that it is joined with, directly or through others; `None`
/// if it is joined with none.
fn groups(
    devices: &[NvmlDevice],
    is_joined: impl Fn(&NvmlDevice, &NvmlPeer, &NvmlDevice) -> bool,
) -> Vec<Option<usize>> {
    let mut first: Vec<usize> = (0..devices.len()).collect();
    let mut has_any = vec![false; devices.len()];
    for (at, device) in devices.iter().enumerate() {
        for (other, peer) in device.peers.iter().enumerate().take(devices.len()) {
            if other != at && is_joined(device, peer, &devices[other]) {
                (has_any[at], has_any[other]) = (true, true);
                let (low, high) = (first[at].min(first[other]), first[at].max(first[other]));
                first
                    .iter_mut()
                    .filter(|it| **it == high)
                    .for_each(|it| *it = low);
            }
        }
    }
    let group = |(first, has_any)| Some(first).filter(|_| has_any);
    first.into_iter().zip(has_any).map(group).collect()
}

/// Returns a name as pools know it: its end is left out if it is long.
fn cut(name: &str) -> String {
    let mut end = name.len().min(NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].into()
}

#[cfg(test)]
mod tests {
    use outboard_wire::doc::{NvmlLink, NvmlPci};

    use super::*;

    #[test]
    fn joined_devices_have_a_group() {
        let peer = |joined: bool| NvmlPeer {
            p2p_status: vec![(0, 5), (0, 5), (0, if joined { 0 } else { 5 })],
            ancestor: (0, if joined { 10 } else { 20 }),
        };
        let device = |with: &[usize]| NvmlDevice {
            peers: (0..5).map(|other| peer(with.contains(&other))).collect(),
            ..NvmlDevice::default()
        };
        let devices = [
            device(&[3]),
            device(&[2]),
            device(&[1]),
            device(&[0, 2]),
            device(&[]),
        ];
        let expected = [Some(0), Some(0), Some(0), Some(0), None];
        let all = Groups::of(&devices);
        assert_eq!((all.nvlink, all.bridge), (expected.into(), expected.into()));
        assert_eq!(Groups::of(&devices[4..]).bridge, [None]);
    }

    /// Two GPUs with NVLinks to one switch and to each other, and one without.
    #[test]
    fn nvlinks_lead_to_switches_and_gpus() {
        let pci = |bus| NvmlPci {
            bus,
            ..NvmlPci::default()
        };
        let link = |state, remote_type, bus| NvmlLink {
            state: (0, state),
            remote_type: (0, remote_type),
            remote: Some(pci(bus)),
            ..NvmlLink::default()
        };
        let not_told = NvmlPeer {
            ancestor: (3, 0),
            ..NvmlPeer::default()
        };
        let device = |bus, nvlinks| NvmlDevice {
            name: "NVIDIA H200".into(),
            uuid: format!("GPU-00000000-0000-0000-0000-0000000000{bus:02x}"),
            pci: pci(bus),
            nvlinks,
            peers: vec![not_told.clone(); 4],
            ..NvmlDevice::default()
        };
        let mut nvml = NvmlSnapshot {
            devices: vec![
                device(1, vec![link(1, 2, 9), link(1, 2, 9), link(0, 0, 4)]),
                device(2, vec![link(1, 2, 9), link(1, 0, 3)]),
                device(3, vec![]),
                device(4, vec![]),
            ],
            ..NvmlSnapshot::default()
        };
        nvml.devices[0].peers[3].ancestor = (0, 30);
        nvml.devices[0].peers[2].ancestor = (0, 50);
        let facts = by_nvml(&nvml, &Tree::new(Path::new("/nothing"))).unwrap();
        let nvlink: Vec<Option<&str>> = facts.iter().map(|gpu| gpu.nvlink.as_deref()).collect();
        assert_eq!(nvlink, [Some("0"), Some("0"), Some("0"), None]);
        let end = |kind, bus, links| NvlinkEnd {
            pci: (0, bus, 0),
            kind,
            links,
        };
        assert_eq!(facts[0].near.nvlinks, [end(NvlinkKind::Switch, 9, 2)]);
        let both = [end(NvlinkKind::Gpu, 3, 1), end(NvlinkKind::Switch, 9, 1)];
        assert_eq!(facts[1].near.nvlinks, both);
        let near = NearGpu {
            slot: 3,
            level: Level::HostBridge,
        };
        assert_eq!(facts[0].near.gpus, [near]);
        assert_eq!(facts[3].near, Near::default());
    }
}
