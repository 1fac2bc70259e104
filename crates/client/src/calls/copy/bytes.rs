//! The ways of a copy's bytes between the program's memory and a device: with messages, through
//! memory that both sides share, or written by an adapter.

use std::sync::Arc;

use outboard_api::CUresult;
use outboard_link::{RdmaTarget, RdmaUse, Registered};
use outboard_wire::{
    limits::{CHUNK_BYTES_MAX, DATA_CONNECTION_COPY_BYTES_MIN, PLACED_BYTES_MIN},
    messages,
};

use super::super::Done;
use crate::{
    observe::profile,
    session::{Group, ReceiveBuffer, Rows, Sink},
    state::{Driver, StreamRef},
};

/// Longest copy to the device whose bytes travel with the message even if memory is shared.
const INLINE_BYTES_MAX: usize = 256;

impl Driver {
    /// Copies to the device. Over shm the bytes go into memory that the GPU reads, over other links
    /// in pieces that travel with messages. Nothing waits for the GPU: if the call is synchronous
    /// (`wait`), the server makes all later work follow the copy.
    fn copy_in(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        // SAFETY: the source has `bytes` bytes: the driver API asks it of its callers. It is memory
        // of this process alone, which the program leaves unchanged until the call returns.
        let data = unsafe { std::slice::from_raw_parts(src, bytes) };
        if self.place_on_gpu(dst, data, None, stream, wait)? {
            return Ok(());
        }
        match bytes < PLACED_BYTES_MIN {
            true => self.carry_in(dst, src, data, stream, wait),
            false => self.carry_long_in(dst, src, data, stream, wait),
        }
    }

    #[cold]
    fn carry_long_in(
        &self,
        dst: u64,
        src: *const u8,
        data: &[u8],
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let send = || self.carry_in(dst, src, data, stream, wait);
        self.session.read_meanwhile(send)
    }

    #[inline(always)]
    fn carry_in(
        &self,
        dst: u64,
        src: *const u8,
        data: &[u8],
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let bytes = data.len();
        let staged = if bytes > INLINE_BYTES_MAX && self.has_board() {
            // SAFETY: the source has `bytes` bytes: the driver API asks it of its callers.
            unsafe { self.stage_in(dst, src, bytes, stream, wait)? }
        } else {
            0
        };
        let (dst, data) = (dst + staged as u64, &data[staged..]);
        if data.len() >= DATA_CONNECTION_COPY_BYTES_MIN && self.session.has_data_connections() {
            let context = profile::tagged(stream.context());
            let announce = |offset: usize, piece: &[u8]| {
                let message = messages::CopyIn {
                    dst: dst + offset as u64,
                    stream: stream.wire(),
                    sync: u32::from(wait),
                    data: piece.into(),
                };
                self.session
                    .post_without_data(stream.work(), context, &message)
            };
            if let Some(sent) = self.session.send_on_data_connections(data, announce) {
                return sent;
            }
        }
        for (index, piece) in data.chunks(CHUNK_BYTES_MAX).enumerate() {
            self.submit_to(
                stream,
                &messages::CopyIn {
                    dst: dst + (index * CHUNK_BYTES_MAX) as u64,
                    stream: stream.wire(),
                    sync: u32::from(wait),
                    data: piece.into(),
                },
            )?;
        }
        Ok(())
    }

    /// Copies to the device, and notes it for a wait that follows.
    pub(super) fn copy_in_taken(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        self.taking(stream, || self.copy_in(dst, src, bytes, stream, wait))
    }

