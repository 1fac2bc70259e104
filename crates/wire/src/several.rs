//! Devices of several servers in one list: programs tell devices apart by their PCI addresses and
//! UUIDs, and two servers may have devices with the same ones.
//!
//! The first server's devices stay what they are. The driver's library and the management library
//! both change the others here, so that they name the same devices.

use std::collections::{HashMap, HashSet};

use crate::doc::{DeviceCard, NVML_P2P_INDICES, NvmlDevice, NvmlPeer, NvmlSnapshot};

/// `CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID`.
const PCI_DOMAIN_ATTRIBUTE: usize = 50;
/// Between a PCI domain and the one that takes its place.
const DOMAIN_STEP: u32 = 0x100;
/// Domains are written in four digits.
const DOMAIN_MAX: u32 = 0xffff;
const UUID_PREFIX: &str = "GPU-";

/// Gives devices of later servers another PCI domain and another UUID if an earlier server's device
/// has theirs. The lists are in the order of the servers.
pub fn tell_apart<'d>(servers: impl Iterator<Item = &'d mut [DeviceCard]>) {
    let mut earlier = Earlier::default();
    for devices in servers {
        for card in devices.iter_mut() {
            let at = (card.pci_domain, card.pci_bus, card.pci_device);
            let domain = earlier.domain(at);
            if domain != card.pci_domain {
                card.pci_domain = domain;
                if let Some(Some(attribute)) = card.attributes.get_mut(PCI_DOMAIN_ATTRIBUTE) {
                    *attribute = domain.cast_signed();
                }
            }
            card.uuid = earlier.uuid(card.uuid);
        }
        earlier.end();
    }
}

/// Changes the management library's devices as [`tell_apart`] changes the driver's.
pub fn tell_nvml_apart<'d>(servers: impl Iterator<Item = &'d mut [NvmlDevice]>) {
    let mut earlier = Earlier::default();
    for devices in servers {
        let mut moved = HashMap::new();
        for device in devices.iter_mut() {
            let pci = &mut device.pci;
            let at = (pci.domain, pci.bus, pci.device);
            let domain = earlier.domain(at);
            if domain != pci.domain {
                pci.domain = domain;
                // Eight digits, as NVML writes it since its third version.
                pci.bus_id = format!("{domain:08X}:{:02X}:{:02X}.0", pci.bus, pci.device);
            }
            moved.insert(at, domain);
            if let Some(uuid) = uuid_of(&device.uuid) {
                let apart = earlier.uuid(uuid);
                if apart != uuid {
                    device.uuid = uuid_text(&apart);
                }
            }
        }
        // The other ends of their links are devices of the same server.
        let links = devices.iter_mut().flat_map(|device| &mut device.nvlinks);
        for remote in links.filter_map(|link| link.remote.as_mut()) {
            let at = (remote.domain, remote.bus, remote.device);
            remote.domain = moved.get(&at).copied().unwrap_or(remote.domain);
        }
        earlier.end();
    }
}

/// Makes one list of the management library's devices of several servers. Between two servers there
/// are no peers; the texts about the driver are the first server's.
pub fn one_list(mut servers: Vec<NvmlSnapshot>) -> NvmlSnapshot {
    if servers.len() > 1 {
        tell_nvml_apart(servers.iter_mut().map(|server| &mut server.devices[..]));
    }
    let counts: Vec<usize> = servers.iter().map(|server| server.devices.len()).collect();
    let all: usize = counts.iter().sum();
    let mut before = 0;
    for (server, count) in servers.iter_mut().zip(counts) {
        for device in &mut server.devices {
            let own = std::mem::take(&mut device.peers);
            let foreign = |many| std::iter::repeat_with(stranger).take(many);
            device.peers = foreign(before)
                .chain(own)
                .chain(foreign(all - before - count))
                .collect();
        }
        before += count;
    }
    let mut servers = servers.into_iter();
    let mut whole = servers.next().unwrap_or_default();
    for server in servers {
        whole.devices.extend(server.devices);
        whole.cuda_version = whole.cuda_version.min(server.cuda_version);
    }
    whole
}

/// Returns what one device knows of another server's.
fn stranger() -> NvmlPeer {
    /// `NVML_P2P_STATUS_NOT_SUPPORTED`.
    const NO_P2P: u32 = 5;
    /// `NVML_ERROR_INVALID_ARGUMENT`.
    const INVALID: u32 = 2;
    /// `NVML_TOPOLOGY_SYSTEM`, the farthest.
    const FAR: u32 = 50;
    let indices = 0..NVML_P2P_INDICES;
    let status = |index| match index + 1 < NVML_P2P_INDICES {
        true => (0, NO_P2P),
        // The last is the first that there is not.
        false => (INVALID, 0),
    };
    NvmlPeer {
        p2p_status: indices.map(status).collect(),
        ancestor: (0, FAR),
    }
}

