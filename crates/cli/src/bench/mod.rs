//! `outboard bench`: measures calls, round trips, copies and launches, through a server and on the
//! local GPU.
//!
//! Each side is a process of its own ([`worker`]) that makes driver calls with the driver it was
//! given. All sides stay up, and take turns case by case and round by round, so that other load on
//! the machine affects all alike.
//!
//! ```text
//!  bench ──lines of JSON──► bench-worker (local) libcuda.so.1 of the machine ─► GPU
//!    │  └─────────────────► bench-worker (shm)   Outboard's libcuda.so.1 ──► outboard serve ─► GPU
//!    └──────── starts, without --gpu ──────────────────────────────────────────────┘
//! ```

mod calibrate;
mod cases;
mod driver;
mod emulate;
mod link;
mod net;
mod net_case;
mod net_peer;
mod net_worker;
mod processes;
mod protocol;
mod report;
mod server;
mod sessions;
mod side;
mod socket;
mod statistics;
mod worker;

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, anyhow};
use outboard_link::{Endpoint, Host};
use outboard_server::DeviceKind;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::{
    args::{BenchArgs, BenchCommand, BenchTargets},
    libraries, peer,
    require::{check_writable, write_whole},
    signals::is_ignored,
};
pub(crate) use calibrate::calibrate;
pub(crate) use cases::Group;
use cases::{Case, cases};
pub(crate) use emulate::Carrier;
pub(crate) use link::LinkOf;
pub(crate) use net_case::{By, Place, Scope, Verb};
pub(crate) use net_peer::peer as net_peer;
pub(crate) use report::time;
use report::{Report, Row};
use server::BenchServer;
use side::{Refused, Side, Target};
pub(crate) use statistics::{median, quantile, sorted};
pub(crate) use worker::worker;

const ROUNDS: usize = 10;
const ROUNDS_QUICK: usize = 3;
/// Most samples, and longest time in milliseconds, of one case on one side in one round.
const SAMPLES_MAX: usize = 50;
const SAMPLES_QUICK_MAX: usize = 10;
const CASE_MS: u64 = 100;
const CASE_QUICK_MS: u64 = 30;

pub(crate) fn bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    let result = match args.command {
        Some(BenchCommand::Sessions(sessions)) => sessions::sessions(sessions, &interrupt),
        Some(BenchCommand::Emulate(args)) => emulate::emulate(args, &interrupt),
        Some(BenchCommand::Link(args)) => link::link(args, &interrupt),
        Some(BenchCommand::Net(args)) => net::net(args, &interrupt),
        None => compare(args, &interrupt),
    };
    match result {
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("outboard: interrupted");
            Ok(crate::exit::Exit::INTERRUPTED.into())
        }
        other => other,
    }
}

