//! Runs random programs on a GPU and on the software device for a given time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::generate::Generator;
use super::shrink::shrink;
use super::{Program, THREAD_BYTES, job, job_unoptimised};
use crate::gpu::Gpu;
use crate::job::{Job, Outcome};
use crate::recording::Recorded;
use crate::soft::Soft;
use crate::worker::{say, start};

/// Results shown for one program.
const SHOWN_MAX: usize = 6;

/// Time without a message after which a worker is killed. Shrinking a program takes hundreds of
/// compilations.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The settings of a hunt.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    pub first_seed: u64,
    pub time: Duration,
    /// Steps of a program.
    pub steps: usize,
    /// Differences after which the hunt ends.
    pub differences_max: usize,
}

/// The results of a hunt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    pub tried: u64,
    /// Programs that differ at every level of optimisation.
    pub differ: usize,
    /// Programs that differ only if the driver optimises them.
    pub optimiser: usize,
    /// Programs on which the driver crashed or hung.
    pub lost: usize,
}

/// A worker's messages.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Device(String),
    Begun(u64),
    /// Differs only if the driver optimises.
    Optimiser,
    /// The shrunk program, and its results.
    Differs(String),
    Ended,
}

/// Prints the programs on which the two devices differ, after shrinking. A separate process uses
/// the driver; if it crashes, the next continues after that program.
pub fn hunt(hunt: Hunt) -> Result<Found> {
    let (mut found, started, mut device) = (Found::default(), Instant::now(), None);
    loop {
        let Some(left) = hunt.time.checked_sub(started.elapsed()) else {
            return Ok(found);
        };
        let mut arguments = vec!["hunter".to_owned()];
        for (name, value) in [
            ("--from", hunt.first_seed + found.tried),
            ("--seconds", left.as_secs()),
            ("--length", hunt.steps as u64),
        ] {
            arguments.extend([name.to_owned(), value.to_string()]);
        }
        let (mut child, said) = start::<Said>(&arguments)?;
        let (mut seed, mut ended) = (None, false);
        while let Ok(said) = said.recv_timeout(SILENCE_MAX) {
            match said {
                Said::Device(name) if device.is_none() => {
                    println!("{name}");
                    device = Some(name);
                }
                Said::Device(_) => {}
                Said::Begun(begun) => {
                    seed = Some(begun);
                    found.tried += 1;
                }
                Said::Optimiser => found.optimiser += 1,
                Said::Differs(text) => {
                    println!("{text}");
                    found.differ += 1;
                }
                Said::Ended => ended = true,
            }
            if ended || found.differ >= hunt.differences_max {
                break;
            }
        }
        child.kill().ok();
        child.wait()?;
        if ended || found.differ >= hunt.differences_max {
            return Ok(found);
        }
        if device.is_none() {
            bail!("the worker could not use a GPU");
        }
        if let Some(seed) = seed {
            println!("program {seed}: the driver died of it, or hung");
            found.lost += 1;
        }
    }
}

/// Runs a worker.
pub fn work(generator: &Generator<'_>, hunt: Hunt, soft: &Soft) -> Result<()> {
    let (started, mut gpu) = (Instant::now(), Gpu::open()?);
    say(&Said::Device(gpu.name.clone()))?;
    for seed in hunt.first_seed.. {
        if started.elapsed() >= hunt.time {
            break;
        }
        say(&Said::Begun(seed))?;
        let program = generator.program(seed, hunt.steps);
        if differences(&program, soft, &mut gpu, true).is_empty() {
            continue;
        }
        // A difference that only the driver's optimiser causes does not count.
        let mut differs = |program: &Program| {
            [false, true]
                .iter()
                .all(|&optimised| !differences(program, soft, &mut gpu, optimised).is_empty())
        };
        if !differs(&program) {
            say(&Said::Optimiser)?;
            continue;
        }
        let small = shrink(&program, differs);
        let mut text = format!(
            "program {seed} differs; what is left of it:\n{:#?}",
            small.steps
        );
        for line in differences(&small, soft, &mut gpu, false)
            .iter()
            .take(SHOWN_MAX)
        {
            text += &format!("\n  {line}");
        }
        say(&Said::Differs(text))?;
    }
    say(&Said::Ended)
}

/// Runs recorded programs again, each `times` times on the GPU, with and without optimisation.
/// Prints all results in which the software device differs, or the GPU differs from its recording.
/// Returns the number of such programs.
pub fn again(programs: &[&Recorded], times: usize, soft: &Soft, gpu: &mut Gpu) -> usize {
    let mut found = 0;
    for program in programs {
        let here = soft.run(&job(program.seed, &program.body));
        let mut lines = Vec::new();
        let ways = [
            (
                "optimised",
                job(program.seed, &program.body),
                &program.outcome,
            ),
            (
                "unoptimised",
                job_unoptimised(program.seed, &program.body),
                &program.unoptimised,
            ),
        ];
        for (way, job, recorded) in ways {
            for _ in 0..times {
                let Some(there) = on_gpu(&job, gpu) else {
                    lines.push(format!("{way}: the GPU does not run it"));
                    continue;
                };
                match &here {
                    Outcome::Results(here) => {
                        let unequal = unequal(here, &there);
                        lines.extend(unequal.iter().map(|line| format!("{way}: {line}")));
                    }
                    other => lines.push(format!("{other:x?} here")),
                }
                if Outcome::Results(there).digest() != *recorded {
                    lines.push(format!(
                        "{way}: the GPU gives something else than was recorded"
                    ));
                }
            }
        }
        if !lines.is_empty() {
            found += 1;
            println!("program {}:\n  {}", program.seed, lines.join("\n  "));
        }
    }
    println!("{} programs again, {found} differ", programs.len());
    found
}

/// Describes the results that differ; empty if one of the two devices does not run the program.
fn differences(program: &Program, soft: &Soft, gpu: &mut Gpu, optimised: bool) -> Vec<String> {
    let job = if optimised {
        program.job()
    } else {
        job_unoptimised(program.seed, &program.body())
    };
    match (soft.run(&job), on_gpu(&job, gpu)) {
        (Outcome::Results(here), Some(there)) => unequal(&here, &there),
        _ => Vec::new(),
    }
}

fn unequal(here: &[u8], there: &[u8]) -> Vec<String> {
    let words = here.chunks(4).zip(there.chunks(4)).enumerate();
    words
        .filter(|(_, (a, b))| a != b)
        .map(|(word, (a, b))| {
            let (thread, byte) = (word * 4 / THREAD_BYTES, word * 4 % THREAD_BYTES);
            format!("thread {thread} byte {byte}: {a:02x?} here, {b:02x?} there")
        })
        .collect()
}

fn on_gpu(job: &Job, gpu: &mut Gpu) -> Option<Vec<u8>> {
    let kernel = gpu.compile(std::slice::from_ref(job)).pop()?.ok()?;
    match gpu.run(kernel, job) {
        Outcome::Results(results) => Some(results),
        _ => None,
    }
}
