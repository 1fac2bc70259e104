//! Messages on stderr: few, and none can make the program fail.

use std::{fmt::Display, io::Write as _, sync::OnceLock};

/// `OUTBOARD_LOG`: `off`, `warn` (the default), or `debug`, which names every call that fails.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Level {
    Off,
    Warn,
    Debug,
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("OUTBOARD_LOG").as_deref() {
        Ok("off") => Level::Off,
        Ok("debug" | "trace") => Level::Debug,
        _ => Level::Warn,
    })
}

pub(crate) fn warn(message: impl Display) {
    if level() >= Level::Warn {
        say(message);
    }
}

pub(crate) fn debug(message: impl Display) {
    if level() >= Level::Debug {
        say(message);
    }
}

/// Returns whether `debug` messages are printed, so that the hot path can skip formatting.
pub(crate) fn debugging() -> bool {
    level() >= Level::Debug
}

fn say(message: impl Display) {
    // stderr may be closed; eprintln! would panic.
    let _ = writeln!(std::io::stderr(), "outboard: {message}");
}
