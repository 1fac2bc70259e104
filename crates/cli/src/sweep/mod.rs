//! `outboard sweep`: runs a program over a grid of emulated networks in turns. An interrupted sweep
//! can be continued.

mod child;
mod results;

use std::{
    env,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use outboard_link::Endpoint;
use outboard_wire::network::Network;
use regex_lite::Regex;

use self::{
    child::Ended,
    results::{Plan, Run, SweepResults},
};
use crate::{
    args::SweepArgs,
    bench::{Interrupt, Interrupted},
    exit::Exit,
    peer,
    serve::default_endpoint,
};

pub(crate) fn sweep(args: SweepArgs) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::install()?;
    match measure(&args, &interrupt) {
        Err(error) if error.is::<Interrupted>() => {
            eprintln!(
                "outboard: interrupted; the same command goes on from {}",
                args.out.display()
            );
            Ok(Exit::INTERRUPTED.into())
        }
        other => other,
    }
}

fn measure(args: &SweepArgs, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let networks = grid(args)?;
    let endpoint = match &args.gpu {
        Some(endpoint) => endpoint.clone(),
        None => default_endpoint()?,
    };
    // No file is made for a server that does not answer.
    peer::greet(&endpoint)?;
    let mut results = SweepResults::open(&args.out, plan(args, &endpoint))?;
    // The real network comes first in each round: all others are compared with it.
    let places: Vec<Option<Network>> = std::iter::once(None)
        .chain(networks.iter().flatten().copied().map(Some))
        .collect();
    let todo: Vec<(u32, Option<Network>)> = (0..args.rounds)
        .flat_map(|round| places.iter().map(move |network| (round, *network)))
        .filter(|(round, network)| !results.has(*round, *network))
        .collect();
    let done = args.rounds as usize * places.len() - todo.len();
    let progress = progress(done, todo.len());
    let executable = env::current_exe().context("finding outboard itself")?;
    for (round, network) in todo {
        let name = network.map_or("no emulation".into(), |network| network.to_string());
        progress.set_message(name.clone());
        let mut command = command(&executable, &endpoint, network.as_ref(), args);
        let timeout = Duration::from_secs(args.timeout_s.into());
        let ended = child::run(&mut command, timeout, interrupt)?;
        let run = outcome(round, network, ended, args.metric.as_ref());
        let said = match (&run.error, run.value) {
            (Some(why), _) => format!("{name}: {why}"),
            (None, value) => format!("{name}: {:.4}", value.unwrap_or(f64::NAN)),
        };
        progress.println(&said);
        if progress.is_hidden() {
            eprintln!("{said}");
        }
        let failed = run.error.is_some();
        results.add(run);
        results.save(&args.out)?;
        progress.inc(1);
        if failed && !args.keep_going {
            progress.finish_and_clear();
            anyhow::bail!("{said}; --keep-going goes on with the other networks");
        }
    }
    progress.finish_and_clear();
    args.json.say(&results, || results.table(&networks))?;
    let failed = results.runs.iter().any(|run| run.error.is_some());
    Ok(match failed {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// Returns what a sweep's file is for.
fn plan(args: &SweepArgs, endpoint: &Endpoint) -> Plan {
    let program = args.program.iter();
    Plan {
        program: program
            .map(|part| part.to_string_lossy().into_owned())
            .collect(),
        gpu: endpoint.to_string(),
        metric: args.metric.as_ref().map(ToString::to_string),
    }
}

/// Returns the command that runs the program over a network.
fn command(
    executable: &Path,
    endpoint: &Endpoint,
    network: Option<&Network>,
    args: &SweepArgs,
) -> Command {
    let mut command = Command::new(executable);
    command.args(["run", "--gpu", &endpoint.to_string()]);
    if let Some(network) = network {
        command.args(["--emulate", &network.to_string()]);
    }
    command.arg("--").args(&args.program);
    command
}

/// Reads a run's value from what it printed.
fn outcome(round: u32, network: Option<Network>, ended: Ended, metric: Option<&Regex>) -> Run {
    let value = match ended.error {
        None => value(metric, &ended.stdout, ended.seconds),
        Some(error) => Err(error),
    };
    let (value, error) = match value {
        Ok(value) => (Some(value), None),
        Err(why) => (None, Some(why)),
    };
    Run {
        round,
        network,
        seconds: ended.seconds,
        value,
        error,
    }
}

/// Returns a row of networks for each round-trip time.
fn grid(args: &SweepArgs) -> anyhow::Result<Vec<Vec<Network>>> {
    let bandwidths: Vec<_> = match args.bandwidth.as_slice() {
        [] => vec![None],
        some => some.iter().copied().map(Some).collect(),
    };
    let row = |rtt: &Duration| {
        let networks = bandwidths.iter().map(|b| Network::new(*rtt, *b));
        networks.collect::<Result<Vec<_>, _>>()
    };
    Ok(args.rtt.iter().map(row).collect::<Result<_, _>>()?)
}

/// Returns the metric's last match, since programs print their figure more than once.
fn value(metric: Option<&Regex>, stdout: &str, seconds: f64) -> Result<f64, String> {
    let Some(metric) = metric else {
        return Ok(seconds);
    };
    let Some(found) = metric.captures_iter(stdout).last() else {
        return Err(format!("it printed nothing that matches {metric}"));
    };
    let text = found
        .get(1)
        .or(found.get(0))
        .map_or("", |part| part.as_str());
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(format!("{text:?}, which matches {metric}, is no number")),
    }
}

fn progress(done: usize, left: usize) -> ProgressBar {
    let bar = ProgressBar::new((done + left) as u64).with_position(done as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)")
    {
        bar.set_style(style);
    }
    bar.reset_eta();
    bar.tick();
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_match_counts() {
        let metric = Regex::new(r"step: ([0-9.]+) ms").unwrap();
        let of = |text| value(Some(&metric), text, 9.0);
        assert_eq!(of("step: 1.5 ms\nstep: 2.5 ms\n"), Ok(2.5));
        assert!(
            of("nothing")
                .unwrap_err()
                .contains("nothing that matches step")
        );
        assert!(of("step: 1.2.3 ms").unwrap_err().contains("no number"));
        // Without a group the whole match is the number.
        let whole = Regex::new(r"\d+").unwrap();
        assert_eq!(value(Some(&whole), "a 1 b 22", 9.0), Ok(22.0));
        assert_eq!(value(None, "step: 1 ms", 9.0), Ok(9.0));
    }
}
