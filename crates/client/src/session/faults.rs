//! Errors of messages that have no reply, until the program is told: of each context the first, and
//! its loss, which stays until its end. What failed in a context that has ended since concerns
//! nobody.
//!
//! A context that was made by the program has its handle alone; a primary one has the same handle
//! again after its end. So a message is of the context that had its handle when it was sent: of
//! that one all errors are dropped whose messages came before its last end. Both sides count the
//! ends of contexts, the server as the messages come, this side once the message is sent: what is
//! sent with the new count is after the end for the server, too.

use std::sync::atomic::Ordering;

use outboard_api::CUresult;
use outboard_wire::frame::context_and_call;
use rustc_hash::FxHashMap;

use super::Session;
use crate::thread;

/// The message of an error: its context, and the number of contexts that had ended before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    /// 0 for a message of no context.
    pub(super) context: u64,
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

/// Contexts of which errors and losses are kept. A server names those of the program's; one that
/// names others fills no memory.
const CONTEXTS_MAX: usize = 1 << 16;

/// The errors that wait to be told, and the ends of contexts.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// The first error of each context.
    first: FxHashMap<u64, CUresult>,
    /// The errors by which contexts are lost.
    lost: FxHashMap<u64, CUresult>,
    /// For a context the number of contexts that had ended after its last end.
    ends: FxHashMap<u64, u32>,
    /// The context that is being ended, or 0: what ends it is sent though it is lost.
    ending: u64,
}

impl Faults {
    /// Returns whether the context of an error has ended since its message.
    fn is_over(&self, of: Origin) -> bool {
        let end = self.ends.get(&of.context);
        end.is_some_and(|end| of.is_before(*end))
    }

    /// Returns whether it is the one that loses its context.
    fn add(&mut self, status: CUresult, of: Origin) -> bool {
        if self.is_over(of) {
            return false;
        }
        let context = match self.first.len().max(self.lost.len()) < CONTEXTS_MAX {
            true => of.context,
            false => 0,
        };
        // Of a message of no context it is not known which one is lost.
        if status.is_sticky() && context != 0 {
            return self.lost.insert(context, status).is_none();
        }
        self.first.entry(context).or_insert(status);
        false
    }

    fn end(&mut self, context: u64, ended: u32) {
        self.ends.insert(context, ended);
        self.first.remove(&context);
        self.lost.remove(&context);
        self.ending = 0;
    }
}

impl Session {
    /// Returns and clears the error that a wait in this context tells: its own, that of the
    /// calling thread's current context, or one of no context. The loss of the context stays.
    #[inline]
    pub(crate) fn take_fault(&self, context: impl FnOnce() -> u64) -> Result<(), CUresult> {
        match self.faulted.load(Ordering::Acquire) {
            false => Ok(()),
            true => self.take_fault_of(context()),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_fault_of(&self, context: u64) -> Result<(), CUresult> {
        let mut faults = self.faults.lock();
        if let Some(status) = faults.lost.get(&context) {
            return Err(*status);
        }
        let first = &mut faults.first;
        let own = first.remove(&context);
        let told = own.or_else(|| first.remove(&current_context()));
        let told = told.or_else(|| first.remove(&0));
        self.note_faults(&faults);
        told.map_or(Ok(()), Err)
    }

    /// Returns whether an error of a message without a reply waits to be told.
    #[cfg(test)]
    pub(crate) fn has_fault(&self) -> bool {
        self.faulted.load(Ordering::Acquire)
    }

    /// Fails where every call must: the server is gone, or the calling thread's context is lost.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), CUresult> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
        }
        match self.has_lost.load(Ordering::Relaxed) {
            false => Ok(()),
            true => self.check_current(),
        }
    }

    /// Does [`check`](Self::check) for a message of this context.
    #[inline]
    pub(crate) fn check_in(&self, context: u64) -> Result<(), CUresult> {
        self.check_of(|| context)
    }

