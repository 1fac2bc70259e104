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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Level {
    Off,
    Warn,
    Debug,
}

impl Level {
    fn of(variable: Option<&str>) -> Level {
        match variable {
            Some("off") => Level::Off,
            Some("debug" | "trace") => Level::Debug,
            _ => Level::Warn,
        }
    }

    /// Returns the level of this process, read once.
    fn here() -> Level {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| Level::of(std::env::var("OUTBOARD_LOG").ok().as_deref()))
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
            // stderr may be closed; eprintln! would panic.
            let _ = writeln!(std::io::stderr(), "{}: {message}", self.prefix);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names_and_unknown_ones_are_warn() {
        assert_eq!(Level::of(Some("off")), Level::Off);
        assert_eq!(Level::of(Some("debug")), Level::Debug);
        assert_eq!(Level::of(Some("loud")), Level::Warn);
        assert_eq!(Level::of(None), Level::Warn);
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