fn compare(args: BenchArgs, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let json = args.targets.json.as_deref().map(Output::open).transpose()?;
    let rounds = args.rounds.map(usize::from).unwrap_or(match args.quick {
        true => ROUNDS_QUICK,
        false => ROUNDS,
    });
    let mut setting = Setting::new(&args.targets, 1, interrupt)?;
    let mut sides = setting.sides(interrupt)?;
    let mut report = Report::new(rounds, args.quick, &sides);
    print(&report.head())?;
    let measured = measure_all(&args, rounds, &mut sides, &mut report, interrupt);
    report.end(measured.is_ok());
    print(&report.notes())?;
    // Results are kept after an error or interruption; if there are none, so is the file's former
    // contents.
    if let Some(output) = json
        && (measured.is_ok() || !report.is_empty())
    {
        output.write(&report)?;
    }
    measured.map_err(|error| setting.explain(error))?;
    let failures = report.failures();
    failures
        .iter()
        .for_each(|failure| eprintln!("outboard: {failure}"));
    Ok(match failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Measures all requested cases, until an error.
fn measure_all(
    args: &BenchArgs,
    rounds: usize,
    sides: &mut [Side],
    report: &mut Report,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let has_loopback = sides
        .iter()
        .any(|side| side.target.url.as_ref().is_some_and(is_loopback));
    let mut group = None;
    for case in cases(&args.only, args.quick) {
        if case.raw.is_some() && !has_loopback && case.group == Group::Socket {
            continue;
        }
        let row = measure(&case, sides, rounds, args.quick, has_loopback, interrupt)?;
        if group.replace(case.group) != Some(case.group) {
            print(&report.group_line(case.group))?;
        }
        print(&report.add(row))?;
    }
    Ok(())
}

/// Measures all rounds of one case. Each round begins with the next side.
fn measure(
    case: &Case,
    sides: &mut [Side],
    rounds: usize,
    is_quick: bool,
    with_raw: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<Row> {
    let (samples, budget) = match is_quick {
        true => (SAMPLES_QUICK_MAX, Duration::from_millis(CASE_QUICK_MS)),
        false => (SAMPLES_MAX, Duration::from_millis(CASE_MS)),
    };
    let is_call = case.work != cases::Operation::Nothing;
    let mut times = vec![Ok(Vec::new()); sides.len()];
    let mut raw_times = Vec::new();
    for round in 0..rounds {
        for turn in 0..sides.len() {
            interrupt.check()?;
            let at = (round + turn) % sides.len();
            let (true, Ok(rounds)) = (is_call, &mut times[at]) else {
                continue;
            };
            match sides[at].run(&case.title, case.work, samples, budget) {
                Ok((ns, _)) => rounds.push(ns),
                // A worker that still answers has lost only this case.
                Err(error) if error.is::<Refused>() && sides[at].still_works() => {
                    times[at] = Err(crate::said::whole(&error));
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(raw) = case.raw.filter(|_| with_raw) {
            let ns = socket::measure(raw, samples, budget).context("a plain tcp connection")?;
            raw_times.push(ns);
        }
    }
    Ok(Row::new(case, sides, &times, &raw_times))
}

/// The servers to measure, and the addresses of the workers.
struct Setting {
    server: Option<BenchServer>,
    /// The local GPU first, if there is one.
    targets: Vec<Target>,
    folder: PathBuf,
}

impl Setting {
    fn new(args: &BenchTargets, sessions: usize, interrupt: &Interrupt) -> anyhow::Result<Setting> {
        let folder = libraries::folder()?;
        for endpoint in &args.gpu {
            peer::greet(endpoint)?;
        }
        let levels: Vec<Option<String>> = match args.optimise.as_slice() {
            [] => vec![None],
            levels => levels.iter().map(|level| Some(level.to_string())).collect(),
        };
        // Each address holds its sessions while the others have theirs.
        const OWN_ENDPOINTS: usize = 2;
        let server = match args.gpu.is_empty() {
            true => Some(BenchServer::start(
                sessions * OWN_ENDPOINTS * levels.len(),
                interrupt,
            )?),
            false => None,
        };
        let endpoints = server
            .as_ref()
            .map_or(&args.gpu, |server| &server.endpoints);
        let mut targets = Vec::new();
        if !args.no_local {
            match local(&folder, interrupt) {
                Ok(target) => targets.push(target),
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => eprintln!(
                    "outboard: nothing local to compare with: {}",
                    crate::said::whole(&error)
                ),
            }
        }
        for endpoint in endpoints {
            for level in &levels {
                targets.push(Target {
                    name: target_name(endpoint, endpoints, level.as_deref()),
                    url: Some(endpoint.clone()),
                    optimise: level.clone(),
                });
            }
        }
        Ok(Setting {
            server,
            targets,
            folder,
        })
    }

    fn sides(&mut self, interrupt: &Interrupt) -> anyhow::Result<Vec<Side>> {
        let start = |target| Side::start(target, &self.folder, interrupt);
        let sides: anyhow::Result<Vec<Side>> = self.targets.iter().map(start).collect();
        sides.map_err(|error| self.explain(error))
    }

    /// Adds the server's last log lines to a worker's error, if the server is our own.
    fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match &mut self.server {
            Some(server) if !error.is::<Interrupted>() => {
                anyhow!("{}\n{}", crate::said::whole(&error), server.last_words())
            }
            _ => error,
        }
    }
}

/// Returns this machine's own driver, if it works.
fn local(folder: &Path, interrupt: &Interrupt) -> anyhow::Result<Target> {
    DeviceKind::Nvidia.check().map_err(anyhow::Error::msg)?;
    let target = Target {
        name: "local".into(),
        url: None,
        optimise: None,
    };
    let side = Side::start(&target, folder, interrupt)?;
    // Outboard's own library, found by another path, must not count as the real driver.
    let ours = libraries::CUDA.find()?.canonicalize()?;
    if Path::new(&side.ready.library)
        .canonicalize()
        .is_ok_and(|found| found == ours)
    {
        anyhow::bail!("what the loader finds as this machine's driver is Outboard's own");
    }
    Ok(target)
}

/// Returns the name of a side: `shm`, `tcp`, `rdma`, or the whole address if there are several of a
/// kind; and the level, if one is given.
fn target_name(endpoint: &Endpoint, all: &[Endpoint], level: Option<&str>) -> String {
    let kind = |endpoint: &Endpoint| match endpoint {
        Endpoint::Shm(_) => "shm",
        Endpoint::Rdma { .. } => "rdma",
        _ => "tcp",
    };
    let is_only = all
        .iter()
        .filter(|other| kind(other) == kind(endpoint))
        .count()
        == 1;
    let name = match is_only {
        true => kind(endpoint).to_owned(),
        false => endpoint.to_string(),
    };
    match level {
        Some(level) => format!("{name} {level}"),
        None => name,
    }
}

/// Returns whether a plain connection within this machine is comparable with the link.
fn is_loopback(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Tcp { host, .. } => match host {
            Host::V4(address) => address.is_loopback(),
            Host::V6(address, _) => address.is_loopback(),
            Host::Name(name) => name == "localhost",
        },
        _ => false,
    }
}

/// Set if standard output is for the results as JSON.
static TEXT_TO_STDERR: AtomicBool = AtomicBool::new(false);

fn print(text: &str) -> anyhow::Result<()> {
    if TEXT_TO_STDERR.load(Ordering::Relaxed) {
        eprint!("{text}");
        return Ok(());
    }
    crate::said::print(text.as_bytes()).map(drop)
}

/// The file of the results, which is written when there are some.
struct Output(PathBuf);

impl Output {
    /// Fails before anything is measured if the file cannot be written.
    fn open(path: &Path) -> anyhow::Result<Output> {
        match path == Path::new("-") {
            true => TEXT_TO_STDERR.store(true, Ordering::Relaxed),
            false => check_writable(path)?,
        }
        Ok(Output(path.into()))
    }

    fn write(self, results: &impl Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_vec_pretty(results)?;
        text.push(b'\n');
        if self.0 == Path::new("-") {
            return crate::said::print(&text).map(drop);
        }
        let written = write_whole(&self.0, |file| file.write_all(&text));
        if written.is_err() {
            // They took long to measure.
            crate::said::print(&text)?;
        }
        written.context("the results are on standard output, and in no file")
    }
}

/// Ctrl-C, and signals to end: threads that wait stop waiting, and all processes that were started
/// are ended in order.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

impl Interrupt {
    pub(crate) fn install() -> anyhow::Result<Interrupt> {
        let flag = Arc::new(AtomicBool::new(false));
        // Under nohup it goes on without its terminal.
        let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            signal_hook::flag::register(signal, Arc::clone(&flag))
                .context("taking charge of Ctrl-C")?;
        }
        // The second of these ends it at once, and its files stay.
        let rare = [SIGQUIT, SIGUSR1, SIGUSR2];
        for signal in rare.into_iter().filter(|signal| !is_ignored(*signal)) {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .context("taking charge of signals")?;
        }
        Ok(Interrupt(flag))
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> anyhow::Result<()> {
        match self.is_set() {
            true => Err(Interrupted.into()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        let url = |text: &str| text.parse::<Endpoint>().unwrap();
        let one = [url("shm:///a"), url("tcp://h:1")];
        assert_eq!(target_name(&one[0], &one, None), "shm");
        assert_eq!(target_name(&one[1], &one, Some("sync")), "tcp sync");
        let two = [url("tcp://a:1"), url("tcp://b:2")];
        assert_eq!(target_name(&two[1], &two, None), "tcp://b:2");
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for (text, is) in [
            ("tcp://127.0.0.1:1", true),
            ("tcp://localhost:1", true),
            ("tcp://[::1]:1", true),
            ("tcp://10.0.0.7:1", false),
            ("shm:///a", false),
        ] {
            assert_eq!(is_loopback(&text.parse().unwrap()), is, "{text}");
        }
    }
}
