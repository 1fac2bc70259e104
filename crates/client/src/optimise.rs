//! The lower levels of optimisation: calls that would return at once make a round trip first.
//!
//! A message that has a reply only because of the level is added to the round trips that the
//! current call owes. The call waits for them just before it returns, when it holds no lock. A call
//! that owes a round trip and has sent nothing sends a ping under its name. Threads of the library
//! owe nothing: the server may need them before it can reply.

use std::{
    cell::{Cell, RefCell},
    sync::{Arc, OnceLock},
};

use outboard_api::optimise::{Did, Level};
use outboard_wire::messages;

use crate::{
    entry::CALLS,
    guard,
    session::Group,
    state::{driver, wire_context},
    stats,
};

static LEVEL: OnceLock<Level> = OnceLock::new();
const NO_CALL: usize = usize::MAX;

thread_local! {
    /// The call that the thread is in.
    static AT_HAND: Cell<usize> = const { Cell::new(NO_CALL) };
    static IS_EXEMPT: Cell<bool> = const { Cell::new(false) };
    static OWED: RefCell<Option<Arc<Group>>> = const { RefCell::new(None) };
}

/// Sets the level of the process, once.
pub(crate) fn choose(level: Level) {
    if LEVEL.set(level).is_ok() && level != Level::ALL_OF_IT {
        guard::mark_lowered();
    }
}

pub(crate) fn level() -> Level {
    LEVEL.get().copied().unwrap_or_default()
}

/// Returns whether a lower level is set.
#[inline]
pub(crate) fn is_lowered() -> bool {
    guard::is_lowered()
}

/// Exempts this thread's calls: it runs host functions, and the server may wait for one of them.
pub(crate) fn exempt_thread() {
    IS_EXEMPT.set(true);
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

/// Returns the group for the reply of a message without a reply at the top level; `None` if it has
/// no reply at this level either.
pub(crate) fn owed() -> Option<Arc<Group>> {
    let (_, class) = CALLS.get(AT_HAND.get())?;
    if !level().owes_round_trip(*class, Did::Sent) {
        return None;
    }
    let add = |owed: &RefCell<Option<Arc<Group>>>| {
        let mut owed = owed.borrow_mut();
        let group = owed.get_or_insert_with(|| Group::new(0));
        group.expect_one();
        group.clone()
    };
    // A thread that is ending has no thread-locals any more: its message gets no reply.
    OWED.try_with(add).ok()
}

/// Waits for the round trips that a call owes, before it returns.
#[cold]
pub(crate) fn finish(outer: usize) {
    if !is_lowered() {
        return;
    }
    let Some((_, class)) = CALLS.get(AT_HAND.replace(outer)) else {
        return;
    };
    let owed = OWED
        .try_with(|owed| owed.borrow_mut().take())
        .ok()
        .flatten();
    let Ok(driver) = driver() else { return };
    // The call has its result whatever the reply is: an error has become a deferred error.
    if let Some(owed) = owed {
        let _ = driver.session.wait(&owed);
    } else if level().owes_round_trip(*class, stats::did()) {
        let _ = driver
            .session
            .call(wire_context(), &messages::Ping {}, |_| ());
    }
}
