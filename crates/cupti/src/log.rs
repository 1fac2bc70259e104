//! Messages on stderr: few, and none can make the program fail.

use std::{
    fmt::Display,
    io::Write as _,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::{entry::CALLS, status::Status};

/// `OUTBOARD_LOG`: `off`, `warn` (the default), or `debug`.
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

/// Prints the message if this flag was not set before.
pub(crate) fn warn_once(said: &AtomicBool, message: impl Display) {
    if !said.swap(true, Ordering::Relaxed) {
        warn(message);
    }
}

/// Refuses a function, and reports it once.
pub(crate) fn unsupported(number: usize) -> Status {
    static SAID: [AtomicBool; CALLS.len()] = [const { AtomicBool::new(false) }; CALLS.len()];
    if let (Some(said), Some(name)) = (SAID.get(number), CALLS.get(number)) {
        warn_once(said, format_args!("{name} is not supported"));
    }
    Status::NOT_SUPPORTED
}

fn say(message: impl Display) {
    // stderr may be closed; eprintln! would panic.
    let _ = writeln!(std::io::stderr(), "outboard: cupti: {message}");
}
