//! Facts about a box's GPUs, for its pool.

use outboard_api::enums::{
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
};
use outboard_device::{Device, Failure};
use outboard_pool::{Uuid, limits::NAME_BYTES_MAX, record::GpuFacts};
use outboard_wire::doc::{DeviceCard, NvmlDevice, NvmlPeer, NvmlSnapshot, from_bytes};

/// Place of NVLink among NVML's P2P capabilities.
const P2P_NVLINK: usize = 2;
const SUCCESS: u32 = 0;
const STATUS_OK: u32 = 0;
/// Highest `nvmlGpuTopologyLevel_t` at which two GPUs are below one PCIe switch.
const TOPOLOGY_SINGLE: u32 = 10;

/// Asks a device for the facts about its GPUs, in the order of their numbers.
pub(super) fn take(device: &mut dyn Device) -> Result<Vec<GpuFacts>, Failure> {
    let cards = device.cards(0)?;
    let document = device.nvml_facts()?;
    // Without the management library only neighbours are not known.
    let nvml = from_bytes::<NvmlSnapshot>(&document).unwrap_or_default();
    let joined = |is: fn(&NvmlPeer) -> bool| groups(&nvml.devices, is);
    let (nvlinks, bridges) = (joined(by_nvlink), joined(by_bridge));
    let name = |groups: &[Option<usize>], at: usize| {
        let group = groups.get(at).copied().flatten();
        group.map(|group| group.to_string())
    };
    let facts = cards.iter().zip(0..).map(|(card, at)| GpuFacts {
        uuid: Uuid(card.uuid),
        model: cut(&card.name),
        memory_bytes: card.memory_bytes,
        capability: (
            attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as usize),
            attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as usize),
        ),
        pci: (card.pci_domain, card.pci_bus, card.pci_device),
        nvlink: name(&nvlinks, at),
        bridge: name(&bridges, at),
        proxy: 0,
    });
    Ok(facts.collect())
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

/// Returns for each device the first one that it is joined with, directly or through others; `None`
/// if it is joined with none.
fn groups(devices: &[NvmlDevice], is_joined: fn(&NvmlPeer) -> bool) -> Vec<Option<usize>> {
    let mut first: Vec<usize> = (0..devices.len()).collect();
    let mut has_any = vec![false; devices.len()];
    for (at, device) in devices.iter().enumerate() {
        for (other, peer) in device.peers.iter().enumerate().take(devices.len()) {
            if other != at && is_joined(peer) {
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
        assert_eq!(groups(&devices, by_nvlink), expected);
        assert_eq!(groups(&devices, by_bridge), expected);
        assert_eq!(groups(&devices[4..], by_bridge), [None]);
    }
}
