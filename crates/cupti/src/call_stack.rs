//! Calls that each thread is executing, with their numbers, and the numbers that the program has
//! pushed.
//!
//! GPU work has the number of the outermost call: the runtime's, if the program called the runtime.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::clock;

/// Deepest nesting of calls in a thread; deeper calls have no records.
const DEPTH_MAX: usize = 64;
/// Most external numbers of one kind that a thread has pushed and not popped.
const PUSHED_MAX: usize = 1 << 20;
/// Upper bound of `CUpti_ExternalCorrelationKind`.
pub(crate) const EXTERNAL_KINDS: usize = 8;

static LAST_CALL: AtomicU32 = AtomicU32::new(0);

/// A call that a thread is executing.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    /// The runtime's number of the call; 0 for a call of the driver.
    cbid: u32,
    pub(crate) call: u32,
    pub(crate) start: u64,
}

#[derive(Default)]
struct Thread {
    frames: Vec<Frame>,
    pushed: [Vec<u64>; EXTERNAL_KINDS],
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Runs `look` on the thread's own state. Returns `None` if that state is in use or has been
/// dropped.
fn here<R>(look: impl FnOnce(&mut Thread) -> R) -> Option<R> {
    THREAD
        .try_with(|thread| {
            thread
                .try_borrow_mut()
                .ok()
                .map(|mut thread| look(&mut thread))
        })
        .ok()
        .flatten()
}

/// Returns a new call number, never 0, which means no call.
fn next_call() -> u32 {
    match LAST_CALL.fetch_add(1, Ordering::Relaxed).wrapping_add(1) {
        0 => next_call(),
        call => call,
    }
}

/// Begins a call and returns its number.
pub(crate) fn enter(cbid: u32) -> u32 {
    let start = clock::program();
    here(|thread| {
        let call = match thread.frames.first() {
            Some(outer) => outer.call,
            None => next_call(),
        };
        if thread.frames.len() < DEPTH_MAX {
            thread.frames.push(Frame { cbid, call, start });
        }
        call
    })
    .unwrap_or(0)
}

/// Ends a call. Also returns whether it was the outermost.
pub(crate) fn leave(cbid: u32) -> Option<(Frame, bool)> {
    here(|thread| {
        let at = thread.frames.iter().rposition(|frame| frame.cbid == cbid)?;
        let frame = thread.frames[at];
        // Drops nested calls whose end was never reported.
        thread.frames.truncate(at);
        Some((frame, at == 0))
    })
    .flatten()
}

/// Pushes a number of the program's. Returns false if the thread has too many.
pub(crate) fn push(kind: usize, id: u64) -> bool {
    here(|thread| match thread.pushed.get_mut(kind) {
        Some(pushed) if pushed.len() < PUSHED_MAX => {
            pushed.push(id);
            true
        }
        _ => false,
    })
    .unwrap_or(false)
}

/// Pops the number that was pushed last.
pub(crate) fn pop(kind: usize) -> Option<u64> {
    here(|thread| thread.pushed.get_mut(kind)?.pop()).flatten()
}

/// Returns the numbers that were pushed last, by kind.
pub(crate) fn tops() -> [Option<u64>; EXTERNAL_KINDS] {
    here(|thread| {
        let mut tops = [None; EXTERNAL_KINDS];
        for (top, pushed) in tops.iter_mut().zip(&thread.pushed) {
            *top = pushed.last().copied();
        }
        tops
    })
    .unwrap_or_default()
}