/// PCI domain, bus and device.
type Place = (u32, u32, u32);

/// Addresses and UUIDs of the devices of earlier servers.
#[derive(Default)]
struct Earlier {
    places: HashSet<Place>,
    uuids: HashSet<[u8; 16]>,
    /// Those of the present server's devices.
    present: Vec<(Place, Option<[u8; 16]>)>,
}

impl Earlier {
    /// Returns the PCI domain for a device at a domain, bus and device number.
    fn domain(&mut self, (domain, bus, device): Place) -> u32 {
        let steps = (0..=DOMAIN_MAX / DOMAIN_STEP).map(|step| match step {
            0 => domain,
            step => domain.wrapping_add(step * DOMAIN_STEP) & DOMAIN_MAX,
        });
        let free = |domain: &u32| !self.places.contains(&(*domain, bus, device));
        let found = steps.into_iter().find(free).unwrap_or(domain);
        self.present.push(((found, bus, device), None));
        found
    }

    /// Returns the UUID for a device with this one.
    fn uuid(&mut self, uuid: [u8; 16]) -> [u8; 16] {
        let changed = (0..=u8::MAX).map(|change| {
            let mut other = uuid;
            other[0] ^= change;
            other
        });
        let free = |uuid: &[u8; 16]| !self.uuids.contains(uuid);
        let found = changed.into_iter().find(free).unwrap_or(uuid);
        if let Some(last) = self.present.last_mut() {
            last.1 = Some(found);
        }
        found
    }

    /// Ends a server's list: two devices of one server are never told apart.
    fn end(&mut self) {
        for (place, uuid) in self.present.drain(..) {
            self.places.insert(place);
            self.uuids.extend(uuid);
        }
    }
}

fn uuid_of(text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix(UUID_PREFIX)?.replace('-', "");
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    u128::from_str_radix(&digits, 16)
        .ok()
        .map(u128::to_be_bytes)
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(*uuid));
    let [a, b, c, d, e] = [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ];
    format!("{UUID_PREFIX}{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_devices_of_two_servers_become_different_ones_in_both_libraries() {
        let uuid = *b"outboard-soft-00";
        let mut attributes = vec![None; 60];
        attributes[PCI_DOMAIN_ATTRIBUTE] = Some(3);
        let card = DeviceCard {
            uuid,
            pci_domain: 3,
            pci_bus: 7,
            attributes,
            ..DeviceCard::default()
        };
        let mut device = NvmlDevice {
            uuid: uuid_text(&uuid),
            ..NvmlDevice::default()
        };
        (device.pci.domain, device.pci.bus) = (3, 7);
        device.pci.bus_id = "00000003:07:00.0".into();
        let mut cards = vec![card; 3];
        let mut devices = vec![device; 3];
        tell_apart(cards.chunks_mut(1));
        tell_nvml_apart(devices.chunks_mut(1));
        let domains: Vec<u32> = cards.iter().map(|card| card.pci_domain).collect();
        assert_eq!(domains, [0x3, 0x103, 0x203]);
        assert_eq!(cards[1].attributes[PCI_DOMAIN_ATTRIBUTE], Some(0x103));
        assert_eq!(cards[0].uuid, uuid);
        assert!(cards[1].uuid != uuid && cards[2].uuid != uuid);
        assert_ne!(cards[1].uuid, cards[2].uuid);
        for (card, device) in cards.iter().zip(&devices) {
            assert_eq!(device.uuid, uuid_text(&card.uuid));
            assert_eq!(device.pci.domain, card.pci_domain);
            let bus_id = format!("{:08X}:07:00.0", card.pci_domain);
            assert_eq!(device.pci.bus_id, bus_id);
        }
        let snapshots = devices.chunks(1).map(|devices| NvmlSnapshot {
            devices: devices.to_vec(),
            ..NvmlSnapshot::default()
        });
        let whole = one_list(snapshots.collect());
        assert_eq!(whole.devices.len(), 3);
        let peers = &whole.devices[2].peers;
        assert_eq!((peers.len(), peers[0].p2p_status[0]), (2, (0, 5)));
        // One server's devices are its own affair.
        let mut same = [cards[0].clone(), cards[0].clone()];
        tell_apart(std::iter::once(&mut same[..]));
        assert_eq!(same[0], same[1]);
    }
}
