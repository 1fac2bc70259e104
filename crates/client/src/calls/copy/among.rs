//! Copies on a server with several devices: those in the default stream, and without one, follow
//! both devices' default streams, those of `cuMemcpyPeer` all their work.

use outboard_api::{
    CUresult,
    cuda::CUcontext,
    enums::{CU_EVENT_DISABLE_TIMING, CU_STREAM_NON_BLOCKING},
};
use outboard_wire::messages;

use super::{
    super::{Done, across},
    end::CopyEnd,
};
use crate::{
    observe::guard,
    state::{Driver, HandleKind, Held, StreamRef, are_several, driver, wire_context},
};

/// The streams whose later work follows a copy, each with its context's number. They are held until
/// then: a stream that another thread destroys or captures meanwhile could not be named any more.
#[derive(Default)]
pub(in crate::calls) struct Peers<'a> {
    streams: Vec<(StreamRef, u64)>,
    _held: Option<Held<'a>>,
}

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
            0 => Peers::default(),
            _ => self.follow_peers(stream, wait, || [dst.address, src.address])?,
        };
        self.copy(dst, src, bytes, stream, wait)?;
        self.precede_peers(stream, peers)
    }

    /// Makes a copy in the default stream, or without one, follow the default streams of the
    /// devices that have an end of it. Returns those of other devices: `precede_peers` takes them
    /// when the copy is sent.
    #[inline]
    pub(in crate::calls) fn follow_peers(
        &self,
        stream: &StreamRef,
        wait: bool,
        ends: impl FnOnce() -> [u64; 2],
    ) -> Result<Peers<'_>, CUresult> {
        match self.contexts.are_of_several_devices()
            && (wait || stream.is_legacy())
            && !stream.is_capturing()
        {
            true => self.follow_defaults(stream, ends()),
            false => Ok(Peers::default()),
        }
    }

    /// Makes a stream follow the default streams of other devices that have an end of a copy (CUDA
    /// Programming Guide, "Peer-to-Peer Memory Copy"). The server keeps that order: the host does
    /// not wait, since work under way may wait for it.
    #[cold]
    fn follow_defaults(&self, stream: &StreamRef, ends: [u64; 2]) -> Result<Peers<'_>, CUresult> {
        let contexts = self.peers_of(ends)?;
        if contexts.is_empty() {
            return Ok(Peers::default());
        }
        self.push_visible()?;
        let held = self.hold_usable(stream)?;
        let mut streams = Vec::new();
        for context in contexts {
            let default = StreamRef::Legacy(self.streams.legacy(context));
            self.check_usable(&default)?;
            streams.push((default, self.wire_context(context)?));
        }
        self.follow_all(stream, &streams)?;
        Ok(Peers {
            streams,
            _held: Some(held),
        })
    }

    /// Holds all streams while this one may be used.
    fn hold_usable(&self, stream: &StreamRef) -> Result<Held<'_>, CUresult> {
        let held = self.streams.hold();
        self.check_usable(stream)?;
        Ok(held)
    }

    /// Returns the contexts of other devices than the current one that have an end of a copy.
    fn peers_of(&self, ends: [u64; 2]) -> Result<Vec<CUcontext>, CUresult> {
        let here = self.contexts.current()?.handle;
        let owner = |address| self.memory.lock().find(address).map(|found| found.context);
        let [Some(dst), Some(src)] = ends.map(owner) else {
            return Ok(Vec::new());
        };
        // Mapped memory belongs to no context: it may be any device's.
        let is_known = [dst, src].map(|context| self.contexts.get(context).is_ok());
        let mut owners = match is_known {
            [true, true] => vec![dst, src],
            _ => self.contexts.made_primaries(),
        };
        owners.dedup();
        owners.retain(|context| *context != here);
        Ok(owners)
    }

    /// Makes a copy that comes after all work of both devices and of the current one, and before
    /// all later: in non-blocking streams, too.
    #[cold]
    fn copy_serialized(&self, ends: [u64; 2], copy: impl FnOnce() -> Done) -> Done {
        let stream = self.work_stream(guard::default_stream())?;
        let peers = self.peers_of(ends)?;
        if peers.is_empty() {
            return copy();
        }
        let here = self.contexts.current()?.handle;
        self.push_visible()?;
        let held = self.hold_usable(&stream)?;
        let mut streams = Vec::new();
        for context in peers.into_iter().chain([here]) {
            streams.append(&mut self.unordered(context)?);
        }
        self.follow_all(&stream, &streams)?;
        copy()?;
        let peers = Peers {
            streams,
            _held: Some(held),
        };
        self.precede_peers(&stream, peers)
    }

    /// Waits for the work in the streams of the current context that its default stream does not
    /// wait for.
    pub(in crate::calls) fn settle_unordered(&self) -> Done {
        let context = self.contexts.current()?.handle;
        let default = StreamRef::Legacy(self.streams.legacy(context));
        self.push_visible()?;
        let follows = {
            let _held = self.hold_usable(&default)?;
            let streams = self.unordered(context)?;
            self.follow_all(&default, &streams)?
        };
        match follows {
            // Not those streams: one may be captured by now, which a wait would spoil.
            true => self.synchronize_stream(&default),
            false => Ok(()),
        }
    }

    /// Returns the streams of a context that its default stream does not wait for.
    fn unordered(&self, context: CUcontext) -> Result<Vec<(StreamRef, u64)>, CUresult> {
        let number = self.wire_context(context)?;
        let streams = self.streams.of_context(context).into_iter();
        Ok(streams
            .filter(|stream| stream.flags & CU_STREAM_NON_BLOCKING != 0)
            .map(StreamRef::Own)
            .filter(|stream| !stream.is_capturing())
            .map(|stream| (stream, number))
            .collect())
    }

    /// Makes a stream follow the work under way in others. Returns whether there is any.
    fn follow_all(
        &self,
        stream: &StreamRef,
        others: &[(StreamRef, u64)],
    ) -> Result<bool, CUresult> {
        let mut follows = false;
        for (earlier, context) in others {
            if !self.is_quiet(earlier) {
                self.follow((stream, wire_context()), (earlier, *context))?;
                follows = true;
            }
        }
        Ok(follows)
    }

    /// Makes later work of streams follow a copy that was sent to another.
    #[inline]
    pub(in crate::calls) fn precede_peers(&self, stream: &StreamRef, peers: Peers<'_>) -> Done {
        for (later, context) in &peers.streams {
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

/// Makes a copy that is "serialized with respect to all pending and future asynchronous work" of
/// the current device and of both ends' (`cuMemcpyPeer`, `cuMemcpy3DPeer`).
pub(in crate::calls) fn serialized(ends: [u64; 2], copy: impl FnOnce() -> Done) -> Done {
    if are_several() {
        across::settle_unordered(ends)?;
        return copy();
    }
    let driver = driver()?;
    match driver.contexts.are_of_several_devices() {
        true => driver.copy_serialized(ends, copy),
        false => copy(),
    }
}
