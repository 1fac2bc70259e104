//! `outboard pool simulate`: what servers with GPUs and a pool make of a trace.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use outboard_datacenter::{
    Arriving, FLEETS, Outcome, RUNS, SERVICES_HEAD, machines, mean, needed, services, tasks,
};
use serde_json::json;

use crate::{args::PoolSimulateArgs, exit::WrongSettings};

const MACHINES: &str = "machines.csv";
const TASKS: &str = "tasks.csv";

pub(super) fn simulate(args: &PoolSimulateArgs) -> anyhow::Result<ExitCode> {
    if args.trace.is_file() {
        let text = text(&args.trace).map_err(|error| wrong(&error))?;
        if text.starts_with(SERVICES_HEAD) {
            return of_services(args, &text);
        }
    }
    let (machine_file, task_file) = files(args).map_err(|error| wrong(&error))?;
    let machines = machines(&text(&machine_file)?)
        .with_context(|| machine_file.display().to_string())
        .map_err(|error| wrong(&error))?;
    let trace = tasks(&text(&task_file)?)
        .with_context(|| task_file.display().to_string())
        .map_err(|error| wrong(&error))?;
    let arriving = match args.as_is {
        true => Arriving::AsTheyAre,
        false => Arriving::Share {
            asked: args.asked,
            seeds: args.seeds.into(),
        },
    };
    let rows = RUNS.map(|run| (run.name, mean(run, &machines, &trace, arriving)));
    let gpus: u64 = machines.iter().map(|machine| u64::from(machine.gpus)).sum();
    let document = json!({
        "machines": machines.len(),
        "gpus": gpus,
        "tasks": trace.len(),
        "asked": if args.as_is { None } else { Some(args.asked) },
        "seeds": if args.as_is { None } else { Some(args.seeds) },
        "runs": rows.iter().map(|(name, outcome)| row(name, outcome)).collect::<Vec<_>>(),
    });
    args.json.say(&document, || {
        let (servers, asks) = (machines.len(), trace.len());
        let mut out =
            format!("{servers} machines with {gpus} GPUs, {asks} tasks; percent of all\n");
        out.push_str(&format!(
            "{:28} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}\n",
            "", "GPUs used", "GPUs", "GPUs", "CPUs", "CPUs", "tasks", "tasks"
        ));
        out.push_str(&format!(
            "{:28} {:>10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8}\n",
            "", "100% asked", "used", "stranded", "used", "left", "placed", "refused"
        ));
        for (name, outcome) in &rows {
            out.push_str(&format!(
                "{name:28} {:>10.2} {:>9.2} {:>9.2} {:>9.2} {:>9.2} {:>8} {:>8}\n",
                100.0 * outcome.at_all_asked,
                100.0 * outcome.gpus_used,
                100.0 * stranded(outcome),
                100.0 * outcome.cpus_used,
                100.0 * (1.0 - outcome.cpus_used),
                outcome.placed,
                outcome.refused
            ));
        }
        out
    })
}

/// Says how many machines services need whose instances come and go.
fn of_services(args: &PoolSimulateArgs, text: &str) -> anyhow::Result<ExitCode> {
    let instances = services(text)
        .with_context(|| args.trace.display().to_string())
        .map_err(|error| wrong(&error))?;
    let rows = FLEETS.map(|(name, fleet)| (name, needed(&instances, args.shape, fleet)));
    let document = json!({
        "instances": instances.len(),
        "shape": { "cpus": args.shape.cpus, "gpus": args.shape.gpus, "memory_mib": args.shape.memory_mib },
        "runs": rows.map(|(name, needed)| json!({
            "run": name,
            "machines": needed.machines,
            "cpus": needed.cpus,
            "cpus_used_mean": needed.cpus_used,
            "cpus_peak": needed.cpus_peak,
            "gpus": needed.gpus,
            "gpus_used_mean": needed.gpus_used,
            "gpus_peak": needed.gpus_peak,
            "refused": needed.refused,
        })),
    });
    args.json.say(&document, || {
        let mut out = format!(
            "{} instances of services; percent in the mean over time\n",
            instances.len()
        );
        out.push_str(&format!(
            "{:22} {:>9} {:>9} {:>6} {:>9} {:>6} {:>8}\n",
            "", "machines", "vCPU", "used", "GPUs", "used", "refused"
        ));
        for (name, needed) in &rows {
            out.push_str(&format!(
                "{name:22} {:>9} {:>9} {:>6.1} {:>9} {:>6.1} {:>8}\n",
                needed.machines,
                needed.cpus,
                100.0 * needed.cpus_used,
                needed.gpus,
                100.0 * needed.gpus_used,
                needed.refused
            ));
        }
        out
    })
}

fn row(name: &str, outcome: &Outcome) -> serde_json::Value {
    json!({
        "run": name,
        "gpus_used_at_all_asked": outcome.at_all_asked,
        "gpus_used": outcome.gpus_used,
        "gpus_stranded": stranded(outcome),
        "cpus_used": outcome.cpus_used,
        "cpus_left": 1.0 - outcome.cpus_used,
        "placed": outcome.placed,
        "refused": outcome.refused,
    })
}

/// Returns the share of GPUs that are free although tasks were refused.
fn stranded(outcome: &Outcome) -> f64 {
    match outcome.refused {
        0 => 0.0,
        _ => 1.0 - outcome.gpus_used,
    }
}

/// Returns the files of the machines and of the tasks.
fn files(args: &PoolSimulateArgs) -> anyhow::Result<(PathBuf, PathBuf)> {
    if args.trace.is_dir() {
        let machines = args.machines.clone();
        let machines = machines.unwrap_or_else(|| args.trace.join(MACHINES));
        return Ok((machines, args.trace.join(TASKS)));
    }
    let machines = args
        .machines
        .clone()
        .context("a file of tasks needs one of machines: add --machines FILE, or name a folder")?;
    Ok((machines, args.trace.clone()))
}

fn text(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| file.display().to_string())
}

fn wrong(error: &anyhow::Error) -> anyhow::Error {
    anyhow::Error::new(WrongSettings::of(error))
}
