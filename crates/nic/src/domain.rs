//! Protection domains, and the address of the adapter.

use std::sync::atomic::AtomicU32;

use outboard_verbs::abi::ibv_pd;

/// The only port.
pub(crate) const PORT: u8 = 1;
/// The only address: loopback, as RoCE writes IPv4.
pub(crate) const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];

/// A protection domain; programs have the address of its first field, whose handle is the domain's
/// number in the adapter.
#[repr(C)]
pub(crate) struct Domain {
    pub(crate) pd: ibv_pd,
    /// Registrations, addresses and queue pairs.
    pub(crate) uses: AtomicU32,
    /// The domain whose number it has, or null.
    pub(crate) parent: *mut Domain,
}
