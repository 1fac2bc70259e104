//! Copies to the device from memory whose mirror is open: their bytes cross the network once.
//!
//! What the program changed in a mirror goes to the server before the next launch in any case. So a
//! long copy from there sends these changes first, and then a message without bytes: the server
//! reads the mirror, at the same address, in the order of the stream. What kernels wrote there
//! before the copy is part of it, as on a local GPU. The program may change the memory again only
//! when the copy is done, so later changes do not reach the mirror before it is read.
//!
//! All bytes of the copy are compared, whatever the kernel reports as written: what a device wrote
//! there by itself is copied, too. The pages count as looked at, so no launch compares them again.
//!
//! A mirror is closed when all work is known to be done, or when the memory is freed. Then copies
//! that other contexts' streams have yet to make from it are waited for.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use outboard_api::{CUresult, enums::CU_STREAM_CAPTURE_STATUS_NONE};
use outboard_pages::pages_around;
use outboard_wire::messages;

use super::{
    Driver, StreamRef, host_functions, host_memory::HostRange, mirror::Read, wire_context,
};
use crate::{
    log,
    session::{Group, Sink},
    thread,
};

/// Shortest copy that is made from a mirror. The bytes of a shorter one cross the network in less
/// time than the wait takes that a program may make right after it, and that they would spare it.
const MIRRORED_COPY_BYTES_MIN: u64 = 256 << 10;

impl Driver {
    /// Copies pinned memory to the device by way of its mirror, if that is open and the copy long.
    /// Returns false if the caller has to send the bytes.
    #[inline]
    pub(crate) fn copy_from_mirror(
        &self,
        (dst, src, bytes): (u64, u64, u64),
        stream: &StreamRef,
    ) -> Result<bool, CUresult> {
        match bytes >= MIRRORED_COPY_BYTES_MIN && self.has_mirrors() {
            true => self.copy_from_open((dst, src, bytes), stream),
            false => Ok(false),
        }
    }

    #[cold]
    fn copy_from_open(
        &self,
        (dst, src, bytes): (u64, u64, u64),
        stream: &StreamRef,
    ) -> Result<bool, CUresult> {
        let Some(range) = self.private_range(src).filter(|r| r.mirror.is_open()) else {
            return Ok(false);
        };
        // The bytes of a copy into the memory, and of a host function, come to the program first.
        let is_to_change = host_functions::host_functions_pending()
            || self.session.is_receiving()
                && !self.session.copies_into(src, bytes, false).is_empty();
        // Adapters at the server write at any time, in no stream's order.
        if is_to_change || self.mirrors.are_lent.load(Ordering::Acquire) {
            return Ok(false);
        }
        let message = messages::Copy {
            dst,
            src,
            len: bytes,
            stream: stream.wire(),
            sync: 0,
        };
        self.session
            .read_meanwhile(|| self.copy_pushed(&range, &message, stream))
    }

    fn copy_pushed(
        &self,
        range: &Arc<HostRange>,
        message: &messages::Copy,
        stream: &StreamRef,
    ) -> Result<bool, CUresult> {
        // Until the copy is sent no other thread closes the mirror; later it sees the copy as work.
        let mut open = self.mirrors.open.lock();
        if !range.mirror.is_open() {
            return Ok(false);
        }
        open.is_looked_at_by_this_thread();
        let part = pages_around(message.src, message.len);
        if self.push_whole(&mut open, range, part).is_err() {
            return Ok(false);
        }
        let number = self.submit_as(&thread::here(), stream.work(), message)?;
        range.mirror.reads.add(Read {
            context: wire_context(),
            stream: stream.clone(),
            number,
        });
        self.mirrors.copied(message.len);
        Ok(true)
    }

    /// Waits until the server has made all copies from this memory, which the program gives up.
    pub(super) fn outlast_reads(&self, range: &HostRange, time: Duration) {
        for read in range.mirror.reads.take() {
            if !self.outlast_read(&read, time) {
                log::warn(format_args!(
                    "host memory at {:#x} is freed while a copy from it is under way",
                    range.base
                ));
            }
        }
    }

    /// Returns false if the copy is not known to be made by then.
    fn outlast_read(&self, read: &Read, time: Duration) -> bool {
        // A question would become part of the capture, or end it.
        if self.capture_status(&read.stream).ok() != Some(CU_STREAM_CAPTURE_STATUS_NONE) {
            return false;
        }
        let (begin, group) = (Instant::now(), Group::watching(None));
        let (slot, value) = group.word();
        let fence = messages::FenceStream {
            stream: read.stream.wire(),
            slot,
            value,
        };
        let asked = self.session.ask(read.context, &fence, &group, Sink::Group);
        if asked.is_err() {
            // The session has ended, and has no work.
            return true;
        }
        while !group.is_complete() {
            if begin.elapsed() > time || self.session.check().is_err() {
                return false;
            }
            self.session.poll();
            std::thread::yield_now();
        }
        true
    }
}
