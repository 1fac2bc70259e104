//! Messages on stderr of the libraries that take NVIDIA's place in programs: few, and none can make
//! the program fail.

use std::{
    fmt::Display,
    io::Write as _,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// `OUTBOARD_LOG`: `off`, `warn` (the default), or `debug`, which names every call that fails.
/// Other levels are the nearest of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Level {
    Off,
    Warn,
    Debug,
}

impl Level {
    /// Returns the level that a value asks for. None for a word that is no level; directives as
    /// `outboard_session=debug` are the server's.
    fn of(variable: &str) -> Option<Level> {
        match variable {
            "off" => Some(Level::Off),
            "debug" | "trace" => Some(Level::Debug),
            "" | "error" | "warn" | "info" => Some(Level::Warn),
            directives if directives.contains(['=', ',']) => Some(Level::Warn),
            _ => None,
        }
    }

    /// Returns the level of this process, read once.
    fn here() -> Level {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let asked = std::env::var("OUTBOARD_LOG").unwrap_or_default();
            Level::of(&asked.to_lowercase()).unwrap_or_else(|| {
                let levels = "off, error, warn, info, debug or trace";
                write_line(format_args!(
                    "outboard: OUTBOARD_LOG={asked} is no level; {levels} are"
                ));
                Level::Warn
            })
        })
    }
}

/// Returns whether `debug` messages are printed, so that the hot path can skip formatting.
pub fn is_debug() -> bool {
    Level::here() >= Level::Debug
}

/// The messages of one library.
pub struct Log {
    prefix: &'static str,
}

impl Log {
    /// `prefix` begins every line.
    pub const fn new(prefix: &'static str) -> Log {
        Log { prefix }
    }

    pub fn warn(&self, message: impl Display) {
        self.print(Level::Warn, message);
    }

    pub fn debug(&self, message: impl Display) {
        self.print(Level::Debug, message);
    }

    /// Prints the message if this flag was not set before.
    pub fn warn_once(&self, said: &AtomicBool, message: impl Display) {
        if !said.swap(true, Ordering::Relaxed) {
            self.warn(message);
        }
    }

    fn print(&self, level: Level, message: impl Display) {
        if Level::here() >= level {
            write_line(format_args!("{}: {message}", self.prefix));
        }
    }
}

fn write_line(line: std::fmt::Arguments<'_>) {
    // stderr may be closed; eprintln! would panic.
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_unknown_ones_are_none() {
        assert_eq!(Level::of("off"), Some(Level::Off));
        assert_eq!(Level::of("debug"), Some(Level::Debug));
        assert_eq!(Level::of("error"), Some(Level::Warn));
        assert_eq!(Level::of("outboard_session=trace"), Some(Level::Warn));
        assert_eq!(Level::of(""), Some(Level::Warn));
        assert_eq!(Level::of("loud"), None);
        assert!(Level::Off < Level::Warn && Level::Warn < Level::Debug);
    }

    #[test]
    fn a_message_is_printed_once() {
        static SAID: AtomicBool = AtomicBool::new(false);
        let log = Log::new("a test");
        log.warn_once(&SAID, "once");
        assert!(SAID.load(Ordering::Relaxed));
        log.warn_once(&SAID, "never");
    }
}
