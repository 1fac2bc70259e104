//! Copies on a server with several devices: those in the default stream follow both devices'
//! default streams, those without a stream all their work.

use outboard_api::{
    CUresult,
    cuda::CUcontext,
    enums::{CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING},
};
use outboard_wire::messages;

use super::{super::Done, end::CopyEnd};
use crate::state::{Driver, HandleKind, StreamRef, wire_context};

/// The streams whose later work follows a copy, each with its context's number.
pub(in crate::calls) type Peers = Vec<(StreamRef, u64)>;

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

    /// Makes a copy in the default stream, or without one, follow work of the devices that have an
    /// end of it. Returns the streams of that work: `precede_peers` takes them when the copy is
    /// sent.
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
            true => self.follow_owners(stream, ends(), wait),
            false => Ok(Peers::new()),
        }
    }

    /// Makes a stream follow the default streams of the devices that have an end of a copy (CUDA
    /// Programming Guide, "Peer-to-Peer Memory Copy"), and if the call has no stream, all others of
    /// those devices and of the current one ("serialized with respect to all pending and future
    /// asynchronous work", `cuMemcpyPeer`). The server keeps that order: the host does not wait,
    /// since work under way may wait for it.
    #[cold]
    fn follow_owners(
        &self,
        stream: &StreamRef,
        ends: [u64; 2],
        is_serialized: bool,
    ) -> Result<Peers, CUresult> {
        let here = self.contexts.current()?.handle;
        let owner = |address| self.memory.lock().find(address).map(|found| found.context);
        let [Some(dst), Some(src)] = ends.map(owner) else {
            return Ok(Peers::new());
        };
        // Mapped memory belongs to no context: it may be any device's.
        let is_known = [dst, src].map(|context| self.contexts.get(context).is_ok());
        let mut owners = match is_known {
            [true, true] => vec![dst, src],
            _ => self.contexts.made_primaries(),
        };
        owners.dedup();
        owners.retain(|context| *context != here);
        if owners.is_empty() {
            return Ok(Peers::new());
        }
        let mut peers = Peers::new();
        for context in &owners {
            let default = StreamRef::Legacy(self.streams.legacy(*context));
            peers.push((default, self.wire_context(*context)?));
        }
        if is_serialized {
            for context in owners.into_iter().chain([here]) {
                let number = self.wire_context(context)?;
                let streams = self.unordered(context).into_iter();
                peers.extend(streams.map(|stream| (stream, number)));
            }
        }
        for (earlier, context) in &peers {
            if !self.is_quiet(earlier) {
                self.push_visible()?;
                self.follow((stream, wire_context()), (earlier, *context))?;
            }
        }
        Ok(peers)
    }

    /// Returns the streams of a context that its default stream does not wait for.
    pub(in crate::calls) fn unordered(&self, context: CUcontext) -> Vec<StreamRef> {
        let streams = self.streams.of_context(context).into_iter();
        streams
            .filter(|stream| stream.flags & CU_STREAM_NON_BLOCKING != 0)
            .map(StreamRef::Own)
            .filter(|stream| !stream.is_capturing())
            .collect()
    }

    /// Makes later work of streams follow a copy that was sent to another.
    #[inline]
    pub(in crate::calls) fn precede_peers(&self, stream: &StreamRef, peers: &Peers) -> Done {
        for (later, context) in peers {
            self.follow((later, *context), (stream, wire_context()))?;
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
