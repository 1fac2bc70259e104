//! Records a GPU's results for all jobs. A separate process uses the driver, so a fault, a crash or
//! an endless kernel costs one job: the next process continues after it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::gpu::{Compiled, Gpu};
use crate::job::{Job, Outcome};
use crate::recording::Recording;
use crate::worker::{say, start};

/// Jobs compiled as one module.
const MODULE_JOBS: usize = 24;
/// Modules compiled ahead of the running one.
const AHEAD_MAX: usize = 64;
/// Time without a message after which a worker is killed.
const SILENCE_MAX: Duration = Duration::from_secs(40);

/// A worker's messages.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Device(String),
    Begun(usize),
    Done(usize, Outcome),
}

/// Runs all jobs, or as many as `budget` allows. `which` are the arguments with which a worker
/// finds the same jobs.
pub fn record(jobs: &[Job], which: &[&str], budget: Duration) -> Result<Recording> {
    let (mut recording, started) = (Recording::default(), Instant::now());
    let (mut from, mut careful) = (0, false);
    while from < jobs.len() {
        let Some(left) = budget.checked_sub(started.elapsed()) else {
            eprintln!("truth: out of time at job {from} of {}", jobs.len());
            break;
        };
        let mut arguments = vec!["worker".to_owned(), "--from".to_owned(), from.to_string()];
        arguments.extend(careful.then(|| "--careful".to_owned()));
        arguments.extend(which.iter().map(|word| (*word).to_owned()));
        let (mut child, said) = start::<Said>(&arguments)?;
        let deadline = Instant::now() + left;
        let mut running = None;
        loop {
            let wait = SILENCE_MAX.min(deadline.saturating_duration_since(Instant::now()));
            match said.recv_timeout(wait) {
                Ok(Said::Device(name)) => recording.device = name,
                Ok(Said::Begun(index)) => running = Some(index),
                Ok(Said::Done(index, outcome)) => {
                    if let Outcome::Refused(why) | Outcome::Fault(why) = &outcome {
                        eprintln!("truth: {}: {why}", jobs[index].what);
                    }
                    recording.entries.insert(jobs[index].key, outcome);
                    (running, from) = (None, index + 1);
                }
                Err(_) => break,
            }
        }
        child.kill().ok();
        child.wait()?;
        if Instant::now() >= deadline {
            continue;
        }
        let was_careful = std::mem::take(&mut careful);
        if let Some(index) = running {
            eprintln!("truth: {}: the worker died or hung", jobs[index].what);
            let fault = Outcome::Fault("the worker died or hung".into());
            recording.entries.insert(jobs[index].key, fault);
            from = index + 1;
        } else if recording.device.is_empty() {
            bail!("the worker could not use a GPU");
        } else {
            // Either a careful worker has done its part, or the compiler crashed on a later job;
            // then jobs run one by one.
            careful = !was_careful;
        }
    }
    Ok(recording)
}

/// Jobs that a careful worker runs.
const CAREFUL_JOBS: usize = 4 * MODULE_JOBS;

/// Runs a worker. After a crash of the compiler it is careful: it takes jobs one by one, and
/// announces each before compiling it.
pub fn work(jobs: &[Job], from: usize, careful: bool) -> Result<()> {
    if careful {
        work_carefully(jobs, from)
    } else {
        work_in_bulk(jobs, from)
    }
}

fn work_carefully(jobs: &[Job], from: usize) -> Result<()> {
    let mut gpu = Gpu::open()?;
    for (index, job) in jobs.iter().enumerate().skip(from).take(CAREFUL_JOBS) {
        say(&Said::Begun(index))?;
        let outcome = match gpu.compile(std::slice::from_ref(job)).pop() {
            Some(Ok(kernel)) => gpu.run(kernel, job),
            Some(Err(refusal)) => Outcome::Refused(refusal),
            None => continue,
        };
        let fault = matches!(outcome, Outcome::Fault(_));
        say(&Said::Done(index, outcome))?;
        if fault {
            std::process::exit(1);
        }
    }
    Ok(())
}

/// Compiles on all cores, runs in order on one thread, and ends at the first fault.
fn work_in_bulk(jobs: &[Job], from: usize) -> Result<()> {
    let mut gpu = Gpu::open()?;
    say(&Said::Device(gpu.name.clone()))?;
    let chunks: Vec<(usize, &[Job])> = jobs[from..]
        .chunks(MODULE_JOBS)
        .enumerate()
        .map(|(i, chunk)| (from + i * MODULE_JOBS, chunk))
        .collect();
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let compiler = Gpu::open()?;
    thread::scope(|scope| -> Result<()> {
        let (sender, compiled) = mpsc::channel::<(usize, Vec<Compiled>)>();
        for _ in 0..cores {
            let (sender, compiler) = (sender.clone(), &compiler);
            let (next, finished, chunks) = (&next, &finished, &chunks);
            scope.spawn(move || {
                if compiler.make_current().is_err() {
                    return;
                }
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((_, chunk)) = chunks.get(index) else {
                        return;
                    };
                    while index > finished.load(Ordering::Relaxed) + AHEAD_MAX {
                        thread::sleep(Duration::from_millis(1));
                    }
                    if sender.send((index, compiler.compile(chunk))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        for (index, (first, chunk)) in chunks.iter().enumerate() {
            let kernels = loop {
                if let Some(kernels) = early.remove(&index) {
                    break kernels;
                }
                let (at, kernels) = compiled.recv()?;
                early.insert(at, kernels);
            };
            for (offset, (job, kernel)) in chunk.iter().zip(kernels).enumerate() {
                say(&Said::Begun(first + offset))?;
                let outcome = match kernel {
                    Ok(kernel) => gpu.run(kernel, job),
                    Err(refusal) => Outcome::Refused(refusal),
                };
                let fault = matches!(outcome, Outcome::Fault(_));
                say(&Said::Done(first + offset, outcome))?;
                if fault {
                    // The context is lost, and threads may wait in it.
                    std::process::exit(1);
                }
            }
            finished.store(index, Ordering::Relaxed);
        }
        Ok(())
    })
}
