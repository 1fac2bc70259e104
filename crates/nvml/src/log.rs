//! Messages on stderr.

use std::fmt::Display;

use outboard_log::Log;

const LOG: Log = Log::new("outboard: nvml");

pub(crate) fn warn(message: impl Display) {
    LOG.warn(message);
}

pub(crate) fn debug(message: impl Display) {
    LOG.debug(message);
}
