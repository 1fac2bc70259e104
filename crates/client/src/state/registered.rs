//! Copies of pinned memory over rdma, which adapters read and write in place. The first copy that
//! needs it registers the whole range, once.

use outboard_api::CUresult;
use outboard_link::{Lasting, RdmaUse, Registered};
use outboard_wire::{
    limits::{CHUNK_BYTES_MAX, PLACED_BYTES_MIN},
    messages,
};

use super::{Driver, StreamRef};

/// Shortest synchronous copy that waits until the adapter has read the memory; shorter ones are
/// copied away.
const WAITED_BYTES_MIN: usize = 64 << 10;

impl Driver {
    /// Returns the registered pinned memory that contains all of these bytes; `None` if there is
    /// none or it cannot be registered.
    pub(crate) fn registered(
        &self,
        address: u64,
        bytes: usize,
        use_: RdmaUse,
    ) -> Option<Registered> {
        if bytes < PLACED_BYTES_MIN || !self.session.registers() {
            return None;
        }
        // Locked until the registration is made: a thread that frees the memory first removes it
        // from the table, and then deregisters it.
        let host = self.host.read();
        let range = host
            .find(address)
            .filter(|range| bytes as u64 <= range.base + range.bytes - address)?;
        // SAFETY: pinned memory is mapped until it is freed or unregistered, which deregisters it.
        // The server may only write memory that the program has copied to.
        let memory = unsafe { Lasting::new(range.base, range.bytes as usize) };
        self.session.register(memory, use_)
    }

    /// Copies from pinned memory to the device by the adapter alone. Returns false if that is
    /// impossible.
    pub(crate) fn copy_in_registered(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: &StreamRef,
        wait: bool,
    ) -> Result<bool, CUresult> {
        if wait && bytes < WAITED_BYTES_MIN {
            return Ok(false);
        }
        let Some(source) = self.registered(src.expose_provenance() as u64, bytes, RdmaUse::Source)
        else {
            return Ok(false);
        };
        // SAFETY: the caller's source, as the driver API asks of it.
        let data = unsafe { std::slice::from_raw_parts(src, bytes) };
        if self.place_on_gpu(dst, data, Some(&source), stream, wait)? {
            if wait {
                self.session.wait_until_read()?;
            }
            return Ok(true);
        }
        for (index, data) in data.chunks(CHUNK_BYTES_MAX).enumerate() {
            let message = messages::CopyIn {
                dst: dst + (index * CHUNK_BYTES_MAX) as u64,
                stream: stream.wire(),
                sync: u32::from(wait),
                data: data.into(),
            };
            match data.len() < PLACED_BYTES_MIN {
                true => self.submit_to(stream, &message)?,
                false => {
                    let numbered = stream.work();
                    self.session
                        .submit_from(numbered, stream.context(), &message, &source)?;
                }
            }
        }
        if wait {
            self.session.wait_until_read()?;
        }
        Ok(true)
    }
}
