//! Messages about the session itself, which no device answers.

use std::time::Instant;

use outboard_api::CUresult;
use outboard_device::Failure;
use outboard_wire::{frame::RequestHeader, network::Network};

use super::{End, Session};

impl Session<'_> {
    /// Answers a ping after all replies that are ready, so a client that queries an event and then
    /// pings knows the result.
    pub(super) fn answer_ping(&mut self, header: RequestHeader, start: Instant) -> Result<(), End> {
        self.answer_ready()?;
        self.stats.count(
            header.op,
            outboard_wire::frame::HEADER_BYTES,
            start.elapsed(),
        );
        if header.token != 0 {
            self.outbox.reply(header.op, header.token, &[])?;
        }
        Ok(self.outbox.flush()?)
    }

    /// Changes the emulated network. The reply is the first frame that goes over the new one.
    pub(super) fn change_network(
        &mut self,
        header: RequestHeader,
        asked: &[u8],
    ) -> Result<(), End> {
        let changed = Network::try_from(String::from_utf8_lossy(asked).into_owned())
            .map_err(|error| Failure::new(CUresult::CUDA_ERROR_INVALID_VALUE, error.to_string()))
            .and_then(|network| match self.outbox.change_network(&network) {
                true => Ok(()),
                false => Err(Failure::unsupported(
                    "another network where none is emulated",
                )),
            });
        if header.token != 0 {
            match changed {
                Ok(()) => self.outbox.reply(header.op, header.token, &[])?,
                Err(failure) => self.outbox.failure(header.token, &failure)?,
            }
        }
        Ok(self.outbox.flush()?)
    }
}
