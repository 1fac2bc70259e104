//! `outboard require`: finds the networks that are good enough for a recorded program, without a
//! network and without a GPU.

mod csv;
mod output;
mod text;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use outboard_api::optimise::Level;
use outboard_model::{
    Both, Budget, Confidence, Constants, Judge, Network, Note, Pair, PcieRequirements, Question,
    Requirements, Timeline, WithoutNetwork, Workload, frontier, html, pcie_html,
};
use outboard_trace::Trace;
use serde::Serialize;

use crate::{
    args::{LevelOfRemoting, RequireArgs},
    trace,
};
pub(crate) use output::{Outputs, check_writable, nameless, write_whole};

/// Where reading a file of constants ends; they are a kilobyte of JSON.
const CONSTANTS_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn require(args: RequireArgs) -> anyhow::Result<ExitCode> {
    let trace = read(&args.file, &args)?;
    let mut workload =
        Workload::new(&trace).with_context(|| format!("the recording {}", args.file.display()))?;
    if let Some(step_ns) = args.step {
        workload.set_step(step_ns);
    }
    match args.level {
        LevelOfRemoting::Api => over_a_network(&args, &trace, &workload),
        LevelOfRemoting::Pcie => over_pcie(&args, &trace, &workload),
    }
}

/// Returns the overhead of the network for the typical iteration of a recording, as a fraction of
/// it, by both models.
pub(crate) fn overhead_over(
    path: &Path,
    network: Network,
    constants: &Constants,
) -> anyhow::Result<Both<f64>> {
    let named = || format!("the recording {}", path.display());
    let trace = trace::read(path)?;
    trace::one_server(&trace, path)?;
    let workload = Workload::new(&trace).with_context(named)?;
    let mut judge = Judge::new(workload.typical(), Level::default(), constants);
    Ok(judge.overhead(network))
}

/// Returns the networks that just keep a recorded program within a budget: round trips at most,
/// bandwidths at least.
pub(crate) fn networks_for(
    path: &Path,
    budget: Budget,
    level: Level,
) -> anyhow::Result<Vec<Network>> {
    let named = || format!("the recording {}", path.display());
    let trace = trace::read(path)?;
    trace::one_server(&trace, path)?;
    let workload = Workload::new(&trace).with_context(named)?;
    for note in &workload.notes {
        if matches!(note, Note::Incomplete { .. }) {
            eprintln!("outboard: note: {}: {}", path.display(), note.text());
        }
    }
    let question = Question {
        budget,
        confidence: Confidence::USUAL,
        level,
        constants: &Constants::published(),
        at: Network::PERFECT,
        iteration: None,
        without_network: None,
    };
    frontier(&workload, &question).with_context(named)
}

pub(crate) fn constants(path: Option<&Path>) -> anyhow::Result<Constants> {
    path.map_or_else(|| Ok(Constants::published()), read_constants)
}

fn over_a_network(
    args: &RequireArgs,
    trace: &Trace,
    workload: &Workload,
) -> anyhow::Result<ExitCode> {
    let constants = constants(args.constants.as_deref())?;
    let measured = without_network(args, trace)?;
    let question = Question {
        budget: args.budget,
        confidence: args.confidence.unwrap_or(Confidence::USUAL),
        level: args.optimise,
        constants: &constants,
        at: Network::from(&args.at),
        iteration: args.iteration,
        without_network: measured.as_ref(),
    };
    let found = Requirements::new(&trace.about, workload, &question)?;
    let mut outputs = Outputs::default();
    if let Some(path) = &args.json {
        outputs.add(path, json(&found)?);
    }
    if let Some(path) = &args.csv {
        outputs.add(path, csv::grid(&found));
    }
    if let Some(path) = &args.report {
        let timeline = Timeline::new(workload, &question)?;
        outputs.add(path, html(&found, &timeline));
    }
    outputs.finish(&text::network(&found))?;
    Ok(exit_code(found.can_be_met))
}

fn read(path: &Path, args: &RequireArgs) -> anyhow::Result<Trace> {
    let trace = trace::read_with(path, args.iterations.as_ref())?;
    trace::one_server(&trace, path)?;
    Ok(trace)
}

/// Returns what the program takes without a network, if it was measured.
fn without_network(args: &RequireArgs, trace: &Trace) -> anyhow::Result<Option<WithoutNetwork>> {
    if let (Some(percent), Some(error)) = (args.without_network, args.without_network_error) {
        return Ok(Some(WithoutNetwork::given(
            percent,
            error,
            &args.without_network_at,
        )?));
    }
    if args.through.is_empty() {
        return Ok(None);
    }
    anyhow::ensure!(
        args.here.len() + 1 == args.through.len(),
        "{} recordings here and {} through the server are not pairs; name one more with --through than with --here, since the \
         first recording is local too",
        args.here.len() + 1,
        args.through.len()
    );
    let read_all = |paths: &[PathBuf]| -> anyhow::Result<Vec<Trace>> {
        paths.iter().map(|path| read(path, args)).collect()
    };
    let (through, here) = (read_all(&args.through)?, read_all(&args.here)?);
    let here = std::iter::once(trace).chain(&here);
    let pairs = here.zip(&through);
    let pairs: Vec<Pair> = pairs
        .map(|(here, through)| Pair { here, through })
        .collect();
    let measured = WithoutNetwork::of(&pairs);
    measured.map(Some).context("comparing with --through")
}

fn over_pcie(args: &RequireArgs, trace: &Trace, workload: &Workload) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.through.is_empty() && args.without_network.is_none(),
        "behind a longer PCIe there is no server; leave out --through and --without-network"
    );
    let program = trace.about.argv.join(" ");
    let found = PcieRequirements::new(program, workload, args.budget, args.iteration)?;
    let mut outputs = Outputs::default();
    if let Some(path) = &args.json {
        outputs.add(path, json(&found)?);
    }
    if let Some(path) = &args.csv {
        outputs.add(path, csv::pcie(&found));
    }
    if let Some(path) = &args.report {
        outputs.add(path, pcie_html(&found));
    }
    outputs.finish(&text::pcie(&found))?;
    Ok(exit_code(found.can_be_met))
}

fn exit_code(can_be_met: bool) -> ExitCode {
    match can_be_met {
        true => ExitCode::SUCCESS,
        false => crate::exit::Exit::NO_NETWORK.into(),
    }
}

fn json(found: &impl Serialize) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(found).context("writing JSON")?;
    text.push('\n');
    Ok(text)
}

fn read_constants(path: &Path) -> anyhow::Result<Constants> {
    let text = outboard_files::read_text(path, CONSTANTS_BYTES_MAX)
        .with_context(|| format!("reading the constants {}", path.display()))?;
    let constants: Constants = serde_json::from_str(&text).with_context(|| {
        format!(
            "the constants {} are not what outboard calibrate writes",
            path.display()
        )
    })?;
    constants
        .check()
        .with_context(|| format!("the constants {}", path.display()))?;
    Ok(constants)
}
