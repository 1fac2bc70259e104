//! Copies on a server with several devices: those in the default stream follow the work of both.

use outboard_api::{CUresult, cuda::CUcontext, enums::CU_EVENT_DISABLE_TIMING};
use outboard_wire::messages;

use super::{super::Done, end::CopyEnd};
use crate::state::{Driver, HandleKind, StreamRef, wire_context};

/// The contexts of other devices whose later work follows a copy.
pub(in crate::calls) type Peers = Vec<CUcontext>;

impl Driver {
    /// Copies on a server with several devices.
    #[cold]
    #[inline(never)]
    pub(super) fn copy_among(
        &self,
        dst: CopyEnd,
        src: CopyEnd,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let peers = match bytes {
            0 => Peers::new(),
            _ => self.follow_peers(stream, wait, || [dst.address, src.address])?,
        };
        self.copy(dst, src, bytes, stream, wait)?;
        self.precede_peers(stream, &peers)
    }

    /// Makes a copy in the default stream, or without one, follow all work of the devices that have
    /// an end of it. Returns those that are not the current one: `precede_peers` takes them when
    /// the copy is sent.
    #[inline]
    pub(in crate::calls) fn follow_peers(
        &self,
        stream: &StreamRef,
        wait: bool,
        ends: impl FnOnce() -> [u64; 2],
    ) -> Result<Peers, CUresult> {
        match self.contexts.are_of_several_devices()
            && (wait || stream.is_legacy())
            && !stream.is_capturing()
        {
            true => self.follow_owners(stream, ends()),
            false => Ok(Peers::new()),
        }
    }

    /// Makes a stream follow the default streams of the devices that have an end of a copy (CUDA
    /// Programming Guide, "Peer-to-Peer Memory Copy"). The server keeps that order: the host does
    /// not wait, since work under way may wait for it.
    #[cold]
    fn follow_owners(&self, stream: &StreamRef, ends: [u64; 2]) -> Result<Peers, CUresult> {
        let here = self.contexts.current()?.handle;
        let owner = |address| self.memory.lock().find(address).map(|found| found.context);
        let [Some(dst), Some(src)] = ends.map(owner) else {
            return Ok(Peers::new());
        };
        // Mapped memory belongs to no context: it may be any device's.
        let is_known = [dst, src].map(|context| self.contexts.get(context).is_ok());
        let mut peers = match is_known {
            [true, true] => vec![dst, src],
            _ => self.contexts.made_primaries(),
        };
        peers.dedup();
        peers.retain(|context| *context != here);
        for peer in &peers {
            let default = StreamRef::Legacy(self.streams.legacy(*peer));
            if !self.is_quiet(&default) {
                self.push_visible()?;
                let earlier = (&default, self.wire_context(*peer)?);
                self.follow((stream, wire_context()), earlier)?;
            }
        }
        Ok(peers)
    }

    /// Makes later work of other devices follow a copy that was sent to a stream.
    #[inline]
    pub(in crate::calls) fn precede_peers(&self, stream: &StreamRef, peers: &Peers) -> Done {
        for peer in peers {
            let default = StreamRef::Legacy(self.streams.legacy(*peer));
            let later = (&default, self.wire_context(*peer)?);
            self.follow(later, (stream, wire_context()))?;
        }
        Ok(())
    }

    /// Makes the later work of one stream follow the earlier work of another; each is named with
    /// its context.
    #[cold]
    fn follow(&self, later: (&StreamRef, u64), earlier: (&StreamRef, u64)) -> Done {
        let event = self.handles.mint(HandleKind::Event);
        let create = messages::EventCreate {
            event,
            flags: CU_EVENT_DISABLE_TIMING,
        };
        let record = messages::EventRecord {
            event,
            stream: earlier.0.wire(),
            flags: 0,
        };
        let wait = messages::StreamWaitEvent {
            stream: later.0.wire(),
            event,
            flags: 0,
        };
        self.submit_in(earlier.1, &create)?;
        self.submit_to_in(earlier.1, earlier.0, &record)?;
        self.submit_to_in(later.1, later.0, &wait)?;
        self.submit_in(earlier.1, &messages::EventDestroy { event })
    }
}
