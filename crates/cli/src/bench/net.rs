//! `outboard bench net`: operations that a kernel posts, by provider, verb, size, scope, threads,
//! queues and place of the counters. Sides and providers take turns, round by round.
//!
//! The endpoint is in the worker's process, so a side's kernels must see its memory: the local
//! GPU's, and those of servers over shm.

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use outboard_link::Endpoint;
use serde::Serialize;

use super::{
    Interrupt, Output, Setting,
    net_case::{By, NetCase, NetFigures, Place, Scope, Verb, name},
    print,
    report::now_s,
    side::Side,
    statistics::median,
};
use crate::{args::NetArgs, exit::WrongSettings};

const FORMAT: u32 = 2;
const ROUNDS: u16 = 3;
const OPERATIONS: u32 = 1000;
const OPERATIONS_QUICK: u32 = 50;

#[derive(Serialize)]
struct Results {
    format: u32,
    release: &'static str,
    time_s: u64,
    rounds: u16,
    complete: bool,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    side: String,
    device: String,
    /// True for the software device, whose times say nothing of a GPU.
    is_software: bool,
    #[serde(flatten)]
    case: NetCase,
    #[serde(flatten)]
    figures: NetFigures,
}

pub(super) fn net(args: NetArgs, interrupt: &Interrupt) -> anyhow::Result<ExitCode> {
    let cases = cases(&args)?;
    let json = args.targets.json.as_deref().map(Output::open).transpose()?;
    let mut setting = Setting::new(&args.targets, 1, interrupt)?;
    let is_shared = |url: &Option<Endpoint>| matches!(url, None | Some(Endpoint::Shm(_)));
    setting.targets.retain(|target| is_shared(&target.url));
    if setting.targets.is_empty() {
        bail!("kernels reach the adapter of their program on a local GPU and over shm alone");
    }
    let mut sides = setting.sides(interrupt)?;
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { ROUNDS });
    let mut results = Results {
        format: FORMAT,
        release: env!("CARGO_PKG_VERSION"),
        time_s: now_s(),
        rounds,
        complete: false,
        rows: Vec::new(),
    };
    print(&head())?;
    let measured = cases
        .chunks(args.provider.len().max(1))
        .try_for_each(|some| results.measure(some, &mut sides, interrupt));
    results.complete = measured.is_ok();
    if let Some(output) = json
        && (measured.is_ok() || !results.rows.is_empty())
    {
        output.write(&results)?;
    }
    measured.map_err(|error| setting.explain(error))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns every combination asked for, once.
fn cases(args: &NetArgs) -> anyhow::Result<Vec<NetCase>> {
    let verbs = match args.verb.as_slice() {
        [] => Verb::value_variants(),
        some => some,
    };
    let operations = args.operations.unwrap_or(match args.quick {
        true => OPERATIONS_QUICK,
        false => OPERATIONS,
    });
    let mut cases = Vec::new();
    for &verb in verbs {
        let sizes = match verb.has_sizes() {
            true => args.bytes.as_slice(),
            false => &[0],
        };
        let of_verb = NetCase {
            provider: By::Nic,
            verb,
            scope: Scope::Thread,
            threads: 1,
            queues: 1,
            bytes: 0,
            window: 1,
            counters: Place::Host,
            operations,
        };
        let mut some = vec![of_verb];
        vary(&mut some, &args.scope, |case, scope| case.scope = scope);
        vary(&mut some, &args.threads, |case, n| case.threads = n);
        vary(&mut some, &args.queues, |case, n| case.queues = n);
        vary(&mut some, sizes, |case, size| case.bytes = verb.bytes(size));
        vary(&mut some, &args.window, |case, n| case.window = n);
        vary(&mut some, &args.counters, |case, at| case.counters = at);
        // Last, so that providers of a case lie side by side, and take turns.
        vary(&mut some, &args.provider, |case, by| case.provider = by);
        cases.append(&mut some);
    }
    let checked = cases.iter().try_for_each(NetCase::check);
    checked.map_err(|error| WrongSettings::of(&error))?;
    Ok(cases)
}

