//! Sending a message. All code of a launch is inlined into the call, so that the fields of its
//! message go from registers to the link; code for unusual cases is not inlined.

use outboard_api::CUresult;
use outboard_link::Sender;
use outboard_wire::{
    Op,
    frame::{encode_request, encode_request_head, request_len},
    limits::PLACED_BYTES_MIN,
};
use parking_lot::MutexGuard;

use super::{Numbered, Session};
use crate::observe::{conditions, optimise, profile, record, times};

/// Most bytes before a message's data for sending it in place, in bytes; otherwise the data is
/// copied with them.
pub(super) const DATA_HEAD_BYTES_MAX: usize = 512;

impl Session {
    /// Sends a message without a reply, after `check`, and returns its number.
    #[inline(always)]
    pub(crate) fn submit<'a, M: Op<'a>>(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
    ) -> Result<u64, CUresult> {
        if conditions::is_unusual() {
            // A copy, so that the message itself need not be in memory.
            return self.submit_unusual(numbered, context, &message.clone());
        }
        self.send_inline::<M, false>(0, numbered, context, message)
    }

    #[cold]
    fn submit_unusual<'a, M: Op<'a>>(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
    ) -> Result<u64, CUresult> {
        let context = profile::tagged(context);
        if optimise::is_lowered() {
            return self.submit_lowered(numbered, context, message);
        }
        self.send(0, numbered, context, message)
    }

    /// Numbers an act that waits must cover though no message tells of it now.
    pub(crate) fn number(&self, numbered: Numbered<'_>) -> u64 {
        let _sender = self.sender.lock();
        self.progress.number(numbered)
    }

    #[inline(never)]
    pub(super) fn send<'a, M: Op<'a>>(
        &self,
        token: u32,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
    ) -> Result<u64, CUresult> {
        let context = profile::tagged(context);
        if conditions::is_recorded() {
            record::sent(request_len(message));
        }
        match conditions::is_timed() {
            false => self.send_inline::<M, false>(token, numbered, context, message),
            true => self.send_inline::<M, true>(token, numbered, context, message),
        }
    }

    #[inline(always)]
    fn send_inline<'a, M: Op<'a>, const TIMED: bool>(
        &self,
        token: u32,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
    ) -> Result<u64, CUresult> {
        let len = request_len(message);
        let sender = self.sender.lock();
        let sent = self.lay_out::<M, TIMED>(sender, len, token, numbered, context, message);
        sent.map_err(|error| self.lost(format_args!("{}: {error}", M::NAME)))
    }

    #[inline(always)]
    fn lay_out<'a, M: Op<'a>, const TIMED: bool>(
        &self,
        mut sender: MutexGuard<'_, Sender>,
        len: usize,
        token: u32,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
    ) -> Result<u64, outboard_link::Error> {
        if M::HAS_DATA && len >= PLACED_BYTES_MIN && !self.shares_memory() {
            let mut room = [0; DATA_HEAD_BYTES_MAX];
            if let Some((head, data)) = encode_request_head(&mut room, token, context, message) {
                let number = self.progress.number(numbered);
                times::sending_if::<TIMED, _>(|| {
                    sender.send(&[&room[..head], data])?;
                    sender.flush()
                })?;
                return Ok(number);
            }
        }
        let room = sender.reserve(len)?;
        encode_request(&mut room[..len], token, context, message)
            .map_err(|_| outboard_link::Error::Misuse("a message longer than it said"))?;
        let number = self.progress.number(numbered);
        times::sending_if::<TIMED, _>(|| self.leave(sender, len))?;
        Ok(number)
    }

    /// Makes the laid-out bytes leave. Over tcp this mostly happens without the lock: bytes that
    /// other threads post meanwhile leave with these, or these with theirs.
    #[inline(never)]
    fn leave(
        &self,
        sender: MutexGuard<'_, Sender>,
        len: usize,
    ) -> Result<(), outboard_link::Error> {
        self.flusher.commit(sender, len)
    }
}
