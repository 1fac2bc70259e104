//! A plane on its way to another process: what is known of it beside its descriptors.

use super::Wanted;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;

/// An interface with a packet socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedSocket {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
    /// Number of the next slot, if the socket has a ring of them.
    #[serde(default)]
    pub(super) next_slot: Option<usize>,
}

/// An interface on its way to another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HandedInterface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) mac: [u8; 6],
    /// The frames that its program takes.
    pub(super) present: Wanted,
    /// For each queue, the places of frames that neither the kernel nor a ring has: of those that
    /// come, and of those to be sent.
    pub(super) places: Vec<(Vec<u64>, Vec<u64>)>,
}

/// Description of a plane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Handed {
    /// One socket for each interface.
    Packet(Vec<HandedSocket>),
    /// One device.
    Tun { name: String },
    /// For each interface its program's link and three maps, then two descriptors for each queue.
    Xdp(Vec<HandedInterface>),
}

/// Takes the next descriptor.
pub(super) fn next(fds: &mut dyn Iterator<Item = OwnedFd>) -> io::Result<OwnedFd> {
    fds.next()
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