    /// Copies to the device from memory that the server maps too. The server can write there at any
    /// time, so no reference leads into it.
    pub(super) fn copy_in_shared(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Done {
        let staged = match bytes > INLINE_BYTES_MAX && self.has_board() {
            // SAFETY: the source has `bytes` bytes: the driver API asks it of its callers.
            true => unsafe { self.stage_in(dst, src, bytes, stream, wait)? },
            false => 0,
        };
        let rest = bytes - staged;
        let carry = || -> Done {
            let mut own = vec![0; rest.min(CHUNK_BYTES_MAX)];
            for offset in (staged..bytes).step_by(CHUNK_BYTES_MAX) {
                own.truncate(bytes - offset);
                // SAFETY: a piece of the source, to as many bytes of our own.
                unsafe {
                    std::ptr::copy_nonoverlapping(src.add(offset), own.as_mut_ptr(), own.len());
                }
                let message = messages::CopyIn {
                    dst: dst + offset as u64,
                    stream: stream.wire(),
                    sync: u32::from(wait),
                    data: own.as_slice().into(),
                };
                self.submit_to(stream, &message)?;
            }
            Ok(())
        };
        match rest < PLACED_BYTES_MIN {
            true => carry(),
            false => self.session.read_meanwhile(carry),
        }
    }

    /// Copies from the device. The replies carry the bytes, in pieces that overlap. Returns the
    /// number of the last one, too.
    fn copy_out(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
        detached: bool,
    ) -> Result<(Arc<Group>, u64), CUresult> {
        let on_data_connections = self.uses_data_connections(bytes);
        let fences = usize::from(on_data_connections && !detached);
        let replies = bytes.div_ceil(CHUNK_BYTES_MAX) + fences;
        let group = Group::new(replies);
        let mut asked = 0;
        let whole = ReceiveBuffer {
            address: dst,
            rows: Rows::contiguous(bytes),
            detached,
            stream: stream.wire(),
            in_order: false,
        };
        match self.ask_for_pieces(whole, src, stream, &group, &mut asked) {
            Ok(number) => Ok((group, number)),
            Err(error) => Err(self
                .session
                .end_in_part(&group, replies - asked, detached, error)),
        }
    }

    /// Asks for the pieces of a copy, and counts the replies that will come. Returns the number of
    /// the last piece.
    fn ask_for_pieces(
        &self,
        whole: ReceiveBuffer,
        src: u64,
        stream: &StreamRef,
        group: &Arc<Group>,
        asked: &mut usize,
    ) -> Result<u64, CUresult> {
        let (dst, bytes, detached) = (whole.address, whole.rows.bytes(), whole.detached);
        let _sent_as_it_is = self.copying_out(dst as u64, bytes as u64);
        let whole = ReceiveBuffer {
            in_order: self.is_mirrored_in(dst as u64, bytes as u64),
            ..whole
        };
        let target = self.target_for(&whole);
        let on_data_connections = self.uses_data_connections(bytes);
        let (context, work) = (stream.context(), stream.work());
        let mut number = 0;
        for offset in (0..bytes).step_by(CHUNK_BYTES_MAX) {
            let len = CHUNK_BYTES_MAX.min(bytes - offset);
            // SAFETY: inside the destination of `bytes` bytes.
            let address = unsafe { dst.add(offset) };
            let buffer = ReceiveBuffer {
                address,
                rows: Rows::contiguous(len),
                ..whole
            };
            let message = messages::CopyOut {
                src: src + offset as u64,
                len: len as u64,
                stream: stream.wire(),
            };
            let ask = || {
                if let Some(target) = &target {
                    let RdmaTarget { address, key } = target.target(address as u64);
                    let message = messages::CopyOutTo {
                        src: message.src,
                        len: message.len,
                        stream: message.stream,
                        to: address,
                        key,
                    };
                    let sink = Sink::Memory(buffer);
                    self.session
                        .ask_numbered(work, context, &message, group, sink)
                } else if on_data_connections {
                    self.session
                        .ask_for_data_connection(work, context, &message, group, buffer)
                } else {
                    let sink = Sink::Memory(buffer);
                    self.session
                        .ask_numbered(work, context, &message, group, sink)
                }
            };
            number = match detached {
                true => self.session.attending(ask)?,
                false => ask()?,
            };
            *asked += 1;
        }
        if on_data_connections && !detached {
            self.fence_on_own_connection(context, stream, group)?;
            *asked += 1;
        }
        Ok(number)
    }

    /// Returns the registered memory of a destination that the server's adapter may write. It
    /// writes at once, before what is still to be read from the link.
    fn target_for(&self, memory: &ReceiveBuffer) -> Option<Registered> {
        if memory.in_order || !self.session.registers() || self.session.expects_in(memory) {
            return None;
        }
        self.registered(memory.address as u64, memory.rows.bytes(), RdmaUse::Target)
    }

    /// Returns whether a copy from the device may come on data connections.
    fn uses_data_connections(&self, bytes: usize) -> bool {
        bytes >= DATA_CONNECTION_COPY_BYTES_MIN && self.session.has_data_connections()
    }

    /// Asks for a reply on the session's own connection: whoever waits for it has received all that
    /// the server sent there before, which data on other connections overtakes.
    fn fence_on_own_connection(
        &self,
        context: u64,
        stream: &StreamRef,
        group: &Arc<Group>,
    ) -> Done {
        let (slot, value) = group.word();
        let fence = messages::FenceStream {
            stream: stream.wire(),
            slot,
            value,
        };
        self.session.ask(context, &fence, group, Sink::Group)
    }

    /// Copies device memory to `dst` and waits. Over shm the GPU writes into staging memory.
    /// Returns the number of the last message.
    ///
    /// # Safety
    /// `dst` must have room for `bytes` bytes.
    pub(super) unsafe fn copy_out_now(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: &StreamRef,
    ) -> Result<u64, CUresult> {
        let mut staged = 0;
        // Replies that are on their way into this memory would be written over what is staged.
        let expected = ReceiveBuffer {
            address: dst,
            rows: Rows::contiguous(bytes),
            detached: false,
            stream: stream.wire(),
            in_order: false,
        };
        if self.has_board() && !self.session.expects_in(&expected) {
            let number;
            // SAFETY: `dst` has room for `bytes` bytes by this function's contract.
            (staged, number) = unsafe { self.stage_out(dst, src, bytes, stream)? };
            if staged == bytes {
                return Ok(number);
            }
            // Without staging memory, replies carry the rest.
        }
        // SAFETY: inside the destination.
        let rest = unsafe { dst.add(staged) };
        let (src, left) = (src + staged as u64, bytes - staged);
        let (group, number) = self.copy_out(rest, src, left, stream, false)?;
        self.session.wait(&group)?;
        Ok(number)
    }

    /// Copies from the device to pinned memory without a wait. If one reply tells when it is done,
    /// notes it for a wait that follows.
    pub(super) fn bring(&self, dst: *mut u8, src: u64, bytes: usize, stream: &StreamRef) -> Done {
        let (group, number) = self.copy_out(dst, src, bytes, stream, true)?;
        // An adapter's copy does not bring what kernels printed before.
        let is_last = bytes <= CHUNK_BYTES_MAX && !self.uses_data_connections(bytes);
        if is_last && !self.session.registers() {
            *stream.stream().brought.lock() = Some((number, group));
        }
        Ok(())
    }
}
