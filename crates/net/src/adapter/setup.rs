//! Memory and properties of a queue pair.

use crate::{
    completions::check, distant::Registered, error::Error, memory::Mapped, ring::Ring,
    wqe::BLOCK_BYTES,
};

use super::{
    receiver::{LOG_MAX, Receiver, check_receives},
    sender::{Retries, Sender},
};

/// Offset of the doorbell in its page.
const DOORBELL_OFFSET: usize = 0x800;

/// All that a queue pair is made of.
#[derive(Clone, Debug)]
pub struct PairSetup {
    pub domain: u32,
    pub send_completions: u32,
    pub receive_completions: u32,
    /// Blocks of 64 bytes, 2^`log_blocks` of them.
    pub ring: Registered,
    pub log_blocks: u32,
    /// Receives of 16 bytes, 2^`log_receives` of them; `None` if nothing is received.
    pub receives: Option<(Mapped, u32)>,
    /// Doorbell record: two words of 32 bits, big-endian, for receives and sends.
    pub record: Registered,
    /// The doorbell's page; the doorbell is at 0x800.
    pub page: Mapped,
    pub retries: Retries,
}

impl PairSetup {
    pub(super) fn parts(&self) -> Result<(Sender, Receiver), Error> {
        self.check()?;
        let doorbell = self.page.part(DOORBELL_OFFSET, 8).ok_or(Error::NoPair(0))?;
        let (ring, record) = (self.ring.clone(), self.record.clone());
        let ring = Ring::new(ring, self.log_blocks, record, doorbell);
        let sender = Sender::new(ring, self.retries);
        Ok((
            sender,
            Receiver::new(self.receives.clone(), self.record.clone()),
        ))
    }

    /// Fails unless all memory is as long as needed, and aligned.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (what, log_min, log_max) = ("send queue", 0, LOG_MAX);
        if self.log_blocks > LOG_MAX {
            return Err(Error::Size {
                what,
                log_min,
                log_max,
                given: self.log_blocks,
            });
        }
        check(
            &self.ring,
            "a send queue",
            BLOCK_BYTES << self.log_blocks,
            BLOCK_BYTES,
        )?;
        check(&self.record, "a doorbell record", 8, 8)?;
        check(
            &self.page,
            "a doorbell page",
            DOORBELL_OFFSET + BLOCK_BYTES,
            8,
        )?;
        if let Some((receives, log)) = &self.receives {
            check_receives(receives, *log)?;
        }
        Ok(())
    }
}
