//! `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`, read as the driver reads them. Both are the
//! program's: the server offers all of its devices, and its own environment belongs to its
//! operator.

use outboard_api::{CUresult, cuda::CUdevice};
use outboard_wire::{doc::DeviceCard, handshake::ServerWelcome};

pub(crate) const VISIBLE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
pub(crate) const ORDER_VARIABLE: &str = "CUDA_DEVICE_ORDER";
/// The server's own order.
const FASTEST_FIRST: &str = "FASTEST_FIRST";
const BY_PCI_BUS: &str = "PCI_BUS_ID";
const UUID_PREFIX: &str = "GPU-";

/// The numbers of a server's devices, the visible ones first, in the program's order. Hidden ones
/// have numbers too, since other processes may share memory of theirs.
pub(crate) struct DeviceOrder {
    server: Vec<CUdevice>,
    program: Vec<CUdevice>,
}

impl DeviceOrder {
    /// Leaves only the visible devices in the welcomes, in the program's order. The program's list
    /// is that of the first server, then that of the next. Returns the numbers at each server.
    pub(crate) fn apply(
        welcomes: &mut [ServerWelcome],
        visible: Option<&str>,
        order: Option<&str>,
    ) -> Result<Vec<DeviceOrder>, CUresult> {
        let mut all: Vec<(usize, usize)> = Vec::new();
        for (server, welcome) in welcomes.iter().enumerate() {
            all.extend((0..welcome.devices.len()).map(|device| (server, device)));
        }
        let card = |(server, device): &(usize, usize)| &welcomes[*server].devices[*device];
        match order {
            None | Some(FASTEST_FIRST) => {}
            Some(BY_PCI_BUS) => all.sort_by_key(|one| {
                let card = card(one);
                (card.pci_domain, card.pci_bus, card.pci_device)
            }),
            Some(_) => return Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
        }
        let uuids: Vec<[u8; 16]> = all.iter().map(|one| card(one).uuid).collect();
        let shown = match visible {
            None => (0..all.len()).collect(),
            Some(text) => chosen(text, &uuids)?,
        };
        let mut numbers: Vec<(usize, usize)> = shown.iter().map(|i| all[*i]).collect();
        let count = numbers.len();
        if count == 0 {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        all.retain(|one| !numbers.contains(one));
        numbers.extend(all);
        let orders = welcomes.iter_mut().enumerate();
        Ok(orders
            .map(|(server, welcome)| {
                let own = numbers
                    .iter()
                    .enumerate()
                    .filter(|(_, one)| one.0 == server);
                let (program, own): (Vec<usize>, Vec<usize>) =
                    own.map(|(number, one)| (number, one.1)).unzip();
                let shown = program.iter().filter(|number| **number < count).count();
                welcome.devices = cards(&welcome.devices, &own, shown);
                let number = |number: usize| number as CUdevice;
                DeviceOrder {
                    server: own.into_iter().map(number).collect(),
                    program: program.into_iter().map(number).collect(),
                }
            })
            .collect())
    }

    /// Returns the place of a device among the server's, the visible ones first.
    pub(crate) fn local(&self, device: CUdevice) -> Result<usize, CUresult> {
        self.program
            .iter()
            .position(|number| *number == device)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Returns the program's number of the device at a place.
    pub(crate) fn program(&self, local: usize) -> CUdevice {
        self.program.get(local).copied().unwrap_or(-1)
    }

    /// Returns the server's number of a device.
    pub(crate) fn server(&self, device: CUdevice) -> Result<CUdevice, CUresult> {
        Ok(self.server[self.local(device)?])
    }

    /// Returns the program's number of a device of the server; beyond the visible ones if it is
    /// hidden.
    pub(crate) fn client(&self, number: u32) -> Result<CUdevice, CUresult> {
        self.server
            .iter()
            .position(|device| device.unsigned_abs() == number)
            .map(|local| self.program(local))
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }
}

/// Returns the cards of the first `shown` of these devices; each knows its peers in their order.
fn cards(all: &[DeviceCard], order: &[usize], shown: usize) -> Vec<DeviceCard> {
    let card = |number: &usize| {
        let card = &all[*number];
        let peer = |other: &usize| card.peers.get(*other).cloned().unwrap_or_default();
        DeviceCard {
            peers: order.iter().map(peer).collect(),
            ..card.clone()
        }
    };
    order[..shown].iter().map(card).collect()
}

/// Returns the devices that a list names, as indices into `uuids`. The first invalid entry ends the
/// list, and a device named twice is an error.
fn chosen(list: &str, uuids: &[[u8; 16]]) -> Result<Vec<usize>, CUresult> {
    // The first entry decides whether all are numbers or UUIDs.
    let named = match list.starts_with(UUID_PREFIX) {
        true => by_uuid,
        false => by_number,
    };
    let mut chosen = Vec::new();
    for entry in list.split(',') {
        let Some(device) = named(entry, uuids) else {
            break;
        };
        if chosen.contains(&device) {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        chosen.push(device);
    }
    Ok(chosen)
}

/// Returns the one device whose UUID begins with these digits, up to the first character that
/// cannot be part of a UUID.
fn by_uuid(entry: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    let digits: Vec<u8> = entry
        .strip_prefix(UUID_PREFIX)?
        .chars()
        .filter(|c| *c != '-')
        .map_while(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    let begins = |uuid: &[u8; 16]| {
        let mut all = uuid.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.iter().all(|digit| all.next() == Some(*digit))
    };
    let mut fitting = (0..uuids.len()).filter(|i| begins(&uuids[*i]));
    let found = fitting.next().filter(|_| !digits.is_empty())?;
    fitting.next().is_none().then_some(found)
}

/// Parses an entry as C reads an `int`: leading space and sign, trailing characters ignored, upper
/// bits cut off.
fn by_number(entry: &str, uuids: &[[u8; 16]]) -> Option<usize> {
    let entry = entry.trim_start_matches(|c: char| c.is_ascii_whitespace());
    let (is_negative, digits) = match entry.as_bytes().first()? {
        b'-' => (true, &entry[1..]),
        b'+' => (false, &entry[1..]),
        _ => (false, entry),
    };
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    let long: i64 = digits[..end].parse().unwrap_or(i64::MAX);
    let number = if is_negative { -long } else { long } as i32;
    usize::try_from(number).ok().filter(|n| *n < uuids.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUIDS: [[u8; 16]; 2] = [
        [
            0xab, 0x07, 0x3f, 0xa0, 0x1a, 0xae, 0x10, 0x05, 0xe3, 0x49, 0xa7, 0xef, 0xe8, 0x29,
            0xbe, 0xf9,
        ],
        [
            0x89, 0x6c, 0x9e, 0x87, 0xdb, 0xea, 0x24, 0x09, 0x5a, 0xd3, 0x26, 0x9a, 0x29, 0xc8,
            0x8f, 0x4b,
        ],
    ];
    const A: &str = "GPU-ab073fa0-1aae-1005-e349-a7efe829bef9";
    const B: &str = "GPU-896c9e87-dbea-2409-5ad3-269a29c88f4b";

    /// Results of the driver (580.159.04, two H200) for each list.
    #[test]
    fn lists_are_read_as_the_driver_reads_them() {
        let none: &[usize] = &[];
        for (list, devices) in [
            ("", none),
            ("0", &[0]),
            ("1", &[1]),
            ("0,1", &[0, 1]),
            ("1,0", &[1, 0]),
            (" 0 , 1 ", &[0, 1]),
            ("+1", &[1]),
            ("-1", none),
            ("0,-1,1", &[0]),
            ("0,2,1", &[0]),
            ("0x1", &[0]),
            ("01", &[1]),
            ("1abc", &[1]),
            ("abc", none),
            ("0,abc,1", &[0]),
            ("1.5", &[1]),
            ("0;1", &[0]),
            (",0", none),
            ("0,,1", &[0]),
            ("0,", &[0]),
            ("\t1", &[1]),
            ("--1", none),
            ("+", none),
            ("- 1", none),
            ("99999999999", none),
            ("4294967297", &[1]),
            ("-0", &[0]),
            ("0\n1", &[0]),
            ("'0'", none),
            ("GPU-a", &[0]),
            ("GPU-8", &[1]),
            ("GPU-", none),
            ("GPU", none),
            ("GPU-a-", &[0]),
            ("GPU-a,GPU-8", &[0, 1]),
            ("GPU-ffffffff", none),
            ("NoDevFiles", none),
            ("MIG-", none),
        ] {
            assert_eq!(chosen(list, &UUIDS), Ok(devices.to_vec()), "{list:?}");
        }
        for (list, devices) in [
            (A.to_string(), vec![0]),
            (format!("{B},{A}"), vec![1, 0]),
            (A.to_lowercase(), vec![]),
            (A.to_uppercase(), vec![0]),
            (A[4..].to_string(), vec![]),
            (format!("{A}x"), vec![0]),
            (format!("{A},0"), vec![0]),
            (format!("0,{B}"), vec![0]),
            (format!("{A} ,{B}"), vec![0, 1]),
            (format!(" {B}"), vec![]),
            (format!("{B} "), vec![1]),
            (format!("{A},GPU-ffffffff,{B}"), vec![0]),
        ] {
            assert_eq!(chosen(&list, &UUIDS), Ok(devices), "{list:?}");
        }
        let twice = Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        for list in ["0,0", "0,1,0", "1,1", &format!("{A},{A}")] {
            assert_eq!(chosen(list, &UUIDS), twice, "{list:?}");
        }
    }

    #[test]
    fn hidden_devices_come_last() {
        let card = |number: u32| DeviceCard {
            uuid: UUIDS[number as usize],
            pci_bus: 9 - number,
            ..DeviceCard::default()
        };
        let welcome = ServerWelcome {
            release: String::new(),
            session: 0,
            driver_version: 13000,
            ptx_only: false,
            window_base: 0,
            window_bytes: 0,
            exact_memory: false,
            confirms_memory: false,
            devices: vec![card(0), card(1)],
            key: None,
        };
        let apply = |visible, order| {
            let mut seen = [welcome.clone()];
            DeviceOrder::apply(&mut seen, visible, order)
                .map(|mut orders| (seen[0].devices.len(), orders.remove(0)))
        };
        let (seen, order) = apply(Some("1"), None).expect("one is left");
        assert_eq!(seen, 1);
        assert_eq!((order.server(0), order.server(1)), (Ok(1), Ok(0)));
        assert_eq!((order.client(1), order.client(0)), (Ok(0), Ok(1)));
        assert!(order.client(2).is_err() && order.server(2).is_err() && order.server(-1).is_err());
        let (_, order) = apply(Some("0"), Some(BY_PCI_BUS)).expect("one");
        assert_eq!(order.server(0), Ok(1), "the lower bus is first");
        let none = apply(Some("-1"), None).err();
        assert_eq!(none, Some(CUresult::CUDA_ERROR_NO_DEVICE));
        let wrong = apply(None, Some("nonsense")).err();
        assert_eq!(wrong, Some(CUresult::CUDA_ERROR_INVALID_DEVICE));
    }

    #[test]
    fn devices_of_several_servers_are_one_list() {
        let server = |names: &[&str]| ServerWelcome {
            devices: names
                .iter()
                .map(|name| DeviceCard {
                    name: (*name).into(),
                    ..DeviceCard::default()
                })
                .collect(),
            ..ServerWelcome::default()
        };
        let mut seen = [server(&["a", "b"]), server(&["c"]), server(&["d"])];
        let orders = DeviceOrder::apply(&mut seen, Some("2,1"), None).expect("two are left");
        let names = |welcome: &ServerWelcome| {
            let names = welcome.devices.iter().map(|card| card.name.clone());
            names.collect::<Vec<_>>()
        };
        assert_eq!(seen.each_ref().map(names), [vec!["b"], vec!["c"], vec![]]);
        assert_eq!((orders[0].server(1), orders[1].server(0)), (Ok(1), Ok(0)));
        assert!(orders[0].server(0).is_err() && orders[1].server(1).is_err());
        // The hidden ones, "a" and "d", come after all visible ones.
        assert_eq!((orders[0].client(0), orders[2].client(0)), (Ok(2), Ok(3)));
    }
}
