//! Where the bytes of answers go: to the thread that waits, or straight into the program's memory.

use std::{any::Any, sync::Arc};

use outboard_api::CUresult;
use outboard_link::Segment;

use crate::session::Group;

/// Where an answer's bytes go.
pub(crate) enum Sink {
    /// To the waiting thread.
    Group,
    /// Straight into the program's memory: `width` bytes a row, rows `pitch` apart.
    Memory(Landing),
    /// Nowhere: the message of this name would not have been answered at the top level. An error is the fault that it
    /// would have been there.
    Nowhere(&'static str),
}

/// Memory of the program that an answer is copied into.
pub(crate) struct Landing {
    pub(crate) address: *mut u8,
    pub(crate) rows: Rows,
    /// Nobody waits: an error becomes a fault of the session.
    pub(crate) detached: bool,
}

/// How packed bytes lie in the program's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
    pub(crate) pitch: usize,
    pub(crate) slice_pitch: usize,
}

// SAFETY: the program keeps the memory of a copy alive until the copy is complete, as the driver API asks of it.
unsafe impl Send for Landing {}

impl Landing {
    /// Lays packed rows out in the program's memory.
    pub(crate) fn land(&self, data: &[u8]) -> Result<(), CUresult> {
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
            // SAFETY: the program gave this memory for the copy and keeps it until the copy is complete.
            unsafe { std::ptr::copy_nonoverlapping(row.as_ptr(), self.address.add(offset), width) };
        }
        Ok(())
    }

    /// The destination as memory to receive into, if the bytes lie in it as they come.
    pub(crate) fn whole(&self, len: usize, group: &Arc<Group>) -> Option<Landed> {
        let Rows {
            width,
            height,
            depth,
            ..
        } = self.rows;
        let is_plain = height == 1 && depth == 1 && width == len;
        is_plain.then(|| Landed {
            address: self.address,
            len,
            group: Some(group.clone()),
        })
    }
}

/// A copy's destination while bytes are received into it. Its group is not complete before.
pub(crate) struct Landed {
    address: *mut u8,
    len: usize,
    /// Until all bytes are there.
    group: Option<Arc<Group>>,
}

// SAFETY: as for `Landing`.
unsafe impl Send for Landed {}
// SAFETY: shared references only read it, and nobody writes to it then.
unsafe impl Sync for Landed {}

impl Segment for Landed {
    fn room(&mut self) -> &mut [u8] {
        // SAFETY: the program gave this memory for the copy and keeps it until the copy is complete.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Drop for Landed {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            group.complete(Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE));
        }
    }
}

/// All bytes have come.
pub(crate) fn landed(memory: Box<dyn Segment>) -> Result<(), CUresult> {
    let memory: Box<dyn Any> = memory;
    match memory.downcast::<Landed>() {
        Ok(mut landed) => {
            landed.group = None;
            Ok(())
        }
        Err(_) => Err(CUresult::CUDA_ERROR_UNKNOWN),
    }
}

impl Rows {
    /// Plain memory.
    pub(crate) fn contiguous(bytes: usize) -> Rows {
        Rows {
            width: bytes,
            height: 1,
            depth: 1,
            pitch: bytes,
            slice_pitch: bytes,
        }
    }

    /// What is copied, without what lies between the rows.
    pub(crate) fn bytes(&self) -> usize {
        self.width * self.height * self.depth
    }

    /// Bytes from the first row's start to the last row's end.
    pub(crate) fn spanned_bytes(&self) -> usize {
        if self.bytes() == 0 {
            return 0;
        }
        (self.depth - 1) * self.slice_pitch + (self.height - 1) * self.pitch + self.width
    }
}
