//! Sending a message. All code of a launch is inlined into the call, so that the fields of its
//! message go from registers to the link; code for unusual cases is not inlined.

use outboard_api::CUresult;
use outboard_link::Reservation;
use outboard_wire::{
    EncodeError, Op,
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
        self.send_inline::<M, false>(0, numbered, context, message, false)
    }

    /// Does [`submit`](Self::submit) for a message that may rest: its effect is first seen by a
    /// later one of the session. If it `rests`, it leaves with that one over tcp, which saves both
    /// sides a system call.
    #[inline(always)]
    pub(crate) fn submit_resting<'a, M: Op<'a>>(
        &self,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
        rests: bool,
    ) -> Result<u64, CUresult> {
        if conditions::is_unusual() {
            return self.submit_unusual(numbered, context, &message.clone());
        }
        self.send_inline::<M, false>(0, numbered, context, message, rests)
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

    /// Sends messages that rest.
    pub(crate) fn send_rested(&self) {
        let sent = self.sender.lock().flush();
        if let Err(error) = sent {
            self.lost(format_args!("sending: {error}"));
        }
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
            false => self.send_inline::<M, false>(token, numbered, context, message, false),
            true => self.send_inline::<M, true>(token, numbered, context, message, false),
        }
    }

    #[inline(always)]
    fn send_inline<'a, M: Op<'a>, const TIMED: bool>(
        &self,
        token: u32,
        numbered: Numbered<'_>,
        context: u64,
        message: &M,
        rests: bool,
    ) -> Result<u64, CUresult> {
        let len = request_len(message);
        let mut sender = self.sender.lock();
        if M::HAS_DATA && len >= PLACED_BYTES_MIN && !self.shares_memory() {
            let mut room = [0; DATA_HEAD_BYTES_MAX];
            if let Some((head, data)) = encode_request_head(&mut room, token, context, message) {
                let number = self.progress.number(numbered);
                let sent = times::sending_if::<TIMED, _>(|| {
                    sender.send(&[&room[..head], data])?;
                    sender.flush()
                });
                // Another thread's message goes between the pieces of a copy, which would otherwise
                // keep the lock for most of the copy.
                MutexGuard::unlock_fair(sender);
                return match sent {
                    Ok(()) => Ok(number),
                    Err(error) => Err(self.lost_with(M::NAME, &error)),
                };
            }
        }
        let mut frame = match Reservation::new(sender, len) {
            Ok(frame) => frame,
            Err(error) => return Err(self.lost_with(M::NAME, &error)),
        };
        if let Err(error) = encode_request(&mut frame, token, context, message) {
            drop(frame);
            return Err(self.not_laid_out(M::NAME, error));
        }
        let number = self.progress.number(numbered);
        // Over tcp the bytes mostly leave without the lock: bytes that other threads post
        // meanwhile leave with these, or these with theirs.
        let sent = times::sending_if::<TIMED, _>(|| match rests {
            true => self.flusher.commit_resting(frame),
            false => self.flusher.commit(frame),
        });
        match sent {
            Ok(()) => Ok(number),
            Err(error) => Err(self.lost_with(M::NAME, &error)),
        }
    }

    /// Ends the session, since a message could not be sent.
    #[cold]
    fn lost_with(&self, message: &str, error: &outboard_link::Error) -> CUresult {
        self.lost(format_args!("{message}: {error}"))
    }

    /// Returns the error of a call whose message could not be laid out. The session goes on if the
    /// program is to blame.
    #[cold]
    pub(super) fn not_laid_out(&self, message: &str, error: EncodeError) -> CUresult {
        match error {
            EncodeError::NoContent => CUresult::CUDA_ERROR_INVALID_VALUE,
            EncodeError::NoRoom { .. } => self.lost(format_args!("{message}: {error}")),
        }
    }
}
