//! Messages on stderr.

use std::{fmt::Display, sync::atomic::AtomicBool};

use outboard_log::Log;

use crate::{entry::CALLS, status::Status};

const LOG: Log = Log::new("outboard: cupti");

pub(crate) fn warn(message: impl Display) {
    LOG.warn(message);
}

pub(crate) fn debug(message: impl Display) {
    LOG.debug(message);
}

/// Prints the message if this flag was not set before.
pub(crate) fn warn_once(said: &AtomicBool, message: impl Display) {
    LOG.warn_once(said, message);
}

/// Refuses a function, and reports it once.
pub(crate) fn unsupported(number: usize) -> Status {
    static SAID: [AtomicBool; CALLS.len()] = [const { AtomicBool::new(false) }; CALLS.len()];
    if let (Some(said), Some(name)) = (SAID.get(number), CALLS.get(number)) {
        warn_once(said, format_args!("{name} is not supported"));
    }
    Status::NOT_SUPPORTED
}
