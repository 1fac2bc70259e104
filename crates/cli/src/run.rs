//! `outboard run`: becomes the program, with our libraries before NVIDIA's.

use std::{
    env,
    ffi::{OsStr, OsString},
    io::{self, ErrorKind},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use outboard_api::optimise::VARIABLE;
use outboard_link::{Endpoint, GRANT_FILE_VARIABLE, ListError, emulated};
use outboard_trace::live;
use outboard_wire::limits::SERVERS_MAX;

use crate::{
    args::RunArgs,
    exit::Exit,
    libraries, nccl,
    peer::{self, Server},
    pool::{self, Leased, lease_for},
    preload,
    serve::default_endpoint,
    stack, token,
};

/// Names the library that NVTX, which is compiled into programs, loads and reports the program's
/// ranges to.
const NVTX_VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// Libraries that the loader loads before a program's own.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Names the real driver to the recording library.
const DRIVER_VARIABLE: &str = "OUTBOARD_DRIVER";
/// Names the devices that a program sees.
const VISIBLE_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
/// Delays that the recording library injects.
const PCIE_VARIABLE: &str = "OUTBOARD_EMULATE_PCIE";

pub(crate) fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    if args.pool.restart > 0 {
        return pool::run_again(&args);
    }
    let mut leased = lease_for(&args)?;
    let mut command = command(&args, leased.as_mut())?;
    // From here on the process is the program: signals, terminal and exit code are its own.
    stack::restore();
    let error = command.exec();
    Ok(not_started(&command, &error))
}

/// Says that a program cannot be started. Returns the exit code, as of env(1) and shells.
pub(crate) fn not_started(command: &Command, error: &io::Error) -> ExitCode {
    eprintln!(
        "outboard: {}: {error}",
        Path::new(command.get_program()).display()
    );
    ExitCode::from(match error.kind() {
        ErrorKind::NotFound => Exit::NOT_FOUND,
        _ => Exit::CANNOT_EXECUTE,
    })
}

/// Prepares the program: with the GPUs of its lease, if there is one, when their boxes serve it.
pub(crate) fn command(args: &RunArgs, leased: Option<&mut Leased>) -> anyhow::Result<Command> {
    let [program, arguments @ ..] = args.program.as_slice() else {
        anyhow::bail!("no program to run");
    };
    let mut command = Command::new(program);
    command.args(arguments);
    if preload::loses_variables(program) {
        eprintln!(
            "outboard: {} runs as another user or group (set-user-id), so the loader ignores LD_LIBRARY_PATH: it does \
             not find Outboard; run a copy of it without that bit",
            Path::new(program).display()
        );
    }
    match args.local {
        true => here(&mut command, args)?,
        false => behind_a_server(&mut command, args, leased)?,
    }
    Ok(command)
}

fn behind_a_server(
    command: &mut Command,
    args: &RunArgs,
    mut leased: Option<&mut Leased>,
) -> anyhow::Result<()> {
    let mut servers: Vec<Endpoint> = match &leased {
        Some(leased) => leased.servers.clone(),
        None => args.gpu.iter().flat_map(|one| one.0.clone()).collect(),
    };
    if servers.is_empty() {
        servers.push(default_endpoint()?);
    }
    if servers.len() > SERVERS_MAX {
        anyhow::bail!(ListError::TooMany {
            count: servers.len()
        });
    }
    let folder = libraries::folder()?;
    command.envs(token::use_files(&args.token, &servers)?);
    let mut is_ptx_only = false;
    match &mut leased {
        // A spare may take the place of a GPU meanwhile.
        Some(leased) => {
            is_ptx_only = leased.begin(args)?;
            servers.clone_from(&leased.servers);
            command.env(GRANT_FILE_VARIABLE, &leased.grants);
            command.envs(leased.names(args));
        }
        None => {
            for endpoint in &servers {
                is_ptx_only |= peer::greet_over(endpoint, args.emulate)?.ptx_only;
            }
        }
    }
    if is_ptx_only {
        leave_it_at_ptx(command)?;
    }
    if let Some(count) = args.gpus.filter(|_| leased.is_none()) {
        command.env(VISIBLE_VARIABLE, first_gpus(&servers, count)?);
    }
    command
        .envs(environment(&folder, &servers))
        .env(VARIABLE, args.optimise.to_string())
        .envs(nccl::settings(&folder, &servers, args.emulate.is_some()));
    if let Some(network) = args.emulate {
        command.env(emulated::VARIABLE, network.to_string());
    }
    if args.stats {
        command.env("OUTBOARD_STATS", "-");
    }
    if !args.no_profiler {
        command.envs(profiler(&folder, command.get_program()));
    }
    if let Some(path) = &args.record {
        let variables = recording(live::VARIABLE, path, args.iterations.as_deref(), &folder)?;
        command.envs(variables);
    }
    Ok(())
}

/// Returns the list of visible devices that has the first `count` of the servers' GPUs.
fn first_gpus(servers: &[Endpoint], count: u16) -> anyhow::Result<String> {
    if env::var_os(VISIBLE_VARIABLE).is_some() {
        anyhow::bail!(
            "--gpus and {VISIBLE_VARIABLE} both choose the program's GPUs: leave one out"
        );
    }
    let mut all = 0;
    for endpoint in servers {
        all += Server::query(endpoint)?.welcome.devices.len();
    }
    if usize::from(count) > all {
        anyhow::bail!("--gpus {count}: there are {all}");
    }
    let numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    Ok(numbers.join(","))
}

