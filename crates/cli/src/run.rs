//! `outboard run`: becomes the program, with our libraries in front of NVIDIA's.

use std::{
    env,
    ffi::OsString,
    io::ErrorKind,
    os::unix::process::CommandExt,
    path::Path,
    process::{Command, ExitCode},
};

use outboard_api::optimise::VARIABLE;
use outboard_link::{Endpoint, emulated};

use crate::{args::RunArgs, libraries, peer, serve::default_endpoint};

/// As env(1) and shells have it.
const EXIT_CANNOT_EXECUTE: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

pub(crate) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let endpoint = match args.gpu {
        Some(endpoint) => endpoint,
        None => default_endpoint()?,
    };
    let folder = libraries::folder()?;
    peer::greet_over(&endpoint, args.emulate)?;
    let [program, arguments @ ..] = args.program.as_slice() else {
        anyhow::bail!("no program to run");
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(environment(&folder, &endpoint))
        .env(VARIABLE, args.optimise.to_string());
    if let Some(network) = args.emulate {
        command.env(emulated::VARIABLE, network.to_string());
    }
    if args.stats {
        command.env("OUTBOARD_STATS", "-");
    }
    // From here on the process is the program: signals, terminal and exit code are its own.
    let error = command.exec();
    eprintln!("outboard: {}: {error}", Path::new(program).display());
    Ok(ExitCode::from(match error.kind() {
        ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_CANNOT_EXECUTE,
    }))
}

/// What makes a program use the server at the endpoint, through the libraries in the folder.
pub(crate) fn environment(folder: &Path, endpoint: &Endpoint) -> [(&'static str, OsString); 4] {
    let path = prepend(folder, env::var_os("LD_LIBRARY_PATH"));
    [
        ("OUTBOARD_GPU", endpoint.to_string().into()),
        ("LD_LIBRARY_PATH", path),
        // Triton and Numba look for the driver by other ways than the loader's.
        ("TRITON_LIBCUDA_PATH", folder.into()),
        (
            "NUMBA_CUDA_DRIVER",
            folder.join(libraries::CUDA.names[0]).into(),
        ),
    ]
}

fn prepend(folder: &Path, rest: Option<OsString>) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    // An empty entry would mean the current folder.
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_folder_comes_first_and_no_empty_entry_arises() {
        let ours = Path::new("/ours");
        assert_eq!(prepend(ours, None), "/ours");
        assert_eq!(prepend(ours, Some("".into())), "/ours");
        assert_eq!(prepend(ours, Some("/a:/b".into())), "/ours:/a:/b");
    }
}
