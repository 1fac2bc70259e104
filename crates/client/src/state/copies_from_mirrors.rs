//! Copies to the device from memory whose mirror is open: their bytes cross the network once.
//!
//! The program's changes in a mirror go to the server before the next launch in any case. So a long
//! copy from there sends these changes first, and then a message without bytes: the server reads
//! the mirror, at the same address, in the order of the stream. The words that kernels wrote there
//! before the copy are part of it, as on a local GPU.
//!
//! Later changes reach the mirror at once, whatever copies are queued: a kernel before the copy may
//! wait for one of them. That is right, since the program may change the source again only when the
//! copy is done, and a look sends only words that it has changed while work is under way. A copy of
//! a batch whose source is read during the call does not come here.
//!
//! All bytes of the copy are compared, whatever the kernel reports as written: what a device wrote
//! there by itself is copied, too. The pages count as looked at: no launch compares them again.
//!
//! The server keeps the mirror's memory until copies from it are made. So nobody waits for them
//! when the memory is freed, whatever context, stream or capture they were sent in.

use std::sync::{Arc, atomic::Ordering};

use outboard_api::CUresult;
use outboard_pages::pages_around;
use outboard_wire::messages;

use super::{
    Driver, StreamRef, are_several, controls::within, host_functions, host_memory::HostRange,
};

/// Shortest copy that is made from a mirror. The bytes of a shorter one cross the network in less
/// time than the wait takes that a program may make right after it, and that they would spare it.
const MIRRORED_COPY_BYTES_MIN: u64 = 256 << 10;
/// Most bytes sent before other threads may look at mirrors, too.
const LOCKED_BYTES_MAX: u64 = 1 << 20;

impl Driver {
    /// Copies pinned memory to the device by way of its mirror, if that is open and the copy long.
    /// Returns false if the caller has to send the bytes.
    #[cold]
    pub(crate) fn copy_from_mirror(
        &self,
        (dst, src, bytes): (u64, u64, u64),
        stream: &StreamRef,
    ) -> Result<bool, CUresult> {
        // Another server may be about to write the memory.
        if bytes < MIRRORED_COPY_BYTES_MIN || are_several() {
            return Ok(false);
        }
        let Some(range) = self.private_range(src) else {
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
        // No look closes the mirror until the copy is sent, and becomes work under way.
        let _naming = self.mirrors.naming.read();
        let copy = || self.copy_pushed(&range, &message, stream);
        self.session.read_meanwhile(copy)
    }

    fn copy_pushed(
        &self,
        range: &Arc<HostRange>,
        message: &messages::Copy,
        stream: &StreamRef,
    ) -> Result<bool, CUresult> {
        let whole = within((message.src, message.src + message.len), range.run());
        if whole.is_none_or(|(from, to)| to - from != message.len) {
            return Ok(false);
        }
        let (mut at, end) = pages_around(message.src, message.len);
        let mut was_alone = None;
        loop {
            let mut open = self.mirrors.open.lock();
            // Another thread may free the memory meanwhile.
            if !range.mirror.is_open() {
                return Ok(false);
            }
            open.is_looked_at_by_this_thread();
            // In between this thread sends changes alone; others that write are noticed.
            let was_alone = *was_alone.get_or_insert_with(|| self.is_alone(&open));
            let exact =
                !was_alone || open.are_several || self.mirrors.are_lent.load(Ordering::Acquire);
            let next = end.min(at + LOCKED_BYTES_MAX);
            let pushed = self.push_whole(&mut open, range, (at, next), exact);
            if !matches!(pushed, Ok(true)) {
                return Ok(false);
            }
            at = next;
            if at == end {
                self.submit_to(stream, message)?;
                self.mirrors.copied(message.len);
                return Ok(true);
            }
        }
    }
}
