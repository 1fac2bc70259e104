//! Counting devices and finding them.

use outboard_wire::doc::NvmlPci;

use super::*;
use crate::types::{nvmlUUID_t, struct_version};

/// `nvmlUUIDType_t`.
const UUID_ASCII: u32 = 1;
const UUID_BINARY: u32 = 2;

pub(crate) fn nvmlDeviceGetCount_v2(count: Out<'_, u32>) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    count.put(snapshot.content.devices.len() as u32)
}

pub(crate) fn nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<'_, nvmlDevice_t>) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    device.check()?;
    if index as usize >= snapshot.content.devices.len() {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    device.put(handle_of(index as usize))
}

pub(crate) fn nvmlDeviceGetIndex(device: nvmlDevice_t, index: Out<'_, u32>) -> Result {
    let found = Device::find(device, Age::Any)?;
    index.put(found.index as u32)
}

pub(crate) fn nvmlDeviceGetHandleByUUID(uuid: Text<'_>, device: Out<'_, nvmlDevice_t>) -> Result {
    find_by_text(uuid, device, |d, text| Ok(d.uuid == text))
}

pub(crate) fn nvmlDeviceGetHandleBySerial(
    serial: Text<'_>,
    device: Out<'_, nvmlDevice_t>,
) -> Result {
    find_by_text(serial, device, |d, text| {
        Ok(d.serial.as_deref() == Some(text))
    })
}

pub(crate) fn nvmlDeviceGetHandleByPciBusId_v2(
    bus_id: Text<'_>,
    device: Out<'_, nvmlDevice_t>,
) -> Result {
    find_by_text(bus_id, device, |d, text| {
        let wanted = parse_bus_id(text).ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
        Ok(wanted == pci_address_of(&d.pci))
    })
}

pub(crate) unsafe fn nvmlDeviceGetHandleByUUIDV(
    uuid: *const nvmlUUID_t,
    device: Out<'_, nvmlDevice_t>,
) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    device.check()?;
    if uuid.is_null() {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    // The version comes first. The rest is read only if the caller's record has this version.
    // SAFETY: null was refused; every version of the record begins with its version.
    if unsafe { uuid.cast::<u32>().read_unaligned() } != struct_version::<nvmlUUID_t>(1) {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    // SAFETY: null was refused, and a record with this version is a `nvmlUUID_t`.
    let uuid = unsafe { uuid.read_unaligned() };
    let matches = |text: &str| match uuid.type_ {
        UUID_ASCII => uuid.value.split(|b| *b == 0).next() == Some(text.as_bytes()),
        _ => parse_uuid(text).is_some_and(|bytes| uuid.value.starts_with(&bytes)),
    };
    if !matches!(uuid.type_, UUID_ASCII | UUID_BINARY) {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    let index = snapshot
        .content
        .devices
        .iter()
        .position(|d| matches(&d.uuid));
    device.put(handle_of(index.ok_or(nvmlReturn_t::NOT_FOUND)?))
}

fn find_by_text(
    text: Text<'_>,
    device: Out<'_, nvmlDevice_t>,
    is_it: impl Fn(&NvmlDevice, &str) -> Result<bool>,
) -> Result {
    let snapshot = session::snapshot(Age::Any)?;
    device.check()?;
    let text = text
        .get()?
        .to_str()
        .map_err(|_| nvmlReturn_t::INVALID_ARGUMENT)?;
    for (index, candidate) in snapshot.content.devices.iter().enumerate() {
        if is_it(candidate, text)? {
            return device.put(handle_of(index));
        }
    }
    Err(nvmlReturn_t::NOT_FOUND)
}

/// Domain, bus, device, function.
type PciAddress = [u32; 4];

/// Returns the address of a GPU, which is function 0 of its PCI device.
fn pci_address_of(pci: &NvmlPci) -> PciAddress {
    [pci.domain, pci.bus, pci.device, 0]
}

/// `domain:bus:device.function`, `domain:bus:device` or `bus:device.function`, in hexadecimal.
fn parse_bus_id(text: &str) -> Option<PciAddress> {
    let hex = |digits: &str| {
        let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
        plain
            .then(|| u32::from_str_radix(digits, 16).ok())
            .flatten()
    };
    let (place, function) = match text.split_once('.') {
        Some((place, function)) => (place, Some(hex(function)?)),
        None => (text, None),
    };
    match (&place.split(':').collect::<Vec<_>>()[..], function) {
        ([domain, bus, device], function) => {
            Some([hex(domain)?, hex(bus)?, hex(device)?, function.unwrap_or(0)])
        }
        ([bus, device], Some(function)) => Some([0, hex(bus)?, hex(device)?, function]),
        _ => None,
    }
}

/// The bytes of `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`; as in NVML, the prefix may be missing.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u32> = text
        .strip_prefix("GPU-")
        .unwrap_or(text)
        .chars()
        .filter(|c| *c != '-')
        .map(|c| c.to_digit(16))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect();
    (digits.len() == 32)
        .then(|| bytes.try_into().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids() {
        assert_eq!(parse_bus_id("00000000:5D:00.0"), Some([0, 0x5d, 0, 0]));
        assert_eq!(parse_bus_id("0001:5d:1f"), Some([1, 0x5d, 0x1f, 0]));
        assert_eq!(parse_bus_id("5d:00.0"), Some([0, 0x5d, 0, 0]));
        assert_eq!(parse_bus_id("5d:00.1"), Some([0, 0x5d, 0, 1]));
        for wrong in [
            "",
            "5d",
            "5d:00",
            "a:b:c:d.0",
            "0:+5:0.0",
            "0:5g:0.0",
            "0:5:0.",
            "123456789:0:0.0",
        ] {
            assert_eq!(parse_bus_id(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn uuids() {
        let bytes = parse_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(bytes[..3], [0x00, 0x11, 0x22]);
        assert_eq!(bytes[15], 0xff);
        assert_eq!(
            parse_uuid("00112233-4455-6677-8899-aabbccddeeff"),
            Some(bytes)
        );
        for wrong in [
            "",
            "GPU-",
            "gpu-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-0011",
            "GPU-g0112233-4455-6677-8899-aabbccddeeff",
        ] {
            assert_eq!(parse_uuid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn handles() {
        for index in [0, 1, 7, 100] {
            assert_eq!(index_of(handle_of(index)), Some(index));
        }
        for wrong in [0, 1, HANDLE_FIRST - HANDLE_STRIDE, HANDLE_FIRST + 1] {
            assert_eq!(index_of(nvmlDevice_t(wrong)), None, "{wrong:x}");
        }
    }
}
