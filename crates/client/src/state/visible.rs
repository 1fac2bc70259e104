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

/// The server's numbers of its devices, in the program's order: the visible ones, then the hidden
/// ones, whose memory other processes may still share.
pub(crate) struct DeviceOrder {
    server: Vec<CUdevice>,
}

impl DeviceOrder {
    /// Leaves only the visible devices in the welcome, in the program's order.
    pub(crate) fn apply(
        welcome: &mut ServerWelcome,
        visible: Option<&str>,
        order: Option<&str>,
    ) -> Result<DeviceOrder, CUresult> {
        let all = &welcome.devices;
        let mut server: Vec<usize> = (0..all.len()).collect();
        match order {
            None | Some(FASTEST_FIRST) => {}
            Some(BY_PCI_BUS) => {
                server.sort_by_key(|i| (all[*i].pci_domain, all[*i].pci_bus, all[*i].pci_device));
            }
            Some(_) => return Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
        }
        let uuids: Vec<[u8; 16]> = server.iter().map(|i| all[*i].uuid).collect();
        let shown = match visible {
            None => (0..server.len()).collect(),
            Some(text) => chosen(text, &uuids)?,
        };
        let mut numbers: Vec<usize> = shown.iter().map(|i| server[*i]).collect();
        let count = numbers.len();
        server.retain(|number| !numbers.contains(number));
        numbers.extend(server);
        let card = |number: &usize| {
            let card = &all[*number];
            let peer = |other: &usize| card.peers.get(*other).cloned().unwrap_or_default();
            DeviceCard {
                peers: numbers.iter().map(peer).collect(),
                ..card.clone()
            }
        };
        welcome.devices = numbers[..count].iter().map(card).collect();
        if welcome.devices.is_empty() {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        Ok(DeviceOrder {
            server: numbers
                .into_iter()
                .map(|number| number as CUdevice)
                .collect(),
        })
    }

    /// Returns the server's number of a device.
    pub(crate) fn server(&self, device: CUdevice) -> Result<CUdevice, CUresult> {
        usize::try_from(device)
            .ok()
            .and_then(|device| self.server.get(device).copied())
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Returns the program's number of a device of the server; beyond the visible ones if it is
    /// hidden.
    pub(crate) fn client(&self, number: u32) -> Result<CUdevice, CUresult> {
        self.server
            .iter()
            .position(|device| device.unsigned_abs() == number)
            .map(|device| device as CUdevice)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }
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
            devices: vec![card(0), card(1)],
            key: None,
        };
        let mut seen = welcome.clone();
        let order = DeviceOrder::apply(&mut seen, Some("1"), None).expect("one is left");
        assert_eq!(seen.devices.len(), 1);
        assert_eq!((order.server(0), order.server(1)), (Ok(1), Ok(0)));
        assert_eq!((order.client(1), order.client(0)), (Ok(0), Ok(1)));
        assert!(order.client(2).is_err() && order.server(2).is_err() && order.server(-1).is_err());
        let mut seen = welcome.clone();
        let order = DeviceOrder::apply(&mut seen, Some("0"), Some(BY_PCI_BUS)).expect("one");
        assert_eq!(order.server(0), Ok(1), "the lower bus is first");
        let none = DeviceOrder::apply(&mut welcome.clone(), Some("-1"), None).err();
        assert_eq!(none, Some(CUresult::CUDA_ERROR_NO_DEVICE));
        let wrong = DeviceOrder::apply(&mut welcome.clone(), None, Some("nonsense")).err();
        assert_eq!(wrong, Some(CUresult::CUDA_ERROR_INVALID_DEVICE));
    }
}
