//! Memory that both sides and the GPU map, through which copies of pageable memory go over shm: one copy by this
//! process, one by the GPU, and only a few words through the ring.
//!
//! Segments go round. Small copies to the device share a segment until it is full; a larger one takes a segment for each
//! piece. A segment is free again when the fences behind its copies are reached, which a look at memory tells.

use std::{
    hint,
    sync::Arc,
    time::{Duration, Instant},
};

use outboard_api::CUresult;
use outboard_wire::messages;
use parking_lot::Mutex;

use super::{Driver, Stream, StreamRef, wire_context};
use crate::session::{Group, Sink};

/// What one piece of a copy takes at most.
pub(crate) const SEGMENT_BYTES: usize = 1 << 20;
const SEGMENTS: usize = 16;
/// Copies to the device up to here share a segment.
const SHARED_BYTES_MAX: usize = 64 << 10;
/// Pieces of one copy from the device that are under way at once.
const PIECES_MAX: usize = 4;
/// How long a copy waits for a segment. Longer might be for ever: a stream may wait for something that this thread has
/// yet to do. Without a segment a copy goes through the ring.
const SEGMENT_MS_MAX: u64 = 20;
const ALIGN: usize = 256;

#[derive(Default)]
pub(crate) struct Staging {
    arena: Mutex<Arena>,
}

#[derive(Default)]
struct Arena {
    /// There is no such memory, and will not be.
    refused: bool,
    base: u64,
    free: Vec<usize>,
    /// Segments that the GPU may still read.
    busy: Vec<(usize, Vec<Arc<Group>>)>,
    /// The segment that small copies share.
    shared: Option<Shared>,
}

struct Shared {
    segment: usize,
    used: usize,
    /// The streams whose copies read it, with the context that each was submitted in.
    readers: Vec<(u64, StreamRef)>,
}

impl Arena {
    fn address(&self, segment: usize) -> u64 {
        self.base + (segment * SEGMENT_BYTES) as u64
    }

    fn take(&mut self) -> Option<usize> {
        if self.free.is_empty() {
            let free = &mut self.free;
            self.busy.retain(|(segment, fences)| {
                let done = fences.iter().all(|fence| fence.is_reached());
                if done {
                    free.push(*segment);
                }
                !done
            });
        }
        self.free.pop()
    }
}

