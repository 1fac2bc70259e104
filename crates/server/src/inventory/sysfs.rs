//! The machine's PCI devices and network adapters, as /sys shows them.

use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
};

use outboard_pool::near::{Level, Nic};

/// Domain, bus and device.
pub(super) type Address = (u32, u32, u32);

/// A folder with the contents of /sys.
pub(super) struct Tree {
    root: PathBuf,
}

/// Place of a device in the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Its host bridge, and the devices from there down to it.
    way: Vec<String>,
    pub(super) numa: Option<u32>,
}

/// A network adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Adapter {
    interface: Option<String>,
    rdma: Option<String>,
    pci: Address,
    place: Place,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Tree {
        Tree { root: root.into() }
    }

    /// Returns the place of a GPU, which is function 0 of its PCI device.
    pub(super) fn gpu(&self, (domain, bus, device): Address) -> Option<Place> {
        let name = format!("{domain:04x}:{bus:02x}:{device:02x}.0");
        self.place(&self.root.join("bus/pci/devices").join(name))
    }

    /// Returns the network adapters that are PCI devices, by their addresses. An interface without
    /// a carrier is left out.
    pub(super) fn adapters(&self) -> Vec<Adapter> {
        let mut all = BTreeMap::new();
        let interfaces = self.class("net").into_iter();
        for (name, folder) in interfaces.filter(|(_, folder)| has_carrier(folder)) {
            if let Some(adapter) = self.adapter(&folder, &mut all) {
                adapter.interface.get_or_insert(name);
            }
        }
        for (name, folder) in self.class("infiniband") {
            if let Some(adapter) = self.adapter(&folder, &mut all) {
                adapter.rdma.get_or_insert(name);
            }
        }
        all.into_values().collect()
    }

    /// Returns the devices of a class, by name.
    fn class(&self, class: &str) -> BTreeMap<String, PathBuf> {
        let all = fs::read_dir(self.root.join("class").join(class));
        let all = all.into_iter().flatten().flatten();
        let named = all.map(|entry| (entry.file_name().into_string(), entry.path()));
        named
            .filter_map(|(name, path)| Some((name.ok()?, path)))
            .collect()
    }

    /// Returns the adapter of a device of a class; `None` if it is no PCI device.
    fn adapter<'a>(
        &self,
        folder: &Path,
        all: &'a mut BTreeMap<Vec<String>, Adapter>,
    ) -> Option<&'a mut Adapter> {
        let place = self.place(&folder.join("device"))?;
        let pci = address(place.way.last()?)?;
        Some(all.entry(place.way.clone()).or_insert(Adapter {
            interface: None,
            rdma: None,
            pci,
            place,
        }))
    }

    /// Returns the place of the PCI device at a path, or of the one that it is part of.
    fn place(&self, path: &Path) -> Option<Place> {
        let path = path.canonicalize().ok()?;
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        });
        let below = names.skip_while(|name| !name.starts_with("pci"));
        let is_first_or_pci = |(at, name): &(usize, &str)| *at == 0 || address(name).is_some();
        let way = below.enumerate().take_while(is_first_or_pci);
        let way: Vec<String> = way.map(|(_, name)| name.to_owned()).collect();
        if way.len() < 2 {
            return None;
        }
        // The device's own folder, of which `path` may be a part.
        let mut own = path.as_path();
        while own.file_name()? != way.last()?.as_str() {
            own = own.parent()?;
        }
        let numa = fs::read_to_string(own.join("numa_node")).ok();
        // -1: there is one node alone.
        let numa = numa.and_then(|text| text.trim().parse().ok());
        Some(Place { way, numa })
    }
}

impl Place {
    /// Returns the nearest thing that this device and another one have in common.
    fn level(&self, other: &Place) -> Level {
        let pairs = self.way.iter().zip(&other.way);
        let common = pairs.take_while(|(one, other)| one == other).count();
        let is_same_node = self.numa.is_some() && self.numa == other.numa;
        // Below a switch's upstream port, each is behind a downstream port of its own.
        let left = (self.way.len() - common).max(other.way.len() - common);
        match (common, left) {
            (0, _) if is_same_node => Level::Node,
            (0, _) => Level::System,
            (1, _) => Level::HostBridge,
            (_, ..=2) => Level::Single,
            _ => Level::Multiple,
        }
    }
}

/// Returns the adapters that are nearest to a GPU, and the number of the first of them.
pub(super) fn nearest(gpu: &Place, adapters: &[Adapter]) -> (Vec<Nic>, Option<usize>) {
    let levels = adapters.iter().map(|adapter| gpu.level(&adapter.place));
    let levels: Vec<Level> = levels.collect();
    let Some(least) = levels.iter().min() else {
        return (Vec::new(), None);
    };
    let near = adapters.iter().zip(&levels);
    let near = near.filter(|(_, level)| *level == least);
    let nic = |(adapter, level): (&Adapter, &Level)| Nic {
        name: adapter.name().to_owned(),
        rdma: adapter.rdma.clone(),
        pci: adapter.pci,
        level: *level,
    };
    let first = levels.iter().position(|level| level == least);
    (near.map(nic).collect(), first)
}

impl Adapter {
    fn name(&self) -> &str {
        let name = self.interface.as_deref().or(self.rdma.as_deref());
        name.unwrap_or_default()
    }
}

fn has_carrier(interface: &Path) -> bool {
    let state = fs::read_to_string(interface.join("operstate"));
    !state.is_ok_and(|state| matches!(state.trim(), "down" | "lowerlayerdown" | "notpresent"))
}

