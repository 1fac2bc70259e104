//! Messages on stderr.

use std::fmt::Display;

use outboard_log::Log;
pub(crate) use outboard_log::is_debug as debugging;

const LOG: Log = Log::new("outboard");

pub(crate) fn warn(message: impl Display) {
    LOG.warn(message);
}

pub(crate) fn debug(message: impl Display) {
    LOG.debug(message);
}
