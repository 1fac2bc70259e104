//! Copies of pinned memory over rdma: the adapters read it and write it where it lies. It is registered once, all of it, by the
//! first copy that has use for that.

use outboard_api::CUresult;
use outboard_link::{Lasting, RdmaUse, Registered};
use outboard_wire::{
    limits::{CHUNK_BYTES_MAX, PLACED_BYTES_MIN},
    messages,
};

use super::{Driver, StreamRef, wire_context};

/// A synchronous copy of less than this is taken along, instead of waited for until the adapter has read it.
const WAITED_BYTES_MIN: usize = 64 << 10;

impl Driver {
    /// The pinned memory that all of these bytes lie in, registered; `None` where there is none or none can be.
    pub(crate) fn registered(
        &self,
        address: u64,
        bytes: usize,
        use_: RdmaUse,
    ) -> Option<Registered> {
        if bytes < PLACED_BYTES_MIN || !self.session.registers() {
            return None;
        }
        // Held meanwhile: whoever gives the memory up takes it out of the table first, and then has it forgotten.
        let host = self.host.read();
        let range = host
            .find(address)
            .filter(|range| bytes as u64 <= range.base + range.bytes - address)?;
        // SAFETY: pinned memory is mapped until it is freed or unregistered, which has it forgotten. What the server may write
        // is what the program has copied to.
        let memory = unsafe { Lasting::new(range.base, range.bytes as usize) };
        self.session.register(memory, use_)
    }

    /// Copies from pinned memory to the device, by the adapter alone. False where that cannot be.
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
                data,
            };
            match data.len() < PLACED_BYTES_MIN {
                true => self.submit_to(stream, &message)?,
                false => {
                    self.session
                        .submit_from(wire_context(), &message, &source)?;
                    self.progress.submit();
                    stream.progress().submit();
                }
            }
        }
        if wait {
            self.session.wait_until_read()?;
        }
        Ok(true)
    }
}