/// Reads an address as folders of /sys are named: `0000:5d:00.0`.
fn address(name: &str) -> Option<Address> {
    let (place, function) = name.split_once('.')?;
    u8::from_str_radix(function, 16).ok()?;
    let mut parts = place.split(':');
    let mut part = || u32::from_str_radix(parts.next()?, 16).ok();
    let found = (part()?, part()?, part()?);
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder like /sys.
    struct Machine {
        folder: tempfile::TempDir,
    }

    impl Machine {
        fn device(&self, way: &str, numa: i32) -> PathBuf {
            let folder = self.folder.path().join("devices").join(way);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("numa_node"), format!("{numa}\n")).unwrap();
            let devices = self.folder.path().join("bus/pci/devices");
            fs::create_dir_all(&devices).unwrap();
            symlink(&folder, devices.join(folder.file_name().unwrap())).unwrap();
            folder
        }

        /// Adds a device of a class, whose PCI device is at `device`.
        fn of_class(&self, class: &str, name: &str, device: &Path, state: &str) {
            let own = device.join(class).join(name);
            fs::create_dir_all(&own).unwrap();
            fs::write(own.join("operstate"), state).unwrap();
            symlink(device, own.join("device")).unwrap();
            let folder = self.folder.path().join("class").join(class);
            fs::create_dir_all(&folder).unwrap();
            symlink(&own, folder.join(name)).unwrap();
        }

        fn tree(&self) -> Tree {
            Tree::new(self.folder.path())
        }
    }

    /// Two sockets, each with a switch that a GPU and an adapter are below, and an adapter at
    /// another root port of the first socket.
    fn machine() -> Machine {
        let machine = Machine {
            folder: tempfile::tempdir().unwrap(),
        };
        let switch =
            |root: &str, bus: &str| format!("pci0000:{root}/0000:{root}:01.0/0000:{bus}:00.0");
        for (root, bus, gpu, nic, numa) in
            [("58", "59", "5d", "5e", 0), ("d8", "d9", "dd", "de", 1)]
        {
            let below = switch(root, bus);
            machine.device(&format!("{below}/0000:5a:00.0/0000:{gpu}:00.0"), numa);
            let nic = machine.device(&format!("{below}/0000:5a:01.0/0000:{nic}:00.0"), numa);
            machine.of_class("net", &format!("eth{numa}"), &nic, "up\n");
            machine.of_class("infiniband", &format!("mlx5_{numa}"), &nic, "");
        }
        let third = machine.device("pci0000:58/0000:58:02.0/0000:70:00.1", 0);
        machine.of_class("net", "lan", &third, "unknown\n");
        // A virtual adapter is a part of its PCI device.
        let fourth = machine.device("pci0000:10/0000:10:03.0", 0);
        let part = fourth.join("virtio2");
        fs::create_dir(&part).unwrap();
        machine.of_class("net", "ens3", &part, "up\n");
        let fifth = machine.device("pci0000:58/0000:58:03.0/0000:71:00.0", 0);
        machine.of_class("net", "idle", &fifth, "down\n");
        let none = machine.folder.path().join("devices/virtual");
        fs::create_dir(&none).unwrap();
        machine.of_class("net", "lo", &none, "unknown\n");
        machine
    }

    #[test]
    fn the_nearest_adapters_are_below_the_gpus_switch() {
        let machine = machine();
        let tree = machine.tree();
        let adapters = tree.adapters();
        let names: Vec<&str> = adapters.iter().map(Adapter::name).collect();
        assert_eq!(names, ["ens3", "eth0", "lan", "eth1"]);
        let near = |bus: u32| nearest(&tree.gpu((0, bus, 0)).unwrap(), &adapters);
        let nic = |name: &str, rdma: &str, bus: u32| Nic {
            name: name.into(),
            rdma: Some(rdma.into()),
            pci: (0, bus, 0),
            level: Level::Single,
        };
        assert_eq!(near(0x5d), (vec![nic("eth0", "mlx5_0", 0x5e)], Some(1)));
        assert_eq!(near(0xdd), (vec![nic("eth1", "mlx5_1", 0xde)], Some(3)));
        assert_eq!(tree.gpu((0, 0x5d, 0)).unwrap().numa, Some(0));
        assert_eq!(tree.gpu((0, 0x5c, 0)), None);
        assert_eq!(
            nearest(&tree.gpu((0, 0x5d, 0)).unwrap(), &[]),
            (vec![], None)
        );
    }

    #[test]
    fn devices_have_the_level_that_is_common() {
        let machine = machine();
        machine.device("pci0000:58/0000:58:01.0/0000:59:00.0/0000:5a:02.0/0000:60:00.0/0000:61:00.0/0000:62:00.0", 0);
        let tree = machine.tree();
        let place = |bus: u32, device: u32| tree.gpu((0, bus, device)).unwrap();
        let (gpu, level) = (place(0x5d, 0), |other: &Place| place(0x5d, 0).level(other));
        assert_eq!(level(&place(0x5e, 0)), Level::Single);
        assert_eq!(level(&place(0x62, 0)), Level::Multiple);
        assert_eq!(level(&place(0x71, 0)), Level::HostBridge);
        assert_eq!(level(&place(0x10, 3)), Level::Node);
        assert_eq!(level(&place(0xdd, 0)), Level::System);
        assert_eq!(place(0xdd, 0).level(&gpu), Level::System);
    }

    #[test]
    fn addresses() {
        assert_eq!(address("0001:5d:1f.7"), Some((1, 0x5d, 0x1f)));
        for wrong in [
            "",
            "virtio2",
            "0000:5d:00",
            "0000:5d.0",
            "0000:5d:00:1.0",
            "0000:5d:00.x",
        ] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
    }
}