/// Keeps the compilers in CuPy and Triton at PTX, since only a GPU runs their machine code.
/// Variables that the user has set stay.
fn leave_it_at_ptx(command: &mut Command) -> anyhow::Result<()> {
    let ptxas = libraries::ptxas()?.into_os_string();
    for (variable, value) in [
        ("CUPY_COMPILE_WITH_PTX", "1".into()),
        // CUB and cuTENSOR come with CuPy as machine code.
        ("CUPY_ACCELERATORS", "".into()),
        ("TRITON_PTXAS_PATH", ptxas.clone()),
        ("TRITON_PTXAS_BLACKWELL_PATH", ptxas),
    ] {
        if env::var_os(variable).is_none() {
            command.env(variable, value);
        }
    }
    Ok(())
}

/// Prepares a run on this machine's own driver, through the recording library.
fn here(command: &mut Command, args: &RunArgs) -> anyhow::Result<()> {
    let driver = libraries::driver(DRIVER_VARIABLE)?;
    let folder = libraries::recorder_folder()?;
    command
        .env(DRIVER_VARIABLE, driver)
        .envs(library_environment(&folder));
    if let Some(path) = &args.record {
        let iterations = args.iterations.as_deref();
        command.envs(recording(live::LOCAL_VARIABLE, path, iterations, &folder)?);
        if let Some(untimed) = args.untimed {
            command.env(live::UNTIMED_VARIABLE, untimed.to_string());
        }
    }
    if let Some(pcie) = &args.emulate_pcie {
        let (delta_ns, in_flight_bytes, ns_per_byte) = pcie.injected();
        let text = format!("{delta_ns},{in_flight_bytes},{ns_per_byte}");
        command.env(PCIE_VARIABLE, text);
    }
    Ok(())
}

/// Returns the variables that make a program use the servers at the endpoints, through the
/// libraries in the folder.
pub(crate) fn environment(
    folder: &Path,
    servers: &[Endpoint],
) -> impl Iterator<Item = (&'static str, OsString)> {
    let urls: Vec<String> = servers.iter().map(Endpoint::to_string).collect();
    let gpu = ("OUTBOARD_GPU", urls.join(",").into());
    library_environment(folder).into_iter().chain([gpu])
}

/// Returns the variable that preloads our CUPTI: PyTorch finds its own by its RPATH, which comes
/// before LD_LIBRARY_PATH. The user's preloaded libraries stay, before ours. A program of another
/// architecture or C library gets nothing, since its loader would complain or fail.
fn profiler(folder: &Path, program: &OsStr) -> Option<(&'static str, OsString)> {
    preloading(folder.join(libraries::CUPTI.names[0]), program)
}

/// Returns the variable that preloads a library behind those of the user.
pub(crate) fn preloading(library: PathBuf, program: &OsStr) -> Option<(&'static str, OsString)> {
    // The variable's separators cannot be quoted.
    let is_plain = |b: &u8| !matches!(b, b':' | b' ' | b'\t' | b'\n');
    let usable = library.exists()
        && library.as_os_str().as_encoded_bytes().iter().all(is_plain)
        && preload::can_load(program);
    usable.then(|| {
        let given = env::var_os(PRELOAD_VARIABLE).filter(|given| !given.is_empty());
        let mut all = given.map_or_else(OsString::new, |mut given| {
            given.push(":");
            given
        });
        all.push(library);
        (PRELOAD_VARIABLE, all)
    })
}

/// Returns the variables that make a program load the libraries in the folder.
fn library_environment(folder: &Path) -> [(&'static str, OsString); 3] {
    let path = prepend(folder, env::var_os("LD_LIBRARY_PATH"));
    [
        ("LD_LIBRARY_PATH", path),
        // Triton and Numba do not find the driver through the loader.
        ("TRITON_LIBCUDA_PATH", folder.into()),
        (
            "NUMBA_CUDA_DRIVER",
            folder.join(libraries::CUDA.names[0]).into(),
        ),
    ]
}

/// Returns the variables that make a program record its calls. Fails now if the file cannot be
/// written.
fn recording(
    variable: &'static str,
    path: &Path,
    iterations: Option<&str>,
    folder: &Path,
) -> anyhow::Result<Vec<(&'static str, OsString)>> {
    // The program may change its folder before its first call.
    let path = std::path::absolute(path).context("asking for the current folder")?;
    outboard_trace::claim(&path)?;
    let nvtx = folder.join(libraries::CUDA.names[0]);
    let mut variables = vec![
        (variable, path.into_os_string()),
        (NVTX_VARIABLE, nvtx.into_os_string()),
    ];
    if let Some(name) = iterations {
        variables.push((live::ITERATIONS_VARIABLE, name.into()));
    }
    Ok(variables)
}

/// Puts a folder before others of a search path.
pub(crate) fn prepend(folder: &Path, rest: Option<OsString>) -> OsString {
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