/// Replaces each case by one for each value.
fn vary<T: Copy>(cases: &mut Vec<NetCase>, values: &[T], set: impl Fn(&mut NetCase, T)) {
    let each = |case: &NetCase| {
        let case = *case;
        let set = &set;
        values.iter().map(move |value| {
            let mut case = case;
            set(&mut case, *value);
            case
        })
    };
    *cases = cases.iter().flat_map(each).collect();
}

impl Results {
    /// Measures cases in turns.
    fn measure(
        &mut self,
        cases: &[NetCase],
        sides: &mut [Side],
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let turns = cases.len() * sides.len();
        let mut figures = vec![Vec::new(); turns];
        for round in 0..usize::from(self.rounds) {
            for turn in 0..turns {
                interrupt.check()?;
                let at = (round + turn) % turns;
                let (case, side) = (&cases[at / sides.len()], at % sides.len());
                figures[at].push(sides[side].net(case)?);
            }
        }
        for (at, figures) in figures.iter().enumerate() {
            let (case, side) = (&cases[at / sides.len()], &sides[at % sides.len()]);
            let row = Row::new(side, case, figures).context("a case without a round")?;
            print(&row.line())?;
            self.rows.push(row);
        }
        Ok(())
    }
}

impl Row {
    fn new(side: &Side, case: &NetCase, rounds: &[NetFigures]) -> Option<Row> {
        let of = |figure: fn(&NetFigures) -> f64| {
            median(&rounds.iter().map(figure).collect::<Vec<f64>>())
        };
        Some(Row {
            side: side.target.name.clone(),
            device: side.ready.device.clone(),
            is_software: side.ready.device == outboard_soft::NAME,
            case: *case,
            figures: NetFigures {
                us_each: of(|f| f.us_each)?,
                post_ticks: of(|f| f.post_ticks)?,
                million_a_second: of(|f| f.million_a_second)?,
                gigabytes_a_second: of(|f| f.gigabytes_a_second)?,
                taken: rounds.first()?.taken,
            },
        })
    }

    fn line(&self) -> String {
        let (case, figures) = (&self.case, &self.figures);
        let verb = name(case.verb);
        let shape = format!(
            "{:<8} {:<12} {:<6} {:>7} {:>6} {:>8} {:>6} {:<4}",
            name(case.provider),
            verb,
            name(case.scope),
            case.threads,
            case.queues,
            case.bytes,
            case.window,
            name(case.counters),
        );
        let mark = if self.is_software { "software" } else { "" };
        format!(
            "{shape} {:>10.2} {:>10.0} {:>9.4} {:>8.3} {:>9}  {} {mark}\n",
            figures.us_each,
            figures.post_ticks,
            figures.million_a_second,
            figures.gigabytes_a_second,
            figures.taken.registers,
            self.side,
        )
    }
}

fn head() -> String {
    format!(
        "{:<8} {:<12} {:<6} {:>7} {:>6} {:>8} {:>6} {:<4} {:>10} {:>10} {:>9} {:>8} {:>9}  side\n",
        "provider",
        "verb",
        "scope",
        "threads",
        "queues",
        "bytes",
        "window",
        "at",
        "us each",
        "post ticks",
        "million/s",
        "GB/s",
        "registers"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_is_combined_with_each() {
        let base = NetCase {
            provider: By::Nic,
            verb: Verb::Put,
            scope: Scope::Block,
            threads: 33,
            queues: 1,
            bytes: 0,
            window: 1,
            counters: Place::Gpu,
            operations: 1,
        };
        let mut cases = vec![base];
        vary(&mut cases, &[1, 2], |case, n| case.queues = n);
        vary(&mut cases, &[1, 2, 3], |case, n| case.window = n);
        let shapes: Vec<_> = cases
            .iter()
            .map(|case| (case.queues, case.window))
            .collect();
        assert_eq!(shapes, [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]);
        assert!(base.check().is_err(), "no whole warps");
    }
}
