//! Destinations of replies' data: the waiting thread, or the program's memory.

use std::{any::Any, ops::Range, sync::Arc};

use outboard_api::CUresult;
use outboard_link::{Segment, Tail};

use super::Group;

/// Destination of a reply's data.
#[derive(Clone, Copy)]
pub(crate) enum Sink {
    /// The waiting thread.
    Group,
    /// The program's memory.
    Memory(ReceiveBuffer),
    /// None: at the top level the named message would have no reply. An error becomes the session's
    /// deferred error, as it would there.
    Nowhere(&'static str),
}

/// Memory of the program that a reply is copied into.
#[derive(Clone, Copy)]
pub(crate) struct ReceiveBuffer {
    pub(crate) address: *mut u8,
    pub(crate) rows: Rows,
    /// No thread waits: an error becomes a deferred error of the session.
    pub(crate) detached: bool,
    /// The stream that makes the copy, as in messages.
    pub(crate) stream: u64,
    /// The server sends what kernels write there, too: the reply is received after all that was
    /// sent before it.
    pub(crate) in_order: bool,
}

/// Layout of packed bytes in the program's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) pitch: usize,
    pub(crate) slice_pitch: usize,
}

// SAFETY: the program keeps the memory of a copy alive until the copy is complete, as the driver
// API asks of it.
unsafe impl Send for ReceiveBuffer {}

impl ReceiveBuffer {
    /// Copies packed rows into the program's memory.
    pub(crate) fn write(&self, data: &[u8]) -> Result<(), CUresult> {
        let Rows {
            width,
            height,
            depth,
            pitch,
            slice_pitch,
        } = self.rows;
        if data.len() != width * height * depth {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        }
        if width == 0 {
            return Ok(());
        }
        for (index, row) in data.chunks_exact(width).enumerate() {
            let offset = index / height * slice_pitch + index % height * pitch;
            // SAFETY: the program gave this memory for the copy and keeps it until the copy is
            // complete.
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), self.address.add(offset), width) };
        }
        Ok(())
    }

    /// Returns true if some bytes may be of both, those between rows counted.
    pub(crate) fn overlaps(&self, other: &ReceiveBuffer) -> bool {
        let (one, other) = (self.run(), other.run());
        one.start < other.end && other.start < one.end
    }

    /// Returns true if some bytes may be among these, those between rows counted.
    pub(crate) fn is_within(&self, base: u64, bytes: u64) -> bool {
        let run = self.run();
        (run.start as u64) < base.saturating_add(bytes) && base < run.end as u64
    }

    fn run(&self) -> Range<usize> {
        let (rows, start) = (self.rows, self.address as usize);
        let slices = rows.depth.saturating_sub(1) * rows.slice_pitch;
        let last = rows.height.saturating_sub(1) * rows.pitch;
        start..start.saturating_add(slices + last + rows.width)
    }

    /// Returns the destination as memory to receive into, if the bytes have the same layout there
    /// as in the frame.
    pub(crate) fn whole(&self, len: usize, group: &Arc<Group>) -> Option<ReceiveSegment> {
        let Rows {
            width,
            height,
            depth,
            ..
        } = self.rows;
        let is_plain = height == 1 && depth == 1 && width == len;
        is_plain.then(|| ReceiveSegment {
            address: self.address,
            len,
            group: Some(group.clone()),
        })
    }
}

/// A copy's destination while bytes are received into it. Its group completes only afterwards.
pub(crate) struct ReceiveSegment {
    address: *mut u8,
    len: usize,
    /// `None` once all bytes have arrived.
    group: Option<Arc<Group>>,
}

// SAFETY: the address is of the program's memory, which belongs to no thread.
unsafe impl Send for ReceiveSegment {}
// SAFETY: shared references only read it, and nothing writes to it meanwhile.
unsafe impl Sync for ReceiveSegment {}

impl Segment for ReceiveSegment {
    fn room(&mut self) -> &mut [u8] {
        // SAFETY: the program gave this memory for the copy and keeps it until the copy is
        // complete.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the copy's memory, which the program leaves alone until the copy is complete;
        // only this object has slices of it, and none that can be written while it is shared.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}

impl Drop for ReceiveSegment {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            group.complete(Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE));
        }
    }
}

/// Completes a copy whose bytes have all arrived.
pub(crate) fn finish(tail: Tail) -> Result<(), CUresult> {
    let Tail::Own(memory) = tail else {
        // The client grants nothing.
        return Err(CUresult::CUDA_ERROR_UNKNOWN);
    };
    let memory: Box<dyn Any> = memory;
    match memory.downcast::<ReceiveSegment>() {
        Ok(mut arrived) => {
            arrived.group = None;
            Ok(())
        }
        Err(_) => Err(CUresult::CUDA_ERROR_UNKNOWN),
    }
}

impl Rows {
    /// One row without gaps.
    pub(crate) fn contiguous(bytes: usize) -> Rows {
        Rows {
            width: bytes,
            height: 1,
            depth: 1,
            pitch: bytes,
            slice_pitch: bytes,
        }
    }

    /// Number of bytes copied, without the gaps between rows.
    pub(crate) fn bytes(&self) -> usize {
        self.width * self.height * self.depth
    }

    /// Number of bytes from the first row's start to the last row's end.
    pub(crate) fn spanned_bytes(&self) -> usize {
        if self.bytes() == 0 {
            return 0;
        }
        (self.depth - 1) * self.slice_pitch + (self.height - 1) * self.pitch + self.width
    }
}
