//! A block of memory that another process may open: the server's ticket for the memory around it,
//! and its place there. IPC handles and the records of pools carry it.

use outboard_api::CUresult;
use outboard_wire::messages;

use crate::state::{CHUNK_BYTES, Chunk, Driver};

pub(super) const TICKET_BYTES: usize = 24;
pub(super) const BLOCK_BYTES: usize = TICKET_BYTES + 3 * size_of::<u64>();
/// Greatest length that a block of another process may state.
const LEN_BYTES_MAX: u64 = 1 << 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForeignBlock {
    ticket: [u8; TICKET_BYTES],
    /// Length of the memory that the server maps.
    len: u64,
    /// Offset of the block in that memory.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl ForeignBlock {
    pub(super) fn write(&self) -> Vec<u8> {
        let words = [self.len, self.offset, self.bytes];
        let words = words.map(u64::to_ne_bytes).concat();
        [&self.ticket[..], &words].concat()
    }

    /// Reads a block that another process wrote. Nothing in it is to be trusted.
    pub(super) fn read(written: &[u8; BLOCK_BYTES]) -> Option<ForeignBlock> {
        let (ticket, rest) = written.split_first_chunk::<TICKET_BYTES>()?;
        let (words, _) = rest.as_chunks::<8>();
        let [len, offset, bytes] = words else {
            return None;
        };
        let [len, offset, bytes] = [len, offset, bytes].map(|word| u64::from_ne_bytes(*word));
        let is_sound = len.is_multiple_of(CHUNK_BYTES)
            && len <= LEN_BYTES_MAX
            && bytes > 0
            && offset.checked_add(bytes).is_some_and(|end| end <= len);
        is_sound.then_some(ForeignBlock {
            ticket: *ticket,
            len,
            offset,
            bytes,
        })
    }
}

impl Driver {
    /// Exports the memory around a block of this process.
    pub(super) fn export_block(
        &self,
        context: u64,
        base: u64,
        bytes: u64,
    ) -> Result<ForeignBlock, CUresult> {
        let question = messages::IpcExportMemory { va: base };
        let (ticket, start, len) = self.session.call(context, &question, |reply| {
            (reply.ticket.to_vec(), reply.base, reply.len)
        })?;
        let unknown = CUresult::CUDA_ERROR_UNKNOWN;
        Ok(ForeignBlock {
            ticket: ticket.try_into().map_err(|_| unknown)?,
            len,
            offset: base.checked_sub(start).ok_or(unknown)?,
            bytes,
        })
    }

    /// Maps the memory around a block of another process, or, if `own` is 1, of any. Returns the
    /// addresses and the server's number of the device.
    pub(super) fn map_block(
        &self,
        context: u64,
        block: &ForeignBlock,
        own: u8,
    ) -> Result<(Chunk, u32), CUresult> {
        let chunk = self.memory.lock().take_addresses(block.len)?;
        let question = messages::IpcOpenMemory {
            ticket: &block.ticket,
            va: chunk.base,
            len: chunk.bytes,
            own,
        };
        match self.session.call(context, &question, |reply| reply.device) {
            Ok(device) => Ok((chunk, device)),
            Err(error) => {
                self.memory.lock().give_addresses(chunk);
                Err(error)
            }
        }
    }
}

#[cfg(test)]
pub(super) const BLOCK: ForeignBlock = ForeignBlock {
    ticket: [5; TICKET_BYTES],
    len: 4 << 20,
    offset: 512,
    bytes: 1000,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn read(block: ForeignBlock) -> Option<ForeignBlock> {
        ForeignBlock::read(&block.write().try_into().expect("its length"))
    }

    #[test]
    fn a_block_is_read_as_it_was_written() {
        assert_eq!(read(BLOCK), Some(BLOCK));
    }

    #[test]
    fn a_block_that_cannot_be_is_refused() {
        for (len, offset, bytes) in [
            (0, 0, 0),
            (1 << 20, 0, 1),
            (2 << 20, 2 << 20, 1),
            (2 << 20, u64::MAX, 2),
            (2 << 50, 0, 1),
            (2 << 20, 0, 0),
        ] {
            let wrong = ForeignBlock {
                len,
                offset,
                bytes,
                ..BLOCK
            };
            assert_eq!(read(wrong), None, "{len} {offset} {bytes}");
        }
    }
}
