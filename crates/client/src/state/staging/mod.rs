//! Staging: memory that both sides and the GPU map, for copies of pageable memory over shm. This
//! process copies once, the GPU copies once, and only a few words go through the ring.
//!
//! Segments are reused. Small copies to the device share a segment until it is full; a larger one
//! takes a segment for each piece. A segment is free again when the fences after its copies are
//! reached, which a look at memory tells.

mod segments;

use std::{
    hint,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_wire::messages;
use parking_lot::Mutex;

use self::segments::{Growing, SEGMENTS, Segment, Segments};
use super::{Driver, Stream, StreamRef};
use crate::{
    done::Done,
    helpers::Helpers,
    session::{Group, Sink},
};

/// Most bytes of one piece of a copy.
pub(crate) const SEGMENT_BYTES: usize = 1 << 20;
/// Segments mapped at first: mapping and registering takes time, and many programs copy little.
const SEGMENTS_FIRST: usize = 2;
/// Longest copy to the device that shares a segment, in bytes.
const SHARED_BYTES_MAX: usize = 64 << 10;
/// Time limit for a copy to wait for a segment. It could otherwise wait for ever, since a stream
/// may wait for a later act of this thread. Without a segment a copy goes through the ring.
const SEGMENT_MS_MAX: u64 = 20;
const ALIGN: usize = 256;
/// Pauses between two looks for a free segment: about a microsecond.
const LOOK_PAUSES: u32 = 20;

#[derive(Default)]
pub(crate) struct Staging {
    segments: Segments,
    /// The segment that small copies share.
    shared: Mutex<Option<Shared>>,
    helpers: Helpers,
}

/// The source of a copy, of which each thread reads its own pieces. No reference leads into it:
/// another process may have it mapped, and write to it.
struct Source(*const u8);

// SAFETY: the caller of the copy keeps the memory until it is complete.
unsafe impl Sync for Source {}

impl Source {
    /// Copies a piece to staging memory.
    ///
    /// # Safety
    /// The piece must be inside the source, and there must be room for it at `to`, which nothing
    /// else uses.
    unsafe fn copy(&self, offset: usize, len: usize, to: u64) {
        // SAFETY: inside the source, and to room of ours, by this function's contract.
        unsafe { std::ptr::copy_nonoverlapping(self.0.add(offset), to as *mut u8, len) };
    }
}

/// The destination of a copy, of which each thread writes its own pieces.
struct Room(*mut u8);

// SAFETY: the caller of the copy keeps the memory until it is complete; pieces do not overlap.
unsafe impl Sync for Room {}

impl Room {
    /// # Safety
    /// `offset` must be inside the destination.
    unsafe fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: inside the destination by this function's contract.
        unsafe { self.0.add(offset) }
    }
}

struct Shared {
    segment: Segment,
    used: usize,
    /// The streams whose copies read it.
    readers: Vec<StreamRef>,
}

