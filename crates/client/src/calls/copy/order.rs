//! The way of a copy by the kinds of memory of its ends, and what it waits for.

use outboard_api::CUresult;
use outboard_wire::messages;

use super::{
    super::Done,
    end::{CopyEnd, MemoryKind},
};
use crate::{
    observe::{conditions, record},
    state::{Driver, StreamRef, host_functions},
};

/// Longest synchronous copy of pinned memory whose bytes the client copies away; longer ones are
/// waited for.
const SYNC_COPY_BYTES_MAX: usize = 64 << 10;

impl Driver {
    /// Waits for a synchronous copy from the host to a device if another session could look at its
    /// end: the server makes only this session's later work follow the copy.
    pub(in crate::calls) fn settle_shared(
        &self,
        (to, from): (MemoryKind, MemoryKind),
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        match to == MemoryKind::Device && from != MemoryKind::Device {
            true if wait && self.session.is_sharing() => self.synchronize_stream(stream),
            _ => Ok(()),
        }
    }

    /// Copies between addresses that are the same on both sides. As in CUDA, a synchronous copy
    /// between two places on devices does not wait, and work in other streams does not wait for it.
    fn copy_here(&self, dst: u64, src: u64, bytes: u64, stream: &StreamRef) -> Done {
        self.push_visible()?;
        self.submit_to(
            stream,
            &messages::Copy {
                dst,
                src,
                len: bytes,
                stream: stream.wire(),
                sync: 0,
            },
        )
    }

    /// Waits for work that precedes a copy of pageable memory, if the program could tell the
    /// difference, or if a host function may still write the memory: its bytes are taken at the
    /// call.
    pub(in crate::calls) fn settle_pageable(&self, stream: &StreamRef, wait: bool) -> Done {
        match wait {
            true => self.settle_host(stream, true),
            false if host_functions::host_functions_pending() => self.settle_stream(stream),
            false => Ok(()),
        }
    }

    /// Waits for earlier work that may still write the pinned memory at `source`: a copy takes the
    /// data at the call, and would otherwise take old bytes. A synchronous one (`wait`) waits for
    /// what the program could see, too.
    pub(in crate::calls) fn settle_pinned(
        &self,
        source: u64,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        if self.is_mirrored(source) {
            return self.settle_stream(stream);
        }
        self.settle_host(stream, wait)
    }

    /// Copies in any direction; the addresses determine which.
    pub(crate) fn copy(
        &self,
        dst: CopyEnd,
        src: CopyEnd,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        if bytes == 0 {
            return Ok(());
        }
        if dst.address == 0 || src.address == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let kinds = (dst.kind(self, bytes)?, src.kind(self, bytes)?);
        if kinds.0 != MemoryKind::Device {
            self.refuse_read_only(dst.address, bytes as u64)?;
        }
        self.keep_pace_of_copy(stream, kinds, bytes)?;
        let (dst, src) = (dst.address, src.address);
        if conditions::is_recorded() && !stream.is_capturing() {
            return self.copy_recorded(kinds, dst, src, bytes, stream, wait);
        }
        self.copy_between(kinds, dst, src, bytes, stream, wait)
    }

    #[cold]
    fn copy_recorded(
        &self,
        kinds: (MemoryKind, MemoryKind),
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let copy = || self.copy_between(kinds, dst, src, bytes, stream, wait);
        let is_device = |kind| kind == MemoryKind::Device;
        match (is_device(kinds.0), is_device(kinds.1)) {
            (true, false) => record::copying(record::Way::ToDevice, bytes, copy),
            (false, true) => record::copying(record::Way::ToHost, bytes, copy),
            _ => copy(),
        }
    }

    /// Copies between memory of these kinds.
    fn copy_between(
        &self,
        (to, from): (MemoryKind, MemoryKind),
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        if stream.is_capturing() {
            // A captured copy cannot be waited for.
            if wait {
                self.refuse_captured(stream)?;
            }
            return self.capture_copy(dst, src, bytes, stream, to, from);
        }
        self.copy_by_kinds((to, from), (dst, src, bytes), stream, wait)?;
        self.settle_shared((to, from), stream, wait)
    }

