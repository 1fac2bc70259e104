//! A replacement for NVIDIA's `ptxas`, for devices that run PTX: its output is the PTX itself,
//! which the driver accepts too. Triton finds it by `TRITON_PTXAS_PATH`.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Name of this executable when it replaces the assembler.
pub(crate) const NAME: &str = "ptxas";
/// The real one's output without `-o`.
const OUTPUT_DEFAULT: &str = "elf.o";
/// The real one's exit code after any error.
const EXIT_FATAL: u8 = 255;
/// Triton reads the release, and uses the whole text in the name of a cache, so it must be unique.
const VERSION: &str = concat!(
    "ptxas: a stand-in that leaves PTX as it is\nOutboard ",
    env!("CARGO_PKG_VERSION"),
    ", in place of Cuda compilation tools, release 13.0, V13.0.0"
);

pub(crate) fn is_meant() -> bool {
    env::args_os()
        .next()
        .is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(NAME)))
}

pub(crate) fn main() -> ExitCode {
    match assemble(env::args_os().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("ptxas fatal   : {text}");
            ExitCode::from(EXIT_FATAL)
        }
    }
}

fn assemble(arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let Some((input, output)) = files(arguments)? else {
        println!("{VERSION}");
        return Ok(());
    };
    let mut text = fs::read(&input).map_err(|error| format!("{}: {error}", input.display()))?;
    // The driver requires text to end with a zero.
    text.retain(|&byte| byte != 0);
    text.push(0);
    fs::write(&output, text).map_err(|error| format!("{}: {error}", output.display()))
}

/// Returns the input and output files; `None` if the version is requested. All other options are
/// for machine code.
fn files(
    mut arguments: impl Iterator<Item = OsString>,
) -> Result<Option<(PathBuf, PathBuf)>, String> {
    let mut input = None;
    let mut output = PathBuf::from(OUTPUT_DEFAULT);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--version" | "-V") => return Ok(None),
            Some("-o" | "--output-file") => {
                output = arguments.next().ok_or("-o needs a file")?.into();
            }
            _ if Path::new(&argument).extension() == Some(OsStr::new("ptx")) => {
                if let Some(first) = input.replace(PathBuf::from(&argument)) {
                    return Err(format!(
                        "{} and {}: one file at a time",
                        first.display(),
                        argument.display()
                    ));
                }
            }
            _ => {}
        }
    }
    let input = input.ok_or("no file whose name ends in .ptx")?;
    Ok(Some((input, output)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Option<(PathBuf, PathBuf)>, String> {
        files(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn options_for_machine_code_are_passed_over() {
        let (input, output) = (PathBuf::from("/t/k.ptx"), PathBuf::from("/t/k.ptx.o"));
        let line = "-lineinfo -v --regAllocOptLevel=2 --gpu-name=sm_80 /t/k.ptx -o /t/k.ptx.o";
        assert_eq!(asked(line), Ok(Some((input.clone(), output))));
        let default = Ok(Some((input, PathBuf::from(OUTPUT_DEFAULT))));
        assert_eq!(asked("/t/k.ptx"), default);
        assert_eq!(asked("--version"), Ok(None));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        assert!(asked("").is_err_and(|text| text.contains(".ptx")));
        assert!(asked("a.ptx b.ptx").is_err_and(|text| text.contains("one file")));
        assert!(asked("a.ptx -o").is_err_and(|text| text.contains("-o")));
    }
}
