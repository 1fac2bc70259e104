//! Counts of local, outstanding, shadowed and synchronous calls, by what each call did rather than
//! by its declaration. With `OUTBOARD_STATS=FILE` (or `-` for stderr) they are written when the
//! program exits.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use outboard_api::{decl::Class, optimise::Did};

use crate::{call_table::CALLS, thread};

/// Upper bound of the number of declared calls.
pub(crate) const CALLS_MAX: usize = 1024;
pub(crate) const KINDS: usize = 4;

static COUNTS: [[AtomicU64; KINDS]; CALLS_MAX] =
    [const { [const { AtomicU64::new(0) }; KINDS] }; CALLS_MAX];

/// Notes that the current call has sent something.
#[inline]
pub(crate) fn sent() {
    thread::here().has_sent();
}

/// Notes that the current call has waited for the server.
pub(crate) fn waited() {
    thread::here().did.set(Did::Waited);
}

/// Returns what the current call has done so far.
pub(crate) fn did() -> Did {
    thread::here().did.get()
}

/// Counts a call by what it did, and returns that kind. The next call begins with nothing done.
#[inline]
pub(crate) fn end(thread: &thread::Local, number: usize) -> usize {
    let kind = match (thread.did.replace(Did::Nothing), CALLS[number].1) {
        (Did::Nothing, _) => 0,
        (Did::Sent, Class::Shadowed) => 2,
        (Did::Sent, _) => 1,
        (Did::Waited, _) => 3,
    };
    COUNTS[number][kind].fetch_add(1, Ordering::Relaxed);
    kind
}

/// Returns the counts as JSON, with further figures: more fields of the object, each after a comma.
pub(crate) fn to_json(figures: &str) -> String {
    let mut totals = [0u64; KINDS];
    let mut by_call = String::new();
    for (number, (name, _)) in CALLS.iter().enumerate() {
        let counts: [u64; KINDS] =
            std::array::from_fn(|k| COUNTS[number][k].load(Ordering::Relaxed));
        if counts.iter().all(|c| *c == 0) {
            continue;
        }
        for (total, count) in totals.iter_mut().zip(counts) {
            *total += count;
        }
        let separator = if by_call.is_empty() { "" } else { "," };
        let [local, outstanding, shadowed, synchronous] = counts;
        let _ = write!(
            by_call,
            "{separator}\n    \"{name}\": {{\"local\": {local}, \"outstanding\": {outstanding}, \"shadowed\": {shadowed}, \"synchronous\": {synchronous}}}"
        );
    }
    let [local, outstanding, shadowed, synchronous] = totals;
    format!(
        "{{\n  \"local\": {local},\n  \"outstanding\": {outstanding},\n  \"shadowed\": {shadowed},\n  \"synchronous\": {synchronous},\n  \"by_call\": {{{by_call}\n  }}{figures}\n}}\n"
    )
}

/// Returns the totals as readable text.
pub(crate) fn to_line() -> String {
    let mut totals = [0u64; KINDS];
    for call in COUNTS.iter() {
        for (total, count) in totals.iter_mut().zip(call) {
            *total += count.load(Ordering::Relaxed);
        }
    }
    let [local, outstanding, shadowed, synchronous] = totals;
    format!(
        "calls: {local} local, {outstanding} outstanding, {shadowed} shadowed, {synchronous} synchronous"
    )
}