    fn copy_by_kinds(
        &self,
        kinds: (MemoryKind, MemoryKind),
        (dst, src, bytes): (u64, u64, usize),
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        match kinds {
            (MemoryKind::Device, MemoryKind::Device) => {
                self.copy_here(dst, src, bytes as u64, stream)
            }
            (MemoryKind::Device, MemoryKind::Shared) if !wait => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                self.host_is_used(stream);
                Ok(())
            }
            // Waiting for the GPU is faster than copying many bytes.
            (MemoryKind::Device, MemoryKind::Shared) if bytes > SYNC_COPY_BYTES_MAX => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                self.synchronize_stream(stream)
            }
            // The program may change the source when a synchronous copy returns, so the client
            // copies the bytes away. Before that it waits for earlier work that could still write
            // them.
            (MemoryKind::Device, MemoryKind::Shared) => {
                self.settle_stream(stream)?;
                self.copy_in_shared(dst, src as *const u8, bytes, stream, wait)
            }
            (MemoryKind::Device, MemoryKind::Pinned) => {
                match self.is_mirrored(src) {
                    false => self.settle_host(stream, wait)?,
                    true if self.copy_from_mirror((dst, src, bytes as u64), stream)? => {
                        return self.copied_in_order(stream, wait);
                    }
                    true => self.settle_stream(stream)?,
                }
                if self.copy_in_registered(dst, src as *const u8, bytes, stream, wait)? {
                    if !wait {
                        self.host_is_used(stream);
                    }
                    return Ok(());
                }
                self.copy_in_taken(dst, src as *const u8, bytes, stream, wait)
            }
            (MemoryKind::Device, _) => {
                self.settle_pageable(stream, wait)?;
                self.copy_in_taken(dst, src as *const u8, bytes, stream, wait)
            }
            (MemoryKind::Shared, MemoryKind::Device) => {
                self.copy_here(dst, src, bytes as u64, stream)?;
                self.copied_in_order(stream, wait)
            }
            (MemoryKind::Pinned, MemoryKind::Device) if !wait => {
                self.push_before_wait()?;
                self.bring(dst as *mut u8, src, bytes, stream)
            }
            (_, MemoryKind::Device) => {
                self.push_before_wait()?;
                // SAFETY: the caller's destination, as the driver API asks of it.
                let number = unsafe { self.copy_out_now(dst as *mut u8, src, bytes, stream)? };
                // The copy is done, and so is all work that it waited for.
                stream.progress().complete(number);
                self.session.take_fault(|| stream.context())
            }
            (_, _) => self.copy_in_host(kinds, (dst, src, bytes), stream, wait),
        }
    }

    /// Waits for a copy that the server makes in the stream's order, or notes that it uses host
    /// memory.
    fn copied_in_order(&self, stream: &StreamRef, wait: bool) -> Done {
        match wait {
            true => self.synchronize_stream(stream),
            false => {
                self.host_is_used(stream);
                Ok(())
            }
        }
    }

    /// Copies from host to host, in the stream's order. If one end is managed memory, and the
    /// server has the other too, this is work of the device: earlier work may wait for what the
    /// host writes next. Pinned memory that the server does not have gets no mirror for that: it
    /// would be one of all of the memory, after all copies that are on their way into it.
    #[cold]
    fn copy_in_host(
        &self,
        kinds: (MemoryKind, MemoryKind),
        (dst, src, bytes): (u64, u64, usize),
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let is_of_both = !wait && (self.is_managed(dst) || self.is_managed(src));
        if is_of_both && kinds == (MemoryKind::Shared, MemoryKind::Shared) {
            self.copy_here(dst, src, bytes as u64, stream)?;
            self.host_is_used(stream);
            return Ok(());
        }
        self.settle_followed(stream)?;
        // SAFETY: both ranges are the caller's.
        unsafe { std::ptr::copy(src as *const u8, dst as *mut u8, bytes) };
        Ok(())
    }

    /// Adds a copy to a captured graph: it reads and writes memory at each launch, not now.
    fn capture_copy(
        &self,
        dst: u64,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        to: MemoryKind,
        from: MemoryKind,
    ) -> Done {
        if let (MemoryKind::Pageable, MemoryKind::Device)
        | (MemoryKind::Device, MemoryKind::Pageable) = (to, from)
        {
            return self.capture_pageable_line(
                dst,
                src,
                bytes as u64,
                stream,
                to != MemoryKind::Device,
            );
        }
        for (address, place) in [(dst, to), (src, from)] {
            match place {
                MemoryKind::Device | MemoryKind::Shared => {}
                MemoryKind::Pinned => self.make_visible(address)?,
                MemoryKind::Pageable => return self.refuse_captured(stream),
            }
        }
        if (to, from) != (MemoryKind::Device, MemoryKind::Device) {
            self.host_is_used(stream);
        }
        self.copy_here(dst, src, bytes as u64, stream)
    }
}
