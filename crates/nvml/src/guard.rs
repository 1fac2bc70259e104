//! Code that every exported function runs before and after the call itself.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    call_table::CALLS,
    log, session,
    types::{Result, nvmlReturn_t},
};

/// Runs a served call, and stops panics before they unwind into C.
pub(crate) fn enter(call: usize, body: impl FnOnce() -> Result) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => nvmlReturn_t::SUCCESS,
        Ok(Err(error)) => {
            log::debug(format_args!("{} answers {error}", name(call)));
            error
        }
        Err(_) => {
            log::warn(format_args!("{} panicked: a bug of Outboard", name(call)));
            nvmlReturn_t::UNKNOWN
        }
    }
}

/// Refuses a call, and reports it once.
pub(crate) fn unsupported(call: usize) -> nvmlReturn_t {
    static SAID: [AtomicBool; CALLS.len()] = [const { AtomicBool::new(false) }; CALLS.len()];
    if !session::is_initialised() {
        return nvmlReturn_t::UNINITIALIZED;
    }
    if SAID
        .get(call)
        .is_some_and(|said| !said.swap(true, Ordering::Relaxed))
    {
        log::warn(format_args!("{} is not supported", name(call)));
    }
    nvmlReturn_t::NOT_SUPPORTED
}

fn name(call: usize) -> &'static str {
    CALLS.get(call).copied().unwrap_or("a call")
}
