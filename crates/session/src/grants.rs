//! Grants of memory for the data of a client's long messages, which the client's adapter writes
//! there. The device's pinned memory comes first, because the GPU copies from it directly, then the
//! link's own.

use outboard_link::Receiver;
use outboard_wire::limits::{CHUNK_BYTES_MAX, RDMA_GRANTS};
use tracing::debug;

use super::{End, Session};

/// Whether the client is given memory for long messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Grants {
    /// The link does not use grants, or no memory can be registered.
    Never,
    /// The client has sent no long message yet.
    NotYet,
    Given,
}

impl Grants {
    pub(super) fn over(receiver: &mut Receiver) -> Grants {
        match receiver.remote_memory() {
            Some(_) => Grants::NotYet,
            None => Grants::Never,
        }
    }
}

impl Session<'_> {
    /// Grants new memory for each grant that was used. Granting begins after the first long message
    /// whose data came through the ring.
    #[inline]
    pub(super) fn grant(&mut self, came_through_ring: bool) -> Result<(), End> {
        match self.grants {
            Grants::Never => Ok(()),
            Grants::NotYet | Grants::Given => self.grant_anew(came_through_ring),
        }
    }

    fn grant_anew(&mut self, came_through_ring: bool) -> Result<(), End> {
        if self.grants == Grants::NotYet && came_through_ring {
            self.grants = Grants::Given;
        }
        let Some(remote) = self.receiver.remote_memory() else {
            return Ok(());
        };
        while self.grants == Grants::Given && remote.granted() < RDMA_GRANTS {
            let room = self.executor.device.grantable(CHUNK_BYTES_MAX);
            if room.is_none() && self.executor.device.rooms().is_some() {
                // The device's pinned memory is in use; until some is free, data comes through the
                // ring.
                break;
            }
            if !remote.grant(room, CHUNK_BYTES_MAX)? {
                debug!("no memory for the data of long messages; it comes through the ring");
                self.grants = Grants::Never;
            }
        }
        Ok(())
    }
}
