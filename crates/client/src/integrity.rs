//! The value by which a CUDA runtime checks that it talks to a driver: HMAC-MD2 over facts that
//! both sides know.

use hmac::{Hmac, Mac};
use md2::Md2;
use outboard_api::CUDA_VERSION;
use outboard_wire::doc::DeviceCard;

const KEY: [u8; 16] = [
    0x14, 0x6A, 0xDD, 0xAE, 0x53, 0xA9, 0xA7, 0x52, 0xAA, 0x08, 0x41, 0x36, 0x0B, 0xF5, 0x5A, 0x9F,
];

/// The addresses that are part of the message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) cudart_interface: u64,
    pub(crate) integrity_check: u64,
    pub(crate) function: u64,
}

/// Returns the value that a runtime of `version` expects at `unix_seconds`.
pub(crate) fn value(
    version: u32,
    unix_seconds: u64,
    addresses: Addresses,
    devices: &[DeviceCard],
) -> [u64; 2] {
    match version % 10 {
        0 => return [0x3341_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8],
        1 => return [0x1841_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8],
        _ => {}
    }
    let mut message = Vec::with_capacity(48 + 28 * devices.len());
    message.extend(CUDA_VERSION.to_ne_bytes());
    message.extend(version.to_ne_bytes());
    message.extend(std::process::id().to_ne_bytes());
    // SAFETY: no arguments, cannot fail.
    let thread = unsafe { libc::pthread_self() };
    message.extend((thread as u32).to_ne_bytes());
    message.extend(addresses.cudart_interface.to_ne_bytes());
    message.extend(addresses.integrity_check.to_ne_bytes());
    message.extend(addresses.function.to_ne_bytes());
    message.extend(unix_seconds.to_ne_bytes());
    for device in devices {
        message.extend(device.uuid);
        message.extend(device.pci_domain.to_ne_bytes());
        message.extend(device.pci_bus.to_ne_bytes());
        message.extend(device.pci_device.to_ne_bytes());
    }
    digest(&message)
}

fn digest(message: &[u8]) -> [u64; 2] {
    // A key of one block's length is always accepted.
    let Ok(mut mac) = Hmac::<Md2>::new_from_slice(&KEY) else {
        return [0; 2];
    };
    mac.update(message);
    let bytes = mac.finalize().into_bytes();
    let mut halves = [[0; 8]; 2];
    halves[0].copy_from_slice(&bytes[..8]);
    halves[1].copy_from_slice(&bytes[8..16]);
    halves.map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 2104 computed differently: two plain MD2 passes over the padded key.
    #[test]
    fn it_is_hmac_of_one_block() {
        use md2::Digest;
        let message = b"forty-eight bytes and a device, or anything else";
        let pad = |byte: u8| KEY.map(|k| k ^ byte);
        let inner = Md2::new()
            .chain_update(pad(0x36))
            .chain_update(message)
            .finalize();
        let outer = Md2::new()
            .chain_update(pad(0x5c))
            .chain_update(inner)
            .finalize();
        let ours = digest(message);
        assert_eq!(ours[0].to_ne_bytes(), outer[..8]);
        assert_eq!(ours[1].to_ne_bytes(), outer[8..]);
    }

    #[test]
    fn two_of_ten_versions_are_constants() {
        let addresses = Addresses {
            cudart_interface: 1,
            integrity_check: 2,
            function: 3,
        };
        assert_eq!(value(13000, 5, addresses, &[])[0], 0x3341_181C_03CB_675C);
        assert_eq!(value(13001, 5, addresses, &[])[0], 0x1841_181C_03CB_675C);
        assert_ne!(
            value(13002, 5, addresses, &[]),
            value(13002, 6, addresses, &[])
        );
    }
}
