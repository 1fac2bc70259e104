//! Text that the command says: to standard output, and of errors.

use std::{
    io::{self, ErrorKind, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;

/// Prints to standard output. A reader that stops early, such as `head`, is not an error.
pub(crate) fn print(bytes: &[u8]) -> anyhow::Result<ExitCode> {
    printed(io::stdout().write_all(bytes))
}

/// Ends a command that has printed to standard output.
pub(crate) fn printed(result: io::Result<()>) -> anyhow::Result<ExitCode> {
    match result.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("writing to standard output")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Formats an error and its causes in one line. A cause that the error before it already names is
/// left out.
pub(crate) fn whole(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cause_is_said_twice() {
        let file = || std::io::Error::from_raw_os_error(2);
        let text = file().to_string();
        let plain = anyhow::Error::new(file()).context("reading a");
        assert_eq!(whole(&plain), format!("reading a: {text}"));
        let named = anyhow::Error::new(file()).context(format!("reading a: {text}"));
        assert_eq!(whole(&named), format!("reading a: {text}"));
        assert_eq!(whole(&named.context("b")), format!("b: reading a: {text}"));
    }
}
