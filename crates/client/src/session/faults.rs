//! Errors of messages that have no reply, until the program is told: the first of each context, and
//! the loss of a context, which stays. What failed in a context that has ended since concerns
//! nobody.

use std::{collections::HashMap, sync::atomic::Ordering};

use outboard_api::CUresult;
use outboard_wire::frame::context_and_call;

use super::Session;

/// Contexts that have ended and are remembered: an error of one comes a second late at most.
const ENDS_MAX: usize = 256;

/// Contexts with an error that is kept.
const FIRST_MAX: usize = 16;

/// The message of an error: the context that was current, and the number of contexts that had ended
/// before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    context: u64,
    ended: u32,
}

impl Origin {
    /// The client itself, at any time.
    pub(crate) const CLIENT: Origin = Origin {
        context: 0,
        ended: 0,
    };

    /// Names a message by its header's context.
    pub(super) fn of(context: u64, ended: u32) -> Origin {
        let (context, _) = context_and_call(context);
        Origin { context, ended }
    }

    fn is_before(self, ended: u32) -> bool {
        self.ended.wrapping_sub(ended).cast_signed() < 0
    }
}

/// The errors that wait to be told, and the ends of contexts.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// The first error of each context, in the order in which they came.
    first: Vec<(CUresult, Origin)>,
    /// For a context the number of contexts that had ended after its last end. A primary context
    /// has the same handle again.
    ends: HashMap<u64, u32>,
}

impl Faults {
    /// Returns whether the context of an error has ended since its message.
    fn is_over(&self, of: Origin) -> bool {
        let end = self.ends.get(&of.context);
        end.is_some_and(|end| of.is_before(*end))
    }

    fn add(&mut self, status: CUresult, of: Origin) {
        let is_first = self.first.iter().all(|(_, o)| o.context != of.context);
        if is_first && self.first.len() < FIRST_MAX {
            self.first.push((status, of));
        }
    }

    fn end(&mut self, context: u64, ended: u32) {
        self.ends.insert(context, ended);
        if self.ends.len() > ENDS_MAX {
            self.ends
                .retain(|_, end| ended.wrapping_sub(*end) < ENDS_MAX as u32 / 2);
        }
        self.first.retain(|(_, of)| of.context != context);
    }
}

impl Session {
    /// Returns and clears the deferred error; one that lost the context stays.
    pub(crate) fn take_fault(&self) -> Result<(), CUresult> {
        match self.lost_context.load(Ordering::Acquire) {
            0 => {}
            sticky => return Err(CUresult(sticky)),
        }
        if !self.faulted.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut faults = self.faults.lock();
        self.faulted.store(false, Ordering::Release);
        let first = faults.first.first().copied();
        faults.first.clear();
        first.map_or(Ok(()), |(status, _)| Err(status))
    }

    /// Returns whether an error of a message without a reply waits to be told.
    pub(crate) fn has_fault(&self) -> bool {
        self.faulted.load(Ordering::Acquire)
    }

    fn ended(&self) -> u32 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns the origin of a request that is made now. What ends a context is before its end.
    pub(super) fn origin(&self, context: u64) -> Origin {
        let of = Origin::of(context, self.ended());
        let is_end = of.context != 0 && of.context == self.ends_now.load(Ordering::Relaxed);
        Origin {
            ended: of.ended.wrapping_sub(u32::from(is_end)),
            ..of
        }
    }

    /// Records the error of a message without a reply; that of a context which has ended since is
    /// dropped. Returns whether it is the one that loses the context.
    pub(crate) fn set_fault(&self, status: CUresult, of: Origin) -> bool {
        let mut faults = self.faults.lock();
        if !status.is_sticky() {
            if !faults.is_over(of) {
                faults.add(status, of);
                self.faulted.store(true, Ordering::Release);
            }
            return false;
        }
        // What faulted may be of another context than the one that was current. The loss of a
        // context that there is will be told again, by each later call.
        if of.context != 0 && of.is_before(self.ended()) {
            return false;
        }
        self.lost_context
            .compare_exchange(0, status.0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends a context by the messages that `send` sends; one context after the other, so that the
    /// server counts as the client does. Drops the context's errors, and those of its messages that
    /// are still to come.
    pub(crate) fn end_context(
        &self,
        context: u64,
        send: impl FnOnce() -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let _ending = self.ending.lock();
        self.ends_now.store(context, Ordering::Relaxed);
        self.count_end(context);
        let sent = send();
        self.ends_now.store(0, Ordering::Relaxed);
        sent
    }

    fn count_end(&self, context: u64) {
        let mut faults = self.faults.lock();
        let ended = self.ended().wrapping_add(1);
        self.ended.store(ended, Ordering::Relaxed);
        faults.end(context, ended);
        let is_faulted = !faults.first.is_empty();
        self.faulted.store(is_faulted, Ordering::Release);
        self.lost_context.store(0, Ordering::Release);
    }

    /// Sends a message that ends a context, which may be lost: a thread that still waits in the
    /// context may lose the session's context by its answer.
    pub(crate) fn send_at_end(
        &self,
        send: impl Fn() -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        const TRIES: u32 = 3;
        let mut sent = send();
        for _ in 1..TRIES {
            if !sent.is_err_and(CUresult::is_sticky) {
                break;
            }
            self.lost_context.store(0, Ordering::Release);
            sent = send();
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRONG: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

    #[test]
    fn an_error_is_over_if_its_own_context_has_ended_since() {
        let mut faults = Faults::default();
        assert!(!faults.is_over(Origin::of(1, 0)));
        faults.end(2, 1);
        assert!(faults.is_over(Origin::of(2, 0)) && !faults.is_over(Origin::of(2, 1)));
        assert!(!faults.is_over(Origin::of(1, 0)) && !faults.is_over(Origin::CLIENT));
        // The count wraps.
        faults.end(2, 3u32.wrapping_sub(5));
        assert!(faults.is_over(Origin::of(2, u32::MAX - 4)) && !faults.is_over(Origin::of(2, 1)));
    }

    #[test]
    fn an_error_of_another_context_stays() {
        let mut faults = Faults::default();
        for context in [1, 1, 2] {
            faults.add(WRONG, Origin::of(context, 0));
        }
        assert_eq!(faults.first.len(), 2);
        faults.end(2, 1);
        assert_eq!(faults.first.len(), 1);
        faults.end(1, 2);
        assert!(faults.first.is_empty());
    }

    #[test]
    fn few_ends_and_errors_are_remembered() {
        let mut faults = Faults::default();
        for number in 1..10_000 {
            let of = Origin::of(u64::from(number), number - 1);
            faults.add(WRONG, of);
            assert!(faults.first.len() <= FIRST_MAX);
            faults.end(u64::from(number), number);
            assert!(faults.ends.len() <= ENDS_MAX);
            assert!(faults.is_over(of));
        }
    }
}
