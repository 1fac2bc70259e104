//! The level of optimisation, where it is not the highest: calls that would return at once make a round trip first.
//!
//! A message that is answered only because of the level goes to what the call at hand owes, and is waited for when the
//! call is about to return, when it holds no lock. A call that owes a round trip and has sent nothing makes one with a
//! ping under its name. Threads of the library itself owe nothing: the server may need them before it can answer.

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

/// Whether calls take the slow path at all.
#[inline]
pub(crate) fn is_lowered() -> bool {
    guard::is_lowered()
}

/// Calls of this thread owe nothing: it runs host functions, and the server may wait for one of them.
pub(crate) fn exempt_thread() {
    IS_EXEMPT.set(true);
}

/// A call begins: the one that it was made from, for `finish`.
#[cold]
pub(crate) fn begin(number: usize) -> usize {
    // Nobody asks for it otherwise.
    if !is_lowered() {
        return NO_CALL;
    }
    AT_HAND.replace(if IS_EXEMPT.get() { NO_CALL } else { number })
}

/// Where the answer goes of a message that the top level would not have answered; `None`: nor does this one.
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
    // A thread on its way out has no locals any more: it goes without.
    OWED.try_with(add).ok()
}

/// A call is about to return: what it owes is waited for.
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
    // Whatever the answer is, the call has its result: an error has become the fault that it would have been.
    if let Some(owed) = owed {
        let _ = driver.session.wait(&owed);
    } else if level().owes_round_trip(*class, stats::did()) {
        let _ = driver
            .session
            .call(wire_context(), &messages::Ping {}, |_| ());
    }
}