impl Driver {
    /// Copies to the device through staging; answers how many bytes it took, which is less than all where no memory was
    /// to be had in time.
    pub(crate) fn stage_in(
        &self,
        dst: u64,
        data: &[u8],
        stream: &StreamRef,
    ) -> Result<usize, CUresult> {
        if data.len() <= SHARED_BYTES_MAX {
            return Ok(if self.stage_small(dst, data, stream)? {
                data.len()
            } else {
                0
            });
        }
        let mut taken = 0;
        for piece in data.chunks(SEGMENT_BYTES) {
            let Some((segment, address)) = self.segment() else {
                break;
            };
            // SAFETY: a segment of shared memory that nobody else has; the GPU is done with it.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), address as *mut u8, piece.len())
            };
            let sent = self
                .submit_to(
                    stream,
                    &messages::Copy {
                        dst: dst + taken as u64,
                        src: address,
                        len: piece.len() as u64,
                        stream: stream.wire(),
                    },
                )
                .and_then(|()| self.fence_stream(stream));
            let fence = sent?;
            self.staging.arena.lock().busy.push((segment, vec![fence]));
            taken += piece.len();
        }
        Ok(taken)
    }

    /// Several small copies use one segment, and one fence.
    fn stage_small(&self, dst: u64, data: &[u8], stream: &StreamRef) -> Result<bool, CUresult> {
        let mut arena = self.staging.arena.lock();
        let room = data.len().next_multiple_of(ALIGN);
        if arena
            .shared
            .as_ref()
            .is_none_or(|s| s.used + room > SEGMENT_BYTES)
        {
            if let Some(full) = arena.shared.take() {
                let mut fences = Vec::with_capacity(full.readers.len());
                for (context, reader) in &full.readers {
                    // A stream that is gone took its copies with it, in the server's order; the context's fence tells.
                    fences.push(match self.is_alive(reader) {
                        true => self.fence_in(*context, reader)?,
                        false => self.fence_of_context(*context)?,
                    });
                }
                arena.busy.push((full.segment, fences));
                self.session.poll();
            }
            if !self.prepare(&mut arena) {
                return Ok(false);
            }
            let Some(segment) = arena.take() else {
                return Ok(false);
            };
            arena.shared = Some(Shared {
                segment,
                used: 0,
                readers: Vec::new(),
            });
        }
        let base = arena.base;
        let Some(shared) = &mut arena.shared else {
            return Ok(false);
        };
        let address = base + (shared.segment * SEGMENT_BYTES + shared.used) as u64;
        shared.used += room;
        let handle = Arc::as_ptr(stream.stream());
        if !shared
            .readers
            .iter()
            .any(|(_, reader)| std::ptr::eq(Arc::as_ptr(reader.stream()), handle))
        {
            shared.readers.push((wire_context(), stream.clone()));
        }
        // SAFETY: a part of the segment that no other copy has.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), address as *mut u8, data.len()) };
        // Sent under the lock: the fence of a full segment must follow its last copy.
        self.submit_to(
            stream,
            &messages::Copy {
                dst,
                src: address,
                len: data.len() as u64,
                stream: stream.wire(),
            },
        )?;
        Ok(true)
    }

    /// Copies from the device through staging and waits for the bytes; answers how many came, which is less than all where
    /// no memory was to be had.
    ///
    /// # Safety
    /// `dst` has room for `bytes`.
    pub(crate) unsafe fn stage_out(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<usize, CUresult> {
        let mut under_way = std::collections::VecDeque::new();
        let (mut asked, mut landed) = (0, 0);
        let mut outcome = Ok(());
        loop {
            while outcome.is_ok() && asked < bytes && under_way.len() < PIECES_MAX {
                // Only the first piece waits for a segment.
                let found = match under_way.is_empty() {
                    true => self.segment(),
                    false => self.segment_now(),
                };
                let Some((segment, address)) = found else {
                    break;
                };
                let len = SEGMENT_BYTES.min(bytes - asked);
                let fence = self
                    .submit_to(
                        stream,
                        &messages::Copy {
                            dst: address,
                            src: src + asked as u64,
                            len: len as u64,
                            stream: stream.wire(),
                        },
                    )
                    .and_then(|()| self.fence_stream(stream));
                match fence {
                    Ok(fence) => under_way.push_back((segment, address, len, fence)),
                    Err(error) => outcome = Err(error),
                }
                asked += len;
            }
            let Some((segment, address, len, fence)) = under_way.pop_front() else {
                break;
            };
            let waited = self.session.wait(&fence);
            if waited.is_ok() && outcome.is_ok() {
                // SAFETY: the segment is this copy's own until it is given back; the destination is the caller's.
                unsafe {
                    std::ptr::copy_nonoverlapping(address as *const u8, dst.add(landed), len)
                };
                landed += len;
            }
            outcome = outcome.and(waited.map(drop));
            let mut arena = self.staging.arena.lock();
            if outcome.is_ok() {
                arena.free.push(segment);
            } else {
                // The GPU may write there yet; who waits for its fence will know.
                arena.busy.push((segment, vec![fence]));
            }
        }
        outcome.map(|()| landed)
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

    /// A segment of one's own and where it is, waited for a little.
    fn segment(&self) -> Option<(usize, u64)> {
        let start = Instant::now();
        loop {
            if let Some(found) = self.segment_now() {
                return Some(found);
            }
            if self.staging.arena.lock().refused
                || start.elapsed() > Duration::from_millis(SEGMENT_MS_MAX)
            {
                return None;
            }
            // Answers are taken in here too: fences without a word are known by them.
            self.session.poll();
            hint::spin_loop();
        }
    }

    fn segment_now(&self) -> Option<(usize, u64)> {
        let mut arena = self.staging.arena.lock();
        if !self.prepare(&mut arena) {
            return None;
        }
        let segment = arena.take()?;
        Some((segment, arena.address(segment)))
    }

    /// Maps the memory, the first time.
    fn prepare(&self, arena: &mut Arena) -> bool {
        if arena.base != 0 || arena.refused {
            return arena.base != 0;
        }
        let bytes = (SEGMENTS * SEGMENT_BYTES) as u64;
        match self.has_board().then(|| self.share_memory(bytes)) {
            Some(Ok(base)) => {
                arena.base = base;
                arena.free = (0..SEGMENTS).rev().collect();
                true
            }
            _ => {
                arena.refused = true;
                false
            }
        }
    }
}