    /// Does [`check`](Self::check) for a context that is looked for if any is lost.
    #[inline]
    pub(crate) fn check_of(&self, context: impl FnOnce() -> u64) -> Result<(), CUresult> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
        }
        match self.has_lost.load(Ordering::Relaxed) {
            false => Ok(()),
            true => self.check_lost(context()),
        }
    }

    #[cold]
    #[inline(never)]
    fn check_current(&self) -> Result<(), CUresult> {
        self.check_lost(current_context())
    }

    #[cold]
    #[inline(never)]
    fn check_lost(&self, context: u64) -> Result<(), CUresult> {
        let (context, _) = context_and_call(context);
        let faults = self.faults.lock();
        match faults.lost.get(&context) {
            Some(status) if faults.ending != context => Err(*status),
            _ => Ok(()),
        }
    }

    /// Returns the origin of a request that is made now, before it is sent.
    pub(super) fn origin(&self, context: u64) -> Origin {
        // With the count after an end, the request is sent after what made the end.
        Origin::of(context, self.ended.load(Ordering::Acquire))
    }

    /// Records the error of a message without a reply; that of a context which has ended since is
    /// dropped. Returns whether it is the one that loses the context.
    pub(crate) fn set_fault(&self, status: CUresult, of: Origin) -> bool {
        let mut faults = self.faults.lock();
        let is_loss = faults.add(status, of);
        self.note_faults(&faults);
        is_loss
    }

    /// Records an error of no context. Returns whether the program has none of those to be told.
    pub(crate) fn set_first_fault(&self, status: CUresult) -> bool {
        let mut faults = self.faults.lock();
        let is_first = !faults.first.contains_key(&0);
        faults.add(status, Origin::CLIENT);
        self.note_faults(&faults);
        is_first
    }

    /// Records that a launch of this context, which has returned, will not run.
    pub(crate) fn set_fault_in(&self, context: u64, status: CUresult) {
        self.set_fault(status, self.origin(context));
    }

    /// Ends a context by the messages that `send` sends, the last of which makes the end; one
    /// context after the other, so that the server counts as the client does. Drops the context's
    /// errors, and those of its messages that are still to come.
    pub(crate) fn end_context(&self, context: u64, send: impl FnOnce()) {
        let _ending = self.ending.lock();
        self.faults.lock().ending = context;
        send();
        let mut faults = self.faults.lock();
        let ended = self.ended.load(Ordering::Relaxed).wrapping_add(1);
        faults.end(context, ended);
        self.ended.store(ended, Ordering::Release);
        self.note_faults(&faults);
    }

    /// Sets what calls look at without the lock.
    fn note_faults(&self, faults: &Faults) {
        let has_lost = !faults.lost.is_empty();
        self.has_lost.store(has_lost, Ordering::Release);
        let is_faulted = has_lost || !faults.first.is_empty();
        self.faulted.store(is_faulted, Ordering::Release);
    }
}

/// Returns the context of the calling thread's messages.
fn current_context() -> u64 {
    let context = thread::here().context.get();
    context.map_or(0, |context| context.handle.0 as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRONG: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
    const LOST: CUresult = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;

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
    fn errors_and_losses_are_of_one_context() {
        let mut faults = Faults::default();
        for context in [1, 1, 2] {
            assert!(!faults.add(WRONG, Origin::of(context, 0)));
        }
        assert_eq!(faults.first.len(), 2);
        assert!(faults.add(LOST, Origin::of(2, 0)) && !faults.add(LOST, Origin::of(2, 0)));
        // Of none it is an error that a wait tells.
        assert!(!faults.add(LOST, Origin::CLIENT));
        assert_eq!((faults.lost.len(), faults.first.len()), (1, 3));
        faults.end(1, 1);
        assert_eq!((faults.lost.len(), faults.first.len()), (1, 2));
        faults.end(2, 2);
        assert!(faults.lost.is_empty() && faults.first.len() == 1);
        // The loss of the context that had the handle before comes late.
        assert!(!faults.add(LOST, Origin::of(2, 1)));
        assert!(faults.add(LOST, Origin::of(2, 2)));
    }

    #[test]
    fn a_server_that_names_contexts_at_will_fills_no_memory() {
        let mut faults = Faults::default();
        for context in 1..=2 * CONTEXTS_MAX as u64 {
            faults.add(WRONG, Origin::of(context, 0));
            faults.add(LOST, Origin::of(context, 0));
        }
        assert!(faults.first.len() <= CONTEXTS_MAX + 1 && faults.lost.len() <= CONTEXTS_MAX);
    }

    #[test]
    fn ends_are_remembered_however_late_an_error_comes() {
        let mut faults = Faults::default();
        for number in 1..10_000 {
            faults.end(u64::from(number), number);
        }
        for number in 1..10_000 {
            let of = Origin::of(u64::from(number), number - 1);
            assert!(!faults.add(WRONG, of) && !faults.add(LOST, of));
        }
        assert!(faults.lost.is_empty() && faults.first.is_empty());
    }
}
