//! The lower levels of optimisation: calls that would return at once make a round trip first.
//!
//! A message that has a reply only because of the level is added to the round trips that the
//! current call owes. The call waits for them just before it returns, when it holds no lock. A call
//! that owes a round trip and has sent nothing sends a ping under its name. Threads of the library
//! owe nothing: the server may need them before it can reply.

use std::{cell::Cell, sync::OnceLock};

use outboard_api::optimise::{Did, Level};

use super::{conditions, stats};
use crate::call_table::CALLS;

static LEVEL: OnceLock<Level> = OnceLock::new();
const NO_CALL: usize = usize::MAX;

thread_local! {
    /// The call that the thread is in.
    static AT_HAND: Cell<usize> = const { Cell::new(NO_CALL) };
    static IS_EXEMPT: Cell<bool> = const { Cell::new(false) };
}

/// Sets the level of the process, once.
pub(crate) fn choose(level: Level) {
    if LEVEL.set(level).is_ok() && level != Level::ALL_OF_IT {
        conditions::mark_lowered();
    }
}

pub(crate) fn level() -> Level {
    LEVEL.get().copied().unwrap_or_default()
}

/// Returns whether a lower level is set.
#[inline]
pub(crate) fn is_lowered() -> bool {
    conditions::is_lowered()
}

/// Exempts this thread's calls: it runs host functions, and the server may wait for one of them.
pub(crate) fn exempt_thread() {
    IS_EXEMPT.set(true);
}

/// Returns whether this thread runs host functions.
pub(crate) fn is_exempt() -> bool {
    IS_EXEMPT.get()
}

/// Begins a call. Returns the call that made it, for `finish`.
#[cold]
pub(crate) fn begin(number: usize) -> usize {
    // Only `finish` at a lower level uses the result.
    if !is_lowered() {
        return NO_CALL;
    }
    AT_HAND.replace(if IS_EXEMPT.get() { NO_CALL } else { number })
}

/// Returns whether the current call must not return before a message that it sends is handled.
pub(crate) fn owes_reply() -> bool {
    let call = CALLS.get(AT_HAND.get());
    call.is_some_and(|(_, class)| level().owes_round_trip(*class, Did::Sent))
}

/// Makes the round trips that a call owes, before it returns. The argument tells whether a call
/// that has sent nothing owes one.
type Settle = fn(bool);

static SETTLE: OnceLock<Settle> = OnceLock::new();

/// Sets the function that makes round trips, once there is a session.
pub(crate) fn settle_by(settle: Settle) {
    let _ = SETTLE.set(settle);
}

/// Makes the round trips that a call owes, before it returns.
#[cold]
pub(crate) fn finish(outer: usize) {
    if !is_lowered() {
        return;
    }
    let Some((_, class)) = CALLS.get(AT_HAND.replace(outer)) else {
        return;
    };
    if let Some(settle) = SETTLE.get() {
        settle(level().owes_round_trip(*class, stats::did()));
    }
}
