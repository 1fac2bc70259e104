//! The exit codes of the command, declared once; the manual page and `--help` have their table.

use std::{
    fmt::{self, Write as _},
    process::ExitCode,
};

/// One exit code, and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(u8);

macro_rules! codes {
    ($($name:ident $code:literal $meaning:literal)*) => {
        impl Exit {
            $(#[doc = $meaning] pub(crate) const $name: Exit = Exit($code);)*
        }

        /// All codes and their meanings.
        const MEANINGS: &[(Exit, &str)] = &[$((Exit::$name, $meaning)),*];
    };
}

codes! {
    WELL 0 "What was asked for is done; of run: the program's own exit code 0."
    FAILED 1 "Something failed, and one line on standard error says what."
    USAGE 2 "The command line or the configuration file is wrong; nothing was done."
    NO_NETWORK 3 "Of probe and require: no network, or not this one, keeps the program within the budget."
    CANNOT_EXECUTE 126 "Of run: the program is there and cannot be started."
    NOT_FOUND 127 "Of run: there is no such program."
    INTERRUPTED 130 "Of bench, calibrate and sweep: Ctrl-C, SIGTERM or SIGHUP; what was measured until then is kept. Of probe and doctor: Ctrl-C; what was found until then is said."
    TERMINATED 143 "Of probe and doctor: SIGTERM, as 130; 129 is SIGHUP."
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.0)
    }
}

/// Settings that are wrong; nothing was done. The error and its causes are in the text.
#[derive(Debug)]
pub(crate) struct WrongSettings(String);

impl WrongSettings {
    pub(crate) fn of(error: &anyhow::Error) -> WrongSettings {
        WrongSettings(crate::said::whole(error))
    }
}

impl fmt::Display for WrongSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongSettings {}

impl Exit {
    /// Returns the code of a command that ended with this error.
    pub(crate) fn of(error: &anyhow::Error) -> Exit {
        match error.is::<WrongSettings>() {
            true => Exit::USAGE,
            false => Exit::FAILED,
        }
    }
}

/// Returns the table as lines of text.
pub(crate) fn table() -> String {
    let mut out = String::from("Exit codes:\n");
    for (Exit(code), meaning) in MEANINGS {
        // Writing to a string does not fail.
        let _ = writeln!(out, "  {code:<4} {meaning}");
    }
    out + "  else The program's own, of run: the command becomes the program."
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn codes_are_different_and_shown() {
        let help = crate::args::Args::command().render_long_help().to_string();
        for (at, (exit, meaning)) in MEANINGS.iter().enumerate() {
            assert!(MEANINGS[..at].iter().all(|(other, _)| other != exit));
            let first: String = meaning.chars().take(30).collect();
            assert!(help.contains(&first), "{meaning}");
        }
    }
}