impl Driver {
    /// Copies to the device through staging. Returns the bytes copied, which is less than all if
    /// segments ran out. `wait` means that the program's call is synchronous.
    ///
    /// # Safety
    /// `src` must have `bytes` readable bytes.
    pub(crate) unsafe fn stage_in(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Result<usize, CUresult> {
        let source = Source(src);
        if bytes <= SHARED_BYTES_MAX {
            let start = Instant::now();
            // SAFETY: the source has `bytes` bytes by this function's contract.
            while !unsafe { self.stage_small(dst, &source, bytes, stream, wait)? } {
                if !self.wait_for_segment(start) {
                    return Ok(0);
                }
            }
            return Ok(bytes);
        }
        let stuck = AtomicUsize::new(usize::MAX);
        let context = stream.context();
        let one = |index: usize| -> Done {
            // Pieces after one without a segment are not copied: the rest is copied another way, in
            // one piece.
            if index > stuck.load(Ordering::Acquire) {
                return Ok(());
            }
            let Some(segment) = self.segment() else {
                stuck.fetch_min(index, Ordering::AcqRel);
                return Ok(());
            };
            let (address, offset) = (segment.address, index * SEGMENT_BYTES);
            let len = SEGMENT_BYTES.min(bytes - offset);
            // SAFETY: a piece of the source, to a segment that only this thread has and that the
            // GPU has finished with.
            unsafe { source.copy(offset, len, address) };
            let message = messages::Copy {
                dst: dst + offset as u64,
                src: address,
                len: len as u64,
                stream: stream.wire(),
                sync: u32::from(wait),
            };
            self.submit_to_in(context, stream, &message)?;
            let fence = self.fence_in(context, stream)?;
            self.staging.segments.give_after(segment, vec![fence]);
            Ok(())
        };
        self.staging
            .helpers
            .share(0..bytes.div_ceil(SEGMENT_BYTES), one)?;
        let whole = stuck.load(Ordering::Acquire);
        Ok(bytes.min(whole.saturating_mul(SEGMENT_BYTES)))
    }

    /// Copies a small piece. Several such copies share one segment, and one fence.
    ///
    /// # Safety
    /// `source` must have `bytes` readable bytes.
    unsafe fn stage_small(
        &self,
        dst: u64,
        source: &Source,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Result<bool, CUresult> {
        let mut shared = self.staging.shared.lock();
        let room = bytes.next_multiple_of(ALIGN);
        if let Some(full) = shared.take_if(|s| s.used + room > SEGMENT_BYTES) {
            self.give_shared(full);
            self.session.poll();
        }
        if shared.is_none() {
            let Some(segment) = self.segment_now() else {
                return Ok(false);
            };
            *shared = Some(Shared {
                segment,
                used: 0,
                readers: Vec::new(),
            });
        }
        let Some(shared) = shared.as_mut() else {
            return Ok(false);
        };
        let address = shared.segment.address + shared.used as u64;
        shared.used += room;
        let handle = Arc::as_ptr(stream.stream());
        if !shared
            .readers
            .iter()
            .any(|reader| std::ptr::eq(Arc::as_ptr(reader.stream()), handle))
        {
            shared.readers.push(stream.clone());
        }
        // SAFETY: the whole source, to a part of the segment that no other copy uses.
        unsafe { source.copy(0, bytes, address) };
        // Sent under the lock: the fence of a full segment must follow its last copy.
        self.submit_to(
            stream,
            &messages::Copy {
                dst,
                src: address,
                len: bytes as u64,
                stream: stream.wire(),
                sync: u32::from(wait),
            },
        )?;
        Ok(true)
    }

    /// Gives back a segment of small copies after all of them.
    fn give_shared(&self, shared: Shared) {
        let fence = |reader: &StreamRef| {
            // The copies of a destroyed stream end in the server's order, so the context's fence
            // covers them.
            let asked = match self.is_alive(reader) {
                true => self.fence_in(reader.context(), reader),
                false => self.fence_of_context(reader.context()),
            };
            // Those of a lost context are over.
            asked.ok()
        };
        let fences = shared.readers.iter().filter_map(fence).collect();
        self.staging.segments.give_after(shared.segment, fences);
    }

    /// Gives back the segment of small copies before a stream becomes part of a capture, in which
    /// a fence would be refused.
    pub(crate) fn settle_staging(&self) {
        let mut shared = self.staging.shared.lock();
        if let Some(open) = shared.take() {
            self.give_shared(open);
        }
    }

    /// Copies from the device through staging and waits for the bytes. Returns the bytes copied,
    /// which is less than all if segments ran out, and the number of the last message.
    ///
    /// # Safety
    /// `dst` has room for `bytes` bytes.
    pub(crate) unsafe fn stage_out(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<(usize, u64), CUresult> {
        let pieces = bytes.div_ceil(SEGMENT_BYTES);
        let stuck = AtomicUsize::new(usize::MAX);
        let number = AtomicU64::new(0);
        let (context, room) = (stream.context(), Room(dst));
        let last = Mutex::new(None);
        let one = |index: usize| -> Done {
            if index > stuck.load(Ordering::Acquire) {
                return Ok(());
            }
            let Some(segment) = self.segment() else {
                stuck.fetch_min(index, Ordering::AcqRel);
                return Ok(());
            };
            let address = segment.address;
            let offset = index * SEGMENT_BYTES;
            let len = SEGMENT_BYTES.min(bytes - offset);
            let message = messages::Copy {
                dst: address,
                src: src + offset as u64,
                len: len as u64,
                stream: stream.wire(),
                sync: 0,
            };
            let sent = self.submit_to_in(context, stream, &message)?;
            number.fetch_max(sent, Ordering::Relaxed);
            let fence = self.fence_in(context, stream)?;
            let waited = match pieces {
                1 => self.session.wait(&fence).map(drop),
                // The thread that waits for the whole copy handles errors; here only the bytes
                // matter.
                _ => self.session.wait_for_bytes(&fence),
            };
            if let Err(error) = waited {
                // The GPU may still write there.
                self.staging.segments.give_after(segment, vec![fence]);
                return Err(error);
            }
            // SAFETY: the segment is this copy's own until it is given back; the destination is the
            // caller's, and each piece is copied once.
            unsafe {
                std::ptr::copy_nonoverlapping(address as *const u8, room.at(offset), len);
            }
            self.staging.segments.give(segment);
            *last.lock() = Some(fence);
            Ok(())
        };
        self.staging.helpers.share(0..pieces, one)?;
        if pieces > 1
            && let Some(fence) = last.into_inner()
        {
            self.session.wait(&fence)?;
        }
        let whole = stuck.into_inner().saturating_mul(SEGMENT_BYTES);
        Ok((bytes.min(whole), number.into_inner()))
    }

    fn fence_of_context(&self, context: u64) -> Result<Arc<Group>, CUresult> {
        let group = Group::new(1);
        let fence = messages::FenceContext { slot: 0, value: 0 };
        self.session.ask(context, &fence, &group, Sink::Group)?;
        Ok(group)
    }

    fn is_alive(&self, stream: &StreamRef) -> bool {
        match stream {
            StreamRef::Legacy(_) => true,
            StreamRef::Own(own) => self
                .streams
                .get(own.handle)
                .is_some_and(|s: Arc<Stream>| Arc::ptr_eq(&s, own)),
        }
    }

    /// Takes a segment, and waits a little if there is none.
    fn segment(&self) -> Option<Segment> {
        let start = Instant::now();
        loop {
            if let Some(found) = self.segment_now() {
                return Some(found);
            }
            if !self.wait_for_segment(start) {
                return None;
            }
        }
    }

    /// Waits a moment. Returns false if the time limit has passed.
    fn wait_for_segment(&self, start: Instant) -> bool {
        if self.staging.segments.is_refused()
            || start.elapsed() > Duration::from_millis(SEGMENT_MS_MAX)
        {
            return false;
        }
        // Handles replies too: fences without a word are completed by them.
        self.session.poll();
        // With few cores, the thread that will free a segment needs this one.
        match outboard_link::cores::are_few() {
            true => thread::yield_now(),
            false => (0..LOOK_PAUSES).for_each(|_| hint::spin_loop()),
        }
        true
    }

    fn segment_now(&self) -> Option<Segment> {
        let segments = &self.staging.segments;
        segments.take().or_else(|| {
            self.map_segments(segments.grow()?);
            segments.take()
        })
    }

    /// Maps segments: a few the first time, all of them the second time.
    fn map_segments(&self, growing: Growing<'_>) {
        let more = match growing.mapped() {
            0 => SEGMENTS_FIRST,
            have => SEGMENTS - have,
        };
        let bytes = (more * SEGMENT_BYTES) as u64;
        match self.has_board().then(|| self.share_memory(bytes)) {
            Some(Ok(base)) => growing.add((0..more).map(|i| base + (i * SEGMENT_BYTES) as u64)),
            _ => growing.refuse(),
        }
    }
}
