//! Memory for the data of a client's long messages, which its adapter writes there: the device's, so that the GPU copies from where
//! the adapter wrote, or else the link's own.

use outboard_link::{Kind, Link};
use outboard_wire::limits::{CHUNK_BYTES_MAX, RDMA_GRANTS};
use tracing::debug;

use super::{End, Session};

/// Whether the client is given some.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Grants {
    /// The link has no use for it, or none can be registered.
    Never,
    /// The client has sent no long message yet.
    NotYet,
    Given,
}

impl Grants {
    pub(super) fn over(link: &Link) -> Grants {
        match link.kind() {
            Kind::Rdma => Grants::NotYet,
            _ => Grants::Never,
        }
    }
}

impl Session<'_> {
    /// Replaces what was used; the first message whose data came through the ring is what begins it.
    pub(super) fn grant(&mut self, came_through_ring: bool) -> Result<(), End> {
        if self.grants == Grants::NotYet && came_through_ring {
            self.grants = Grants::Given;
        }
        while self.grants == Grants::Given && self.receiver.granted() < RDMA_GRANTS {
            let room = self.device.room(CHUNK_BYTES_MAX);
            if room.is_none() && self.device.rooms().is_some() {
                // Too much of it is in use; what comes meanwhile comes through the ring.
                break;
            }
            if !self.receiver.grant(room, CHUNK_BYTES_MAX)? {
                debug!("no memory for the data of long messages; it comes through the ring");
                self.grants = Grants::Never;
            }
        }
        Ok(())
    }
}
