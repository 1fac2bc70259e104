//! Random programs on a GPU and on the software device, as long as there is time.

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

/// Results shown of a program.
const SHOWN_MAX: usize = 6;

/// A worker that says nothing for so long is ended. Making a program small is hundreds of compilations.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What to try.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    pub first_seed: u64,
    pub time: Duration,
    /// Steps of a program.
    pub steps: usize,
    /// Differences after which it ends.
    pub differences_max: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    pub tried: u64,
    /// Programs that differ however the driver compiles them.
    pub differ: usize,
    /// Programs that give on the GPU what they give here, unless the driver optimises them.
    pub optimiser: usize,
    /// Programs over which the driver died or hung.
    pub lost: usize,
}

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Device(String),
    Begun(u64),
    /// Only where the driver optimises.
    Optimiser,
    /// What is left of the program, and results.
    Differs(String),
    Ended,
}

/// Prints what the two disagree on, made small. A process of its own talks to the driver: the next goes on behind what it dies of.
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

/// The worker.
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
        // What a driver's optimiser makes of a program is no truth about it.
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

/// Runs recorded programs again, each so many times on the GPU, with and without optimisation; prints all results in which the
/// software device differs, or the GPU from what was recorded. Returns how many programs that were.
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

/// Results that are not the same, told; none where one of the two does not run the program.
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
